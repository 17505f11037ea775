"""Shifted coordinates: windows of a lane's own values, read at an offset.

    copy %x_view -> %window                 (64, 32, 6): six contiguous elements for each four results of a lane
    %from_1 = view %window (g 64, b 32, i 4) -> [g, b, i + 1]

Every lane has all elements along `i` and along the window, so the compiler knows which of a lane's values is read:
nothing moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.algebra.expr_use import linear_form


@dataclass(frozen=True)
class Shifted:
    """A coordinate `first` + sum of step * axis, over pairs (axis number, step) in `steps`."""

    first: int
    steps: tuple[tuple[int, int], ...] = ()


Seen = int | Shifted | None
"""How an operation accesses a dimension of a tensor: by the number of an axis that covers it, at a shifted coordinate,
or, if its extent is 1, None."""


def shifted_of(e: Expr, over: Sequence[Symbol]) -> Shifted | None:
    """Return `e`, an expression of the axes `over`, as a Shifted coordinate: a constant plus steps along axes.

    Axes are numbered by their position in `over`. Return None if `e` is not linear in the axes with integer
    coefficients.

    >>> from tilewright.algebra.expr import index
    >>> i, j = index("i", 4), index("j", 2)
    >>> shifted_of(2 * j + i + 1, (i, j)), shifted_of(i * j, (i, j))
    (Shifted(first=1, steps=((0, 1), (1, 2))), None)
    """
    linear = linear_form(e, list(over))
    if linear is None or not isinstance(linear[1], Const):
        return None
    steps = []
    for number, axis in enumerate(over):
        step = linear[0].get(axis)
        if step is None:
            continue
        if not isinstance(step, Const):
            return None
        if step.value:
            steps.append((number, step.value))
    return Shifted(linear[1].value, tuple(steps))


def composed_access(view_access: Seen, axis_accesses: Sequence[Seen]) -> Seen:
    """Return how an operation accesses a dimension of a tensor through a view: an axis number, a Shifted coordinate or
    None.

    An axis number says that this axis of the operation covers the dimension; a Shifted is a constant plus steps along
    axes; None stands for extent 1. `view_access` says in the same form how the view accesses the dimension,
    `axis_accesses` how the operation accesses each axis of the view.

    >>> composed_access(Shifted(1, ((0, 2),)), [Shifted(3, ((1, 1),))])
    Shifted(first=7, steps=((1, 2),))
    """
    if view_access is None:
        return None
    if isinstance(view_access, int):
        return axis_accesses[view_access]
    first, steps = view_access.first, dict[int, int]()
    for axis, step in view_access.steps:
        through = axis_accesses[axis]
        if through is None:
            continue
        inner = Shifted(0, ((through, 1),)) if isinstance(through, int) else through
        first += step * inner.first
        for number, inner_step in inner.steps:
            steps[number] = steps.get(number, 0) + step * inner_step
    return Shifted(first, tuple(sorted(steps.items())))
