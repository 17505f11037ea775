"""The interpreter of loop programs: the block interpreter's agents, with vectors instead of distributed tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import OutOfBoundsFault, ProgramError, RaceFault, UninitialisedFault
from tilewright.interpret import lane_copies, lane_order, loop_waves
from tilewright.interpret.block import control, moving
from tilewright.interpret.block.formulas import compute as compute_formula
from tilewright.interpret.block.memory import Buffer, TensorMemory, at_line, box, full, grid, lane_pattern, within
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
        """Return the vector's elements, indexed by lane (or a single number), for the operation `op`.

        Raise UninitialisedFault if the vector was never written, and RaceFault if an asynchronous product may still
        write it.
        """
        if self.writing:
            self._require_settled(op, self.writing, "reads")
        return self.unchecked(op)

    def unchecked(self, op: Op) -> Array:
        """Return the vector's elements for an asynchronous product `op`, without a check for other products that write
        the vector.

        Raise UninitialisedFault if the vector was never written.
        """
        if not self.initialised:
            raise UninitialisedFault(f"{at_line(op)} reads %{self.name}, which nothing wrote", op.loc)
        return self.data

    def write(self, values: Any, op: Op | None = None) -> None:
        """Set the vector's elements to `values`, which broadcast, and mark the vector as written.

        If `op`, the operation that writes, is given, raise RaceFault if an asynchronous product still uses the vector.
        """
        if op is not None and (self.writing or self.reading):
            self._require_settled(op, [*self.writing, *self.reading], "changes")
        self.become(values)

    def become(self, values: Any) -> None:
        """Set the vector's elements to `values`, which broadcast, and mark the vector as written. Asynchronous products
        are not checked.
        """
        self.data[...] = values
        self.initialised = True

    def start(self, op: Op, copying: Copying, writes: bool) -> None:
        """Record that the asynchronous product `copying` is in flight and writes the vector, or reads it if `writes` is
        False.

        Raise RaceFault if it reads the vector while another product may still write it; `op` is the operation that
        starts the product. Records of products that were waited for are removed.
        """
        if not writes:
            self._require_settled(op, self.writing, "reads")
        in_flight = self.writing if writes else self.reading
        in_flight[:] = [*(c for c in in_flight if not c.covered), copying]

    def _require_settled(self, op: Op, in_flight: list[Copying], does: str) -> None:
        """Raise RaceFault if one of the asynchronous products `in_flight` was not waited for yet.

        `op` accesses the vector; `does` is the verb of the message ("reads", "changes").
        """
        if any(not c.covered for c in in_flight):
            raise RaceFault(
                f"{at_line(op)} {does} %{self.name} while {at_line(in_flight[0].op)} is under way: a settle is missing",
                op.loc,
            )

    def snapshot(self) -> Vector:
        """Return a copy of the vector, with the same contents, for the deferred `finally` block of an iteration.

        Asynchronous products in flight are not copied.
        """
        return Vector(self.data.copy(), self.name, self.initialised)


def alloc(agent: Agent, op: Op) -> Steps | None:
    """Execute an `alloc` of the wave `agent`: bind its result to a new object of the type in the attribute `type`, and
    return None.

    The object is a list of counting barriers, an uninitialised vector register, or uninitialised flat memory.
    """
    kind = op.attrs["type"]
    if isinstance(kind, BarrierType):
        loop_waves.alloc_barrier(agent, op)
        return None
    if not isinstance(kind, VectorType):
        return moving.alloc(agent, op)
    data = np.zeros(numbers(kind.shape, kind), kind.dtype.numpy)
    agent.handles[op.results[0]] = Vector(data, op.results[0].name or "vector")
    return None


def _lane_offsets(agent: Agent, op: Op, memory: TensorMemory) -> tuple[Array, Array | None]:
    """Return (elements, active) for a load or store `op` of the wave `agent`: two arrays with an entry for each lane.

    `elements` are the element numbers in the buffer of `memory`. `active` is the condition `when` of `op`; None if it
    holds in all lanes. Raise OutOfBoundsFault if an active lane is out of bounds, and another InterpreterFault if `op`
    must not access the memory now.
    """
    shape, lanes = box(op.attrs["over"], op.name)
    active = None
    if "when" in op.attrs:
        active = full(np.asarray(evaluated(op.attrs["when"], {**agent.values, **lanes})) != 0, shape)
        active = None if active.all() else active
    pattern_of_lanes = lane_pattern(op.attrs["over"], op.attrs["at"][:1], (1,), op.name)
    offset = None if pattern_of_lanes is None else pattern_of_lanes.offset(agent.values, (_size(memory),))
    if pattern_of_lanes is not None and offset is not None:
        memory.check(op)
        return pattern_of_lanes.at(memory.offset + offset, memory.swizzle), active
    offsets = full(evaluated(op.attrs["at"][0], {**agent.values, **lanes}), shape)
    return _buffer_elements(memory, offsets, np.ones(shape, bool) if active is None else active, op), active


def _size(memory: TensorMemory) -> int:
    """Return the number of elements that may be accessed in `memory`, flat memory or a channel's stage."""
    return memory.buffer.data.size if memory.hold is None else prod(memory.shape)


