"""The calls that a callable remembers, in a table that is made after its first successful call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.runtime.tensors import torch_of
from tilewright.targets.calls.table import UNLIKE, CallRecord, CallTable, Description, NativeCode


def _unlike(*_: Any) -> Any:
    """Return UNLIKE for any arguments: no remembered call fits. A LearntCalls without a table uses this function as
    `call` and `call_below`.
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
        """Return the table of remembered calls of this callable, and create it if there is none. A new table with the
        same calls replaces the old one if `args` has torch tensors and the old one was created before torch was
        imported. A new table uses the native functions of `code`, and sets `self.table`, `self.call` and
        `self.call_below`.
        """
        table = self.table
        if table is None or (not table.knows_tensors() and any(torch_of(a) is not None for a in args)):
            kinds = () if table is None else table.kinds
            table = CallTable(code)
            table.replace(kinds)
            self.table, self.call, self.call_below = table, table.call, table.call_below
        return table

    def remember(self, kind: Description, record: CallRecord, most: int, room: int | None = None) -> None:
        """Add a kind of call to the table, as the first one. `kind` describes the arguments of the call, and `record`
        repeats it. `self.table` must exist.

        Three groups of earlier kinds are dropped: those with invalid records; the oldest, if more than `most` kinds
        would be kept; the oldest, if all kinds would use more than `room` bytes of memory (None: no limit). The new
        kind is always kept.
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
        """Drop the remembered calls with invalid records. A record becomes invalid when a particular tensor that it
        depends on, such as packed weights, is freed.
        """
        if self.table is not None:
            self.table.replace([kind for kind in self.table.kinds if kind[1].is_valid()])


def write_counter_of(torch: Any) -> Callable[[Any], Any] | None:
    """Return torch's function that counts a write to a tensor, `torch.autograd.graph.increment_version`. Return None if
    the module `torch` does not have this function, or if `torch` is None.
    """
    increment: Callable[[Any], Any] | None = getattr(
        getattr(getattr(torch, "autograd", None), "graph", None), "increment_version", None
    )
    return increment
