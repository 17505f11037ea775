"""The product of tiles: which parts its lowering is made of."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.algebra.expr import Expr
from tilewright.errors import ExecutionError, ProgramError
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Op, TileType, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tile import loose
from tilewright.ir.tile_formulas import converted
from tilewright.passes.tile import moving
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.product.accumulator import (
    TaskSums,
    TiledSums,
    WholeSums,
    going_on_in,
    room_for_sums,
)
from tilewright.passes.tile.product.atoms import by_atom
from tilewright.passes.tile.product.elements import by_elements
from tilewright.passes.tile.product.lanes import by_lanes, lane_product, lane_sums
from tilewright.passes.tile.product.lowered import ProductParts, write
from tilewright.passes.tile.product.masked import masks_on_product
from tilewright.passes.tile.product.product import AtomProduct, TileProduct
from tilewright.passes.tile.product.registers import TaskRegisters
from tilewright.passes.tile.storage import Storage
from tilewright.passes.tile.values import (
    Parts,
    Tile,
    common_parts,
    most,
    only_load,
    rounded,
)
from tilewright.plan.microkernel import Axes, Microkernel, axes_of
from tilewright.plan.sums import summed_in


def mma(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower `mma`: the accumulator plus the sum of products over dimensions of both operands that it lacks."""
    a, b, acc = (low.storage.env[v] for v in op.operands)
    parts = common_parts([a, b, acc])
    single = (loose(op) or (set(),))[0]
    for d in single:
        if parts[d][1] != 1:
            raise ExecutionError(f"mma: {d} is in one factor only, but is {parts[d][1]} wide here", op.loc)
    a, b = (low.scope.conform(t.over(t.dims, parts), tuple(d for d in t.dims if d not in single), op) for t in (a, b))
    kind: TileType = op.results[0].type
    wide = summed_in(op, low.machine)
    inner = {d: parts[d] for d in acc.dims}
    of_acc, formula = acc.accumulated
    start = converted(formula, of_acc, wide)
    summed = tuple(d for d in a.dims if d in b.dims and d not in acc.dims)
    if any(parts[d][1] == 0 for d in (*acc.dims, *summed)):
        return (rounded(kind.dtype, acc.dims, inner, wide, start),)
    kernel, blocks = low.bound.products.get(op), op.attrs.get("blocks", 1)
    if blocks != (1 if kernel is None else kernel.blocks):
        raise ProgramError(f"mma in {blocks} blocks: nothing here multiplies them by themselves", op.loc)
    rounds = kernel is not None and kernel.atom.rounds == "tf32"  # the machine's products do it
    tf32 = op.attrs.get("precision") == "tf32" and wide is dtypes.f32 and not rounds
    a, b = (moving.neutral(low, t.over(t.dims, parts), summed, 0) for t in (a, b))
    if tf32:
        a, b = (_as_tf32(low.storage, t) for t in (a, b))
    parts_of_product, sums = _parts(_Asked(low, op, a, b, acc, parts, start, wide))
    write(parts_of_product)
    return (rounded(kind.dtype, acc.dims, inner, wide, low.storage.held(sums, acc.dims, inner).formula),)


@dataclass(frozen=True)
class _Asked:
    """An MMA over these parts: its operands, its accumulator as a tile, the formula it starts from, and its type."""

    low: Lowering
    op: Op
    a: Tile
    b: Tile
    acc: Tile
    parts: Parts
    start: Formula
    wide: DType

    @property
    def inner(self) -> Parts:
        """The parts of the dimensions of C."""
        return {d: self.parts[d] for d in self.acc.dims}


def _parts(asked: _Asked) -> tuple[ProductParts, Value]:
    """Return (the parts of an MMA's lowering, as the plan says; the tensor in which its sums are afterwards)."""
    low, op, c = asked.low, asked.op, asked.acc.dims
    if op in low.bound.lane_kernels:
        lanes = low.bound.lane_kernels[op]
        product = lane_product(low, lanes, asked.a, asked.b, asked.parts, c)
        sums = lane_sums(product, lanes, asked.wide, asked.start)
        return by_lanes(product, lanes, asked.a, asked.b, sums), sums
    if op in low.task.registers:
        return _in_task(asked, low.task.registers[op])
    microkernel = _by_atom(low, op, asked.a, asked.b, c)
    along = None if microkernel is None else (microkernel[1].m, microkernel[1].n)
    carried = going_on_in(low, op, asked.acc, asked.start, asked.inner, along)
    if microkernel is None:
        return _without_atom(asked, carried)
    return _with_atom(asked, carried, *microkernel)


