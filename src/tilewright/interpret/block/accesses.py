"""Accesses to memory that nothing orders: races, between the actors of a worker and between tasks.

Two accesses to one element go together if both read it, or both combine into it atomically in the same way (`add` and
`max` of two waves give another result in another order). All others must be ordered.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.interpret.block.clocks import Clock
from tilewright.ir.core import Op

Array = np.ndarray[Any, np.dtype[Any]]

READ, WRITE = "read", "write"
"""Kinds of accesses; the others are the names of atomic operations."""

EVERYONE = -2
"""The task of what stands outside of tasks: every worker does it."""

_NOBODY = -1


def go_together(kind: str, other: str) -> bool:
    """Whether two accesses of these kinds need no order.

    >>> go_together("read", "read"), go_together("add", "add"), go_together("add", "max"), go_together("write", "write")
    (True, True, False, False)
    """
    return kind == other != WRITE


class Watch:
    """The accesses to a buffer, by one worker's actors, that a later one may race with.

    For each kind there are layers: in each, one access for every element. An access takes the place of one that is
    ordered before it: whoever is ordered after the new one is ordered after both. Only accesses that nothing
    orders need layers of their own.
    """

    def __init__(self, size: int):
        self.size = size
        self.layers: dict[str, list[Array]] = {}
        self._first: dict[tuple[str, int], int] = {}  # (kind, slot) -> the layer where its last access went

    def note(self, kind: str, places: Array, clock: Clock, op: Op) -> tuple[int, Op] | None:
        """Notes an access; (place, operation that it races with), if it does."""
        for other, layers in self.layers.items():
            if not go_together(kind, other):
                for layer in layers:
                    before = layer[places]
                    if not clock.clocks.ordered(before, clock):
                        bad = clock.clocks.unordered(before, clock)
                        return int(places[bad][0]), clock.clocks.op(int(before[bad][0]))
        self._keep(kind, places, clock, clock.access(op))
        return None

    def _keep(self, kind: str, places: Array, clock: Clock, access: int) -> None:
        layers = self.layers.setdefault(kind, [])
        if kind == WRITE and layers:  # all before are ordered
            layers[0][places] = access
            return
        first = self._first.get((kind, clock.slot), 0)
        for turn in range(len(layers)):
            layer = layers[(first + turn) % len(layers)]
            before = layer[places]
            if clock.clocks.ordered(before, clock):
                layer[places] = access
                if turn:
                    self._first[kind, clock.slot] = (first + turn) % len(layers)
                return
            bad = clock.clocks.unordered(before, clock)
            layer[places[~bad]] = access
            places = places[bad]
        if places.size:
            self._first[kind, clock.slot] = len(layers)
            layers.append(np.zeros(self.size, np.int32))
            layers[-1][places] = access


class Sharing:
    """Which tasks touched each element of a buffer in global memory.

    Nothing orders two tasks, whichever workers there are, unless every number of workers gives both to one: those have
    the same number here, and what orders the accesses within the worker is the `Watch`'s to find.
    """

    def __init__(self, size: int):
        self.size = size
        self.tasks: dict[str, Array] = {}  # by kind: the task that touched each element; EVERYONE: several did

    def note(self, kind: str, places: Array, task: int) -> tuple[int, str] | None:
        """Notes an access; (place, kind of access of another task that it races with), if it does."""
        if task == EVERYONE and not go_together(kind, kind) and places.size:
            return int(places[0]), kind
        for other, tasks in self.tasks.items():
            if not go_together(kind, other):
                by = tasks[places]
                bad = (by != _NOBODY) & ((by != task) | (by == EVERYONE))
                if bad.any():
                    return int(places[bad][0]), other
        if kind not in self.tasks:
            self.tasks[kind] = np.full(self.size, _NOBODY, np.int32)
        mine = self.tasks[kind]
        by = mine[places]
        mine[places] = np.where((by == _NOBODY) | (by == task), task, EVERYONE)
        return None
