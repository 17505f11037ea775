"""The calls that a callable remembers, in a table that is made after its first successful call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.runtime.tensors import torch_of
from tilewright.targets.calls.table import UNLIKE, CallRecord, CallTable, Description, NativeCode


def _unlike(*_: Any) -> Any:
    """Return UNLIKE (no remembered call fits) for any arguments. It stands for the table's function before any call is
    remembered.
    """
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
        """Return this callable's table of remembered calls; create it if there is none. If `args` has tensors and the
        table was made before torch was imported, a new table with the same calls replaces it. `code` has the native
        functions that a new table uses. `self.call` and `self.call_below` become the functions of a new table.
        """
        table = self.table
        if table is None or (not table.knows_tensors() and any(torch_of(a) is not None for a in args)):
            kinds = () if table is None else table.kinds
            table = CallTable(code)
            table.replace(kinds)
            self.table, self.call, self.call_below = table, table.call, table.call_below
        return table

    def remember(self, kind: Description, record: CallRecord, most: int, room: int | None = None) -> None:
        """Add a kind of call in front of those that are kept: `kind` describes its arguments, and `record` repeats it.

        Kinds that are no longer valid are dropped. So are the oldest ones, if there would be more than `most`, or if
        the memory of all would exceed `room` bytes (None: no limit). The new kind is always kept. The table must exist.
        """
        assert self.table is not None
        kinds, used = [(kind, record)], record.room
        for earlier in [kind for kind in self.table.kinds if kind[1].is_valid()][: most - 1]:
            used += earlier[1].room
            if room is not None and used > room:
                break
            kinds.append(earlier)
        self.table.replace(kinds)

    def forget_ended(self) -> None:
        """Drop the remembered calls that were recorded for particular tensors, such as packed weights, which no longer
        exist.
        """
        if self.table is not None:
            self.table.replace([kind for kind in self.table.kinds if kind[1].is_valid()])


def telling_of(torch: Any) -> Callable[[Any], Any] | None:
    """Return torch's function that counts a write to a tensor (`increment_version`). `torch` is the module torch; None
    if it has no such function.
    """
    increment: Callable[[Any], Any] | None = getattr(
        getattr(getattr(torch, "autograd", None), "graph", None), "increment_version", None
    )
    return increment
