"""The offsets that a layout leaves out, and maps from offsets back to indices: complement and inverses.

A layout with coordinate strides is treated axis by axis: the modes that step along one axis of the codomain have a
complement and inverses of their own, and the result has one mode for each axis:

>>> right_inverse(Layout((4, 5), (E(1), E(0))))
Layout((5, 4), (4, 1))
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

from tilewright.algebra.basis import E, Path, ScaledBasis
from tilewright.algebra.compose import EMPTY_MODE, coalesce, flat_modes, from_modes
from tilewright.algebra.inttuple import (
    ceil_quotient,
    divides,
    leaves,
    prefix_product,
    product,
    shape_of,
    transform_leaf,
)
from tilewright.algebra.layout import Layout, make_layout, size
from tilewright.algebra.modes import as_layout
from tilewright.algebra.quasi_inverse import quasi_inverse
from tilewright.algebra.swizzle import ComposedLayout, Swizzle
from tilewright.errors import LayoutError, LimitExceeded
from tilewright.limits import TABLE

Row: TypeAlias = "tuple[int, int, int]"
"""A mode with more than one element and a nonzero stride: (extent, stride, step of the linear index)."""


def complement(layout: Any, max_idx: Any = 1) -> Layout:
    """Return the layout of the offsets at which copies of `layout` must be put, so that they fill 0, ..., max_idx - 1.

    `max_idx` is a number, a shape or a layout (its size). The strides of a layout L *chain* when, in ascending order,
    each is a multiple of extent times stride of the mode before it. A stride that is no multiple leaves gaps: only the
    copies that fit are put below it. If the values of L are coordinates, `max_idx` is the shape of the box that is
    filled, and the result has one mode for each axis of the box.

    Post-condition, for the result R and the layout L: R is strictly increasing, and (L, R) is injective when L is
    (without its stride-0 modes). If the strides chain, (L, R) also takes every offset below its cosize, and cosize((L,
    R)) >= max_idx. Raise LayoutError if modes of L overlap or have negative strides.

    >>> complement(Layout(4, 2), 24)
    Layout((2, 3), (1, 8))
    >>> complement(Layout((2, 4), (1, 6)), 24)
    Layout(3, 2)
    >>> complement(Layout((4, 5), (E(0), E(1))), (8, 15))
    Layout((2, 3), (4@0, 5@1))
    """
    layout = _require_not_composed(layout, "complement")
    extents = shape_of(max_idx)
    if not layout.has_coordinates:
        return _complement_of_modes(
            _by_ascending_stride(_moving_modes(layout), layout, "complement"), layout, product(extents)
        )
    axes = _modes_by_axis(layout, "complement")
    width = 1 + max((path[0] for path in axes), default=0)
    if not isinstance(extents, tuple):
        if extents != 1 and width > 1:
            raise LayoutError(f"complement of {layout} in {extents}: its values are coordinates; give a shape to fill")
        extents = (extents,) * width

    def along_axis(path: Path, extent: Any) -> Layout:
        modes = _by_ascending_stride(axes.get(path, []), layout, "complement")
        offsets = _complement_of_modes(modes, layout, product(extent))
        return Layout(offsets.shape, transform_leaf(lambda d: d * E(*path) if d else 0, offsets.stride))

    return _map_axes(layout, axes, extents, along_axis)


def right_inverse(layout: Any) -> Any:
    """Return the layout R that gives an index at which the layout L takes the value k, for k = 0, 1, ...: L(R(k)) == k.

    R ends before the first value that L does not take. For a swizzled layout, R is the swizzle followed by the inverse
    of the inner layout, and may end earlier. Raise LayoutError for a composed layout with an offset other than 0, and
    for an outer function that is no swizzle. Raise LimitExceeded for a swizzle that moves too many offsets to search.

    Post-condition, for the layout L: L(R(k)) == k for k < size(R); if the values of L are coordinates, for the
    coordinates k of R. R is the largest such layout if L, without its stride-0 modes, is injective and its strides are
    positive; otherwise there may be larger ones.

    >>> right_inverse(Layout((4, 8), (8, 1)))
    Layout((8, 4), (4, 1))
    >>> right_inverse(Layout((32, 128), (0, 1)))     # a stride-0 mode is skipped
    Layout(128, 32)
    >>> print(right_inverse(ComposedLayout(Swizzle(1, 0, 2), 0, Layout((2, 4), (4, 1)))))
    (4,2):(2,1) o 0 o S<1,0,2> o 0 o 8:1
    """
    layout = as_layout(layout)
    if isinstance(layout, ComposedLayout):
        return _right_inverse_of_composed(layout)
    if not layout.has_coordinates:
        return _right_inverse_of_modes(_moving_modes(layout))
    axes = _modes_by_axis(layout, "right_inverse")
    return _map_axes(layout, axes, (), lambda path, _: _right_inverse_of_modes(axes.get(path, [])))


def left_inverse(layout: Any) -> Any:
    """Return the layout R that gives, for each value v of the layout L, an index at which L takes this value: L(R(v))
    == v.

    If L takes a value more than once, R gives one of the indices: R is then a quasi-inverse.

    Post-condition, for the layout L: L(R(v)) == v for every value v of L; so R(L(i)) == i for every i when L is
    injective. Raise LayoutError if strides are negative, if no such layout is found, or for a composed layout whose
    outer function is no swizzle.

    >>> left_inverse(Layout((4, 2), (1, 5)))
    Layout((5, 2), (1, 4))
    >>> left_inverse(Layout(4, 2))
    Layout((2, 4), (0, 1))
    >>> left_inverse(Layout((4, 2), (1, 2)))      # 2 and 3 occur twice; 4 is at index 6
    Layout((4, 2), (1, 6))
    """
    layout = as_layout(layout)
    if isinstance(layout, ComposedLayout):
        _require_swizzled(layout, "left_inverse")
        inner = ComposedLayout(layout.outer, 0, Layout(layout.cosize()))
        return ComposedLayout(left_inverse(layout.layout), -layout.offset, inner)
    if not layout.has_coordinates:
        return _left_inverse_of_modes(_by_ascending_stride(_moving_modes(layout), layout, "left_inverse"), layout)
    axes = _modes_by_axis(layout, "left_inverse")

    def along_axis(path: Path, _: Any) -> Layout:
        return _left_inverse_of_modes(_by_ascending_stride(axes.get(path, []), layout, "left_inverse"), layout)

    return _map_axes(layout, axes, (), along_axis)


def nullspace(layout: Any) -> Layout:
    """Return the layout of indices at which the layout L takes its value at index 0, made of the stride-0 modes of L.

    Raise LayoutError for a composed layout.

    Post-condition, for the result R and the layout L: L(R(i)) == L(0) for every i, R takes no value twice, and size(R)
    * size(filter_zeros(L)) == size(L).

    >>> nullspace(Layout((2, 3, 4), (0, 1, 0)))
    Layout((2, 4), (1, 6))
    >>> nullspace(Layout((4, 8)))
    Layout(1, 0)
    """
    layout = _require_not_composed(layout, "nullspace")
    flat = leaves(layout.shape)
    rows = zip(flat, leaves(layout.stride), prefix_product(flat), strict=True)
    return from_modes([(s, index) for s, d, index in rows if s != 1 and d == 0])


def max_common_layout(a: Any, b: Any) -> Layout:
    """Return the layout R of the indices at which both layouts take the same consecutive offsets 0, 1, ...

    A swizzle leaves the first 2^base offsets unchanged, so for a swizzled layout R takes at most these. Raise
    LayoutError for a layout of coordinates, and for a composed one with an offset or an outer function other than a
    swizzle.

    Post-condition: a(R(i)) == b(R(i)) == i for i < size(R), and the order of a and b does not matter. R is the largest
    such layout if both are injective and have positive strides, and neither is swizzled.

    >>> max_common_layout(Layout((4, 8), (1, 4)), Layout((4, 8), (1, 8)))
    Layout(4, 1)
    """
    (a, limit_a), (b, limit_b) = _split_swizzle(a), _split_swizzle(b)
    common: list[tuple[Any, Any]] = []
    for (s, d), (t, e) in zip(flat_modes(right_inverse(a)), flat_modes(right_inverse(b)), strict=False):
        if d == e:
            common.append((min(s, t), d))
        if (s, d) != (t, e):
            break
    limit = min(n for n in (limit_a, limit_b, product(tuple(s for s, _ in common))) if n is not None)
    limited: list[tuple[Any, Any]] = []
    for s, d in common:
        if limit > 1:
            limited.append((min(s, limit), d))
            limit //= s
    return coalesce(from_modes(limited))


def max_common_vector(a: Any, b: Any) -> int:
    """Return the number of consecutive offsets 0, 1, ... that both layouts take at the same indices.

    A copy between the two layouts can move these first elements as one vector. To copy everything by vectors of this
    width, the width must also divide the other contiguous runs of both layouts; that is not checked.

    Post-condition: the result equals size(max_common_layout(a, b)). Errors are those of `max_common_layout`.

    >>> max_common_vector(Layout((4, 8), (1, 4)), Layout((4, 8), (1, 8)))
    4
    """
    return size(max_common_layout(a, b))


# -- one axis -----------------------------------------------------------------------------------------


def _moving_modes(layout: Layout) -> list[Row]:
    """Return a list of (extent, stride, step of the linear index), one for each mode of more than one element.

    Modes of stride 0 are left out. The linear index counts the layout's coordinates, first mode fastest.
    """
    flat = leaves(layout.shape)
    rows = zip(flat, leaves(layout.stride), prefix_product(flat), strict=True)
    return [(s, d, index) for s, d, index in rows if s != 1 and d != 0]


def _by_ascending_stride(rows: list[Row], layout: Layout, operation: str) -> list[Row]:
    """Return `rows`, the modes as (extent, stride, step of the linear index), sorted by stride.

    Raise LayoutError if a stride is negative; `layout` and `operation` are named in the message.
    """
    for s, d, _ in rows:
        if d < 0:
            raise LayoutError(f"{operation} of {layout}: mode {s}:{d} runs backwards")
    return sorted(rows, key=lambda row: (row[1], row[0]))


def _complement_of_modes(rows: list[Row], layout: Layout, extent: int) -> Layout:
    """Return the layout of the offsets at which copies of the modes `rows` must be put to fill 0, ..., extent - 1.

    A row is (extent, stride, step of the linear index); rows are sorted by stride. Raise LayoutError, naming `layout`,
    if modes overlap.
    """
    modes: list[tuple[Any, Any]] = []
    current = 1
    for s, d, _ in rows:
        if d < current:
            raise LayoutError(
                f"complement of {layout}: mode {s}:{d} overlaps the modes before it, which reach {current - 1}"
            )
        modes.append((d // current, current))
        current = s * d
    copies = ceil_quotient(extent, current)
    if not (isinstance(copies, int) and copies == 1):  # a single copy is the layout itself
        modes.append((copies, current))
    return coalesce(from_modes(modes or [(1, 0)]))


def _right_inverse_of_modes(rows: list[Row]) -> Layout:
    """Return the layout that maps an offset 0, 1, ... to the linear index at which a layout with the modes `rows` takes
    it.

    A row is (extent, stride, step of the linear index). The result ends before the first offset that the modes leave
    out.
    """
    modes: list[tuple[Any, Any]] = []
    current = 1
    for s, d, index in sorted(rows, key=lambda row: (row[1], row[0], row[2])):
        if d < current:
            continue
        if d > current:
            break
        modes.append((s, index))
        current = s * d
    return coalesce(from_modes(modes))


def _left_inverse_of_modes(rows: list[Row], layout: Layout) -> Layout:
    """Return a left inverse of a layout with the modes `rows`: a layout that maps each of its offsets back to a linear
    index.

    A row is (extent, stride, step of the linear index); rows are sorted by stride. If modes overlap, or if a stride
    does not divide the next one, an inverse is searched for. Raise LayoutError, naming `layout`, if none is found.
    """
    if not rows:
        return EMPTY_MODE
    modes: list[tuple[Any, Any]] = [(rows[0][1], 0)]  # offsets below the smallest stride belong to index 0
    for (s, d, index), (t, reach, _) in pairwise(rows):
        if reach < s * d or not divides(d, reach):
            fallback = quasi_inverse(rows)
            if fallback is None:
                fault = f"modes {s}:{d} and {t}:{reach} overlap" if reach < s * d else ""
                fault = fault or f"stride {d} does not divide stride {reach}"
                raise LayoutError(f"left_inverse of {layout}: {fault}, and no layout was found that undoes it")
            return coalesce(from_modes(fallback))
        modes.append((reach // d, index))
    s, _, index = rows[-1]
    modes.append((s, index))
    return coalesce(from_modes(modes))


# -- several axes: coordinate strides -----------------------------------------------------------------


def _modes_by_axis(layout: Layout, operation: str) -> dict[Path, list[Row]]:
    """Return the modes of a layout whose values are coordinates as {axis path: [(extent, stride, step of the linear
    index)]}.

    The axes are those of the codomain along which strides step. Modes of one element or stride 0 are left out. Raise
    LayoutError, naming `operation`, if strides mix coordinates and offsets.
    """
    layout(0)  # raises if the strides step along a mode and along one inside it
    modes_of: dict[Path, list[Row]] = {}
    flat = leaves(layout.shape)
    for s, d, index in zip(flat, leaves(layout.stride), prefix_product(flat), strict=True):
        if isinstance(d, ScaledBasis):
            modes = modes_of.setdefault(d.path, [])
            if s != 1 and d.value != 0:
                modes.append((s, d.value, index))
        elif s != 1 and d != 0:
            raise LayoutError(f"{operation} of {layout}: its strides mix coordinates and offsets")
    return modes_of


def _map_axes(
    layout: Layout, axes: dict[Path, list[Row]], extents: Any, make_layout_of: Callable[[Path, Any], Layout]
) -> Layout:
    """Return a layout with one mode for each axis of the codomain, make_layout_of(path, extent), nested as the axes
    are.

    The codomain is the space of coordinates that are values of `layout`; the keys of `axes` are the paths along which
    strides step. `extents` is the codomain's shape; axes beyond it have extent 1. Raise LayoutError, naming `layout`,
    if a stride steps along a mode inside an axis whose extent is a number above 1.
    """

    def build(path: Path, extent: Any) -> Layout:
        below = [p[len(path)] for p in axes if len(p) > len(path) and p[: len(path)] == path]
        if path in axes or (not below and not isinstance(extent, tuple)):
            return make_layout_of(path, extent)
        if not isinstance(extent, tuple):
            if extent != 1:
                raise LayoutError(f"{layout} steps along {E(*path, below[0])}, but the shape has {extent} there")
            extent = ()
        rank = max(len(extent), 1 + max(below, default=-1))
        return make_layout([build((*path, m), extent[m] if m < len(extent) else 1) for m in range(rank)])

    return build((), extents)


# -- composed layouts ---------------------------------------------------------------------------------


def _require_not_composed(layout: Any, operation: str) -> Layout:
    """Return `layout` as a Layout; a shape becomes a packed layout. Raise LayoutError, naming `operation`, for a
    composed layout.
    """
    layout = as_layout(layout)
    if isinstance(layout, ComposedLayout):
        raise LayoutError(f"{operation} of {layout}: take that of its inner layout, {layout.layout}")
    plain: Layout = layout
    return plain


def _require_swizzled(layout: ComposedLayout, operation: str) -> None:
    """Raise LayoutError unless the composed layout gives offsets and its outer function is a swizzle or None.

    The inner layout must be a plain Layout of offsets. `operation` is named in the message.
    """
    if not isinstance(layout.outer, Swizzle | None) or not isinstance(layout.layout, Layout) or layout.has_coordinates:
        raise LayoutError(f"{operation} of {layout}: it is not a layout of offsets after a swizzle")


def _right_inverse_of_composed(layout: ComposedLayout) -> Any:
    """Return the right inverse of a composed layout: the swizzle, which is its own inverse, then the inverse of the
    inner layout.

    The result ends before the first offset that the swizzle sends past the end of the inner inverse. Raise LayoutError
    if the outer function is no swizzle, or if the layout has an offset; LimitExceeded if more than 2**22 offsets would
    have to be tried.
    """
    _require_swizzled(layout, "right_inverse")
    if layout.offset != 0:
        raise LayoutError(f"right_inverse of {layout}: it begins at {layout.offset}, and 0 is the first value to find")
    inner = right_inverse(layout.layout)
    if layout.outer is None:
        return inner
    # the result ends before the first offset that the swizzle sends past the inverse's end
    count, swizzle = size(inner), layout.outer
    blocks = count >> swizzle.base + swizzle.bits + abs(
        swizzle.shift
    )  # a swizzle moves offsets only within such blocks
    start = blocks << swizzle.base + swizzle.bits + abs(swizzle.shift)
    if TABLE.refuses(count - start):
        raise LimitExceeded(f"right_inverse of {layout}: a swizzle that moves {count - start} offsets is not searched")
    known = next((k for k in range(start, count) if swizzle(k) >= count), count)
    return ComposedLayout(inner, 0, ComposedLayout(layout.outer, 0, Layout(known)))


def _split_swizzle(layout: Any) -> tuple[Layout, int | None]:
    """Return (layout without its swizzle, number of offsets from 0 on that the swizzle does not change; None: all).

    Raise LayoutError if the layout's values are coordinates, or if it is a composed layout with an offset or an outer
    function other than a swizzle.
    """
    layout = as_layout(layout)
    if layout.has_coordinates:
        raise LayoutError(f"max_common_layout of {layout}: its values are coordinates, not offsets")
    if not isinstance(layout, ComposedLayout):
        return layout, None
    _require_swizzled(layout, "max_common_layout")
    if layout.offset != 0:
        raise LayoutError(f"max_common_layout of {layout}: it begins at {layout.offset}, not at 0")
    return layout.layout, None if layout.outer is None else 1 << layout.outer.base
