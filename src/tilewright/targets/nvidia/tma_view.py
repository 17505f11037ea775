"""When TMA can do a copy between views: the coordinates of the far side are expressions.

The tile in shared memory has numbers as its strides, and is looked at as `tma_tile` does. The tensor map says of
global memory what is the same for every box: extents and strides. Where a box begins may be any expression, so only
the dependence of coordinates on the box's own axes matters. Dimensions that one axis runs through, as rows of a matrix
run through the pixels of images, are joined where they are packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from tilewright.algebra import ComposedLayout, Layout, eq, linear_form, substitute
from tilewright.algebra.expr import ZERO, Const, Expr
from tilewright.machine import Condition, MemoryView, Place, Refused, ViewRequest, is_number
from tilewright.machine.ends import with_ends
from tilewright.targets.nvidia.tma_tile import TmaTile, tile_of

MOST_DIMENSIONS = 5
MOST_BOX = 256
PITCH = 16
"""Bytes of which neighbours along all dimensions but the fastest lie a multiple apart."""
MOST_EXTENT, MOST_PITCH = 1 << 32, 1 << 40
"""What a tensor map says at most: elements of a dimension, bytes between two neighbours along one."""


@dataclass(frozen=True)
class Dimension:
    """One dimension of the tensor: the dimension of the box that walks it, if any, and where that begins."""

    place: int
    extent: Expr
    stride: Expr
    walked_by: int | None
    first: Expr


def tiled_box(request: ViewRequest, loads: bool) -> tuple[TmaTile, list[Dimension]]:
    """(the tile in shared memory, the tensor's dimensions in the order of a tensor map) of a copy."""
    near, far = sides(request, loads)
    tile = near_tile(request, near)
    return tile, _in_order(tile, far, _dimensions(request, far.joined(request.axes)))


def tiled_conditions(request: ViewRequest, loads: bool) -> Iterator[Condition]:
    """What a copy of boxes of a tensor needs."""
    _, far = sides(request, loads)
    tile, dimensions = tiled_box(request, loads)
    for extent in tile.box:
        if extent > MOST_BOX:
            raise Refused(f"the box has {extent} elements in one dimension; the most is {MOST_BOX}")
    yield from start_conditions(request, far, dimensions[0].place, dimensions[0].first)
    yield from map_conditions(request, far, [(d.place, d.stride) for d in dimensions])


def start_conditions(request: ViewRequest, view: MemoryView, place: int, first: Expr) -> Iterator[Condition]:
    """That boxes begin at whole units of 16 bytes along the fastest dimension: the machine stops at others."""
    start = first * request.size
    if not is_number(start % 16, 0):
        reason = (
            f"boxes begin at {first} of dimension {place} of {view.name}, at byte {start} of its lines, which is no "
            "multiple of 16 bytes"
        )
        yield Condition(eq(start % 16, 0), reason)


def sides(request: ViewRequest, loads: bool) -> tuple[MemoryView, MemoryView]:
    """(the view in shared memory, the view in global memory, of a tensor that ends where the view does)."""
    near, far = (request.target, request.source) if loads else (request.source, request.target)
    assert isinstance(near, MemoryView)
    assert isinstance(far, MemoryView)
    if far.swizzle is not None:
        raise Refused(f"global memory is addressed by strides; {far.name} is swizzled")
    if any(near.loose):
        raise Refused(f"the tile in shared memory, {near.name}, may not lie outside its tensor")
    return near, with_ends(far, request.axes)


def near_tile(request: ViewRequest, view: MemoryView, most: int | None = None) -> TmaTile:
    """The side in shared memory: strides between its elements are numbers, where it begins may vary."""
    form = linear_form(view.offset(), request.axes)
    if form is None or not all(isinstance(w, Const) for w in form[0].values()):
        raise Refused(f"the tile {view.name} in shared memory does not have one stride for each dimension of the box")
    if not is_number(form[1] * request.size % 128, 0):
        raise Refused(
            f"a box starts at byte {form[1] * request.size} of the shared memory of {view.name}, which is not always "
            "128-byte aligned"
        )
    strides = tuple(int(form[0].get(axis, ZERO)) for axis in request.axes)
    layout = ComposedLayout(view.swizzle, 0, Layout(request.box, strides))
    return tile_of(request.box, request.size, Place("shared", layout, view.alignment), most)


def _dimensions(request: ViewRequest, view: MemoryView) -> list[Dimension]:
    found: list[Dimension] = []
    walked: set[int] = set()
    # an axis of one element stands still
    still = {axis: 0 for axis, extent in zip(request.axes, request.box, strict=True) if extent == 1}
    for place, (coordinate, extent, stride) in enumerate(zip(view.coordinates, view.shape, view.strides, strict=True)):
        form = linear_form(substitute(coordinate, still), request.axes)
        if form is None:
            raise Refused(
                f"the coordinate {coordinate} of {view.name} divides an axis: its box is not one of the tensor"
            )
        by = None
        for axis, weight in form[0].items():
            d = request.axes.index(axis)
            if not is_number(weight, 1):
                raise Refused(f"the coordinate {coordinate} of {view.name} steps over elements; a box holds neighbours")
            if by is not None:
                raise Refused(f"the coordinate {coordinate} of {view.name} is walked by two dimensions of the box")
            if d in walked:
                raise Refused(f"dimension {d} of the box walks two dimensions of {view.name}")
            by = d
            walked.add(d)
        found.append(Dimension(place, extent, stride, by, form[1]))
    return found


def _in_order(tile: TmaTile, view: MemoryView, dimensions: list[Dimension]) -> list[Dimension]:
    """The tensor's dimensions, those of the box first, in the order in which they lie in shared memory."""
    by = {d.walked_by: d for d in dimensions if d.walked_by is not None and tile.box[d.walked_by] > 1}
    # a dimension of one element, where the box begins at it, needs no place in the map
    rest = [d for d in dimensions if d not in by.values() and not (is_number(d.extent, 1) and is_number(d.first, 0))]
    missing = [d for d in tile.order if d not in by]
    if missing:
        raise Refused(f"dimension {missing[0]} of the box walks no dimension of {view.name}")
    return [*(by[d] for d in tile.order), *rest]


def map_conditions(request: ViewRequest, view: MemoryView, strides: list[tuple[int, Expr]]) -> Iterator[Condition]:
    """What a tensor map asks of a tensor whose (dimension, stride) are given fastest first."""
    if len(strides) > MOST_DIMENSIONS:
        raise Refused(f"{view.name} has {len(strides)} dimensions that differ; the most of a tensor map is 5")
    place, fastest = strides[0]
    reason = f"dimension {place} of {view.name}, the fastest of the tile, has stride {fastest} in global memory, not 1"
    if isinstance(fastest, Const) and fastest.value != 1:
        raise Refused(reason)
    if not isinstance(fastest, Const):
        yield Condition(eq(fastest, 1), reason)
    if view.alignment % 16:
        raise Refused(f"{view.name} is aligned to {view.alignment} bytes, and a tensor map needs 16")
    for place, _ in strides:
        extent = view.shape[place]
        if extent.hi > MOST_EXTENT:
            reason = f"dimension {place} of {view.name} has {extent} elements; a tensor map takes at most 2^32"
            yield Condition(extent <= MOST_EXTENT, reason)
    for place, stride in strides[1:]:
        apart = stride * request.size
        if stride.lo < 0:
            raise Refused(f"dimension {place} of {view.name} has stride {stride}: a tensor map runs forwards")
        if apart.lo >= MOST_PITCH:  # of open sizes the call tells, and no memory is as large
            raise Refused(
                f"dimension {place} of {view.name} has a stride of {apart} bytes; a tensor map takes less than 2^40"
            )
        if not is_number(apart % PITCH, 0):
            reason = (
                f"dimension {place} of {view.name} has a stride of {stride} elements, {apart} bytes; "
                f"a tensor map takes multiples of {PITCH} bytes, {PITCH // gcd(PITCH, request.size)} elements"
            )
            yield Condition(eq(apart % PITCH, 0), reason)
