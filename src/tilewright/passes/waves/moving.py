"""Allocations, views, fill and copy, split over lanes; copies that go on by themselves."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_rules import maximum
from tilewright.algebra.expr_use import Substitution, ceildiv, evaluate
from tilewright.check.distribution import Placement, placement
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value
from tilewright.ir.tensors import RegisterType, TensorType
from tilewright.machine import RegisterOperand
from tilewright.machine.ends import both_ends, ends_within
from tilewright.machine.views import is_number, weight
from tilewright.passes.places import PlacedMemory, PlacedView, Size, Where, sizes
from tilewright.passes.waves.asynchronous import box_copy, lane_copy
from tilewright.passes.waves.channels import leaves
from tilewright.passes.waves.held import Held, Piece, both, matching, numbered, place, storing
from tilewright.passes.waves.rings import Stage
from tilewright.passes.waves.waves import Waves

InMemory = PlacedMemory | PlacedView


def alloc(low: Waves, op: Op) -> None:
    """Lower `alloc`: shared memory of the workgroup (one piece for each half with ping-pong), or fragments."""
    kind, result = op.attrs["type"], op.results[0]
    if isinstance(kind, RegisterType):
        low.handles[result] = registers(low, kind, result.name or "register")
        return
    room = kind.cosize()
    inside = low.group.halves == 2
    period = 1 if kind.swizzle is None else kind.swizzle.size()
    room = -(-room // period) * period
    whole = TensorType("shared", kind.dtype, (as_expr(room * (2 if inside else 1)),), None, kind.swizzle)
    buffer = low.hoist((op, inside), whole, result.name or "shared")
    start = low.group.side * room if inside else as_expr(0)
    low.handles[result] = PlacedMemory(buffer, kind.dtype, sizes(kind.shape), sizes(kind.steps), None, start)
    low.origins[buffer] = result


def registers(low: Waves, kind: RegisterType, name: str) -> Held:
    """Return the fragments of a register tensor: one for each atom of C, or for each row or column of atoms of A or
    B.
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
        pieces.append(Piece(fragment, tuple(range(len(columns))), coordinates, spread.first[:, columns]))
    return Held(kind.dtype, spread.shape, tuple(pieces))


def _fragment_columns(low: Waves, kind: RegisterType, spread: Placement) -> list[list[int]]:
    """Return the values of each fragment of a register tensor: of each atom of C, or of each row or column of atoms."""
    every = list(range(spread.values))
    if kind.distribution is None or kind.distribution.operand is None or low.target is None:
        return [every]
    name, _, which = kind.distribution.operand.rpartition(".")
    operand = getattr(low.target.multiply_atom(name), which)
    assert isinstance(operand, RegisterOperand)
    one = operand.values
    atoms = [every[i : i + one] for i in range(0, len(every), one)]
    if which == "c":
        return atoms
    # a factor's values along k stay together: those of atoms with the same rows of A, or columns of B
    same: dict[int, list[int]] = {}
    for part in atoms:
        same.setdefault(int(spread.coordinates[0 if which == "a" else 1][0, part[0]]), []).extend(part)
    return list(same.values())


def view(low: Waves, op: Op) -> None:
    """Lower `view`: of memory, it stays a view; of registers, it is the values that it holds."""
    base = low.handles[op.operands[0]]
    shape = sizes(low.expr(e) for e in op.results[0].type.shape)
    if isinstance(base, Held):
        low.handles[op.results[0]] = _of_registers(low, op, base, tuple(int(n) for n in shape))
        return
    over = tuple(low.axis(s.name, n) for s, n in zip(op.attrs["over"], shape, strict=True))
    with low.means(dict(zip(op.attrs["over"], over, strict=True))):
        places = tuple((low.expr(e), loose) for e, loose in op.attrs["at"])
    low.handles[op.results[0]] = PlacedView(base, base.dtype, shape, over, places)


