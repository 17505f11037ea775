"""Sliding windows of an MMA's operand A, and the halo tile of a box of rows.

If reads of neighbouring rows overlap, a box of rows (a rectangle of image positions) reads little more than its own
elements: its halo tile. It is copied once for a K step, and the MMA reads it at every filter offset in turn.

    axis M = (M_2 32, M_1 56, M_0 56): task M_2 2, task M_1 8, task M_0 8
    x halo at K_0

With `axis M = (M_2 4, M_1 7, M_0 9 of 7): task M_2 2`, a task has whole images, whose rows run on from line to line.
Rows in the padding between lines are computed too, and never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.algebra.expr import Const, Symbol
from tilewright.algebra.expr_use import linear_form
from tilewright.ir.core import Op, Program
from tilewright.plan.microkernel import Axes, Microkernel
from tilewright.plan.model import Size
from tilewright.plan.tile_register_tasks import LineLayout


@dataclass(frozen=True)
class SlidingWindow:
    """How operand A of a convolution slides over M: an entry for each memory coordinate of A but the last (channels).

    Digits are the mixed-radix parts of M, such as image, line and position.
    """

    digits: tuple[tuple[int, ...], ...]
    """By coordinate: the numbers of the digits of M (0 for the outermost) that are added there."""
    reach: tuple[int, ...]
    """By coordinate: the halo, in elements from the first filter offset to the last."""

    def image_lines(self, extents: Sequence[int]) -> LineLayout:
        """Return a LineLayout: the number of lines, the line length and the line pitch of one image in a halo tile.

        A halo tile is a task's input with the elements around it. The pitch is the number of positions (pixels) from
        one line to the next: the line length plus the halo. `extents` are the extents of the digits (mixed-radix parts)
        of M; the last two are the lines of an image and the positions in a line.
        """
        *_, count, length = extents
        return LineLayout(count, count, length, length + self.reach[-1])


def sliding_window(a: Op, axes: Axes, digits: Sequence[Symbol], size: Size) -> SlidingWindow | str:
    """Return a SlidingWindow: how A, read by the operation `a`, slides over M (a convolution); or text: why not.

    If A slides, it can be copied as a halo tile (a task's input with the elements around it). A slides if its last
    coordinate is K, each digit of M is in exactly one other coordinate, with stride 1, and neighbouring rows overlap.
    Coordinates must be linear, and not depend on data.

    `axes` are M, N and K of the MMA, `digits` the dimensions that stand for the mixed-radix parts of M (image, line,
    position). `size(d)` evaluates the extent of a dimension d.
    """
    if "at" not in a.attrs or a.attrs.get("lookups") or a.attrs.get("bounds"):
        return "A is not read by a sliding access"
    iterators = dict(zip(a.results[0].type.dims, a.attrs["over"], strict=True))
    *at, channel = a.attrs["at"]
    k = iterators[axes.k]
    # channels of groups lie one behind the other
    batch = {iterators[d] for d in axes.around if d in iterators and d not in digits}
    if not (channel - k).symbols <= batch or any((batch | {k}) & e.symbols for e in at):
        return "neighbours along K do not lie side by side"
    digits_at: list[tuple[int, ...]] = []
    reach: list[int] = []
    for e in at:
        form = linear_form(e, list(iterators.values()))
        if form is None or any(not isinstance(f, Const) or f.value < 0 for f in form[0].values()):
            return "where A is read is not linear in the digits of M"
        steps = {s: int(f) for s, f in form[0].items()}
        added = tuple(n for n, d in enumerate(digits) if steps.get(iterators[d], 0))
        if any(steps[iterators[digits[n]]] != 1 for n in added):
            return "neighbours along a digit of M do not lie side by side"
        digits_at.append(added)
        reach.append(sum(steps.get(iterators[d], 0) * (size(d) - 1) for d in axes.deep if d in iterators))
    if sorted(n for added in digits_at for n in added) != list(range(len(digits))) or digits_at[-1] != (
        len(digits) - 1,
    ):
        return "the digits of M are no coordinates of A"
    if not any(reach):
        return "rows of A do not overlap"
    return SlidingWindow(tuple(digits_at), tuple(reach))


def operand_reads(op: Op, axes: Axes, program: Program) -> tuple[Op, Op] | None:
    """Return (read operation of A, read operation of B) of the mma `op`; None if A or B is not a plain read.

    `axes` (M, N and K of `op`) say which operand of `op` is A.
    """
    makers = program.makers()
    a, b = (makers.get(v) for v in axes.operands(op))
    return None if a is None or b is None or a.name != "read" or b.name != "read" else (a, b)


def image_rows(layout: LineLayout, microkernel: Microkernel) -> int:
    """Return the number of accumulator rows that one image takes, rounded up to whole atoms of `microkernel`.

    Rows run on from line to line: the padding between image lines takes rows too. `layout` has the image lines of one
    task and their pitch (positions from line to line).
    """
    return -(-layout.width // microkernel.atom.shape[0]) * microkernel.atom.shape[0]
