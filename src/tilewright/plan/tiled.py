"""MMAs in tile registers: the lines that a task stages, their K loops, and how their operands get there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.algebra.expr import Expr, index
from tilewright.plan.microkernel import Axes


@dataclass(frozen=True)
class Walk:
    """M as positions in lines of `length`, with `pitch` positions from one line to the next.

    Accumulator tiles run on from line to line. The padding between lines is computed too, and never stored.

    >>> walk = Walk(lines=3, of=7, length=5, pitch=6)
    >>> walk.width, walk.walked, walk.extent
    (18, 17, 54)
    """

    lines: int
    """The lines of one task."""
    of: int
    """The lines in all."""
    length: int
    pitch: int

    @property
    def width(self) -> int:
        """The number of positions (rows of M) from the start of one task to the start of the next, padding included.

        A task is one tile of the grid, made of whole image lines.
        """
        return self.lines * self.pitch

    @property
    def walked(self) -> int:
        """The number of positions (rows of M) that one task computes: from its first line's start to its last's end.

        A task is one tile of the grid. The padding between lines counts, the padding after the last line does not.
        """
        return self.width - self.pitch + self.length

    @property
    def extent(self) -> int:
        """The number of positions (rows of M) of all tasks together, padding included.

        A task is one tile of the grid; the last may run past the last line.
        """
        return -(-self.of // self.lines) * self.width

    def valid_position(self, rows: int | None = None) -> Expr:
        """Return an index expression that takes all positions (rows of M) within image lines, and none in the padding.

        Bounds checks use it. `rows` is the number of positions if M is one digit (mixed-radix part): the last task may
        then run past them, and the expression does not.

        >>> Walk(1, 2, 64, 64).valid_position(100).hi, Walk(3, 7, 5, 6).valid_position(54).hi
        (99, 40)
        """
        if rows is not None and rows < self.extent and self.pitch == self.length:
            return index("place", rows)
        return self.pitch * index("line", self.of) + index("place", self.length)


@dataclass(frozen=True)
class Depth:
    """A loop over a reduction dimension: its tile size, and whether it is unrolled."""

    dim: Expr
    size: int
    unrolled: bool


@dataclass(frozen=True)
class Tiled:
    """An MMA in tile registers that a task keeps for all of its blocks: its M, N and K, cache hints of its operands,
    and the rows of A that the task stages.
    """

    axes: Axes
    streams: tuple[bool, bool]
    """True for A, and for B, if its loads bypass the L1 cache."""
    shifts: Mapping[Expr, tuple[int, int]] = field(default_factory=dict)
    """Taps that read the staged rows shifted by (lines, positions); rows of other taps are staged separately."""
    walk: Walk | None = None
    """The lines of A that a task stages; None: A is read in place."""
