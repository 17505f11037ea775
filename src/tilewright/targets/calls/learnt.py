"""The calls that a callable remembers: a table that is made when the first of them was right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.runtime.tensors import torch_of
from tilewright.targets.calls.table import UNLIKE, CallRecord, CallTable, Description, NativeCode


def _unlike(*_: Any) -> Any:
    return UNLIKE


class LearntCalls:
    """The kinds of calls that were learnt.

    Threads may call and learn at the same time: the list of kinds is replaced, never changed.
    """

    __slots__ = ("__weakref__", "call", "call_below", "table")

    def __init__(self) -> None:
        self.table: CallTable | None = None
        self.call: Callable[..., Any] = _unlike
        """Makes a call like one before and returns what its caller gets; `UNLIKE`: there was none like it."""
        self.call_below: Callable[..., Any] = _unlike
        """The same for torch's operators, whose dispatcher has seen to gradients and to who traces."""

    def table_for(self, code: NativeCode, args: Sequence[Any]) -> CallTable:
        """The table, which is made anew where it was made before torch was imported; `code` has the functions."""
        table = self.table
        if table is None or (not table.knows_tensors() and any(torch_of(a) is not None for a in args)):
            kinds = () if table is None else table.kinds
            table = CallTable(code)
            table.replace(kinds)
            self.table, self.call, self.call_below = table, table.call, table.call_below
        return table

    def remember(self, kind: Description, record: CallRecord, most: int, room: int | None = None) -> None:
        """Puts a kind before the others, of which the oldest go: there are `most`, with `room` bytes, at most."""
        assert self.table is not None
        kinds, used = [(kind, record)], record.room
        for before in [kind for kind in self.table.kinds if kind[1].is_valid()][: most - 1]:
            used += before[1].room
            if room is not None and used > room:
                break
            kinds.append(before)
        self.table.replace(kinds)

    def forget_ended(self) -> None:
        """Forgets calls whose weights are gone."""
        if self.table is not None:
            self.table.replace([kind for kind in self.table.kinds if kind[1].is_valid()])


def telling_of(torch: Any) -> Callable[[Any], Any] | None:
    """Who tells torch that a kernel wrote to a tensor; None: this torch cannot be told."""
    telling: Callable[[Any], Any] | None = getattr(
        getattr(getattr(torch, "autograd", None), "graph", None), "increment_version", None
    )
    return telling
