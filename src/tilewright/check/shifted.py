"""Shifted coordinates: windows of a lane's own values, seen from another place on.

    copy %x_view -> %window                 (64, 32, 6): six neighbours for each of four results of a lane
    %from_1 = view %window (g 64, b 32, i 4) -> [g, b, i + 1]

Along `i` and along the window every lane has all there is, so which of its values is meant is known when the program is
compiled: nothing moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.algebra.expr_use import linear_form


@dataclass(frozen=True)
class Shifted:
    """A coordinate: a first one, and how far it moves with each axis of an operation."""

    first: int
    steps: tuple[tuple[int, int], ...] = ()


Seen = int | Shifted | None
"""What a dimension of a tensor is to an operation: an axis that runs along all of it, a shifted coordinate, or, of one
coordinate, nothing."""


def shifted_of(e: Expr, over: Sequence[Symbol]) -> Shifted | None:
    """The shifted coordinate that an expression of axes is; None where it is no sum of multiples of them.

    >>> from tilewright.algebra.expr import index
    >>> i, j = index("i", 4), index("j", 2)
    >>> shifted_of(2 * j + i + 1, (i, j)), shifted_of(i * j, (i, j))
    (Shifted(first=1, steps=((0, 1), (1, 2))), None)
    """
    form = linear_form(e, list(over))
    if form is None or not isinstance(form[1], Const):
        return None
    steps = []
    for place, s in enumerate(over):
        step = form[0].get(s)
        if step is None:
            continue
        if not isinstance(step, Const):
            return None
        if step.value:
            steps.append((place, step.value))
    return Shifted(form[1].value, tuple(steps))


def composed(below: Seen, mine: Sequence[Seen]) -> Seen:
    """What a dimension is through a view, of whose axes each is `mine` to those who look at the view.

    >>> composed(Shifted(1, ((0, 2),)), [Shifted(3, ((1, 1),))])
    Shifted(first=7, steps=((1, 2),))
    """
    if below is None:
        return None
    if isinstance(below, int):
        return mine[below]
    first, steps = below.first, dict[int, int]()
    for axis, step in below.steps:
        through = mine[axis]
        if through is None:
            continue
        inner = Shifted(0, ((through, 1),)) if isinstance(through, int) else through
        first += step * inner.first
        for place, each in inner.steps:
            steps[place] = steps.get(place, 0) + step * each
    return Shifted(first, tuple(sorted(steps.items())))
