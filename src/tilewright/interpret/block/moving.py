"""Interpret operations on memory and registers: alloc, view, fill, copy, gather, scatter, atomic, debug_log.

An operation on registers is executed by the waves that hold them. An operation from memory to memory is shared among
the waves of the group; a program may not rely on which wave handles which element.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.errors import OutOfBoundsFault, ProgramError
from tilewright.interpret.block.clocks import Clock
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
from tilewright.interpret.block.registers import Registers
from tilewright.interpret.block.worker import Agent, Copying, Steps
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.core import Op
from tilewright.ir.tensors import RegisterType

Array = np.ndarray[Any, np.dtype[Any]]
Memory = TensorMemory | TensorWindow


def alloc(agent: Agent, op: Op) -> Steps | None:
    """Execute an `alloc`: bind its result to uninitialised memory or registers."""
    kind = op.attrs["type"]
    allocate = agent.worker.registers if isinstance(kind, RegisterType) else agent.worker.shared_tensor
    agent.handles[op.results[0]] = allocate(agent, op, kind)
    return None


def view(agent: Agent, op: Op) -> Steps | None:
    """Execute a `view`: bind its result to a view of the operand; no element is accessed."""
    base = agent.handles[op.operands[0]]
    agent.handles[op.results[0]] = agent.worker.view(base, op, agent.values)
    return None


def bitcast(agent: Agent, op: Op) -> Steps | None:
    """Execute a `bitcast`: bind its result to the same bits as another element type."""
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
    """Do nothing: expressions contain the definition of a `let` name."""
    return None


# -- reading and writing memory -------------------------------------------------------------------------


def load(memory: Memory, coordinates: tuple[Any, ...], op: Op, clock: Clock, otherwise: Any = None) -> Array:
    """Return the elements of `memory` at `coordinates`; `otherwise` replaces those out of bounds. Raise an
    OutOfBoundsFault if it is None and an element is out of bounds.
    """
    memory.check(op)
    tensor, places, in_bounds = memory.locate(coordinates, op)
    shape = np.broadcast(*coordinates, places).shape
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


def store(
    memory: Memory, coordinates: tuple[Any, ...], values: Any, op: Op, clock: Clock, in_order: bool = False
) -> None:
    """Set the elements of `memory` at `coordinates` to `values`; those out of bounds are dropped. With `in_order`, one
    element may be set several times, and the last value stays.
    """
    memory.check(op)
    if not coordinates:  # a single element; no value for it: another wave holds it
        values = np.asarray(values).reshape(-1)[:1]
        if not values.size:
            return
        values = values[0]
    tensor, places, in_bounds = memory.locate(coordinates, op)
    shape = np.broadcast(*coordinates, places).shape
    if in_bounds is None:
        places, kept_values = (full(x, shape).reshape(-1) for x in (places, values))
    else:
        places, mask = spread_over(places, in_bounds, shape)
        places, kept_values = places[mask], full(values, shape)[mask]
    tensor.buffer.write(places, kept_values, clock, op, tensor.staged, in_order)


def idle(agent: Agent, shape: tuple[int, ...]) -> bool:
    """True if the wave has no part in a collective operation on memory of this shape: a single element is handled by
    one wave.
    """
    waves = agent.group.waves
    return not shape and waves > 1 and (agent.wave + agent.worker.seed) % waves != 0


def share(agent: Agent, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Return the coordinates of the elements of this shape that the wave handles in a collective operation on
    memory.
    """
    if agent.group.waves == 1:
        return grid(shape)
    size = int(np.prod(shape, dtype=np.int64))
    per_wave = -(-size // agent.group.waves)
    share_number = (agent.wave + agent.worker.seed) % agent.group.waves
    flat = np.arange(share_number * per_wave, min(size, (share_number + 1) * per_wave))
    return np.unravel_index(flat, shape) if shape else ()


def part(agent: Agent, *tiles: Registers | Memory) -> AbstractContextManager[Clock]:
    """Return a context manager for the clock of the wave's part of an operation on `tiles`. With registers it is the
    wave's own clock; for memory alone it is the clock of a new actor, since it is not said which wave handles which
    element.
    """
    return nullcontext(agent.clock) if any(isinstance(tile, Registers) for tile in tiles) else agent.part()


# -- operations -----------------------------------------------------------------------------------------


def fill(agent: Agent, op: Op) -> Steps | None:
    """Execute a `fill` for the wave `agent`: set its elements of the target to the number."""
    target = agent.handles[op.operands[0]]
    value = op.attrs["value"]
    if isinstance(target, Registers):
        target.write(target.mine, np.asarray(value).astype(target.data.dtype))
        return None
    if idle(agent, target.shape):
        return None
    return _fill_memory(agent, op, target)


def _fill_memory(agent: Agent, op: Op, target: Memory) -> Steps:
    """Set the wave's share of the memory `target` to the number of the `fill`."""
    yield None
    with agent.part() as clock:
        store(target, share(agent, target.shape), op.attrs["value"], op, clock)


def copy(agent: Agent, op: Op) -> Steps | None:
    """Execute a `copy` for the wave `agent`: at once, or as an asynchronous copy if its atom is asynchronous."""
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
    """Execute a synchronous `copy` for the wave `agent`: the elements that it holds in registers, or its share of the
    memory.
    """
    yield None
    source, target = (agent.handles[v] for v in op.operands)
    otherwise = op.attrs.get("otherwise")
    if isinstance(target, Registers):
        held = target.mine
        if isinstance(source, Registers):
            values = _registers_to_registers(source, target, op)
        else:
            values = load(source, target.coordinates(held), op, agent.clock, otherwise)
        target.write(held, values)
    elif isinstance(source, Registers):
        held = source.mine & source.first
        store(target, source.coordinates(held), source.read(held, op), op, agent.clock)
    elif not idle(agent, source.shape):
        coordinates = share(agent, source.shape)
        with agent.part() as clock:
            require_no_overlap(target, coordinates, source, coordinates, op)
            store(target, coordinates, load(source, coordinates, op, clock, otherwise), op, clock)


def _registers_to_registers(source: Registers, target: Registers, op: Op) -> Array:
    """Return the new values of the wave's registers of `target`, each from the registers of the same lane in
    `source`.
    """
    if source.ids.shape == target.ids.shape and np.array_equal(source.ids, target.ids):
        return source.read(target.mine, op)
    lanes, _ = np.nonzero(target.mine)
    return source.at_lanes(lanes, target.ids[target.mine], op)


def _start_async_copy(agent: Agent, op: Op) -> Steps:
    """Start an asynchronous copy between memories from the first wave of the group. It finishes later; the commit of
    the stage that it writes, or the release of the stage that it reads, waits for it.
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
        """Copy the elements; the scheduler calls this at some later time."""
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
    """Return the same memory without its hold on a channel stage, which was checked when the copy started."""
    if isinstance(memory, TensorWindow):
        return TensorWindow(_without_hold(memory.base), memory.op, memory.values, memory.shape)
    return replace(memory, hold=None)


# -- data-dependent coordinates -----------------------------------------------------------------------------


def _memory_coordinates(
    agent: Agent, op: Op, coordinates: tuple[Any, ...], clock: Clock
) -> tuple[tuple[Any, ...], Any]:
    """Return (coordinates in the memory operand of a gather, scatter or atomic, True for each that is in bounds) for
    `coordinates` of the tile. The second is None if all are in bounds.
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
    """Execute a `gather` for the wave `agent`: set its elements of the tile from data-dependent coordinates of memory;
    `else` replaces those out of bounds.
    """
    yield None
    tile, memory = (agent.handles[v] for v in op.operands[:2])
    if not isinstance(tile, Registers) and idle(agent, tile.shape):
        return
    with part(agent, tile) as clock:
        _gather(agent, op, tile, memory, clock)


def _gather(agent: Agent, op: Op, tile: Registers | Memory, memory: Memory, clock: Clock) -> None:
    """Gather the wave's elements of `tile` from `memory` under `clock`."""
    coordinates = tile.coordinates(tile.mine) if isinstance(tile, Registers) else share(agent, tile.shape)
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
    """Execute a `scatter` for the wave `agent`: write its elements of the tile to data-dependent coordinates of memory.
    If several elements have the same coordinates, the last stays.
    """
    yield None
    if _has_no_part(agent, op):
        return
    with part(agent, agent.handles[op.operands[0]]) as clock:
        coordinates, values = _own_elements(agent, op, clock)
        memory_coordinates, mask = _target_coordinates(agent, op, coordinates, values, clock)
        _require_tile_disjoint(agent, op, coordinates, memory_coordinates, mask)
        store(agent.handles[op.operands[1]], memory_coordinates, values[mask], op, clock, in_order=True)


def atomic(agent: Agent, op: Op) -> Steps:
    """Execute an `atomic` for the wave `agent`: combine its elements of the tile into data-dependent coordinates of
    memory, one after another.
    """
    yield None
    if _has_no_part(agent, op):
        return
    with part(agent, agent.handles[op.operands[0]]) as clock:
        coordinates, values = _own_elements(agent, op, clock)
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
    """Raise a RaceFault if a scatter or atomic writes an element of memory that it also reads from the tile for another
    element.
    """
    tile, memory = (agent.handles[v] for v in op.operands[:2])
    if not isinstance(tile, Registers):
        require_no_overlap(
            memory, memory_coordinates, tile, tuple(np.broadcast_to(c, mask.shape)[mask] for c in coordinates), op
        )


def _has_no_part(agent: Agent, op: Op) -> bool:
    """True if the wave has nothing to do in a scatter or atomic: the tile is a single element in memory that another
    wave handles.
    """
    tile = agent.handles[op.operands[0]]
    return not isinstance(tile, Registers) and idle(agent, tile.shape)


def _own_elements(agent: Agent, op: Op, clock: Clock) -> tuple[tuple[Any, ...], Array]:
    """Return (coordinates, values) of the elements that this wave handles of the tile, the first operand of a scatter
    or atomic.
    """
    tile = agent.handles[op.operands[0]]
    if isinstance(tile, Registers):
        held = tile.mine & tile.first
        return tile.coordinates(held), tile.read(held, op)
    coordinates = tuple(np.broadcast_arrays(*share(agent, tile.shape))) if tile.shape else ()
    return coordinates, load(tile, coordinates, op, clock)


def _target_coordinates(
    agent: Agent, op: Op, at: tuple[Any, ...], values: Array, clock: Clock
) -> tuple[tuple[Array, ...], Array]:
    """Return (memory coordinates of the elements in bounds, mask of these elements) for a scatter or atomic of `values`
    at the tile coordinates `at`.
    """
    memory_coordinates, in_bounds = _memory_coordinates(agent, op, at, clock)
    mask = np.ones(values.shape, bool) if in_bounds is None else np.broadcast_to(in_bounds, values.shape)
    return tuple(np.broadcast_to(c, values.shape)[mask] for c in memory_coordinates), mask


def debug_log(agent: Agent, op: Op) -> Steps:
    """Execute a `debug_log` for the wave `agent`: record the whole tensor under its label; the first wave does so."""
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
