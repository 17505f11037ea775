"""Allocations, views, fills and copies, distributed over lanes; asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_rules import maximum
from tilewright.algebra.expr_use import Substitution, ceildiv, evaluate
from tilewright.analysis.distribution import Placement, placement
from tilewright.analysis.flat_memory import PlacedMemory, PlacedView, Size, TensorAddress, sizes
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value
from tilewright.ir.tensors import RegisterType, TensorType
from tilewright.lower.gpu.asynchronous import is_bulk_copy, is_lane_copy
from tilewright.lower.gpu.channels import note_copy_out
from tilewright.lower.gpu.register_tensors import (
    RegisterTensor,
    RegisterValues,
    conjunction,
    matching_columns,
    row_major_indices,
    table_expression,
    threads_that_store,
)
from tilewright.lower.gpu.rings import Stage
from tilewright.lower.gpu.wave_lowering import WaveLowering
from tilewright.machine import RegisterOperand
from tilewright.machine.ends import both_ends, ends_within
from tilewright.machine.views import is_number, weight

InMemory = PlacedMemory | PlacedView


def alloc(low: WaveLowering, op: Op) -> None:
    """Lower `alloc` on a GPU: emit the allocation of fragments (each lane's registers) for a register tensor, or of
    shared memory of the workgroup for a tensor in memory. Memory of a ping-pong role is allocated twice, once for each
    half of the waves.
    """
    kind, result = op.attrs["type"], op.results[0]
    if isinstance(kind, RegisterType):
        low.handles[result] = registers(low, kind, result.name or "register")
        return
    size = kind.cosize()
    is_per_half = low.group.halves == 2
    period = 1 if kind.swizzle is None else kind.swizzle.size()
    size = -(-size // period) * period
    buffer_type = TensorType("shared", kind.dtype, (as_expr(size * (2 if is_per_half else 1)),), None, kind.swizzle)
    buffer = low.hoist((op, is_per_half), buffer_type, result.name or "shared")
    start = low.group.side * size if is_per_half else as_expr(0)
    low.handles[result] = PlacedMemory(buffer, kind.dtype, sizes(kind.shape), sizes(kind.steps), None, start)
    low.origins[buffer] = result


def registers(low: WaveLowering, kind: RegisterType, name: str) -> RegisterTensor:
    """Emit the allocation of fragments (each lane's registers) for a register tensor of type `kind`, and return them as
    a RegisterTensor, with the coordinates of their elements. There is one fragment for each atom of C, for each row of
    atoms of A, or for each column of atoms of B; one in all if `kind` has no atom's layout. The names of the fragments
    begin with `name`.

    Raise a ProgramError if `kind` is distributed over another number of threads than the current group of waves has.
    """
    spread = placement(kind, low.target)
    if spread.threads != low.lanes * low.group.waves:
        raise ProgramError(
            f"{kind} is spread over {spread.threads} threads; {low.group.waves} waves of {low.lanes} run it"
        )
    pieces = []
    for columns in _fragment_columns(low, kind, spread):
        fragment = low.fragment(kind.dtype, len(columns), name)
        coordinates = tuple(c[:, columns] for c in spread.coordinates)
        pieces.append(RegisterValues(fragment, tuple(range(len(columns))), coordinates, spread.first[:, columns]))
    return RegisterTensor(kind.dtype, spread.shape, tuple(pieces))


def _fragment_columns(low: WaveLowering, kind: RegisterType, spread: Placement) -> list[list[int]]:
    """Return, for each fragment of a register tensor of type `kind`, the list of values that the fragment holds, as
    indices among all values of a thread. `spread` is the layout of `kind`. The fragments are those that `registers`
    describes.
    """
    every = list(range(spread.values))
    if kind.distribution is None or kind.distribution.operand is None or low.target is None:
        return [every]
    name, _, which = kind.distribution.operand.rpartition(".")
    operand = getattr(low.target.multiply_atom(name), which)
    assert isinstance(operand, RegisterOperand)
    values_per_atom = operand.values
    atoms = [every[i : i + values_per_atom] for i in range(0, len(every), values_per_atom)]
    if which == "c":
        return atoms
    # one fragment has all of an operand's values along k: those of atoms with the same rows of A, or columns of B
    values_of: dict[int, list[int]] = {}
    for atom_values in atoms:
        values_of.setdefault(int(spread.coordinates[0 if which == "a" else 1][0, atom_values[0]]), []).extend(
            atom_values
        )
    return list(values_of.values())


def view(low: WaveLowering, op: Op) -> None:
    """Lower `view` on a GPU: record its result as coordinates in the viewed memory, or, for a register tensor, as the
    selected values. Nothing is emitted.
    """
    base = low.handles[op.operands[0]]
    shape = sizes(low.expr(e) for e in op.results[0].type.shape)
    if isinstance(base, RegisterTensor):
        low.handles[op.results[0]] = _view_of_registers(low, op, base, tuple(int(n) for n in shape))
        return
    over = tuple(low.axis(s.name, n) for s, n in zip(op.attrs["over"], shape, strict=True))
    with low.means(dict(zip(op.attrs["over"], over, strict=True))):
        places = tuple((low.expr(e), may_leave) for e, may_leave in op.attrs["at"])
    low.handles[op.results[0]] = PlacedView(base, base.dtype, shape, over, places)


def _view_of_registers(low: WaveLowering, op: Op, base: RegisterTensor, shape: tuple[int, ...]) -> RegisterTensor:
    """Return the elements of the register tensor `base` that the view `op` selects, as a register tensor with this
    `shape`. Nothing is emitted. Raise a ProgramError if a coordinate is not constant, or if some lanes hold more of the
    selected elements than others.
    """
    indices = np.indices(shape)
    names = {s.name: c for s, c in zip(op.attrs["over"], indices, strict=True)}
    at = []
    for e, _ in op.attrs["at"]:
        coordinate = low.expr(e)
        free_symbols = coordinate.symbols - set(op.attrs["over"])
        if free_symbols:
            raise ProgramError(
                f"view of registers at {coordinate}: which registers these are must be known when the program is "
                f"compiled; unroll the loop over {', '.join(sorted(s.name for s in free_symbols))}"
            )
        at.append(np.broadcast_to(np.asarray(evaluate(coordinate, names)), shape))
    view_index = np.full(prod(base.shape), -1)
    view_index[row_major_indices(tuple(at), base.shape)] = np.arange(prod(shape)).reshape(shape)
    pieces = []
    for piece in base.pieces:
        ids = view_index[base.ids(piece)]
        is_selected = (ids >= 0).all(axis=0)
        if ((ids >= 0).any(axis=0) != is_selected).any():
            raise ProgramError("view of registers: some lanes hold more of it than others; convert_layout first")
        columns = np.nonzero(is_selected)[0]
        if len(columns):
            pieces.append(piece.selected(columns, tuple(np.unravel_index(ids[:, columns], shape))))
    return RegisterTensor(base.dtype, shape, tuple(pieces))


# -- between fragments and memory -----------------------------------------------------------------------------


def values_of(low: WaveLowering, piece: RegisterValues) -> Value:
    """Return a fragment (each lane's registers) that has exactly the values of `piece` (some values of a fragment), in
    order. If these are all values of their fragment, return that fragment; otherwise emit a shuffle to a new one. A
    wait for MMAs that still write the fragment is emitted first.
    """
    low.mmas_in_flight.wait_for_registers(read=(piece.fragment,))
    if piece.whole:
        return piece.fragment
    picked = low.fragment(piece.fragment.type.dtype, len(piece.columns), piece.fragment.name)
    shuffle(low, picked, piece.fragment, np.asarray(piece.columns))
    return picked


def shuffle(low: WaveLowering, target: Value, source: Value, columns: Any, lane_bits: int = 0) -> None:
    """Emit a shuffle: value i of each lane in `target` becomes value columns[i] of the same lane in `source`. With
    `lane_bits`, it becomes that value of lane number `lane ^ lane_bits`.
    """
    lane, v = low.axes(len(columns))
    source_lane = lane ^ lane_bits if lane_bits else lane
    low.emit(
        "shuffle",
        (target, source),
        over=(lane, v),
        at=(source_lane, table_expression(np.asarray([columns]), 1, lane, lane, v)),
    )


def in_layout_of(
    low: WaveLowering, handle: Any, piece: RegisterValues, shape: tuple[int, ...], otherwise: float | None = None
) -> Value:
    """Return a fragment (each lane's registers) with elements of the tensor `handle`, which has this `shape`: `piece`
    gives the coordinates of each lane's values. For a tensor in registers, emit a shuffle within lanes if needed. For a
    tensor in memory, emit a load, with `otherwise` for elements out of bounds (None: 0).

    Raise a ProgramError if no fragment of a tensor in registers has these elements in every lane.
    """
    if isinstance(handle, RegisterTensor):
        wanted = piece.ids(shape)
        for source in handle.pieces:
            columns = matching_columns(wanted, handle.ids(source))
            if columns is not None:
                selected = source.selected(columns, piece.coordinates)
                return values_of(low, selected)
        raise ProgramError("the operands are distributed over lanes differently; convert_layout first")
    loaded = low.fragment(handle.dtype, len(piece.columns))
    load(low, handle, loaded, piece, otherwise)
    return loaded


def can_shuffle_to(handle: RegisterTensor, piece: RegisterValues, shape: tuple[int, ...]) -> bool:
    """True if one fragment of the register tensor `handle`, which has this `shape`, has in every lane the elements at
    the coordinates that `piece` gives for this lane: `in_layout_of` then succeeds.
    """
    wanted = piece.ids(shape)
    return any(matching_columns(wanted, handle.ids(source)) is not None for source in handle.pieces)


def _addresses(
    low: WaveLowering, memory: InMemory, piece: RegisterValues, lane: Symbol, v: Symbol
) -> tuple[tuple[Expr, ...], TensorAddress]:
    """Return (coordinates, address) in `memory` of the elements of `piece` (some values of a fragment, with the
    coordinates of their elements): expressions of the symbols `lane` and `v` (index of a lane's value).
    """
    at = tuple(table_expression(c, low.lanes, low.group.wave, lane, v) for c in piece.coordinates)
    return at, memory.at(at)


def load(low: WaveLowering, memory: InMemory, target: Value, piece: RegisterValues, otherwise: float | None) -> None:
    """Emit the load of the fragment `target` from `memory`, at the coordinates that `piece` gives for each lane's
    values. Elements out of bounds become `otherwise` (None: 0). A wait for MMAs in flight that use the fragment is
    emitted first.
    """
    low.mmas_in_flight.wait_for_registers(written=(target,))
    lane, v = low.axes(len(piece.columns))
    _, where = _addresses(low, memory, piece, lane, v)
    condition = conjunction(where.conditions)
    attrs: dict[str, Any] = {} if condition is None else {"when": condition, "otherwise": otherwise or 0}
    low.emit("load", (target, where.buffer), over=(lane, v), at=(where.offset,), **attrs)


def store(
    low: WaveLowering, source: Value, piece: RegisterValues, memory: InMemory, reads_target: bool = False
) -> None:
    """Emit the store of the fragment `source` to memory, at the coordinates that `piece` gives for each lane's values;
    elements out of bounds are skipped. An element that several threads hold is stored by one of them. If there are such
    elements and the operation also reads this memory (`reads_target`), the waves synchronise first, so that no thread
    stores before another one has loaded.
    """
    lane, v = low.axes(len(piece.columns))
    columns, conditions = threads_that_store(piece, low.lanes, low.group.wave, lane)
    if len(columns) != len(piece.columns):
        source_piece = RegisterValues(source, tuple(range(len(piece.columns))), piece.coordinates, piece.first)
        piece = source_piece.selected(columns, tuple(c[:, columns] for c in piece.coordinates))
        source = values_of(low, piece)
        lane, v = low.axes(len(columns))
        _, conditions = threads_that_store(piece, low.lanes, low.group.wave, lane)
    _, where = _addresses(low, memory, piece, lane, v)
    if reads_target and conditions:
        low.sync_waves()
    condition = conjunction((*conditions, *where.conditions))
    attrs: dict[str, Any] = {} if condition is None else {"when": condition}
    low.emit("store", (source, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
    low.note_stored(memory)


# -- memory to memory: lanes take neighbouring elements --------------------------------------------------------


def distribute_over_lanes(
    low: WaveLowering,
    shape: tuple[Size, ...],
    item_bytes: int,
    body: Callable[[Symbol, Symbol, tuple[Expr, ...], Expr | None], None],
    width: int | None = None,
) -> None:
    """Emit a loop in which the lanes of all waves take the elements of a tensor of this `shape` in turn, `width`
    contiguous elements at once. Nothing is emitted for an empty shape.

    `body(lane, value, coordinates, condition)` emits the body of the loop. `lane` and `value` are symbols,
    `coordinates` are expressions of them, and lanes work only if `condition` holds (None: always). If `width` is None,
    it is the number of elements of `item_bytes` bytes that a lane moves at once.
    """
    count = prod(map(as_expr, shape), start=as_expr(1))
    if count is as_expr(0):
        return
    if width is None:
        width = _widest(shape, item_bytes, low.target.lane_access.vector_bytes)
    threads = low.lanes * low.group.waves
    with low.loop("round", 0, ceildiv(count, threads * width)) as turn:
        lane, v = low.axes(width)
        number = ((turn * low.group.waves + low.group.wave) * low.lanes + lane) * width + v
        in_bounds = None if count % (threads * width) is as_expr(0) else number < count
        body(lane, v, coordinates_of(number, shape), in_bounds)


def _widest(shape: tuple[Size, ...], item_bytes: int, vector_bytes: int) -> int:
    """Return the number of contiguous elements of `item_bytes` bytes that a lane moves at once: as many as
    `vector_bytes` bytes hold, halved until the number divides the last extent of `shape`; 1 for a scalar.
    """
    width = max(1, vector_bytes // item_bytes)
    while shape and as_expr(shape[-1]) % width is not as_expr(0):
        width //= 2
    return width if shape else 1


def coordinates_of(index: Expr, shape: tuple[Size, ...]) -> tuple[Expr, ...]:
    """Return the coordinates, as expressions, of the element with the row-major index `index` in a tensor of this
    shape: index 7 in (2, 5) -> (1, 2). Extents of 0 count as 1.
    """
    coordinates: list[Expr] = []
    for n in reversed(shape[1:]):
        extent = maximum(1, n)
        coordinates.append(index % extent)
        index = index // extent
    return (*([index] if shape else []), *reversed(coordinates))


def fill(low: WaveLowering, op: Op) -> None:
    """Lower `fill` on a GPU: emit code that sets every element of the target to the attribute `value`. Zeros of
    registers are only recorded as `cleared`, because an MMA can start from zero; other uses of the registers emit them
    first. Raise a ProgramError if the target is a view of some values of a fragment.
    """
    target, value = low.handles[op.operands[0]], op.attrs["value"]
    if isinstance(target, RegisterTensor):
        for piece in target.pieces:
            _check_whole(piece)
            low.mmas_in_flight.wait_for_registers(written=(piece.fragment,))
            if value == 0:  # an MMA that follows starts from zero itself
                low.mmas_in_flight.cleared[piece.fragment] = None
            else:
                low.emit("fill", (piece.fragment,), value=value)
        return

    def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None) -> None:
        """Emit the fill of the elements at `at` in memory."""
        register = low.fragment(target.dtype, int(v.hi) + 1)
        low.emit("fill", (register,), value=value)
        store_at(low, register, target, lane, v, at, in_bounds)

    distribute_over_lanes(low, target.shape, target.dtype.numpy.itemsize, body)


def store_at(
    low: WaveLowering,
    source: Value,
    target: InMemory,
    lane: Symbol,
    v: Symbol,
    at: tuple[Expr, ...],
    in_bounds: Expr | None,
) -> None:
    """Emit the store of the fragment `source` to the memory `target` at the coordinates `at`, in lanes for which
    `in_bounds` holds (None: all). `at` are expressions of the symbols `lane` and `v` (index of a lane's value).
    Elements out of bounds are skipped.
    """
    where = target.at(at)
    condition = conjunction((*(() if in_bounds is None else (in_bounds,)), *where.conditions))
    attrs: dict[str, Any] = {} if condition is None else {"when": condition}
    low.emit("store", (source, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
    low.note_stored(target)


def load_at(
    low: WaveLowering,
    source: InMemory,
    lane: Symbol,
    v: Symbol,
    at: tuple[Expr, ...],
    in_bounds: Expr | None,
    otherwise: Any,
) -> Value:
    """Emit the load of a new fragment from the memory `source` at the coordinates `at`, and return it. `at` are
    expressions of the symbols `lane` and `v` (index of a lane's value). Elements out of bounds, and lanes for which
    `in_bounds` (None: always) fails, get `otherwise` (None: 0).
    """
    loaded = low.fragment(source.dtype, int(v.hi) + 1)
    where = source.at(at)
    condition = conjunction((*(() if in_bounds is None else (in_bounds,)), *where.conditions))
    attrs: dict[str, Any] = {} if condition is None else {"when": condition, "otherwise": otherwise or 0}
    low.emit("load", (loaded, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
    return loaded


def _check_whole(piece: RegisterValues) -> None:
    """Raise a ProgramError unless `piece` (some values of a fragment) has all values of its fragment. Other pieces can
    be read, but not written.
    """
    if not piece.whole:
        raise ProgramError("a view of registers is read-only: write to the whole tensor, or convert_layout")


def copy(low: WaveLowering, op: Op) -> None:
    """Lower `copy` on a GPU: asynchronously if the attribute `by` names an asynchronous copy atom, otherwise by loads,
    shuffles within lanes, and stores. Source elements out of bounds become the attribute `otherwise` (default 0). Raise
    a ProgramError if the target is a view of some values of a fragment, or if the lanes of a source in registers lack
    elements of a target in registers.
    """
    source, target = (low.handles[v] for v in op.operands)
    otherwise = op.attrs.get("otherwise")
    by = op.attrs.get("by")
    if by is not None and is_bulk_copy(low.target, by):
        bulk_copy(low, op, source, target)
    elif by is not None and is_lane_copy(low.target, by):
        lane_copies(low, op, source, target)
    elif isinstance(target, RegisterTensor):
        for piece in target.pieces:
            _check_whole(piece)
            if isinstance(source, RegisterTensor):
                values = in_layout_of(low, source, piece, target.shape)
                low.mmas_in_flight.wait_for_registers(written=(piece.fragment,))
                shuffle(low, piece.fragment, values, np.arange(len(piece.columns)))
            else:
                load(low, source, piece.fragment, piece, otherwise)
    elif isinstance(source, RegisterTensor):
        for piece in source.pieces:
            store(low, values_of(low, piece), piece, target)
    else:

        def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None) -> None:
            """Emit the copy of the elements at `at`, from memory to memory."""
            store_at(low, load_at(low, source, lane, v, at, in_bounds, otherwise), target, lane, v, at, in_bounds)

        distribute_over_lanes(low, target.shape, target.dtype.numpy.itemsize, body)


# -- copies that go on by themselves --------------------------------------------------------------------------


def bulk_copy(low: WaveLowering, op: Op, source: InMemory, target: InMemory) -> None:
    """Emit a bulk copy (one instruction for a box of elements) from `source` to `target`, started by one wave of each
    group of waves. One tensor is global memory, and the other a stage of a channel; raise a ProgramError if not.

    A load signals the stage's `full` barrier. For a copy out, the release of the stage will wait. With the attribute
    `multicast` of `op`, each workgroup of a cluster loads an equal part for all.
    """
    is_load = target.root.buffer.type.space == "shared"
    near, far = (target, source) if is_load else (source, target)
    stage = near.root
    if not isinstance(stage, Stage):
        raise ProgramError("an asynchronous copy must be to or from a stage of a channel")
    shared = low.cluster if op.attrs.get("multicast") else 1
    groups = 1 if is_load else stage.ring.groups
    parts, part = (shared, low.rank) if is_load else (groups, low.group.wave // (low.group.waves // groups))
    extents = (near.extents[0] // parts, *near.extents[1:]) if parts > 1 else near.shape
    axes = tuple(low.axis(f"x{d}", n) for d, n in enumerate(extents))
    # a load is split over the workgroups of a cluster, a copy out over the groups of waves
    places = (part * extents[0] + axes[0], *axes[1:]) if parts > 1 else axes
    at = near.at(places)
    far_coordinates, ends = _coordinates(far, places)
    in_bounds = conjunction([end >= 0 for end in ends])
    if is_load:
        low.between_lanes.sync_before_release()
    with low.one_wave(groups):
        if is_load:
            count = prod(near.extents) * near.dtype.numpy.itemsize
            full = stage.ring.full
            low.emit("expect", (full,), at=(stage.stage,), bytes=as_expr(count))
            low.emit(
                "copy_in",
                (far.root.buffer, stage.buffer, full),
                over=axes,
                there=far_coordinates,
                at=(at.offset,),
                by=op.attrs["by"],
                signal=(stage.stage,),
                inside=in_bounds,
                multicast=shared > 1 or None,
            )
        else:
            low.emit(
                "copy_out",
                (stage.buffer, far.root.buffer),
                over=axes,
                at=(at.offset,),
                there=far_coordinates,
                by=op.attrs["by"],
                inside=in_bounds,
            )
    if not is_load:
        note_copy_out(low, stage.ring)


def lane_copies(low: WaveLowering, op: Op, source: InMemory, target: InMemory) -> None:
    """Emit asynchronous copies from `source` to `target` by the atom of `op`. Each lane copies a few elements at once
    that are contiguous in the target. The commit of the stage will wait for them. Raise a ProgramError if the target is
    no stage of a channel.
    """
    if not isinstance(target.root, Stage):
        raise ProgramError("an asynchronous copy must be to or from a stage of a channel")
    atom = low.target.copy_atom(op.attrs["by"])
    width = (atom.bytes_moved or 0) // low.lanes // target.dtype.numpy.itemsize
    shape = target.extents
    axes = tuple(low.axis(f"x{d}", n) for d, n in enumerate(shape))
    offset = target.at(axes).offset
    contiguous_dim = next((d for d, axis in enumerate(axes) if is_number(weight(offset, axis), 1)), len(shape) - 1)
    order = [*(d for d in range(len(shape)) if d != contiguous_dim), *([contiguous_dim] if shape else [])]

    def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None) -> None:
        """Emit one asynchronous copy by each lane, of the elements at `at`."""
        coordinates = tuple(at[order.index(d)] for d in range(len(shape)))
        from_, to = source.at(coordinates), target.at(coordinates)
        conditions: dict[str, Any] = {"inside": conjunction(from_.conditions), "when": in_bounds}
        low.emit(
            "copy_lanes",
            (from_.buffer, to.buffer),
            over=(lane, v),
            there=(from_.offset,),
            at=(to.offset,),
            by=atom.name,
            **{name: c for name, c in conditions.items() if c is not None},
        )

    distribute_over_lanes(low, tuple(shape[d] for d in order), target.dtype.numpy.itemsize, body, width)


def _coordinates(memory: InMemory, axes: tuple[Expr, ...]) -> tuple[tuple[tuple[Expr, bool], ...], tuple[Expr, ...]]:
    """Return (coordinates, ends) for the element of `memory` at the coordinates `axes`.

    `coordinates` has a pair (coordinate, True if it may be out of bounds) for each dimension of the tensor below all
    views. `ends` are expressions: an element within the tensor is in bounds of every view exactly if all of them are at
    least 0.
    """
    coordinates: tuple[tuple[Expr, bool], ...] = tuple((a, False) for a in axes)
    ends: list[Expr] = []
    while isinstance(memory, PlacedView):
        images = Substitution({s: e for s, (e, _) in zip(memory.over, coordinates, strict=True)})
        symbols_out_of_bounds = {s for s, (_, may_leave) in zip(memory.over, coordinates, strict=True) if may_leave}
        coordinates = tuple(
            (images(e), bool(may_leave or e.symbols & symbols_out_of_bounds)) for e, may_leave in memory.places
        )
        checked = zip(coordinates, memory.base.shape, memory.places, strict=True)
        ends += [end for (e, _), n, (_, may_leave) in checked if may_leave for end in both_ends(e, as_expr(n))]
        memory = memory.base
    return coordinates, ends_within(ends, [e for e, _ in coordinates], map(as_expr, memory.shape))