def _of_registers(low: Waves, op: Op, base: Held, shape: tuple[int, ...]) -> Held:
    """Return the view of a register tensor: the values that it holds.

    Raise a ProgramError if its coordinates are not constant, or if lanes hold different numbers of its elements.
    """
    indices = np.indices(shape)
    names = {s.name: c for s, c in zip(op.attrs["over"], indices, strict=True)}
    at = []
    for e, _ in op.attrs["at"]:
        meant = low.expr(e)
        left = meant.symbols - set(op.attrs["over"])
        if left:
            raise ProgramError(
                f"view of registers at {meant}: which registers these are must be known when the program is compiled; "
                f"unroll the loop over {', '.join(sorted(s.name for s in left))}"
            )
        at.append(np.broadcast_to(np.asarray(evaluate(meant, names)), shape))
    mine = np.full(prod(base.shape), -1)
    mine[numbered(tuple(at), base.shape)] = np.arange(prod(shape)).reshape(shape)
    pieces = []
    for piece in base.pieces:
        ids = mine[base.ids(piece)]
        held = (ids >= 0).all(axis=0)
        if ((ids >= 0).any(axis=0) != held).any():
            raise ProgramError("view of registers: some lanes hold more of it than others; convert_layout first")
        columns = np.nonzero(held)[0]
        if len(columns):
            pieces.append(piece.taken(columns, tuple(np.unravel_index(ids[:, columns], shape))))
    return Held(base.dtype, shape, tuple(pieces))


# -- between fragments and memory -----------------------------------------------------------------------------


def values_of(low: Waves, piece: Piece) -> Value:
    """Return a fragment with just the values of a piece (some values of a fragment)."""
    low.flying.touch(read=(piece.fragment,))
    if piece.whole:
        return piece.fragment
    picked = low.fragment(piece.fragment.type.dtype, len(piece.columns), piece.fragment.name)
    pick(low, picked, piece.fragment, np.asarray(piece.columns))
    return picked


def pick(low: Waves, target: Value, source: Value, columns: Any, apart: int = 0) -> None:
    """Emit a shuffle: the target's values are `columns` of the source, of the lane whose number differs in the bits
    `apart`.
    """
    lane, v = low.axes(len(columns))
    taken = lane ^ apart if apart else lane
    low.emit("shuffle", (target, source), over=(lane, v), at=(taken, place(np.asarray([columns]), 1, lane, lane, v)))


def held_as(low: Waves, handle: Any, piece: Piece, shape: tuple[int, ...], otherwise: float | None = None) -> Value:
    """Return a fragment with a tensor's elements in the layout of a piece (some values of a fragment); raise a
    ProgramError if lanes hold others.
    """
    if isinstance(handle, Held):
        wanted = piece.ids(shape)
        for source in handle.pieces:
            columns = matching(wanted, handle.ids(source))
            if columns is not None:
                chosen = source.taken(columns, piece.coordinates)
                return values_of(low, chosen)
        raise ProgramError("the operands are not spread over lanes alike; convert_layout first")
    loaded = low.fragment(handle.dtype, len(piece.columns))
    load(low, handle, loaded, piece, otherwise)
    return loaded


def holds(handle: Held, piece: Piece, shape: tuple[int, ...]) -> bool:
    """True if every lane holds the elements of a piece (some values of a fragment) in one fragment of a tensor."""
    wanted = piece.ids(shape)
    return any(matching(wanted, handle.ids(source)) is not None for source in handle.pieces)


def _where(low: Waves, memory: InMemory, piece: Piece, lane: Symbol, v: Symbol) -> tuple[tuple[Expr, ...], Where]:
    """Return (coordinates, place in memory) of the elements of a piece (some values of a fragment)."""
    at = tuple(place(c, low.lanes, low.group.wave, lane, v) for c in piece.coordinates)
    return at, memory.at(at)


def load(low: Waves, memory: InMemory, target: Value, piece: Piece, otherwise: float | None) -> None:
    """Emit the load of a fragment's values from memory, at the elements of a piece (some values of a fragment)."""
    low.flying.touch(written=(target,))
    lane, v = low.axes(len(piece.columns))
    _, where = _where(low, memory, piece, lane, v)
    condition = both(where.conditions)
    attrs: dict[str, Any] = {} if condition is None else {"when": condition, "otherwise": otherwise or 0}
    low.emit("load", (target, where.buffer), over=(lane, v), at=(where.offset,), **attrs)


