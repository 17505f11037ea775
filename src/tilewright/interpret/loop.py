"""The interpreter of loop programs: the block interpreter's agents, with vectors instead of distributed tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import OutOfBoundsFault, ProgramError, RaceFault, UninitialisedFault
from tilewright.interpret import lane_copies, lane_order, loop_waves
from tilewright.interpret.block import control, moving
from tilewright.interpret.block.formulas import compute as compute_formula
from tilewright.interpret.block.memory import Buffer, TensorMemory, at_line, box, full, grid, within
from tilewright.interpret.block.worker import Agent, Copying, Steps
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.core import Op
from tilewright.ir.formula import Formula
from tilewright.ir.loop_types import BarrierType, FragmentType, VectorType
from tilewright.ir.tensors import numbers
from tilewright.machine import RegisterOperand

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(eq=False)
class Vector:
    """A register of one wave, and whether it was ever written."""

    data: Array
    name: str
    initialised: bool = False
    writing: list[Copying] = field(default_factory=list)
    """Products under way that change it; `reading`, those that take it as a factor. A settled one is covered."""
    reading: list[Copying] = field(default_factory=list)

    def read(self, op: Op) -> Array:
        """Its lanes."""
        self._require_settled(op, self.writing, "reads")
        return self.taken(op)

    def taken(self, op: Op) -> Array:
        """Its lanes, for a product under way."""
        if not self.initialised:
            raise UninitialisedFault(f"{at_line(op)} reads %{self.name}, which nothing wrote", op.loc)
        return self.data

    def write(self, values: Any, op: Op | None = None) -> None:
        """Its lanes become the values."""
        if op is not None:
            self._require_settled(op, [*self.writing, *self.reading], "changes")
        self.become(values)

    def become(self, values: Any) -> None:
        """Its lanes become the values, by a product under way."""
        self.data[...] = values
        self.initialised = True

    def start(self, op: Op, copying: Copying, writes: bool) -> None:
        """A product begins that changes it, or takes it as a factor."""
        if not writes:
            self._require_settled(op, self.writing, "reads")
        under_way = self.writing if writes else self.reading
        under_way[:] = [*(c for c in under_way if not c.covered), copying]

    def _require_settled(self, op: Op, under_way: list[Copying], does: str) -> None:
        if any(not c.covered for c in under_way):
            raise RaceFault(
                f"{at_line(op)} {does} %{self.name} while {at_line(under_way[0].op)} is under way: a settle is missing",
                op.loc,
            )

    def snapshot(self) -> Vector:
        """A copy, for a part that is deferred."""
        return Vector(self.data.copy(), self.name, self.initialised)


def alloc(agent: Agent, op: Op) -> Steps | None:
    """A register, or flat memory."""
    kind = op.attrs["type"]
    if isinstance(kind, BarrierType):
        loop_waves.alloc_barrier(agent, op)
        return None
    if not isinstance(kind, VectorType):
        return moving.alloc(agent, op)
    data = np.zeros(numbers(kind.shape, kind), kind.dtype.numpy)
    agent.handles[op.results[0]] = Vector(data, op.results[0].name or "vector")
    return None


def _places(agent: Agent, op: Op, memory: TensorMemory) -> tuple[Array, Array]:
    """(places, which lanes are active) of a load or store."""
    shape, lanes = box(op.attrs["over"], op.name)
    values = {**agent.values, **lanes}
    place = full(evaluated(op.attrs["at"][0], values), shape)
    if "when" in op.attrs:
        active = full(np.asarray(evaluated(op.attrs["when"], values)) != 0, shape)
    else:
        active = np.ones(shape, bool)
    return _located(memory, place, active, op), active


def _located(memory: TensorMemory, place: Array, active: Array, op: Op) -> Array:
    """Places in the buffer; those that are active lie in the memory, which may be touched now."""
    size = memory.buffer.data.size if memory.hold is None else int(np.prod(memory.shape, dtype=np.int64))
    if not within(place, size) and (outside := active & ((place < 0) | (place >= size))).any():
        raise OutOfBoundsFault(
            f"{at_line(op)} touches element {int(place[outside][0])} of {memory.buffer.name}, which has {size}", op.loc
        )
    memory.check(op)
    place = place + memory.offset
    found: Array = memory.swizzle(place) if memory.swizzle is not None else place
    return found


def _single(agent: Agent, op: Op, memory: TensorMemory) -> Array:
    """The place of an operation on one element."""
    place = np.asarray([int(evaluated(op.attrs["at"][0], agent.values))])
    return _located(memory, place, np.ones(1, bool), op)


def load(agent: Agent, op: Op) -> Steps:
    """Each lane loads its element; lanes left out become the `else` number."""
    yield None
    target, memory = (agent.handles[v] for v in op.operands)
    places, active = _places(agent, op, memory)
    if isinstance(op.operands[0].type, FragmentType):
        lane_order.loaded(agent, memory.buffer, places, active, op)
    values = np.full(places.shape, op.attrs.get("otherwise", 0), target.data.dtype)
    values[active] = memory.buffer.read(places[active], agent.clock, op)
    target.write(values, op)


def store(agent: Agent, op: Op) -> Steps:
    """Each active lane stores its element."""
    yield None
    source, memory = (agent.handles[v] for v in op.operands)
    places, active = _places(agent, op, memory)
    if isinstance(op.operands[0].type, FragmentType):
        lane_order.stored(agent, memory.buffer, places, active, op)
    memory.buffer.write(places[active], source.read(op)[active], agent.clock, op, memory.staged)
    loop_waves.stored(agent, memory.buffer, places[active])


def prefetch(agent: Agent, op: Op) -> Steps | None:
    """A hint."""
    return None


def compute(agent: Agent, op: Op) -> Steps | None:
    """Element by element."""
    target = agent.handles[op.operands[0]]

    def leaf(f: Formula) -> Any:
        return agent.handles[op.operands[f.value]].read(op), op.operands[f.value].type.dtype

    lanes = dict(zip((s.name for s in op.attrs.get("over", ())), grid(target.data.shape), strict=False))
    target.write(compute_formula(op.attrs["formula"], leaf, op.operands[0].type.dtype, {**agent.values, **lanes}), op)
    return None


def shuffle(agent: Agent, op: Op) -> Steps | None:
    """Each lane takes another lane's element."""
    target, source = (agent.handles[v] for v in op.operands)
    shape = target.data.shape
    known = {**agent.values, **dict(zip((s.name for s in op.attrs["over"]), grid(shape), strict=True))}
    values = source.read(op)
    places = []
    for e, size in zip(op.attrs["at"], values.shape, strict=True):
        place = full(evaluated(e, known), shape)
        if not within(place, size):
            raise OutOfBoundsFault(f"{at_line(op)} takes lane {int(place.max())} of {size}", op.loc)
        places.append(place)
    target.write(values[tuple(places)], op)
    return None


