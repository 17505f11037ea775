"""MMAs in tile registers: the image lines that a task stages, K loops, and cache hints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.algebra.expr import Const, Expr, Symbol, index
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.ir.core import Op
from tilewright.plan.microkernel import Axes
from tilewright.plan.schedule import Axis


@dataclass(frozen=True)
class LineLayout:
    """M as positions in image lines of `length`, with `pitch` positions from the start of one line to the next.

    Accumulator tiles run on from line to line. The padding between lines is computed too, and never stored.

    >>> layout = LineLayout(lines=3, total_lines=7, length=5, pitch=6)
    >>> layout.width, layout.computed_rows, layout.extent
    (18, 17, 54)
    """

    lines: int
    """The lines of one task."""
    total_lines: int
    """The lines of all tasks together."""
    length: int
    pitch: int

    @property
    def width(self) -> int:
        """The number of positions (rows of M) from the start of one task to the start of the next, padding included.

        A task is one tile of the grid, made of whole image lines.
        """
        return self.lines * self.pitch

    @property
    def computed_rows(self) -> int:
        """The number of positions (rows of M) that one task computes, without the padding after its last line.

        A task is one tile of the grid, made of whole image lines. The padding between lines counts.
        """
        return self.width - self.pitch + self.length

    @property
    def extent(self) -> int:
        """The number of positions (rows of M) of all tasks together, padding included.

        A task is one tile of the grid; the last may run past the last line.
        """
        return -(-self.total_lines // self.lines) * self.width

    def valid_position(self, rows: int | None = None) -> Expr:
        """Return an expression for bounds checks: its values are all positions (rows of M) that lie in image lines.

        Usually it is `pitch * line + place`, with two new index symbols: the number of an image line, and a position
        within the line. No value of it lies in the padding between lines. `rows` is the extent of M, or None. If lines
        have no padding and the last task runs past `rows`, the expression is one new symbol below `rows` instead.
        """
        if rows is not None and rows < self.extent and self.pitch == self.length:
            return index("place", rows)
        return self.pitch * index("line", self.total_lines) + index("place", self.length)


@dataclass(frozen=True)
class ReductionLoop:
    """A loop over a reduction dimension: its tile size, and whether it is unrolled."""

    dim: Expr
    size: int
    unrolled: bool


@dataclass(frozen=True)
class TileRegisterMma:
    """An MMA in tile registers: its M, N and K, the cache hints of its operands, and the lines of A that a task stages.

    A task (one core's tile) stages these lines once, for all of its accumulator tiles.
    """

    axes: Axes
    streams: tuple[bool, bool]
    """True for A, and for B, if its loads bypass the L1 cache."""
    shifts: Mapping[Expr, tuple[int, int]] = field(default_factory=dict)
    """{dimension of a filter tap: (lines, positions) by which it shifts reads of the staged lines}.

    The lines of other taps are staged separately."""
    walk: LineLayout | None = None
    """The lines of A that a task stages; None: A is read in place."""


def lines_of_task(axis: Axis) -> LineLayout:
    """Return a LineLayout: the image lines of A that a task copies to a buffer (stages).

    `axis` is the plan's axis of the MMA's M; it must have a task split, and one or two digits. Its digits (mixed-radix
    parts) are lines, and positions in a line with padding. If the axis has one digit, all rows of a task are one line.

    >>> from tilewright.plan.text import parse_plan
    >>> image, matrix = parse_plan("axis r = (p 56, q 57 of 56): task p 28; axis m = (m 100): task 48").axes
    >>> lines_of_task(image), lines_of_task(matrix)
    (LineLayout(lines=28, total_lines=56, length=56, pitch=57), LineLayout(lines=1, total_lines=3, length=48, pitch=48))
    """
    task, *outer, place = axis.split("task"), *axis.digits
    assert task is not None
    if not outer:
        return LineLayout(1, -(-place.extent // task.size), task.size, task.size)
    (lines,) = outer
    return LineLayout(task.size, lines.extent, place.extent, place.padded_extent)


def tap_shifts(read: Op, axes: Axes, layout: LineLayout) -> dict[Expr, tuple[int, int]]:
    """Return {dimension of a filter tap: (lines, positions) by which one step of the tap shifts reads of staged A}.

    `read` reads A as a sliding window over image lines with this `layout`; `axes` are M, N and K of the MMA. A tap in
    the memory coordinate of the position in a line shifts positions, any other tap shifts lines. Taps that shift lines
    come first. The result is {} if the read has no explicit coordinates. An assertion fails if a shift is not constant.
    """
    if "at" not in read.attrs:  # nothing slides
        return {}
    symbols: dict[Expr, Symbol] = dict(zip(read.results[0].type.dims, read.attrs["over"], strict=True))
    line, place = index("line", layout.total_lines + 1), index("place", layout.length)
    images = Substitution({symbols[axes.m]: layout.pitch * line + place})
    shifts: dict[Expr, tuple[int, int]] = {}
    for e in map(images, read.attrs["at"]):
        for tap in (d for d in axes.deep if symbols[d] in e.symbols):
            form = linear_form(e, [symbols[tap]])
            step = None if form is None else form[0][symbols[tap]]
            assert isinstance(step, Const), "staged lines slide by whole positions"
            shifts[tap] = (0, step.value) if place in e.symbols else (step.value, 0)
    return dict(sorted(shifts.items(), key=lambda item: item[1][0] == 0))
