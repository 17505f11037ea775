"""Who has seen what: vector clocks, by which races are found whatever the schedule happened to be.

Every agent counts its own steps and knows, of every other agent, the last step that is ordered before it: by a channel,
a barrier, or because it started the other. Two accesses to one element, one of them a write, race if neither is
known to the other's agent. Atomic operations race with reads and writes, not with each other.

Workers are never ordered, and which of them does a task is not said: `Sharing` finds tasks that touch each other's
elements of global memory, however many workers there happen to be.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

AGENTS = 96
"""How many agents a worker may have at once: waves, their deferred parts, and copies under way."""


Task = tuple[int, int, int]
"""A worker, one of the program's task loops (-1: none), and the number of the task in it."""


class Clock:
    """What one agent knows, and the task it is at."""

    __slots__ = ("agent", "known", "task")

    def __init__(self, agent: int, known: Array | None = None, task: Task = (0, -1, -1)):
        self.agent, self.task = agent, task
        self.known = np.zeros(AGENTS, np.int32) if known is None else known.copy()
        self.step()

    def step(self) -> None:
        """The agent does one thing more."""
        self.known[self.agent] += 1

    def meet(self, other: Array) -> None:
        """Everything the other knew is ordered before what comes now."""
        np.maximum(self.known, other, out=self.known)

    def now(self) -> Array:
        """A copy, to leave where somebody may find it; the agent steps on."""
        found = self.known.copy()
        self.step()
        return found


class Watch:
    """The last accesses to every element of a buffer."""

    def __init__(self, size: int):
        self.wrote = np.full(size, -1, np.int16)
        self.wrote_at = np.zeros(size, np.int32)
        self.wrote_op = np.zeros(size, np.int32)
        self.read_at: dict[int, Array] = {}
        self.read_op: dict[int, Array] = {}
        self.combined_at: dict[int, Array] = {}
        self.combined_op: dict[int, Array] = {}
        self.size = size

    def read(self, places: Array, clock: Clock, op: int) -> tuple[int, int] | None:
        """Notes a read; (place, operation that wrote it) if it races."""
        found = self._written(places, clock) or self._by_others(places, clock, self.combined_at, self.combined_op)
        self._note(places, clock, op, self.read_at, self.read_op)
        return found

    def write(self, places: Array, clock: Clock, op: int) -> tuple[int, int] | None:
        """Notes a write; (place, operation that read or wrote it) if it races."""
        found = (
            self._written(places, clock)
            or self._by_others(places, clock, self.combined_at, self.combined_op)
            or self._by_others(places, clock, self.read_at, self.read_op)
        )
        self.wrote[places] = clock.agent
        self.wrote_at[places] = clock.known[clock.agent]
        self.wrote_op[places] = op
        return found

    def combine(self, places: Array, clock: Clock, op: int) -> tuple[int, int] | None:
        """Notes an atomic operation; (place, operation that read or wrote it) if it races."""
        found = self._written(places, clock) or self._by_others(places, clock, self.read_at, self.read_op)
        self._note(places, clock, op, self.combined_at, self.combined_op)
        return found

    def _written(self, places: Array, clock: Clock) -> tuple[int, int] | None:
        """(place, operation that wrote it) of a write that is not ordered before."""
        wrote = self.wrote[places]
        bad = (wrote >= 0) & (self.wrote_at[places] > clock.known[wrote])
        if not bad.any():
            return None
        place = int(np.asarray(places)[bad][0])
        return place, int(self.wrote_op[place])

    def _by_others(
        self, places: Array, clock: Clock, at: dict[int, Array], ops: dict[int, Array]
    ) -> tuple[int, int] | None:
        """(place, operation) of another agent's access that is not ordered before."""
        for agent, steps in at.items():
            if agent != clock.agent:
                bad = steps[places] > clock.known[agent]
                if bad.any():
                    place = int(np.asarray(places)[bad][0])
                    return place, int(ops[agent][place])
        return None

    def _note(self, places: Array, clock: Clock, op: int, at: dict[int, Array], ops: dict[int, Array]) -> None:
        if clock.agent not in at:
            at[clock.agent] = np.zeros(self.size, np.int32)
            ops[clock.agent] = np.zeros(self.size, np.int32)
        at[clock.agent][places] = clock.known[clock.agent]
        ops[clock.agent][places] = op


class _Last:
    """Who did a thing to each element: a worker (-1: nobody, -2: several), and the last loop's task (-2: several)."""

    def __init__(self, size: int):
        self.worker = np.full(size, -1, np.int32)
        self.loop = np.full(size, -1, np.int32)
        self.number = np.full(size, -1, np.int32)

    def by_others(self, places: Array, task: Task) -> Any:
        """Where another worker did it, or another task of the same loop."""
        worker, loop, number = task
        by = self.worker[places]
        elsewhere = by != worker
        if loop >= 0:
            elsewhere |= (self.loop[places] == loop) & (self.number[places] != number)
        return (by != -1) & elsewhere

    def note(self, places: Array, task: Task) -> None:
        """The task did it to these elements."""
        worker, loop, number = task
        by = self.worker[places]
        again = (self.loop[places] == loop) & (self.number[places] != number) & (by != -1)
        self.worker[places] = np.where((by == -1) | (by == worker), worker, -2)
        self.number[places] = np.where(again, -2, number)
        self.loop[places] = loop


class Sharing:
    """Which worker, at which task, read, wrote or atomically changed each element of a buffer in global memory."""

    def __init__(self, size: int):
        self.wrote, self.read, self.combined = _Last(size), _Last(size), _Last(size)

    def note(self, what: str, places: Array, task: Task) -> tuple[int, str] | None:
        """Notes an access; (place, what another task did to it) if the two are not ordered."""
        against = {"reads": "wc", "writes": "wcr", "combines": "wr"}[what]
        mine = {"reads": self.read, "writes": self.wrote, "combines": self.combined}[what]
        found = None
        for key, word in (("w", "wrote"), ("c", "combined into"), ("r", "read")):
            bad = {"w": self.wrote, "c": self.combined, "r": self.read}[key].by_others(places, task)
            if key in against and found is None and bad.any():
                found = int(np.asarray(places)[bad][0]), word
        mine.note(places, task)
        return found