def transpose(agent: Agent, op: Op) -> Steps | None:
    """Registers are the rows of a matrix of units: it becomes its transpose, read row by row."""
    registers = [agent.handles[v] for v in op.operands]
    rows = np.stack([register.read(op) for register in registers])
    units = rows.reshape(len(registers), -1, int(op.attrs["unit"])).transpose(1, 0, 2)
    for register, row in zip(registers, units.reshape(rows.shape), strict=True):
        register.write(row, op)
    return None


def reduce(agent: Agent, op: Op) -> Steps | None:
    """All lanes combined into one number."""
    source, target = (agent.handles[v] for v in op.operands)
    kind = op.operands[0].type.dtype
    how: Any = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op.attrs["with"]]
    wide = kind.accumulator.numpy if op.attrs["with"] in ("sum", "prod") else kind.numpy
    with np.errstate(all="ignore"):
        target.write(how.reduce(source.read(op).reshape(-1).astype(wide)).astype(kind.numpy))
    return None


def atom(agent: Agent, op: Op) -> Steps | None:
    """The multiplication atom, through its operands' layouts."""
    machine = agent.worker.machine
    if machine is None:
        raise ProgramError(f"{at_line(op)}: the program names no machine", op.loc)
    found = machine.multiply_atom(op.attrs["atom"])
    if isinstance(op.operands[0].type, FragmentType):
        return loop_waves.product(agent, op, found)
    c, a, b = (agent.handles[v] for v in op.operands)
    parts: list[Array] = []
    for vector, operand in ((a, found.a), (b, found.b), (c, found.c)):
        if not isinstance(operand, RegisterOperand):
            raise ProgramError(f"{at_line(op)}: {found.name} reads memory itself; this form is not interpreted", op.loc)
        data = vector.read(op)
        shape = (operand.lanes, operand.values)
        if data.size == operand.values and operand.lanes != 1 and data.ndim <= 1 and data.size != np.prod(shape):
            data = np.broadcast_to(data.reshape(1, -1), shape)  # one number for all lanes
        parts.append(data.reshape(shape))
    c.write(found.run(*parts).reshape(c.data.shape))
    return None


