"""Operations on tensors distributed over lanes: each lane computes the elements that it holds.

`analysis/thread_layout` decides which tensors are distributed, and how.

A reduction combines a lane's own values first, then lanes by shuffles, then waves through shared memory. The order is
the same in all lanes, so that all of them have the same result and none has to send it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.analysis.shifted import Seen, Shifted
from tilewright.analysis.thread_layout import Dim, Dims, digits, held, matching_values, operand_axes, target_number
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.lower.gpu import copies, general
from tilewright.lower.gpu.register_tensors import conjunction
from tilewright.lower.gpu.wave_lowering import WaveLowering

COMBINING = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}


@dataclass(frozen=True, eq=False)
class DistributedTensor:
    """A tensor in registers: `dims` says for each dimension how it is distributed over lanes (None: an extent of 1),
    and `fragment` has each lane's values.
    """

    dtype: DType
    dims: tuple[Dim | None, ...]
    fragment: Value

    @property
    def held_dims(self) -> Dims:
        """The dimensions that are distributed over lanes: all but those of extent 1, in order."""
        return tuple(d for d in self.dims if d is not None)


@dataclass(frozen=True)
class Window:
    """The elements of some distributed dimensions that are computed at once. A loop along a dimension takes a few of
    each lane's vectors at a time.
    """

    dims: Dims
    """The dimensions, with extents of only the vectors that are computed at once."""
    full_dims: Dims
    first_vectors: tuple[Expr, ...]
    """The index of the first of these vectors in a lane, for each dimension."""
    may_overrun: bool = False
    """True if its last vectors may lie past the end of a dimension."""

    @property
    def values(self) -> int:
        """The number of elements of the window that each lane has, elements past the end included."""
        return held(self.dims)

    def coordinates(self, low: WaveLowering, lane: Symbol, v: Symbol) -> dict[Dim, tuple[Expr, Expr | None]]:
        """Return {dimension of `full_dims`: (coordinate, condition)} for value number `v` of lane `lane`, as
        expressions of these two symbols. `condition` says that the coordinate is in bounds; None if it always is.
        """
        place_of: dict[Dim, tuple[Expr, Expr | None]] = {}
        digit_of: dict[tuple[Dim, bool], Expr] = {}
        rest: Expr = v
        for d, fast, n in reversed(digits(self.dims)):
            digit_of[d, fast] = rest % n
            rest = rest // n
        for d, full, first_vector in zip(self.dims, self.full_dims, self.first_vectors, strict=True):
            thread = full.thread_index(low.group.wave, lane, low.lanes)
            vector = thread + full.threads * (first_vector + digit_of[d, False])
            inside = vector < -(-full.extent // full.width) if full.ragged or self.may_overrun else None
            place_of[full] = vector * full.width + digit_of.get((d, True), as_expr(0)), inside
        return place_of


def window(dims: Dims) -> Window:
    """Return the Window that covers the dimensions `dims` completely."""
    return Window(dims, dims, (as_expr(0),) * len(dims))


def alloc(low: WaveLowering, op: Op) -> None:
    """Lower `alloc` of a tensor that the thread-layout analysis distributed over lanes: emit the allocation of a
    fragment for each lane's values, and record it as a DistributedTensor.
    """
    kind, result = op.attrs["type"], op.results[0]
    dims = low.frames.tensors[result]
    dims_held = tuple(d for d in dims if d is not None)
    low.handles[result] = DistributedTensor(kind.dtype, dims, low.fragment(kind.dtype, held(dims_held), result.name))


def lower_distributed(low: WaveLowering, op: Op) -> None:
    """Lower `op`, a `reduce`, `map`, `copy` or `fill` with axes that the thread-layout analysis distributed
    over lanes.
    """
    if op.name == "reduce":
        reduce(low, op)
    else:
        map_(low, op)


# -- element by element -------------------------------------------------------------------------------------------


def map_(low: WaveLowering, op: Op) -> None:
    """Lower a `map`, `copy` or `fill` with axes distributed over lanes: each lane computes the elements that it holds.
    Along dimensions that no register tensor has, loops take a few elements at a time, to limit the loads in flight.
    """
    axes = low.frames.axes[op]
    dims = tuple(d for d in axes if d is not None)
    handle_of = {v: low.handles[low.frames.root(v)] for v in op.operands}
    registers = {d for s in handle_of.values() if isinstance(s, DistributedTensor) for d in s.held_dims}
    target = op.operands[target_number(op)]
    registers |= {
        d for v, s in handle_of.items() if isinstance(s, DistributedTensor) for d in _shifting_dims(low, v, axes)
    }
    loaded_bytes = sum(
        v.type.dtype.numpy.itemsize
        for v, s in handle_of.items()
        if v is not target and not isinstance(s, DistributedTensor)
    )

    def emit_part(window: Window) -> None:
        """Emit the operation for one window of elements."""
        _emit_window(low, op, axes, window)

    loads_in_flight, word_bytes = low.target.lane_access.loads_in_flight, low.target.register_file.word_bytes
    _in_parts(low, dims, registers, emit_part, max(1, loads_in_flight * word_bytes // max(word_bytes, loaded_bytes)))


def _in_parts(
    low: WaveLowering, dims: Dims, fixed: set[Dim], emit_part: Callable[[Window], None], max_values: int
) -> None:
    """Call `emit_part(window)` for windows that together cover the dimensions `dims`. If a lane has at most
    `max_values` values, it is one window. Otherwise loops are emitted along dimensions that are not in `fixed`, and
    each window has a few of a lane's vectors along these dimensions.
    """

    def split(window_now: Window, free_dims: list[Dim]) -> None:
        """Emit parts of `window_now`, split along the first of `free_dims` if it has too many values."""
        at_once, others = 0, 1
        if free_dims:
            others = window_now.values // (free_dims[0].vectors * free_dims[0].width)
            at_once = max(1, max_values // max(1, others * free_dims[0].width))
        if window_now.values <= max_values or not free_dims:
            emit_part(window_now)
            return
        first, *rest = free_dims

        def emit_loop_body(vectors: int, turn: Expr) -> None:
            """Emit the part with `vectors` vectors of the split dimension, from vector number `turn` on."""
            shorter = replace(first, extent=vectors * first.width * first.threads)
            changed = [
                (shorter, turn) if full is first else (d, t)
                for d, full, t in zip(window_now.dims, window_now.full_dims, window_now.first_vectors, strict=True)
            ]
            split(Window(tuple(d for d, _ in changed), window_now.full_dims, tuple(t for _, t in changed)), rest)

        full_count, rest_count = divmod(first.vectors, min(at_once, first.vectors))
        with low.loop("turn", 0, full_count) as turn:
            emit_loop_body(min(at_once, first.vectors), turn * min(at_once, first.vectors))
        if rest_count:
            emit_loop_body(rest_count, as_expr(full_count * at_once))

    split(window(dims), sorted((d for d in dims if d not in fixed and d.vectors > 1), key=lambda d: -d.vectors))


def _emit_window(low: WaveLowering, op: Op, axes: tuple[Dim | None, ...], window: Window) -> None:
    """Emit a `map`, `copy` or `fill` for the elements of `window`: load or rearrange the sources, compute the formula,
    and keep the result in registers or store it to memory. `axes` are the dimensions of the axes of `op` (None: extent
    1).
    """
    sources, target = (op.operands[:1], op.operands[1]) if op.name == "copy" else (op.operands[1:], op.operands[0])
    if op.name == "fill":
        sources = ()
    lane, v = low.axes(window.values)
    place_of = window.coordinates(low, lane, v)
    coordinates = tuple(as_expr(0) if d is None else place_of[d][0] for d in axes)
    operands = [load_window(low, op, value, axes, window, op.attrs.get("otherwise")) for value in sources]
    handle = low.handles[low.frames.root(target)]
    if isinstance(handle, DistributedTensor):
        result = handle.fragment
    else:
        result = low.fragment(target.type.dtype, window.values)
    if op.name == "fill":
        low.emit("fill", (result,), value=op.attrs["value"])
    elif op.name == "copy":
        low.emit("compute", (result, *operands), formula=Formula.operand(1))
    else:
        with low.means(dict(zip(op.attrs.get("over", ()), coordinates, strict=False))):
            formula: Formula = op.attrs["formula"].mapped(low.expr)
        low.emit("compute", (result, *operands), over=(lane, v), formula=formula)
    if not isinstance(handle, DistributedTensor):
        reads_target = any(low.frames.root(v) is low.frames.root(target) for v in sources)
        store_window(low, result, low.handles[target], axes, window, reads_target)


def load_window(
    low: WaveLowering, op: Op, value: Value, axes: tuple[Dim | None, ...], window: Window, otherwise: Any = None
) -> Value:
    """Return a fragment with each lane's values of `value`, an operand of `op`, over `window`. `axes` are the
    dimensions of the axes of `op` (None: extent 1). A tensor in registers is shuffled within lanes, if needed. A tensor
    in memory is loaded, with `otherwise` for elements out of bounds (None: 0).
    """
    handle = low.handles[low.frames.root(value)]
    if isinstance(handle, DistributedTensor):
        through = low.frames.through(value)
        assert through is not None
        if any(isinstance(x, Shifted) for x in through):
            return _from_shifted(low, handle, window.dims, axes, through)
        dims_seen = tuple(d for d, axis in zip(handle.dims, through, strict=True) if d is not None and axis is not None)
        return expanded(low, handle, window.dims, dims_seen)
    memory = low.handles[value]
    distinct = _without_broadcast_dims(low, memory, axes, window)
    lane, v = low.axes(distinct.values)
    places = distinct.coordinates(low, lane, v)
    where = memory.at(_coordinates(axes, places))
    in_bounds = [inside for _, inside in places.values() if inside is not None]
    condition = conjunction((*in_bounds, *where.conditions))
    loaded = low.fragment(memory.dtype, distinct.values)
    attrs: dict[str, Any] = {} if condition is None else {"when": condition, "otherwise": otherwise or 0}
    stream = op.attrs.get("stream")
    if stream is not None and int(low.expr(stream)) and where.buffer.type.space == "global":
        attrs["stream"] = True
    low.emit("load", (loaded, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
    if distinct is window:
        return loaded
    repeated = low.fragment(memory.dtype, window.values)
    copies.shuffle(low, repeated, loaded, matching_values(window.dims, distinct.dims))
    return repeated


def _coordinates(axes: tuple[Dim | None, ...], places: Mapping[Dim, tuple[Expr, Expr | None]]) -> tuple[Expr, ...]:
    """Return the coordinate along each axis of an operation: that of the axis's dimension in `places`, {dimension:
    (coordinate, condition)}. Conditions are ignored. `axes` are the dimensions of the axes. The coordinate is 0 for
    None (extent 1), and for a dimension that `places` lacks.
    """
    return tuple(as_expr(0) if d is None or d not in places else places[d][0] for d in axes)


def _without_broadcast_dims(low: WaveLowering, memory: Any, axes: tuple[Dim | None, ...], window: Window) -> Window:
    """Return `window` without the dimensions along which `memory` has the same element everywhere, so that a lane loads
    it once; `window` itself if there are none. `axes` are the dimensions of the operation's axes (None: extent 1).

    Only dimensions of which a lane has several elements are left out. Other lanes along such a dimension, and lanes
    past its end, load the same element.
    """
    lane, v = low.axes(window.values)
    places = window.coordinates(low, lane, v)
    address = memory.at(_coordinates(axes, places))
    kept_dims = []
    for d, full, turn in zip(window.dims, window.full_dims, window.first_vectors, strict=True):
        at_zero = {**places, full: (as_expr(0), None)}
        address_at_zero = memory.at(_coordinates(axes, at_zero)) if held((d,)) > 1 else None
        if (
            address_at_zero is None
            or address_at_zero.offset is not address.offset
            or address_at_zero.conditions != address.conditions
        ):
            kept_dims.append((d, full, turn))
    if len(kept_dims) == len(window.dims):
        return window
    dims, every, turns = ((), (), ()) if not kept_dims else zip(*kept_dims, strict=True)
    return Window(tuple(dims), tuple(every), tuple(turns), window.may_overrun)


def _shifting_dims(low: WaveLowering, value: Value, axes: tuple[Dim | None, ...]) -> list[Dim]:
    """Return the dimensions in `axes` that are in a shifted coordinate (i + 2*j + 1, as in a sliding window) at which
    an operation reads the register tensor `value`; [] if there is no such coordinate. `axes` are the dimensions of the
    operation's axes (None: extent 1).
    """
    shifts = [x for x in low.frames.through(value) or () if isinstance(x, Shifted)]
    moved = [axes[axis] for x in shifts for axis, _ in x.steps]
    return [d for d in moved if d is not None]


def _from_shifted(
    low: WaveLowering, handle: DistributedTensor, dims: Dims, axes: tuple[Dim | None, ...], through: Sequence[Seen]
) -> Value:
    """Emit a shuffle within lanes of a register tensor (`handle`) that is read at shifted coordinates (i + 2*j + 1, as
    in a sliding window), and return a fragment with each lane's values over `dims`.

    `axes` are the dimensions of the operation's axes (None: extent 1). `through` has, for each dimension of the tensor,
    the number of the axis that is its coordinate, a Shifted sum of axes, or None (extent 1).
    """
    counted = digits(dims)
    extents = [n for _, _, n in counted]
    grid = np.indices(extents).reshape(len(counted), prod(extents))  # of one value, where there are no digits
    places = {(d, fast): row for (d, fast, _), row in zip(counted, grid, strict=True)}
    shifted: dict[tuple[Dim, bool], Any] = {}

    def along(d: Dim) -> Any:
        """Return a table of the coordinates of a lane's elements along `d`, relative to the lane's first."""
        return places[d, False] * d.width + places.get((d, True), 0)

    for d, axis_or_shift in zip(handle.dims, through, strict=True):
        if d is not None and isinstance(axis_or_shift, Shifted):
            moved = [(axes[axis], step) for axis, step in axis_or_shift.steps]
            at = axis_or_shift.first + sum(step * along(axis) for axis, step in moved if axis is not None)
            shifted[d, False], shifted[d, True] = np.divmod(at, d.width)
    number = np.zeros(grid.shape[1], np.int64)
    for d, fast, n in digits(handle.held_dims):
        number = number * n + (shifted if (d, fast) in shifted else places)[d, fast]
    picked = low.fragment(handle.dtype, held(dims))
    copies.shuffle(low, picked, handle.fragment, number)
    return picked


def expanded(low: WaveLowering, handle: DistributedTensor, dims: Dims, tensor_dims: Dims) -> Value:
    """Return a fragment with the values of the register tensor `handle` repeated to the dimensions `dims`.
    `tensor_dims` are the dimensions of the tensor, some of `dims`. Emit a shuffle within lanes; if both are equal, emit
    nothing and return the tensor's fragment.
    """
    if tuple(tensor_dims) == tuple(dims):
        return handle.fragment
    picked = low.fragment(handle.dtype, held(dims))
    copies.shuffle(low, picked, handle.fragment, matching_values(dims, tensor_dims))
    return picked


def store_window(
    low: WaveLowering,
    source: Value,
    memory: Any,
    axes: tuple[Dim | None, ...],
    window: Window,
    reads_target: bool = False,
) -> None:
    """Emit the store of the fragment `source` to `memory`, at the elements of `window`. `axes` are the dimensions of
    the operation's axes (None: extent 1). An element that several lanes have is stored by the first of them.

    `reads_target` says that the operation also reads this memory. If several lanes have one element, the waves then
    synchronise before the store.
    """
    lane, v = low.axes(window.values)
    places = window.coordinates(low, lane, v)
    where = memory.at(tuple(as_expr(0) if d is None else places[d][0] for d in axes))
    bounds, first_conditions = (
        [c for _, c in places.values() if c is not None],
        first_lane_conditions(low, window.full_dims, lane),
    )
    if reads_target and first_conditions:
        low.sync_waves()
    condition = conjunction((*bounds, *first_conditions, *where.conditions))
    attrs: dict[str, Any] = {} if condition is None else {"when": condition}
    low.emit("store", (source, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
    low.note_stored(memory)


def first_lane_conditions(low: WaveLowering, dims: Dims, lane: Symbol) -> list[Expr]:
    """Return conditions under which a lane is the first of the lanes that have the same elements of a tensor
    distributed as `dims`; all of them must hold. Return [] if no two lanes have the same elements. The conditions are
    expressions of the symbol `lane` and of the wave's number.
    """
    distributed_bits = 0
    for d in dims:
        distributed_bits |= (d.threads - 1) * d.stride
    conditions: list[Expr] = []
    bit, threads = 1, low.lanes * low.group.waves
    while bit < threads:
        if distributed_bits & bit:
            bit *= 2
            continue
        next_bit = bit
        while next_bit < threads and not distributed_bits & next_bit and (next_bit < low.lanes) == (bit < low.lanes):
            next_bit *= 2
        number, step = (lane, bit) if bit < low.lanes else (low.group.wave, bit // low.lanes)
        conditions.append(number // step % (next_bit // bit) < 1)
        bit = next_bit
    return conditions


# -- along a dimension --------------------------------------------------------------------------------------------


def reduce(low: WaveLowering, op: Op) -> None:
    """Lower `reduce` of a tensor that is distributed over lanes: emit the combination of values within each lane, then
    of lanes by shuffles, then of waves through shared memory. The result is stored to memory, or stays in registers.
    With the attribute `accumulate`, it is combined with the target's old elements.
    """
    source, target = op.operands
    axes, along = low.frames.axes[op], op.attrs["along"]
    dims, reduced = tuple(d for d in axes if d is not None), axes[along]
    row_dims = tuple(d for d in dims if d is not reduced)
    function = op.attrs["with"]
    kind = source.type.dtype.accumulator if function in ("sum", "prod") else source.type.dtype
    combination = Formula(COMBINING[function], (Formula.operand(1), Formula.operand(2)))
    total = _lane_totals(low, op, axes, dims, reduced, kind, combination)
    if reduced is not None and reduced.threads > 1:
        _combine_lanes(low, reduced, total, held(row_dims), combination)
        _combine_waves(low, op, reduced, row_dims, total, combination)
    into = low.handles[low.frames.root(target)]
    result = into.fragment if isinstance(into, DistributedTensor) else low.fragment(target.type.dtype, held(row_dims))
    target_axes = tuple(axes[i] for i in operand_axes(op, 1))
    if op.attrs.get("accumulate"):
        old = cast(low, load_window(low, op, target, target_axes, window(row_dims)), kind)
        low.emit("compute", (total, old, total), formula=combination)
    formula = Formula.operand(1)
    low.emit("compute", (result, total), formula=formula if kind is target.type.dtype else to_type(target.type.dtype))
    if not isinstance(into, DistributedTensor):
        store_window(low, result, low.handles[target], target_axes, window(row_dims), bool(op.attrs.get("accumulate")))


def to_type(kind: DType) -> Formula:
    """Return the formula that converts operand 1 to the element type `kind`."""
    return Formula.cast(kind, Formula.operand(1))


def cast(low: WaveLowering, value: Value, kind: DType) -> Value:
    """Emit the conversion of the fragment `value` to the element type `kind`, and return the new fragment. Return
    `value` itself if it has this type.
    """
    if value.type.dtype is kind:
        return value
    converted = low.fragment(kind, int(value.type.shape[1]))
    low.emit("compute", (converted, value), formula=to_type(kind))
    return converted


def _lane_totals(
    low: WaveLowering,
    op: Op,
    axes: tuple[Dim | None, ...],
    dims: Dims,
    reduced: Dim | None,
    kind: DType,
    combination: Formula,
) -> Value:
    """Emit the combination of each lane's values along the dimension `reduced` (None: extent 1) of the reduction `op`,
    and return a fragment with one total per row, of the type `kind`. `combination` is the formula that combines
    operands 1 and 2. `dims` are the distributed dimensions of the source, `axes` the dimensions of all its axes (None:
    extent 1).
    """
    source, row_dims = op.operands[0], tuple(d for d in dims if d is not reduced)
    neutral = general.neutral(op.attrs["with"], kind)
    fixed = set(dims) if isinstance(low.handles[low.frames.root(source)], DistributedTensor) else set(row_dims)
    total = low.fragment(kind, held(row_dims))
    max_values = low.target.lane_access.loads_in_flight
    looped = held(dims) > max_values and reduced is not None and reduced not in fixed and reduced.vectors > 1
    if looped:
        low.emit("fill", (total,), value=neutral)

    def emit_part(window: Window) -> None:
        """Emit the combination of a lane's values in `window` with the totals so far."""
        values = cast(low, load_window(low, op, source, axes, window), kind)
        if reduced is not None:
            values = masked(low, values, window, reduced, neutral)
        left_dims = tuple(d for d, full in zip(window.dims, window.full_dims, strict=True) if full is not reduced)
        totals = _combine_within_lane(low, values, window.dims, left_dims, combination)
        if looped:
            low.emit("compute", (total, total, totals), formula=combination)
        else:
            low.emit("compute", (total, totals), formula=Formula.operand(1))

    _in_parts(low, dims, fixed, emit_part, max_values)
    return total


