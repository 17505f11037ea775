"""Races: unordered accesses to one element of memory, between the actors of a worker and between tasks.

Two accesses to one element are compatible without an order if both read it, or both combine into it by the same atomic
operation (`add` and `max` of two waves give another result in another order). All others must be ordered.
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
"""The task number of operations outside of tasks, which every worker executes."""

_NOBODY = -1


def are_compatible(kind: str, other: str) -> bool:
    """True if two accesses to one element need no order: both are reads, or both are the same atomic operation. `kind`
    and `other` are "read", "write" or the name of an atomic operation.

    >>> [are_compatible(*kinds) for kinds in (("read", "read"), ("add", "add"), ("add", "max"), ("write", "write"))]
    [True, True, False, False]
    """
    return kind == other != WRITE


class Watch:
    """The accesses of one worker's actors to a buffer with which a later access may race.

    Each kind of access has layers, arrays with one access number for every element. A new access replaces one that is
    ordered before it: whatever is ordered after the new one is ordered after both. Only unordered accesses need further
    layers.
    """

    def __init__(self, size: int):
        self.size = size
        self.layers: dict[str, list[Array]] = {}
        self._first: dict[tuple[str, int], int] = {}  # (kind, slot) -> the layer where its last access went

    def note(self, kind: str, places: Array, clock: Clock, op: Op) -> tuple[int, Op] | None:
        """Record an access to the elements `places` (element numbers) of the buffer, unless it races with an earlier
        access.

        Return None, or for a race (element, operation of the earlier access); then nothing is recorded. `kind` is
        "read", "write" or an atomic operation, `clock` the vector clock of the actor (a wave or an asynchronous copy),
        and `op` the operation that accesses.
        """
        for other, layers in self.layers.items():
            if not are_compatible(kind, other):
                for layer in layers:
                    earlier = layer.take(places)
                    if not clock.clocks.ordered(earlier, clock):
                        racing = clock.clocks.unordered(earlier, clock)
                        return int(places[racing][0]), clock.clocks.op(int(earlier[racing][0]))
        self._store_access(kind, places, clock, clock.access(op))
        return None

    def _store_access(self, kind: str, places: Array, clock: Clock, access: int) -> None:
        """Store the number `access` as the last access of this `kind` to the elements `places`. Races are not tested.

        The access replaces earlier accesses of this kind that are ordered before the actor of the vector clock `clock`.
        Unordered accesses, such as reads by other waves, are kept: the new access is then stored in another layer
        (array with one access number for each element).
        """
        layers = self.layers.setdefault(kind, [])
        if kind == WRITE and layers:  # all before are ordered
            layers[0][places] = access
            return
        last_layer = self._first.get((kind, clock.slot), 0)
        for layer_number in range(len(layers)):
            layer = layers[(last_layer + layer_number) % len(layers)]
            earlier = layer.take(places)
            if clock.clocks.ordered(earlier, clock):
                layer[places] = access
                if layer_number:
                    self._first[kind, clock.slot] = (last_layer + layer_number) % len(layers)
                return
            unordered = clock.clocks.unordered(earlier, clock)
            layer[places[~unordered]] = access
            places = places[unordered]
        if places.size:
            self._first[kind, clock.slot] = len(layers)
            layers.append(np.zeros(self.size, np.int32))
            layers[-1][places] = access


class Sharing:
    """The task that accessed each element of a buffer in global memory, for each kind of access.

    Two tasks count as unordered, unless they run on the same worker whatever the number of workers is. Tasks that
    always run on one worker have the same number here; races within a worker are found by its `Watch`.
    """

    def __init__(self, size: int):
        self.size = size
        self.tasks: dict[
            str, Array
        ] = {}  # for each kind, the task that accessed each element; EVERYONE: several tasks did

    def note(self, kind: str, places: Array, task: int) -> tuple[int, str] | None:
        """Record an access to the elements `places` (element numbers) of the buffer by task number `task`, unless it
        races with an access by another task.

        Return None, or for a race (element, kind of the earlier access); then nothing is recorded. `kind` is "read",
        "write" or an atomic operation. Outside of tasks, `task` is EVERYONE; a write there races with itself, since
        every worker executes it.
        """
        if task == EVERYONE and not are_compatible(kind, kind) and places.size:
            return int(places[0]), kind
        for other, tasks in self.tasks.items():
            if not are_compatible(kind, other):
                previous_tasks = tasks.take(places)
                racing = (previous_tasks != _NOBODY) & ((previous_tasks != task) | (previous_tasks == EVERYONE))
                if racing.any():
                    return int(places[racing][0]), other
        if kind not in self.tasks:
            self.tasks[kind] = np.full(self.size, _NOBODY, np.int32)
        tasks_of_kind = self.tasks[kind]
        previous_tasks = tasks_of_kind.take(places)
        tasks_of_kind[places] = np.where((previous_tasks == _NOBODY) | (previous_tasks == task), task, EVERYONE)
        return None
