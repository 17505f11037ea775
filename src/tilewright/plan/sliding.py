"""How the rows of a contraction lie: sliding over two dimensions, as an image's do, at one stride, or side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.algebra.expr import ZERO, Const, Expr, Symbol
from tilewright.algebra.expr_use import linear_form
from tilewright.plan.contraction import Contraction, size


@dataclass(frozen=True)
class Slide:
    """A coordinate that slides: a digit of the rows + step * a tap of the depth + shift."""

    digit: Symbol
    tap: Symbol | None
    shift: int
    step: int

    @property
    def reach(self) -> int:
        """How far the last tap lies from the first."""
        return 0 if self.tap is None else (size(self.tap) - 1) * self.step


@dataclass(frozen=True)
class Halo:
    """Rows that slide over two dimensions: from line to line, and along lines, which lie `pitch` apart once staged."""

    lines: Slide
    places: Slide
    pitch: int


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
    found: dict[Symbol, Slide] = {}
    image = 0
    for e, n in zip(c.a.coordinates, c.a.shape, strict=True):
        for digit in (d for d in c.rows[-2:] if d in e.symbols):
            form = linear_form(e, e.symbols)
            if form is None or digit in found or not isinstance(form[1], Const):
                return None
            steps = {s: int(f) for s, f in form[0].items()}
            taps = [s for s in steps if s is not digit]
            if steps[digit] != 1 or len(taps) > 1 or any(t not in c.depth[:-1] or steps[t] < 1 for t in taps):
                return None
            tap = taps[0] if taps else None
            found[digit] = Slide(digit, tap, form[1].value, 1 if tap is None else steps[tap])
            image = n if digit is c.rows[-1] else image
    if set(found) != set(c.rows[-2:]) or not set(c.depth[:-1]) <= {slide.tap for slide in found.values()}:
        return None
    lines, places = (found[digit] for digit in c.rows[-2:])
    return Halo(lines, places, _pitch(places, image))


def _pitch(places: Slide, image: int) -> int:
    """Places from one line to the next, of an image so wide: zeros that end a line also begin the next."""
    width, before = size(places.digit) + places.reach, max(0, -places.shift)
    after = max(0, width - before - image)
    return max(size(places.digit), width - min(before, after))


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
