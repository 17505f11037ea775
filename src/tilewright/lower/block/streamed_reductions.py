"""Reductions of computed values over a strided dimension: a part of it at a time, so that each part stays in L1.

    %1 = cast %0 f32                    fill %total 0
    %2 = sum %1 dim=(W)                 for s in 0..49 {
                                          map %v = f32(%x_view)                 256 elements of W
    x is [W, C]: contiguous along C       reduce %v -> %part along W with sum   whole vectors of C
                                          map %total = %total + %part
                                        }

Without this, the cast values of a whole column would lie in memory, and would be read again from there. Reductions over
the same dimension that do not depend on each other share a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tilewright.algebra.expr import Expr, as_expr
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.dtypes import DType, f32, f64
from tilewright.ir.tile import REDUCTIONS
from tilewright.ir.tile_formulas import call, converted
from tilewright.lower.block import dynamic_bounds, reduce
from tilewright.lower.block.accesses import memory_step
from tilewright.lower.block.lazy_tiles import DEAR, Part, Tile, divided, loads, most
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.materialise import kept
from tilewright.plan.boxes import contiguous_dims
from tilewright.plan.model import element_bytes, l1, piece_of_row
from tilewright.rewrite.rewriter import needed


@dataclass(frozen=True)
class StreamedReductions:
    """The reductions `last` over the dimension `dim`, emitted in one loop over parts of it.

    `inside` are the operations that compute what they reduce, in order. `at_once` are the elements of a part, along the
    dimensions that are cut into pieces first, and along `dim`: loops iterate over them in this order, outermost first.
    """

    inside: tuple[Op, ...]
    last: tuple[Op, ...]
    dim: Expr
    at_once: Mapping[Expr, int] = field(default_factory=dict)

    @property
    def given(self) -> list[Value]:
        """The values that the operations use, but do not compute themselves; each once, in the order of their first
        use.
        """
        results = {r for op in self.inside for r in op.results}
        operands = (v for op in self.inside for v in op.operands)
        operands_of_last = (v for op in self.last for v in reduce.operands(op))
        return [v for v in dict.fromkeys((*operands, *operands_of_last)) if v not in results]

    def left(self, ops: Sequence[Op], after: Sequence[Op]) -> list[Op]:
        """Return the operations of `ops` that must still be emitted, in order, once this group is: all but the
        reductions, and the operations whose results only they use.

        `ops` has all operations of this group; `after` are the operations behind `ops`.
        """
        done, rest = {*self.last}, [op for op in ops if op not in self.last]
        needed = {v for op in (*after, *rest) if op not in self.inside for v in operands_within(op)}
        for op in reversed(self.inside):
            if needed.isdisjoint(op.results):
                done.add(op)
            else:
                needed.update(op.operands)
        return [op for op in ops if op not in done]


def operands_within(op: Op) -> Iterator[Value]:
    """Yield the operands of `op` and of all operations in its blocks."""
    yield from op.operands
    for block in op.blocks:
        for inner in block.ops:
            yield from operands_within(inner)


def streamed(low: Lowering, early: Sequence[Op], ops: Sequence[Op], after: Sequence[Op]) -> StreamedReductions | None:
    """Return reductions over one dimension among `ops` that are to be emitted in one loop over parts of it, together
    with the operations that compute their operands. Return None if there are none. Of nested reductions, the outer one
    is taken.

    All of these conditions must hold. The machine is a CPU. The operations are in no conditional on data, while loop or
    loop with data-dependent limits. L1 does not hold the values for all of the dimension, but it does for one index of
    it. Memory that is read is contiguous along another dimension, which is not reduced. There are several reductions,
    or one whose operand is computed or converted. Operands that other operations use too are cheap to compute again.

    `ops` are elementwise operations, selects, casts and reductions; `early` are the reads, constants and broadcasts in
    front of them, `after` the operations behind them.
    """
    scope = low.scope
    if low.machine.lanes is not None or scope.masks or scope.bases or scope.ends or scope.walking:
        return None
    makers = {r: op for op in ops for r in op.results}
    inside_of: dict[Op, list[Op]] = {}
    for op in ops:
        if op.name in REDUCTIONS:
            inside_of[op] = _computing(op, ops, makers)
    for first in reversed(inside_of):  # of a reduction of reductions, the outer one is cut
        dim = first.attrs["dim"]
        last = [
            op
            for op, inside in inside_of.items()
            if op.attrs["dim"] is dim and all(x.attrs.get("dim") is not dim for x in inside if x.name in REDUCTIONS)
        ]
        inside = [op for op in ops if any(op in inside_of[x] for x in last)]
        if first not in last or not (inside or len(last) > 1 or _is_converted(first)):
            continue
        group = StreamedReductions(tuple(inside), tuple(last), dim)
        in_parts = _of_parts(low, group, early) if _is_cheap_again(group, ops, after) else None
        if in_parts is not None:
            return in_parts
    return None


def _is_converted(op: Op) -> bool:
    """True if the reduction `op` accumulates in another type than that of an operand that it reduces."""
    return any(v.type.dtype is not reduce.accumulation(op)[0] for v in reduce.operands(op))


def _computing(op: Op, ops: Sequence[Op], makers: dict[Value, Op]) -> list[Op]:
    """Return the operations of `ops`, in order, on whose results the operands that the reduction `op` reduces depend.

    `makers` is {value: operation of `ops` that computes it}.
    """
    computing = {x for v in reduce.operands(op) if v in makers for x in needed(makers[v], makers)}
    return [x for x in ops if x in computing]


def _is_cheap_again(group: StreamedReductions, ops: Sequence[Op], after: Sequence[Op]) -> bool:
    """True if no operation inside `group` that must be repeated, because something outside uses its result too, is a
    reduction or an expensive function.

    `ops` has all operations of the group; `after` are the operations behind `ops`.
    """
    again = {*group.left(ops, after)}.intersection(group.inside)
    return all(op.name not in DEAR and op.name not in REDUCTIONS for op in again)


def _of_parts(low: Lowering, group: StreamedReductions, early: Sequence[Op]) -> StreamedReductions | None:
    """Return `group` with `at_once` set to parts for which L1 holds the values; None if L1 holds all of the dimension,
    or not even one index of it.

    None also if vectors cannot go along a dimension that `group` does not reduce, if an extent is 0 or not known at
    launch, or if the dimension is the axis of a loop whose last tile is padded. `early` are the operations in front of
    the group that have no Tiles yet.
    """
    scope, dim = low.scope, group.dim
    values = {v for op in (*group.inside, *group.last) for v in (*op.operands, *op.results)}
    dims = {d for v in values for d in v.type.dims}
    if not all(scope.is_known(d) for d in dims) or dim in scope.past:
        return None
    extent = {d: most(scope.part(d)[1]) for d in dims}
    pieces = _pieces(low, group, early)
    if pieces is None or not all(extent.values()):
        return None
    tiles = [(v.type.dims, v.type.dtype) for op in group.inside for v in op.results]
    for op in group.last:
        kind, _ = reduce.accumulation(op)
        to_convert = [v for v in reduce.operands(op) if v in group.given or v.type.dtype is not kind]
        tiles += [(v.type.dims, kind) for v in to_convert]

    results = [(op.result.type.dims, _type_of_total(op)) for op in group.last]

    def fitting(widths: Mapping[Expr, int]) -> int:
        """Return the number of indices of `dim` for which L1 holds the totals and the largest tiles, if dimensions have
        the extents `widths`.
        """
        of_tiles, of_totals = (
            [prod(widths[d] for d in tile_dims) * element_bytes(dtype) for tile_dims, dtype in values]
            for values in (tiles, results)
        )
        return int(widths[dim] * (l1(low.machine.limits) - sum(of_totals)) / sum(sorted(of_tiles)[-3:]))

    at_once = fitting({**extent, **pieces})
    if at_once < 1 or fitting(extent) >= extent[dim]:
        return None
    return replace(group, at_once={**pieces, dim: min(extent[dim], 1 << at_once.bit_length() - 1)})


def _pieces(low: Lowering, group: StreamedReductions, early: Sequence[Op]) -> dict[Expr, int] | None:
    """Return {dimension: elements of a piece} for the dimensions to cut into pieces; {} if none is long enough.

    These are dimensions along which a value that `group` reads is contiguous, that are longer than a piece, and that
    all results of the group have. If values differ, the largest piece counts. None if no value is contiguous along a
    dimension, or if one is along a dimension that the group reduces.
    """
    ops = (*group.inside, *group.last)
    reduced = {op.attrs["dim"] for op in ops if op.name in REDUCTIONS}
    pieces: dict[Expr, int] = {}
    contiguous = set[Expr]()
    for value in (v for v in group.given if group.dim in v.type.dims):
        dims = {d for d in dims_of_vectors(low, value, early) if low.scope.part(d)[1] != 1}
        contiguous |= dims
        piece = piece_of_row(low.machine, element_bytes(value.type.dtype))
        for d in dims:
            if most(low.scope.part(d)[1]) > piece and all(d in r.type.dims for op in ops for r in op.results):
                pieces[d] = max(piece, pieces.get(d, 0))
    return pieces if contiguous and contiguous.isdisjoint(reduced) else None


def dims_of_vectors(low: Lowering, value: Value, early: Sequence[Op]) -> set[Expr]:
    """Return the dimensions of `value` along which its elements are read from contiguous memory. `early` are the
    operations that are to be emitted next, and have no Tiles yet.
    """
    op = next((op for op in early if value in op.results), None)
    if op is None:
        tile = low.storage.env[value]
        return {d for d in tile.dims for each in loads(tile.formula) if memory_step(low.scope, each, d) == 1}
    if op.name == "read":
        return {*contiguous_dims(op)}
    return {d for v in op.operands for d in dims_of_vectors(low, v, early)}


def write(low: Lowering, group: StreamedReductions) -> None:
    """Emit the reductions of `group` in loops over parts of their dimension, and a shorter last part. `low.storage.env`
    gets the Tiles of their results.

    Sums of f32 are added up in f64 over the parts, so that a long sum loses no small terms.
    """
    totals: dict[Op, Tile] = {}
    for op in group.last:
        wide, dims = _type_of_total(op), op.result.type.dims
        neutral = formulas.number(dynamic_bounds.identity(op.name, op.result.type.dtype), wide)
        parts = {d: low.scope.part(d) for d in dims}
        totals[op] = low.storage.stored(Tile(wide, dims, parts, neutral), name="total")
    _write_parts(low, group, totals, [*group.at_once])
    for op, total in totals.items():
        kind, _ = reduce.accumulation(op)
        tile = reduce.result(low, op, total.parts, converted(total.formula, total.dtype, kind))
        low.storage.env[op.result] = kept(low, op, op.result, tile)


def _type_of_total(op: Op) -> DType:
    """Return the element type in which the parts of the reduction `op` are combined: f64 for sums in f32."""
    kind, step = reduce.accumulation(op)
    return f64 if kind is f32 and step == "add" else kind


def _write_parts(low: Lowering, group: StreamedReductions, totals: Mapping[Op, Tile], dims: Sequence[Expr]) -> None:
    """Emit nested loops over parts of the dimensions `dims`, outermost first, which combine each part of `group` with
    `totals`.

    `totals` is {reduction of the group: Tile of its total, in memory}.
    """
    storage = low.storage
    if not dims:
        low.block(Block((), [*group.inside]))
        for op, total in totals.items():
            (kind, step), tensor = reduce.accumulation(op), next(loads(total.formula)).tensor
            reduced = reduce.reduced_operands(low, op)
            assert reduced is not None, "a part has elements"
            current = {d: low.scope.part(d) for d in total.dims}
            combined = call(step, total.formula, converted(reduced, kind, total.dtype))
            storage.put(tensor, total.dims, current, combined, total.parts)
        return
    dim, *inner = dims
    (first, length), width = low.scope.part(dim), group.at_once[dim]

    def emit(part: Part) -> None:
        """Emit the inner loops for `part`, (first index, extent), of the dimension."""
        with low.scope.at(dim, part), low.nested():
            for value in group.given:
                tile = storage.env[value]
                storage.env[value] = tile.over(tile.dims, {dim: part}) if dim in tile.dims else tile
            _write_parts(low, group, totals, inner)

    full, rest = divided(length, width)
    if full != 0:
        with low.writer.loop("s", full) as s:
            emit((first + width * s, width))
    if rest != 0:
        with low.branch(as_expr(rest) >= 1):
            emit((first + as_expr(full) * width, rest))