def _in_task(asked: _Asked, task: TaskRegisters) -> tuple[ProductParts, Value]:
    """Return the parts and the sums of an MMA for which the task keeps tile registers."""
    low, how = asked.low, asked.low.bound.products[asked.op]
    assert how is not None
    if asked.start != formulas.number(0, asked.wide):
        what = "mma in tile registers of a task starts from 0; add its accumulator after it"
        raise ProgramError(what, asked.op.loc)
    left, right = (asked.b, asked.a) if task.axes.swapped else (asked.a, asked.b)
    product = AtomProduct(low, how, task.axes, asked.parts, asked.acc.dims)
    return by_atom(product, left, right, TaskSums(low.writer, task), task), task.scratch


def _without_atom(asked: _Asked, total: Value | None) -> tuple[ProductParts, Value]:
    """Return the parts and the sums of an MMA of formulas; `total`: the carried accumulator to which it may add."""
    low, storage, c = asked.low, asked.low.storage, asked.acc.dims
    if total is None:
        stored = storage.stored(asked.acc.over(c, asked.parts), as_type=(asked.wide, asked.start), name="acc")
        total = storage.load_of(stored)[1].tensor
    storage.going_on[asked.op.results[0]] = total
    return by_elements(TileProduct(low, asked.parts, c), asked.a, asked.b, total), total


def _with_atom(
    asked: _Asked, total: Value | None, how: Microkernel, axes: Axes, a: Tile, b: Tile
) -> tuple[ProductParts, Value]:
    """Return the parts and the sums of an MMA by an atom; `total`: the carried accumulator to which it may add."""
    low, storage, c = asked.low, asked.low.storage, asked.acc.dims
    zero = False
    if total is None:
        total, zero = room_for_sums(storage, how, axes, c, asked.inner, asked.wide, asked.start)
    if low.bound.halo_taps is not None and total not in storage.sums:
        raise ProgramError("the sums of a task do not stay in registers")
    storage.going_on[asked.op.results[0]] = total
    product = AtomProduct(low, how, axes, asked.parts, c)
    product.masks = masks_on_product(low, asked.op)
    accumulator = WholeSums(total) if total in storage.sums else TiledSums(product, total, zero)
    return by_atom(product, a, b, accumulator), total


def _by_atom(
    low: Lowering, op: Op, a: Tile, b: Tile, c: tuple[Expr, ...]
) -> tuple[Microkernel, Axes, Tile, Tile] | None:
    """Return (microkernel, its axes, operand A, operand B) of an MMA; None, with a reason in `low.lost`, if it has
    none.
    """
    known = {**a.parts, **b.parts}
    axes = axes_of(a.dims, b.dims, c, lambda d: most(known[d][1]))
    if isinstance(axes, str):
        low.lost[op] = axes
        return None
    kernel = low.bound.products.get(op)
    if kernel is None:
        if low.bound.unrolled_terms is None:
            low.lost[op] = "its plan says loops"
        return None
    axes = kernel.oriented(axes)
    return kernel, axes, *((b, a) if axes.swapped else (a, b))


def _as_tf32(storage: Storage, tile: Tile) -> Tile:
    """Return an f32 tile stored with its elements rounded to tf32 (ten bits of fraction); any other tile as it is."""
    if tile.dtype is not dtypes.f32:
        return tile
    tile = storage.stored(tile, name="factor")
    stored = only_load(tile.formula)
    if stored is None:  # nothing to look at
        return tile
    bits = storage.writer.emit("bitcast", (stored.tensor,), dtype=dtypes.i32).result
    bits.name = storage.writer.fresh("bits")
    word = storage.held(bits, tile.dims, tile.parts).formula
    odd = Formula("and_", (Formula("shr", (word, Formula.number(13))), Formula.number(1)))
    near = Formula("add", (Formula("add", (word, Formula.number(0xFFF))), odd))
    cut = Formula("and_", (near, Formula.number(-0x2000)))
    finite = Formula("lt", (Formula("abs", (tile.formula,)), Formula.number(float("inf"))))
    storage.put(bits, tile.dims, tile.parts, Formula("select", (finite, cut, word)))
    return tile