def masked(low: WaveLowering, values: Value, window: Window, reduced: Dim, neutral: float) -> Value:
    """Emit a copy of the fragment `values`, which has the elements of `window`. In the copy, values past the end of the
    dimension `reduced` are `neutral`. Return the copy; return `values` itself if all are in bounds.
    """
    lane, v = low.axes(window.values)
    in_bounds = window.coordinates(low, lane, v)[reduced][1]
    if in_bounds is None:
        return values
    masked_values = low.fragment(values.type.dtype, window.values)
    is_inside = Formula("ne", (Formula("index", (), in_bounds), Formula.number(0)))
    selection = Formula("select", (is_inside, Formula.operand(1), Formula.number(neutral)))
    low.emit("compute", (masked_values, values), over=(lane, v), formula=selection)
    return masked_values


def _combine_within_lane(low: WaveLowering, values: Value, dims: Dims, row_dims: Dims, combination: Formula) -> Value:
    """Emit the combination of each lane's `values` over `dims`, in pairs, and return a fragment with one value per row.
    `row_dims` are the dimensions that are not reduced. `combination` is the formula that combines operands 1 and 2.
    Return `values` itself if each row has one value.
    """
    rows = matching_values(dims, row_dims)
    count = held(row_dims)
    if len(rows) == count:
        return values
    return _combine_in_pairs(low, values, np.argsort(rows, kind="stable").reshape(count, -1).T, combination)


