"""Asynchronous MMAs: who waits for which of them, and which stages are released when they are done.

Groups of MMAs end in the order in which they were started, so a wait names how many groups may still be in flight. A
stage that an MMA reads is released when the MMA is done; that is waited for only after the next MMA was started, so
that one is always in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.algebra.expr import Const, Expr
from tilewright.ir.core import Value
from tilewright.lower.loop_lowering import LoopLowering


@dataclass
class MmaGroup:
    """A group of asynchronous MMAs in flight: its accumulators, its operands in registers, and the channels whose
    stages it reads.
    """

    accumulators: tuple[Value, ...]
    operands: tuple[Value, ...]
    rings: frozenset[Any]
    releases: list[Callable[[], None]] = field(default_factory=list)
    released: list[Any] = field(default_factory=list)
    started_if: Expr | None = None
    """The condition under which the group was started; None: always."""

    def is_same_group(self, other: MmaGroup) -> bool:
        """True if `other`, a group of another iteration of a loop, has the same accumulators and register operands, and
        defers releases of stages of the same channels.
        """
        own_values, other_values = (
            (self.accumulators, self.operands, self.released),
            (other.accumulators, other.operands, other.released),
        )
        return own_values == other_values


class InFlightMmas:
    """The groups of asynchronous MMAs that are in flight at the current point of the emitted program."""

    def __init__(self, low: LoopLowering):
        self.low = low
        self.groups: list[MmaGroup] = []
        self.touched: set[Value] = set()
        """Registers that operations other than MMAs have read or written."""
        self.cleared: dict[Value, None] = {}
        """Fragments whose zeros are not emitted yet: an MMA can start from zero; other uses fill them first."""

    def start(self, groups: Sequence[tuple[tuple[Value, ...], tuple[Value, ...]]], rings: Iterable[Any]) -> None:
        """Record groups of MMAs that were just started. `groups` are pairs (accumulators, operands in registers), and
        `rings` are the channels that the MMAs read. If a release of a stage is deferred until an earlier group is done,
        emit a wait for all earlier groups and then these releases.
        """
        before = len(self.groups)
        self.groups += [MmaGroup(accumulators, operands, frozenset(rings)) for accumulators, operands in groups]
        if any(g.releases for g in self.groups[:before]):
            self.wait_for_oldest(before)

    def wait_for_registers(self, read: Iterable[Value] = (), written: Iterable[Value] = ()) -> None:
        """Emit a wait for the MMAs in flight that conflict with an operation that reads the registers `read` and writes
        the registers `written`: MMAs that write one of these registers, or read one that the operation writes. Zeros of
        these registers that are recorded but not emitted yet are emitted first.
        """
        read, written = set(read), set(written)
        self.touched |= read | written
        self.clear(read | written)
        last = -1
        for i, g in enumerate(self.groups):
            if (read | written) & set(g.accumulators) or written & set(g.operands):
                last = i
        if last >= 0:
            self.wait_for_oldest(last + 1)

    def release(self, ring: Any, release_stage: Callable[[], None], late: bool) -> None:
        """Call `release_stage()`, which emits the release of a stage of the channel `ring`, at a point where the MMAs
        that read stages of this channel are done. If none are in flight, call it at once. With `late`, it is called at
        the next wait for these MMAs; otherwise emit this wait now.
        """
        readers = [i for i, g in enumerate(self.groups) if ring in g.rings]
        if not readers:
            release_stage()
            return
        last = readers[-1]
        if late:
            self.groups[last].releases.append(release_stage)
            self.groups[last].released.append(ring)
            return
        self.wait_for_oldest(last + 1)
        release_stage()

    def clear(self, fragments: Iterable[Value] | None = None) -> None:
        """Emit the zeros of accumulators that are recorded in `self.cleared` but not emitted yet: of the accumulators
        in `fragments`, or of all if `fragments` is None.
        """
        for value in list(self.cleared):
            if fragments is None or value in fragments:
                del self.cleared[value]
                self.low.emit("fill", (value,), value=0)

    def take_zero(self, accumulator: Value) -> bool:
        """True if zeros of the fragment `accumulator` are recorded, but not emitted yet; the record is then deleted.
        The caller starts an MMA that begins from zero, so that the zeros need not be emitted.
        """
        is_cleared = accumulator in self.cleared
        self.cleared.pop(accumulator, None)
        return is_cleared

    def wait_for_all(self) -> None:
        """Emit the zeros of accumulators that are recorded but not emitted yet, and a wait for all groups of MMAs in
        flight.
        """
        self.clear()
        if self.groups:
            self.wait_for_oldest(len(self.groups))

    def wait_for_oldest(self, count: int) -> None:
        """Emit a wait for the oldest `count` groups of MMAs in flight, and forget these groups. Then emit the releases
        of stages that were deferred until the groups are done. The releases of a group that was started under a
        condition are emitted under the same condition.
        """
        done, self.groups = self.groups[:count], self.groups[count:]
        under_way = {v for g in self.groups for v in g.accumulators}
        accumulators = dict.fromkeys(v for g in done for v in g.accumulators)
        finished = tuple(v for v in accumulators if v not in under_way)
        self.low.emit("settle", finished, pending=len(self.groups))
        for g in done:
            for release_stage in g.releases:
                if g.started_if is None or (isinstance(g.started_if, Const) and g.started_if.value):
                    release_stage()
                else:
                    with self.low.when(g.started_if):
                        release_stage()
