"""Channels as two rows of barriers: a stage is full, a stage is empty; fill f is phase f // stages of its stage's.

A producer's wave arrives at `full` when it commits, and copies that go on by themselves land there; a consumer's wave
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
from tilewright.passes.places import Memory

if TYPE_CHECKING:
    from tilewright.passes.waves.lower import Waves


@dataclass(eq=False)
class Ring:
    """A channel in the role that is written: its barriers, and the wave's counters."""

    op: Op
    stages: int
    full: Value
    empty: Value
    base: Expr
    """The number of its first barrier: each half of a role has its own, where the channel is the half's."""
    counters: dict[str, Value]
    own: bool
    """Whether one role is producer and consumer."""
    leaves: bool = False
    """Whether copies leave from the stage that is held."""
    everywhere: bool = False
    """Whether workgroups of the cluster bring parts for one another: a stage is empty when it is so in all of them."""
    late: bool = False
    """Whether the first wave's releases are put off to where the stage is wanted again."""

    def barrier(self, number: Expr) -> Expr:
        """The barrier of a fill's stage."""
        return self.base + number % self.stages

    def leaving(self, low: Waves) -> None:
        """A copy leaves from the stage."""
        self.leaves = True
        low.leaving = True


@dataclass(frozen=True)
class Stage(Memory):
    """A stage of a channel, held: which barrier it has."""

    ring: Any = None
    stage: Expr = ZERO


def channel(low: Waves, op: Op) -> None:
    """Barriers of the workgroup; counters of the wave."""
    (stages,) = numbers((op.attrs["stages"],), "stages")
    producer, consumer = op.attrs["producer"], op.attrs["consumer"]
    halves = low.group.halves
    name = op.results[0].name or "channel"
    key = (op, halves)
    full = low.barriers((*key, "full"), stages * halves, _arrivals(low, producer), f"{name}_full")
    everywhere = op.results[0] in low.shared_channels
    releases = _arrivals(low, consumer) * (low.cluster if everywhere else 1)
    empty = low.barriers((*key, "empty"), stages * halves, releases, f"{name}_empty")
    counters = low.counters_of(op)
    if not counters:
        for side, role in (("acquire", producer), ("commit", producer), ("wait", consumer), ("release", consumer)):
            if low.role in (role, "all"):
                counters[side] = low.counter(f"{name}_{side}")
    late = producer == consumer and _one_leaves(low, op)
    base, own = low.group.side * stages, producer == consumer
    ring = Ring(op, stages, full, empty, base, counters, own, everywhere=everywhere, late=late)
    low.handles[op.results[0]] = ring
    low.rings[op] = ring


def _arrivals(low: Waves, role: str) -> int:
    return low.group.waves if low.group.halves == 2 and role == low.role else low.group_of(role)


def _one_leaves(low: Waves, op: Op) -> bool:
    """Whether copies leave from this channel's stages, and from no other's of the role."""
    return low.leaving_channels() == {op.results[0]}


def _taken(low: Waves, op: Op, side: str, ring: Ring) -> Expr:
    if side not in ring.counters:
        raise ProgramError(f"{op.name} of a channel that is not this role's to {op.name}")
    number = low.value_of(ring.counters[side], "fill")
    low.count_on(ring.counters[side], as_expr(1))
    return number


def _hand_out(low: Waves, op: Op, ring: Ring, number: Expr) -> None:
    for value, tensor in zip(op.results, ring.op.operands, strict=True):
        whole: Memory = low.handles[tensor]
        stride = whole.strides[0]
        start = whole.start + stride * (number % ring.stages)
        shape, strides = whole.shape[1:], whole.strides[1:]
        low.handles[value] = Stage(whole.buffer, whole.dtype, shape, strides, None, start, ring, ring.barrier(number))


def acquire(low: Waves, op: Op) -> None:
    """The next fill, when its stage is empty."""
    ring: Ring = low.handles[op.operands[0]]
    number = _taken(low, op, "acquire", ring)
    if ring.late:
        low.between_lanes.meet()
        with low.one_wave(), low.when(number >= ring.stages):
            low.emit("drain", pending=ring.stages - 1)
            low.emit("arrive", (ring.empty,), at=(ring.barrier(number),))
    low.emit("await", (ring.empty,), at=(ring.barrier(number),), phase=number // ring.stages - 1)
    _hand_out(low, op, ring, number)


def commit(low: Waves, op: Op) -> None:
    """What was stored is there for everybody; one arrival."""
    ring: Ring = low.handles[op.operands[0]]
    low.make_visible()
    number = _taken(low, op, "commit", ring)
    low.emit("arrive", (ring.full,), at=(ring.barrier(number),))


def wait(low: Waves, op: Op) -> None:
    """The next fill, when it is full."""
    ring: Ring = low.handles[op.operands[0]]
    number = _taken(low, op, "wait", ring)
    low.emit("await", (ring.full,), at=(ring.barrier(number),), phase=number // ring.stages)
    _hand_out(low, op, ring, number)


def release(low: Waves, op: Op) -> None:
    """One arrival, when products that read the stage are done."""
    ring: Ring = low.handles[op.operands[0]]

    def give_back() -> None:
        number = _taken(low, op, "release", ring)
        if ring.leaves and ring.late:
            with low.one_wave():
                low.emit("seal")
            if low.group.waves > 1:
                low.between_lanes.meet()
                with low.when(low.group.wave >= 1):
                    low.emit("arrive", (ring.empty,), at=(ring.barrier(number),))
        else:
            if ring.leaves:
                with low.one_wave():
                    low.emit("seal")
                    low.emit("drain", pending=0)
            low.emit("arrive", (ring.empty,), at=(ring.barrier(number),), everywhere=ring.everywhere or None)
        ring.leaves = False

    low.flying.release(ring, give_back, ring.stages > 1 and not ring.leaves)


def at_the_end(low: Waves) -> None:
    """Nothing that a role started goes on after it."""
    if low.leaving:
        low.emit("drain", pending=0)
    low.leaving = False
    low.rings.clear()
