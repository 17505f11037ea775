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
    """A vector register of one wave, whether it was ever written, and the asynchronous products that use it."""

    data: Array
    name: str
    initialised: bool = False
    writing: list[Copying] = field(default_factory=list)
    """Asynchronous products that write it (`reading`: that read it). A product is covered once it was waited for."""
    reading: list[Copying] = field(default_factory=list)

    def read(self, op: Op) -> Array:
        """Return the lanes' values. Raise a fault if the vector was never written, or if an asynchronous product may
        still write it.
        """
        self._require_settled(op, self.writing, "reads")
        return self.taken(op)

    def taken(self, op: Op) -> Array:
        """Return the lanes' values for an asynchronous product. Raise an UninitialisedFault if the vector was never
        written.
        """
        if not self.initialised:
            raise UninitialisedFault(f"{at_line(op)} reads %{self.name}, which nothing wrote", op.loc)
        return self.data

    def write(self, values: Any, op: Op | None = None) -> None:
        """Set the lanes to `values`. If `op` is given, raise a RaceFault if an asynchronous product still uses the
        vector.
        """
        if op is not None:
            self._require_settled(op, [*self.writing, *self.reading], "changes")
        self.become(values)

    def become(self, values: Any) -> None:
        """Set the lanes to `values` without a check, as the result of an asynchronous product."""
        self.data[...] = values
        self.initialised = True

    def start(self, op: Op, copying: Copying, writes: bool) -> None:
        """Record that the asynchronous product `copying` writes the vector (`writes`) or reads it. Raise a RaceFault if
        it reads what another product may still write.
        """
        if not writes:
            self._require_settled(op, self.writing, "reads")
        in_flight = self.writing if writes else self.reading
        in_flight[:] = [*(c for c in in_flight if not c.covered), copying]

    def _require_settled(self, op: Op, in_flight: list[Copying], does: str) -> None:
        """Raise a RaceFault if one of the products `in_flight` was not waited for. `does` is the verb for the
        message.
        """
        if any(not c.covered for c in in_flight):
            raise RaceFault(
                f"{at_line(op)} {does} %{self.name} while {at_line(in_flight[0].op)} is under way: a settle is missing",
                op.loc,
            )

    def snapshot(self) -> Vector:
        """Return a copy of the register, for a deferred end of an iteration."""
        return Vector(self.data.copy(), self.name, self.initialised)


def alloc(agent: Agent, op: Op) -> Steps | None:
    """Execute an `alloc`: bind its result to counting barriers, a zeroed vector register, or flat memory."""
    kind = op.attrs["type"]
    if isinstance(kind, BarrierType):
        loop_waves.alloc_barrier(agent, op)
        return None
    if not isinstance(kind, VectorType):
        return moving.alloc(agent, op)
    data = np.zeros(numbers(kind.shape, kind), kind.dtype.numpy)
    agent.handles[op.results[0]] = Vector(data, op.results[0].name or "vector")
    return None


def _lane_offsets(agent: Agent, op: Op, memory: TensorMemory) -> tuple[Array, Array]:
    """Return (element of the memory for each lane of a load or store, True for each active lane)."""
    shape, lanes = box(op.attrs["over"], op.name)
    values = {**agent.values, **lanes}
    offsets = full(evaluated(op.attrs["at"][0], values), shape)
    if "when" in op.attrs:
        active = full(np.asarray(evaluated(op.attrs["when"], values)) != 0, shape)
    else:
        active = np.ones(shape, bool)
    return _buffer_elements(memory, offsets, active, op), active


def _buffer_elements(memory: TensorMemory, element: Array, active: Array, op: Op) -> Array:
    """Return `element`, an array of element numbers in `memory` (flat memory or a channel's stage), as element numbers
    of its buffer after the swizzle. Raise a fault if an active one is out of bounds, or if the memory must not be
    accessed now.
    """
    size = memory.buffer.data.size if memory.hold is None else int(np.prod(memory.shape, dtype=np.int64))
    if not within(element, size) and (outside := active & ((element < 0) | (element >= size))).any():
        raise OutOfBoundsFault(
            f"{at_line(op)} touches element {int(element[outside][0])} of {memory.buffer.name}, which has {size}",
            op.loc,
        )
    memory.check(op)
    element = element + memory.offset
    swizzled: Array = memory.swizzle(element) if memory.swizzle is not None else element
    return swizzled


