"""Vector clocks: which steps are ordered, so that races are found in any schedule.

The *actors* of a worker are its waves, their deferred ends, and asynchronous copies. Each actor counts its own steps
and knows, of every other actor, the last step that is ordered before it: by a channel, a barrier, or because it started
the other. An action is ordered before another actor's action if that actor knows the step in which it was done.

A collective operation on memory does not say which wave does which part of it. So each part is an actor of its own: its
wave passes it on at the next synchronisation, and learns there, as the other waves do, that all parts are done.

A clock is a vector with a slot for each actor. An actor that has ended gives up its slot when every actor that can
still act knows its last step; the slot's next actor counts on from there. So a slot and a step identify one actor for
good, a slot is never taken from an actor that others have still to hear of, and a program may start any number of
copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilewright.ir.core import Op

Array = np.ndarray[Any, np.dtype[Any]]

SLOTS = 32
"""The initial length of clocks; it doubles if too few slots can be reused."""

Stamp = tuple[int, int]
"""(slot, step): one moment of one actor."""

BEGINNING: Stamp = (0, 0)
"""A moment before everything."""


class Clock:
    """The vector clock of one actor (a wave, its deferred end, or an asynchronous copy), and the number of the task
    that it executes.
    """

    __slots__ = ("_last_access", "clocks", "known", "parts", "slot", "task")

    def __init__(self, clocks: Clocks, slot: int, known: Array, task: int):
        self.clocks, self.slot, self.known, self.task = clocks, slot, known, task
        self.parts: list[Stamp] = []  # finished parts of collective operations that are not yet ordered before it
        self._last_access: tuple[Op | None, int, int] = (None, 0, 0)

    def now(self) -> Array:
        """Return a copy of this vector clock, from which other actors learn what this actor did and knows. Finished
        parts of collective operations are included.

        Begin a new step of this actor (a wave or copy): its later actions are not ordered before the actions of actors
        that learn the copy.
        """
        known = self.known.copy()
        for slot, step in self.parts:
            known[slot] = step
        self.known[self.slot] += 1
        return known

    def meet(self, other: Array) -> None:
        """Merge the vector clock `other`, an array of steps by slot, into this clock by elementwise maximum.

        The steps in `other` are then ordered before this actor's next action.
        """
        prefix = self.known[: len(other)]
        np.maximum(prefix, other, out=prefix)
        if self.parts:
            self.parts = [part for part in self.parts if not self.knows(part)]

    def fork(self) -> Clock:
        """Return the vector clock of a new actor (such as an asynchronous copy) that this actor starts.

        This actor's actions until now are ordered before those of the new actor; its later actions are not.
        """
        child = self.clocks.begin(self.task, self.known)
        self.known[self.slot] += 1
        return child

    def join(self, other: Clock) -> None:
        """Make everything that the actor of `other` did or knew ordered before this actor's next action.

        `other` is the vector clock of an actor that this actor started and that has ended. Finished parts of collective
        operations in `other` that are not ordered yet are added to `self.parts`, so that the next synchronisation
        orders them.
        """
        self.meet(other.known)
        self.parts = [part for part in dict.fromkeys((*self.parts, *other.parts)) if not self.knows(part)]

    @contextmanager
    def part(self) -> Iterator[Clock]:
        """Context manager: its value is the vector clock of a new actor, for a wave's part of a collective memory
        operation.

        At the end the new actor ends. No wave, not even this one, is ordered after its accesses until the next
        synchronisation.
        """
        part = self.fork()
        yield part
        part.end()
        self.parts.append(part.stamp)

    def end(self) -> None:
        """End the actor (a wave or asynchronous copy) of this clock: it does nothing more, and its slot may be
        reused.
        """
        self.clocks.end(self)

    @property
    def stamp(self) -> Stamp:
        """The current moment of this actor, as (its slot in vector clocks, its step)."""
        return self.slot, int(self.known[self.slot])

    def knows(self, stamp: Stamp) -> bool:
        """True if the moment `stamp`, (slot, step) of some actor, is ordered before this actor's next action."""
        slot, step = stamp
        return bool(self.known[slot] >= step)

    def learn(self, stamp: Stamp) -> None:
        """Make the moment `stamp`, (slot, step) of some actor, ordered before this actor's next action.

        Other actions that were ordered before that moment are not ordered by this call.
        """
        slot, step = stamp
        self.known[slot] = max(self.known[slot], step)

    def access(self, op: Op) -> int:
        """Record the memory access that this actor makes now in operation `op`, and return its number.

        Accesses in one operation and one step of the actor have the same number.
        """
        last_op, step, number = self._last_access
        now = int(self.known[self.slot])
        if last_op is not op or step != now:
            number = self.clocks.note(self.slot, now, op)
            self._last_access = op, now, number
        return number


