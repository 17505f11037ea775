"""The rule for `mma`: it chooses the parts of the lowering (operand sources, accumulator, loops, step) by the plan."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.algebra.expr import Expr
from tilewright.errors import ExecutionError, ProgramError
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Op, TileType, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tile import mismatched_dims
from tilewright.ir.tile_formulas import converted
from tilewright.lower.block import dynamic_bounds
from tilewright.lower.block.lazy_tiles import Parts, Tile, common_parts, most, only_load, rounded
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.mma.accumulator import TaskSums, TiledSums, WholeSums, carried_accumulator_of, room_for_sums
from tilewright.lower.block.mma.atoms import by_atom
from tilewright.lower.block.mma.elements import by_elements
from tilewright.lower.block.mma.lanes import by_lanes, lane_product, lane_sums
from tilewright.lower.block.mma.masked import masks_on_product
from tilewright.lower.block.mma.parts import ProductParts, write
from tilewright.lower.block.mma.product import AtomProduct, TileProduct
from tilewright.lower.block.mma.registers import TaskRegisters
from tilewright.lower.block.storage import Storage
from tilewright.plan.accumulator_type import accumulator_type
from tilewright.plan.microkernel import Axes, Microkernel, axes_of


def mma(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Emit an `mma`; return (result tile,): the accumulator plus A * B, summed over the dimensions that only A and B
    have.

    The MMA accumulates in a wider type, and is rounded once. Without elements of C or K, nothing is emitted, and the
    result is the accumulator. A dimension that only one of A and B has, and C has not, must have extent 1; otherwise
    raise an ExecutionError. Raise a ProgramError for a block-diagonal B that the plan's atom does not multiply.
    """
    a, b, acc = (low.storage.env[v] for v in op.operands)
    parts = common_parts([a, b, acc])
    dims_of_one_operand = (mismatched_dims(op) or (set(),))[0]
    for d in dims_of_one_operand:
        if parts[d][1] != 1:
            raise ExecutionError(f"mma: {d} is in one factor only, but is {parts[d][1]} wide here", op.loc)
    a, b = (
        low.scope.conform(t.over(t.dims, parts), tuple(d for d in t.dims if d not in dims_of_one_operand), op)
        for t in (a, b)
    )
    kind: TileType = op.results[0].type
    wide = accumulator_type(op, low.machine)
    inner = {d: parts[d] for d in acc.dims}
    of_acc, formula = acc.accumulated
    start = converted(formula, of_acc, wide)
    summed = tuple(d for d in a.dims if d in b.dims and d not in acc.dims)
    if any(parts[d][1] == 0 for d in (*acc.dims, *summed)):
        return (rounded(kind.dtype, acc.dims, inner, wide, start),)
    kernel, blocks = low.bound.products.get(op), op.attrs.get("blocks", 1)
    if blocks != (1 if kernel is None else kernel.blocks):
        raise ProgramError(f"mma in {blocks} blocks: nothing here multiplies them by themselves", op.loc)
    atom_rounds = kernel is not None and kernel.atom.rounds_to == "tf32"  # the atom rounds its operands
    tf32 = op.attrs.get("precision") == "tf32" and wide is dtypes.f32 and not atom_rounds
    a, b = (dynamic_bounds.neutral(low, t.over(t.dims, parts), summed, 0) for t in (a, b))
    if tf32:
        a, b = (_as_tf32(low.storage, t) for t in (a, b))
    parts_of_product, sums = _parts(_MmaRequest(low, op, a, b, acc, parts, start, wide))
    write(parts_of_product)
    return (rounded(kind.dtype, acc.dims, inner, wide, low.storage.held(sums, acc.dims, inner).formula),)


@dataclass(frozen=True)
class _MmaRequest:
    """An MMA to lower: its operands, its accumulator (`acc`), the formula that it starts from, and the accumulator
    type.
    """

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
        """{dimension of C: (first index, extent) of its current part}."""
        return {d: self.parts[d] for d in self.acc.dims}


def _parts(request: _MmaRequest) -> tuple[ProductParts, Value]:
    """Prepare an MMA as its plan says; return (ProductParts, the tensor that will have its result).

    ProductParts are the operand sources, accumulator, loops and multiply step; `parts.write` emits the MMA from them.
    Code that must come before the MMA is emitted here: allocations, copies, and the accumulator's start.
    """
    low, op, c = request.low, request.op, request.acc.dims
    if op in low.bound.lane_kernels:
        lanes = low.bound.lane_kernels[op]
        product = lane_product(low, lanes, request.a, request.b, request.parts, c)
        sums = lane_sums(product, lanes, request.wide, request.start)
        return by_lanes(product, lanes, request.a, request.b, sums), sums
    if op in low.task.registers:
        return _in_task(request, low.task.registers[op])
    microkernel = _microkernel_with_operands(low, op, request.a, request.b, c)
    along = None if microkernel is None else (microkernel[1].m, microkernel[1].n)
    carried = carried_accumulator_of(low, op, request.acc, request.start, request.inner, along)
    if microkernel is None:
        return _without_atom(request, carried)
    return _with_atom(request, carried, *microkernel)