def _single_element(agent: Agent, op: Op, memory: TensorMemory) -> Array:
    """Return the buffer element, as an array of one, of an operation that accesses one element of `memory`."""
    element = np.asarray([int(evaluated(op.attrs["at"][0], agent.values))])
    return _buffer_elements(memory, element, np.ones(1, bool), op)


def load(agent: Agent, op: Op) -> Steps:
    """Execute a `load` for the wave `agent`: each active lane loads its element; inactive lanes get the `else`
    number.
    """
    yield None
    target, memory = (agent.handles[v] for v in op.operands)
    places, active = _lane_offsets(agent, op, memory)
    if isinstance(op.operands[0].type, FragmentType):
        lane_order.loaded(agent, memory.buffer, places, active, op)
    values = np.full(places.shape, op.attrs.get("otherwise", 0), target.data.dtype)
    values[active] = memory.buffer.read(places[active], agent.clock, op)
    target.write(values, op)


def store(agent: Agent, op: Op) -> Steps:
    """Execute a `store` for the wave `agent`: each active lane stores its element."""
    yield None
    source, memory = (agent.handles[v] for v in op.operands)
    places, active = _lane_offsets(agent, op, memory)
    if isinstance(op.operands[0].type, FragmentType):
        lane_order.stored(agent, memory.buffer, places, active, op)
    memory.buffer.write(places[active], source.read(op)[active], agent.clock, op, memory.staged)
    loop_waves.stored(agent, memory.buffer, places[active])


def prefetch(agent: Agent, op: Op) -> Steps | None:
    """Do nothing: a `prefetch` is a hint."""
    return None


def compute(agent: Agent, op: Op) -> Steps | None:
    """Execute a `compute` for the wave `agent`: set a vector to a formula's values, lane by lane."""
    target = agent.handles[op.operands[0]]

    def leaf(f: Formula) -> Any:
        """Return (the values of the operand that `f` names, their element type)."""
        return agent.handles[op.operands[f.value]].read(op), op.operands[f.value].type.dtype

    lanes = dict(zip((s.name for s in op.attrs.get("over", ())), grid(target.data.shape), strict=False))
    target.write(compute_formula(op.attrs["formula"], leaf, op.operands[0].type.dtype, {**agent.values, **lanes}), op)
    return None


def shuffle(agent: Agent, op: Op) -> Steps | None:
    """Execute a `shuffle` for the wave `agent`: each lane takes the element of another lane."""
    target, source = (agent.handles[v] for v in op.operands)
    shape = target.data.shape
    symbol_values = {**agent.values, **dict(zip((s.name for s in op.attrs["over"]), grid(shape), strict=True))}
    values = source.read(op)
    lane_indices = []
    for e, size in zip(op.attrs["at"], values.shape, strict=True):
        lane_index = full(evaluated(e, symbol_values), shape)
        if not within(lane_index, size):
            raise OutOfBoundsFault(f"{at_line(op)} takes lane {int(lane_index.max())} of {size}", op.loc)
        lane_indices.append(lane_index)
    target.write(values[tuple(lane_indices)], op)
    return None


def transpose(agent: Agent, op: Op) -> Steps | None:
    """Execute a `transpose` for the wave `agent`: the registers are the rows of a matrix of units of several elements;
    they become the rows of its transpose.
    """
    registers = [agent.handles[v] for v in op.operands]
    rows = np.stack([register.read(op) for register in registers])
    units = rows.reshape(len(registers), -1, int(op.attrs["unit"])).transpose(1, 0, 2)
    for register, row in zip(registers, units.reshape(rows.shape), strict=True):
        register.write(row, op)
    return None


