"""Calls like one before: no check is lost, nothing stale is run, and memory is what callers think it is."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import NativeExecutable
from tilewright.errors import ArgumentError
from tilewright.runtime.outputs import LEAST
from tilewright.targets.calls.table import CallRecord
from tilewright.targets.cpu import entry, launch_cache
from tilewright.targets.cpu.workspaces import workspace

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


@tkw.wave()
def minus(
    x: tkl.Memory[M, N, GLOBAL, tkl.f32],
    y: tkl.Memory[M, N, GLOBAL, tkl.f32],
    z: tkl.Memory[M, N, GLOBAL, tkl.f32],
) -> None:
    tkw.write(tkw.read(x) - tkw.read(y), z)


@tkw.wave()
def scaled(x: tkl.Memory[M, GLOBAL, tkl.f32], by: tkl.f32, y: tkl.Memory[M, GLOBAL, tkl.f32]) -> None:
    tkw.write(tkw.read(x) * by, y)


def numbers(*shape: int, start: int = 0) -> Any:
    return np.arange(start, start + np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.fixture
def at_length(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels whose calls were checked at length."""
    names: list[str] = []
    whole = NativeExecutable._run

    def run(self: Any, *args: Any) -> Any:
        names.append(self.name)
        return whole(self, *args)

    monkeypatch.setattr(NativeExecutable, "_run", run)
    return names


def remembered(run: Any) -> list[CallRecord]:
    """The records of the calls that an executable remembers."""
    return [] if run.launches.table is None else [record for _, record in run.launches.table.kinds]


def test_a_call_like_one_before_was_checked_at_length_each_time(at_length: list[str]) -> None:
    run = tilewright.compile(minus)
    for start in range(5):
        x, y = numbers(3, 5, start=start), numbers(3, 5, start=7 * start)
        assert np.array_equal(run(x, y), x - y)
    assert at_length == ["minus"]
    out = np.empty((3, 5), np.float32)
    for start in range(5):
        x, y = numbers(3, 5, start=start), numbers(3, 5, start=7 * start)
        assert run(x, y, out=out) is out
        assert np.array_equal(out, x - y)
    assert run(y=y, x=x, z=out) is None
    assert at_length == ["minus"] * 2


def test_one_array_given_twice_does_not_make_later_arguments_one(at_length: list[str]) -> None:
    run = tilewright.compile(minus)
    x, y = numbers(3, 5, start=1), numbers(3, 5, start=9)
    assert not run(x, x).any()
    assert np.array_equal(run(x, y), x - y)
    assert at_length == ["minus"]


def test_other_shapes_types_and_layouts_are_still_checked() -> None:
    run = tilewright.compile(minus)
    x, y, out = numbers(3, 5), numbers(3, 5, start=4), np.empty((3, 5), np.float32)
    run(x, y, out), run(x, y)
    for wrong, says in {
        "x holds f64": (x.astype(np.float64), y),
        "must have the 2 dimensions": (x[0], y),
        "its dimension 1 must be N = 5, not 4": (x, np.ascontiguousarray(y[:, :4])),
        "argument y is list": (x, y.tolist()),
        "whose mask would be lost": (np.ma.masked_array(x, x > 2), y),
        "is None, and is no output": (x, None, out),
        "takes 3 arguments": (x,),
    }.items():
        with pytest.raises(ArgumentError, match=wrong.replace("(", r"\(")):
            run(*says)
    assert np.array_equal(run(x[::-1], y), x[::-1] - y)
    assert np.array_equal(run(np.asfortranarray(x), y), x - y)
    assert np.array_equal(run(x.astype(">f4").astype("=f4"), y), x - y)
    swapped = x.astype(">f4") if np.little_endian else x.astype("<f4")
    with pytest.raises(ArgumentError, match="x holds"):
        run(swapped, y)


def test_an_output_that_shares_memory_in_a_later_call_is_still_refused() -> None:
    run = tilewright.compile(minus)
    x, y, out = numbers(3, 5), numbers(3, 5, start=4), np.empty((3, 5), np.float32)
    run(x, y, out)
    room = np.zeros(40, np.float32)
    with pytest.raises(ArgumentError, match="shares memory with x"):
        run(room[:15].reshape(3, 5), y, room[10:25].reshape(3, 5))
    run(room[:15].reshape(3, 5), y, room[15:30].reshape(3, 5))
    assert np.array_equal(room[15:30].reshape(3, 5), -y)
    locked = np.empty((3, 5), np.float32)
    locked.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        run(x, y, locked)


