"""MMAs in tile registers: the lines that a task stages, their K loops, and how their operands get there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.algebra.expr import Const, Expr, Symbol, index
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.ir.core import Op
from tilewright.plan.microkernel import Axes
from tilewright.plan.schedule import Axis


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


def lines_of_task(axis: Axis) -> Walk:
    """Return a Walk: the lines of A that a task stages, as the plan's axis of the MMA's rows states them.

    An axis of two digits (mixed-radix parts) counts lines and positions in a line, padding included. Of an axis of one
    digit, all rows of a task are one line.

    >>> from tilewright.plan.text import parse_plan
    >>> image, matrix = parse_plan("axis r = (p 56, q 57 of 56): task p 28; axis m = (m 100): task 48").axes
    >>> lines_of_task(image), lines_of_task(matrix)
    (Walk(lines=28, of=56, length=56, pitch=57), Walk(lines=1, of=3, length=48, pitch=48))
    """
    task, *outer, place = axis.split("task"), *axis.digits
    assert task is not None
    if not outer:
        return Walk(1, -(-place.extent // task.size), task.size, task.size)
    (lines,) = outer
    return Walk(task.size, lines.extent, place.extent, place.walked)


def tap_shifts(read: Op, axes: Axes, walk: Walk) -> dict[Expr, tuple[int, int]]:
    """Return how far each filter tap moves in staged A: {dimension of the tap: (lines, positions) per step of the tap}.

    `read` reads A as a sliding window over the lines that `walk` describes, along the rows of the MMA (`axes`). A tap
    that moves the position in a line is in one coordinate with it; other taps move lines.
    """
    if "at" not in read.attrs:  # nothing slides
        return {}
    symbols: dict[Expr, Symbol] = dict(zip(read.results[0].type.dims, read.attrs["over"], strict=True))
    line, place = index("line", walk.of + 1), index("place", walk.length)
    images = Substitution({symbols[axes.m]: walk.pitch * line + place})
    shifts: dict[Expr, tuple[int, int]] = {}
    for e in map(images, read.attrs["at"]):
        for tap in (d for d in axes.deep if symbols[d] in e.symbols):
            form = linear_form(e, [symbols[tap]])
            step = None if form is None else form[0][symbols[tap]]
            assert isinstance(step, Const), "staged lines slide by whole positions"
            shifts[tap] = (0, step.value) if place in e.symbols else (step.value, 0)
    return dict(sorted(shifts.items(), key=lambda item: item[1][0] == 0))
