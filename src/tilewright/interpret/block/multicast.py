"""Multicast copies, which the workgroups of a cluster share: each copies a part of the first dimension to a stage of
each.

Fill number f of such a channel is the same fill in all workgroups: its stage is free when all of them have released it,
and full when every workgroup's part has arrived. All workgroups must request the same elements.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.errors import ProtocolFault
from tilewright.interpret.block import moving
from tilewright.interpret.block.channels import Channel, Hold
from tilewright.interpret.block.memory import TensorMemory, TensorWindow, at_line, grid, spread_over
from tilewright.interpret.block.worker import Agent, Copying, Steps, Waiting, Worker
from tilewright.ir.core import Op


def channels_of(agent: Agent, channel: Channel) -> list[Channel]:
    """Return [`channel`, ...]: the channel of the wave `agent`, then its counterparts in the other workgroups of the
    cluster.

    A counterpart is the `Channel` that the same operation declares there; workgroups that have not created it yet are
    left out. If no multicast copy fills the channel, return [`channel`].
    """
    value = channel.op.results[0]
    if value not in agent.worker.cluster.shared:
        return [channel]
    others = [w for w in agent.peers() if w is not agent.worker]
    return [channel, *(c for w in others if (c := _channel_in(w, channel)) is not None)]


def _channel_in(worker: Worker, channel: Channel) -> Channel | None:
    """Return the `Channel` of the workgroup `worker` that the same operation declares as `channel`; None if the
    workgroup has not created it yet.
    """
    return next((c for c in worker.shared.values() if isinstance(c, Channel) and c.op is channel.op), None)


def _wave_with_channel(worker: Worker, channel: Channel) -> Agent | None:
    """Return a wave (`Agent`) of the workgroup `worker` that has executed the declarations of `channel` and of its
    memory; None if there is none yet. `channel` may belong to another workgroup.
    """
    wanted = (channel.op.results[0], *channel.op.operands)
    return next((a for a in worker.agents if all(v in a.handles for v in wanted)), None)


def copy(agent: Agent, op: Op) -> Steps | None:
    """Return the generator that executes the `copy` operation `op` for the wave `agent`, or None if the wave has
    nothing to do.

    A copy marked `multicast` in a cluster of several workgroups is a multicast copy, which the first wave of each
    workgroup executes. Every other copy is an ordinary copy.
    """
    if op.attrs.get("multicast") and len(agent.peers()) > 1:
        return _start_multicast(agent, op) if agent.wave == 0 else None
    return moving.copy(agent, op)


def _start_multicast(agent: Agent, op: Op) -> Steps:
    """Start this workgroup's part of the multicast copy `op`: copy a part of the source to the stages of all workgroups
    of the cluster. `agent` is the first wave of the workgroup.

    The parts divide the first dimension evenly. Wait first until all workgroups have created the channel. The scheduler
    executes the copy at some later time; a stage is full when all parts have arrived.
    """
    source, target = (agent.handles[v] for v in op.operands)
    target.check(op)
    hold: Hold = target.hold
    ring = hold.channel
    yield Waiting(
        lambda: all(_wave_with_channel(w, ring) is not None for w in agent.peers()),
        lambda: f"waits for the other workgroups to make %{ring.name}",
        op,
    )
    _require_same_elements(agent, op, hold, source)
    workers = agent.peers()
    first, *rest = grid(source.shape)
    size = len(first) // len(workers)
    part_coordinates = (first[agent.worker.rank * size : (agent.worker.rank + 1) * size], *rest)
    clock = agent.clock.fork()
    targets, fills = [], []
    for worker in workers:
        owner = _wave_with_channel(worker, ring)
        assert owner is not None
        their_ring: Channel = owner.handles[ring.op.results[0]]
        fill = their_ring.fill(hold.fill.number)
        their_ring.begin(fill, owner)
        targets.append(_in_other_workgroup(target, ring.tensors(agent), their_ring.tensors(owner), hold))
        fills.append(fill)
    hold.fill.expected += len(workers)

    def finish() -> None:
        """Copy the part to all stages. The scheduler calls this function at some later time."""
        values = moving.load(source, part_coordinates, op, clock, op.attrs.get("otherwise"))
        for target_stage in targets:
            moving.store(target_stage, part_coordinates, values, op, clock)

    copying = Copying(finish, op, clock, covered=True)
    agent.worker.copies.append(copying)
    for fill in fills:
        fill.landing.append(copying)
        fill.started += 1
        fill.knows.append(clock.known)


def _require_same_elements(agent: Agent, op: Op, hold: Hold, source: Any) -> None:
    """Raise a ProtocolFault if two workgroups of the cluster read different elements in the same multicast copy `op`.

    The first workgroup's elements are stored in the cluster. `source` is the view that the workgroup of the wave
    `agent` copies. `hold` is this workgroup's right to write the target stage, which identifies the copy.
    """
    tensor, places, in_bounds = source.locate(grid(source.shape), op)
    full, mask = spread_over(places, in_bounds, source.shape)
    wanted = np.where(mask, full, -1)
    copy_key, cluster = (hold.channel.op, hold.fill.number, op), agent.worker.cluster
    count = cluster.counts.get((copy_key, agent.worker.rank), 0)  # how often this one has: the copy may stand in a loop
    cluster.counts[copy_key, agent.worker.rank] = count + 1
    rank, buffer, earlier_elements = cluster.requests.setdefault(
        (copy_key, count), (agent.worker.rank, tensor.buffer, wanted)
    )
    if buffer is not tensor.buffer or not np.array_equal(earlier_elements, wanted):
        raise ProtocolFault(
            f"{at_line(op)}: workgroups {rank} and {agent.worker.rank} of a cluster ask for different elements, for "
            f"fill {hold.fill.number} of %{hold.channel.name}; what is multicast is the same for all",
            op.loc,
        )


def _in_other_workgroup(
    memory: TensorMemory | TensorWindow, own_tensors: list[TensorMemory], other_tensors: list[TensorMemory], hold: Hold
) -> TensorMemory | TensorWindow:
    """Return the view of another workgroup's stage that corresponds to `memory`, a stage or a view of a stage of this
    workgroup.

    `own_tensors` and `other_tensors` are the channel's tensors in the two workgroups, in the same order. `hold` is the
    right to write this workgroup's stage; accesses to the result are not checked.
    """
    if isinstance(memory, TensorWindow):
        return TensorWindow(
            _in_other_workgroup(memory.base, own_tensors, other_tensors, hold), memory.op, memory.values, memory.shape
        )
    tensor = next(t for m, t in zip(own_tensors, other_tensors, strict=True) if m.buffer is memory.buffer)
    return replace(tensor.stage(hold.fill.number % hold.channel.stages, hold), hold=None)
