"""Lanes of one wave that exchange elements through memory: they meet in between.

The operations of a block program are done one after the other by a wave; its lanes are ordered among themselves only
where they meet. An element that one lane stored for an operation may be loaded or overwritten by another lane only for
a later operation, after they met. Elements of one operation are no two lanes' at once; where an operation has steps, it
lets the lanes meet by itself.

All lanes wait at a barrier that counts, and one arrives for them: it must not run ahead of those that still look at an
earlier phase, which would be told apart from a later one no more. They meet in between, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.tensors import TensorType
from tilewright.passes.loop_lowering import LoopLowering

ALONE = ("expect", "copy_in", "arrive")
"""Operations that one lane does for all lanes."""
COLLECTIVE = ("together", "barrier", "settle")
"""Operations at which the lanes of a wave are synchronised anyway."""


@dataclass
class Touched:
    """The operations of the block program that have loaded from and stored to a memory since the lanes last
    synchronised.
    """

    loaded: set[Op | None] = field(default_factory=set)
    stored: set[Op | None] = field(default_factory=set)

    def with_(self, other: Touched) -> Touched:
        """Return the union of both."""
        return Touched(self.loaded | other.loaded, self.stored | other.stored)


class LaneMeetings:
    """Tracks the memory that lanes have touched, and synchronises the wave where lanes depend on each other."""

    def __init__(self, low: LoopLowering):
        self.low = low
        self.touched: dict[Value, Touched] = {}
        self.current: Op | None = None
        self.stored: set[Value] = set()
        self.waited = False

    def note(self, name: str, operands: tuple[Value, ...]) -> None:
        """Note an operation that is about to be emitted; synchronise the lanes before it if they must be."""
        if name == "arrive" or (name in ALONE and self.waited):
            self.meet()
        self.waited = name == "await" or (self.waited and name not in COLLECTIVE)
        if name == "land":  # who arrives next does not go ahead of the others
            self.touched.setdefault(operands[0], Touched())
        if name not in ("load", "store", "atomic") or not isinstance(operands[1].type, TensorType):
            return
        memory, others = operands[1], {self.current}
        known = self.touched.get(memory, Touched())
        if known.stored - others or (name != "load" and known.loaded - others):
            self.meet()
        touched = self.touched.setdefault(memory, Touched())
        (touched.loaded if name == "load" else touched.stored).add(self.current)
        if name != "load":
            self.stored.add(memory)

    def meet(self) -> None:
        """Emit a synchronisation of the wave's lanes, unless they have touched nothing and waited for nothing since the
        last.
        """
        if self.touched or self.waited:
            self.low.emit("together")
        self.touched.clear()

    def pass_on(self) -> None:
        """Synchronise the lanes if some may still wait at a barrier that one lane is about to let others pass."""
        if self.waited:
            self.meet()

    @contextmanager
    def perhaps(self) -> Iterator[None]:
        """Treat what is emitted within as conditional: the state before it may still hold after it."""
        before, waited = dict(self.touched), self.waited
        yield
        for memory, touched in before.items():
            self.touched[memory] = self.touched.get(memory, Touched()).with_(touched)
        self.waited |= waited

    def block(self, block: Block, once: bool) -> None:
        """Lower a block that may be skipped, or run again (unless `once`): lanes synchronise at its end if it
        stores.
        """
        outer, self.stored = self.stored, set()
        with nullcontext() if once else self.perhaps():
            for op in block.ops:
                self.low.op(op)
            if any(memory in self.stored for memory in self.touched):
                self.meet()
        self.stored |= outer
