"""Channels as two rows of barriers: a stage is full, a stage is empty; in turn t of the ring phase t is awaited.

A producer's wave arrives at `full` when it commits, and copies that go on by themselves land there; those that lanes
start store as waves do, so a consumer fences what products or further copies read by themselves. A consumer's wave
arrives at `empty` when it releases. Whoever reads a stage by itself is waited for first: products before the release,
copies out where the stage is wanted again, if the same role wants it, and otherwise before the release too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.algebra.expr import ZERO, Expr, as_expr
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value
from tilewright.ir.tensors import numbers
from tilewright.passes.places import PlacedMemory
from tilewright.passes.waves.sharing import groups_apart

if TYPE_CHECKING:
    from tilewright.passes.waves.lower import Waves


@dataclass(frozen=True)
class Count:
    """How far a wave has come in a ring of stages: which stage is next, and how often the ring has turned.

    Both are kept, and counted on by comparing: a quotient of the fill's number is no address that all lanes are known
    to share, and products would wait for it in every step.
    """

    stages: int
    stage: Value | None
    """None: there is one."""
    turn: Value | None
    """None: nobody asks."""

    @classmethod
    def begun(cls, low: Waves, name: str, stages: int, turns: bool) -> Count:
        """At the first stage, in turn 0."""
        stage = low.counter(f"{name}_stage") if stages > 1 else None
        return cls(stages, stage, low.counter(f"{name}_turn") if turns else None)

    def now(self, low: Waves) -> StagePlace:
        """Where the wave is."""
        turn = as_expr(0) if self.turn is None else low.value_of(self.turn, "turn")
        stage = as_expr(0) if self.stage is None else low.value_of(self.stage, "stage", self.stages - 1)
        return StagePlace(stage, turn)

    def on(self, low: Waves, place: StagePlace) -> None:
        """The next stage, from a place where it is."""
        last = as_expr(1) if self.stage is None else place.stage >= self.stages - 1
        if self.stage is not None:
            low.count_on(self.stage, place.stage + 1 - self.stages * last, fresh=True)
        if self.turn is not None:
            low.count_on(self.turn, last)

    def skip(self, low: Waves, fills: Expr) -> None:
        """So many fills further on."""
        found = fills if self.stage is None else self.now(low).stage + fills
        if self.stage is not None:
            low.count_on(self.stage, found % self.stages, fresh=True)
        if self.turn is not None:
            low.count_on(self.turn, found // self.stages)


@dataclass(frozen=True)
class StagePlace:
    """A fill: its stage, and which turn of the ring it is."""

    stage: Expr
    turn: Expr


@dataclass(eq=False)
class BarrierRing:
    """A channel in the role that is written: its barriers, and the wave's counters."""

    op: Op
    stages: int
    full: Value
    empty: Value
    base: Expr
    """The number of its first barrier: each half of a role has its own, where the channel is the half's."""
    counters: dict[str, Count]
    own: bool
    """Whether one role is producer and consumer."""
    leaves: bool = False
    """Whether copies leave from the stage that is held."""
    everywhere: bool = False
    """Whether workgroups of the cluster bring parts for one another: a stage is empty when it is so in all of them."""
    late: bool = False
    """Whether the first wave's releases are put off to where the stage is wanted again."""
    groups: int = 1
    """Groups of the role's waves that each hand over a part of their own."""

    def barrier(self, place: StagePlace) -> Expr:
        """The barrier of a fill's stage."""
        return self.base + place.stage

    def leaving(self, low: Waves) -> None:
        """A copy leaves from the stage."""
        self.leaves = True
        low.leaving = True


@dataclass(frozen=True)
class Stage(PlacedMemory):
    """A stage of a channel, held: which barrier it has."""

    ring: Any = None
    stage: Expr = ZERO


