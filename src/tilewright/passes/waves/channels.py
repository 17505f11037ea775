"""Channels as two rows of barriers: a stage is full, a stage is empty; in turn t of the ring phase t is awaited.

A producer's wave arrives at `full` when it commits, and copies that go on by themselves land there; those that lanes
start store as waves do, so a consumer fences what products or further copies read by themselves. A consumer's wave
arrives at `empty` when it releases. Whoever reads a stage by itself is waited for first: products before the release,
copies out where the stage is wanted again, if the same role wants it, and otherwise before the release too.
"""

from __future__ import annotations

from tilewright.algebra.expr import Expr, as_expr
from tilewright.errors import ProgramError
from tilewright.ir.core import Op
from tilewright.ir.tensors import numbers
from tilewright.passes.places import PlacedMemory
from tilewright.passes.waves.rings import BarrierRing, Count, Stage, StagePlace
from tilewright.passes.waves.sharing import groups_apart
from tilewright.passes.waves.waves import Waves


def channel(low: Waves, op: Op) -> None:
    """Emit the barriers of a channel (`full` and `empty`) for the workgroup, and its counters for the wave."""
    (stages,) = numbers((op.attrs["stages"],), "stages")
    producer, consumer = op.attrs["producer"], op.attrs["consumer"]
    halves = low.group.halves
    name = op.results[0].name or "channel"
    late = producer == consumer and _only_channel_leaves(low, op)
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
                counters[side] = _at_first_stage(low, f"{name}_{side}", stages, side in ("acquire", "wait"))
    part = low.group.wave // (low.group.waves // groups) if groups > 1 else low.group.side
    base, is_own = part * stages, producer == consumer
    ring = BarrierRing(op, stages, full, empty, base, counters, is_own, everywhere=everywhere, late=late, groups=groups)
    low.handles[op.results[0]] = ring
    low.rings[op] = ring


def _groups(low: Waves, op: Op) -> int:
    """Return the number of wave groups, as MMAs have them, that use the channel independently; 1 if all use it
    together.
    """
    lanes = {low.target.multiply_atom(x.attrs["atom"]).c.lanes for x in low.program.walk() if x.name == "mma"}
    together = max(lanes, default=low.lanes) // low.lanes
    groups = low.group.waves // together
    return groups if groups > 1 and groups_apart(low, op, groups) else 1


def _arrivals(low: Waves, role: str) -> int:
    """Return the number of waves of a role that arrive at a barrier: those of one half if halves take turns."""
    return low.group.waves if low.group.halves == 2 and role == low.role else low.group_of(role)


def _only_channel_leaves(low: Waves, op: Op) -> bool:
    """True if bulk copies leave from this channel's stages, and from those of no other channel of the role."""
    return low.leaving_channels() == {op.results[0]}


def _at_first_stage(low: Waves, name: str, stages: int, turns: bool) -> Count:
    """Return fresh counters of a wave for a ring of `stages`: the first stage, and turn 0 if `turns` are counted."""
    stage = low.counter(f"{name}_stage") if stages > 1 else None
    return Count(stages, stage, low.counter(f"{name}_turn") if turns else None)


def _place_now(low: Waves, count: Count) -> StagePlace:
    """Return the stage and turn at which a wave is, read from its counters."""
    turn = as_expr(0) if count.turn is None else low.value_of(count.turn, "turn")
    stage = as_expr(0) if count.stage is None else low.value_of(count.stage, "stage", count.stages - 1)
    return StagePlace(stage, turn)


def _go_on(low: Waves, count: Count, place: StagePlace) -> None:
    """Emit the step of the counters to the stage after `place`."""
    last = as_expr(1) if count.stage is None else place.stage >= count.stages - 1
    if count.stage is not None:
        low.count_on(count.stage, place.stage + 1 - count.stages * last, fresh=True)
    if count.turn is not None:
        low.count_on(count.turn, last)


