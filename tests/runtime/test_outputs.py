"""The pool of outputs: page faults are gone, its size is bounded; threads and collections may come at any moment."""

from __future__ import annotations

import resource
import threading
from typing import Any

import numpy as np

import tilewright
from tilewright.runtime.outputs import LEAST, POOL, OutputPool, maker, most_kept

F32 = np.dtype(np.float32)


def test_a_fresh_output_of_3_mb_cost_page_faults_at_each_call() -> None:
    run = tilewright.compile(tilewright.kernels.gemm("nn", "f32"))
    a, b = np.ones((1024, 8), np.float32), np.ones((8, 768), np.float32)
    last = [run(a, b) for _ in range(4)][:3]  # one more is in use while a call runs
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for turn in range(50):
        last[turn % 3] = run(a, b)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 50
    assert all((z == 8).all() for z in last)


def test_the_pool_keeps_no_more_than_it_may() -> None:
    pool = OutputPool(most=5 << 20)
    several = [pool.maker((512, 512), F32)() for _ in range(8)]  # 1 MB each
    assert pool.kept == 0
    del several
    assert pool.kept == 5 << 20
    large = pool.maker((1024, 1024), F32)()
    del large  # takes the place of four others
    assert pool.kept == 5 << 20
    huge = pool.maker((2048, 1024), F32)()
    del huge  # larger than all that is kept
    assert pool.kept == 5 << 20
    assert POOL.most == most_kept() >= 64 << 20


def test_outputs_start_at_a_cache_line_or_are_small() -> None:
    for count in (1, LEAST // 4 - 1, LEAST // 4, 99999):
        made = maker((count,), F32)()
        assert made.flags.c_contiguous
        assert made.flags.writeable
        assert made.nbytes < LEAST or made.ctypes.data % 64 == 0


def test_an_array_that_ends_while_the_pool_is_locked_does_not_block() -> None:
    pool = OutputPool()
    make = pool.maker((512, 512), F32)
    made = make()
    with pool.lock:  # as in a collection that starts while this thread makes another output
        del made
    assert pool.kept == 0
    assert make().shape == (512, 512)


def test_threads_get_blocks_of_their_own() -> None:
    pool, wrong = OutputPool(), []
    make = pool.maker((64, 64), F32)

    def work(mine: int) -> None:
        for _ in range(300):
            several: list[Any] = [make() for _ in range(3)]
            for place, array in enumerate(several):
                array.fill(10 * mine + place)
            if not all((array == 10 * mine + place).all() for place, array in enumerate(several)):
                wrong.append(mine)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.kept <= 6 * 6 * 64 * 64 * 4  # three arrays of each thread, and three that are being made
