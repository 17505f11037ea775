"""Products of a program with several of them, in tile registers that a task keeps: staged rows, delayed stores."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16
from pinned_plans import first_plan
from tile_checks import own_cache  # noqa: F401

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.driver import kernels
from tilewright.errors import ProgramError
from tilewright.lower.block.lower import lower_tiles
from tilewright.plan.bound import BoundKernel
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.text import parse_plan
from tilewright.targets.registry import machine

GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
M, N, K, P = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.P
AMX = machine("x86.amx")
ATOM = next(atom for name, atom in AMX.multiply.items() if name.startswith("amx.") and "bf16" in name)
ROWS, COLUMNS = 16, 32
"""The accumulator tile of each product: two of them, and their operands, take seven of eight tile registers."""


@tkw.wave()
def gated(
    x: tkl.Memory[M, K, GLOBAL, tkl.bf16],
    g: tkl.Memory[N, K, GLOBAL, tkl.bf16],
    u: tkl.Memory[N, K, GLOBAL, tkl.bf16],
    y: tkl.Memory[M, N, GLOBAL, tkl.f32],
):
    rows = tkw.read(x)
    gate = tkw.mma(rows, tkw.read(g), tkl.Register[M, N, tkl.f32](0))
    up = tkw.mma(rows, tkw.read(u), tkl.Register[M, N, tkl.f32](0))
    tkw.write(tkw.maximum(gate, tkl.Register[M, N, tkl.f32](0)) * up, y)


@tkw.wave()
def chained(
    x: tkl.Memory[M, K, GLOBAL, tkl.bf16],
    g: tkl.Memory[N, K, GLOBAL, tkl.bf16],
    u: tkl.Memory[P, N, GLOBAL, tkl.bf16],
    y: tkl.Memory[M, P, GLOBAL, tkl.f32],
):
    hidden = tkw.mma(tkw.read(x), tkw.read(g), tkl.Register[M, N, tkl.f32](0))
    tkw.write(tkw.mma(tkw.cast(hidden, tkl.bf16), tkw.read(u), tkl.Register[M, P, tkl.f32](0)), y)


def pinned(monkeypatch, plan):
    """Has every program lowered by a schedule of its dimensions, instead of what was planned."""

    def lower(program, symbols, shapes, row, planned, *rest, **options):
        bound = BoundKernel(KernelProgram(program, symbols, row), parse_plan(plan))
        return lower_tiles(program, symbols, shapes, row, bound, *rest, **options)

    monkeypatch.setattr(kernels, "lower_tiles", lower)


def gated_plan(m, n, k, staged=False, overlap="delayed store", rows=ROWS):
    """The schedule of a gated unit in which a task keeps tile registers for both products."""
    return f"""
        axis M = (M {m}): task 48, loop {ROWS}; axis N = (N {n}): loop {COLUMNS}; axis K = (K {k}): loop 32
        grid M; loops N, M, K
        x {"strip at task" if staged else "in place"}; g packed at bind; u packed at bind
        mma by {ATOM.name}, tile {rows}x{COLUMNS}; mma2 by {ATOM.name}, tile {rows}x{COLUMNS}
        {"" if overlap == "none" else f"overlap {overlap}"}"""


def chained_plan(m, n, k, p, axes, loops, values):
    """The schedule of two products, the second of which reads the sums of the first."""
    return f"""
        axis M = (M {m}): task 48, loop {ROWS}; axis P = (P {p}): loop {COLUMNS}; axis N = (N {n}): {axes[0]}
        axis K = (K {k}): {axes[1]}; grid M; loops {loops}; {values}
        mma by {ATOM.name}, tile {ROWS}x{COLUMNS}; mma2 by {ATOM.name}, tile {ROWS}x{COLUMNS}; overlap delayed store"""


def run(kernel, sizes, shapes, plan=None):
    """The block text of a kernel, and its result for small whole numbers, with the arrays."""
    rng = np.random.default_rng(7)
    arrays = {name: rng.integers(-2, 3, shape).astype(bfloat16) for name, shape in shapes.items()}
    made = kernel_for(kernel, sizes, machine=AMX, plan=plan)
    y = np.full((sizes["M"], sizes.get("P", sizes["N"])), np.nan, np.float32)
    made.bind({**arrays, "y": y})()
    return made.text("block"), y, [a.astype(np.float32) for a in arrays.values()]


@pytest.mark.parametrize("overlap", ["delayed store", "none"])
@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize(("m", "n", "k"), [(96, 64, 64), (75, 70, 96)])
def test_both_products_of_a_gated_unit_are_staged_and_stored_late(monkeypatch, m, n, k, staged, overlap):
    """Only a program of one product could stage its rows and store its results beside the next block."""
    pinned(monkeypatch, gated_plan(m, n, k, staged, overlap))
    text, y, (x, g, u) = run(gated, {"M": m, "N": n, "K": k}, {"x": (m, k), "g": (n, k), "u": (n, k)})
    np.testing.assert_array_equal(y, np.maximum(x @ g.T, 0) * (x @ u.T))
    assert text.count("-> %staged") == int(staged)
    assert ("overlap defer" in text) == (overlap == "delayed store")
    assert text.count("mma %sums ") == text.count("mma %sums_1 ") >= 1


def test_a_k_that_ends_within_a_step_is_staged_or_refused(monkeypatch):
    """What lies behind the end of a row was multiplied too, or was no memory at all."""
    m, n, k = 75, 70, 50
    sizes, shapes = {"M": m, "N": n, "K": k}, {"x": (m, k), "g": (n, k), "u": (n, k)}
    pinned(monkeypatch, gated_plan(m, n, k, staged=True))
    _, y, (x, g, u) = run(gated, sizes, shapes)
    np.testing.assert_array_equal(y, np.maximum(x @ g.T, 0) * (x @ u.T))
    pinned(monkeypatch, gated_plan(m, n, k))
    with pytest.raises(ProgramError, match="K = 50 ends within a step of 32: stage its rows"):
        run(gated, sizes, shapes)


def test_the_sums_of_a_product_are_there_for_the_next_one(monkeypatch):
    """The first of two products is done as any other; the second has the task's registers, and is stored late."""
    m, n, k, p = 75, 40, 64, 70
    sizes = {"M": m, "N": n, "K": k, "P": p}
    one_kernel = first_plan(chained, sizes, AMX, lambda plan: plan.split_after is None)
    pinned(monkeypatch, chained_plan(m, n, k, p, ("loop 32", "whole"), "P, M, N", "u packed at bind"))
    text, y, (x, g, u) = run(chained, sizes, {"x": (m, k), "g": (n, k), "u": (p, n)}, one_kernel)
    np.testing.assert_array_equal(y, (x @ g.T).astype(bfloat16).astype(np.float32) @ u.T)
    assert "overlap defer" in text


