"""Who has seen what: vector clocks, by which races are found whatever the schedule happened to be.

Waves, their deferred ends and asynchronous copies are the *actors* of a worker. Each counts its own steps and knows,
of every other one, the last step that is ordered before it: by a channel, a barrier, or because it started the other.
What an actor did is ordered before another's action if that one knows the step in which it was done.

Which wave does which part of a collective operation on memory is not said. So a part is an actor of its own: its wave
tells others of it when they meet, and learns there, as they do, that all parts are done.

A clock is a vector with a slot for each actor. An actor that has ended gives its slot up when everybody who can still
act knows its last step; the next one in that slot counts on from there. So a slot and a step name one actor for good,
a slot is never taken from an actor that somebody has still to hear of, and a program may make any number of copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilewright.ir.core import Op

Array = np.ndarray[Any, np.dtype[Any]]

SLOTS = 32
"""The length of clocks at first; it doubles when so many actors are not known to all."""

Stamp = tuple[int, int]
"""A slot and a step: one moment of one actor."""

BEGINNING: Stamp = (0, 0)
"""A moment before everything."""


class Clock:
    """What one actor knows, and the task it is at (see `Sharing`)."""

    __slots__ = ("_last_access", "clocks", "known", "parts", "slot", "task")

    def __init__(self, clocks: Clocks, slot: int, known: Array, task: int):
        self.clocks, self.slot, self.known, self.task = clocks, slot, known, task
        self.parts: list[Stamp] = []  # parts of collective operations that it has done and does not know
        self._last_access: tuple[Op | None, int, int] = (None, 0, 0)

    def now(self) -> Array:
        """What the actor knows, to leave where others find it; what it does from here on is not part of that."""
        found = self.known.copy()
        for slot, step in self.parts:
            found[slot] = step
        self.known[self.slot] += 1
        return found

    def meet(self, other: Array) -> None:
        """Everything that was known there is ordered before what comes now."""
        mine = self.known[: len(other)]
        np.maximum(mine, other, out=mine)
        if self.parts:
            self.parts = [part for part in self.parts if not self.knows(part)]

    def fork(self) -> Clock:
        """The clock of a new actor, which this one starts."""
        found = self.clocks.begin(self.task, self.known)
        self.known[self.slot] += 1
        return found

    def join(self, other: Clock) -> None:
        """The other, which this one started, has ended."""
        self.meet(other.known)
        self.parts = [part for part in dict.fromkeys((*self.parts, *other.parts)) if not self.knows(part)]

    @contextmanager
    def part(self) -> Iterator[Clock]:
        """The clock of a part of a collective operation on memory, which is done within."""
        part = self.fork()
        yield part
        part.end()
        self.parts.append(part.stamp)

    def end(self) -> None:
        """The actor does nothing more."""
        self.clocks.end(self)

    @property
    def stamp(self) -> Stamp:
        """This moment."""
        return self.slot, int(self.known[self.slot])

    def knows(self, stamp: Stamp) -> bool:
        """Whether that moment is ordered before this one."""
        slot, step = stamp
        return bool(self.known[slot] >= step)

    def learn(self, stamp: Stamp) -> None:
        """That moment is ordered before what comes now; what its actor knew is not."""
        slot, step = stamp
        self.known[slot] = max(self.known[slot], step)

    def access(self, op: Op) -> int:
        """The number of an access to memory that the actor makes now."""
        before, step, number = self._last_access
        now = int(self.known[self.slot])
        if before is not op or step != now:
            number = self.clocks.note(self.slot, now, op)
            self._last_access = op, now, number
        return number


class Clocks:
    """The actors of a worker, and the accesses to memory that they made: number -> (slot, step, operation).

    >>> clocks = Clocks()
    >>> wave, other = clocks.begin(), clocks.begin()
    >>> copy = wave.fork()                            # it goes on by itself ...
    >>> wave.knows(copy.stamp), copy.knows(wave.stamp)
    (False, False)
    >>> copy.end()
    >>> wave.meet(copy.known)                         # ... until somebody waits for it
    >>> wave.knows(copy.stamp), other.knows(copy.stamp)
    (True, False)
    """

    def __init__(self) -> None:
        self.acting: dict[int, Clock] = {}
        self._last = np.zeros(SLOTS, np.int32)  # of every slot, the last step of an actor that has ended
        self._ended: list[int] = []  # slots of actors that have ended, but are perhaps not known to all
        self._free = list(range(SLOTS - 1, 0, -1))  # slot 0 stands for what was before everything
        self._slots, self._steps = np.zeros((2, 1024), np.int32)
        self._ops: list[Op | None] = [None]  # access 0: none

    # -- actors ---------------------------------------------------------------------------------------

    def begin(self, task: int = 0, known: Array | None = None) -> Clock:
        """The clock of a new actor that knows so much."""
        if not self._free:
            self._retire()
        slot = self._free.pop()
        mine = np.zeros(len(self._last), np.int32)
        if known is not None:
            mine[: len(known)] = known
        mine[slot] = self._last[slot] + 1
        clock = self.acting[slot] = Clock(self, slot, mine, task)
        return clock

    def end(self, clock: Clock) -> None:
        """An actor does nothing more."""
        del self.acting[clock.slot]
        self._last[clock.slot] = clock.known[clock.slot]
        self._ended.append(clock.slot)

    def _retire(self) -> None:
        """Frees the slots of actors that have ended and that all who can still act know; if they are few, makes more.

        Whoever begins later is started by one who acts now, and knows at least as much.
        """
        size = len(self._last)
        least = np.min([clock.known for clock in self.acting.values()], axis=0, initial=np.iinfo(np.int32).max)
        over = [slot for slot in self._ended if least[slot] >= self._last[slot]]
        self._free += over
        self._ended = [slot for slot in self._ended if least[slot] < self._last[slot]]
        if len(over) < size // 2:
            self._free += range(2 * size - 1, size - 1, -1)
            self._last = _longer(self._last)
            for clock in self.acting.values():
                clock.known = _longer(clock.known)

    # -- accesses -------------------------------------------------------------------------------------

    def note(self, slot: int, step: int, op: Op) -> int:
        """The number of a new access."""
        number = len(self._ops)
        if number == len(self._slots):
            self._slots, self._steps = _longer(self._slots), _longer(self._steps)
        self._slots[number], self._steps[number] = slot, step
        self._ops.append(op)
        return number

    def op(self, access: int) -> Op:
        """The operation that made an access."""
        found = self._ops[access]
        assert found is not None
        return found

    def ordered(self, accesses: Array, clock: Clock) -> bool:
        """Whether all of these accesses are ordered before what the clock's actor does now."""
        if accesses.size and (accesses == accesses[0]).all():  # mostly one operation made them all
            access = accesses[0]
            return bool(self._steps[access] <= clock.known[self._slots[access]])
        return not self.unordered(accesses, clock).any()

    def unordered(self, accesses: Array, clock: Clock) -> Array:
        """Which of these accesses are not ordered before what the clock's actor does now."""
        count = len(self._ops)
        if count < accesses.size:  # each is looked at once, not wherever it was made
            late: Array = self._steps[:count] > clock.known[self._slots[:count]]
            return late[accesses]
        found: Array = self._steps[accesses] > clock.known[self._slots[accesses]]
        return found


def _longer(vector: Array) -> Array:
    """The vector with as many zeros after it."""
    return np.concatenate([vector, np.zeros_like(vector)])
