"""Conditions under which TMA can copy between views, whose coordinates in global memory are expressions.

The tile in shared memory has constant strides and is checked as in `tma_tile`. A tensor map holds the extents and
strides of global memory, which are the same for every box. A box may begin anywhere, so only the dependence of
coordinates on the box's own axes matters. Dimensions that one axis runs through (as matrix rows run through the pixels
of images) are joined if they are packed.
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
"""Strides of all dimensions but the fastest are multiples of this many bytes."""
MOST_EXTENT, MOST_PITCH = 1 << 32, 1 << 40
"""The limits of a tensor map: extent of a dimension in elements, stride in bytes."""


@dataclass(frozen=True)
class Dimension:
    """A dimension of the tensor: the dimension of the box that walks it (None: none), and the coordinate at which the
    box begins."""

    place: int
    extent: Expr
    stride: Expr
    walked_by: int | None
    first: Expr


def tiled_box(request: ViewRequest, loads: bool) -> tuple[TmaTile, list[Dimension]]:
    """Return (tile in shared memory, dimensions of the tensor in the order of a tensor map) for the tiled copy
    `request`. If `loads`, the copy goes from global to shared memory, else from shared to global memory. Raise Refused
    if TMA cannot do the copy.
    """
    near, far = sides(request, loads)
    tile = near_tile(request, near)
    return tile, _in_order(tile, far, _dimensions(request, far.joined(request.axes)))


def tiled_conditions(request: ViewRequest, loads: bool) -> Iterator[Condition]:
    """Yield the conditions on symbolic sizes under which tiled TMA instructions can do the copy `request`. If `loads`,
    the copy goes from global to shared memory, else from shared to global memory. Raise Refused, while iterating, if no
    sizes allow the copy.
    """
    _, far = sides(request, loads)
    tile, dimensions = tiled_box(request, loads)
    for extent in tile.box:
        if extent > MOST_BOX:
            raise Refused(f"the box has {extent} elements in one dimension; the most is {MOST_BOX}")
    yield from start_conditions(request, far, dimensions[0].place, dimensions[0].first)
    yield from map_conditions(request, far, [(d.place, d.stride) for d in dimensions])


def start_conditions(request: ViewRequest, view: MemoryView, place: int, first: Expr) -> Iterator[Condition]:
    """Yield the condition that the boxes of the copy `request` begin at a multiple of 16 bytes along `place`, the
    number of the fastest dimension of `view` in global memory. Yield nothing if this is known. `first` is the
    coordinate at which a box begins. The hardware fails on other boxes.
    """
    start = first * request.size
    if not is_number(start % 16, 0):
        reason = (
            f"boxes begin at {first} of dimension {place} of {view.name}, at byte {start} of its lines, which is no "
            "multiple of 16 bytes"
        )
        yield Condition(eq(start % 16, 0), reason)


def sides(request: ViewRequest, loads: bool) -> tuple[MemoryView, MemoryView]:
    """Return (view in shared memory, view in global memory) of the copy `request`. If `loads`, the copy goes from
    global to shared memory, else from shared to global memory. If the view in global memory ends before its tensor
    does, the tensor is described such that the view ends at an end of a dimension. Raise Refused if global memory is
    swizzled, if there is no such description, or if the view in shared memory may be out of bounds.
    """
    near, far = (request.target, request.source) if loads else (request.source, request.target)
    assert isinstance(near, MemoryView)
    assert isinstance(far, MemoryView)
    if far.swizzle is not None:
        raise Refused(f"global memory is addressed by strides; {far.name} is swizzled")
    if any(near.may_leave):
        raise Refused(f"the tile in shared memory, {near.name}, may not lie outside its tensor")
    return near, with_ends(far, request.axes)


def near_tile(request: ViewRequest, view: MemoryView, most: int | None = None) -> TmaTile:
    """Return how TMA instructions tile `view`, the view in shared memory of the copy `request`. An instruction's box
    has at most `most` dimensions (None: any number). Raise Refused if the strides of the view are not constants, or if
    TMA cannot move it. The offset of its first element may be an expression.
    """
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
    """Return the dimensions of the tensor of `view`, the view in global memory of the copy `request`. Each states which
    dimension of the box runs along it (None: none).

    Raise Refused in four cases: two dimensions of the box run along one dimension of the tensor; one runs along two
    dimensions; a step is not 1; a coordinate is not linear in the box's axes.
    """
    dimensions: list[Dimension] = []
    walked: set[int] = set()
    # an axis of one element is constant
    fixed = {axis: 0 for axis, extent in zip(request.axes, request.box, strict=True) if extent == 1}
    for number, (coordinate, extent, stride) in enumerate(zip(view.coordinates, view.shape, view.strides, strict=True)):
        form = linear_form(substitute(coordinate, fixed), request.axes)
        if form is None:
            raise Refused(
                f"the coordinate {coordinate} of {view.name} divides an axis: its box is not one of the tensor"
            )
        box_dimension = None
        for axis, weight in form[0].items():
            d = request.axes.index(axis)
            if not is_number(weight, 1):
                raise Refused(f"the coordinate {coordinate} of {view.name} steps over elements; a box holds neighbours")
            if box_dimension is not None:
                raise Refused(f"the coordinate {coordinate} of {view.name} is walked by two dimensions of the box")
            if d in walked:
                raise Refused(f"dimension {d} of the box walks two dimensions of {view.name}")
            box_dimension = d
            walked.add(d)
        dimensions.append(Dimension(number, extent, stride, box_dimension, form[1]))
    return dimensions


def _in_order(tile: TmaTile, view: MemoryView, dimensions: list[Dimension]) -> list[Dimension]:
    """Return `dimensions`, those of the tensor of `view`, in the order of a tensor map. The dimensions that the box of
    `tile` runs along come first, in the order of shared memory. The others follow; an extent of 1 is left out if the
    box begins at coordinate 0. Raise Refused if a dimension of the box runs along no dimension of the tensor.
    """
    walkers = {d.walked_by: d for d in dimensions if d.walked_by is not None and tile.box[d.walked_by] > 1}
    # a dimension of one element, at which the box begins, is left out of the map
    rest = [
        d for d in dimensions if d not in walkers.values() and not (is_number(d.extent, 1) and is_number(d.first, 0))
    ]
    missing = [d for d in tile.order if d not in walkers]
    if missing:
        raise Refused(f"dimension {missing[0]} of the box walks no dimension of {view.name}")
    return [*(walkers[d] for d in tile.order), *rest]


def map_conditions(request: ViewRequest, view: MemoryView, strides: list[tuple[int, Expr]]) -> Iterator[Condition]:
    """Yield the conditions on symbolic sizes under which a tensor map can describe the tensor of `view`, the view in
    global memory of the copy `request`. `strides` is [(number of the dimension, stride in elements)], fastest dimension
    first. Raise Refused, while iterating, if no sizes allow it.
    """
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
        pitch = stride * request.size
        if stride.lo < 0:
            raise Refused(f"dimension {place} of {view.name} has stride {stride}: a tensor map runs forwards")
        if pitch.lo >= MOST_PITCH:  # an open size is not checked: no memory is as large
            raise Refused(
                f"dimension {place} of {view.name} has a stride of {pitch} bytes; a tensor map takes less than 2^40"
            )
        if not is_number(pitch % PITCH, 0):
            reason = (
                f"dimension {place} of {view.name} has a stride of {stride} elements, {pitch} bytes; "
                f"a tensor map takes multiples of {PITCH} bytes, {PITCH // gcd(PITCH, request.size)} elements"
            )
            yield Condition(eq(pitch % PITCH, 0), reason)
