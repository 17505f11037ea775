"""Kernel calls of the host that are observed: those by which an operator of torch computes its result.

An operator is learnt as a whole, from its own arguments to its own result. So the kernel call within it is made at
length, even where one like it is known, and tells its observer what it launched. The observer is also told of copies
and of constants that are made on the way: what is not told of cannot be learnt.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from tilewright.runtime.scripts import Whole

AT_LENGTH = np.zeros(1, np.int64)
"""How many calls are observed; while any is, all calls of all threads are made at length."""
_counting = threading.Lock()
_here = threading.local()


class KernelCall(NamedTuple):
    """A kernel call: what it was called with, the arrays that it made, and the host program that it bound.

    `outputs` are (array, whether it held zeros before). `places` says which of the arguments, and of the outputs after
    them, each argument of the host program is; None: it stays.
    """

    args: tuple[Any, ...]
    outputs: tuple[tuple[Any, bool], ...]
    whole: Whole
    places: tuple[int | None, ...]


class Forgetting(Protocol):
    """Who learnt calls."""

    def forget_ended(self) -> None:
        """Forgets calls that are no longer valid."""


class Life:
    """How long an object lives: `alive` is a word that is 0 once it is gone. Those `known_to` forget it then."""

    def __init__(self, thing: Any):
        self.alive = np.ones(1, np.int64)
        self.known_to: weakref.WeakSet[Forgetting] = weakref.WeakSet()
        weakref.finalize(thing, self._end).atexit = False

    def _end(self) -> None:
        self.alive[0] = 0
        for each in list(self.known_to):
            each.forget_ended()


class KeptWeights(NamedTuple):
    """Tensors in a state, (tensor, torch's count of writes to it, address) each, for as long as a `life`."""

    tensors: tuple[tuple[Any, int, int], ...]
    life: Life


class Observed:
    """All that happened while calls were observed."""

    def __init__(self) -> None:
        self.calls: list[KernelCall] = []
        self.copies: list[tuple[Any, Any]] = []
        """(a contiguous copy, the tensor that it is a copy of)"""
        self.constants: list[Any] = []
        """Tensors whose values are those of every call with arguments of the same form."""
        self.weights: list[KeptWeights] = []
        """Those that were packed for many calls: what is learnt is for them alone."""


@contextmanager
def observed() -> Iterator[Observed]:
    """Within, this thread's kernel calls are made at length, and told of."""
    events = Observed()
    before = getattr(_here, "events", None)
    with _counting:
        AT_LENGTH[0] += 1
    _here.events = events
    try:
        yield events
    finally:
        _here.events = before
        with _counting:
            AT_LENGTH[0] -= 1


def observer() -> Observed | None:
    """The observer of the calls of this thread; None: there is none."""
    events: Observed | None = getattr(_here, "events", None)
    return events


def tell_of_call(
    args: Sequence[Any], outputs: Sequence[tuple[Any, bool]], whole: Whole, places: Sequence[int | None]
) -> bool:
    """Tells of a kernel call; False: nothing observes it."""
    events = observer()
    if events is not None:
        events.calls.append(KernelCall(tuple(args), tuple(outputs), whole, tuple(places)))
    return events is not None
