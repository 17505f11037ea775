"""Interpret operations on memory and registers: alloc, view, fill, copy, gather, scatter, atomic, debug_log.

An operation on registers is executed by the waves that hold them. An operation from memory to memory is shared among
the waves of the group; a program may not rely on which wave handles which element.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.errors import OutOfBoundsFault, ProgramError
from tilewright.interpret.block.clocks import Clock
from tilewright.interpret.block.holding import have_equal_elements
from tilewright.interpret.block.memory import (
    TensorMemory,
    TensorWindow,
    at_line,
    full,
    grid,
    require_no_overlap,
    spread_over,
    within,
)
from tilewright.interpret.block.places import Coordinates
from tilewright.interpret.block.registers import Registers
from tilewright.interpret.block.worker import Agent, Copying, Steps
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.core import Op
from tilewright.ir.tensors import RegisterType

Array = np.ndarray[Any, np.dtype[Any]]
Memory = TensorMemory | TensorWindow


def alloc(agent: Agent, op: Op) -> Steps | None:
    """Execute `op`, an `alloc`, for the wave `agent`: bind its result to uninitialised shared memory or registers.
    Return None.
    """
    kind = op.attrs["type"]
    allocate = agent.worker.registers if isinstance(kind, RegisterType) else agent.worker.shared_tensor
    agent.handles[op.results[0]] = allocate(agent, op, kind)
    return None


def view(agent: Agent, op: Op) -> Steps | None:
    """Execute `op`, a `view`, for the wave `agent`: bind its result to a view of the operand. Return None.

    No element is accessed. Raise a ProgramError if a view of registers has an element twice or leaves its tensor.
    """
    base = agent.handles[op.operands[0]]
    agent.handles[op.results[0]] = agent.worker.view(base, op, agent.values)
    return None


def bitcast(agent: Agent, op: Op) -> Steps | None:
    """Execute `op`, a `bitcast`, for the wave `agent`: bind its result to the operand's bits as another element type.
    Return None.

    Raise a ProgramError if the operand is a view of memory.
    """
    base, numpy_type = agent.handles[op.operands[0]], op.attrs["dtype"].numpy
    if isinstance(base, Registers):
        agent.handles[op.results[0]] = base.bitcast(numpy_type)
        return None
    if isinstance(base, TensorWindow):
        raise ProgramError("bitcast of a view: bitcast the tensor, then view it", op.loc)
    buffer = base.buffer.alike(data=base.buffer.data.view(numpy_type))
    agent.handles[op.results[0]] = replace(base, buffer=buffer)
    return None


def let(agent: Agent, op: Op) -> Steps | None:
    """Do nothing and return None: a `let` operation names an expression, and operations that use the name contain the
    expression.
    """
    return None


# -- reading and writing memory -------------------------------------------------------------------------


def load(memory: Memory, coordinates: tuple[Any, ...], op: Op, clock: Clock, otherwise: Any = None) -> Array:
    """Return the elements of `memory`, a tensor or view, at `coordinates`, for operation `op`. Record the access.

    Elements out of bounds become `otherwise`; if that is None, raise an OutOfBoundsFault. `clock` is the vector clock
    of the actor that reads. Raise another InterpreterFault for a race, uninitialised elements, or a stage that must not
    be accessed now.
    """
    memory.check(op)
    tensor, places, in_bounds = memory.locate(coordinates, op)
    shape = _shape_of(coordinates, places)
    if in_bounds is None:
        return tensor.buffer.read(full(places, shape), clock, op)
    places, mask = spread_over(places, in_bounds, shape)
    if mask.all():
        return tensor.buffer.read(places, clock, op)
    if otherwise is None:
        raise OutOfBoundsFault(f"{at_line(op)} reads outside its tensor and has no `else`", op.loc)
    elements = np.full(shape, otherwise, tensor.buffer.data.dtype)
    elements[mask] = tensor.buffer.read(places[mask], clock, op)
    return elements


def _shape_of(coordinates: tuple[Any, ...], places: Any) -> tuple[int, ...]:
    """Return the shape of an access to the elements at `coordinates`, which have the element numbers `places`: the
    shape to which all broadcast.
    """
    return coordinates.shape if type(coordinates) is Coordinates else np.broadcast(*coordinates, places).shape


def store(
    memory: Memory, coordinates: tuple[Any, ...], values: Any, op: Op, clock: Clock, in_order: bool = False
) -> None:
    """Set the elements of `memory`, a tensor or view, at `coordinates` to `values`, for operation `op`. Record the
    access.

    Values out of bounds are dropped. For a tensor without dimensions, empty `values` write nothing. `clock` is the
    vector clock of the actor that writes. Raise an InterpreterFault for a race, a stage that must not be accessed now,
    or two values for one element; with `in_order`, the last value is stored instead.
    """
    memory.check(op)
    if not coordinates:  # a single element; no value for it: another wave holds it
        values = np.asarray(values).reshape(-1)[:1]
        if not values.size:
            return
        values = values[0]
    tensor, places, in_bounds = memory.locate(coordinates, op)
    shape = _shape_of(coordinates, places)
    if in_bounds is None:
        places, kept_values = (full(x, shape).reshape(-1) for x in (places, values))
    else:
        places, mask = spread_over(places, in_bounds, shape)
        places, kept_values = places[mask], full(values, shape)[mask]
    has_one_value = in_order or memory.has_distinct_places(coordinates)
    tensor.buffer.write(places, kept_values, clock, op, tensor.staged, has_one_value)


def idle(agent: Agent, shape: tuple[int, ...]) -> bool:
    """True if the wave `agent` handles no element in a collective operation on memory of shape `shape`.

    This is so only for a single element (no dimensions), which another wave of the group handles.
    """
    waves = agent.group.waves
    return not shape and waves > 1 and (agent.wave + agent.worker.seed) % waves != 0


def share(agent: Agent, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Return the coordinates of the elements of a memory tensor of shape `shape` that the wave `agent` handles in a
    collective operation: one array for each dimension.

    The waves of a group handle runs of elements of equal length; the seed decides which wave handles which run. A
    single wave handles all elements; its arrays broadcast to `shape`.
    """
    waves = agent.group.waves
    return grid(shape) if waves == 1 else _run_of_elements(shape, waves, (agent.wave + agent.worker.seed) % waves)