class Clocks:
    """The actors of a worker, and the memory accesses that they made: access number -> (slot, step, operation).

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
        """Return the vector clock of a new actor (a wave or asynchronous copy) that executes task number `task`.

        `known` is the clock array of the actor that starts the new actor: everything known there is ordered before the
        new actor. With None, nothing is ordered before it.
        """
        if not self._free:
            self._free_slots()
        slot = self._free.pop()
        clock_vector = np.zeros(len(self._last), np.int32)
        if known is not None:
            clock_vector[: len(known)] = known
        clock_vector[slot] = self._last[slot] + 1
        clock = self.acting[slot] = Clock(self, slot, clock_vector, task)
        return clock

    def end(self, clock: Clock) -> None:
        """End the actor (a wave or asynchronous copy) of `clock`.

        The slot is given to a new actor once all active actors know the last step of the ended actor.
        """
        del self.acting[clock.slot]
        self._last[clock.slot] = clock.known[clock.slot]
        self._ended.append(clock.slot)

    def _free_slots(self) -> None:
        """Make the slots of ended actors available to new actors, if all active actors know the last step of the ended
        actor.

        If fewer than half of all slots become available, double the number of slots, and lengthen every active clock.
        """
        size = len(self._last)
        known_to_all = np.min([clock.known for clock in self.acting.values()], axis=0, initial=np.iinfo(np.int32).max)
        reusable = [slot for slot in self._ended if known_to_all[slot] >= self._last[slot]]
        self._free += reusable
        self._ended = [slot for slot in self._ended if known_to_all[slot] < self._last[slot]]
        if len(reusable) < size // 2:
            self._free += range(2 * size - 1, size - 1, -1)
            self._last = _longer(self._last)
            for clock in self.acting.values():
                clock.known = _longer(clock.known)

    # -- accesses -------------------------------------------------------------------------------------

    def note(self, slot: int, step: int, op: Op) -> int:
        """Record a memory access in operation `op` by the actor in `slot` at its step `step`; return the number of the
        new access.
        """
        number = len(self._ops)
        if number == len(self._slots):
            self._slots, self._steps = _longer(self._slots), _longer(self._steps)
        self._slots[number], self._steps[number] = slot, step
        self._ops.append(op)
        return number

    def op(self, access: int) -> Op:
        """Return the operation that made the access with number `access`, which is at least 1."""
        operation = self._ops[access]
        assert operation is not None
        return operation

    def ordered(self, accesses: Array, clock: Clock) -> bool:
        """True if every access in `accesses`, an array of access numbers, is ordered before the next action of the
        actor with the vector clock `clock`.
        """
        if accesses.size and not np.count_nonzero(accesses != accesses[0]):  # mostly one operation made them all
            access = accesses[0]
            return bool(self._steps[access] <= clock.known[self._slots[access]])
        return not self.unordered(accesses, clock).any()

    def unordered(self, accesses: Array, clock: Clock) -> Array:
        """Return a bool array with an entry for each number in `accesses`: True if this access is not ordered before
        the next action of the actor with the vector clock `clock`.
        """
        count = len(self._ops)
        if count < accesses.size:  # each is looked at once, not wherever it was made
            is_unordered: Array = self._steps[:count] > clock.known[self._slots[:count]]
            return is_unordered[accesses]
        unordered: Array = self._steps[accesses] > clock.known[self._slots[accesses]]
        return unordered


def _longer(vector: Array) -> Array:
    """Return an array of twice the length of `vector`: `vector`, then zeros."""
    return np.concatenate([vector, np.zeros_like(vector)])
