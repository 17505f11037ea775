"""Waves of many lanes on the interpreter: counting barriers, copies and products that go on by themselves.

What goes on by itself is an actor with a clock of its own: it is done late, when the schedule says, and only who waits
for it is ordered after it. Shared memory that a wave stored to is there for such actors after the wave's `fence` only:
on a machine they go another way to memory, and a missing fence mostly goes unnoticed. Copies of lanes go the waves'
way: whoever has waited for them fences.
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
from tilewright.interpret.block.memory import Buffer, TensorMemory, at_line, box, full, within
from tilewright.interpret.block.worker import Agent, Copying, Steps, Waiting, Worker
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.core import Op, Value
from tilewright.ir.tensors import numbers

Array = np.ndarray[Any, np.dtype[Any]]
_MARKS = count(1)
"""Of copies of lanes, to tell what each stored."""


# -- barriers that count --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Barrier:
    """One barrier: how many phases are complete, and what the phase under way still waits for."""

    name: str
    arrivals: int
    phase: int = 0
    arrived: int = 0
    bytes: int = 0
    landing: int = 0
    """Groups of lanes' copies that are under way."""
    knows: list[Array] = field(default_factory=list)
    known: list[Array] = field(default_factory=list)
    """What those knew who completed the last phase."""

    def arrive(self, known: Array, op: Op) -> None:
        """One arrival."""
        if self.arrived == self.arrivals:
            raise ProtocolFault(f"{at_line(op)}: {self.name} has all its {self.arrivals} arrivals already", op.loc)
        self.arrived += 1
        self.knows.append(known)
        self._turn()

    def land(self, count: int, known: Array) -> None:
        """So many bytes have landed."""
        self.bytes -= count
        self.knows.append(known)
        self._turn()

    def await_copies(self, copies: list[Copying]) -> None:
        """The phase waits for copies of lanes too."""
        self.landing += 1
        left = {id(copy) for copy in copies}

        def landed(copy: Copying) -> None:
            left.discard(id(copy))
            self.knows.append(copy.clock.known)
            if not left:
                self.landing -= 1
                self._turn()

        for copy in copies:
            copy.then.append(landed)

    def _turn(self) -> None:
        if self.arrived == self.arrivals and self.bytes == 0 and self.landing == 0:
            self.phase, self.arrived = self.phase + 1, 0
            self.known, self.knows = self.knows, []


def alloc_barrier(agent: Agent, op: Op) -> None:
    """Barriers of the workgroup: the same for all its waves."""
    kind = op.attrs["type"]
    key = ("barriers", op.results[0])
    found = agent.worker.shared.get(key)
    if found is None:
        count, arrivals = numbers((kind.count, kind.arrivals), str(kind))
        name = f"%{op.results[0].name or 'barrier'}"
        found = agent.worker.shared[key] = [Barrier(f"{name}[{i}]", arrivals) for i in range(count)]
    agent.handles[op.results[0]] = found


def barrier_of(agent: Agent, op: Op, place: int = 0, at: str = "at") -> Barrier:
    """The barrier that an operation names."""
    found: list[Barrier] = agent.handles[op.operands[place]]
    return found[_number(agent, op, place, at)]


def _number(agent: Agent, op: Op, place: int = 0, at: str = "at") -> int:
    found: list[Barrier] = agent.handles[op.operands[place]]
    number = int(evaluated(op.attrs[at][0], agent.values))
    if not 0 <= number < len(found):
        raise OutOfBoundsFault(f"{at_line(op)}: there are {len(found)} barriers, and no number {number}", op.loc)
    return number


def arrive(agent: Agent, op: Op) -> Steps:
    """One arrival, here or at each workgroup of the cluster."""
    yield None
    lane_order.require_met(agent, op)
    if not op.attrs.get("everywhere"):
        barrier_of(agent, op).arrive(agent.clock.now(), op)
        return
    yield from _for_all(agent, op, op.operands[:1])
    known, number = agent.clock.now(), _number(agent, op)
    for worker in agent.peers():
        _of(worker, op.operands[0])[number].arrive(known, op)


def _for_all(agent: Agent, op: Op, values: tuple[Value, ...]) -> Steps:
    """Until all workgroups of the cluster have made their memory and barriers, as they do before anything else."""
    yield Waiting(
        lambda: all(_of(w, v) is not None for w in agent.peers() for v in values),
        lambda: "waits for the other workgroups to begin",
        op,
    )


def _of(worker: Worker, value: Value) -> Any:
    """What a name means in a workgroup; None: it is not there yet."""
    return next((a.handles[value] for a in worker.agents if value in a.handles), None)


def expect(agent: Agent, op: Op) -> Steps:
    """The phase waits for bytes too."""
    yield None
    lane_order.require_passed(agent, op)
    barrier_of(agent, op).bytes += numbers((op.attrs["bytes"],), "bytes")[0]


def await_(agent: Agent, op: Op) -> Steps:
    """Until a phase is complete; hardware tells neighbouring phases apart, not others."""
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
    """Waves that name the same number meet; without a number, those of the role."""
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