@pytest.mark.parametrize("columns", [5, 700])  # copied by the call itself, and by numpy
def test_arrays_that_are_not_contiguous_were_checked_at_length_each_time(at_length: list[str], columns: int) -> None:
    run = tilewright.compile(minus)
    for start in range(4):
        wide = numbers(3, 2 * columns, start=start)
        y = numbers(3, columns, start=7 * start)
        for x in (wide[:, ::2], wide[:, ::-2], wide[::-1, :columns], numbers(columns, 3, start=start).T):
            assert np.array_equal(run(x, y), x - y)
            assert np.array_equal(run(y, x), y - x)
    assert len(at_length) == 8
    assert len(remembered(run)) == 8


@pytest.mark.parametrize("columns", [5, 700])
def test_an_output_that_is_not_contiguous_was_checked_at_length_each_time(at_length: list[str], columns: int) -> None:
    run = tilewright.compile(minus)
    for start in range(4):
        x, y = numbers(3, columns, start=start), numbers(3, columns, start=7 * start)
        room = np.full((3, 2 * columns), -7, np.float32)
        assert run(x, y, out=room[:, ::2]) is not None
        assert np.array_equal(room[:, ::2], x - y)
        assert (room[:, 1::2] == -7).all()
    assert len(at_length) == 1


def test_an_output_between_the_elements_of_an_input_stays_there(at_length: list[str]) -> None:
    """Their memory overlaps, and no element is shared: only arrays at the same distance are like them."""
    run = tilewright.compile(minus)
    for start in range(4):
        room, y = numbers(3, 10, start=start), numbers(3, 5, start=7 * start)
        wanted = room[:, ::2] - y
        run(room[:, ::2], y, room[:, 1::2])
        assert np.array_equal(room[:, 1::2], wanted)
    assert len(at_length) == 1
    room = numbers(3, 10)
    with pytest.raises(ArgumentError, match="shares memory with x"):
        run(room[:, ::2], y, room[::-1, ::2])
    apart = np.empty((3, 10), np.float32)
    run(room[:, ::2], y, apart[:, 1::2])
    assert np.array_equal(apart[:, 1::2], room[:, ::2] - y)


def test_an_element_type_that_is_gone_is_not_taken_for_another() -> None:
    """What describes an array names its element type by an address, which another one may have afterwards."""
    run, y = tilewright.compile(minus), numbers(3, 5)
    for kind in ["f4", *["i4"] * 50]:
        x = np.zeros((3, 5), np.dtype(kind, metadata={"unit": kind}))  # an object of its own
        if kind == "f4":
            assert np.array_equal(run(x, y), -y)
        else:
            with pytest.raises(ArgumentError, match="x holds i32"):
                run(x, y)
        del x


def test_an_array_that_is_not_aligned_is_copied_each_time(at_length: list[str]) -> None:
    run = tilewright.compile(minus)
    y = numbers(3, 5, start=4)
    for start in range(4):
        x = np.zeros(61, np.uint8)[1:].view(np.float32).reshape(3, 5)
        x[...] = numbers(3, 5, start=start)
        assert not x.flags.aligned
        assert np.array_equal(run(x, y), x - y)
    assert len(at_length) == 1


def test_a_dynamic_kernel_of_many_sizes_was_checked_at_length_each_time(at_length: list[str]) -> None:
    run = tilewright.compile(minus, dynamic=[M])
    for _ in range(3):
        for m in range(1, 41):
            x, y = numbers(m, 5, start=m), numbers(m, 5, start=3 * m)
            assert np.array_equal(run(x, y), x - y)
    assert len(at_length) == 40


def test_products_and_layers_of_arrays_that_are_not_contiguous_are_learnt() -> None:
    layer = tilewright.Linear(numbers(4, 6), numbers(4))
    conv = tilewright.Conv2d(numbers(2, 3, 3, 5) % 3, padding=1)
    wanted = tilewright.Conv2d(numbers(2, 3, 3, 5) % 3, padding=1)
    for start in range(3):
        x = numbers(6, 3, start=start).T
        assert np.array_equal(tilewright.matmul(x, numbers(7, 6).T), x @ numbers(7, 6).T)
        assert np.array_equal(layer(x), x @ numbers(4, 6).T + numbers(4))
        image = numbers(5, 4, 3, 2, start=start).T % 5
        assert np.array_equal(conv(image), wanted(image.copy()))
    assert len(layer._learnt.on_host.table.kinds) == len(conv._learnt.on_host.table.kinds) == 1


def test_a_convolution_like_one_before_takes_other_weights() -> None:
    x = numbers(1, 4, 5, 3) % 5
    for start in range(3):
        w, bias = numbers(2, 3, 3, 3, start=start) % 4, numbers(2, start=start)
        layer = tilewright.Conv2d(w, bias, padding=1)
        assert np.array_equal(tilewright.conv2d(x, w, bias, padding=1), layer(x))
        turned = tilewright.conv2d(x[:, ::-1], w[::-1], bias[::-1], padding=1)
        assert np.array_equal(turned[..., ::-1], layer(x[:, ::-1].copy()))


