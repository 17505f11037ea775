"""Interpret per-lane asynchronous copies (as cp.async), in which each lane has its own addresses; a barrier waits for
them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import OutOfBoundsFault, ProtocolFault
from tilewright.interpret import lane_order
from tilewright.interpret.block.memory import at_line, box
from tilewright.interpret.block.worker import Agent, Copying, Steps
from tilewright.interpret.evaluation import evaluated
from tilewright.interpret.loop_waves import barrier_of, landed, shared_elements
from tilewright.ir.core import Op

Array = np.ndarray[Any, np.dtype[Any]]


def copy_lanes(agent: Agent, op: Op) -> Steps:
    """Start a `copy_lanes` of the wave `agent`: each lane asynchronously copies a contiguous run to shared memory.

    The copy is executed later, when the scheduler chooses; the next `land` names the barrier that waits for the copy. A
    lane for which the attribute `when` is false copies nothing; an element for which `inside` is false becomes zero.
    Raise OutOfBoundsFault if another element is outside of the source tensor, and ProtocolFault if a lane's elements
    are no aligned run. The generator yields once at first, so that other waves may run.
    """
    yield None
    tensor, shared = (agent.handles[v] for v in op.operands)
    shape, lanes = box(op.attrs["over"], op.name)
    values = {**agent.values, **lanes}

    def every(name: str) -> Array:
        """Return the condition in the attribute `name` as a mask for each (lane, value); True everywhere without the
        attribute.
        """
        condition = np.asarray(evaluated(op.attrs[name], values)) != 0 if name in op.attrs else np.ones((), bool)
        return np.broadcast_to(condition, shape)

    active, in_bounds = every("when"), every("inside")
    source_elements = np.broadcast_to(np.asarray(evaluated(op.attrs["there"][0], values)), shape)
    invalid = active & in_bounds & ((source_elements < 0) | (source_elements >= tensor.buffer.data.size))
    if invalid.any():
        raise OutOfBoundsFault(
            f"{at_line(op)} reads element {int(source_elements[invalid][0])} of {tensor.buffer.name}, which has "
            f"{tensor.buffer.data.size}",
            op.loc,
        )
    target_elements = shared_elements(agent, op, shared, op.attrs["over"], op.attrs["at"][0], active)
    _require_whole_runs(op, source_elements, target_elements, active, in_bounds)
    clock = agent.clock.fork()

    def finish() -> None:
        """Copy the active elements, with zeros for elements out of bounds. The scheduler calls this function at some
        later time.
        """
        values = np.zeros(shape, tensor.buffer.data.dtype)
        copied = active & in_bounds
        values[copied] = tensor.buffer.read(source_elements[copied], clock, op)
        shared.buffer.write(target_elements[active], values[active], clock, op)
        landed(agent, shared.buffer, target_elements[active], clock)

    copying = Copying(finish, op, clock)
    agent.worker.copies.append(copying)
    agent.started.setdefault("lanes", []).append(copying)


def _require_whole_runs(
    op: Op, source_elements: Array, target_elements: Array, active: Array, in_bounds: Array
) -> None:
    """Raise ProtocolFault unless each lane copies one contiguous, aligned run of elements, in the source and in the
    target.

    All arrays are indexed [lane, value]. `source_elements` and `target_elements` are element numbers. `active` marks
    the elements that are copied: all elements of a lane or none. `in_bounds` marks the elements inside the source; only
    the last elements of a run may be outside.
    """
    count = source_elements.shape[1]
    step = np.arange(count)
    active_lanes = active[:, 0]
    has_elements = in_bounds[:, 0]
    if (
        (active != active[:, :1]).any()
        or (target_elements != target_elements[:, :1] + step)[active_lanes].any()
        or (target_elements[active_lanes, 0] % count).any()
        or (in_bounds[:, 1:] & ~in_bounds[:, :-1])[active_lanes].any()
        or ((source_elements != source_elements[:, :1] + step) & in_bounds)[active_lanes].any()
        or (source_elements[active_lanes & has_elements, 0] % count).any()
    ):
        raise ProtocolFault(f"{at_line(op)}: a lane's {count} values are no aligned run of {op.attrs['by']}", op.loc)


def land(agent: Agent, op: Op) -> Steps:
    """Execute a `land` of the wave `agent`: the current phase of a barrier waits for all per-lane copies of the wave
    that are in flight. Copies that have finished since the last `land` are ordered before the end of the phase.

    The generator yields once at first, so that other waves may run.
    """
    yield None
    lane_order.act(agent)
    started = agent.started.setdefault("lanes", [])
    for copy in started:
        copy.covered = True
    in_flight = [copy for copy in started if not copy.done]
    barrier = barrier_of(agent, op)
    barrier.knows += [copy.clock.known for copy in started if copy.done]
    if in_flight:
        barrier.await_copies(in_flight)
    agent.started["lanes"] = in_flight


HANDLERS: dict[str, Any] = {"copy_lanes": copy_lanes, "land": land}