# -- the other way to shared memory ---------------------------------------------------------------------------


def _unfenced(agent: Agent, buffer: Buffer) -> Array:
    """Who stored each element and has not fenced since: the wave's slot; 0: nobody."""
    found: Array | None = agent.worker.shared.get(("unfenced", id(buffer.data)))
    if found is None:
        found = agent.worker.shared["unfenced", id(buffer.data)] = np.zeros(buffer.data.size, np.int32)
    return found


def stored(agent: Agent, buffer: Buffer, places: Array) -> None:
    """The wave stored to shared memory."""
    if buffer.space == "shared":
        _unfenced(agent, buffer)[places] = agent.clock.slot


def fence(agent: Agent, op: Op) -> Steps | None:
    """What the wave stored is there for all, and what lanes' copies brought that it has waited for."""
    landed: dict[int, Any] = agent.worker.shared.setdefault(("landed",), {})
    over = [mark for mark, stamp in landed.items() if agent.clock.knows(stamp)]
    for key, found in agent.worker.shared.items():
        if key[0] == "unfenced":
            mine = found == agent.clock.slot
            found[mine | np.isin(found, over) if over else mine] = 0
    for mark in over:
        del landed[mark]
    return None


def landed(agent: Agent, buffer: Buffer, places: Array, clock: Clock) -> None:
    """A lane's copy stored to shared memory, the way that waves do."""
    mark = -next(_MARKS)
    agent.worker.shared.setdefault(("landed",), {})[mark] = clock.stamp
    _unfenced(agent, buffer)[places] = mark


def _require_fenced(agent: Agent, buffer: Buffer, places: Array, op: Op) -> None:
    found = _unfenced(agent, buffer)[places]
    if found.any():
        place = int(np.asarray(places)[found != 0].reshape(-1)[0])
        raise RaceFault(
            f"{at_line(op)} reads element {place} of {buffer.name} by itself, and the wave that stored it has not "
            "fenced: a fence is missing",
            op.loc,
        )


# -- copies that go on by themselves --------------------------------------------------------------------------


def _far(agent: Agent, op: Op, tensor: TensorMemory) -> tuple[Array, Array]:
    """(places, which are inside) of a box of an argument."""
    shape, axes = box(op.attrs["over"], op.name)
    values = {**agent.values, **axes}
    place: Any = np.zeros(shape, np.int64)
    inside = np.ones(shape, bool)
    for (e, loose), size, stride in zip(op.attrs["there"], tensor.shape, tensor.strides, strict=True):
        c = full(evaluated(e, values), shape)
        there = (c >= 0) & (c < size)
        if not loose and not there.all():
            raise OutOfBoundsFault(
                f"{at_line(op)}: {e} is {int(c[~there][0])}, not in 0..{size}; if that may be, mark it with ?", op.loc
            )
        place, inside = place + c * stride, inside & there
    if "inside" in op.attrs:  # what is copied ends before the argument does
        inside &= full(evaluated(op.attrs["inside"], values), shape) != 0
    return place, inside


def near(
    agent: Agent, op: Op, tensor: TensorMemory, axes: tuple[Any, ...], at: Any, active: Array | None = None
) -> Array:
    """Places in shared memory, after its swizzle, for every point of some axes; those not active may lie anywhere."""
    shape, named = box(axes, op.name)
    place = full(evaluated(at, {**agent.values, **named}), shape)
    size = tensor.buffer.data.size
    if active is not None:
        place = np.where(active, place, 0)
    if not within(place, size):
        raise OutOfBoundsFault(f"{at_line(op)} leaves {tensor.buffer.name}, which has {size} elements", op.loc)
    found: Array = tensor.swizzle(place) if tensor.swizzle is not None else place
    return found


def copy_in(agent: Agent, op: Op) -> Steps:
    """Starts; lands at a barrier, or at that of each workgroup of the cluster."""
    yield None
    lane_order.require_passed(agent, op)
    tensor, shared = agent.handles[op.operands[0]], agent.handles[op.operands[1]]
    targets = [(shared, barrier_of(agent, op, 2, "signal"))]
    if op.attrs.get("multicast"):
        yield from _for_all(agent, op, op.operands[1:])
        number = _number(agent, op, 2, "signal")
        targets = [(_of(w, op.operands[1]), _of(w, op.operands[2])[number]) for w in agent.peers()]
    places, inside = _far(agent, op, tensor)
    to = near(agent, op, shared, op.attrs["over"], op.attrs["at"][0])
    clock = agent.clock.fork()

    def finish() -> None:
        values = np.zeros(places.shape, tensor.buffer.data.dtype)
        values[inside] = tensor.buffer.read(places[inside], clock, op)
        for each, signal in targets:
            each.buffer.write(to, values, clock, op)
            signal.land(values.nbytes, clock.known)

    agent.worker.copies.append(Copying(finish, op, clock, covered=True))


