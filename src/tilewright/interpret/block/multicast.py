"""Copies that the workgroups of a cluster share: each brings its part of the first dimension, to a stage of each.

A fill of such a channel is the same fill of all of them: its stage is free when all have released it, and full when
every workgroup's part has landed. All of them must ask for the same elements.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.errors import ProtocolFault
from tilewright.interpret.block import moving
from tilewright.interpret.block.channels import Channel, Hold
from tilewright.interpret.block.memory import TensorMemory, TensorWindow, at_line, grid, spread
from tilewright.interpret.block.worker import Agent, Copying, Steps, Waiting, Worker
from tilewright.ir.core import Op


def channels_of(agent: Agent, found: Channel) -> list[Channel]:
    """The channel in every workgroup that shares it and has come to it, this one's first."""
    value = found.op.results[0]
    if value not in agent.worker.cluster.shared:
        return [found]
    others = [w for w in agent.peers() if w is not agent.worker]
    return [found, *(c for w in others if (c := _channel(w, found)) is not None)]


def _channel(worker: Worker, found: Channel) -> Channel | None:
    return next((c for c in worker.shared.values() if isinstance(c, Channel) and c.op is found.op), None)


def _owner(worker: Worker, found: Channel) -> Agent | None:
    """A wave of a workgroup that has come to the channel and its memory."""
    wanted = (found.op.results[0], *found.op.operands)
    return next((a for a in worker.agents if all(v in a.handles for v in wanted)), None)


def copy(agent: Agent, op: Op) -> Steps | None:
    """A copy: shared, where it says so and there is somebody to share it with."""
    if op.attrs.get("multicast") and len(agent.peers()) > 1:
        return _start(agent, op) if agent.wave == 0 else None
    return moving.copy(agent, op)


def _start(agent: Agent, op: Op) -> Steps:
    """The workgroup's part goes on by itself, to all stages."""
    source, target = (agent.handles[v] for v in op.operands)
    target.check(op)
    held: Hold = target.hold
    found = held.channel
    yield Waiting(
        lambda: all(_owner(w, found) is not None for w in agent.peers()),
        lambda: f"waits for the other workgroups to make %{found.name}",
        op,
    )
    _require_same(agent, op, held, source)
    workers = agent.peers()
    first, *rest = grid(source.shape)
    size = len(first) // len(workers)
    at = (first[agent.worker.rank * size : (agent.worker.rank + 1) * size], *rest)
    clock = agent.clock.fork()
    targets, fills = [], []
    for worker in workers:
        owner = _owner(worker, found)
        assert owner is not None
        theirs: Channel = owner.handles[found.op.results[0]]
        fill = theirs.fill(held.fill.number)
        theirs.begin(fill, owner)
        targets.append(_moved(target, found.tensors(agent), theirs.tensors(owner), held))
        fills.append(fill)
    held.fill.expected += len(workers)

    def finish() -> None:
        values = moving.load(source, at, op, clock, op.attrs.get("otherwise"))
        for each in targets:
            moving.store(each, at, values, op, clock)

    copying = Copying(finish, op, clock, covered=True)
    agent.worker.copies.append(copying)
    for fill in fills:
        fill.landing.append(copying)
        fill.brought += 1
        fill.knows.append(clock.known)


def _require_same(agent: Agent, op: Op, held: Hold, source: Any) -> None:
    bottom, places, inside = source.locate(grid(source.shape), op)
    full, mask = spread(places, inside, source.shape)
    wanted = np.where(mask, full, -1)
    asked, cluster = (held.channel.op, held.fill.number, op), agent.worker.cluster
    count = cluster.counts.get((asked, agent.worker.rank), 0)  # how often this one has: the copy may stand in a loop
    cluster.counts[asked, agent.worker.rank] = count + 1
    rank, buffer, before = cluster.requests.setdefault((asked, count), (agent.worker.rank, bottom.buffer, wanted))
    if buffer is not bottom.buffer or not np.array_equal(before, wanted):
        raise ProtocolFault(
            f"{at_line(op)}: workgroups {rank} and {agent.worker.rank} of a cluster ask for different elements, for "
            f"fill {held.fill.number} of %{held.channel.name}; what is multicast is the same for all",
            op.loc,
        )


def _moved(
    memory: TensorMemory | TensorWindow, mine: list[TensorMemory], theirs: list[TensorMemory], held: Hold
) -> TensorMemory | TensorWindow:
    """The same part of another workgroup's stage."""
    if isinstance(memory, TensorWindow):
        return TensorWindow(_moved(memory.base, mine, theirs, held), memory.op, memory.values, memory.shape)
    whole = next(t for m, t in zip(mine, theirs, strict=True) if m.buffer is memory.buffer)
    return replace(whole.stage(held.fill.number % held.channel.stages, held), hold=None)
