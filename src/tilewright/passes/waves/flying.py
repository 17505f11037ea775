"""Products that go on by themselves: who must wait for which of them, and what is given back when they are done.

Groups of products end in the order in which they were started, so a wait names how many may still go on. A stage
that a product reads is given back when the product is done; that is seen to when the next product has been started,
so that one is always under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.algebra.expr import Const, Expr
from tilewright.ir.core import Value
from tilewright.passes.loop_lowering import LoopLowering


@dataclass
class ProductGroup:
    """A group of asynchronous MMAs under way: accumulators, operands in registers, and channels whose stages it
    reads.
    """

    sums: tuple[Value, ...]
    factors: tuple[Value, ...]
    rings: frozenset[Any]
    releases: list[Callable[[], None]] = field(default_factory=list)
    released: list[Any] = field(default_factory=list)
    there: Expr | None = None
    """The condition under which it was started; None: always."""

    def like(self, other: ProductGroup) -> bool:
        """True if both are the same group of two iterations."""
        mine, others = (self.sums, self.factors, self.released), (other.sums, other.factors, other.released)
        return mine == others


class Flying:
    """The groups of asynchronous MMAs that are under way at the current point of the emitted program."""

    def __init__(self, low: LoopLowering):
        self.low = low
        self.groups: list[ProductGroup] = []
        self.touched: set[Value] = set()
        """Sums that something else than a product has looked at, or changed."""
        self.cleared: dict[Value, None] = {}
        """Fragments that are zero by name only: a product begins them afresh, anything else makes them zero first."""

    def start(self, groups: Sequence[tuple[tuple[Value, ...], tuple[Value, ...]]], rings: Iterable[Any]) -> None:
        """Note that groups, each (accumulators, operands), were started; wait for all earlier ones if a stage is to be
        released.
        """
        before = len(self.groups)
        self.groups += [ProductGroup(sums, factors, frozenset(rings)) for sums, factors in groups]
        if any(g.releases for g in self.groups[:before]):
            self.settle(before)

    def touch(self, read: Iterable[Value] = (), written: Iterable[Value] = ()) -> None:
        """Emit a wait for the MMAs whose registers are now read or written."""
        read, written = set(read), set(written)
        self.touched |= read | written
        self.clear(read | written)
        last = -1
        for i, g in enumerate(self.groups):
            if (read | written) & set(g.sums) or written & set(g.factors):
                last = i
        if last >= 0:
            self.settle(last + 1)

    def release(self, ring: Any, give_back: Callable[[], None], late: bool) -> None:
        """Release a stage by `give_back()` once the MMAs that read it are done; with `late`, when they are waited for
        anyway.
        """
        readers = [i for i, g in enumerate(self.groups) if ring in g.rings]
        if not readers:
            give_back()
            return
        last = readers[-1]
        if late:
            self.groups[last].releases.append(give_back)
            self.groups[last].released.append(ring)
            return
        self.settle(last + 1)
        give_back()

    def clear(self, these: Iterable[Value] | None = None) -> None:
        """Emit the zeros of fragments that are only noted as zero: of `these`, or of all."""
        for value in list(self.cleared):
            if these is None or value in these:
                del self.cleared[value]
                self.low.emit("fill", (value,), value=0)

    def begins(self, sum_: Value) -> bool:
        """True if an MMA that starts now begins the accumulator, which is only noted as zero; the note is deleted."""
        is_cleared = sum_ in self.cleared
        self.cleared.pop(sum_, None)
        return is_cleared

    def settle_all(self) -> None:
        """Emit a wait for all groups, and all zeros that are only noted."""
        self.clear()
        if self.groups:
            self.settle(len(self.groups))

    def settle(self, count: int) -> None:
        """Emit a wait for the oldest `count` groups, and the releases of stages that only they read."""
        done, self.groups = self.groups[:count], self.groups[count:]
        under_way = {v for g in self.groups for v in g.sums}
        sums = dict.fromkeys(v for g in done for v in g.sums)
        finished = tuple(v for v in sums if v not in under_way)
        self.low.emit("settle", finished, pending=len(self.groups))
        for g in done:
            for give_back in g.releases:
                if g.there is None or (isinstance(g.there, Const) and g.there.value):
                    give_back()
                else:
                    with self.low.when(g.there):
                        give_back()