def test_an_accumulator_tile_is_the_block_of_its_task(monkeypatch):
    pinned(monkeypatch, gated_plan(64, 64, 64, rows=32))
    with pytest.raises(ProgramError, match="accumulator tile is 32 x 32, the task's blocks are 16 x 32"):
        run(gated, {"M": 64, "N": 64, "K": 64}, {"x": (64, 64), "g": (64, 64), "u": (64, 64)})


@pytest.mark.parametrize("staged", [True, False])
def test_two_products_of_a_chain_have_registers_of_the_task(monkeypatch, staged):
    """The sums of the first are in memory before the second reads them, not only at the end of the block."""
    m, n, k, p = 75, 32, 64, 70
    sizes = {"M": m, "N": n, "K": k, "P": p}
    one_kernel = first_plan(chained, sizes, AMX, lambda plan: plan.split_after is None)

    values = f"x {'strip at task' if staged else 'in place'}; g packed at bind; u packed at bind"
    axes = f"loop {COLUMNS}, loop 32", "loop 32"
    pinned(monkeypatch, chained_plan(m, n, k, p, axes, "P, N, M, K, N.2", values))
    text, y, (x, g, u) = run(chained, sizes, {"x": (m, k), "g": (n, k), "u": (p, n)}, one_kernel)
    np.testing.assert_array_equal(y, (x @ g.T).astype(bfloat16).astype(np.float32) @ u.T)
    assert text.index("copy %sums -> %scratch") < text.index("mma %sums_1 ")
    assert text.count("-> %staged") == int(staged)
