"""The calls that a callable remembers, in a table that is made after its first successful call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.runtime.tensors import torch_of
from tilewright.targets.calls.table import UNLIKE, CallRecord, CallTable, Description, NativeCode


def _unlike(*_: Any) -> Any:
    """Return UNLIKE for any arguments: no call is remembered yet."""
    return UNLIKE


class LearntCalls:
    """The kinds of calls that one callable remembers.

    Threads may call and learn at the same time: the list of kinds is replaced, never changed.
    """

    __slots__ = ("__weakref__", "call", "call_below", "table")

    def __init__(self) -> None:
        self.table: CallTable | None = None
        self.call: Callable[..., Any] = _unlike
        """Repeats a remembered call with new arguments and returns its result; `UNLIKE` if none fits them."""
        self.call_below: Callable[..., Any] = _unlike
        """The same for torch's operators, whose dispatcher has already handled gradients and tracing."""

    def table_for(self, code: NativeCode, args: Sequence[Any]) -> CallTable:
        """Return the table of remembered calls, made with the native functions of `code` if there is none yet. If
        `args` has tensors and the table was made before torch was imported, a new table with the same calls replaces
        it."""
        table = self.table
        if table is None or (not table.knows_tensors() and any(torch_of(a) is not None for a in args)):
            kinds = () if table is None else table.kinds
            table = CallTable(code)
            table.replace(kinds)
            self.table, self.call, self.call_below = table, table.call, table.call_below
        return table

    def remember(self, kind: Description, record: CallRecord, most: int, room: int | None = None) -> None:
        """Add a kind of call, its description and record, in front of the others. At most `most` kinds are kept, whose
        memory is at most `room` bytes (None: any); the oldest are dropped, and those that are no longer valid."""
        assert self.table is not None
        kinds, used = [(kind, record)], record.room
        for earlier in [kind for kind in self.table.kinds if kind[1].is_valid()][: most - 1]:
            used += earlier[1].room
            if room is not None and used > room:
                break
            kinds.append(earlier)
        self.table.replace(kinds)

    def forget_ended(self) -> None:
        """Forget the calls that were recorded for weights which no longer exist."""
        if self.table is not None:
            self.table.replace([kind for kind in self.table.kinds if kind[1].is_valid()])


def telling_of(torch: Any) -> Callable[[Any], Any] | None:
    """Return torch's function that counts a write to a tensor (`increment_version`); None if this torch has none."""
    increment: Callable[[Any], Any] | None = getattr(
        getattr(getattr(torch, "autograd", None), "graph", None), "increment_version", None
    )
    return increment
