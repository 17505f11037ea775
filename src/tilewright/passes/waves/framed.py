"""Operations over dimensions that are dealt out over lanes (`frames`): each lane computes what it holds.

A reduction combines a lane's own values first, then lanes by shuffles, then waves through shared memory, in an order
that is the same in all lanes: so all of them have the same result, and it need not be handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.check.frames import Dim, Dims, columns, digits, held, operand_axes, target_place
from tilewright.check.shifted import Seen, Shifted
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.passes.waves import general, moving
from tilewright.passes.waves.held import both
from tilewright.passes.waves.waves import Waves

COMBINING = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}


@dataclass(frozen=True, eq=False)
class Spread:
    """A tensor in registers: for each dimension a Dim (its distribution over lanes); None for a dimension of one
    element.
    """

    dtype: DType
    dims: tuple[Dim | None, ...]
    fragment: Value

    @property
    def own(self) -> Dims:
        """The distributed dimensions."""
        return tuple(d for d in self.dims if d is not None)


@dataclass(frozen=True)
class Window:
    """The part of some distributed dimensions that is worked on; a loop over a dimension takes fewer rounds at a
    time.
    """

    dims: Dims
    """With the rounds that are worked on at once."""
    whole: Dims
    turns: tuple[Expr, ...]
    """The first round of each dimension."""
    past: bool = False
    """True if its last rounds may lie past the end."""

    @property
    def values(self) -> int:
        """The number of values per lane."""
        return held(self.dims)

    def places(self, low: Waves, lane: Symbol, v: Symbol) -> dict[Dim, tuple[Expr, Expr | None]]:
        """Return {dimension: (coordinate of a lane's value, condition that it is in bounds or None)}."""
        place_of: dict[Dim, tuple[Expr, Expr | None]] = {}
        counted: dict[tuple[Dim, bool], Expr] = {}
        rest: Expr = v
        for d, fast, n in reversed(digits(self.dims)):
            counted[d, fast] = rest % n
            rest = rest // n
        for d, whole, turn in zip(self.dims, self.whole, self.turns, strict=True):
            thread = whole.part(low.group.wave, lane, low.lanes)
            vector = thread + whole.threads * (turn + counted[d, False])
            inside = vector < -(-whole.extent // whole.width) if whole.ragged or self.past else None
            place_of[whole] = vector * whole.width + counted.get((d, True), as_expr(0)), inside
        return place_of


def window(dims: Dims) -> Window:
    """Return the Window of all of some dimensions."""
    return Window(dims, dims, (as_expr(0),) * len(dims))


def alloc(low: Waves, op: Op) -> None:
    """Allocate the registers of a tensor."""
    kind, result = op.attrs["type"], op.results[0]
    dims = low.frames.tensors[result]
    dims_held = tuple(d for d in dims if d is not None)
    low.handles[result] = Spread(kind.dtype, dims, low.fragment(kind.dtype, held(dims_held), result.name))


def write(low: Waves, op: Op) -> None:
    """Lower an operation over distributed dimensions."""
    if op.name == "reduce":
        reduce(low, op)
    else:
        map_(low, op)


# -- element by element -------------------------------------------------------------------------------------------


def map_(low: Waves, op: Op) -> None:
    """Lower map, copy and fill; operands in memory are processed in parts along dimensions that no register tensor
    has.
    """
    axes = low.frames.axes[op]
    dims = tuple(d for d in axes if d is not None)
    handle_of = {v: low.handles[low.frames.root(v)] for v in op.operands}
    registers = {d for s in handle_of.values() if isinstance(s, Spread) for d in s.own}
    target = op.operands[target_place(op)]
    registers |= {d for v, s in handle_of.items() if isinstance(s, Spread) for d in _shifting(low, v, axes)}
    loaded = sum(
        v.type.dtype.numpy.itemsize for v, s in handle_of.items() if v is not target and not isinstance(s, Spread)
    )

    def part(window: Window) -> None:
        _emit_window(low, op, axes, window)

    most, word = low.target.lane_access.loads_in_flight, low.target.register_file.word_bytes
    _in_parts(low, dims, registers, part, max(1, most * word // max(word, loaded)))


def _in_parts(low: Waves, dims: Dims, fixed: set[Dim], part: Callable[[Window], None], most: int) -> None:
    """Call `part` for all of the dimensions: at once if a lane has at most `most` values, else in loops over free ones.

    `fixed` are dimensions of register tensors, which are not looped over.
    """

    def further(now: Window, free: list[Dim]) -> None:
        at_once, others = 0, 1
        if free:
            others = now.values // (free[0].rounds * free[0].width)
            at_once = max(1, most // max(1, others * free[0].width))
        if now.values <= most or not free:
            part(now)
            return
        first, *rest = free

        def some(rounds: int, turn: Expr) -> None:
            less = replace(first, extent=rounds * first.width * first.threads)
            changed = [
                (less, turn) if whole is first else (d, t)
                for d, whole, t in zip(now.dims, now.whole, now.turns, strict=True)
            ]
            further(Window(tuple(d for d, _ in changed), now.whole, tuple(t for _, t in changed)), rest)

        full, left = divmod(first.rounds, min(at_once, first.rounds))
        with low.loop("turn", 0, full) as turn:
            some(min(at_once, first.rounds), turn * min(at_once, first.rounds))
        if left:
            some(left, as_expr(full * at_once))

    further(window(dims), sorted((d for d in dims if d not in fixed and d.rounds > 1), key=lambda d: -d.rounds))


def _emit_window(low: Waves, op: Op, axes: tuple[Dim | None, ...], part: Window) -> None:
    """Emit a map, copy or fill over one window (part of the dimensions): fetch operands, compute, and store if the
    target is memory.
    """
    sources, target = (op.operands[:1], op.operands[1]) if op.name == "copy" else (op.operands[1:], op.operands[0])
    if op.name == "fill":
        sources = ()
    lane, v = low.axes(part.values)
    places = part.places(low, lane, v)
    at = tuple(as_expr(0) if d is None else places[d][0] for d in axes)
    operands = [fetched(low, op, value, axes, part, op.attrs.get("otherwise")) for value in sources]
    handle = low.handles[low.frames.root(target)]
    if isinstance(handle, Spread):
        result = handle.fragment
    else:
        result = low.fragment(target.type.dtype, part.values)
    if op.name == "fill":
        low.emit("fill", (result,), value=op.attrs["value"])
    elif op.name == "copy":
        low.emit("compute", (result, *operands), formula=Formula.operand(1))
    else:
        with low.means(dict(zip(op.attrs.get("over", ()), at, strict=False))):
            formula: Formula = op.attrs["formula"].mapped(low.expr)
        low.emit("compute", (result, *operands), over=(lane, v), formula=formula)
    if not isinstance(handle, Spread):
        again = any(low.frames.root(v) is low.frames.root(target) for v in sources)
        stored(low, result, low.handles[target], axes, part, again)


def fetched(
    low: Waves, op: Op, value: Value, axes: tuple[Dim | None, ...], part: Window, otherwise: Any = None
) -> Value:
    """Return a fragment with a lane's values of an operand, over the dimensions of a window (part of the dimensions);
    loaded if it is in memory.
    """
    handle = low.handles[low.frames.root(value)]
    if isinstance(handle, Spread):
        through = low.frames.through(value)
        assert through is not None
        if any(isinstance(x, Shifted) for x in through):
            return _from_window(low, handle, part.dims, axes, through)
        seen = tuple(d for d, axis in zip(handle.dims, through, strict=True) if d is not None and axis is not None)
        return expanded(low, handle, part.dims, seen)
    memory = low.handles[value]
    some = _without_broadcast_dims(low, memory, axes, part)
    lane, v = low.axes(some.values)
    places = some.places(low, lane, v)
    where = memory.at(_coordinates(axes, places))
    in_bounds = [inside for _, inside in places.values() if inside is not None]
    condition = both((*in_bounds, *where.conditions))
    loaded = low.fragment(memory.dtype, some.values)
    attrs: dict[str, Any] = {} if condition is None else {"when": condition, "otherwise": otherwise or 0}
    stream = op.attrs.get("stream")
    if stream is not None and int(low.expr(stream)) and where.buffer.type.space == "global":
        attrs["stream"] = True
    low.emit("load", (loaded, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
    if some is part:
        return loaded
    every = low.fragment(memory.dtype, part.values)
    moving.pick(low, every, loaded, columns(part.dims, some.dims))
    return every


def _coordinates(axes: tuple[Dim | None, ...], places: Mapping[Dim, tuple[Expr, Expr | None]]) -> tuple[Expr, ...]:
    """Return the coordinate of an operation along each axis; 0 along axes without a place."""
    return tuple(as_expr(0) if d is None or d not in places else places[d][0] for d in axes)


def _without_broadcast_dims(low: Waves, memory: Any, axes: tuple[Dim | None, ...], part: Window) -> Window:
    """Return the window without dimensions along which memory is broadcast, so that each element is loaded once.

    Only dimensions of which a lane has all elements are left out.
    """
    lane, v = low.axes(part.values)
    places = part.places(low, lane, v)
    here = memory.at(_coordinates(axes, places))
    kept = []
    for d, whole, turn in zip(part.dims, part.whole, part.turns, strict=True):
        alone = whole.threads == 1 and whole.rounds > 1 and places[whole][1] is None
        moved = {**places, whole: (as_expr(0), None)}
        without = memory.at(_coordinates(axes, moved)) if alone else None
        if without is None or without.offset is not here.offset or without.conditions != here.conditions:
            kept.append((d, whole, turn))
    if len(kept) == len(part.dims):
        return part
    dims, every, turns = ((), (), ()) if not kept else zip(*kept, strict=True)
    return Window(tuple(dims), tuple(every), tuple(turns), part.past)


def _shifting(low: Waves, value: Value, axes: tuple[Dim | None, ...]) -> list[Dim]:
    """Return the dimensions of an operation that shift the coordinates of a tensor in registers (a sliding window)."""
    shifts = [x for x in low.frames.through(value) or () if isinstance(x, Shifted)]
    moved = [axes[axis] for x in shifts for axis, _ in x.steps]
    return [d for d in moved if d is not None]


def _from_window(
    low: Waves, handle: Spread, dims: Dims, axes: tuple[Dim | None, ...], through: Sequence[Seen]
) -> Value:
    """Return a lane's values of a register tensor seen through a shifted view; which values they are is known here."""
    counted = digits(dims)
    extents = [n for _, _, n in counted]
    grid = np.indices(extents).reshape(len(counted), prod(extents))  # of one value, where there are no digits
    places = {(d, fast): row for (d, fast, _), row in zip(counted, grid, strict=True)}
    shifted: dict[tuple[Dim, bool], Any] = {}

    def along(d: Dim) -> Any:
        return places[d, False] * d.width + places.get((d, True), 0)

    for d, seen in zip(handle.dims, through, strict=True):
        if d is not None and isinstance(seen, Shifted):
            moved = [(axes[axis], step) for axis, step in seen.steps]
            at = seen.first + sum(step * along(axis) for axis, step in moved if axis is not None)
            shifted[d, False], shifted[d, True] = np.divmod(at, d.width)
    number = np.zeros(grid.shape[1], np.int64)
    for d, fast, n in digits(handle.own):
        number = number * n + (shifted if (d, fast) in shifted else places)[d, fast]
    picked = low.fragment(handle.dtype, held(dims))
    moving.pick(low, picked, handle.fragment, number)
    return picked


def expanded(low: Waves, handle: Spread, dims: Dims, own: Dims) -> Value:
    """Return a tensor's values, each repeated along the dimensions that it lacks; `own` are those that it has."""
    if tuple(own) == tuple(dims):
        return handle.fragment
    picked = low.fragment(handle.dtype, held(dims))
    moving.pick(low, picked, handle.fragment, columns(dims, own))
    return picked


def stored(
    low: Waves, source: Value, memory: Any, axes: tuple[Dim | None, ...], part: Window, again: bool = False
) -> None:
    """Emit the store of a lane's values; of lanes that have the same element, the first stores.

    `again`: waves meet before, as all lanes have read the memory.
    """
    lane, v = low.axes(part.values)
    places = part.places(low, lane, v)
    where = memory.at(tuple(as_expr(0) if d is None else places[d][0] for d in axes))
    inside, alone = [c for _, c in places.values() if c is not None], first(low, part.whole, lane)
    if again and alone:
        low.meet()
    condition = both((*inside, *alone, *where.conditions))
    attrs: dict[str, Any] = {} if condition is None else {"when": condition}
    low.emit("store", (source, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
    low.written(memory)


def first(low: Waves, dims: Dims, lane: Symbol) -> list[Expr]:
    """Return conditions that a lane is the first of those with the same coordinates."""
    taken = 0
    for d in dims:
        taken |= (d.threads - 1) * d.stride
    conditions: list[Expr] = []
    bit, threads = 1, low.lanes * low.group.waves
    while bit < threads:
        if taken & bit:
            bit *= 2
            continue
        run = bit
        while run < threads and not taken & run and (run < low.lanes) == (bit < low.lanes):
            run *= 2
        number, step = (lane, bit) if bit < low.lanes else (low.group.wave, bit // low.lanes)
        conditions.append(number // step % (run // bit) < 1)
        bit = run
    return conditions


# -- along a dimension --------------------------------------------------------------------------------------------


def reduce(low: Waves, op: Op) -> None:
    """Lower `reduce` over a distributed dimension: within a lane, then over lanes, then over waves."""
    source, target = op.operands
    axes, along = low.frames.axes[op], op.attrs["along"]
    dims, gone = tuple(d for d in axes if d is not None), axes[along]
    kept = tuple(d for d in dims if d is not gone)
    function = op.attrs["with"]
    kind = source.type.dtype.accumulator if function in ("sum", "prod") else source.type.dtype
    together = Formula(COMBINING[function], (Formula.operand(1), Formula.operand(2)))
    total = _lane_totals(low, op, axes, dims, gone, kind, together)
    if gone is not None and gone.threads > 1:
        _over_lanes(low, gone, total, held(kept), together)
        _over_waves(low, op, gone, kept, total, together)
    into = low.handles[low.frames.root(target)]
    result = into.fragment if isinstance(into, Spread) else low.fragment(target.type.dtype, held(kept))
    rest = tuple(axes[i] for i in operand_axes(op, 1))
    if op.attrs.get("accumulate"):
        before = cast(low, fetched(low, op, target, rest, window(kept)), kind)
        low.emit("compute", (total, before, total), formula=together)
    formula = Formula.operand(1)
    low.emit("compute", (result, total), formula=formula if kind is target.type.dtype else to_type(target.type.dtype))
    if not isinstance(into, Spread):
        stored(low, result, low.handles[target], rest, window(kept), bool(op.attrs.get("accumulate")))


def to_type(kind: DType) -> Formula:
    """Return the formula of the operand cast to a type."""
    return Formula.cast(kind, Formula.operand(1))


def cast(low: Waves, value: Value, kind: DType) -> Value:
    """Return a fragment's values in another type; the fragment itself if it has this type."""
    if value.type.dtype is kind:
        return value
    converted = low.fragment(kind, int(value.type.shape[1]))
    low.emit("compute", (converted, value), formula=to_type(kind))
    return converted


def _lane_totals(
    low: Waves, op: Op, axes: tuple[Dim | None, ...], dims: Dims, gone: Dim | None, kind: DType, together: Formula
) -> Value:
    """Return a fragment with what each lane has of its rows, combined."""
    source, kept = op.operands[0], tuple(d for d in dims if d is not gone)
    neutral = general.neutral(op.attrs["with"], kind)
    fixed = set(dims) if isinstance(low.handles[low.frames.root(source)], Spread) else set(kept)
    total = low.fragment(kind, held(kept))
    most = low.target.lane_access.loads_in_flight
    looped = held(dims) > most and gone is not None and gone not in fixed and gone.rounds > 1
    if looped:
        low.emit("fill", (total,), value=neutral)

    def part(now: Window) -> None:
        values = cast(low, fetched(low, op, source, axes, now), kind)
        if gone is not None:
            values = masked(low, values, now, gone, neutral)
        left = tuple(d for d, whole in zip(now.dims, now.whole, strict=True) if whole is not gone)
        some = _within(low, values, now.dims, left, together)
        if looped:
            low.emit("compute", (total, total, some), formula=together)
        else:
            low.emit("compute", (total, some), formula=Formula.operand(1))

    _in_parts(low, dims, fixed, part, most)
    return total


def masked(low: Waves, values: Value, now: Window, gone: Dim, neutral: float) -> Value:
    """Return the values of a window (part of the dimensions) with `neutral` for those past the end of the dimension
    `gone`.
    """
    lane, v = low.axes(now.values)
    inside = now.places(low, lane, v)[gone][1]
    if inside is None:
        return values
    chosen_values = low.fragment(values.type.dtype, now.values)
    is_inside = Formula("ne", (Formula("index", (), inside), Formula.number(0)))
    chosen = Formula("select", (is_inside, Formula.operand(1), Formula.number(neutral)))
    low.emit("compute", (chosen_values, values), over=(lane, v), formula=chosen)
    return chosen_values


def _within(low: Waves, values: Value, dims: Dims, kept: Dims, together: Formula) -> Value:
    """Return a lane's values combined in pairs, one for each row."""
    rows = columns(dims, kept)
    count = held(kept)
    if len(rows) == count:
        return values
    return _in_pairs(low, values, np.argsort(rows, kind="stable").reshape(count, -1).T, together)


def _in_pairs(low: Waves, values: Value, rows: Any, together: Formula) -> Value:
    """Return fragments of `values` combined in pairs, neighbours first; each row of `rows` lists the values of one
    fragment.
    """
    parts = []
    for mine in rows:
        part = low.fragment(values.type.dtype, len(mine))
        moving.pick(low, part, values, mine)
        parts.append(part)
    while len(parts) > 1:
        for i in range(0, len(parts) - 1, 2):
            low.emit("compute", (parts[i], parts[i], parts[i + 1]), formula=together)
        parts = parts[::2]
    return parts[0]


def _over_lanes(low: Waves, gone: Dim, total: Value, count: int, together: Formula) -> None:
    """Emit the combination of lanes that share a row, by shuffles."""
    bit = gone.stride
    while bit < min(low.lanes, gone.stride * gone.threads):
        other = low.fragment(total.type.dtype, count)
        moving.pick(low, other, total, np.arange(count), bit)
        low.emit("compute", (total, total, other), formula=together)
        bit *= 2


def _over_waves(low: Waves, op: Op, gone: Dim, kept: Dims, total: Value, together: Formula) -> None:
    """Emit the combination of waves that share a row, through shared memory.

    The first lane of each row stores, all lanes of the row load; only those of the first wave if just that wave stores
    the result.
    """
    waves = low.frames.waves_between(op)
    if waves <= 1:
        return
    stride = max(1, gone.stride // low.lanes)
    lanes = min(low.lanes, gone.stride)  # lanes of a wave that have rows of their own
    count = held(kept)
    scratch = general.scratch(low, (op, "waves"), total.type.dtype, (low.group.waves, lanes, count))
    wave = low.group.wave
    if op not in low.frames.followed:
        low.meet()  # what was told the last time is known to all
    lane, v = low.axes(count)
    attrs: dict[str, Any] = {"when": lane < lanes} if lanes < low.lanes else {}
    at = scratch.at((wave, lane % lanes, v)).offset
    low.emit("store", (total, scratch.buffer), over=(lane, v), at=(at,), **attrs)
    low.written(scratch)
    low.meet()
    mine = wave // stride % waves
    told = [wave - mine * stride + n * stride for n in range(waves)]
    if op in low.frames.stored:
        with low.when(mine < 1):
            _from_waves(low, scratch, total, count, lanes, told, together)
    else:
        _from_waves(low, scratch, total, count, lanes, told, together)


def _from_waves(
    low: Waves, scratch: Any, total: Value, count: int, lanes: int, waves: Sequence[Expr], together: Formula
) -> None:
    """Emit the loads and the combination of the totals that `waves` stored, a few at once, by wide loads."""
    at_once = max(1, low.target.lane_access.loads_in_flight // count)
    for first in range(0, len(waves), at_once):
        some = waves[first : first + at_once]
        lane, v = low.axes(len(some) * count)
        step = some[1] - some[0] if len(some) > 1 else as_expr(0)
        at = scratch.at((some[0] + v // count * step, lane % lanes, v % count)).offset
        loaded = low.fragment(total.type.dtype, len(some) * count)
        low.emit("load", (loaded, scratch.buffer), over=(lane, v), at=(at,))
        parts = _in_pairs(low, loaded, np.arange(len(some) * count).reshape(len(some), count), together)
        formula = together if first else Formula.operand(2)
        low.emit("compute", (total, total, parts), formula=formula)
