"""Channels between roles as pairs of barrier arrays: `full` and `empty`, with one barrier per stage.

In turn t of the ring a wave waits for phase t of a barrier. A wave of the producer arrives at `full` when it commits a
stage; asynchronous copies into the stage arrive there when they end. A wave of the consumer arrives at `empty` when it
releases a stage. Data that lanes store or copy themselves need a fence before asynchronous MMAs or bulk copies read
them. Asynchronous readers of a stage are waited for first: MMAs before the release; bulk copies out of a stage before
the same role acquires it again, or, if another role fills it, before the release too.
"""

from __future__ import annotations

from tilewright.algebra.expr import Expr, as_expr
from tilewright.analysis.flat_memory import PlacedMemory
from tilewright.errors import ProgramError
from tilewright.ir.core import Op
from tilewright.ir.tensors import numbers
from tilewright.lower.gpu.own_channels import groups_are_independent
from tilewright.lower.gpu.rings import BarrierRing, RingPosition, Stage, StageFill
from tilewright.lower.gpu.wave_lowering import WaveLowering


def channel(low: WaveLowering, op: Op) -> None:
    """Lower `channel` on a GPU: allocate two arrays of barriers for the workgroup, `full` and `empty`, and registers
    for each wave's position in the ring of stages. Record both as a BarrierRing in `low.handles` and `low.rings`.

    An array has one barrier per stage; for a ping-pong role, or for groups of waves that do not wait for each other,
    one per stage and half or group.
    """
    (stages,) = numbers((op.attrs["stages"],), "stages")
    producer, consumer = op.attrs["producer"], op.attrs["consumer"]
    halves = low.group.halves
    name = op.results[0].name or "channel"
    delays_release = producer == consumer and _is_only_channel_copied_out(low, op)
    groups = _groups(low, op) if delays_release and op.attrs.get("apart") else 1
    key, count = (op, halves, groups), stages * halves * groups
    full = low.barriers((*key, "full"), count, _arrivals(low, producer) // groups, f"{name}_full")
    cluster_wide = op.results[0] in low.shared_channels
    releases = _arrivals(low, consumer) * (low.cluster if cluster_wide else 1) // groups
    empty = low.barriers((*key, "empty"), count, releases, f"{name}_empty")
    counters = low.channel_positions(op)
    if not counters:
        for side, role in (("acquire", producer), ("commit", producer), ("wait", consumer), ("release", consumer)):
            if low.role in (role, "all"):
                counters[side] = _new_position(low, f"{name}_{side}", stages, side in ("acquire", "wait"))
    group = low.group.wave // (low.group.waves // groups) if groups > 1 else low.group.side
    base, is_own = group * stages, producer == consumer
    ring = BarrierRing(
        op,
        stages,
        full,
        empty,
        base,
        counters,
        is_own,
        cluster_wide=cluster_wide,
        delays_release=delays_release,
        groups=groups,
    )
    low.handles[op.results[0]] = ring
    low.rings[op] = ring


def _groups(low: WaveLowering, op: Op) -> int:
    """Return the number of groups of waves that use a channel without waiting for each other. `op` is the operation
    that makes the channel. The waves are those of the role that is being lowered; a group has as many waves as the
    largest MMA of the program needs. Return 1 if all waves are one group, or if groups must wait for each other.
    """
    lanes = {low.target.multiply_atom(x.attrs["atom"]).c.lanes for x in low.program.walk() if x.name == "mma"}
    waves_per_mma = max(lanes, default=low.lanes) // low.lanes
    groups = low.group.waves // waves_per_mma
    return groups if groups > 1 and groups_are_independent(low, op, groups) else 1


def _arrivals(low: WaveLowering, role: str) -> int:
    """Return the number of waves of the role named `role` that arrive at one barrier of a channel: all of them, or half
    of them if two halves of the role take tasks in turn (ping-pong).
    """
    return low.group.waves if low.group.halves == 2 and role == low.role else low.group_of(role)


def _is_only_channel_copied_out(low: WaveLowering, op: Op) -> bool:
    """True if the bulk copies of the current role read stages of exactly one channel, and `op` makes this channel."""
    return low.copied_out_channels() == {op.results[0]}


def _new_position(low: WaveLowering, name: str, stages: int, counts_turns: bool) -> RingPosition:
    """Emit the registers of a wave's position in a ring of `stages` stages, set to the first stage and turn 0. Return
    them as a RingPosition. There is no stage register if `stages` is 1, and no turn register unless `counts_turns`. The
    names of the registers begin with `name`.
    """
    stage = low.new_counter(f"{name}_stage") if stages > 1 else None
    return RingPosition(stages, stage, low.new_counter(f"{name}_turn") if counts_turns else None)


def _current_fill(low: WaveLowering, position: RingPosition) -> StageFill:
    """Emit reads of the registers in `position`, and return their values as a StageFill: the index of the next stage,
    and the number of completed turns of the ring. A register that does not exist counts as 0.
    """
    turn = as_expr(0) if position.turn is None else low.read_counter(position.turn, "turn")
    stage = as_expr(0) if position.stage is None else low.read_counter(position.stage, "stage", position.stages - 1)
    return StageFill(stage, turn)


def _advance(low: WaveLowering, position: RingPosition, fill: StageFill) -> None:
    """Emit the update of the registers in `position`, a wave's position in a ring, by one stage. `fill` has the stage
    and turn that they hold now. After the last stage come stage 0 and the next turn.
    """
    last = as_expr(1) if position.stage is None else fill.stage >= position.stages - 1
    if position.stage is not None:
        low.add_to_counter(position.stage, fill.stage + 1 - position.stages * last, fresh=True)
    if position.turn is not None:
        low.add_to_counter(position.turn, last)


def skip_fills(low: WaveLowering, position: RingPosition, fills: Expr) -> None:
    """Emit the update of the registers in `position`, a wave's position in a ring, by `fills` stages. In a ping-pong
    role, these are the stages that the other half of the role fills or reads.
    """
    next_fill = fills if position.stage is None else _current_fill(low, position).stage + fills
    if position.stage is not None:
        low.add_to_counter(position.stage, next_fill % position.stages, fresh=True)
    if position.turn is not None:
        low.add_to_counter(position.turn, next_fill // position.stages)


def note_copy_out(low: WaveLowering, ring: BarrierRing) -> None:
    """Record that a bulk copy reads the stage of the channel `ring` that the wave holds: the release of the stage and
    the end of the role will wait for the copy. Nothing is emitted.
    """
    ring.has_copy_out = True
    low.leaving = True


def _take_fill(low: WaveLowering, op: Op, side: str, ring: BarrierRing) -> StageFill:
    """Emit the read of the wave's position for `side` ("acquire", "commit", "wait" or "release") in `ring`, and its
    advance by one stage. Return the position before the advance as a StageFill. Raise a ProgramError if the current
    role has no position for `side`, because `op` is not allowed in this role.
    """
    if side not in ring.counters:
        raise ProgramError(f"{op.name}: role {low.role} may not {op.name} this channel")
    position = ring.counters[side]
    place = _current_fill(low, position)
    _advance(low, position, place)
    return place


def _bind_stage(low: WaveLowering, op: Op, ring: BarrierRing, fill: StageFill) -> None:
    """Record the shared memory of a stage of the channel `ring` as the results of `op`, an `acquire` or `wait`; `fill`
    has the index of the stage. The results are the channel's tensors at this index, without their first dimension,
    which counts stages. Nothing is emitted.
    """
    for value, tensor in zip(op.results, ring.op.operands, strict=True):
        ring_memory: PlacedMemory = low.handles[tensor]
        stride = ring_memory.strides[0]
        start = ring_memory.start + stride * fill.stage
        shape, strides = ring_memory.shape[1:], ring_memory.strides[1:]
        low.handles[value] = Stage(
            ring_memory.buffer, ring_memory.dtype, shape, strides, None, start, ring, ring.barrier(fill)
        )


def acquire(low: WaveLowering, op: Op) -> None:
    """Lower `acquire` on a GPU: emit the wait until the channel's next stage is empty, and bind the results of `op` to
    the memory of this stage.

    If the channel delays releases (`ring.delays_release`), emit before it the wait for the bulk copy that read this
    stage, and the release of the stage.
    """
    ring: BarrierRing = low.handles[op.operands[0]]
    place = _take_fill(low, op, "acquire", ring)
    if ring.delays_release:
        low.between_lanes.sync()
        with low.one_wave(ring.groups), low.when(place.turn >= 1):
            low.emit("drain", pending=ring.stages - 1)
            low.emit("arrive", (ring.empty,), at=(ring.barrier(place),))
    low.emit("await", (ring.empty,), at=(ring.barrier(place),), phase=place.turn - 1)
    _bind_stage(low, op, ring, place)


def commit(low: WaveLowering, op: Op) -> None:
    """Lower `commit` on a GPU: emit the wave's arrival at the `full` barrier of the stage that it has filled, after a
    fence if asynchronous copies or MMAs read what the wave stored. If lanes copy asynchronously into the channel, the
    barrier also waits for these copies.
    """
    ring: BarrierRing = low.handles[op.operands[0]]
    low.make_visible()
    place = _take_fill(low, op, "commit", ring)
    if op.operands[0] in low.landing:
        low.emit("land", (ring.full,), at=(ring.barrier(place),))
    low.emit("arrive", (ring.full,), at=(ring.barrier(place),))


def wait(low: WaveLowering, op: Op) -> None:
    """Lower `wait` on a GPU: emit the wait until the channel's next stage is full, and bind the results of `op` to the
    memory of this stage. A fence follows if lanes filled the stage by asynchronous copies, and asynchronous MMAs or
    bulk copies read it.
    """
    ring: BarrierRing = low.handles[op.operands[0]]
    place = _take_fill(low, op, "wait", ring)
    low.emit("await", (ring.full,), at=(ring.barrier(place),), phase=place.turn)
    if op.operands[0] in low.landing and any(low.chain.root(v) in low.asynchronous for v in ring.op.operands):
        low.emit("fence")
    _bind_stage(low, op, ring, place)


def release(low: WaveLowering, op: Op) -> None:
    """Lower `release` on a GPU: emit the wave's arrival at the `empty` barrier of the stage that it has read. The
    arrival comes after the MMAs and bulk copies that read the stage. It may be emitted only at a later wait for these
    MMAs, so that other MMAs start before it.

    If the channel delays releases (`ring.delays_release`) and a bulk copy reads the stage, the first wave of each group
    arrives only when the stage is acquired again.
    """
    ring: BarrierRing = low.handles[op.operands[0]]

    def release_stage() -> None:
        """Emit the end of the group of bulk copies out of the stage, if there are any, and the arrivals at its `empty`
        barrier that are not delayed.
        """
        place = _take_fill(low, op, "release", ring)
        if ring.has_copy_out and ring.delays_release:
            with low.one_wave(ring.groups):
                low.emit("seal")
            if low.group.waves > ring.groups:
                low.between_lanes.sync()
                with low.when(low.group.wave % (low.group.waves // ring.groups) >= 1):
                    low.emit("arrive", (ring.empty,), at=(ring.barrier(place),))
        else:
            if ring.has_copy_out:
                with low.one_wave():
                    low.emit("seal")
                    low.emit("drain", pending=0)
            low.emit("arrive", (ring.empty,), at=(ring.barrier(place),), everywhere=ring.cluster_wide or None)
        ring.has_copy_out = False

    low.mmas_in_flight.release(ring, release_stage, ring.stages > 1 and not ring.has_copy_out)


def wait_for_copies_out(low: WaveLowering) -> None:
    """Emit the wait for all bulk copies out of shared memory that the current role started, if any. Then forget the
    channels of the role (`low.rings`). Call it at the end of a role.
    """
    if low.leaving:
        low.emit("drain", pending=0)
    low.leaving = False
    low.rings.clear()
