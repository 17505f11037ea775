"""Products of a program with several of them, in tile registers that a task keeps: staged rows, delayed stores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ml_dtypes import bfloat16
from pinned_plans import first_plan
from tile_checks import own_cache  # noqa: F401

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.errors import ProgramError
from tilewright.passes import kernels
from tilewright.passes.tile.general import lower_tiles
from tilewright.plan.general import Cuts
from tilewright.plan.microkernel import Microkernel, axes_in
from tilewright.plan.tiled import Depth, Tiled, Walk
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


def pinned(monkeypatch, cuts_of):
    """Has every program lowered by what `cuts_of` gives for its products and sizes, instead of what was planned."""

    def lower(program, symbols, shapes, row, cuts, *rest, **options):
        products = [op for op in program.walk() if op.name == "mma"]
        pinned_cuts = cuts_of(products, lambda d: int(symbols.get(d, 1)))
        return lower_tiles(program, symbols, shapes, row, pinned_cuts, *rest, **options)

    monkeypatch.setattr(kernels, "lower_tiles", lower)


def in_registers(products, size, walk=None, overlap="delayed store", tiled=None):
    """The parameters of a lowering in which a task keeps tile registers for products of the same M and N."""
    axes = {op: axes_in(op, size) for op in products}
    tiled = products if tiled is None else tiled
    m, n, k = (getattr(axes[tiled[0]], name) for name in "mnk")
    return Cuts(
        {m: 48 if walk is None else walk.width},
        {n: COLUMNS, m: ROWS},
        products={op: Microkernel(ATOM, ROWS, COLUMNS) for op in products},
        extended={n: COLUMNS},
        depth=(Depth(k, 32, False),),
        packed=True,
        overlap=overlap,
        tiled={op: Tiled(axes[op], (False, False), walk=walk) for op in tiled},
    )


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
    walk = Walk(1, -(-m // 48), 48, 48) if staged else None
    pinned(monkeypatch, lambda products, size: in_registers(products, size, walk, overlap))
    text, y, (x, g, u) = run(gated, {"M": m, "N": n, "K": k}, {"x": (m, k), "g": (n, k), "u": (n, k)})
    np.testing.assert_array_equal(y, np.maximum(x @ g.T, 0) * (x @ u.T))
    assert text.count("-> %staged") == int(staged)
    assert ("overlap defer" in text) == (overlap == "delayed store")
    assert text.count("mma %sums ") == text.count("mma %sums_1 ") >= 1


def test_a_k_that_ends_within_a_step_is_staged_or_refused(monkeypatch):
    """What lies behind the end of a row was multiplied too, or was no memory at all."""
    m, n, k = 75, 70, 50
    sizes, shapes = {"M": m, "N": n, "K": k}, {"x": (m, k), "g": (n, k), "u": (n, k)}
    pinned(monkeypatch, lambda products, size: in_registers(products, size, Walk(1, 2, 48, 48)))
    _, y, (x, g, u) = run(gated, sizes, shapes)
    np.testing.assert_array_equal(y, np.maximum(x @ g.T, 0) * (x @ u.T))
    pinned(monkeypatch, in_registers)
    with pytest.raises(ProgramError, match="K = 50 ends within a step of 32: stage its rows"):
        run(gated, sizes, shapes)


def test_the_sums_of_a_product_are_there_for_the_next_one(monkeypatch):
    """The first of two products is done as any other; the second has the task's registers, and is stored late."""
    m, n, k, p = 75, 40, 64, 70
    sizes = {"M": m, "N": n, "K": k, "P": p}
    one_kernel = first_plan(chained, sizes, AMX, lambda plan: plan.split_after is None)
    pinned(monkeypatch, lambda products, size: in_registers(products, size, tiled=products[1:]))
    text, y, (x, g, u) = run(chained, sizes, {"x": (m, k), "g": (n, k), "u": (p, n)}, one_kernel)
    np.testing.assert_array_equal(y, (x @ g.T).astype(bfloat16).astype(np.float32) @ u.T)
    assert "overlap defer" in text


def test_an_accumulator_tile_is_the_block_of_its_task(monkeypatch):
    def other_tile(products, size):
        cuts = in_registers(products, size)
        return replace(cuts, products={op: Microkernel(ATOM, 32, COLUMNS) for op in products})

    pinned(monkeypatch, other_tile)
    with pytest.raises(ProgramError, match="accumulator tile is 32 x 32, the task's blocks are 16 x 32"):
        run(gated, {"M": 64, "N": 64, "K": 64}, {"x": (64, 64), "g": (64, 64), "u": (64, 64)})


@pytest.mark.parametrize("staged", [True, False])
def test_two_products_of_a_chain_have_registers_of_the_task(monkeypatch, staged):
    """The sums of the first are in memory before the second reads them, not only at the end of the block."""
    m, n, k, p = 75, 32, 64, 70
    sizes = {"M": m, "N": n, "K": k, "P": p}
    one_kernel = first_plan(chained, sizes, AMX, lambda plan: plan.split_after is None)

    def both(products, size):
        first, second = (axes_in(op, size) for op in products)
        cuts = in_registers(products, size, Walk(1, 2, 48, 48) if staged else None)
        tiled = {**cuts.tiled, products[1]: replace(cuts.tiled[products[1]], walk=None)}
        blocks, extended = {second.n: COLUMNS, **cuts.blocks}, {first.n: COLUMNS, second.n: COLUMNS}
        depth = Depth(first.k, 32, False), Depth(second.k, 32, False)
        return replace(cuts, blocks=blocks, extended=extended, depth=depth, tiled=tiled)

    pinned(monkeypatch, both)
    text, y, (x, g, u) = run(chained, sizes, {"x": (m, k), "g": (n, k), "u": (p, n)}, one_kernel)
    np.testing.assert_array_equal(y, (x @ g.T).astype(bfloat16).astype(np.float32) @ u.T)
    assert text.index("copy %sums -> %scratch") < text.index("mma %sums_1 ")
    assert text.count("-> %staged") == int(staged)