def _in_task(request: _MmaRequest, task: TaskRegisters) -> tuple[ProductParts, Value]:
    """Prepare an MMA for which the `task` keeps tile registers; return (ProductParts, the tensor that will have its
    result).

    ProductParts are the operand sources, accumulator, loops and multiply step from which the MMA is emitted later.
    Raise a ProgramError unless the accumulator starts from 0.
    """
    low, kernel = request.low, request.low.bound.products[request.op]
    assert kernel is not None
    if request.start != formulas.number(0, request.wide):
        message = "mma in tile registers of a task starts from 0; add its accumulator after it"
        raise ProgramError(message, request.op.loc)
    left, right = (request.b, request.a) if task.axes.swapped else (request.a, request.b)
    product = AtomProduct(low, kernel, task.axes, request.parts, request.acc.dims)
    return by_atom(product, left, right, TaskSums(low.writer, task), task), task.scratch


def _without_atom(request: _MmaRequest, total: Value | None) -> tuple[ProductParts, Value]:
    """Prepare an MMA without an atom, by formulas of elements; return (ProductParts, the tensor that will have its
    result).

    ProductParts are the operand sources, accumulator, loops and multiply step from which the MMA is emitted later.
    `total` is the tensor of a carried accumulator, to which the MMA adds in place. If it is None, code is emitted here
    that stores the accumulator's start to a new tensor.
    """
    low, storage, c = request.low, request.low.storage, request.acc.dims
    if total is None:
        stored = storage.stored(request.acc.over(c, request.parts), as_type=(request.wide, request.start), name="acc")
        total = storage.load_of(stored)[1].tensor
    storage.carried_tensors[request.op.results[0]] = total
    return by_elements(TileProduct(low, request.parts, c), request.a, request.b, total), total


def _with_atom(
    request: _MmaRequest, total: Value | None, kernel: Microkernel, axes: Axes, a: Tile, b: Tile
) -> tuple[ProductParts, Value]:
    """Prepare an MMA by the atom of `kernel`; return (ProductParts, the tensor that will have its result).

    ProductParts are the operand sources, accumulator, loops and multiply step from which the MMA is emitted later.
    `axes` names M, N and K; `a` and `b` are the operands as the atom sees them. `total` is the tensor of a carried
    accumulator, to which the MMA adds in place; None: a new tensor is allocated here. Raise a ProgramError if A is a
    halo tile, and the accumulator does not stay in registers.
    """
    low, storage, c = request.low, request.low.storage, request.acc.dims
    is_zero = False
    if total is None:
        total, is_zero = room_for_sums(storage, kernel, axes, c, request.inner, request.wide, request.start)
    if low.bound.halo_taps is not None and total not in storage.sums:
        raise ProgramError("halo tile: the accumulator of a task does not stay in registers")
    storage.carried_tensors[request.op.results[0]] = total
    product = AtomProduct(low, kernel, axes, request.parts, c)
    product.masks = masks_on_product(low, request.op)
    product.packed = low.task.packed.get(request.op)
    accumulator = WholeSums(total) if total in storage.sums else TiledSums(product, total, is_zero)
    return by_atom(product, a, b, accumulator), total


def _microkernel_with_operands(
    low: Lowering, op: Op, a: Tile, b: Tile, c: tuple[Expr, ...]
) -> tuple[Microkernel, Axes, Tile, Tile] | None:
    """Return (Microkernel, axes, A, B) of the MMA `op`: the atom with its accumulator tile, the names of M, N and K,
    the operands.

    A and B are `a` and `b`, swapped if the atom's rows run along N. `c` are the dimensions of the result. Return None
    if the MMA has no M, N and K, or if the plan has no atom for it; then `low.fallback_mmas[op]` is set to the reason,
    unless the plan unrolls scalar products instead of an atom.
    """
    known = {**a.parts, **b.parts}
    axes = axes_of(a.dims, b.dims, c, lambda d: most(known[d][1]))
    if isinstance(axes, str):
        low.fallback_mmas[op] = axes
        return None
    kernel = low.bound.products.get(op)
    if kernel is None:
        if low.bound.unrolled_terms is None:
            low.fallback_mmas[op] = "its plan says loops"
        return None
    axes = kernel.oriented(axes)
    return kernel, axes, *((b, a) if axes.swapped else (a, b))


def _as_tf32(storage: Storage, tile: Tile) -> Tile:
    """Return an f32 tile with its elements rounded to tf32 (10 bits of fraction), stored by emitted code in a new
    tensor.

    A tile of any other type is returned unchanged. Infinities and NaN stay as they are.
    """
    if tile.dtype is not dtypes.f32:
        return tile
    tile = storage.stored(tile, name="factor")
    stored = only_load(tile.formula)
    if stored is None:  # the tile has no elements
        return tile
    bits = storage.writer.emit("bitcast", (stored.tensor,), dtype=dtypes.i32).result
    bits.name = storage.writer.fresh("bits")
    word = storage.held(bits, tile.dims, tile.parts).formula
    last_kept_bit = Formula("and_", (Formula("shr", (word, Formula.number(13))), Formula.number(1)))
    rounded_up = Formula("add", (Formula("add", (word, Formula.number(0xFFF))), last_kept_bit))
    rounded_bits = Formula("and_", (rounded_up, Formula.number(-0x2000)))
    finite = Formula("lt", (Formula("abs", (tile.formula,)), Formula.number(float("inf"))))
    storage.put(bits, tile.dims, tile.parts, Formula("select", (finite, rounded_bits, word)))
    return tile