def _combine_in_pairs(low: WaveLowering, values: Value, rows: Any, combination: Formula) -> Value:
    """Emit the combination, element by element, of parts of the fragment `values`, and return a fragment with as many
    values as one part. Each row of the table `rows` lists the indices of the values of one part. `combination` is the
    formula that combines operands 1 and 2. Adjacent parts are combined first: ((a b) (c d)).
    """
    parts = []
    for columns_of_part in rows:
        part = low.fragment(values.type.dtype, len(columns_of_part))
        copies.shuffle(low, part, values, columns_of_part)
        parts.append(part)
    while len(parts) > 1:
        for i in range(0, len(parts) - 1, 2):
            low.emit("compute", (parts[i], parts[i], parts[i + 1]), formula=combination)
        parts = parts[::2]
    return parts[0]


def _combine_lanes(low: WaveLowering, reduced: Dim, total: Value, count: int, combination: Formula) -> None:
    """Emit shuffles that combine the fragment `total`, in place, with the totals of the other lanes of the wave that
    have the same rows; afterwards all these lanes have the result. `reduced` is the dimension that is divided among
    lanes, `count` the number of rows per lane, and `combination` the formula that combines operands 1 and 2.
    """
    bit = reduced.stride
    while bit < min(low.lanes, reduced.stride * reduced.threads):
        other = low.fragment(total.type.dtype, count)
        copies.shuffle(low, other, total, np.arange(count), bit)
        low.emit("compute", (total, total, other), formula=combination)
        bit *= 2


