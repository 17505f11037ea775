"""The worker pool: launches in a row, from several threads, in forked processes, and after the end."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
from native_checks import affine, succeeds, whole

import tilewright
from tilewright.compiler.text import compile_text

COUNT = """block count(%step: in global i32 (T), %total: inout global i32 (T))
  param T = 7
{
  tasks t in 0..T {
    %one = view %step (j 1) -> [t + j]
    %sum = view %total (j 1) -> [t + j]
    map %sum = %sum + %one
  }
}
"""


@pytest.mark.parametrize("workers", [None, 1])
def test_each_of_many_launches_does_every_task_once(workers: int | None) -> None:
    step, total = np.arange(1, 8, dtype=np.int32), np.zeros(7, np.int32)
    launch = compile_text(COUNT, "cpu", workers=workers).bind(step, total)
    for number in range(1, 20001):
        launch()
        if number % 997 == 0:
            assert np.array_equal(total, step * number)
    assert np.array_equal(total, step * 20000)


def test_workers_that_fell_asleep_wake_up() -> None:
    step, total = np.arange(1, 8, dtype=np.int32), np.zeros(7, np.int32)
    launch = compile_text(COUNT, "cpu").bind(step, total)
    for pause in (0, 0.0002, 0.0005, 0.001, 0.002, 0.01) * 20:
        launch()
        time.sleep(pause)
    assert np.array_equal(total, step * 120)


@pytest.mark.parametrize("workers", [None, 1])
@pytest.mark.parametrize("shared", [False, True])
def test_threads_may_launch_at_the_same_time(workers: int | None, shared: bool) -> None:
    """Launches used to overwrite each other's function and arguments."""
    program = compile_text(COUNT, "cpu", workers=workers)
    step = np.arange(1, 8, dtype=np.int32)
    totals = [np.zeros(7, np.int32) for _ in range(4)]
    launches = [program.bind(step, total) for total in totals]
    started = threading.Barrier(4)

    def work(number: int) -> None:
        started.wait()
        for _ in range(1000):
            launches[0 if shared else number]()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if shared:
        assert np.array_equal(totals[0], step * 4000)
    else:
        assert all(np.array_equal(total, step * 1000) for total in totals)


