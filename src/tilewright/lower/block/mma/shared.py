"""Operands that several accumulator tiles of a task share: computed and packed once, before the loop over the tiles.

for b_N in 0..16 {                     for b_N in 0..16 {
  for b_M in 0..4 {                      map %v = bf16(%w_view)*%s_view       widened weights: no index of M
    map %v = bf16(%w_view)*%s_view       copy %v_view -> %packed
    copy %v_view -> %packed              for b_M in 0..4 {
    ... mma                                ... mma
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Block, Op, TileType, Value
from tilewright.ir.tile import ELEMENTWISE
from tilewright.lower.block.lazy_tiles import Parts, most
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.packing import pack_here
from tilewright.plan.boxes import WRITES
from tilewright.plan.microkernel import Axes, axes_of
from tilewright.rewrite.rewriter import needed

_POINTWISE = {*ELEMENTWISE, "select", "cast", "read", "fill", "scalar", "self_index", "broadcast", "permute", "apply"}


def with_shared_operands(low: Lowering, ops: Sequence[Op], dims: Sequence[Expr]) -> list[Op]:
    """Emit, once for all blocks along `dims`, the computation and packing of operands B of MMAs in `ops` that are the
    same for all these blocks. Return the operations of `ops` that are left to be emitted for each block.

    An operand is shared if it is computed elementwise from arguments that the program does not write, and if no value
    on the way has one of the dimensions `dims`. `low.task.packed` gets {MMA: (packed operand, its order)}. All of `ops`
    are returned on machines with lanes, in conditionals on data, and in loops with data-dependent or padded ends.
    """
    scope = low.scope
    if low.machine.lanes is not None or scope.masks or scope.bases or scope.ends or scope.past:
        return list(ops)
    makers = {r: op for op in ops for r in op.results}
    written = {op.operands[1] for op in low.program.walk() if op.name in WRITES}
    shared: dict[Op, tuple[Axes, Value]] = {}
    inside = set[Op]()
    for op in ops:
        axes = _axes(low, op)
        if axes is None:
            continue
        right = op.operands[0 if axes.swapped else 1]
        maker = makers.get(right)
        if maker is None or maker.name == "read":
            continue
        computing = needed(maker, makers)
        is_pure = all(x.name in _POINTWISE and not written.intersection(x.operands) for x in computing)
        if is_pure and not any(d in v.type.dims for x in computing for v in x.results for d in dims):
            shared[op] = axes, right
            inside |= computing
    if not shared:
        return list(ops)
    low.block(Block((), [op for op in ops if op in inside]))
    for op, (axes, right) in shared.items():
        kernel, b = low.bound.products[op], low.storage.env[right]
        assert kernel is not None
        outer = [d for d in (*axes.around, *axes.deep) if d in b.dims]
        low.task.packed[op] = pack_here(low.storage, b, _parts(low, op), axes, outer, kernel)
    return [op for op in ops if op not in inside]


def _axes(low: Lowering, op: Op) -> Axes | None:
    """Return the Axes (M, N, K) of the MMA `op` as its atom sees them.

    None if `op` is no MMA or has no atom, if its B is block-diagonal, if it is in tile registers of a task, or if no
    dimensions can be its M, N and K.
    """
    kernel = low.bound.products.get(op) if op.name == "mma" else None
    if kernel is None or op.attrs.get("blocks", 1) != 1 or op in low.task.registers:
        return None
    a, b = (v.type.dims for v in op.operands[:2])
    axes = axes_of(a, b, op.results[0].type.dims, lambda d: most(low.scope.part(d)[1]))
    return None if isinstance(axes, str) else kernel.oriented(axes)


def _parts(low: Lowering, op: Op) -> Parts:
    """Return {dimension: (first index, extent) of its current part} for the dimensions of the MMA `op`."""
    return {d: low.scope.part(d) for v in op.operands if isinstance(v.type, TileType) for d in v.type.dims}