@lru_cache(maxsize=256)
def _run_of_elements(shape: tuple[int, ...], runs: int, number: int) -> tuple[Array, ...]:
    """Return the coordinates of the elements of run number `number`, if a tensor of shape `shape` is divided into
    `runs` runs: one array for each dimension.

    A run consists of consecutive elements, last dimension fastest. All runs have equal length; the last runs may be
    shorter or empty. The result is cached.
    """
    size = int(np.prod(shape, dtype=np.int64))
    per_run = -(-size // runs)
    flat = np.arange(number * per_run, min(size, (number + 1) * per_run))
    return Coordinates(np.unravel_index(flat, shape)) if shape else ()


def access_clock(agent: Agent, *tiles: Registers | Memory) -> AbstractContextManager[Clock]:
    """Return a context manager that yields the vector clock under which the wave `agent` accesses memory in an
    operation.

    `tiles` are operands. If one of them is in registers, the clock is that of the wave. Otherwise the clock is that of
    `Agent.part_clock`, usually of a new actor: it is not specified which wave handles which element of memory, so no
    wave may rely on the order.
    """
    return nullcontext(agent.clock) if any(isinstance(tile, Registers) for tile in tiles) else agent.part_clock()


# -- operations -----------------------------------------------------------------------------------------


def fill(agent: Agent, op: Op) -> Steps | None:
    """Execute `op`, a `fill`, for the wave `agent`: set elements of the target to the number.

    For registers, set the elements that the wave holds at once, and return None. For memory, return the generator that
    sets the elements that `share` gives the wave, or None if there are none.
    """
    target = agent.handles[op.operands[0]]
    value = op.attrs["value"]
    if isinstance(target, Registers):
        target.write(target.mine, np.asarray(value).astype(target.data.dtype))
        return None
    if idle(agent, target.shape):
        return None
    return _fill_memory(agent, op, target)


def _fill_memory(agent: Agent, op: Op, target: Memory) -> Steps:
    """Set the elements of the memory `target` that `share` gives the wave `agent` to the number of `op`, a `fill`.

    The generator yields once at first, so that other waves may run.
    """
    yield None
    with agent.part_clock() as clock:
        store(target, share(agent, target.shape), op.attrs["value"], op, clock)


def copy(agent: Agent, op: Op) -> Steps | None:
    """Return the generator that executes the `copy` operation `op` for the wave `agent`.

    The copy is asynchronous if its atom is asynchronous; without an atom it is synchronous. Raise a ProgramError if the
    copy names an atom, but the program names no machine.
    """
    atom = op.attrs.get("by")
    machine = agent.worker.machine
    asynchronous = False
    if atom is not None:
        if machine is None:
            raise ProgramError(f"{at_line(op)}: the program names no machine, so {atom} has no meaning", op.loc)
        asynchronous = machine.copy_atom(atom).asynchronous
    if asynchronous:
        return _start_async_copy(agent, op)
    return _copy(agent, op)


def _copy(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a synchronous `copy` of operand 0 to operand 1, for the wave `agent`. The generator yields once at
    first, so that other waves may run.

    If the target is in registers, the wave copies the elements that it holds of the target. If only the source is in
    registers, it copies the elements that it owns there (each element is copied by one register). Between memories, it
    copies the elements that `share` gives it.
    """
    yield None
    source, target = (agent.handles[v] for v in op.operands)
    otherwise = op.attrs.get("otherwise")
    if isinstance(target, Registers):
        held = target.mine
        if isinstance(source, Registers):
            values = _registers_to_registers(source, target, op)
        else:
            values = load(source, held.coordinates, op, agent.clock, otherwise)
        target.write(held, values)
    elif isinstance(source, Registers):
        held = source.owned
        store(target, held.coordinates, source.read(held, op), op, agent.clock)
    elif not idle(agent, source.shape):
        coordinates = share(agent, source.shape)
        with agent.part_clock() as clock:
            require_no_overlap(target, coordinates, source, coordinates, op)
            store(target, coordinates, load(source, coordinates, op, clock, otherwise), op, clock)


def _registers_to_registers(source: Registers, target: Registers, op: Op) -> Array:
    """Return the new values of the wave's registers of `target`, in order, each from a register of the same lane in
    `source`.

    Raise a ProgramError if a lane does not hold such an element in `source`. `op` is the copy.
    """
    if have_equal_elements(source.holding, target.holding):
        return source.read(source.mine, op)
    return source.at_lanes(target.mine, op)


def _start_async_copy(agent: Agent, op: Op) -> Steps:
    """Start `op`, an asynchronous copy between memories, if the wave `agent` is the first of its group; otherwise do
    nothing.

    The scheduler executes the copy at some later time. If the copy writes (reads) a channel's stage, the stage becomes
    full (free) only after the copy. Raise a ProgramError if an operand is in registers.
    """
    source, target = (agent.handles[v] for v in op.operands)
    if isinstance(source, Registers) or isinstance(target, Registers):
        raise ProgramError(f"{at_line(op)}: a copy that goes on by itself is between memories", op.loc)
    if agent.wave != 0:
        return
    yield None
    source.check(op)
    target.check(op)
    worker = agent.worker
    clock = agent.clock.fork()
    otherwise = op.attrs.get("otherwise")
    coordinates = grid(source.shape)

    def finish() -> None:
        """Copy the elements. The scheduler calls this function at some later time."""
        store(target, coordinates, load(_without_hold(source), coordinates, op, clock, otherwise), op, clock)

    written_hold, read_hold = target.hold, source.hold
    target = _without_hold(target)
    copying = Copying(finish, op, clock)
    worker.copies.append(copying)
    if written_hold is not None:
        written_hold.fill.landing.append(copying)
        written_hold.fill.knows.append(clock.known)
        copying.covered = True
    if read_hold is not None:
        read_hold.fill.leaving.append(copying)
        read_hold.fill.freed.append(clock.known)
        copying.covered = True


def _without_hold(memory: Memory) -> Memory:
    """Return `memory`, a tensor or view, without the check that a channel's stage may be accessed.

    An asynchronous copy is checked when it starts; it may finish after the commit or release.
    """
    if isinstance(memory, TensorWindow):
        return TensorWindow(_without_hold(memory.base), memory.op, memory.values, memory.shape)
    return replace(memory, hold=None)


# -- data-dependent coordinates -----------------------------------------------------------------------------


def _memory_coordinates(
    agent: Agent, op: Op, coordinates: tuple[Any, ...], clock: Clock
) -> tuple[tuple[Any, ...], Any]:
    """Return (coordinates in memory, mask of the coordinates in bounds) for the elements of the tile at `coordinates`.

    `op` is a gather, scatter or atomic of the wave `agent`. Integers that its memory coordinates depend on are loaded
    first, under the vector clock `clock`. The mask is None if all coordinates are in bounds; coordinates out of bounds
    are clipped. Raise an OutOfBoundsFault for a coordinate out of bounds that is not marked with `?`, and a
    ProgramError if the wave does not hold such an integer in registers.
    """
    names = [s.name for s in op.attrs["over"]]
    values: dict[str, Any] = {**agent.values, **dict(zip(names, coordinates, strict=True))}
    fetched = {}
    for (fetched_symbol, expressions), value in zip(op.attrs.get("where", ()), op.operands[2:], strict=True):
        source = agent.handles[value]
        lookup_coordinates = tuple(np.asarray(evaluated(e, values)) for e in expressions)
        if isinstance(source, Registers):
            table, known = source.table(op)
            flat = (
                np.ravel_multi_index(tuple(np.broadcast_arrays(*lookup_coordinates)), source.shape)
                if source.shape
                else 0
            )
            if not np.all(known[flat]):
                raise ProgramError(f"{at_line(op)}: this wave does not hold the places it needs in registers", op.loc)
            fetched[fetched_symbol.name] = table[flat].astype(np.int64)
        else:
            fetched[fetched_symbol.name] = load(source, lookup_coordinates, op, clock).astype(np.int64)
    values |= fetched
    memory = agent.handles[op.operands[1]]
    memory_coordinates, in_bounds = [], None
    for dim, ((e, may_leave), size) in enumerate(zip(op.attrs["at"], memory.shape, strict=True)):
        coordinate = evaluated(e, values)
        if not within(coordinate, size):
            valid = (coordinate >= 0) & (coordinate < size)
            if not may_leave:
                raise OutOfBoundsFault(
                    f"{at_line(op)}: coordinate {dim}, {e}, leaves 0..{size}; if that may be, mark it with ?", op.loc
                )
            in_bounds = valid if in_bounds is None else in_bounds & valid
            coordinate = np.clip(coordinate, 0, size - 1)
        memory_coordinates.append(coordinate)
    return tuple(memory_coordinates), in_bounds


def gather(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a `gather`, for the wave `agent`: set elements of the tile from data-dependent coordinates of
    memory.

    The operands are the tile, the memory and the tensors from which coordinates are read. The wave sets the elements
    that it holds, if the tile is in registers, or the elements that `share` gives it, if the tile is in memory.
    Elements out of bounds become the `else` number; without one, raise an OutOfBoundsFault. The generator yields once
    at first, so that other waves may run.
    """
    yield None
    tile, memory = (agent.handles[v] for v in op.operands[:2])
    if not isinstance(tile, Registers) and idle(agent, tile.shape):
        return
    with access_clock(agent, tile) as clock:
        _gather(agent, op, tile, memory, clock)


def _gather(agent: Agent, op: Op, tile: Registers | Memory, memory: Memory, clock: Clock) -> None:
    """Set elements of `tile` from data-dependent coordinates of `memory`: the elements that the wave `agent` holds, if
    the tile is in registers, or the elements that `share` gives it, if the tile is in memory.

    `op` is the gather; `clock` is the vector clock of the actor that accesses memory. Raise an OutOfBoundsFault for an
    element out of bounds without an `else` number, and a RaceFault if an element of memory is overwritten and also read
    for another element.
    """
    coordinates = tile.mine.coordinates if isinstance(tile, Registers) else share(agent, tile.shape)
    memory_coordinates, in_bounds = _memory_coordinates(agent, op, coordinates, clock)
    shape = np.broadcast_shapes(*(np.shape(c) for c in (*memory_coordinates, *coordinates)))
    mask = np.ones(shape, bool) if in_bounds is None else np.broadcast_to(in_bounds, shape)
    if not mask.all() and "otherwise" not in op.attrs:
        raise OutOfBoundsFault(f"{at_line(op)} reads outside its tensor and has no `else`", op.loc)
    numpy_type = tile.data.dtype if isinstance(tile, Registers) else op.operands[0].type.dtype.numpy
    values = np.full(shape, op.attrs.get("otherwise", 0), numpy_type)
    valid_coordinates = tuple(np.broadcast_to(c, shape)[mask] for c in memory_coordinates)
    if not isinstance(tile, Registers):
        require_no_overlap(
            tile, tuple(np.broadcast_to(c, shape)[mask] for c in coordinates), memory, valid_coordinates, op
        )
    values[mask] = load(memory, valid_coordinates, op, clock)
    if isinstance(tile, Registers):
        tile.write(tile.mine, values)
    else:
        store(tile, coordinates, values, op, clock)


def scatter(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a `scatter`, for the wave `agent`: write elements of the tile to data-dependent coordinates of
    memory.

    The operands are as in `gather`. The wave writes the elements that it owns (one register for each element), if the
    tile is in registers, or the elements that `share` gives it, if the tile is in memory. If several elements have the
    same coordinates, the last one is stored; elements out of bounds are dropped. Raise a RaceFault if an element of
    memory is written that is another element of the tile. The generator yields once at first, so that other waves may
    run.
    """
    yield None
    if _has_no_elements(agent, op):
        return
    with access_clock(agent, agent.handles[op.operands[0]]) as clock:
        coordinates, values = _elements_of_wave(agent, op, clock)
        memory_coordinates, mask = _target_coordinates(agent, op, coordinates, values, clock)
        _require_tile_disjoint(agent, op, coordinates, memory_coordinates, mask)
        store(agent.handles[op.operands[1]], memory_coordinates, values[mask], op, clock, in_order=True)


def atomic(agent: Agent, op: Op) -> Steps:
    """Execute `op`, an `atomic`, for the wave `agent`: combine elements of the tile into data-dependent coordinates of
    memory, one after another.

    The operands are as in `gather`. The wave combines the elements that it owns (one register for each element), if the
    tile is in registers, or the elements that `share` gives it, if the tile is in memory. Elements out of bounds are
    dropped. Raise a RaceFault if an element is combined into memory that is another element of the tile. The generator
    yields once at first, so that other waves may run.
    """
    yield None
    if _has_no_elements(agent, op):
        return
    with access_clock(agent, agent.handles[op.operands[0]]) as clock:
        coordinates, values = _elements_of_wave(agent, op, clock)
        memory_coordinates, mask = _target_coordinates(agent, op, coordinates, values, clock)
        _require_tile_disjoint(agent, op, coordinates, memory_coordinates, mask)
        memory = agent.handles[op.operands[1]]
        memory.check(op)
        tensor, elements, in_bounds = memory.locate(memory_coordinates, op)
        elements, in_bounds_mask = spread_over(elements, in_bounds, values[mask].shape)
        tensor.buffer.combine(elements[in_bounds_mask], values[mask][in_bounds_mask], op.attrs["how"], clock, op)


def _require_tile_disjoint(
    agent: Agent, op: Op, coordinates: tuple[Any, ...], memory_coordinates: tuple[Array, ...], mask: Array
) -> None:
    """Raise a RaceFault if `op`, a scatter or atomic of the wave `agent`, writes an element of memory that is another
    element of its tile.

    `coordinates` are the tile coordinates of the wave's elements. `memory_coordinates` are the memory coordinates of
    the elements that `mask` selects. A tile in registers is not tested.
    """
    tile, memory = (agent.handles[v] for v in op.operands[:2])
    if not isinstance(tile, Registers):
        require_no_overlap(
            memory, memory_coordinates, tile, tuple(np.broadcast_to(c, mask.shape)[mask] for c in coordinates), op
        )


def _has_no_elements(agent: Agent, op: Op) -> bool:
    """True if the wave `agent` handles no element in `op`, a scatter or atomic: the tile is a single element in memory,
    and another wave of the group handles it.
    """
    tile = agent.handles[op.operands[0]]
    return not isinstance(tile, Registers) and idle(agent, tile.shape)


def _elements_of_wave(agent: Agent, op: Op, clock: Clock) -> tuple[tuple[Any, ...], Array]:
    """Return (coordinates, values) of the elements of the tile, operand 0 of `op`, that the wave `agent` handles.

    `op` is a scatter or atomic. For a tile in registers, they are the elements that the wave holds, each element in one
    lane only. For a tile in memory, they are the elements that `share` gives the wave, loaded under the vector clock
    `clock`.
    """
    tile = agent.handles[op.operands[0]]
    if isinstance(tile, Registers):
        return tile.owned.coordinates, tile.read(tile.owned, op)
    coordinates = tuple(np.broadcast_arrays(*share(agent, tile.shape))) if tile.shape else ()
    return coordinates, load(tile, coordinates, op, clock)


def _target_coordinates(
    agent: Agent, op: Op, at: tuple[Any, ...], values: Array, clock: Clock
) -> tuple[tuple[Array, ...], Array]:
    """Return (memory coordinates of the elements in bounds, mask of these elements) for `op`, a scatter or atomic.

    `at` are the tile coordinates and `values` the values of the elements that the wave `agent` handles. Integers that
    the coordinates depend on are loaded under the vector clock `clock`.
    """
    memory_coordinates, in_bounds = _memory_coordinates(agent, op, at, clock)
    mask = np.ones(values.shape, bool) if in_bounds is None else np.broadcast_to(in_bounds, values.shape)
    return tuple(np.broadcast_to(c, values.shape)[mask] for c in memory_coordinates), mask


def debug_log(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a `debug_log`, for the wave `agent`: append (label, whole tensor as an array) to the worker's log.

    Every wave reads the tensor (in registers, the waves exchange elements), but only the first wave appends it. The
    generator yields once at first, so that other waves may run.
    """
    yield None
    source = agent.handles[op.operands[0]]
    if isinstance(source, Registers):
        exchanged = yield from agent.exchange(op, source.table(op))
        values = np.zeros(int(np.prod(source.shape, dtype=np.int64)), source.data.dtype)
        for wave_values, known in exchanged:
            values[known] = wave_values[known]
        values = values.reshape(source.shape)
    else:
        values = load(source, grid(source.shape), op, agent.clock)
    if agent.wave == 0:
        agent.worker.logs.append((op.attrs["label"], values))
