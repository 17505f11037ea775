"""Where a view ends before its tensor does: channels of one group lie beside those of the next.

What lies past such an end is not there, though the tensor goes on. An end is an expression that is never negative where
an element is there: of the 40 channels c of a group, 39 - c. Copies that see the ends of tensors alone see a tensor of
more dimensions instead: of (120 channels), (3 groups, 40 channels).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import gcd
from typing import TypeVar

from tilewright.algebra import is_nonneg
from tilewright.algebra.expr import Expr, Symbol, const
from tilewright.algebra.expr_rules import linear, minimum, weighted_sum
from tilewright.machine.copy import Refused
from tilewright.machine.views import MemoryView

T = TypeVar("T")


def both_ends(coordinate: Expr, extent: Expr) -> tuple[Expr, Expr]:
    """The ends of a dimension at a coordinate."""
    return coordinate, extent - 1 - coordinate


def ends_within(ends: Iterable[Expr], coordinates: Iterable[Expr], shape: Iterable[Expr]) -> tuple[Expr, ...]:
    """Those ends of views that neither the tensor's own nor another one of them imply.

    >>> from tilewright.algebra import as_expr, index
    >>> g, c = index("g", 3), index("c", 64)
    >>> ends_within((c, 39 - c, 99 - c), (40 * g + c,), (as_expr(120),)), ends_within((39 - c,), (c,), (as_expr(40),))
    ((<-c + 39>,), ())
    """
    own = [end for c, n in zip(coordinates, shape, strict=True) for end in both_ends(c, n)]
    left = [
        end for end in dict.fromkeys(ends) if not is_nonneg(end) and not any(is_nonneg(end - other) for other in own)
    ]
    for end in tuple(left):
        if any(is_nonneg(end - other) for other in left if other is not end):
            left.remove(end)
    return tuple(left)


def with_ends(view: MemoryView, axes: tuple[Symbol, ...]) -> MemoryView:
    """The same elements, as those of a tensor that ends where the view does; refused where there is none.

    Dimensions that are made stand first, and its name says so:

    >>> from tilewright.algebra import as_expr, index
    >>> g, i, c, one = index("g", 3), index("i", 8), index("c", 64), as_expr(1)
    >>> group = MemoryView(
    ...     "%x", "global", (i, 40 * g + c), (8 * one, 120 * one), (120 * one, one), (False, True), 16, ends=(39 - c,)
    ... )
    >>> found = with_ends(group, (i, c))
    >>> found.coordinates, found.shape, found.strides, found.name
    ((<g>, <i>, <c>), (<3>, <8>, <40>), (<40>, <120>, <1>), '%x as (3, 8, 40)')
    """
    name, rank = view.name, len(view.shape)
    while view.ends:
        found = (_with_end(view, end, d, axes) for end in view.ends for d in reversed(range(len(view.shape))))
        shorter = next((x for x in found if x is not None), None)
        if shorter is None:
            raise Refused(
                f"a view of {view.name} ends before it does, where {view.ends[0]} is below 0, and no dimension of it "
                "can end there"
            )
        view = replace(shorter, ends=ends_within(shorter.ends, shorter.coordinates, shorter.shape))
    seen = name if len(view.shape) == rank else f"{name} as ({', '.join(map(str, view.shape))})"
    return replace(view, name=seen)


def _with_end(view: MemoryView, end: Expr, d: int, axes: tuple[Symbol, ...]) -> MemoryView | None:
    """The tensor whose dimension d ends where a view does; None: that differs from box to box, or within one."""
    last = view.coordinates[d] + end
    constant, terms = linear(last)
    if last.symbols & set(axes) or constant < 0:
        return None
    left = tuple(e for e in view.ends if e is not end)
    extent = view.shape[d]
    if not terms:  # always at the same place: the tensor is that much shorter
        return replace(view, ends=left, shape=_at(view.shape, d, minimum(extent, constant + 1)))
    apart = gcd(*(count for _, count in terms))
    block = weighted_sum(0, [(term, count // apart) for term, count in terms])
    place = view.coordinates[d] - apart * block
    begins = is_nonneg(place) or place in left
    if not (begins and is_nonneg(block) and is_nonneg(extent - 1 - last)):
        return None
    return replace(
        view,
        ends=left,
        coordinates=(block, *_at(view.coordinates, d, place)),
        shape=((extent - 1 - constant) // apart + 1, *_at(view.shape, d, const(constant + 1))),
        strides=(apart * view.strides[d], *view.strides),
        loose=(False, *_at(view.loose, d, True)),
    )


def _at(parts: tuple[T, ...], d: int, part: T) -> tuple[T, ...]:
    """The parts with another one at a place."""
    return (*parts[:d], part, *parts[d + 1 :])
