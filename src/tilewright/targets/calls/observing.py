"""Observation of kernel calls on the host, by which the calls of torch's operators are learnt.

An operator is learnt as a whole, from its own arguments to its own result. While it is observed, the kernel call within
it takes the slow, checked path, and reports to the observer what it launched. Copies and constants made on the way are
reported too: an operator that uses any other array cannot be learnt.
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
"""How many operators are observed now; while any is, all calls of all threads take the slow, checked path."""
_counting = threading.Lock()
_here = threading.local()


class KernelCall(NamedTuple):
    """A kernel call: its arguments, the arrays that it made, and the host program that it bound.

    `outputs` are (array, True if it held zeros before). `places` has, for each argument of the host program, its number
    among the call's arguments followed by its outputs; None if it is the same array in every call.
    """

    args: tuple[Any, ...]
    outputs: tuple[tuple[Any, bool], ...]
    whole: Whole
    places: tuple[int | None, ...]


class Forgetting(Protocol):
    """A store of learnt calls."""

    def forget_ended(self) -> None:
        """Drop the remembered calls with invalid records. Protocol method: each store of remembered calls implements
        it.
        """


class Life:
    """The lifetime of an object: the word `alive` becomes 0 when it is freed, and the stores in `known_to` forget its
    calls."""

    def __init__(self, owner: Any):
        self.alive = np.ones(1, np.int64)
        self.known_to: weakref.WeakSet[Forgetting] = weakref.WeakSet()
        weakref.finalize(owner, self._end).atexit = False

    def _end(self) -> None:
        """Set the word `alive` to 0, and call `forget_ended` of each store in `known_to`. Called when the owner is
        freed.
        """
        self.alive[0] = 0
        for store in list(self.known_to):
            store.forget_ended()


class KeptWeights(NamedTuple):
    """Packed weights: (tensor, torch's count of writes to it, address) of each tensor, and the `life` of the packed
    copy."""

    tensors: tuple[tuple[Any, int, int], ...]
    life: Life


class Observed:
    """Events of an observed operator: its kernel calls, copies, constants and weights."""

    def __init__(self) -> None:
        self.calls: list[KernelCall] = []
        self.copies: list[tuple[Any, Any]] = []
        """(contiguous copy, tensor that was copied)"""
        self.constants: list[Any] = []
        """Tensors that have the same values in every call with arguments of the same shapes and types."""
        self.weights: list[KeptWeights] = []
        """Weights that were packed for many calls: the learnt call is valid for these weights only."""


@contextmanager
def observed() -> Iterator[Observed]:
    """Return a context manager. It yields a new Observed, in which the kernel calls of this thread are recorded. While
    it is active, the calls of all threads take the slow path with all checks. Contexts may be nested: the innermost one
    records.
    """
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
    """Return the Observed of the innermost active `observed` context of this thread; None if there is none."""
    events: Observed | None = getattr(_here, "events", None)
    return events


def report_call(
    args: Sequence[Any], outputs: Sequence[tuple[Any, bool]], whole: Whole, places: Sequence[int | None]
) -> bool:
    """Append a KernelCall to the calls of this thread's observer. Return True, or False if this thread has no observer.

    `args` are the arguments of the kernel call. `outputs` are pairs (array that the call allocated, True if it was
    filled with zeros first). `whole` describes the host program that was launched. `places` has one entry for each
    array of `whole`: its number in `args` followed by `outputs`, or None if every call uses the same array.
    """
    events = observer()
    if events is not None:
        events.calls.append(KernelCall(tuple(args), tuple(outputs), whole, tuple(places)))
    return events is not None