def _buffer_elements(memory: TensorMemory, element: Array, active: Array, op: Op) -> Array:
    """Return the element numbers `element` of `memory` (flat memory or a channel's stage) as element numbers of its
    buffer: shifted by the start of the stage, and swizzled.

    Raise OutOfBoundsFault if an element that is `active` is out of bounds, and another InterpreterFault if `op` must
    not access the memory now.
    """
    size = _size(memory)
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
    """Return the buffer element that `op` accesses in `memory`, as an array of one element number.

    Raise OutOfBoundsFault if the element is out of bounds, and another InterpreterFault if `op` must not access the
    memory now.
    """
    element = np.asarray([int(evaluated(op.attrs["at"][0], agent.values))])
    return _buffer_elements(memory, element, np.ones(1, bool), op)


def load(agent: Agent, op: Op) -> Steps:
    """Execute a `load` of the wave `agent`: set the vector, operand 0, to elements of the memory, operand 1, one for
    each active lane.

    Inactive lanes get the number in the attribute `otherwise` (0 without the attribute). The generator yields once at
    first, so that other waves may run.
    """
    yield None
    target, memory = (agent.handles[v] for v in op.operands)
    places, active = _lane_offsets(agent, op, memory)
    if isinstance(op.operands[0].type, FragmentType):
        lane_order.loaded(agent, memory.buffer, places, active, op)
    if active is None:
        target.write(memory.buffer.read(places.reshape(-1), agent.clock, op).reshape(places.shape), op)
        return
    values = np.full(places.shape, op.attrs.get("otherwise", 0), target.data.dtype)
    values[active] = memory.buffer.read(places[active], agent.clock, op)
    target.write(values, op)


def store(agent: Agent, op: Op) -> Steps:
    """Execute a `store` of the wave `agent`: write one element of the vector, operand 0, to the memory, operand 1, for
    each active lane.

    The generator yields once at first, so that other waves may run.
    """
    yield None
    source, memory = (agent.handles[v] for v in op.operands)
    places, active = _lane_offsets(agent, op, memory)
    if isinstance(op.operands[0].type, FragmentType):
        lane_order.stored(agent, memory.buffer, places, active, op)
    elements, values = _active_values(places, source.read(op), active)
    memory.buffer.write(elements, values, agent.clock, op, memory.staged)
    loop_waves.stored(agent, memory.buffer, elements)


def _active_values(places: Array, values: Array, active: Array | None) -> tuple[Array, Array]:
    """Return the entries of `places` and of `values` for which the mask `active` is True (None: all), as two flat
    arrays.
    """
    return (places.reshape(-1), values.reshape(-1)) if active is None else (places[active], values[active])


def prefetch(agent: Agent, op: Op) -> Steps | None:
    """Execute a `prefetch`: do nothing, since it is a hint. Return None."""
    return None


def compute(agent: Agent, op: Op) -> Steps | None:
    """Execute a `compute` of the wave `agent`: set the vector, operand 0, to the values of a formula of the other
    operands, lane by lane. Return None.
    """
    target = agent.handles[op.operands[0]]

    def leaf(f: Formula) -> Any:
        """Return (values, element type) of the operand that the formula leaf `f` names."""
        return agent.handles[op.operands[f.value]].read(op), op.operands[f.value].type.dtype

    lanes = dict(zip((s.name for s in op.attrs.get("over", ())), grid(target.data.shape), strict=False))
    target.write(compute_formula(op.attrs["formula"], leaf, op.operands[0].type.dtype, {**agent.values, **lanes}), op)
    return None


def shuffle(agent: Agent, op: Op) -> Steps | None:
    """Execute a `shuffle` of the wave `agent`: set each lane of the vector `op.operands[0]` to the element that some
    lane of `op.operands[1]` holds. Return None.

    The attribute `over` names the indices of a lane of the first operand. The attribute `at` holds expressions of these
    indices: the indices of the lane of the second operand. Raise OutOfBoundsFault if there is no such lane.
    """
    target, source = (agent.handles[v] for v in op.operands)
    shape = target.data.shape
    values = source.read(op)
    pattern_of_lanes = lane_pattern(op.attrs["over"], op.attrs["at"], _packed_strides(values.shape), op.name)
    place = (
        None
        if pattern_of_lanes is None or pattern_of_lanes.places.shape != shape
        else pattern_of_lanes.offset(agent.values, values.shape)
    )
    if pattern_of_lanes is not None and place is not None:
        target.write(values.take(pattern_of_lanes.at(place, None)), op)
        return None
    symbol_values = {**agent.values, **dict(zip((s.name for s in op.attrs["over"]), grid(shape), strict=True))}
    lane_indices = []
    for e, size in zip(op.attrs["at"], values.shape, strict=True):
        lane_index = full(evaluated(e, symbol_values), shape)
        if not within(lane_index, size):
            raise OutOfBoundsFault(f"{at_line(op)} takes lane {int(lane_index.max())} of {size}", op.loc)
        lane_indices.append(lane_index)
    target.write(values[tuple(lane_indices)], op)
    return None


