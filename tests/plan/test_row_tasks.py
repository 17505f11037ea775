"""How many rows a task has, by how many waves, where lanes are many; and that all of it is right at ragged sizes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.compiler.text import compile_text

M, N = tkl.sym.M, tkl.sym.N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def planned(kernel: Any, m: int, n: int) -> tuple[list[int], int]:
    """(the widths of tasks, waves)."""
    plan = kernel_for(kernel, {"M": m, "N": n}, target="gpu:hopper").text("plan")
    waves = re.search(r"^waves (\d+)$", plan, re.M)
    return [int(n) for n in re.findall(r": task (\d+)$", plan, re.M)], 1 if waves is None else int(waves[1])


@pytest.mark.parametrize(
    ("m", "n", "rows"), [(65536, 256, 16), (83886, 200, 16), (43690, 384, 8), (21845, 768, 4), (10922, 1536, 2)]
)
def test_a_task_has_a_power_of_two_of_rows(m: int, n: int, rows: int) -> None:
    """83886 rows were 33 to a task: 64 values a lane, of which most were spilled."""
    for kernel in (kernels.softmax("bf16"), kernels.layer_norm("bf16")):
        assert planned(kernel, m, n) == ([rows], 4)


def test_where_little_is_moved_a_task_has_more_waves() -> None:
    assert planned(kernels.reduction("sum", "columns", "bf16"), 65536, 256) == ([32], 8)
    assert planned(kernels.softmax("bf16"), 132104, 127) == ([32], 8)  # what is no word takes a register


def test_few_rows_are_shared_out_as_before() -> None:
    assert planned(kernels.softmax("f32"), 24, 64)[0] == [1]
    assert planned(kernels.softmax("f32"), 5280, 64)[0] == [8]  # ten rounds for each core


@pytest.mark.parametrize(("n", "waves"), [(4096, 4), (8192, 8), (10000, 8), (12288, 8), (16384, 16)])
def test_long_rows_have_as_many_waves_as_hold_them(n: int, waves: int) -> None:
    assert planned(kernels.softmax("bf16"), 2048, n) == ([1], waves)


def read(kernel: Any, n: int) -> int:
    """How often rows of the argument x are loaded."""
    text = kernel_for(kernel, {"M": 512, "N": n}, target="gpu:hopper").text("loop")
    assert f"alloc shared f32 ({n})" not in text
    return len(re.findall(r"^ *load .* = %x\[", text, re.M))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("n", [24000, 32000, 56000])
@pytest.mark.parametrize("kernel", [kernels.softmax("bf16"), kernels.layer_norm("bf16"), kernels.rms_norm("bf16")])
def test_rows_of_more_than_48_values_a_lane_were_read_again(kernel: Any, n: int) -> None:
    """They are kept as they lie in memory: loaded once, by a loop, and perhaps a rest of it."""
    assert read(kernel, n) <= 2


def test_rows_that_two_tasks_of_a_core_cannot_keep_are_read_again() -> None:
    assert read(kernels.softmax("bf16"), 60000) > 2


def test_rows_that_are_combined_twice_are_kept_where_lanes_have_registers_for_both() -> None:
    assert read(kernels.layer_norm("bf16"), 8192) == 1


def test_rows_were_read_again_where_another_value_was_reduced_than_is_used() -> None:
    """Of x, its squares are reduced: lanes kept those, and loaded x again."""
    assert read(kernels.rms_norm("bf16"), 4096) == 1


@tkw.wave()
def below_largest(x: tkl.Memory[M, N, GLOBAL, tkl.bf16], y: tkl.Memory[M, N, GLOBAL, tkl.bf16]):
    """What each element is below its row's largest."""
    found = tkw.cast(tkw.read(x), tkl.f32)
    tkw.write(tkw.cast(tkw.max(found, dim=N) - found, tkl.bf16), y)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(1087, 50), (1061, 127), (1100, 33), (7, 777), (2, 13000), (2, 30001), (1, 32000)])