def reduce(agent: Agent, op: Op) -> Steps | None:
    """Execute a `reduce` for the wave `agent`: combine all lanes into one number."""
    source, target = (agent.handles[v] for v in op.operands)
    kind = op.operands[0].type.dtype
    function: Any = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op.attrs["with"]]
    carried_type = kind.accumulator.numpy if op.attrs["with"] in ("sum", "prod") else kind.numpy
    with np.errstate(all="ignore"):
        target.write(function.reduce(source.read(op).reshape(-1).astype(carried_type)).astype(kind.numpy))
    return None


def atom(agent: Agent, op: Op) -> Steps | None:
    """Execute an `atom` for the wave `agent`: multiply the registers as the atom's operand layouts say, and add to
    C.
    """
    machine = agent.worker.machine
    if machine is None:
        raise ProgramError(f"{at_line(op)}: the program names no machine", op.loc)
    mma_atom = machine.multiply_atom(op.attrs["atom"])
    if isinstance(op.operands[0].type, FragmentType):
        return loop_waves.product(agent, op, mma_atom)
    c, a, b = (agent.handles[v] for v in op.operands)
    operand_values: list[Array] = []
    for vector, operand in ((a, mma_atom.a), (b, mma_atom.b), (c, mma_atom.c)):
        if not isinstance(operand, RegisterOperand):
            raise ProgramError(
                f"{at_line(op)}: {mma_atom.name} reads memory itself; this form is not interpreted", op.loc
            )
        data = vector.read(op)
        shape = (operand.lanes, operand.values)
        if data.size == operand.values and operand.lanes != 1 and data.ndim <= 1 and data.size != np.prod(shape):
            data = np.broadcast_to(data.reshape(1, -1), shape)  # one number for all lanes
        operand_values.append(data.reshape(shape))
    c.write(mma_atom.run(*operand_values).reshape(c.data.shape))
    return None


def atomic(agent: Agent, op: Op) -> Steps:
    """Execute an `atomic` for the wave `agent`: combine one number, or one of each active lane, into memory."""
    yield None
    source, memory = (agent.handles[v] for v in op.operands)
    if "over" in op.attrs:
        places, active = _lane_offsets(agent, op, memory)
        memory.buffer.combine(places[active], source.read(op)[active], op.attrs["how"], agent.clock, op)
        return
    if "when" in op.attrs and not evaluated(op.attrs["when"], agent.values):
        return
    element = _single_element(agent, op, memory)
    memory.buffer.combine(element, source.read(op).reshape(1), op.attrs["how"], agent.clock, op)


def fill(agent: Agent, op: Op) -> Steps | None:
    """Execute a `fill` for the wave `agent`: set every lane of a vector to the number."""
    agent.handles[op.operands[0]].write(op.attrs["value"], op)
    return None


def read(agent: Agent, op: Op) -> Steps | None:
    """Execute a `read`: bind the symbol to the number in a register, for use in addresses; a vector gives each lane its
    own number.
    """
    values = agent.handles[op.operands[0]].read(op)
    lanes: Any = values.astype(np.int64) if values.ndim else int(values)  # one in each lane: addresses differ by lane
    agent.values[op.attrs["symbol"].name] = lanes
    return None


def constant(agent: Agent, op: Op) -> Steps | None:
    """Execute a `constant`: bind its result to a table of numbers."""
    shape, names = box(op.attrs["over"], "constant")
    values = np.broadcast_to(np.asarray(evaluated(op.attrs["value"], names)), shape)
    data = values.astype(op.attrs["dtype"].numpy).reshape(-1)
    name = f"%{op.results[0].name or 'constant'}"
    buffer = Buffer(name, data, "constant", True)
    agent.handles[op.results[0]] = TensorMemory.whole(buffer, op.results[0].type)
    return None


def fetch(agent: Agent, op: Op) -> Steps:
    """Execute a `fetch` for the wave `agent`: bind the symbol to an integer in memory, for use in addresses."""
    yield None
    memory = agent.handles[op.operands[0]]
    agent.values[op.attrs["symbol"].name] = int(
        memory.buffer.read(_single_element(agent, op, memory), agent.clock, op)[0]
    )


def while_(agent: Agent, op: Op) -> Steps:
    """Execute a `while` for the wave `agent`: the body as long as a register holds a number other than zero, at most a
    million times.
    """
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
