"""Plans of grid programs: sums stay in registers over all of K, or lie in memory between parts that a cache keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from grid_programs import grid_gemm, grid_pair

import tilewright
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.machine import Machine
from tilewright.plan.schedule import Schedule
from tilewright.plan.text import parse_plan
from tilewright.targets.registry import machine

AMX, NEON = machine("x86.amx"), machine("aarch64.neon")
BOTH = pytest.mark.parametrize("row", [AMX, NEON], ids=lambda row: row.name)
STAY = "task 32, loop {rows}", "task 32, loop {columns}", "loop {deep}"
PARTS = "task 32", "task 32", "loop {deep}"


def planned(row: Machine, k: int, tile: int = 128) -> Schedule:
    found: Schedule = kernel_for(
        grid_gemm(tile), {"M": 1024, "N": 1024, "K": k}, target="interpreter", machine=row
    ).plan
    return found


def is_in_parts(plan: Schedule) -> bool:
    """Whether sums lie in memory between parts of K: blocks are no loops over M and N then."""
    inside = [[c.size for c in plan.axis(name).splits if c.level == "loop"] for name in "MN"]
    (product,) = plan.products
    assert inside in ([[], []], [[product.rows], [product.columns]])
    return inside == [[], []]


@BOTH
def test_sums_stay_in_registers_where_the_second_cache_keeps_what_a_workgroup_reads(row: Machine) -> None:
    assert not is_in_parts(planned(row, 1024))
    assert not is_in_parts(planned(row, 256))


@BOTH
@pytest.mark.parametrize("k", [16384, 20000])
def test_parts_of_k_are_those_that_the_second_cache_keeps(row: Machine, k: int) -> None:
    plan = planned(row, k)
    assert is_in_parts(plan)
    (deep,) = (c.size for c in plan.axis("K").splits)
    ((_, columns),) = ((p.rows, p.columns) for p in plan.products)
    kept = row.limits.l2_bytes or 0
    assert columns * deep * 4 <= kept < (128 + columns) * k * 4
    large = replace(row, limits=replace(row.limits, l2_bytes=64 << 20))
    assert not is_in_parts(planned(large, k))


def test_rows_that_come_from_behind_the_second_cache_show_where_the_machine_says_so() -> None:
    assert is_in_parts(planned(NEON, 4096))
    assert not is_in_parts(planned(replace(NEON, limits=replace(NEON.limits, copy_shown=0.0)), 4096))


def test_factors_of_another_type_are_converted_once() -> None:
    """A was converted for every block of columns: sums of a workgroup lie in memory instead."""
    numbers = {"M": 256, "N": 256, "K": 1024}
    made = kernel_for(grid_gemm(128, "bf16"), numbers, target="interpreter", machine=NEON)
    assert is_in_parts(made.plan)
    assert not made.plan.axis("K").splits
    panel = made.text("block").split("for f in")[0]
    assert "alloc shared f32 (128, 1024)" in panel
    assert not is_in_parts(kernel_for(grid_gemm(128), numbers, target="interpreter", machine=NEON).plan)


def edited(plan: Schedule, words: tuple[str, str, str], **numbers: int) -> str:
    """A plan with other cuts of M, N and K."""
    lines = plan.lines()
    for name, cuts in zip("MNK", words, strict=True):
        (at,) = (n for n, line in enumerate(lines) if line.startswith(f"axis {name} "))
        lines[at] = lines[at].split("): ")[0] + "): " + cuts.format(**numbers)
    return "\n".join(lines)


def run(made: Any, sizes: tuple[int, int, int], kind: Any) -> tuple[np.ndarray, np.ndarray]:
    """What a kernel gives, and what it should."""
    m, n, k = sizes
    rng = np.random.default_rng(sum(sizes))
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (n, k)))
    found = np.full((m, n), np.nan, np.float32)
    made.bind({"a": a.astype(kind), "b": b.astype(kind), "c": found})()
    return found, a @ b.T


@pytest.mark.sampled(4)
@BOTH
@pytest.mark.parametrize("words", [STAY, PARTS], ids=["registers", "memory"])
@pytest.mark.parametrize("sizes", [(37, 45, 100), (32, 70, 65)])
@pytest.mark.parametrize("deep", [32, 48])
def test_both_are_exact_on_ragged_sizes(row: Machine, words: Any, sizes: tuple[int, int, int], deep: int) -> None:
    numbers = dict(zip("MNK", sizes, strict=True))
    plan = kernel_for(grid_gemm(32), numbers, target="interpreter", machine=row).plan
    (product,) = plan.products
    text = edited(plan, words, rows=product.rows, columns=product.columns, deep=deep)
    made = kernel_for(grid_gemm(32), numbers, target="interpreter", machine=row, plan=text)
    assert parse_plan(made.text("plan")) == parse_plan(text)
    assert is_in_parts(made.plan) == (words is PARTS)
    assert ("for b_N in" in made.text("block") or "for b_M in" in made.text("block")) == (words is STAY)
    np.testing.assert_array_equal(*run(made, sizes, np.float32))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dtype", "kind"), [("f32", np.float32), ("bf16", ml_dtypes.bfloat16)])
@pytest.mark.parametrize("sizes", [(100, 75, 4096), (33, 130, 5000)])
def test_products_in_parts_are_exact_on_this_machine(dtype: str, kind: Any, sizes: tuple[int, int, int]) -> None:
    numbers = dict(zip("MNK", sizes, strict=True))
    plan = kernel_for(grid_gemm(64, dtype), numbers).plan
    text = edited(plan, ("task 64", "task 64", "loop 1000"))
    for made in (kernel_for(grid_gemm(64, dtype), numbers), kernel_for(grid_gemm(64, dtype), numbers, plan=text)):
        np.testing.assert_array_equal(*run(made, sizes, kind))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("task 16", "task 32", "loop 32"), "`axis M = (M 64): task 16`: its constraint says `task 32`"),
        (("task 32, loop 3", "task 32, loop 16", "loop 32"), "the product's block has 14"),
        (("task 32, loop 14", "task 32", "loop 32"), "need a loop over N too: `loop 32`"),
    ],
)
def test_what_is_not_done_is_refused_by_its_line(words: tuple[str, str, str], message: str) -> None:
    numbers = {"M": 64, "N": 64, "K": 96}
    plan = kernel_for(grid_gemm(32), numbers, target="interpreter", machine=AMX).plan
    with pytest.raises(ArgumentError, match=message.replace("(", r"\(").replace(")", r"\)")):
        kernel_for(grid_gemm(32), numbers, target="interpreter", machine=AMX, plan=edited(plan, words))


@pytest.mark.parametrize("line", ["waves 4", "raster 2", "loops N, M", "overlap delayed store"])
def test_a_line_that_grids_do_not_have_is_refused(line: str) -> None:
    """It was taken, and did nothing."""
    numbers = {"M": 64, "N": 64, "K": 96}
    plan = kernel_for(grid_gemm(32), numbers, target="interpreter", machine=AMX).plan
    with pytest.raises(ArgumentError, match=f"`{line}`: a grid program's plan has no such line"):
        kernel_for(grid_gemm(32), numbers, target="interpreter", machine=AMX, plan=f"{plan}; {line}")


def test_a_plan_with_other_axes_is_refused() -> None:
    numbers = {"M": 64, "N": 64, "K": 96}
    plan = kernel_for(grid_gemm(32), numbers, target="interpreter", machine=AMX).plan
    text = str(plan).replace("axis K = (K 96)", "axis L = (L 96)")
    with pytest.raises(ArgumentError, match="no constraint names L; they name M, N, K"):
        kernel_for(grid_gemm(32), numbers, target="interpreter", machine=AMX, plan=text)


def test_the_tile_of_a_free_loop_is_said_as_it_is_done() -> None:
    run = tilewright.compile(grid_gemm(32), target="cpu")
    text = run.text("plan", {"M": 64, "N": 64, "K": 1024})
    deep = [c.size for c in parse_plan(text).axis("K").splits]
    assert f"{deep[0]}*k_K" in run.text("block", {"M": 64, "N": 64, "K": 1024})


@pytest.mark.parametrize("name", ["x86.avx2", "aarch64.neon", "hopper"])
def test_two_products_of_one_loop_are_exact(name: str) -> None:
    """Their accumulators stay in registers where these hold both."""
    rng, sizes = np.random.default_rng(0), {"M": 37, "N": 40, "K": 100}
    a, b, e = (rng.integers(-2, 3, (sizes[rows], sizes["K"])).astype(np.float32) for rows in "MNN")
    c, d = (np.full((sizes["M"], sizes["N"]), np.nan, np.float32) for _ in range(2))
    kernel = kernel_for(grid_pair(32), sizes, target="interpreter", machine=machine(name))
    kernel.bind({"a": a, "b": b, "e": e, "c": c, "d": d})()
    assert (kernel.plan.axis("M").split("loop") is not None) == (name == "hopper")
    np.testing.assert_array_equal(c, a @ b.T)
    np.testing.assert_array_equal(d, a @ e.T)
