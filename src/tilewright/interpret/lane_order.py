"""Lanes of a wave on the interpreter: who loaded and stored which element since they met last.

A wave does its operations in order, and so does each of its lanes; between lanes there is no order but at `together`,
at a barrier and at whatever else all of them wait for. On a machine the lanes mostly go in step, so that a missing
`together` goes unnoticed until they do not.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from tilewright.errors import RaceFault
from tilewright.interpret.block.memory import Buffer, at_line
from tilewright.interpret.block.worker import Agent, Steps
from tilewright.ir.core import Op

Array = np.ndarray[Any, np.dtype[Any]]
_TIMES = count(1)
SEVERAL = -1


class LaneTrace:
    """For every element of a buffer: the time, between two meetings of a wave, and the lane that touched it then."""

    def __init__(self, size: int):
        self.stored_in, self.loaded_in = (np.zeros(size, np.int64) for _ in range(2))
        self.stored_by, self.loaded_by = (np.zeros(size, np.int32) for _ in range(2))


def _trace(agent: Agent, buffer: Buffer) -> LaneTrace:
    key = ("lanes", id(buffer.data))
    found: LaneTrace | None = agent.worker.shared.get(key)
    if found is None:
        found = agent.worker.shared[key] = LaneTrace(buffer.data.size)
    return found


def _now(agent: Agent) -> int:
    if "time" not in agent.started:
        agent.started["time"] = [next(_TIMES)]
    found: int = agent.started["time"][0]
    return found


def meet(agent: Agent) -> None:
    """The lanes of a wave meet."""
    agent.started.pop("time", None)
    agent.started.pop("waited", None)


def act(agent: Agent) -> None:
    """Each lane does something that one of them may not go ahead of."""
    _now(agent)


def waited(agent: Agent) -> None:
    """The lanes wait for a phase, each by itself."""
    agent.started["waited"] = [True]


def go_on(agent: Agent) -> None:
    """All lanes do something at once, and so have ended waiting."""
    agent.started.pop("waited", None)


def together(agent: Agent, op: Op) -> Steps | None:
    """The lanes of the wave meet."""
    meet(agent)
    return None


def require_met(agent: Agent, op: Op) -> None:
    """Raises where one lane speaks for others that have touched memory since they met last."""
    if "time" in agent.started:
        raise RaceFault(
            f"{at_line(op)} is done by one lane for all, and others have loaded or stored since the lanes met last: "
            "`together` is missing",
            op.loc,
        )
    require_passed(agent, op)


def require_passed(agent: Agent, op: Op) -> None:
    """Raises where one lane goes on, while others may still look at the phase that all wait for."""
    if "waited" in agent.started:
        raise RaceFault(
            f"{at_line(op)} is done by one lane, and others may still wait for a phase that it lets pass: "
            "`together` is missing",
            op.loc,
        )


def loaded(agent: Agent, buffer: Buffer, places: Array, active: Array, op: Op) -> None:
    """Lanes, the first axis of the places, load elements."""
    trace, now, (at, lane) = _trace(agent, buffer), _now(agent), _flat(places, active)
    _require(trace.stored_in[at] == now, trace.stored_by[at] != lane, at, "loads", "stored", buffer, op)
    again = (trace.loaded_in[at] == now) & (trace.loaded_by[at] != lane)
    trace.loaded_in[at], trace.loaded_by[at] = now, lane
    trace.loaded_by[at[again | (trace.loaded_by[at] != lane)]] = SEVERAL


def stored(agent: Agent, buffer: Buffer, places: Array, active: Array, op: Op) -> None:
    """Lanes, the first axis of the places, store elements."""
    trace, now, (at, lane) = _trace(agent, buffer), _now(agent), _flat(places, active)
    _require(trace.stored_in[at] == now, trace.stored_by[at] != lane, at, "stores", "stored", buffer, op)
    _require(trace.loaded_in[at] == now, trace.loaded_by[at] != lane, at, "stores", "loaded", buffer, op)
    trace.stored_in[at], trace.stored_by[at] = now, lane


def _flat(places: Array, active: Array) -> tuple[Array, Array]:
    lanes = np.broadcast_to(np.arange(places.shape[0]).reshape(-1, *[1] * (places.ndim - 1)), places.shape)
    return places[active], lanes[active]


def _require(same: Array, other: Array, at: Array, does: str, did: str, buffer: Buffer, op: Op) -> None:
    wrong = same & other
    if wrong.any():
        raise RaceFault(
            f"{at_line(op)} {does} element {int(at[wrong][0])} of {buffer.name}, which another lane of the wave {did} "
            "since the lanes met last: `together` is missing",
            op.loc,
        )
