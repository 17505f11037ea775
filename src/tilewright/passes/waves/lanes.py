"""Lanes of one wave that exchange elements through memory: they meet in between.

The operations of a block program are done one after the other by a wave; its lanes are ordered among themselves only
where they meet. What one lane stored for an operation another may load, or store over, for the next one after that.
Elements of one operation are no two lanes' at once; where an operation has steps, it lets the lanes meet by itself.

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
"""What one lane does for all, and others go on from."""
COLLECTIVE = ("together", "barrier", "settle")
"""Where the lanes of a wave are together anyway."""


@dataclass
class Touched:
    """Which operations of the block program have loaded from and stored to some memory, since the lanes met last."""

    loaded: set[Op | None] = field(default_factory=set)
    stored: set[Op | None] = field(default_factory=set)

    def with_(self, other: Touched) -> Touched:
        """What either says."""
        return Touched(self.loaded | other.loaded, self.stored | other.stored)


class LaneMeetings:
    """What the lanes have touched at this point of the program that is written."""

    def __init__(self, low: LoopLowering):
        self.low = low
        self.touched: dict[Value, Touched] = {}
        self.current: Op | None = None
        self.stored: set[Value] = set()
        self.waited = False

    def note(self, name: str, operands: tuple[Value, ...]) -> None:
        """An operation is about to be written: the lanes meet before it where they must."""
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
        found = self.touched.setdefault(memory, Touched())
        (found.loaded if name == "load" else found.stored).add(self.current)
        if name != "load":
            self.stored.add(memory)

    def meet(self) -> None:
        """The lanes meet, unless they have touched nothing since they did, and waited for nothing."""
        if self.touched or self.waited:
            self.low.emit("together")
        self.touched.clear()

    def pass_on(self) -> None:
        """The lanes meet, where they may still wait for what one of them lets pass next."""
        if self.waited:
            self.meet()

    @contextmanager
    def perhaps(self) -> Iterator[None]:
        """What is written within may be left out: what was so before it may still be so after it."""
        before, waited = dict(self.touched), self.waited
        yield
        for memory, found in before.items():
            self.touched[memory] = self.touched.get(memory, Touched()).with_(found)
        self.waited |= waited

    def block(self, block: Block, once: bool) -> None:
        """A block that may be left out, or done again: what it stores is seen by whatever comes before it next time.

        With `once` it is done, and not again.
        """
        outer, self.stored = self.stored, set()
        with nullcontext() if once else self.perhaps():
            for op in block.ops:
                self.low.op(op)
            if any(memory in self.stored for memory in self.touched):
                self.meet()
        self.stored |= outer
