"""How the rows of a contraction lie: sliding over two dimensions, as an image's do, at one stride, or side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.algebra.expr import ZERO, Const, Expr, Symbol
from tilewright.algebra.expr_use import linear_form
from tilewright.plan.contraction import Contraction, size


@dataclass(frozen=True)
class Halo:
    """A pair of coordinates that slide: row digit + dilation * depth digit + shift, for lines and for columns."""

    lines: Symbol
    columns: Symbol
    line_taps: Symbol | None
    column_taps: Symbol | None
    line_dim: int
    column_dim: int
    line_shift: int
    column_shift: int
    line_step: int
    column_step: int

    def width(self) -> int:
        """Columns that the rows of a line read, taps included."""
        taps = 0 if self.column_taps is None else (size(self.column_taps) - 1) * self.column_step
        return size(self.columns) + taps

    def line(self, image: int) -> int:
        """Columns from one line to the next, of an image so wide: zeros that end a line also begin the next."""
        before = max(0, -self.column_shift)
        after = max(0, self.width() - before - image)
        return max(size(self.columns), self.width() - min(before, after))


def lane_digit(c: Contraction) -> Symbol | None:
    """The digit that both factors keep and whose neighbours lie side by side in the rows' factor, if there is one."""
    last = c.a.coordinates[-1]
    return last if isinstance(last, Symbol) and last in c.batch else None


def rows_apart(c: Contraction) -> int | None:
    """Elements between neighbouring rows of the rows' factor; None where that is not the same everywhere."""
    if "rows_apart" not in c.__dict__:  # asked for again and again
        c.__dict__["rows_apart"] = step_along(c.rows[-1], c.a.coordinates, c.a.shape)
    found: int | None = c.__dict__["rows_apart"]
    return found


def step_along(
    symbol: Symbol, at: Sequence[Expr], shape: Sequence[Any], strides: Sequence[int] | None = None
) -> int | None:
    """Elements of a tensor between two places whose coordinates differ by one step of a symbol, if that is a number.

    >>> from tilewright.algebra.expr import index
    >>> p, c = index("p", 14), index("c", 64)
    >>> step_along(p, (2 * p, c), (28, 64)), step_along(p, (p // 2, c), (28, 64))
    (128, None)
    """
    total, stride = 0, 1
    for n in reversed(range(len(at))):
        form = linear_form(at[n], [symbol])
        step = None if form is None else form[0].get(symbol, ZERO)
        if not isinstance(step, Const) or not isinstance(stride, int):
            return None
        total += step.value * (stride if strides is None else strides[n])
        stride = stride * shape[n]
    return total


def halo_of(c: Contraction) -> Halo | None:
    """The sliding pair of a contraction, if its last two row digits slide over two dimensions; None if not."""
    if "halo" not in c.__dict__:  # asked for again and again
        c.__dict__["halo"] = _halo_of(c)
    found: Halo | None = c.__dict__["halo"]
    return found


def _halo_of(c: Contraction) -> Halo | None:
    if len(c.rows) < 2:
        return None
    lines, columns = c.rows[-2], c.rows[-1]
    found: dict[Symbol, tuple[int, Symbol | None, int, int]] = {}
    for d, e in enumerate(c.a.coordinates):
        for digit in (lines, columns):
            if digit not in e.symbols:
                continue
            form = linear_form(e, e.symbols)
            if form is None or digit in found or not isinstance(form[1], Const):
                return None
            steps = {s: int(f) for s, f in form[0].items()}
            taps = [s for s in steps if s is not digit]
            if steps[digit] != 1 or len(taps) > 1 or any(t not in c.depth[:-1] or steps[t] < 1 for t in taps):
                return None
            found[digit] = (d, taps[0] if taps else None, form[1].value, steps[taps[0]] if taps else 1)
    if set(found) != {lines, columns} or not set(c.depth[:-1]) <= {taps for _, taps, _, _ in found.values()}:
        return None
    (line_dim, line_taps, line_shift, line_step) = found[lines]
    (column_dim, column_taps, column_shift, column_step) = found[columns]
    return Halo(
        lines, columns, line_taps, column_taps, line_dim, column_dim, line_shift, column_shift, line_step, column_step
    )


def is_direct(c: Contraction, plan_depth: int) -> bool:
    """Whether tiles can be read where the rows lie."""
    last = c.depth[-1]
    inner = c.a.coordinates[-1]
    return (
        len(c.rows) == 1
        and not c.a.conditions
        and inner is last
        and c.a.shape[-1] == size(last)
        and size(last) % plan_depth == 0
    )
