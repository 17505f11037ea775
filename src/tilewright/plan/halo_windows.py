"""Sliding windows of a product: how reads of operand A overlap, and the halo tile of a box of rows.

Where reads of neighbouring rows overlap, a box of rows, counted in digits, reads little more than its own elements:
its halo tile. That is copied once for a K step, and the product reads it at every offset in turn.

    axis M = (M_2 32, M_1 56, M_0 56): task M_2 2, task M_1 8, task M_0 8
    x halo at K_0

Where a plan says `axis M = (M_2 4, M_1 7, M_0 9 of 7): task M_2 2`, a task has whole images, whose rows run on from
line to line. Those between the end of a line and the next are computed with the others, and never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.algebra.expr import Const, Symbol
from tilewright.algebra.expr_use import linear_form
from tilewright.ir.core import Op, Program
from tilewright.plan.microkernel import Axes, Microkernel
from tilewright.plan.model import Size
from tilewright.plan.tiled import Walk


@dataclass(frozen=True)
class SlidingWindow:
    """How a product reads A: for each coordinate of memory but the last, digits of M and how far offsets go."""

    digits: tuple[tuple[int, ...], ...]
    """By coordinate: the positions of the digits that are added there."""
    reach: tuple[int, ...]
    """By coordinate: how far apart the first and the last offset lie."""

    def lines(self, extents: Sequence[int]) -> Walk:
        """How rows run on from line to line: lines of a halo tile lie one behind the other."""
        *_, of, length = extents
        return Walk(of, of, length, length + self.reach[-1])


def sliding_window(a: Op, axes: Axes, digits: Sequence[Symbol], size: Size) -> SlidingWindow | str:
    """How a read of A slides over digits of M; or why it has no halo tile that an atom could read."""
    if "at" not in a.attrs or a.attrs.get("lookups") or a.attrs.get("bounds"):
        return "A is not read by a sliding access"
    iterators = dict(zip(a.results[0].type.dims, a.attrs["over"], strict=True))
    *at, last = a.attrs["at"]
    k = iterators[axes.k]
    # channels of groups lie one behind the other
    batch = {iterators[d] for d in axes.around if d in iterators and d not in digits}
    if not (last - k).symbols <= batch or any((batch | {k}) & e.symbols for e in at):
        return "neighbours along K do not lie side by side"
    digits_at: list[tuple[int, ...]] = []
    reach: list[int] = []
    for e in at:
        form = linear_form(e, list(iterators.values()))
        if form is None or any(not isinstance(f, Const) or f.value < 0 for f in form[0].values()):
            return "where A is read is not linear in the digits of M"
        steps = {s: int(f) for s, f in form[0].items()}
        here = tuple(n for n, d in enumerate(digits) if steps.get(iterators[d], 0))
        if any(steps[iterators[digits[n]]] != 1 for n in here):
            return "neighbours along a digit of M do not lie side by side"
        digits_at.append(here)
        reach.append(sum(steps.get(iterators[d], 0) * (size(d) - 1) for d in axes.deep if d in iterators))
    if sorted(n for here in digits_at for n in here) != list(range(len(digits))) or digits_at[-1] != (len(digits) - 1,):
        return "the digits of M are no coordinates of A"
    if not any(reach):
        return "rows of A do not overlap"
    return SlidingWindow(tuple(digits_at), tuple(reach))


def operand_reads(op: Op, axes: Axes, program: Program) -> tuple[Op, Op] | None:
    """The reads of a product's operands A and B; None where one is computed."""
    makers = program.makers()
    a, b = (makers.get(v) for v in axes.factors(op))
    return None if a is None or b is None or a.name != "read" or b.name != "read" else (a, b)


def image_rows(walk: Walk, how: Microkernel) -> int:
    """The rows that a tile has for one image whose rows run on from line to line: whole atoms."""
    return -(-walk.width // how.atom.shape[0]) * how.atom.shape[0]
