"""Views that end before their tensor does, as the channels of one group lie beside those of the next group.

Elements past such an end are out of bounds, though the tensor goes on. An end is an expression that is negative exactly
for these elements: for the 40 channels c of a group, 39 - c. Copies that only check the bounds of tensors are given a
tensor of more dimensions instead: (3 groups, 40 channels) for (120 channels).
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
    """Return (coordinate, extent - 1 - coordinate), two expressions that are both >= 0 if and only if `coordinate` is
    in bounds.
    """
    return coordinate, extent - 1 - coordinate


def ends_within(ends: Iterable[Expr], coordinates: Iterable[Expr], shape: Iterable[Expr]) -> tuple[Expr, ...]:
    """Return the expressions in `ends` that a bounds check of a view must still test.

    An end is an expression that is negative exactly for the elements beyond one limit of an index, such as `39 - c` for
    an index c below 40. Three kinds of ends are left out: an end that is always >= 0; an end that the bounds of the
    view's tensor imply; and an end that another returned end implies. The tensor's bounds are 0 <= c < n for each
    coordinate c in `coordinates` and its extent n in `shape`.

    >>> from tilewright.algebra import as_expr, index
    >>> g, c = index("g", 3), index("c", 64)
    >>> ends_within((c, 39 - c, 99 - c), (40 * g + c,), (as_expr(120),)), ends_within((39 - c,), (c,), (as_expr(40),))
    ((<-c + 39>,), ())
    """
    tensor_bounds = [end for c, n in zip(coordinates, shape, strict=True) for end in both_ends(c, n)]
    remaining = [
        end
        for end in dict.fromkeys(ends)
        if not is_nonneg(end) and not any(is_nonneg(end - other) for other in tensor_bounds)
    ]
    for end in tuple(remaining):
        if any(is_nonneg(end - other) for other in remaining if other is not end):
            remaining.remove(end)
    return tuple(remaining)


def with_ends(view: MemoryView, axes: tuple[Symbol, ...]) -> MemoryView:
    """Return a view of the same elements in a reshaped tensor, where all out-of-bounds elements are out of the tensor's
    own bounds.

    An end is an expression that is negative for out-of-bounds elements of the view; the result has none. In the
    example, a view has the 40 channels of one group in a tensor of 120 channels: the reshaped tensor has groups and
    channels as two dimensions. New dimensions come first, and the view's name shows the new shape. `axes` are the axes
    of the copied box. Raise Refused if there is no such tensor.

    >>> from tilewright.algebra import as_expr, index
    >>> g, i, c, one = index("g", 3), index("i", 8), index("c", 64), as_expr(1)
    >>> group = MemoryView(
    ...     "%x", "global", (i, 40 * g + c), (8 * one, 120 * one), (120 * one, one), (False, True), 16, ends=(39 - c,)
    ... )
    >>> reshaped = with_ends(group, (i, c))
    >>> reshaped.coordinates, reshaped.shape, reshaped.strides, reshaped.name
    ((<g>, <i>, <c>), (<3>, <8>, <40>), (<40>, <120>, <1>), '%x as (3, 8, 40)')
    """
    name, rank = view.name, len(view.shape)
    while view.ends:
        candidates = (_with_bound(view, end, d, axes) for end in view.ends for d in reversed(range(len(view.shape))))
        reshaped = next((candidate for candidate in candidates if candidate is not None), None)
        if reshaped is None:
            raise Refused(
                f"a view of {view.name} ends before it does, where {view.ends[0]} is below 0, and no dimension of it "
                "can end there"
            )
        view = replace(reshaped, ends=ends_within(reshaped.ends, reshaped.coordinates, reshaped.shape))
    label = name if len(view.shape) == rank else f"{name} as ({', '.join(map(str, view.shape))})"
    return replace(view, name=label)


def _with_bound(view: MemoryView, end: Expr, d: int, axes: tuple[Symbol, ...]) -> MemoryView | None:
    """Return the view in a tensor whose dimension `d` ends where `end` becomes negative; `end` is removed from the
    view's `ends`.

    If the position is fixed, dimension `d` is made shorter. If it repeats, such as after 40 channels of each group,
    dimension `d` is split into (blocks, elements of a block). Return None if neither is possible, or if the position
    depends on `axes`, the axes of the copied box.
    """
    last = view.coordinates[d] + end
    constant, terms = linear(last)
    if last.symbols & set(axes) or constant < 0:
        return None
    other_ends = tuple(e for e in view.ends if e is not end)
    extent = view.shape[d]
    if not terms:  # a fixed position: the tensor becomes that much shorter
        return replace(view, ends=other_ends, shape=_with_entry(view.shape, d, minimum(extent, constant + 1)))
    period = gcd(*(count for _, count in terms))
    block = weighted_sum(0, [(term, count // period) for term, count in terms])
    within_block = view.coordinates[d] - period * block
    starts_in_bounds = is_nonneg(within_block) or within_block in other_ends
    if not (starts_in_bounds and is_nonneg(block) and is_nonneg(extent - 1 - last)):
        return None
    return replace(
        view,
        ends=other_ends,
        coordinates=(block, *_with_entry(view.coordinates, d, within_block)),
        shape=((extent - 1 - constant) // period + 1, *_with_entry(view.shape, d, const(constant + 1))),
        strides=(period * view.strides[d], *view.strides),
        may_leave=(False, *_with_entry(view.may_leave, d, True)),
    )


def _with_entry(parts: tuple[T, ...], d: int, part: T) -> tuple[T, ...]:
    """Return the tuple `parts` with its entry number `d` replaced by `part`."""
    return (*parts[:d], part, *parts[d + 1 :])
