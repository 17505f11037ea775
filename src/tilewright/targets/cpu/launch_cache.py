"""Calls like one before, on the host: arrays of the same shapes and types, elsewhere in memory. Only addresses are new.

The first call of its kind is checked at length and bound. Later ones are compared with it (`calling`), and launched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.outputs import maker
from tilewright.runtime.scripts import Whole
from tilewright.targets.cpu.calling import CallRecord, reads_arrays
from tilewright.targets.cpu.launch import NativeLaunch
from tilewright.targets.cpu.pool import pool

Array = np.ndarray[Any, np.dtype[Any]]
KINDS = 16
"""The kinds of calls, at most, that are remembered."""
ROOM = 64 << 20
"""Bytes of workspaces and scratch memory, at most, that stay with them; a call that needs more makes them anew."""


class _Known:
    """One kind of call: what makes its outputs and launches it, and which of its arguments are numbers."""

    __slots__ = ("call", "count", "makers", "numbers", "record", "room")

    def __init__(self, record: CallRecord, makers: Sequence[Callable[[], Array]], numbers: dict[int, Any], room: int):
        self.record, self.call, self.makers, self.numbers = record, record.call, tuple(makers), numbers
        self.count, self.room = record.given + len(numbers), room

    def without_numbers(self, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The arrays among the arguments; None: its numbers are others."""
        for place, number in self.numbers.items():
            if type(args[place]) is not type(number) or args[place] != number:
                return None
        return tuple(a for place, a in enumerate(args) if place not in self.numbers)


class LaunchCache:
    """The launches learnt from the calls of one executable.

    Threads may call and learn at the same time: the list of kinds is replaced, never changed.
    """

    def __init__(self) -> None:
        self._known: tuple[_Known, ...] = ()

    def __call__(self, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Runs a call like one before, and gives the outputs that it made; None: there was none like it."""
        for known in self._known:
            if len(args) != known.count:
                continue
            arrays = known.without_numbers(args) if known.numbers else args
            if arrays is None:
                continue
            if not known.makers:
                if known.call(*arrays):
                    return ()
            elif known.call(*arrays):
                made = tuple([make() for make in known.makers])
                if known.call(*arrays, *made):
                    return made
        return None

    def learn(
        self,
        args: Sequence[Any],
        made: Sequence[tuple[Array, bool]],
        whole: Whole | None,
        places: Sequence[int | None],
    ) -> None:
        """A call was right, which bound a `whole` host program; another one like it may be done so.

        `made` are the outputs that the call made, and whether they must hold zeros before it. `places` says which of
        the call's arguments, and of the outputs after them, each argument of the host program is; None: it stays.
        """
        every = [*args, *(a for a, _ in made)]
        numbers = {place: a for place, a in enumerate(args) if _is_number(a)}
        arrays = {place: a for place, a in enumerate(every) if place not in numbers}
        if whole is None or not reads_arrays() or not all(map(_is_plain, arrays.values())):
            return
        index = {place: n for n, place in enumerate(arrays)}
        moved = [None if place is None else index.get(place) for place in places]
        if not _can_move(list(arrays.values()), whole, moved):
            return
        room = whole.room + sum(launch.scratch_bytes for launch, _ in whole.launches)
        if room > ROOM:
            return
        written = [False] * len(arrays)
        for n, writes in zip(moved, whole.written, strict=True):
            if n is not None and writes:
                written[n] = True
        launches = [(launch, [None if n is None else moved[n] for n in slots]) for launch, slots in whole.launches]
        record = CallRecord(pool().code, list(arrays.values()), len(arrays) - len(made), written, launches)
        for launch, slots in launches:
            launch.let_go(slots)
        makers = [maker(a.shape, a.dtype, zeroed) for a, zeroed in made]
        self._remember(_Known(record, makers, numbers, room))

    def _remember(self, first: _Known) -> None:
        """Puts a kind before the others, of which the oldest go."""
        kept, room = [first], first.room
        for known in self._known[: KINDS - 1]:
            room += known.room
            if room > ROOM:
                break
            kept.append(known)
        self._known = tuple(kept)


def _is_number(argument: Any) -> bool:
    """Whether an argument is one of Python's numbers that equals itself alone; 0.0 equals -0.0, and NaN nothing."""
    return type(argument) in (bool, int) or (type(argument) is float and argument == argument and argument != 0)


def _is_plain(array: Any) -> bool:
    """Whether an argument is an array of numpy's, as launches take it, and not empty."""
    return type(array) is np.ndarray and array.flags.c_contiguous and array.flags.aligned and array.size > 0


def _can_move(arrays: Sequence[Array], whole: Whole, moved: Sequence[int | None]) -> bool:
    """Whether the launches of a host program work as well on other arrays.

    Its arguments that move must be the call's own arrays, not copies, and nothing that is done once may have read them.
    """
    if not all(isinstance(launch, NativeLaunch) for launch, _ in whole.launches):
        return False
    for place, (array, n) in enumerate(zip(whole.arrays, moved, strict=True)):
        if n is None:
            continue
        if place in whole.fixed or (array.ctypes.data, array.nbytes) != (arrays[n].ctypes.data, arrays[n].nbytes):
            return False
    return True