def channel(low: Waves, op: Op) -> None:
    """Barriers of the workgroup; counters of the wave."""
    (stages,) = numbers((op.attrs["stages"],), "stages")
    producer, consumer = op.attrs["producer"], op.attrs["consumer"]
    halves = low.group.halves
    name = op.results[0].name or "channel"
    late = producer == consumer and _one_leaves(low, op)
    groups = _groups(low, op) if late and op.attrs.get("apart") else 1
    key, count = (op, halves, groups), stages * halves * groups
    full = low.barriers((*key, "full"), count, _arrivals(low, producer) // groups, f"{name}_full")
    everywhere = op.results[0] in low.shared_channels
    releases = _arrivals(low, consumer) * (low.cluster if everywhere else 1) // groups
    empty = low.barriers((*key, "empty"), count, releases, f"{name}_empty")
    counters = low.counters_of(op)
    if not counters:
        for side, role in (("acquire", producer), ("commit", producer), ("wait", consumer), ("release", consumer)):
            if low.role in (role, "all"):
                counters[side] = Count.begun(low, f"{name}_{side}", stages, side in ("acquire", "wait"))
    part = low.group.wave // (low.group.waves // groups) if groups > 1 else low.group.side
    base, own = part * stages, producer == consumer
    ring = BarrierRing(op, stages, full, empty, base, counters, own, everywhere=everywhere, late=late, groups=groups)
    low.handles[op.results[0]] = ring
    low.rings[op] = ring


def _groups(low: Waves, op: Op) -> int:
    """Groups of waves, as products have them, that use the channel each by itself."""
    lanes = {low.target.multiply_atom(x.attrs["atom"]).c.lanes for x in low.program.walk() if x.name == "mma"}
    together = max(lanes, default=low.lanes) // low.lanes
    groups = low.group.waves // together
    return groups if groups > 1 and groups_apart(low, op, groups) else 1


def _arrivals(low: Waves, role: str) -> int:
    return low.group.waves if low.group.halves == 2 and role == low.role else low.group_of(role)


def _one_leaves(low: Waves, op: Op) -> bool:
    """Whether copies leave from this channel's stages, and from no other's of the role."""
    return low.leaving_channels() == {op.results[0]}


def _taken(low: Waves, op: Op, side: str, ring: BarrierRing) -> StagePlace:
    if side not in ring.counters:
        raise ProgramError(f"{op.name} of a channel that is not this role's to {op.name}")
    count = ring.counters[side]
    place = count.now(low)
    count.on(low, place)
    return place


def _hand_out(low: Waves, op: Op, ring: BarrierRing, place: StagePlace) -> None:
    for value, tensor in zip(op.results, ring.op.operands, strict=True):
        whole: PlacedMemory = low.handles[tensor]
        stride = whole.strides[0]
        start = whole.start + stride * place.stage
        shape, strides = whole.shape[1:], whole.strides[1:]
        low.handles[value] = Stage(whole.buffer, whole.dtype, shape, strides, None, start, ring, ring.barrier(place))


def acquire(low: Waves, op: Op) -> None:
    """The next fill, when its stage is empty."""
    ring: BarrierRing = low.handles[op.operands[0]]
    place = _taken(low, op, "acquire", ring)
    if ring.late:
        low.between_lanes.meet()
        with low.one_wave(ring.groups), low.when(place.turn >= 1):
            low.emit("drain", pending=ring.stages - 1)
            low.emit("arrive", (ring.empty,), at=(ring.barrier(place),))
    low.emit("await", (ring.empty,), at=(ring.barrier(place),), phase=place.turn - 1)
    _hand_out(low, op, ring, place)


def commit(low: Waves, op: Op) -> None:
    """What was stored is there for everybody; one arrival."""
    ring: BarrierRing = low.handles[op.operands[0]]
    low.make_visible()
    place = _taken(low, op, "commit", ring)
    if op.operands[0] in low.landing:
        low.emit("land", (ring.full,), at=(ring.barrier(place),))
    low.emit("arrive", (ring.full,), at=(ring.barrier(place),))


def wait(low: Waves, op: Op) -> None:
    """The next fill, when it is full."""
    ring: BarrierRing = low.handles[op.operands[0]]
    place = _taken(low, op, "wait", ring)
    low.emit("await", (ring.full,), at=(ring.barrier(place),), phase=place.turn)
    if op.operands[0] in low.landing and any(low.chain.root(v) in low.asynchronous for v in ring.op.operands):
        low.emit("fence")
    _hand_out(low, op, ring, place)


def release(low: Waves, op: Op) -> None:
    """One arrival, when products that read the stage are done."""
    ring: BarrierRing = low.handles[op.operands[0]]

    def give_back() -> None:
        place = _taken(low, op, "release", ring)
        if ring.leaves and ring.late:
            with low.one_wave(ring.groups):
                low.emit("seal")
            if low.group.waves > ring.groups:
                low.between_lanes.meet()
                with low.when(low.group.wave % (low.group.waves // ring.groups) >= 1):
                    low.emit("arrive", (ring.empty,), at=(ring.barrier(place),))
        else:
            if ring.leaves:
                with low.one_wave():
                    low.emit("seal")
                    low.emit("drain", pending=0)
            low.emit("arrive", (ring.empty,), at=(ring.barrier(place),), everywhere=ring.everywhere or None)
        ring.leaves = False

    low.flying.release(ring, give_back, ring.stages > 1 and not ring.leaves)


def at_the_end(low: Waves) -> None:
    """Nothing that a role started goes on after it."""
    if low.leaving:
        low.emit("drain", pending=0)
    low.leaving = False
    low.rings.clear()
