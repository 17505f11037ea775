"""Copies that lanes start, each with its own addresses: they go on by themselves, and land at a barrier."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import OutOfBoundsFault, ProtocolFault
from tilewright.interpret import lane_order
from tilewright.interpret.block.memory import at_line, box
from tilewright.interpret.block.worker import Agent, Copying, Steps
from tilewright.interpret.evaluation import evaluated
from tilewright.interpret.loop_waves import barrier_of, landed, near
from tilewright.ir.core import Op

Array = np.ndarray[Any, np.dtype[Any]]


def copy_lanes(agent: Agent, op: Op) -> Steps:
    """Each lane starts; `land` says which barrier sees to the end."""
    yield None
    tensor, shared = (agent.handles[v] for v in op.operands)
    shape, lanes = box(op.attrs["over"], op.name)
    values = {**agent.values, **lanes}

    def every(name: str) -> Array:
        found = np.asarray(evaluated(op.attrs[name], values)) != 0 if name in op.attrs else np.ones((), bool)
        return np.broadcast_to(found, shape)

    active, inside = every("when"), every("inside")
    there = np.broadcast_to(np.asarray(evaluated(op.attrs["there"][0], values)), shape)
    outside = active & inside & ((there < 0) | (there >= tensor.buffer.data.size))
    if outside.any():
        raise OutOfBoundsFault(
            f"{at_line(op)} reads element {int(there[outside][0])} of {tensor.buffer.name}, which has "
            f"{tensor.buffer.data.size}",
            op.loc,
        )
    to = near(agent, op, shared, op.attrs["over"], op.attrs["at"][0], active)
    _require_whole_runs(agent, op, there, to, active, inside)
    clock = agent.clock.fork()

    def finish() -> None:
        brought = np.zeros(shape, tensor.buffer.data.dtype)
        chosen = active & inside
        brought[chosen] = tensor.buffer.read(there[chosen], clock, op)
        shared.buffer.write(to[active], brought[active], clock, op)
        landed(agent, shared.buffer, to[active], clock)

    copying = Copying(finish, op, clock)
    agent.worker.copies.append(copying)
    agent.started.setdefault("lanes", []).append(copying)


def _require_whole_runs(agent: Agent, op: Op, there: Array, to: Array, active: Array, inside: Array) -> None:
    """That a lane's values are one run on both sides, aligned, of which the tensor lacks the end at most."""
    count = there.shape[1]
    step = np.arange(count)
    chosen = active[:, 0]
    begun = inside[:, 0]
    if (
        (active != active[:, :1]).any()
        or (to != to[:, :1] + step)[chosen].any()
        or (to[chosen, 0] % count).any()
        or (inside[:, 1:] & ~inside[:, :-1])[chosen].any()
        or ((there != there[:, :1] + step) & inside)[chosen].any()
        or (there[chosen & begun, 0] % count).any()
    ):
        raise ProtocolFault(f"{at_line(op)}: a lane's {count} values are no aligned run of {op.attrs['by']}", op.loc)


def land(agent: Agent, op: Op) -> Steps:
    """What the wave's lanes have begun to copy lands at the barrier, before its phase is complete."""
    yield None
    lane_order.act(agent)
    started = agent.started.setdefault("lanes", [])
    for copy in started:
        copy.covered = True
    under_way = [copy for copy in started if not copy.done]
    barrier = barrier_of(agent, op)
    barrier.knows += [copy.clock.known for copy in started if copy.done]
    if under_way:
        barrier.await_copies(under_way)
    agent.started["lanes"] = under_way


HANDLERS: dict[str, Any] = {"copy_lanes": copy_lanes, "land": land}
