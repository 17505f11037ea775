"""Rules for scans (cumsum, cumprod, cummax, cummin) and topk."""

from __future__ import annotations

from tilewright.algebra.expr import Expr
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import DimensionMismatch
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Op
from tilewright.ir.formula import Formula
from tilewright.ir.tile import SCANS, STEPS, require_elements
from tilewright.ir.tile_formulas import call, converted
from tilewright.lower.block.lazy_tiles import Tile, rewritten
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.reduce import combine_by_blocks


def scan(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Emit a scan (cumsum, cumprod, cummax or cummin) of a tile along a dimension; return (result tile,).

    The scan accumulates in a wider type. If `op` has a carried operand, every element of the result is combined with
    it; if that operand has the scan's dimension, only its last element along the dimension counts. If the tile has no
    elements, nothing is emitted, and the tile itself is returned.
    """
    tile, *start = (low.storage.env[v] for v in op.operands)
    dim, name = op.attrs["dim"], SCANS[op.name]
    wide = tile.dtype.accumulator
    if 0 in tile.sizes:
        return (tile,)
    source = Tile(wide, tile.dims, tile.parts, converted(tile.formula, tile.dtype, wide))
    source, source_load = low.storage.load_of(source)
    running = low.writer.alloc(wide, source.sizes, "running")
    if low.plan.waves > 1:
        view = low.storage.viewed(source_load, source.dims, source.parts)
        low.writer.combine("scan", view, running, source.dims.index(dim), name)
    else:
        combine_by_blocks(low, source, source_load, dim, (running, source.dims), name)
    total = low.storage.held(running, source.dims, source.parts).formula
    if start:
        kind, before = start[0].accumulated
        if dim in start[0].dims:  # of a tile along the dimension, the last element counts
            first, width = start[0].parts[dim]
            before = rewritten(before, Substitution({low.scope.coordinate(dim): first + width - 1}))
        total = call(STEPS[name], total, converted(before, kind, wide))
    return (Tile(tile.dtype, tile.dims, tile.parts, converted(total, wide, tile.dtype)),)


def topk(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Emit a `topk` of k elements (the attribute `count`) along a dimension, as a loop of reductions of which each
    finds the largest remaining element. Return (tile of the largest elements, tile of their indices).

    If k is 0 or the operand has no elements, nothing is emitted, and the tiles are 0. Raise a DimensionMismatch if
    there are fewer than k elements, or if an open size (known only at the call) may be less than k.
    """
    w = low.writer
    tile = low.storage.env[op.operands[0]]
    dim = op.attrs["dim"]
    count, length = low.scope.number(op.attrs["count"]), tile.parts[dim][1]
    values, _ = op.results
    outer = tuple(d for d in tile.dims if d is not dim)
    if isinstance(length, Expr) and not low.scope.holds(length - count):
        raise DimensionMismatch(
            f"topk over {dim}: k is {count}, and {dim} is dynamic and may be less; leave {dim} out of dynamic=, and "
            "each call checks it",
            op.loc,
        )
    if isinstance(length, int):
        require_elements(op, count, length)
    parts = {d: tile.parts.get(d) or low.scope.part(d) for d in values.type.dims}
    if 0 in tile.sizes or count == 0:
        return tuple(Tile(v.type.dtype, v.type.dims, parts, formulas.number(0, v.type.dtype)) for v in op.results)
    state = [
        low.storage.stored(tile, (*outer, dim), kind)
        for kind in (
            (dtypes.i32, formulas.number(1, dtypes.i32)),
            (tile.dtype, tile.formula),
            (dtypes.i32, formulas.index(low.scope.coordinate(dim), dtypes.i32)),
        )
    ]
    sizes = [parts[d][1] for d in outer]
    sizes_of_tile = [*sizes, tile.parts[dim][1]]
    available, elements, indices = (w.part(t.formula.value.tensor, sizes_of_tile) for t in state)
    best = [w.part(w.alloc(t.type.dtype, sizes, "best"), sizes) for t in (available, elements, indices)]
    largest = [w.alloc(t.type.dtype, [*sizes, count], "largest") for t in (elements, indices)]
    with w.loop("n", count) as n:
        attrs = {"along": len(outer), "with": _LARGER}
        w.emit("reduce", (available, elements, indices, *best), (), **attrs)
        over = w.axes(sizes)
        for target, source in zip(largest, best[1:], strict=True):
            w.emit("copy", (source, w.view(target, over, [*((s, False) for s in over), (n, False)])))
        taken_index = low.storage.held(best[2], outer, parts).formula
        is_taken = Formula("eq", (state[2].formula, taken_index))
        still_available = Formula("select", (is_taken, Formula.number(0), state[0].formula))
        low.storage.put(available, state[0].dims, state[0].parts, still_available)
    dims = (*outer, op.attrs["count"])
    tiles = [low.storage.held(t, dims, parts) for t in largest]
    return tuple(Tile(t.dtype, v.type.dims, parts, t.formula) for t, v in zip(tiles, op.results, strict=True))


def _larger() -> tuple[Formula, ...]:
    """Return the combining function of topk's reduction, as 3 formulas of the arguments a0, a1, a2 and b0, b1, b2.

    a and b are two candidates: (1 if the element is still available, element, index). The formulas give the candidate
    with the larger available element. Of equal elements a wins; NaN is larger than any number.
    """
    (a0, a1, a2), (b0, b1, b2) = ([Formula.argument(f"{side}{n}") for n in range(3)] for side in "ab")
    only_b_is_nan = Formula("and_", (Formula("ne", (b1, b1)), Formula("eq", (a1, a1))))
    above = Formula("or_", (Formula("gt", (b1, a1)), only_b_is_nan))
    later = Formula("or_", (Formula("gt", (b0, a0)), Formula("and_", (Formula("eq", (b0, a0)), above))))
    return tuple(Formula("select", (later, b, a)) for a, b in ((a0, b0), (a1, b1), (a2, b2)))


_LARGER = _larger()