def skip(low: Waves, count: Count, fills: Expr) -> None:
    """Emit the step of the counters by `fills` fills, which another wave takes."""
    next_fill = fills if count.stage is None else _place_now(low, count).stage + fills
    if count.stage is not None:
        low.count_on(count.stage, next_fill % count.stages, fresh=True)
    if count.turn is not None:
        low.count_on(count.turn, next_fill // count.stages)


def leaves(low: Waves, ring: BarrierRing) -> None:
    """Note that a bulk copy leaves from the stage that is held."""
    ring.leaves = True
    low.leaving = True


def _take_fill(low: Waves, op: Op, side: str, ring: BarrierRing) -> StagePlace:
    """Return the stage and turn of a channel's next fill for `side`, and emit the step of its counters.

    Raise a ProgramError if the role has no such side of the channel.
    """
    if side not in ring.counters:
        raise ProgramError(f"{op.name} of a channel that is not this role's to {op.name}")
    count = ring.counters[side]
    place = _place_now(low, count)
    _go_on(low, count, place)
    return place


def _bind_stage(low: Waves, op: Op, ring: BarrierRing, place: StagePlace) -> None:
    """Bind the results of `acquire` or `wait` to the memory of a stage."""
    for value, tensor in zip(op.results, ring.op.operands, strict=True):
        whole: PlacedMemory = low.handles[tensor]
        stride = whole.strides[0]
        start = whole.start + stride * place.stage
        shape, strides = whole.shape[1:], whole.strides[1:]
        low.handles[value] = Stage(whole.buffer, whole.dtype, shape, strides, None, start, ring, ring.barrier(place))


def acquire(low: Waves, op: Op) -> None:
    """Emit the wait until the next stage is empty, and bind the results to it."""
    ring: BarrierRing = low.handles[op.operands[0]]
    place = _take_fill(low, op, "acquire", ring)
    if ring.late:
        low.between_lanes.meet()
        with low.one_wave(ring.groups), low.when(place.turn >= 1):
            low.emit("drain", pending=ring.stages - 1)
            low.emit("arrive", (ring.empty,), at=(ring.barrier(place),))
    low.emit("await", (ring.empty,), at=(ring.barrier(place),), phase=place.turn - 1)
    _bind_stage(low, op, ring, place)


def commit(low: Waves, op: Op) -> None:
    """Emit the arrival at the stage's `full` barrier, after a fence for what was stored.

    If lanes copy asynchronously into the channel, the end of their copies arrives at this barrier too.
    """
    ring: BarrierRing = low.handles[op.operands[0]]
    low.make_visible()
    place = _take_fill(low, op, "commit", ring)
    if op.operands[0] in low.landing:
        low.emit("land", (ring.full,), at=(ring.barrier(place),))
    low.emit("arrive", (ring.full,), at=(ring.barrier(place),))


def wait(low: Waves, op: Op) -> None:
    """Emit the wait until the next stage is full, and bind the results to it."""
    ring: BarrierRing = low.handles[op.operands[0]]
    place = _take_fill(low, op, "wait", ring)
    low.emit("await", (ring.full,), at=(ring.barrier(place),), phase=place.turn)
    if op.operands[0] in low.landing and any(low.chain.root(v) in low.asynchronous for v in ring.op.operands):
        low.emit("fence")
    _bind_stage(low, op, ring, place)


def release(low: Waves, op: Op) -> None:
    """Emit the arrival at the stage's `empty` barrier, once the MMAs and bulk copies that read the stage are done.

    If the channel is `late`, the first wave of a group arrives only when the stage is acquired again: it waits there
    for the copies.
    """
    ring: BarrierRing = low.handles[op.operands[0]]

    def give_back() -> None:
        place = _take_fill(low, op, "release", ring)
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
    """Emit a wait for the bulk copies that a role started."""
    if low.leaving:
        low.emit("drain", pending=0)
    low.leaving = False
    low.rings.clear()