def test_ragged_rows_are_what_the_executor_says(shape: tuple[int, int]) -> None:
    """Exact, on both levels; several rows to a task, the last task with fewer, rows that begin anywhere, long ones."""
    x = np.random.default_rng(sum(shape)).integers(-99, 100, shape).astype(tkl.bf16.numpy)
    made = kernel_for(below_largest, dict(zip("MN", shape, strict=True)), target="gpu:hopper")
    wanted = tilewright.compile(below_largest, target="executor")(x)
    for level in ("block", "loop"):
        y = np.full(shape, np.nan, x.dtype)
        compile_text(made.text(level), "interpreter")(x, y)
        assert (y == wanted).all()


P, G, C = tkl.sym.P, tkl.sym.G, tkl.sym.C


@tkw.wave()
def below_largest_of_groups(x: tkl.Memory[M, P, G, C, GLOBAL, tkl.bf16], y: tkl.Memory[M, P, G, C, GLOBAL, tkl.bf16]):
    """What each element is below the largest magnitude of its group, which has short runs of memory."""
    found = tkw.cast(tkw.read(x), tkl.f32)
    largest = tkw.max(tkw.max(tkw.abs(found), dim=C), dim=P)
    tkw.write(tkw.cast(largest - found, tkl.bf16), y)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", [(2, 300, 3, 10), (1, 4096, 2, 10), (2, 77, 2, 7), (1, 513, 3, 24)])
def test_groups_of_short_runs_are_what_the_executor_says(shape: tuple[int, ...]) -> None:
    """Exact, on both levels; kept in registers and in shared memory, with and without a rest of lanes."""
    x = np.random.default_rng(sum(shape)).integers(-99, 100, shape).astype(tkl.bf16.numpy)
    made = kernel_for(below_largest_of_groups, dict(zip("MPGC", shape, strict=True)), target="gpu:hopper")
    wanted = tilewright.compile(below_largest_of_groups, target="executor")(x)
    for level in ("block", "loop"):
        y = np.full(shape, np.nan, x.dtype)
        compile_text(made.text(level), "interpreter")(x, y)
        assert (y == wanted).all()


def test_groups_of_short_runs_are_loaded_once_by_lanes_side_by_side() -> None:
    """Lanes that were 640 bytes apart loaded everything three times: a cache line for every four bytes."""
    made = kernel_for(below_largest_of_groups, {"M": 8, "P": 4096, "G": 32, "C": 10}, target="gpu:hopper")
    loads = re.findall(r"^ *load .*\((l_\d+) 32.* = %x\[(.*?)\]", made.text("loop"), re.M)
    assert len(loads) == 1
    assert all(f"2*({lane}%8)" in place for lane, place in loads)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((1037, 7), "bf16"), ((517, 17), "f32"), ((133, 127), "bf16"), ((66, 70), "bf16"), ((131, 40), "f32")],
)
def test_what_is_turned_to_odd_rows_is_what_the_executor_says(shape: tuple[int, int], kind: str) -> None:
    kernel = kernels.transpose((1, 0), kind)
    made = kernel_for(kernel, dict(zip(("D0", "D1"), shape, strict=True)), target="gpu:hopper")
    x = np.arange(np.prod(shape)).reshape(shape) % 251
    x = x.astype(getattr(tkl, kind).numpy)
    for level in ("block", "loop"):
        y = np.full(shape[::-1], np.nan, x.dtype)
        compile_text(made.text(level), "interpreter")(x, y)
        assert (y == x.T).all()


@pytest.mark.parametrize(("m", "n", "stored"), [(5033, 3333, "b16"), (26214, 640, "b32"), (8192, 8192, "v4.b32")])
def test_turned_rows_are_stored_by_lanes_side_by_side(m: int, n: int, stored: str) -> None:
    """Rows of 5033 elements begin anywhere: lanes that stored eight elements each, one by one, were half as fast."""
    made = kernel_for(kernels.transpose((1, 0), "bf16"), {"D0": m, "D1": n}, target="gpu:hopper")
    assert set(re.findall(r"st\.global\.(\S+)", made.text("ptx"))) == {stored}
    places = re.findall(r"store .* -> %y\[(.*?)\]", made.text("loop"))
    assert all(("8*(l" in place or "8*l" in place) == (stored == "v4.b32") for place in places), places
