"""Element by element, along dimensions, and from one distribution to another."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import TensorType, packed
from tilewright.passes.places import PlacedMemory
from tilewright.passes.waves import general, moving
from tilewright.passes.waves.held import Held, Piece, along, numbered, place
from tilewright.passes.waves.waves import Waves

COMBINING = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}


def map_(low: Waves, op: Op) -> None:
    """Lower `map`: each lane computes what it holds; if the target is memory, lanes that hold an operand store
    results.
    """
    handles = [low.handles[v] for v in op.operands]
    target = handles[0]
    holder = target if isinstance(target, Held) else next((h for h in handles[1:] if isinstance(h, Held)), None)
    if holder is None:
        _over_memory(low, op, handles)
        return
    for piece in holder.pieces:
        operands = [moving.held_as(low, h, piece, holder.shape) for h in handles[1:]]
        if isinstance(target, Held):
            result = piece.fragment
            low.flying.touch(written=(result,))
        else:
            result = low.fragment(target.dtype, len(piece.columns))
        lane, v = low.axes(len(piece.columns))
        at = tuple(place(c, low.lanes, low.group.wave, lane, v) for c in piece.coordinates)
        _compute(low, op, result, operands, lane, v, at, rare=result in operands and bool(op.attrs.get("rare")))
        if not isinstance(target, Held):
            moving.store(low, result, piece, target)


def _compute(
    low: Waves,
    op: Op,
    result: Value,
    operands: list[Value],
    lane: Symbol,
    v: Symbol,
    at: tuple[Expr, ...],
    rare: bool = False,
) -> None:
    """Emit the computation of a map's formula at the coordinates `at`; `rare` marks one that seldom changes
    anything.
    """
    names = dict(zip(op.attrs.get("over", ()), at, strict=False))
    with low.means(names):
        formula: Formula = op.attrs["formula"].mapped(low.expr)
    seldom: dict[str, Any] = {"rare": True} if rare else {}
    low.emit("compute", (result, *operands), over=(lane, v), formula=formula, **seldom)


def _over_memory(low: Waves, op: Op, handles: list[Any]) -> None:
    """Emit a map whose operands are all in memory: lanes load, compute and store."""
    target = handles[0]

    def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None) -> None:
        operands = [moving.get(low, h, lane, v, at, inside, 0) for h in handles[1:]]
        result = low.fragment(target.dtype, int(v.hi) + 1)
        _compute(low, op, result, operands, lane, v, at)
        moving.put(low, result, target, lane, v, at, inside)

    moving.over_lanes(low, target.shape, target.dtype.numpy.itemsize, body)


# -- along a dimension ------------------------------------------------------------------------------------------


def reduce(low: Waves, op: Op) -> None:
    """Lower `reduce`: first within a lane, then between lanes that hold the same row by shuffles, then between waves.

    Waves combine their parts through shared memory, in the order of the waves, so that all have the same result.
    """
    handles = [low.handles[v] for v in op.operands]
    plans = _plans(low, op, *handles) if len(handles) == 2 and isinstance(op.attrs["with"], str) else None
    if plans is None:
        general.along(low, op)
        return
    source, target = handles
    name = COMBINING[op.attrs["with"]]
    together = Formula(name, (Formula.operand(1), Formula.operand(2)))
    for number, (piece, (groups, bits, waves)) in enumerate(zip(target.pieces, plans, strict=True)):
        total = _within_lanes(low, source, groups, together)
        for bit in bits:
            other = low.fragment(source.dtype, len(piece.columns))
            moving.pick(low, other, total, np.arange(len(piece.columns)), bit)
            low.emit("compute", (total, total, other), formula=together)
        if len(waves[0]) > 1:
            total = _over_waves(low, (op, number), waves, total, together)
        low.flying.touch(written=(piece.fragment,), read=(piece.fragment,))
        old = (piece.fragment,) if op.attrs.get("accumulate") else ()
        formula = together if old else Formula.operand(1)
        low.emit("compute", (piece.fragment, *old, total), formula=formula)


Plan = tuple[list[list[Any]], list[int], list[list[int]]]
"""For each piece of the source, which of its values go to each value of the result; bits of the lane to go over; and
for each wave, those that hold parts of the same rows."""


def _plans(low: Waves, op: Op, source: Any, target: Any) -> list[Plan] | None:
    """Return a Plan for each piece of the target; None if values and shuffles cannot reduce the layout."""
    if not isinstance(source, Held) or not isinstance(target, Held) or not source.dtype.is_float:
        return None
    if source.dtype.accumulator is not source.dtype or not all(p.whole for p in target.pieces):
        return None
    gone = op.attrs["along"]
    kept = [d for d in range(len(source.shape)) if d != gone]
    shape = tuple(source.shape[d] for d in kept)
    plans: list[Plan] = []
    for piece in target.pieces:
        wanted = piece.ids(target.shape)
        groups, held = [], 0
        for part in source.pieces:
            rows = numbered(tuple(part.coordinates[d] for d in kept), shape) + np.zeros(part.first.shape, np.int64)
            mine = [np.nonzero((rows == wanted[:, c : c + 1]).all(axis=0))[0] for c in range(wanted.shape[1])]
            if len({len(g) for g in mine}) != 1:
                return None
            groups.append(mine)
            held += len(mine[0])
        bits = _lanes_between(low, source, gone, wanted)
        waves = _waves_between(low, wanted, source.shape[gone] // max(1, held << len(bits)))
        if held == 0 or (held << len(bits)) * len(waves[0]) != source.shape[gone]:
            return None
        plans.append((groups, bits, waves))
    return plans


def _waves_between(low: Waves, wanted: Any, count: int) -> list[list[int]]:
    """Return for each wave the list of waves whose lanes want the same rows, in order; itself alone unless all have
    `count`.
    """
    tables = [x.tobytes() for x in np.ascontiguousarray(wanted).reshape(low.group.waves, -1)]
    mates = [[n for n, other in enumerate(tables) if other == mine] for mine in tables]
    return mates if {len(x) for x in mates} == {count} else [[n] for n in range(len(tables))]


def _over_waves(low: Waves, key: Any, waves: list[list[int]], total: Value, together: Formula) -> Value:
    """Emit the exchange of partial totals through shared memory; return their combination, in the order of the
    waves.
    """
    count = int(total.type.shape[1])
    told = general.scratch(low, (*key, "waves"), total.type.dtype, (low.group.waves, low.lanes, count))
    low.meet()  # what was told the last time is known to all
    lane, v = low.axes(count)
    low.emit("store", (total, told.buffer), over=(lane, v), at=(told.at((low.group.wave, lane, v)).offset,))
    low.written(told)
    low.meet()
    combined: Value | None = None
    for n in range(len(waves[0])):
        mate = along(np.asarray([mates[n] for mates in waves]), low.group.wave)
        if mate is None:
            raise ProgramError("reduce: which waves share a row is no sum of digits of their number")
        part = low.fragment(total.type.dtype, count)
        low.emit("load", (part, told.buffer), over=(lane, v), at=(told.at((mate, lane, v)).offset,))
        if combined is not None:
            low.emit("compute", (part, combined, part), formula=together)
        combined = part
    assert combined is not None
    return combined


def _within_lanes(low: Waves, source: Held, groups: list[list[Any]], together: Formula) -> Value:
    """Return a fragment with what each lane has of the wanted rows, combined in pairs."""
    parts: list[Value] = []
    for piece, mine in zip(source.pieces, groups, strict=True):
        values = moving.values_of(low, piece) if len(mine[0]) else None
        for k in range(len(mine[0])):
            assert values is not None
            part = low.fragment(source.dtype, len(mine))
            moving.pick(low, part, values, np.asarray([g[k] for g in mine]))
            parts.append(part)
    while len(parts) > 1:  # neighbours first, so that sums do not wait for one another
        for i in range(0, len(parts) - 1, 2):
            low.emit("compute", (parts[i], parts[i], parts[i + 1]), formula=together)
        parts = parts[::2]
    return parts[0]


def _lanes_between(low: Waves, source: Held, gone: int, wanted: Any) -> list[int]:
    """Return the bits of the lane number in which lanes differ that hold parts of one row."""
    threads = np.arange(len(wanted))
    column = source.pieces[0].coordinates[gone]
    bits, bit = [], 1
    while bit < low.lanes:
        moved = threads ^ bit
        if (wanted[moved] == wanted).all() and (column[moved] != column).any():
            bits.append(bit)
        bit *= 2
    return bits


def broadcast(low: Waves, op: Op) -> None:
    """Lower `broadcast`: each lane picks the rows that it needs from what it holds; else through memory."""
    source, target = (low.handles[v] for v in op.operands)
    if not isinstance(target, Held):
        general.broadcast(low, op)
        return
    kept = [d for d in range(len(target.shape)) if d != op.attrs["along"]]
    shape = tuple(target.shape[d] for d in kept)
    rows = [Piece(p.fragment, p.columns, tuple(p.coordinates[d] for d in kept), p.first) for p in target.pieces]
    if isinstance(source, Held) and not all(moving.holds(source, row, shape) for row in rows):
        general.broadcast(low, op)
        return
    for piece, row in zip(target.pieces, rows, strict=True):
        values = moving.held_as(low, source, row, shape)
        low.flying.touch(written=(piece.fragment,))
        moving.pick(low, piece.fragment, values, np.arange(len(piece.columns)))


def convert_layout(low: Waves, op: Op) -> None:
    """Lower `convert_layout` through shared memory: all elements are stored, the waves meet, all are loaded."""
    source, target = (low.handles[v] for v in op.operands)
    shape = tuple(map(as_expr, source.shape))
    room = int(np.prod(source.shape))
    kind = TensorType("shared", source.dtype, (as_expr(room * low.group.halves),))
    buffer = low.hoist((op, "scratch", low.group.halves), kind, "scratch")
    strides = tuple(int(e) for e in packed(shape))
    scratch = PlacedMemory(buffer, source.dtype, source.shape, strides, None, low.group.side * room)
    for piece in source.pieces:
        moving.store(low, moving.values_of(low, piece), piece, scratch)
    low.meet()
    for piece in target.pieces:
        moving.load(low, scratch, piece.fragment, piece, None)
    low.meet()
