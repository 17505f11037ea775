"""Lanes of one wave that exchange elements through memory: they meet in between.

The operations of a block program are done one after the other by a wave; its lanes are ordered among themselves only
where they meet. What one lane stored for an operation another may load, or store over, for the next one after that.
Elements of one operation are no two lanes' at once; where an operation has steps, it lets the lanes meet by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.tensors import TensorType

if TYPE_CHECKING:
    from tilewright.passes.waves.lower import Waves


@dataclass
class Touched:
    """Which operations of the block program have loaded from and stored to some memory, since the lanes met last."""

    loaded: set[Op | None] = field(default_factory=set)
    stored: set[Op | None] = field(default_factory=set)

    def with_(self, other: Touched) -> Touched:
        """What either says."""
        return Touched(self.loaded | other.loaded, self.stored | other.stored)


class Lanes:
    """What the lanes have touched at this point of the program that is written."""

    def __init__(self, low: Waves):
        self.low = low
        self.touched: dict[Value, Touched] = {}
        self.current: Op | None = None
        self.stored: set[Value] = set()

    def note(self, name: str, operands: tuple[Value, ...]) -> None:
        """A load, store or arrival is about to be written: the lanes meet before it where they must."""
        if name == "arrive":
            self.meet()
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
        """The lanes meet, unless they have touched nothing since they did."""
        if self.touched:
            self.low.emit("together")
        self.touched.clear()

    def block(self, block: Block) -> None:
        """A block that may be left out, or done again: what it stores is seen by whatever comes before it next time."""
        before, outer = dict(self.touched), self.stored
        self.stored = set()
        for op in block.ops:
            self.low.op(op)
        if any(memory in self.stored for memory in self.touched):
            self.meet()
        for memory, found in before.items():
            self.touched[memory] = self.touched.get(memory, Touched()).with_(found)
        self.stored |= outer
