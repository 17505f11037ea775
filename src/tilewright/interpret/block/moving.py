"""Memory and registers: alloc, view, fill, copy, gather, scatter, atomic, debug_log.

An operation on registers is done by the waves that hold them. One from memory to memory is shared out among the waves
of the group; which wave does which element is not said, so a program may not rely on it.
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
    require_apart,
    spread,
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
    """Memory or registers, not initialised."""
    kind = op.attrs["type"]
    made = agent.worker.registers if isinstance(kind, RegisterType) else agent.worker.shared_tensor
    agent.handles[op.results[0]] = made(agent, op, kind)
    return None


def view(agent: Agent, op: Op) -> Steps | None:
    """A view: nothing happens yet."""
    base = agent.handles[op.operands[0]]
    agent.handles[op.results[0]] = agent.worker.view(base, op, agent.values)
    return None


def bitcast(agent: Agent, op: Op) -> Steps | None:
    """The same bits as another element type."""
    base, form = agent.handles[op.operands[0]], op.attrs["dtype"].numpy
    if isinstance(base, Registers):
        agent.handles[op.results[0]] = base.bitcast(form)
        return None
    if isinstance(base, TensorWindow):
        raise ProgramError("bitcast of a view: bitcast the tensor, then view it", op.loc)
    other = base.buffer.alike(data=base.buffer.data.view(form))
    agent.handles[op.results[0]] = replace(base, buffer=other)
    return None


def let(agent: Agent, op: Op) -> Steps | None:
    """A name: expressions know what it stands for."""
    return None


# -- reading and writing memory -------------------------------------------------------------------------


def load(memory: Memory, coordinates: tuple[Any, ...], op: Op, clock: Clock, otherwise: Any = None) -> Array:
    """The elements at these coordinates; outside, `otherwise`."""
    memory.check(op)
    bottom, places, inside = memory.locate(coordinates, op)
    shape = np.broadcast(*coordinates, places).shape
    if inside is None:
        return bottom.buffer.read(full(places, shape), clock, op)
    places, mask = spread(places, inside, shape)
    if mask.all():
        return bottom.buffer.read(places, clock, op)
    if otherwise is None:
        raise OutOfBoundsFault(f"{at_line(op)} reads outside its tensor and has no `else`", op.loc)
    found = np.full(shape, otherwise, bottom.buffer.data.dtype)
    found[mask] = bottom.buffer.read(places[mask], clock, op)
    return found


def store(
    memory: Memory, coordinates: tuple[Any, ...], values: Any, op: Op, clock: Clock, in_order: bool = False
) -> None:
    """These elements become the values; those outside are dropped."""
    memory.check(op)
    if not coordinates:  # a single element; no value for it: another wave holds it
        values = np.asarray(values).reshape(-1)[:1]
        if not values.size:
            return
        values = values[0]
    bottom, places, inside = memory.locate(coordinates, op)
    shape = np.broadcast(*coordinates, places).shape
    if inside is None:
        places, given = (full(x, shape).reshape(-1) for x in (places, values))
    else:
        places, mask = spread(places, inside, shape)
        places, given = places[mask], full(values, shape)[mask]
    bottom.buffer.write(places, given, clock, op, bottom.staged, in_order)


def idle(agent: Agent, shape: tuple[int, ...]) -> bool:
    """Whether the wave has no part in a collective operation on memory: a single element is one wave's to do."""
    waves = agent.group.waves
    return not shape and waves > 1 and (agent.wave + agent.worker.seed) % waves != 0