@lru_cache(maxsize=256)
def _packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the stride, in elements, of each dimension of a packed array of shape `shape`, last dimension fastest. The
    result is cached.
    """
    return tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))


def transpose(agent: Agent, op: Op) -> Steps | None:
    """Execute a `transpose` of the wave `agent`: its operands, vectors, are the rows of a matrix, and are set to the
    rows of the transposed matrix.

    An entry of the matrix is a run of consecutive elements; the attribute `unit` is their number. Return None.
    """
    registers = [agent.handles[v] for v in op.operands]
    rows = np.stack([register.read(op) for register in registers])
    units = rows.reshape(len(registers), -1, int(op.attrs["unit"])).transpose(1, 0, 2)
    for register, row in zip(registers, units.reshape(rows.shape), strict=True):
        register.write(row, op)
    return None


def reduce(agent: Agent, op: Op) -> Steps | None:
    """Execute a `reduce` of the wave `agent`: combine all elements of the vector, operand 0, and write the number to
    operand 1. Return None.

    Sums and products are computed in the accumulator type of the element type.
    """
    source, target = (agent.handles[v] for v in op.operands)
    kind = op.operands[0].type.dtype
    function: Any = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op.attrs["with"]]
    carried_type = kind.accumulator.numpy if op.attrs["with"] in ("sum", "prod") else kind.numpy
    with np.errstate(all="ignore"):
        target.write(function.reduce(source.read(op).reshape(-1).astype(carried_type)).astype(kind.numpy), op)
    return None


def atom(agent: Agent, op: Op) -> Steps | None:
    """Execute a multiplication `atom` of the wave `agent` on vectors: C += A*B, with the operand layouts of the
    machine's description.

    Fragments (registers of all lanes of a wave) are passed to `loop_waves.product`, and its result is returned;
    otherwise return None. Raise ProgramError if the program names no machine, or, without fragments, if the atom reads
    an operand from memory.
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
    c.write(mma_atom.run(*operand_values).reshape(c.data.shape), op)
    return None


def atomic(agent: Agent, op: Op) -> Steps:
    """Execute an `atomic` of the wave `agent`: combine the vector, operand 0, into the memory, operand 1. The vector is
    one number, or has one element for each active lane.

    The generator yields once at first, so that other waves may run.
    """
    yield None
    source, memory = (agent.handles[v] for v in op.operands)
    if "over" in op.attrs:
        places, active = _lane_offsets(agent, op, memory)
        elements, values = _active_values(places, source.read(op), active)
        memory.buffer.combine(elements, values, op.attrs["how"], agent.clock, op)
        return
    if "when" in op.attrs and not evaluated(op.attrs["when"], agent.values):
        return
    element = _single_element(agent, op, memory)
    memory.buffer.combine(element, source.read(op).reshape(1), op.attrs["how"], agent.clock, op)


def fill(agent: Agent, op: Op) -> Steps | None:
    """Execute a `fill` of the wave `agent`: set all elements of the vector, operand 0, to a number. Return None."""
    agent.handles[op.operands[0]].write(op.attrs["value"], op)
    return None


def read(agent: Agent, op: Op) -> Steps | None:
    """Execute a `read` of the wave `agent`: bind a symbol to the number in the vector, operand 0, for use in addresses.
    Return None.

    If the vector has several elements, the symbol has a value for each lane.
    """
    values = agent.handles[op.operands[0]].read(op)
    lanes: Any = values.astype(np.int64) if values.ndim else int(values)  # one in each lane: addresses differ by lane
    agent.values[op.attrs["symbol"].name] = lanes
    return None


def constant(agent: Agent, op: Op) -> Steps | None:
    """Execute a `constant` of the wave `agent`: bind its result to read-only memory with a table of numbers, the values
    of an expression. Return None.
    """
    shape, names = box(op.attrs["over"], "constant")
    values = np.broadcast_to(np.asarray(evaluated(op.attrs["value"], names)), shape)
    data = values.astype(op.attrs["dtype"].numpy).reshape(-1)
    name = f"%{op.results[0].name or 'constant'}"
    buffer = Buffer(name, data, "constant", True)
    agent.handles[op.results[0]] = TensorMemory.whole(buffer, op.results[0].type)
    return None


def fetch(agent: Agent, op: Op) -> Steps:
    """Execute a `fetch` of the wave `agent`: bind a symbol to an integer that is read from the memory, operand 0, for
    use in addresses.

    The generator yields once at first, so that other waves may run.
    """
    yield None
    memory = agent.handles[op.operands[0]]
    agent.values[op.attrs["symbol"].name] = int(
        memory.buffer.read(_single_element(agent, op, memory), agent.clock, op)[0]
    )


def while_(agent: Agent, op: Op) -> Steps:
    """Execute a `while` of the wave `agent`: run the body as long as the vector, operand 0, has an element other than
    zero.

    Raise ProgramError after a million iterations. The generator yields where other waves may run.
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
