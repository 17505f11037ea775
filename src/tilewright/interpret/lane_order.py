"""Order between the lanes of a wave: which lane loaded and stored each element since the lanes last synchronised.

A wave executes its operations in order, and so does each lane; lanes are ordered only by `together`, a barrier, or
another wait of all lanes. On a machine the lanes mostly run in step, so a missing `together` often goes unnoticed.
"""

from __future__ import annotations

from functools import lru_cache
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
    """For every element of a buffer, the interval between two synchronisations of a wave in which it was last stored
    and loaded, and the lane that did so.
    """

    def __init__(self, size: int):
        self.stored_in, self.loaded_in = (np.zeros(size, np.int64) for _ in range(2))
        self.stored_by, self.loaded_by = (np.zeros(size, np.int32) for _ in range(2))


def _trace(agent: Agent, buffer: Buffer) -> LaneTrace:
    """Return the LaneTrace of `buffer` in the workgroup of `agent`: the lanes that last stored and loaded each element.
    Create it at the first call.
    """
    key = ("lanes", id(buffer.data))
    trace: LaneTrace | None = agent.worker.shared.get(key)
    if trace is None:
        trace = agent.worker.shared[key] = LaneTrace(buffer.data.size)
    return trace


def _current_interval(agent: Agent) -> int:
    """Return the number of the current interval between two synchronisations of the lanes of the wave `agent`. The
    first call in an interval takes a new number.
    """
    if "time" not in agent.started:
        agent.started["time"] = [next(_TIMES)]
    interval: int = agent.started["time"][0]
    return interval


def meet(agent: Agent) -> None:
    """Record that the lanes of the wave `agent` synchronise: a new interval begins, and no lane is waiting."""
    agent.started.pop("time", None)
    agent.started.pop("waited", None)


def act(agent: Agent) -> None:
    """Record that each lane of the wave `agent` acts alone. `require_met` then raises an error until the lanes
    synchronise.
    """
    _current_interval(agent)


def waited(agent: Agent) -> None:
    """Record that each lane of the wave `agent` waits alone for a barrier's phase, so that lanes may continue at
    different times. `require_passed` then raises an error until the lanes synchronise.
    """
    agent.started["waited"] = [True]


def go_on(agent: Agent) -> None:
    """Record that all lanes of the wave `agent` execute an instruction together, so that no lane still waits for a
    barrier.
    """
    agent.started.pop("waited", None)


def sync_lanes(agent: Agent, op: Op) -> Steps | None:
    """Execute a `together`: synchronise the lanes of the wave `agent`. Return None; `op` is not used."""
    meet(agent)
    return None


def require_met(agent: Agent, op: Op) -> None:
    """Raise RaceFault if lanes of the wave `agent` have acted alone since they last synchronised, or if lanes may still
    wait for a barrier's phase.

    One lane executes `op` for all lanes, so the lanes must have synchronised before: `together` is missing.
    """
    if "time" in agent.started:
        raise RaceFault(
            f"{at_line(op)} is done by one lane for all, and others have loaded or stored since the lanes met last: "
            "`together` is missing",
            op.loc,
        )
    require_passed(agent, op)


def require_passed(agent: Agent, op: Op) -> None:
    """Raise RaceFault if lanes of the wave `agent` may still wait for a barrier's phase.

    One lane executes `op`, which may complete the next phase, so the lanes must have synchronised before.
    """
    if "waited" in agent.started:
        raise RaceFault(
            f"{at_line(op)} is done by one lane, and others may still wait for a phase that it lets pass: "
            "`together` is missing",
            op.loc,
        )


def loaded(agent: Agent, buffer: Buffer, places: Array, active: Array | None, op: Op) -> None:
    """Record that lanes of the wave `agent` load elements of `buffer`, for later checks.

    `places` are the element numbers for each (lane, value); `active` is a mask of the elements that are loaded (None:
    all). Raise RaceFault if another lane has stored one of these elements since the lanes last synchronised.
    """
    trace, interval, (elements, lane) = _trace(agent, buffer), _current_interval(agent), _flat(places, active)
    _require_same_lane(
        trace.stored_in.take(elements) == interval,
        trace.stored_by.take(elements) != lane,
        elements,
        "loads",
        "stored",
        buffer,
        op,
    )
    loaded_by_others = (trace.loaded_in.take(elements) == interval) & (trace.loaded_by.take(elements) != lane)
    trace.loaded_in[elements], trace.loaded_by[elements] = interval, lane
    trace.loaded_by[elements[loaded_by_others | (trace.loaded_by.take(elements) != lane)]] = SEVERAL


def stored(agent: Agent, buffer: Buffer, places: Array, active: Array | None, op: Op) -> None:
    """Record that lanes of the wave `agent` store elements of `buffer`, for later checks.

    `places` are the element numbers for each (lane, value); `active` is a mask of the elements that are stored (None:
    all). Raise RaceFault if another lane has loaded or stored one of these elements since the lanes last synchronised.
    """
    trace, interval, (elements, lane) = _trace(agent, buffer), _current_interval(agent), _flat(places, active)
    _require_same_lane(
        trace.stored_in.take(elements) == interval,
        trace.stored_by.take(elements) != lane,
        elements,
        "stores",
        "stored",
        buffer,
        op,
    )
    _require_same_lane(
        trace.loaded_in.take(elements) == interval,
        trace.loaded_by.take(elements) != lane,
        elements,
        "stores",
        "loaded",
        buffer,
        op,
    )
    trace.stored_in[elements], trace.stored_by[elements] = interval, lane


def _flat(places: Array, active: Array | None) -> tuple[Array, Array]:
    """Return (element numbers, lanes) of the active entries of `places`, as two flat arrays of equal length.

    `places` are element numbers, with the lane as first axis. `active` is a mask of the same shape (None: all are
    active).
    """
    lanes = _lanes(places.shape)
    return (places.reshape(-1), lanes.reshape(-1)) if active is None else (places[active], lanes[active])


@lru_cache(maxsize=256)
def _lanes(shape: tuple[int, ...]) -> Array:
    """Return an array of shape `shape` that holds the lane of each entry: the index along the first axis. The array is
    cached and read-only.
    """
    lanes = np.empty(shape, np.int64)
    lanes[...] = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    lanes.setflags(write=False)
    return lanes


def _require_same_lane(
    same_interval: Array, other_lane: Array, at: Array, does: str, did: str, buffer: Buffer, op: Op
) -> None:
    """Raise RaceFault if another lane accessed one of the elements `at` of `buffer` in the current interval.

    The masks `same_interval` and `other_lane` have one entry per element: True if the element was accessed in this
    interval, and True if another lane accessed it last. `does` and `did` are the verbs of the message ("loads",
    "stored").
    """
    races = same_interval & other_lane
    if races.any():
        raise RaceFault(
            f"{at_line(op)} {does} element {int(at[races][0])} of {buffer.name}, which another lane of the wave {did} "
            "since the lanes met last: `together` is missing",
            op.loc,
        )