def store(low: Waves, source: Value, piece: Piece, memory: InMemory) -> None:
    """Emit the store of a fragment's values to memory, at the elements of a piece (some values of a fragment); repeated
    elements are stored once.
    """
    lane, v = low.axes(len(piece.columns))
    columns, conditions = storing(piece, low.lanes, low.group.wave, lane)
    if len(columns) != len(piece.columns):
        one = Piece(source, tuple(range(len(piece.columns))), piece.coordinates, piece.first)
        piece = one.taken(columns, tuple(c[:, columns] for c in piece.coordinates))
        source = values_of(low, piece)
        lane, v = low.axes(len(columns))
        _, conditions = storing(piece, low.lanes, low.group.wave, lane)
    _, where = _where(low, memory, piece, lane, v)
    condition = both((*conditions, *where.conditions))
    attrs: dict[str, Any] = {} if condition is None else {"when": condition}
    low.emit("store", (source, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
    low.written(memory)


# -- memory to memory: lanes take neighbouring elements --------------------------------------------------------


def over_lanes(
    low: Waves,
    shape: tuple[Size, ...],
    size: int,
    body: Callable[[Symbol, Symbol, tuple[Expr, ...], Expr | None], None],
    width: int | None = None,
) -> None:
    """Emit `body` for every element of a shape, distributed over lanes, `width` neighbours per lane.

    If `width` is None, it is as many as a lane moves at once. If an extent is open, a call tells the number of rounds.
    """
    count = prod(map(as_expr, shape), start=as_expr(1))
    if count is as_expr(0):
        return
    if width is None:
        width = _widest(shape, size, low.target.lane_access.vector_bytes)
    threads = low.lanes * low.group.waves
    with low.loop("round", 0, ceildiv(count, threads * width)) as turn:
        lane, v = low.axes(width)
        number = ((turn * low.group.waves + low.group.wave) * low.lanes + lane) * width + v
        inside = None if count % (threads * width) is as_expr(0) else number < count
        body(lane, v, unravelled(number, shape), inside)


def _widest(shape: tuple[Size, ...], size: int, vector: int) -> int:
    """Return the number of elements that a lane takes at once: up to `vector` bytes, within one row."""
    width = max(1, vector // size)
    while shape and as_expr(shape[-1]) % width is not as_expr(0):
        width //= 2
    return width if shape else 1


def unravelled(number: Expr, shape: tuple[Size, ...]) -> tuple[Expr, ...]:
    """Return the coordinates of an element from its flat number, last dimension fastest; empty extents count as 1."""
    at: list[Expr] = []
    for size in reversed(shape[1:]):
        extent = maximum(1, size)
        at.append(number % extent)
        number = number // extent
    return (*([number] if shape else []), *reversed(at))


def fill(low: Waves, op: Op) -> None:
    """Lower `fill`: a number everywhere; zeros of registers are only noted, as an MMA may start from zero by itself."""
    target, value = low.handles[op.operands[0]], op.attrs["value"]
    if isinstance(target, Held):
        for piece in target.pieces:
            _whole(piece)
            low.flying.touch(written=(piece.fragment,))
            if value == 0:  # a product that follows begins the sum by itself
                low.flying.cleared[piece.fragment] = None
            else:
                low.emit("fill", (piece.fragment,), value=value)
        return

    def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None) -> None:
        register = low.fragment(target.dtype, int(v.hi) + 1)
        low.emit("fill", (register,), value=value)
        put(low, register, target, lane, v, at, inside)

    over_lanes(low, target.shape, target.dtype.numpy.itemsize, body)


def put(
    low: Waves, source: Value, target: InMemory, lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None
) -> None:
    """Emit the store of one round's values at the coordinates `at`, under the condition `inside`."""
    where = target.at(at)
    condition = both((*(() if inside is None else (inside,)), *where.conditions))
    attrs: dict[str, Any] = {} if condition is None else {"when": condition}
    low.emit("store", (source, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
    low.written(target)


def get(
    low: Waves, source: InMemory, lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None, otherwise: Any
) -> Value:
    """Return a fragment with one round's values, loaded at the coordinates `at`; `otherwise` where out of bounds."""
    loaded = low.fragment(source.dtype, int(v.hi) + 1)
    where = source.at(at)
    condition = both((*(() if inside is None else (inside,)), *where.conditions))
    attrs: dict[str, Any] = {} if condition is None else {"when": condition, "otherwise": otherwise or 0}
    low.emit("load", (loaded, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
    return loaded


def _whole(piece: Piece) -> None:
    """Raise a ProgramError unless a piece (some values of a fragment) has all values of its fragment: parts of
    registers cannot be written.
    """
    if not piece.whole:
        raise ProgramError("a part of registers is read only: write to the whole, or convert_layout")


def copy(low: Waves, op: Op) -> None:
    """Lower `copy`: elements from one tensor to another; by a bulk copy if the copy names one."""
    source, target = (low.handles[v] for v in op.operands)
    otherwise = op.attrs.get("otherwise")
    by = op.attrs.get("by")
    if by is not None and box_copy(low.target, by):
        by_itself(low, op, source, target)
    elif by is not None and lane_copy(low.target, by):
        by_lanes(low, op, source, target)
    elif isinstance(target, Held):
        for piece in target.pieces:
            _whole(piece)
            if isinstance(source, Held):
                values = held_as(low, source, piece, target.shape)
                low.flying.touch(written=(piece.fragment,))
                pick(low, piece.fragment, values, np.arange(len(piece.columns)))
            else:
                load(low, source, piece.fragment, piece, otherwise)
    elif isinstance(source, Held):
        for piece in source.pieces:
            store(low, values_of(low, piece), piece, target)
    else:

        def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None) -> None:
            put(low, get(low, source, lane, v, at, inside, otherwise), target, lane, v, at, inside)

        over_lanes(low, target.shape, target.dtype.numpy.itemsize, body)


# -- copies that go on by themselves --------------------------------------------------------------------------


def by_itself(low: Waves, op: Op, source: InMemory, target: InMemory) -> None:
    """Emit a bulk copy by one elected wave of the group; the barrier of the stage that it fills or leaves tracks its
    end.
    """
    comes = target.root.buffer.type.space == "shared"
    near, far = (target, source) if comes else (source, target)
    stage = near.root
    if not isinstance(stage, Stage):
        raise ProgramError("a copy that goes on by itself is to or from a stage of a channel")
    shared = low.cluster if op.attrs.get("multicast") else 1
    groups = 1 if comes else stage.ring.groups
    parts, part = (shared, low.rank) if comes else (groups, low.group.wave // (low.group.waves // groups))
    extents = (near.extents[0] // parts, *near.extents[1:]) if parts > 1 else near.shape
    axes = tuple(low.axis(f"x{d}", n) for d, n in enumerate(extents))
    # each workgroup of the cluster brings its part, for all of them; what leaves, each group of waves sends by itself
    places = (part * extents[0] + axes[0], *axes[1:]) if parts > 1 else axes
    at = near.at(places)
    far_coordinates, ends = _coordinates(far, places)
    inside = both([end >= 0 for end in ends])
    if comes:
        low.between_lanes.pass_on()
    with low.one_wave(groups):
        if comes:
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
                inside=inside,
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
                inside=inside,
            )
    if not comes:
        leaves(low, stage.ring)


def by_lanes(low: Waves, op: Op, source: InMemory, target: InMemory) -> None:
    """Emit asynchronous copies that each lane starts, of runs that are contiguous in the target; the commit waits for
    them.
    """
    if not isinstance(target.root, Stage):
        raise ProgramError("a copy that goes on by itself is to or from a stage of a channel")
    atom = low.target.copy_atom(op.attrs["by"])
    width = (atom.bytes_moved or 0) // low.lanes // target.dtype.numpy.itemsize
    shape = target.extents
    axes = tuple(low.axis(f"x{d}", n) for d, n in enumerate(shape))
    offset = target.at(axes).offset
    along = next((d for d, axis in enumerate(axes) if is_number(weight(offset, axis), 1)), len(shape) - 1)
    order = [*(d for d in range(len(shape)) if d != along), *([along] if shape else [])]

    def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None) -> None:
        place = tuple(at[order.index(d)] for d in range(len(shape)))
        from_, to = source.at(place), target.at(place)
        conditions: dict[str, Any] = {"inside": both(from_.conditions), "when": inside}
        low.emit(
            "copy_lanes",
            (from_.buffer, to.buffer),
            over=(lane, v),
            there=(from_.offset,),
            at=(to.offset,),
            by=atom.name,
            **{name: c for name, c in conditions.items() if c is not None},
        )

    over_lanes(low, tuple(shape[d] for d in order), target.dtype.numpy.itemsize, body, width)


def _coordinates(memory: InMemory, axes: tuple[Expr, ...]) -> tuple[tuple[tuple[Expr, bool], ...], tuple[Expr, ...]]:
    """Return ((coordinate in the argument, True if it may be out of bounds) per dimension, bounds of views within
    it).
    """
    coordinates: tuple[tuple[Expr, bool], ...] = tuple((a, False) for a in axes)
    ends: list[Expr] = []
    while isinstance(memory, PlacedView):
        images = Substitution({s: e for s, (e, _) in zip(memory.over, coordinates, strict=True)})
        outside = {s for s, (_, may) in zip(memory.over, coordinates, strict=True) if may}
        coordinates = tuple((images(e), bool(loose or e.symbols & outside)) for e, loose in memory.places)
        marked = zip(coordinates, memory.base.shape, memory.places, strict=True)
        ends += [end for (e, _), n, (_, loose) in marked if loose for end in both_ends(e, as_expr(n))]
        memory = memory.base
    return coordinates, ends_within(ends, [e for e, _ in coordinates], map(as_expr, memory.shape))
