"""Operations along the same rows, done a few rows at a time: what one makes the next reads from the first cache.

%1 = max %0 dim=(N)                 for r in 0..32 {
%2 = sub %0, %1                       ... of rows 4*r to 4*r + 3: the maximum, the exponentials, their sum
%3 = exp %2                           map %v_view = exp(%0_view - %max_view)
%4 = sum %3 dim=(N)                 }

Between two products a program often goes over all scores several times: scaled, their maximum, exponentials, a sum,
another type. Whatever is made and used up among these operations is only as large as a few rows; what is used after
them is written to its place as soon as it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.ir.core import Op, TileType, Value
from tilewright.ir.formula import Formula
from tilewright.ir.tile import ELEMENTWISE, REDUCTIONS
from tilewright.passes.tile.values import Part, Parts, Tile
from tilewright.plan.model import element_bytes, l1

if TYPE_CHECKING:
    from tilewright.passes.tile.general import Lowering

_BY_ROWS = {*ELEMENTWISE, *REDUCTIONS, "select", "cast"}
_EARLY = {"read", "fill", "scalar", "self_index", "broadcast", "permute"}
"""What may be done before others that it does not depend on."""


@dataclass(frozen=True)
class FusedRows:
    """Operations that are done together, some rows at a time."""

    ops: tuple[Op, ...]
    row: Expr
    at_once: int
    outs: frozenset[Value]
    """What is used by others."""


def steps(low: Lowering, ops: Sequence[Op]) -> Iterator[Op | FusedRows]:
    """The operations of a block in an order that keeps its meaning, those that go together as groups."""
    rest = list(ops)
    while rest:
        early, chosen, left = _run(rest)
        group = _group(low, chosen, left)
        if group is None:
            yield rest.pop(0)
        else:
            yield from early
            yield group
            rest = left


def _run(ops: list[Op]) -> tuple[list[Op], list[Op], list[Op]]:
    """(what comes before, what may be a group, what follows): operations up to the first that is neither."""
    early: list[Op] = []
    chosen: list[Op] = []
    late: list[Op] = []
    made: set[Value] = set()
    for place, op in enumerate(ops):
        waits = not made.isdisjoint(op.operands)
        if _is_same(op):
            late.append(op)
            made |= set(op.results)
        elif op.name in _BY_ROWS and not any(v in other.results for other in late for v in op.operands):
            chosen.append(op)
            made |= set(op.results)
        elif op.name in _EARLY and not waits:
            early.append(op)
        else:
            return early, chosen, [*late, *ops[place:]]
    return early, chosen, late


def _is_same(op: Op) -> bool:
    """Whether it is a cast that changes nothing."""
    return op.name == "cast" and op.operands[0].type.dtype is op.results[0].type.dtype


def _group(low: Lowering, ops: list[Op], after: list[Op]) -> FusedRows | None:
    """The operations as a group, where they go over more rows than the first cache holds; None otherwise."""
    machine, reductions = low.machine, [op for op in ops if op.name in REDUCTIONS]
    if machine.lanes is not None or low.masks or low.bases or low.ends or low.walking:
        return None
    values = {v for op in ops for v in (*op.operands, *op.results)}
    dims = {d for v in values for d in v.type.dims}
    reduced = {op.attrs["dim"] for op in reductions}
    kept = [v.type for op in reductions for v in op.results]
    if not reductions or any(t.dtype.accumulator is not t.dtype for t in kept):
        return None
    if not all(isinstance(d, Symbol) and low.is_known(d) for d in dims) or any(low.part(d)[1] == 0 for d in dims):
        return None
    wide = {d: width for d in dims if isinstance(width := low.part(d)[1], int)}
    if len(wide) < len(dims):
        return None
    common = [d for d in kept[0].dims if wide[d] > 1 and d not in reduced and all(d in t.dims for t in kept)]
    if not common or any(common[-1] not in v.type.dims for op in ops for v in op.results):
        return None
    row = common[-1]

    def held(kind: TileType) -> int:
        return prod(wide[d] for d in kind.dims) * element_bytes(kind.dtype)

    most = sum(sorted(held(v.type) for op in ops for v in op.results)[-3:])
    fitting = int(wide[row] * l1(machine.limits) / most)
    if fitting >= wide[row]:
        return None
    at_once = max(1, 1 << fitting.bit_length() - 1) if fitting else 1
    outs = frozenset(r for op in ops for r in op.results if any(_uses(other, r) for other in after))
    return FusedRows(tuple(ops), row, at_once, outs)


def _uses(op: Op, value: Value) -> bool:
    return value in op.operands or any(_uses(inner, value) for block in op.blocks for inner in block.ops)


def write(low: Lowering, group: FusedRows) -> None:
    """The operations of a group, some rows at a time."""
    outside = {v for op in group.ops for v in op.operands} - {r for op in group.ops for r in op.results}
    whole = {d: low.part(d) for op in group.ops for v in op.results for d in v.type.dims}
    places = {value: _place(low, op, value, whole) for op in group.ops for value in op.results if value in group.outs}
    first, length = whole[group.row]

    def rows(part: Part) -> None:
        with low.at(group.row, part), low.scope():
            for value in outside:
                low.env[value] = _cut(low.env[value], group.row, part)
            for op in group.ops:
                for value, tile in zip(op.results, low.done(op), strict=True):
                    if value not in places:
                        low.env[value] = low.kept(op, value, tile)
                        continue
                    _put(low, places[value], value, whole, tile.formula)
                    held = low.held(places[value], value.type.dims, {d: whole[d] for d in value.type.dims})
                    low.env[value] = _cut(held, group.row, part)

    assert isinstance(length, int)
    full, tail = divmod(length, group.at_once)
    with low.w.loop("r", full) as r:
        rows((first + group.at_once * r, group.at_once))
    if tail:
        rows((first + group.at_once * full, tail))
    for value, tensor in places.items():
        low.env[value] = low.held(tensor, value.type.dims, {d: whole[d] for d in value.type.dims})
        low.going_on[value] = tensor


def _cut(tile: Tile, row: Expr, part: Part) -> Tile:
    """A tile over some of its rows."""
    return tile.over(tile.dims, {row: part}) if row in tile.dims else tile


def _place(low: Lowering, op: Op, value: Value, whole: Parts) -> Value:
    """The tensor of a value that others use: that of what a loop carries, where it takes the place of that."""
    kind: TileType = value.type
    shape = tuple(whole[d][1] for d in kind.dims)
    for operand in op.operands if op.name not in REDUCTIONS else ():
        tensor = low.going_on.get(operand)
        if tensor is None or tensor in low.sums or low.uses[operand] != 1 or operand.type.dims != kind.dims:
            continue
        own = low.held(tensor, kind.dims, {d: whole[d] for d in kind.dims})
        same = own.formula == low.env[operand].formula and tensor.type.dtype is kind.dtype
        if same and low.room_of(tensor) == tuple(map(as_expr, shape)):
            return tensor
    return low.w.alloc(kind.dtype, shape, value.name if value.name and not value.name.isdigit() else "v")


def _put(low: Lowering, tensor: Value, value: Value, whole: Parts, formula: Formula) -> None:
    """What a formula computes over the current parts, to its place."""
    dims = value.type.dims
    parts = {d: low.part(d) for d in dims}
    over = low.w.axes([parts[d][1] for d in dims])
    at = [(parts[d][0] - whole[d][0] + i, False) for d, i in zip(dims, over, strict=True)]
    low.w.map(low.w.view(tensor, over, at), over, formula, low.images(dims, parts, over))