def test_calls_in_place_were_checked_at_length_each_time(at_length: list[str]) -> None:
    run = tilewright.compile(minus)
    x, y = numbers(3, 5), numbers(3, 5, start=4)
    for _ in range(4):
        run(x, y, x)
    assert np.array_equal(x, numbers(3, 5) - 4 * y)
    assert len(at_length) == 2  # of the kernel, and of the one with both as one argument
    z = np.empty_like(x)
    run(x, y, z)  # apart again
    assert np.array_equal(z, x - y)
    assert np.array_equal(x, numbers(3, 5) - 4 * y)


def test_a_number_of_an_earlier_call_is_not_used_for_another(at_length: list[str]) -> None:
    run, x = tilewright.compile(scaled), numbers(6)
    for by in (2.0, 3.0, 2.0, 2, True, 0.0, -0.0, 2.0):
        assert np.array_equal(run(x, by), x * np.float32(by))
        assert np.array_equal(np.signbit(run(x, by)), np.signbit(x * np.float32(by)))
    assert np.isnan(run(x + 1, float("nan"))).all()
    assert np.isnan(run(x + 1, float("nan"))).all()
    before = len(at_length)
    run(x, 3.0)
    assert len(at_length) == before


def test_a_changed_number_of_threads_makes_a_new_launch(monkeypatch: pytest.MonkeyPatch, at_length: list[str]) -> None:
    run = tilewright.compile(tilewright.kernels.gemm("nn", "f32"))
    a, b = numbers(40, 24), numbers(24, 32)
    cores = []
    for threads in ("2", "1", None, "1"):
        if threads is None:
            monkeypatch.delenv("TILEWRIGHT_THREADS")
        else:
            monkeypatch.setenv("TILEWRIGHT_THREADS", threads)
        for _ in range(2):
            assert np.array_equal(run(a, b), a @ b)
        cores.append(run._last.machine.limits.cores)
    assert cores[:2] == [2, 1]
    assert cores[2] == len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else True
    assert len(at_length) == 3  # the last is like the second


def test_a_changed_kernel_does_not_run_as_it_was(at_length: list[str]) -> None:
    run = tilewright.compile(minus)
    x, y = numbers(3, 5), numbers(3, 5, start=4)
    run(x, y), run(x, y)
    first = run._last
    run.path = "general"
    assert np.array_equal(run(x, y), x - y)
    assert run._last is not first
    assert len(at_length) == 2


def test_a_changed_layer_does_not_run_as_it_was() -> None:
    layer = tilewright.Linear(np.array([[1, 2], [3, 4]], np.float32))
    x = np.array([[1, -1]], np.float32)
    for _ in range(2):
        assert np.array_equal(layer(x), [[-1, -1]])
    layer.activation = "relu"
    assert np.array_equal(layer(x), [[0, 0]])
    layer.weight = np.array([[2, 1], [4, 3]], np.float32)
    assert np.array_equal(layer(x), [[1, 1]])


def test_a_product_like_one_before_takes_other_arrays_and_bias() -> None:
    for start in range(4):
        a, b = numbers(2, 3, 4, start=start), numbers(4, 5, start=2 * start)
        bias = numbers(5, start=start)
        assert np.array_equal(tilewright.matmul(a, b), a @ b)
        assert np.array_equal(tilewright.matmul(a, b, bias, activation="relu"), a @ b + bias)
        assert np.array_equal(tilewright.matmul(a, b, bias.astype(np.float64)), a @ b + bias)
        assert np.array_equal(tilewright.matmul(a.swapaxes(0, 1), b), a.swapaxes(0, 1) @ b)
        assert tilewright.matmul(a, b, out_dtype="f64").dtype == np.float64


def test_a_call_keeps_none_of_its_arrays() -> None:
    run = tilewright.compile(minus)
    x, y = numbers(3, 5), numbers(3, 5)
    gone = [weakref.ref(a) for a in (x, y, run(x, y))]
    del x, y
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3


