"""Synchronisation between the lanes of one wave, which exchange elements through memory.

A wave does the operations of a block program one after the other, but its lanes are ordered among themselves only where
the wave synchronises. An element that one lane stored for an operation may be loaded or overwritten by another lane
only for a later operation, after a synchronisation. Within one operation no two lanes touch the same element; an
operation of several steps synchronises by itself.

All lanes wait at a counting barrier, and one lane arrives for all of them. It must not run ahead of lanes that still
wait for an earlier phase, because they could not tell that phase from a later one. So the wave synchronises in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.tensors import TensorType
from tilewright.lower.loop_lowering import LoopLowering

ALONE = ("expect", "copy_in", "arrive")
"""Loop operations that one lane does for all lanes of its wave."""
COLLECTIVE = ("together", "barrier", "settle")
"""Loop operations that synchronise the lanes of a wave by themselves."""


@dataclass
class LaneAccesses:
    """The block operations whose lanes have loaded from and stored to a memory since the wave was last synchronised."""

    loaded: set[Op | None] = field(default_factory=set)
    stored: set[Op | None] = field(default_factory=set)

    def union(self, other: LaneAccesses) -> LaneAccesses:
        """Return new LaneAccesses with the operations that loaded, and those that stored, in `self` or in `other`."""
        return LaneAccesses(self.loaded | other.loaded, self.stored | other.stored)


class WaveSync:
    """Tracks which memory lanes have accessed, and synchronises the wave where a lane depends on another one."""

    def __init__(self, low: LoopLowering):
        self.low = low
        self.touched: dict[Value, LaneAccesses] = {}
        self.current: Op | None = None
        self.stored: set[Value] = set()
        self.waited = False

    def before_emit(self, name: str, operands: tuple[Value, ...]) -> None:
        """Record the loop operation `name` with these operands, which is about to be emitted. First emit a
        synchronisation of the wave's lanes if the operation needs one.

        It needs one in three cases: it loads or stores a memory to which other lanes may have stored for an earlier
        block operation; it stores to a memory that other lanes may have loaded for an earlier one; or one lane would
        act at a barrier for all lanes while others may still wait or access memory.
        """
        if name == "arrive" or (name in ALONE and self.waited):
            self.sync()
        self.waited = name == "await" or (self.waited and name not in COLLECTIVE)
        if name == "land":  # who arrives next does not go ahead of the others
            self.touched.setdefault(operands[0], LaneAccesses())
        if name not in ("load", "store", "atomic") or not isinstance(operands[1].type, TensorType):
            return
        memory, others = operands[1], {self.current}
        known = self.touched.get(memory, LaneAccesses())
        if known.stored - others or (name != "load" and known.loaded - others):
            self.sync()
        touched = self.touched.setdefault(memory, LaneAccesses())
        (touched.loaded if name == "load" else touched.stored).add(self.current)
        if name != "load":
            self.stored.add(memory)

    def sync(self) -> None:
        """Emit a synchronisation of the wave's lanes, and forget all recorded accesses. Nothing is emitted if lanes
        have neither accessed memory nor waited at a barrier since the last synchronisation.
        """
        if self.touched or self.waited:
            self.low.emit("together")
        self.touched.clear()

    def sync_before_release(self) -> None:
        """Emit a synchronisation of the wave's lanes if some of them may still wait at a barrier. Call it before one
        lane starts work that must not begin before all lanes have passed the barrier.
        """
        if self.waited:
            self.sync()

    @contextmanager
    def conditional(self) -> Iterator[None]:
        """Treat operations emitted within this context as ones that may not run. Memory accesses and waits recorded
        before the context therefore count afterwards too, even if lanes synchronise within the context.
        """
        before, waited = dict(self.touched), self.waited
        yield
        for memory, touched in before.items():
            self.touched[memory] = self.touched.get(memory, LaneAccesses()).union(touched)
        self.waited |= waited

    def block(self, block: Block, once: bool) -> None:
        """Lower every operation of `block`, which runs exactly once if `once`, else any number of times. Emit a
        synchronisation of the wave's lanes at the end of the block if lanes stored to memory in it and have not
        synchronised since.
        """
        outer, self.stored = self.stored, set()
        with nullcontext() if once else self.conditional():
            for op in block.ops:
                self.low.op(op)
            if any(memory in self.stored for memory in self.touched):
                self.sync()
        self.stored |= outer