def atomic(agent: Agent, op: Op) -> Steps:
    """One number combined into memory."""
    yield None
    source, memory = (agent.handles[v] for v in op.operands)
    if "over" in op.attrs:
        places, active = _places(agent, op, memory)
        memory.buffer.combine(places[active], source.read(op)[active], op.attrs["how"], agent.clock, op)
        return
    if "when" in op.attrs and not evaluated(op.attrs["when"], agent.values):
        return
    place = _single(agent, op, memory)
    memory.buffer.combine(place, source.read(op).reshape(1), op.attrs["how"], agent.clock, op)


def fill(agent: Agent, op: Op) -> Steps | None:
    """Every lane becomes the number."""
    agent.handles[op.operands[0]].write(op.attrs["value"], op)
    return None


def read(agent: Agent, op: Op) -> Steps | None:
    """A number in a register becomes a value for addresses."""
    found = agent.handles[op.operands[0]].read(op)
    lanes: Any = found.astype(np.int64) if found.ndim else int(found)  # one in each lane: addresses differ by lane
    agent.values[op.attrs["symbol"].name] = lanes
    return None


def constant(agent: Agent, op: Op) -> Steps | None:
    """A table of integers."""
    shape, names = box(op.attrs["over"], "constant")
    values = np.broadcast_to(np.asarray(evaluated(op.attrs["value"], names)), shape)
    data = values.astype(op.attrs["dtype"].numpy).reshape(-1)
    name = f"%{op.results[0].name or 'constant'}"
    buffer = Buffer(name, data, "constant", True)
    agent.handles[op.results[0]] = TensorMemory.whole(buffer, op.results[0].type)
    return None


def fetch(agent: Agent, op: Op) -> Steps:
    """A number in memory becomes a value for addresses."""
    yield None
    memory = agent.handles[op.operands[0]]
    agent.values[op.attrs["symbol"].name] = int(memory.buffer.read(_single(agent, op, memory), agent.clock, op)[0])


def while_(agent: Agent, op: Op) -> Steps:
    """The body as long as the number is not zero."""
    for _ in range(1_000_000):
        if not agent.handles[op.operands[0]].read(op).any():
            return
        yield from agent.run(op.blocks[0])
    raise ProgramError(f"{at_line(op)} has run a million times", op.loc)


HANDLERS: dict[str, Any] = {
    "alloc": alloc,
    "load": load,
    "store": store,
    "prefetch": prefetch,
    "compute": compute,
    "shuffle": shuffle,
    "transpose": transpose,
    "reduce": reduce,
    "atom": atom,
    "fill": fill,
    "atomic": atomic,
    "read": read,
    "constant": constant,
    "fetch": fetch,
    "bitcast": moving.bitcast,
    "while": while_,
    "let": moving.let,
    "for": control.for_,
    "if": control.if_,
    "tasks": control.tasks,
    "role": control.role,
    "channel": control.channel,
    "acquire": control.acquire,
    "commit": control.commit,
    "wait": control.wait,
    "release": control.release,
    **loop_waves.HANDLERS,
    **lane_copies.HANDLERS,
}