def share(agent: Agent, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """The coordinates of the elements that this wave does of a collective operation on memory."""
    if agent.group.waves == 1:
        return grid(shape)
    size = int(np.prod(shape, dtype=np.int64))
    part = -(-size // agent.group.waves)
    turn = (agent.wave + agent.worker.seed) % agent.group.waves
    flat = np.arange(turn * part, min(size, (turn + 1) * part))
    return np.unravel_index(flat, shape) if shape else ()


def part(agent: Agent, *tiles: Registers | Memory) -> AbstractContextManager[Clock]:
    """The clock of a wave's part: who holds registers is said, who does an element of memory is not."""
    return nullcontext(agent.clock) if any(isinstance(t, Registers) for t in tiles) else agent.part()


# -- operations -----------------------------------------------------------------------------------------


def fill(agent: Agent, op: Op) -> Steps | None:
    """Every element becomes the number."""
    target = agent.handles[op.operands[0]]
    value = op.attrs["value"]
    if isinstance(target, Registers):
        target.write(target.mine, np.asarray(value).astype(target.data.dtype))
        return None
    if idle(agent, target.shape):
        return None
    return _filled(agent, op, target)


def _filled(agent: Agent, op: Op, target: Memory) -> Steps:
    yield None
    with agent.part() as clock:
        store(target, share(agent, target.shape), op.attrs["value"], op, clock)


def copy(agent: Agent, op: Op) -> Steps | None:
    """Elements from one tensor to another, at once or under way."""
    atom = op.attrs.get("by")
    machine = agent.worker.machine
    asynchronous = False
    if atom is not None:
        if machine is None:
            raise ProgramError(f"{at_line(op)}: the program names no machine, so {atom} has no meaning", op.loc)
        asynchronous = machine.copy_atom(atom).asynchronous
    if asynchronous:
        return _start(agent, op)
    return _copy(agent, op)


def _copy(agent: Agent, op: Op) -> Steps:
    yield None
    source, target = (agent.handles[v] for v in op.operands)
    otherwise = op.attrs.get("otherwise")
    if isinstance(target, Registers):
        chosen = target.mine
        if isinstance(source, Registers):
            values = _from_registers(source, target, op)
        else:
            values = load(source, target.coordinates(chosen), op, agent.clock, otherwise)
        target.write(chosen, values)
    elif isinstance(source, Registers):
        chosen = source.mine & source.first
        store(target, source.coordinates(chosen), source.read(chosen, op), op, agent.clock)
    elif not idle(agent, source.shape):
        at = share(agent, source.shape)
        with agent.part() as clock:
            require_apart(target, at, source, at, op)
            store(target, at, load(source, at, op, clock, otherwise), op, clock)


def _from_registers(source: Registers, target: Registers, op: Op) -> Array:
    """What each lane's registers of the target become, from the same lane's of the source."""
    if source.ids.shape == target.ids.shape and np.array_equal(source.ids, target.ids):
        return source.read(target.mine, op)
    lanes, _ = np.nonzero(target.mine)
    return source.at_lanes(lanes, target.ids[target.mine], op)


def _start(agent: Agent, op: Op) -> Steps:
    """A copy that goes on by itself: its first wave starts it; commit or release see to its end."""
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
    at = grid(source.shape)

    def finish() -> None:
        store(target, at, load(_bare(source), at, op, clock, otherwise), op, clock)

    held, keeping = target.hold, source.hold
    target = _bare(target)
    copying = Copying(finish, op, clock)
    worker.copies.append(copying)
    if held is not None:
        held.fill.landing.append(copying)
        held.fill.knows.append(clock.known)
        copying.covered = True
    if keeping is not None:
        keeping.fill.leaving.append(copying)
        keeping.fill.freed.append(clock.known)
        copying.covered = True


def _bare(memory: Memory) -> Memory:
    """The same memory without the hold: checked when the copy started."""
    if isinstance(memory, TensorWindow):
        return TensorWindow(_bare(memory.base), memory.op, memory.values, memory.shape)
    return replace(memory, hold=None)


# -- places that are data -----------------------------------------------------------------------------------


def _places(agent: Agent, op: Op, coordinates: tuple[Any, ...], clock: Clock) -> tuple[tuple[Any, ...], Any]:
    """(coordinates in the memory operand, which count) for coordinates of the tile."""
    names = [s.name for s in op.attrs["over"]]
    values: dict[str, Any] = {**agent.values, **dict(zip(names, coordinates, strict=True))}
    fetched = {}
    for (name, at), value in zip(op.attrs.get("where", ()), op.operands[2:], strict=True):
        source = agent.handles[value]
        place = tuple(np.asarray(evaluated(e, values)) for e in at)
        if isinstance(source, Registers):
            table, known = source.table(op)
            flat = np.ravel_multi_index(tuple(np.broadcast_arrays(*place)), source.shape) if source.shape else 0
            if not np.all(known[flat]):
                raise ProgramError(f"{at_line(op)}: this wave does not hold the places it needs in registers", op.loc)
            fetched[name.name] = table[flat].astype(np.int64)
        else:
            fetched[name.name] = load(source, place, op, clock).astype(np.int64)
    values |= fetched
    memory = agent.handles[op.operands[1]]
    found, inside = [], None
    for dim, ((e, loose), size) in enumerate(zip(op.attrs["at"], memory.shape, strict=True)):
        c = evaluated(e, values)
        if not within(c, size):
            ok = (c >= 0) & (c < size)
            if not loose:
                raise OutOfBoundsFault(
                    f"{at_line(op)}: coordinate {dim}, {e}, leaves 0..{size}; if that may be, mark it with ?", op.loc
                )
            inside = ok if inside is None else inside & ok
            c = np.clip(c, 0, size - 1)
        found.append(c)
    return tuple(found), inside


def gather(agent: Agent, op: Op) -> Steps:
    """Elements at places that are data; outside, `else`."""
    yield None
    tile, memory = (agent.handles[v] for v in op.operands[:2])
    if not isinstance(tile, Registers) and idle(agent, tile.shape):
        return
    with part(agent, tile) as clock:
        _gather(agent, op, tile, memory, clock)


def _gather(agent: Agent, op: Op, tile: Registers | Memory, memory: Memory, clock: Clock) -> None:
    at = tile.coordinates(tile.mine) if isinstance(tile, Registers) else share(agent, tile.shape)
    places, inside = _places(agent, op, at, clock)
    shape = np.broadcast_shapes(*(np.shape(c) for c in (*places, *at)))
    mask = np.ones(shape, bool) if inside is None else np.broadcast_to(inside, shape)
    if not mask.all() and "otherwise" not in op.attrs:
        raise OutOfBoundsFault(f"{at_line(op)} reads outside its tensor and has no `else`", op.loc)
    form = tile.data.dtype if isinstance(tile, Registers) else op.operands[0].type.dtype.numpy
    values = np.full(shape, op.attrs.get("otherwise", 0), form)
    chosen_places = tuple(np.broadcast_to(c, shape)[mask] for c in places)
    if not isinstance(tile, Registers):
        require_apart(tile, tuple(np.broadcast_to(c, shape)[mask] for c in at), memory, chosen_places, op)
    values[mask] = load(memory, chosen_places, op, clock)
    if isinstance(tile, Registers):
        tile.write(tile.mine, values)
    else:
        store(tile, at, values, op, clock)


def scatter(agent: Agent, op: Op) -> Steps:
    """Elements to places that are data; the last of several at one place stays."""
    yield None
    if _leaves_out(agent, op):
        return
    with part(agent, agent.handles[op.operands[0]]) as clock:
        at, values = _tile(agent, op, clock)
        places, mask = _targets(agent, op, at, values, clock)
        _require_apart(agent, op, at, places, mask)
        store(agent.handles[op.operands[1]], places, values[mask], op, clock, in_order=True)


def atomic(agent: Agent, op: Op) -> Steps:
    """Elements combined into places that are data, each as one step."""
    yield None
    if _leaves_out(agent, op):
        return
    with part(agent, agent.handles[op.operands[0]]) as clock:
        at, values = _tile(agent, op, clock)
        places, mask = _targets(agent, op, at, values, clock)
        _require_apart(agent, op, at, places, mask)
        memory = agent.handles[op.operands[1]]
        memory.check(op)
        bottom, flat, inside = memory.locate(places, op)
        flat, there = spread(flat, inside, values[mask].shape)
        bottom.buffer.combine(flat[there], values[mask][there], op.attrs["how"], clock, op)


def _require_apart(agent: Agent, op: Op, at: tuple[Any, ...], places: tuple[Array, ...], mask: Array) -> None:
    tile, memory = (agent.handles[v] for v in op.operands[:2])
    if not isinstance(tile, Registers):
        require_apart(memory, places, tile, tuple(np.broadcast_to(c, mask.shape)[mask] for c in at), op)


def _leaves_out(agent: Agent, op: Op) -> bool:
    """Whether the tile is one element in memory that another wave sees to."""
    tile = agent.handles[op.operands[0]]
    return not isinstance(tile, Registers) and idle(agent, tile.shape)


def _tile(agent: Agent, op: Op, clock: Clock) -> tuple[tuple[Any, ...], Array]:
    """The coordinates and values of the tile's elements that this wave does."""
    tile = agent.handles[op.operands[0]]
    if isinstance(tile, Registers):
        chosen = tile.mine & tile.first
        return tile.coordinates(chosen), tile.read(chosen, op)
    at = tuple(np.broadcast_arrays(*share(agent, tile.shape))) if tile.shape else ()
    return at, load(tile, at, op, clock)


def _targets(agent: Agent, op: Op, at: tuple[Any, ...], values: Array, clock: Clock) -> tuple[tuple[Array, ...], Array]:
    places, inside = _places(agent, op, at, clock)
    mask = np.ones(values.shape, bool) if inside is None else np.broadcast_to(inside, values.shape)
    return tuple(np.broadcast_to(c, values.shape)[mask] for c in places), mask


def debug_log(agent: Agent, op: Op) -> Steps:
    """Keeps a tensor's values under a label."""
    yield None
    source = agent.handles[op.operands[0]]
    if isinstance(source, Registers):
        parts = yield from agent.exchange(op, source.table(op))
        values = np.zeros(int(np.prod(source.shape, dtype=np.int64)), source.data.dtype)
        for found, known in parts:
            values[known] = found[known]
        values = values.reshape(source.shape)
    else:
        values = load(source, grid(source.shape), op, agent.clock)
    if agent.wave == 0:
        agent.worker.logs.append((op.attrs["label"], values))
