"""One product in tile registers: how a task goes over its blocks of sums, and what it stages first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.algebra.expr import Expr, index
from tilewright.plan.microkernel import Axes


@dataclass(frozen=True)
class Walk:
    """M as places in lines, `length` of each `pitch` apart: blocks of rows run on from line to line.

    What lies between the end of a line and the next is computed with the rest, and never stored.

    >>> walk = Walk(lines=3, of=7, length=5, pitch=6)
    >>> walk.width, walk.walked, walk.extent
    (18, 17, 54)
    """

    lines: int
    """The lines that a task takes."""
    of: int
    """All lines."""
    length: int
    pitch: int

    @property
    def width(self) -> int:
        """How far tasks lie apart."""
        return self.lines * self.pitch

    @property
    def walked(self) -> int:
        """How far a task goes: to the end of its last line."""
        return self.width - self.pitch + self.length

    @property
    def extent(self) -> int:
        """How far all tasks go together; the last one may go past the last line."""
        return -(-self.of // self.lines) * self.width

    def there(self) -> Expr:
        """A place that is there, in any of the lines."""
        return self.pitch * index("line", self.of) + index("place", self.length)


@dataclass(frozen=True)
class Depth:
    """A loop over a dimension that is summed: how far it goes at a time, and whether it is unrolled."""

    dim: Expr
    size: int
    unrolled: bool


@dataclass(frozen=True)
class Tiled:
    """The one product of a program in tile registers, and how its operands come there."""

    axes: Axes
    streams: tuple[bool, bool]
    """Whether A, and B, are read past the first cache."""
    shifts: Mapping[Expr, tuple[int, int]] = field(default_factory=dict)
    """Taps whose rows are the same ones, so many lines and places further on; for others rows are staged apart."""