def copy_out(agent: Agent, op: Op) -> Steps:
    """Starts; the group that is sealed next sees to its end."""
    yield None
    shared, tensor = (agent.handles[v] for v in op.operands)
    places, inside = _far(agent, op, tensor)
    source = near(agent, op, shared, op.attrs["over"], op.attrs["at"][0])
    _require_fenced(agent, shared.buffer, source, op)
    clock = agent.clock.fork()

    def finish() -> None:
        values = shared.buffer.read(source, clock, op)
        tensor.buffer.write(places[inside], values[inside], clock, op)

    copying = Copying(finish, op, clock)
    agent.worker.copies.append(copying)
    agent.started.setdefault("copies", []).append(copying)


def seal(agent: Agent, op: Op) -> Steps | None:
    """The copies out since the last seal are a group."""
    agent.started.setdefault("groups", []).append(agent.started.pop("copies", []))
    return None


def drain(agent: Agent, op: Op) -> Steps:
    """Until at most so many groups are under way."""
    yield None
    groups = agent.started.setdefault("groups", [])
    over = groups[: max(0, len(groups) - op.attrs["pending"])]
    copies = [c for group in over for c in group]
    yield Waiting(lambda: all(c.done for c in copies), lambda: "waits for copies out", op)
    for copy in copies:
        agent.clock.meet(copy.clock.known)
        copy.covered = True
    del groups[: len(over)]


# -- products that go on by themselves ------------------------------------------------------------------------


def product(agent: Agent, op: Op, found: Any) -> Steps | None:
    """The wave's part of a product: of the lanes of an atom that several waves share, its own."""
    c, a, b = (agent.handles[v] for v in op.operands)
    if not found.asynchronous:
        _multiply(agent, op, found, agent.clock)
        return None
    return _start(agent, op, found, (c, a, b))


def _start(agent: Agent, op: Op, found: Any, handles: tuple[Any, Any, Any]) -> Steps:
    yield None
    lane_order.go_on(agent)
    c, a, b = handles
    for factor, name in ((a, "a"), (b, "b")):
        if name in op.attrs:
            _require_fenced(
                agent, factor.buffer, near(agent, op, factor, op.attrs[name], op.attrs[f"{name}_at"][0]), op
            )
    clock, values = agent.clock.fork(), dict(agent.values)
    under_way = agent.started.setdefault("products", [])

    def finish() -> None:
        for before in list(under_way):
            if before is me:
                break
            if not before.done:  # sums grow in the order in which products were started
                agent.worker.finish(before)
        now, agent.values = agent.values, values
        _multiply(agent, op, found, clock)
        agent.values = now

    me = Copying(finish, op, clock)
    c.start(op, me, writes=True)
    for factor in (a, b):
        if hasattr(factor, "start"):
            factor.start(op, me, writes=False)
    agent.worker.copies.append(me)
    under_way.append(me)


def settle(agent: Agent, op: Op) -> Steps:
    """Until at most so many products are under way."""
    yield None
    lane_order.go_on(agent)
    under_way = agent.started.setdefault("products", [])
    over = under_way[: max(0, len(under_way) - op.attrs["pending"])]
    yield Waiting(lambda: all(c.done for c in over), lambda: "waits for products", op)
    for copy in over:
        agent.clock.meet(copy.clock.known)
        copy.covered = True
    del under_way[: len(over)]


def _multiply(agent: Agent, op: Op, found: Any, clock: Clock) -> None:
    c, a, b = (agent.handles[v] for v in op.operands)
    lanes = found.c.lanes
    mine = c.data.shape[0]
    first = agent.wave * mine % lanes
    part = slice(first, first + mine)

    def whole(data: Array, operand: Any) -> Array:
        """The registers of all lanes of the atom: those of other waves count for other waves' sums only."""
        full = np.zeros((operand.lanes, data.shape[1]), data.dtype)
        full[part] = data
        return full

    wide = np.float64 if found.c.dtype.is_float else np.int64
    m, n, k = found.shape
    if "a" in op.attrs:
        left = a.buffer.read(near(agent, op, a, op.attrs["a"], op.attrs["a_at"][0]), clock, op)
    else:
        data = whole(a.taken(op), found.a)
        pieces = [found.a.load(piece) for piece in np.split(data, data.shape[1] // found.a.values, axis=1)]
        left = np.concatenate(pieces, axis=1)
    if "b" in op.attrs:
        right = b.buffer.read(near(agent, op, b, op.attrs["b"], op.attrs["b_at"][0]), clock, op)
    else:
        data = whole(b.taken(op), found.b)
        right = np.concatenate(
            [found.b.load(piece) for piece in np.split(data, data.shape[1] // found.b.values, axis=1)], axis=0
        )
    if left.shape[0] != m or right.shape[1] != n or left.shape[1] != right.shape[0] or left.shape[1] % k:
        raise ProgramError(f"{at_line(op)}: {found.name} does not multiply {left.shape} by {right.shape}", op.loc)
    with np.errstate(all="ignore"):
        total = found.taken(left).astype(wide) @ found.taken(right).astype(wide)
        if not op.attrs.get("fresh"):
            total = found.c.load(whole(c.taken(op), found.c)).astype(wide) + total
        c.become(found.c.store(total.astype(found.c.dtype.numpy))[part])


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
    "settle": settle,
    "together": lane_order.together,
}