def test_outputs_of_several_calls_are_memory_of_their_own() -> None:
    run, side = tilewright.compile(minus), int(np.sqrt(LEAST // 4)) + 1
    x, y = numbers(side, side), numbers(side, side, start=3)
    several = [run(x + n, y) for n in range(5)]
    rows = [several[0][2], several[1].T[3:]]
    del several[:2]
    more = [run(y, x) for _ in range(5)]
    assert all(np.array_equal(z, x + n - y) for n, z in enumerate(several, 2))
    assert np.array_equal(rows[0], (x - y)[2])
    assert np.array_equal(rows[1], (x + 1 - y).T[3:])
    assert all(np.array_equal(z, y - x) for z in more)


def test_an_output_that_is_written_in_part_holds_zeros_elsewhere() -> None:
    row = tkl.sym.ROW
    i = tkw.IndexMapping.iterator(0)
    every_other = tkw.IndexMapping(num_iterators=1, inputs={M: i}, outputs={row: 2 * i})

    @tkw.wave()
    def spread(x: tkl.Memory[M, GLOBAL, tkl.f32], y: tkl.Memory[row, GLOBAL, tkl.f32]) -> None:
        tkw.write(tkw.read(x), y, mapping=every_other)

    count = LEAST // 4
    run = tilewright.compile(spread, {row: 2 * M})
    for start in (1, 5):
        wanted = np.zeros(2 * count, np.float32)
        wanted[::2] = numbers(count, start=start)
        for _ in range(2):
            y = run(wanted[::2].copy())
            assert np.array_equal(y, wanted)
            y += 1  # what the next one is made of
            del y


def test_threads_call_one_kernel_at_the_same_time() -> None:
    run, wrong = tilewright.compile(tilewright.kernels.gemm("nn", "f32")), []
    a, b = numbers(6, 8), numbers(8, 10)

    def work(n: int) -> None:
        for turn in range(300):
            if not np.array_equal(run(a + n, b + turn % 7), (a + n) @ (b + turn % 7)):
                wrong.append((n, turn))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


FORKING = """
import os
import numpy as np
import tilewright

run = tilewright.compile(tilewright.kernels.gemm("nn", "f32"))
a, b = (np.arange(m * n, dtype=np.float32).reshape(m, n) for m, n in ((64, 24), (24, 96)))
held = run(a, b)  # from the pool of outputs
child = os.fork()
if child == 0:
    right = all(np.array_equal(run(a + n, b), (a + n) @ b) for n in range(20)) and np.array_equal(held, a @ b)
    held[:] = -1
    os._exit(0 if right else 1)
others = [run(a + n, b) for n in range(20)]
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert np.array_equal(held, a @ b)
assert all(np.array_equal(z, (a + n) @ b) for n, z in enumerate(others))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_launches_on_workers_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", FORKING], check=True)


def test_programs_as_text_are_called_like_before() -> None:
    run = tilewright.compile_text("""block twice(%x: in global f32 (T), %y: out global f32 (T))
  param T = 7
{
  tasks t in 0..T {
    %from = view %x (j 1) -> [t + j]
    %to = view %y (j 1) -> [t + j]
    map %to = %from + %from
  }
}
""")
    for start in range(3):
        assert np.array_equal(run(numbers(7, start=start)), 2 * numbers(7, start=start))
    with pytest.raises(ArgumentError, match="shape"):
        run(numbers(8))
    x = numbers(7)
    with pytest.raises(ArgumentError, match="shares memory"):
        run(x, x)


def test_only_so_many_kinds_of_calls_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_cache, "KINDS", 16)
    run = tilewright.compile(scaled, dynamic=[M])
    for count in range(1, 40):
        assert np.array_equal(run(numbers(count), 2.0), 2 * numbers(count))
    assert len(remembered(run)) == 16


def test_workspaces_of_remembered_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of call of one worker keeps its own."""
    monkeypatch.setattr(entry, "workspace", lambda size, _: workspace(size, 1))
    run = tilewright.compile(tilewright.kernels.gemm("nn", "f32"))
    shapes, last_two = [(16, 64, 40 + 8 * n) for n in range(4)], 0
    for count in (4, 2, 0):
        limit = {4: 1 << 30, 2: last_two, 0: 0}[count]
        monkeypatch.setattr(launch_cache, "ROOM", limit)
        for m, k, n in shapes:
            a, b = numbers(m, k), np.ones((k, n), np.float32)
            for _ in range(2):
                assert np.array_equal(run(a, b), a @ b)
        rooms = [record.room for record in remembered(run)]
        assert sum(rooms) <= limit
        assert len(rooms) == count
        last_two = sum(sorted(rooms)[-2:])
        run.path = "best"  # forgets


def test_a_sum_of_nothing_is_written_where_memory_held_something() -> None:
    run = tilewright.compile(tilewright.kernels.gemm("nn", "f32"))
    for _ in range(3):
        c = run(np.ones((64, 0), np.float32), np.ones((0, 96), np.float32))
        assert c.shape == (64, 96)
        assert not c.any()
        c.fill(7)
        del c