def test_threads_may_compile_at_the_same_time() -> None:
    wrong: list[str] = []
    x = whole(5, 37)

    def work(number: int) -> None:
        for i in range(5):
            factor = 10 * number + i
            if not np.array_equal(compile_text(affine(factor, i), "cpu")(x), x * factor + i):
                wrong.append(f"{factor}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_process_compiles_and_runs_and_its_parent_goes_on() -> None:
    """A launch that was bound before the fork used to wait for threads that the child does not have."""
    printed = succeeds(
        """
        import os, sys
        import numpy as np
        from native_checks import affine, whole
        from tilewright import compile_text

        x = whole(5, 37)
        y = np.zeros_like(x)
        bound = compile_text(affine(2, 3), "cpu").bind(x, y)
        single = compile_text(affine(4, 5), "cpu", workers=1).bind(x, y)
        bound()

        def check(depth):
            for _ in range(3):
                y[:] = -1; bound(); assert (y == x * 2 + 3).all()          # on the forking thread's own
                y[:] = -1; single(); assert (y == x * 4 + 5).all()
            assert (compile_text(affine(6, depth), "cpu")(x) == x * 6 + depth).all()  # new threads, a new helper
            y[:] = -1; bound(); assert (y == x * 2 + 3).all()              # the old launch with the new threads

        def forked(depth):
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                check(depth)
                if depth < 2:
                    forked(depth + 1)
                print("child", depth, flush=True)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert status == 0, status
            check(10 + depth)

        forked(1)
        print("parent")
        """,
        TILEWRIGHT_THREADS="2",
    )
    assert printed.split("\n")[:3] == ["child 2", "child 1", "parent"]


def test_forks_while_other_threads_launch_and_compile() -> None:
    succeeds(
        """
        import os, threading, time
        import numpy as np
        from native_checks import affine, whole
        from tilewright import compile_text

        x = whole(5, 37)
        y = np.zeros_like(x)
        bounds = [compile_text(affine(2, 3), "cpu", workers=w).bind(x, np.zeros_like(x)) for w in (1, 2)]
        ended = threading.Event()

        def launching():
            while not ended.is_set():
                for bound in bounds:
                    bound()

        def compiling():
            i = 0
            while not ended.is_set():
                i += 1
                compile_text(affine(i, 1), "cpu")(x)

        threads = [threading.Thread(target=f, daemon=True) for f in (launching, compiling)]
        for t in threads: t.start()
        for i in range(6):
            child = os.fork()
            if child == 0:
                for bound in bounds: bound()
                assert (compile_text(affine(3, i), "cpu")(x) == x * 3 + i).all()
                os._exit(7)
            for _ in range(6000):
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid: break
                time.sleep(0.05)
            assert pid and os.waitstatus_to_exitcode(status) == 7, (pid, status)
        ended.set()
        for t in threads: t.join()
        """,
        TILEWRIGHT_THREADS="2",
        TILEWRIGHT_CACHE_DIR="off",
    )


def test_a_launch_while_the_process_ends_still_runs() -> None:
    printed = succeeds(
        """
        import atexit
        import numpy as np
        from native_checks import affine, whole
        from tilewright import compile_text

        x = whole(5, 37)
        y = np.zeros_like(x)

        def late():
            y[:] = 0
            bound()
            program(x)
            print((y == x * 2 + 1).all())

        atexit.register(late)  # runs after the pool has ended
        program = compile_text(affine(), "cpu")
        bound = program.bind(x, y)
        bound()
        """,
        TILEWRIGHT_THREADS="2",
    )
    assert printed == "True\n"


def test_fewer_threads_than_asked_for_are_enough() -> None:
    succeeds(
        """
        import threading
        from native_checks import affine, whole
        from tilewright import compile_text
        from tilewright.targets.cpu.pool import pool

        start, left = threading.Thread.start, [1]

        def refusing(thread):
            if thread.name.startswith("tilewright-"):
                if not left[0]:
                    raise RuntimeError("can't start new thread")
                left[0] -= 1
            start(thread)

        threading.Thread.start = refusing
        x = whole(5, 37)
        assert (compile_text(affine(), "cpu")(x) == x * 2 + 1).all()
        assert pool().workers == 2
        """,
        TILEWRIGHT_THREADS="4",
    )


def test_a_launch_keeps_what_it_needs() -> None:
    import gc

    def bound() -> tuple[object, object]:
        y = np.zeros((5, 37), np.float32)
        return compile_text(affine(2, 9), "cpu").bind(whole(5, 37), y), y

    launch, y = bound()
    gc.collect()
    launch()  # type: ignore[operator]
    assert np.array_equal(y, whole(5, 37) * 2 + 9)  # type: ignore[arg-type]


def test_threads_may_trace_compile_and_call_kernels_at_the_same_time() -> None:
    """Each thread has kernels of its own, and all share one executable and one layer."""
    wrong: list[str] = []
    rng = np.random.default_rng(0)
    images = [rng.integers(-3, 4, (1, 4 + n, 5, 3)).astype(np.float32) for n in range(4)]
    layer = tilewright.Conv2d(rng.integers(-3, 4, (6, 3, 3, 3)).astype(np.float32), padding=1)
    shared = tilewright.compile(tilewright.kernels.gemm("nn", "f32"), target="cpu")
    results = [np.empty(0)] * 4
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        for i in range(3):
            a, b = np.full((number + 1, i + 2), 2.0, np.float32), np.full((i + 2, 7), 3.0, np.float32)
            own = tilewright.compile(tilewright.kernels.gemm("nn", "f32", bias=True), target="cpu")
            if not np.array_equal(shared(a, b), a @ b):
                wrong.append(f"shared {number} {i}")
            if not np.array_equal(own(a, b, np.ones(7, np.float32)), a @ b + 1):
                wrong.append(f"own {number} {i}")
        results[number] = layer(images[number])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(np.array_equal(layer(image), result) for image, result in zip(images, results, strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_forked_processes_do_not_share_scratch_memory() -> None:
    """Much of it was memory that parent and child wrote at the same time."""
    succeeds("""
        import os
        from tilewright.targets.cpu.pool import aligned

        memory = aligned(1 << 20)
        child = os.fork()
        if child == 0:
            memory[:] = 1
            os._exit(0)
        os.waitpid(child, 0)
        assert not memory.any()
    """)
