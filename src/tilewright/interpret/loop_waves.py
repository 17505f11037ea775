"""Waves of many lanes in the interpreter: counting barriers (mbarriers), asynchronous copies and asynchronous products.

An asynchronous operation is an actor with a clock of its own: it is executed late, when the schedule says, and only
waves that wait for it are ordered after it. It sees what a wave stored to shared memory only after the wave's `fence`:
on a machine it takes another path to memory, and a missing fence often goes unnoticed. Per-lane copies take the waves'
path: a wave that has waited for them must fence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from tilewright.errors import OutOfBoundsFault, ProgramError, ProtocolFault, RaceFault
from tilewright.interpret import lane_order
from tilewright.interpret.block import control
from tilewright.interpret.block.clocks import Clock
from tilewright.interpret.block.memory import (
    Buffer,
    TensorMemory,
    at_line,
    box,
    expressions,
    full,
    lane_pattern,
    within,
)
from tilewright.interpret.block.worker import Agent, Copying, Steps, Waiting, Worker
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.core import Op, Value
from tilewright.ir.tensors import numbers

Array = np.ndarray[Any, np.dtype[Any]]
_MARKS = count(1)
"""Numbers for per-lane copies, which mark the elements that each stored."""


# -- barriers that count --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Barrier:
    """A counting barrier (mbarrier): the number of complete phases, and what the current phase still waits for."""

    name: str
    arrivals: int
    phase: int = 0
    arrived: int = 0
    bytes: int = 0
    landing: int = 0
    """Groups of per-lane copies in flight for which the phase waits."""
    knows: list[Array] = field(default_factory=list)
    known: list[Array] = field(default_factory=list)
    """The clocks of all who arrived in the last complete phase."""

    def arrive(self, known: Array, op: Op) -> None:
        """Count one arrival at the barrier, and complete the phase if it waits for nothing more.

        `known` is the vector clock of the actor that arrives. Raise ProtocolFault if the phase has all its arrivals
        already; `op` is the operation in the message.
        """
        if self.arrived == self.arrivals:
            raise ProtocolFault(f"{at_line(op)}: {self.name} has all its {self.arrivals} arrivals already", op.loc)
        self.arrived += 1
        self.knows.append(known)
        self._complete_phase()

    def land(self, count: int, known: Array) -> None:
        """Count `count` bytes as copied, and complete the phase if it waits for nothing more.

        The phase waits for as many bytes as `expect` operations have announced. `known` is the vector clock of the
        copy.
        """
        self.bytes -= count
        self.knows.append(known)
        self._complete_phase()

    def await_copies(self, copies: list[Copying]) -> None:
        """Make the current phase wait until all of `copies`, per-lane copies in flight, have finished."""
        self.landing += 1
        remaining = {id(copy) for copy in copies}

        def landed(copy: Copying) -> None:
            """Record that `copy` has finished; complete the phase if it waits for nothing more."""
            remaining.discard(id(copy))
            self.knows.append(copy.clock.known)
            if not remaining:
                self.landing -= 1
                self._complete_phase()

        for copy in copies:
            copy.then.append(landed)

    def _complete_phase(self) -> None:
        """Begin the next phase if the current phase waits for no more arrivals, bytes or per-lane copies; otherwise do
        nothing.
        """
        if self.arrived == self.arrivals and self.bytes == 0 and self.landing == 0:
            self.phase, self.arrived = self.phase + 1, 0
            self.known, self.knows = self.knows, []


def alloc_barrier(agent: Agent, op: Op) -> None:
    """Bind the result of the `alloc` operation `op` to a list of counting barriers, which the waves of a workgroup
    share. The first wave creates the list.
    """
    kind = op.attrs["type"]
    key = ("barriers", op.results[0])
    barriers = agent.worker.shared.get(key)
    if barriers is None:
        count, arrivals = numbers((kind.count, kind.arrivals), str(kind))
        name = f"%{op.results[0].name or 'barrier'}"
        barriers = agent.worker.shared[key] = [Barrier(f"{name}[{i}]", arrivals) for i in range(count)]
    agent.handles[op.results[0]] = barriers


def barrier_of(agent: Agent, op: Op, place: int = 0, at: str = "at") -> Barrier:
    """Return the barrier that `op` names: an entry of operand number `place`, a list of barriers.

    The attribute called `at` has the index; raise OutOfBoundsFault if there is no such barrier.
    """
    barriers: list[Barrier] = agent.handles[op.operands[place]]
    return barriers[_barrier_index(agent, op, place, at)]


def _barrier_index(agent: Agent, op: Op, place: int = 0, at: str = "at") -> int:
    """Return the index of the barrier that `op` names, from the attribute called `at`.

    `place` is the number of the operand that is the list of barriers. Raise OutOfBoundsFault if there is no such
    barrier.
    """
    barriers: list[Barrier] = agent.handles[op.operands[place]]
    number = int(evaluated(op.attrs[at][0], agent.values))
    if not 0 <= number < len(barriers):
        raise OutOfBoundsFault(f"{at_line(op)}: there are {len(barriers)} barriers, and no number {number}", op.loc)
    return number


def arrive(agent: Agent, op: Op) -> Steps:
    """Execute an `arrive` of the wave `agent`: count one arrival at a barrier of its workgroup.

    With the attribute `everywhere`, count it in each workgroup of the cluster. Raise RaceFault if the lanes have not
    synchronised. The generator yields where other waves may run.
    """
    yield None
    lane_order.require_met(agent, op)
    if not op.attrs.get("everywhere"):
        barrier_of(agent, op).arrive(agent.clock.now(), op)
        return
    yield from _await_peers(agent, op, op.operands[:1])
    clock_now, number = agent.clock.now(), _barrier_index(agent, op)
    for worker in agent.peers():
        _bound_in(worker, op.operands[0])[number].arrive(clock_now, op)


def _await_peers(agent: Agent, op: Op, values: tuple[Value, ...]) -> Steps:
    """Wait until all workgroups of the cluster have created the memory and barriers to which the IR values `values` are
    bound.

    A generator that yields a Waiting; `agent` waits at `op`.
    """
    yield Waiting(
        lambda: all(_bound_in(w, v) is not None for w in agent.peers() for v in values),
        lambda: "waits for the other workgroups to begin",
        op,
    )


def _bound_in(worker: Worker, value: Value) -> Any:
    """Return the memory or barriers to which the IR value `value` is bound in the workgroup `worker`; None if it is not
    bound yet.
    """
    return next((a.handles[value] for a in worker.agents if value in a.handles), None)


def expect(agent: Agent, op: Op) -> Steps:
    """Execute an `expect` of the wave `agent`: the current phase of a barrier also waits for a number of bytes to be
    copied (the attribute `bytes`). Raise RaceFault if lanes may still wait for a phase of a barrier.

    The generator yields once at first, so that other waves may run.
    """
    yield None
    lane_order.require_passed(agent, op)
    barrier_of(agent, op).bytes += numbers((op.attrs["bytes"],), "bytes")[0]


def await_(agent: Agent, op: Op) -> Steps:
    """Execute an `await` of the wave `agent`: wait until a phase of a barrier is complete.

    Raise ProtocolFault if the barrier's current phase is neither the awaited phase nor the next: hardware distinguishes
    only neighbouring phases. A generator that yields a Waiting.
    """
    yield None
    lane_order.waited(agent)
    barrier = barrier_of(agent, op)
    number = int(evaluated(op.attrs["phase"], agent.values))
    if barrier.phase not in (number, number + 1):
        raise ProtocolFault(
            f"{at_line(op)} waits for phase {number} of {barrier.name}, which is at phase {barrier.phase}: a barrier "
            "tells neighbouring phases apart, not these",
            op.loc,
        )
    yield Waiting(
        lambda: barrier.phase > number,
        lambda: (
            f"waits for phase {number} of {barrier.name}: {barrier.arrived} of {barrier.arrivals} have arrived, "
            f"{barrier.bytes} bytes and {barrier.landing} groups of lanes' copies are under way"
        ),
        op,
    )
    for known in barrier.known:
        agent.clock.meet(known)


def barrier(agent: Agent, op: Op) -> Steps:
    """Execute a `barrier` of the wave `agent`: wait for the other waves that name the same barrier number. Without a
    number, wait for the other waves of the role.

    The lanes synchronise too. A generator that yields a Waiting.
    """
    lane_order.meet(agent)
    if "id" not in op.attrs:
        yield from control.barrier(agent, op)
        return
    yield None
    number = int(evaluated(op.attrs["id"], agent.values))
    (waves,) = numbers((op.attrs["waves"],), "waves")
    key = ("named barrier", number)
    meeting: list[Array] = agent.worker.shared.setdefault(key, [])
    meeting.append(agent.clock.now())
    if len(meeting) == waves:
        del agent.worker.shared[key]
    yield Waiting(
        lambda: len(meeting) == waves, lambda: f"waits at barrier {number}: {len(meeting)} of {waves} are there", op
    )
    for known in meeting:
        agent.clock.meet(known)


# -- fences between stores and asynchronous operations --------------------------------------------------------


def _unfenced(agent: Agent, buffer: Buffer) -> Array:
    """Return an array with a number for each element of `buffer`: the writer that stored the element without a later
    fence, or 0.

    A wave has the number of its clock's slot, a per-lane copy a negative number (its mark). The array is created at the
    first call, and callers change it.
    """
    writers: Array | None = agent.worker.shared.get(("unfenced", id(buffer.data)))
    if writers is None:
        writers = agent.worker.shared["unfenced", id(buffer.data)] = np.zeros(buffer.data.size, np.int32)
    return writers


def stored(agent: Agent, buffer: Buffer, places: Array) -> None:
    """Record that the wave `agent` stored the elements `places` of `buffer` and has not fenced since.

    Only shared memory is recorded.
    """
    if buffer.space == "shared":
        _unfenced(agent, buffer)[places] = agent.clock.slot


def fence(agent: Agent, op: Op) -> Steps | None:
    """Execute a `fence` of the wave `agent`: make the wave's stores to shared memory visible to asynchronous
    operations. Return None.

    Stores of per-lane copies that the wave has waited for become visible too.
    """
    finished_copies: dict[int, Any] = agent.worker.shared.setdefault(("landed",), {})
    awaited = [mark for mark, stamp in finished_copies.items() if agent.clock.knows(stamp)]
    for key, writers in agent.worker.shared.items():
        if key[0] == "unfenced":
            by_this_wave = writers == agent.clock.slot
            writers[by_this_wave | np.isin(writers, awaited) if awaited else by_this_wave] = 0
    for mark in awaited:
        del finished_copies[mark]
    return None


def landed(agent: Agent, buffer: Buffer, places: Array, clock: Clock) -> None:
    """Record that a per-lane copy stored the elements `places` of `buffer`, and that no wave has fenced since. `clock`
    is the clock of the copy.
    """
    mark = -next(_MARKS)
    agent.worker.shared.setdefault(("landed",), {})[mark] = clock.stamp
    _unfenced(agent, buffer)[places] = mark


def _require_fenced(agent: Agent, buffer: Buffer, places: Array, op: Op) -> None:
    """Raise RaceFault if one of the elements `places` of `buffer` was stored without a later fence. `op` is an
    asynchronous operation that reads these elements.
    """
    writers = _unfenced(agent, buffer)[places]
    if writers.any():
        element = int(np.asarray(places)[writers != 0].reshape(-1)[0])
        raise RaceFault(
            f"{at_line(op)} reads element {element} of {buffer.name} by itself, and the wave that stored it has not "
            "fenced: a fence is missing",
            op.loc,
        )


# -- asynchronous copies --------------------------------------------------------------------------------------


def _argument_elements(agent: Agent, op: Op, tensor: TensorMemory) -> tuple[Array, Array]:
    """Return (elements, in_bounds), two arrays with an entry for each point of the box that `op` copies from or to a
    kernel argument.

    `elements` are the element numbers in the memory of `tensor`, the argument. Raise OutOfBoundsFault if a coordinate
    is out of bounds and `op` does not mark it with ?.
    """
    shape, axes = box(op.attrs["over"], op.name)
    if "inside" not in op.attrs:
        pattern_of_lanes = lane_pattern(op.attrs["over"], expressions(op.attrs["there"]), tensor.strides, op.name)
        offset = None if pattern_of_lanes is None else pattern_of_lanes.offset(agent.values, tensor.shape)
        if pattern_of_lanes is not None and offset is not None:
            return pattern_of_lanes.at(offset, None), np.ones(shape, bool)
    values = {**agent.values, **axes}
    elements: Any = np.zeros(shape, np.int64)
    in_bounds = np.ones(shape, bool)
    for (e, may_leave), size, stride in zip(op.attrs["there"], tensor.shape, tensor.strides, strict=True):
        coordinate = full(evaluated(e, values), shape)
        valid = (coordinate >= 0) & (coordinate < size)
        if not may_leave and not valid.all():
            raise OutOfBoundsFault(
                f"{at_line(op)}: {e} is {int(coordinate[~valid][0])}, not in 0..{size}; if that may be, mark it with ?",
                op.loc,
            )
        elements, in_bounds = elements + coordinate * stride, in_bounds & valid
    if "inside" in op.attrs:  # what is copied ends before the argument does
        in_bounds &= full(evaluated(op.attrs["inside"], values), shape) != 0
    return elements, in_bounds


def shared_elements(
    agent: Agent, op: Op, tensor: TensorMemory, axes: tuple[Any, ...], at: Any, active: Array | None = None
) -> Array:
    """Return the element numbers in the shared tensor `tensor`, after its swizzle, for each point of the box `axes`.

    `at` is the offset in the tensor as an expression of the axes. Raise OutOfBoundsFault if an offset is outside the
    tensor; points where the mask `active` is False are not tested.
    """
    size = tensor.buffer.data.size
    pattern_of_lanes = lane_pattern(axes, (at,), (1,), op.name)
    offset = None if pattern_of_lanes is None else pattern_of_lanes.offset(agent.values, (size,))
    if pattern_of_lanes is not None and offset is not None:
        return pattern_of_lanes.at(offset, tensor.swizzle)
    shape, named = box(axes, op.name)
    elements = full(evaluated(at, {**agent.values, **named}), shape)
    if active is not None:
        elements = np.where(active, elements, 0)
    if not within(elements, size):
        raise OutOfBoundsFault(f"{at_line(op)} leaves {tensor.buffer.name}, which has {size} elements", op.loc)
    swizzled: Array = tensor.swizzle(elements) if tensor.swizzle is not None else elements
    return swizzled


def copy_in(agent: Agent, op: Op) -> Steps:
    """Start a `copy_in` of the wave `agent`: an asynchronous copy of a box from an argument to shared memory.

    The operands are the argument, the shared memory and a list of barriers. With the attribute `multicast` the copy
    goes to each workgroup of the cluster. The copy is executed later, when the scheduler chooses; then a barrier counts
    its bytes. Elements out of bounds become zeros; raise OutOfBoundsFault for a coordinate out of bounds that is not
    marked with ?. The generator yields where other waves may run.
    """
    yield None
    lane_order.require_passed(agent, op)
    tensor, shared = agent.handles[op.operands[0]], agent.handles[op.operands[1]]
    targets = [(shared, barrier_of(agent, op, 2, "signal"))]
    if op.attrs.get("multicast"):
        yield from _await_peers(agent, op, op.operands[1:])
        number = _barrier_index(agent, op, 2, "signal")
        targets = [(_bound_in(w, op.operands[1]), _bound_in(w, op.operands[2])[number]) for w in agent.peers()]
    source_elements, in_bounds = _argument_elements(agent, op, tensor)
    target_elements = shared_elements(agent, op, shared, op.attrs["over"], op.attrs["at"][0])
    clock = agent.clock.fork()

    def finish() -> None:
        """Copy the box and count its bytes at the barriers. The scheduler calls this function at some later time."""
        values = np.zeros(source_elements.shape, tensor.buffer.data.dtype)
        values[in_bounds] = tensor.buffer.read(source_elements[in_bounds], clock, op)
        for target, signal in targets:
            target.buffer.write(target_elements, values, clock, op)
            signal.land(values.nbytes, clock.known)

    agent.worker.copies.append(Copying(finish, op, clock, covered=True))


def copy_out(agent: Agent, op: Op) -> Steps:
    """Start a `copy_out` of the wave `agent`: an asynchronous copy of a box from shared memory to an argument.

    The operands are the shared memory and the argument. The generator yields once at first, so that other waves may
    run. The copy is executed later, when the scheduler chooses. The next `seal` puts the copy into a group, for which
    `drain` waits. Elements out of bounds are not written; raise OutOfBoundsFault for a coordinate out of bounds that is
    not marked with ?. Raise RaceFault if a store to the box was not fenced.
    """
    yield None
    shared, tensor = (agent.handles[v] for v in op.operands)
    target_elements, in_bounds = _argument_elements(agent, op, tensor)
    source_elements = shared_elements(agent, op, shared, op.attrs["over"], op.attrs["at"][0])
    _require_fenced(agent, shared.buffer, source_elements, op)
    clock = agent.clock.fork()

    def finish() -> None:
        """Copy the box. The scheduler calls this function at some later time."""
        values = shared.buffer.read(source_elements, clock, op)
        tensor.buffer.write(target_elements[in_bounds], values[in_bounds], clock, op)

    copying = Copying(finish, op, clock)
    agent.worker.copies.append(copying)
    agent.started.setdefault("copies", []).append(copying)


def seal(agent: Agent, op: Op) -> Steps | None:
    """Execute a `seal` of the wave `agent`: put the outgoing copies that it started since the last `seal` into a group.
    Return None.
    """
    agent.started.setdefault("groups", []).append(agent.started.pop("copies", []))
    return None


def drain(agent: Agent, op: Op) -> Steps:
    """Execute a `drain` of the wave `agent`: wait until at most `pending` (an attribute) groups of outgoing copies are
    in flight.

    The oldest groups are waited for. A generator that yields a Waiting.
    """
    yield None
    groups = agent.started.setdefault("groups", [])
    oldest = groups[: max(0, len(groups) - op.attrs["pending"])]
    copies = [c for group in oldest for c in group]
    yield Waiting(lambda: all(c.done for c in copies), lambda: "waits for copies out", op)
    for copy in copies:
        agent.clock.meet(copy.clock.known)
        copy.covered = True
    del groups[: len(oldest)]


# -- asynchronous products ------------------------------------------------------------------------------------


def product(agent: Agent, op: Op, mma_atom: Any) -> Steps | None:
    """Execute a multiplication atom on fragments: compute the elements of C += A*B that the lanes of the wave `agent`
    hold.

    `mma_atom` is the atom. Several waves may execute one atom together; each computes its own elements of C. A
    synchronous atom is executed at once, and None is returned. For an asynchronous atom, return the generator that
    starts the product.
    """
    c, a, b = (agent.handles[v] for v in op.operands)
    if not mma_atom.asynchronous:
        _multiply(agent, op, mma_atom, agent.clock)
        return None
    return _start_product(agent, op, mma_atom, (c, a, b))


def _start_product(agent: Agent, op: Op, mma_atom: Any, handles: tuple[Any, Any, Any]) -> Steps:
    """Start the product of an asynchronous atom, which is executed later, when the scheduler chooses.

    `handles` are the operands C, A and B. Raise RaceFault if a store to an operand in shared memory was not fenced, or
    if another product still writes the registers of A or B. The generator yields once at first, so that other waves may
    run.
    """
    yield None
    lane_order.go_on(agent)
    c, a, b = handles
    for operand, name in ((a, "a"), (b, "b")):
        if name in op.attrs:
            _require_fenced(
                agent,
                operand.buffer,
                shared_elements(agent, op, operand, op.attrs[name], op.attrs[f"{name}_at"][0]),
                op,
            )
    clock, values = agent.clock.fork(), dict(agent.values)
    in_flight = agent.started.setdefault("products", [])

    def finish() -> None:
        """Multiply, after all products that the wave started earlier. The scheduler calls this function at some later
        time.
        """
        for earlier in list(in_flight):
            if earlier is this_product:
                break
            if not earlier.done:  # sums grow in the order in which products were started
                agent.worker.finish(earlier)
        current_values, agent.values = agent.values, values
        _multiply(agent, op, mma_atom, clock)
        agent.values = current_values

    this_product = Copying(finish, op, clock)
    c.start(op, this_product, writes=True)
    for operand in (a, b):
        if hasattr(operand, "start"):
            operand.start(op, this_product, writes=False)
    agent.worker.copies.append(this_product)
    in_flight.append(this_product)


def wait_products(agent: Agent, op: Op) -> Steps:
    """Execute a `settle` of the wave `agent`: wait until at most `pending` (an attribute) asynchronous products are in
    flight.

    The oldest products are waited for. A generator that yields a Waiting.
    """
    yield None
    lane_order.go_on(agent)
    in_flight = agent.started.setdefault("products", [])
    oldest = in_flight[: max(0, len(in_flight) - op.attrs["pending"])]
    yield Waiting(lambda: all(c.done for c in oldest), lambda: "waits for products", op)
    for copy in oldest:
        agent.clock.meet(copy.clock.known)
        copy.covered = True
    del in_flight[: len(oldest)]


def _multiply(agent: Agent, op: Op, mma_atom: Any, clock: Clock) -> None:
    """Compute A*B by `mma_atom`, and add the elements that the wave `agent` holds to its registers of C; with the
    attribute `fresh`, overwrite these registers instead.

    `clock` is the clock of the actor that reads shared memory. Raise ProgramError if the shapes do not fit the atom.
    """
    c, a, b = (agent.handles[v] for v in op.operands)
    lanes = mma_atom.c.lanes
    wave_lanes = c.data.shape[0]
    first = agent.wave * wave_lanes % lanes
    own_lanes = slice(first, first + wave_lanes)

    def whole(data: Array, operand: Any) -> Array:
        """Return the registers of all lanes of the atom: `data` for the lanes of this wave, zeros for the others, which
        only affect results of other waves.
        """
        all_lanes = np.zeros((operand.lanes, data.shape[1]), data.dtype)
        all_lanes[own_lanes] = data
        return all_lanes

    wide = np.float64 if mma_atom.c.dtype.is_float else np.int64
    m, n, k = mma_atom.shape
    if "a" in op.attrs:
        left = a.buffer.read(shared_elements(agent, op, a, op.attrs["a"], op.attrs["a_at"][0]), clock, op)
    else:
        data = whole(a.unchecked(op), mma_atom.a)
        pieces = [mma_atom.a.load(piece) for piece in np.split(data, data.shape[1] // mma_atom.a.values, axis=1)]
        left = np.concatenate(pieces, axis=1)
    if "b" in op.attrs:
        right = b.buffer.read(shared_elements(agent, op, b, op.attrs["b"], op.attrs["b_at"][0]), clock, op)
    else:
        data = whole(b.unchecked(op), mma_atom.b)
        right = np.concatenate(
            [mma_atom.b.load(piece) for piece in np.split(data, data.shape[1] // mma_atom.b.values, axis=1)], axis=0
        )
    if left.shape[0] != m or right.shape[1] != n or left.shape[1] != right.shape[0] or left.shape[1] % k:
        raise ProgramError(f"{at_line(op)}: {mma_atom.name} does not multiply {left.shape} by {right.shape}", op.loc)
    with np.errstate(all="ignore"):
        total = mma_atom.rounded(left).astype(wide) @ mma_atom.rounded(right).astype(wide)
        if not op.attrs.get("fresh"):
            total = mma_atom.c.load(whole(c.unchecked(op), mma_atom.c)).astype(wide) + total
        c.become(mma_atom.c.store(total.astype(mma_atom.c.dtype.numpy))[own_lanes])


HANDLERS: dict[str, Any] = {
    "arrive": arrive,
    "expect": expect,
    "await": await_,
    "barrier": barrier,
    "fence": fence,
    "copy_in": copy_in,
    "copy_out": copy_out,
    "seal": seal,
    "drain": drain,
    "settle": wait_products,
    "together": lane_order.sync_lanes,
}
