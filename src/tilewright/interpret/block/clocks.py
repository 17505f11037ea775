"""Who has seen what: vector clocks, by which races are found whatever the schedule happened to be.

Every agent counts its own steps and knows, of every other agent, the last step that is ordered before it: by a channel,
a barrier, or because it started the other. Two accesses to one element, one of them a write, race if neither is
known to the other's agent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

AGENTS = 96
"""How many agents a worker may have at once: waves, their deferred parts, and copies under way."""


class Clock:
    """What one agent knows."""

    __slots__ = ("agent", "known")

    def __init__(self, agent: int, known: Array | None = None):
        self.agent = agent
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
        self.size = size

    def read(self, places: Array, clock: Clock, op: int) -> tuple[int, int] | None:
        """Notes a read; (place, operation that wrote it) if it races."""
        wrote = self.wrote[places]
        bad = (wrote >= 0) & (self.wrote_at[places] > clock.known[wrote])
        mine = self.read_at.get(clock.agent)
        if mine is None:
            mine = self.read_at[clock.agent] = np.zeros(self.size, np.int32)
            self.read_op[clock.agent] = np.zeros(self.size, np.int32)
        mine[places] = clock.known[clock.agent]
        self.read_op[clock.agent][places] = op
        if bad.any():
            place = int(np.asarray(places)[bad][0])
            return place, int(self.wrote_op[place])
        return None

    def write(self, places: Array, clock: Clock, op: int) -> tuple[int, int] | None:
        """Notes a write; (place, operation that read or wrote it) if it races."""
        wrote = self.wrote[places]
        bad = (wrote >= 0) & (self.wrote_at[places] > clock.known[wrote])
        found = None
        if bad.any():
            place = int(np.asarray(places)[bad][0])
            found = place, int(self.wrote_op[place])
        else:
            for agent, read_at in self.read_at.items():
                if agent != clock.agent:
                    bad = read_at[places] > clock.known[agent]
                    if bad.any():
                        place = int(np.asarray(places)[bad][0])
                        found = place, int(self.read_op[agent][place])
                        break
        self.wrote[places] = clock.agent
        self.wrote_at[places] = clock.known[clock.agent]
        self.wrote_op[places] = op
        return found