def _combine_waves(low: WaveLowering, op: Op, reduced: Dim, row_dims: Dims, total: Value, combination: Formula) -> None:
    """Emit the combination of the fragment `total`, in place, with the totals of the other waves that have the same
    rows, through shared memory. Nothing is emitted if each row is in one wave. If the result of `op` is only stored to
    memory, only the first wave of a row combines.

    `reduced` is the dimension that is divided among waves, and `row_dims` are the other dimensions. `combination` is
    the formula that combines operands 1 and 2.
    """
    waves = low.frames.waves_per_row(op)
    if waves <= 1:
        return
    stride = max(1, reduced.stride // low.lanes)
    lanes = min(low.lanes, reduced.stride)  # lanes of a wave that have rows of their held_dims
    count = held(row_dims)
    scratch = general.scratch(low, (op, "waves"), total.type.dtype, (low.group.waves, lanes, count))
    wave = low.group.wave
    if op not in low.frames.followed:
        low.sync_waves()  # all waves have read the totals of the previous exchange
    lane, v = low.axes(count)
    attrs: dict[str, Any] = {"when": lane < lanes} if lanes < low.lanes else {}
    at = scratch.at((wave, lane % lanes, v)).offset
    low.emit("store", (total, scratch.buffer), over=(lane, v), at=(at,), **attrs)
    low.note_stored(scratch)
    low.sync_waves()
    own_number = wave // stride % waves
    waves_of_row = [wave - own_number * stride + n * stride for n in range(waves)]
    if op in low.frames.stored:
        with low.when(own_number < 1):
            _combine_stored_totals(low, scratch, total, count, lanes, waves_of_row, combination)
    else:
        _combine_stored_totals(low, scratch, total, count, lanes, waves_of_row, combination)


def _combine_stored_totals(
    low: WaveLowering, scratch: Any, total: Value, count: int, lanes: int, waves: Sequence[Expr], combination: Formula
) -> None:
    """Emit the loads of the totals that the waves numbered `waves` have stored in the shared memory `scratch`, and
    their combination; the result is assigned to the fragment `total`. `count` is the number of rows per lane, `lanes`
    the number of lanes in a wave that have different rows, and `combination` the formula that combines operands 1 and
    2.
    """
    at_once = max(1, low.target.lane_access.loads_in_flight // count)
    for first in range(0, len(waves), at_once):
        waves_now = waves[first : first + at_once]
        lane, v = low.axes(len(waves_now) * count)
        step = waves_now[1] - waves_now[0] if len(waves_now) > 1 else as_expr(0)
        at = scratch.at((waves_now[0] + v // count * step, lane % lanes, v % count)).offset
        loaded = low.fragment(total.type.dtype, len(waves_now) * count)
        low.emit("load", (loaded, scratch.buffer), over=(lane, v), at=(at,))
        parts = _combine_in_pairs(
            low, loaded, np.arange(len(waves_now) * count).reshape(len(waves_now), count), combination
        )
        formula = combination if first else Formula.operand(2)
        low.emit("compute", (total, total, parts), formula=formula)
