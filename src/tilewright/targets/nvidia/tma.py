"""TMA copies of boxes of a tensor of up to five dimensions, between global and shared memory.

A tensor map, made on the host, holds what all boxes have in common; an instruction adds the coordinates of a box and
its address in shared memory. Elements out of the tensor's bounds are loaded as zero, and not stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.algebra import Access, ComposedLayout, linear_form
from tilewright.algebra.expr import Const
from tilewright.machine import CopyAtom, CopyRequest, MemoryView, Place, Refused
from tilewright.machine.copy import Arguments, Array, need_alignment, table
from tilewright.targets.nvidia.tma_tile import TmaTile, box_layout, element_numbers, tile_of
from tilewright.targets.nvidia.tma_view import MOST_BOX, MOST_DIMENSIONS, PITCH, tiled_conditions


@dataclass(frozen=True)
class TensorMap:
    """A tensor and the box that one instruction copies; fastest dimension first, strides in elements.

    `start` is the offset of the tensor's first element; `swizzle` the bytes of a swizzled row, 0 for none.

    >>> TensorMap(0, (8, 3), (1, 10), (4, 2), 0).offsets((4, 2))
    (array([[24, 34],
           [25, 35],
           [26, 36],
           [27, 37]]),
     array([[ True, False],
           [ True, False],
           [ True, False],
           [ True, False]]))
    """

    start: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    def offsets(self, coordinates: tuple[int, ...]) -> tuple[Array, Array]:
        """Return two arrays of the shape of the box: the offset in global memory of each element, and True for each
        element in bounds of the tensor. `coordinates` are those of the box's first element, fastest dimension first.
        """
        offsets = np.full(self.box, self.start)
        inside = np.ones(self.box, bool)
        for first, index, extent, stride in zip(
            coordinates, np.indices(self.box), self.extents, self.strides, strict=True
        ):
            offsets += (first + index) * stride
            inside &= (first + index >= 0) & (first + index < extent)
        return offsets, inside


def _layout(size: int, arguments: Arguments) -> ComposedLayout:
    """Return the layout of one instruction's box in shared memory: coordinates -> offset, with the swizzle. `arguments`
    are the instruction's arguments, as `_tiled_rule` yields them. Elements have `size` bytes.
    """
    tensor_map: TensorMap = arguments["tensor_map"]
    return box_layout(tensor_map.box, arguments["place"], tensor_map.swizzle, size)


def _load(
    layout: Any, source: Array, target: Array, *, tensor_map: TensorMap, coordinates: tuple[int, ...], place: int
) -> None:
    """Execute one TMA load in the interpreter: copy the box at `coordinates` from the flat array `source` (global
    memory) to the flat array `target` (shared memory). `tensor_map` describes the tensor and the box. `layout` gives
    the offsets in `target`. Elements out of bounds become zero. `place` is not used.
    """
    offsets, inside = tensor_map.offsets(coordinates)
    elements = np.zeros(tensor_map.box, source.dtype)
    elements[inside] = source[offsets[inside]]
    target[table(layout)] = elements


def _store(
    layout: Any, source: Array, target: Array, *, tensor_map: TensorMap, coordinates: tuple[int, ...], place: int
) -> None:
    """Execute one TMA store in the interpreter: copy a box from the flat array `source` (shared memory) to
    `coordinates` in the flat array `target` (global memory). `tensor_map` describes the tensor and the box. `layout`
    gives the offsets in `source`. Elements out of bounds are not written. `place` is not used.
    """
    offsets, inside = tensor_map.offsets(coordinates)
    target[offsets[inside]] = source[table(layout)[inside]]


@dataclass(frozen=True)
class _Dimension:
    """A dimension of the tensor: the dimension of the box that walks it (None: none), and the coordinate at which the
    box begins."""

    extent: int
    stride: int
    walked_by: int | None
    first: int


def _dimensions(place: Place, box: tuple[int, ...]) -> tuple[int, list[_Dimension]]:
    """Return (offset of the tensor's first element, its dimensions) of `place`, the view in global memory of a copy.
    `box` are the extents of the copied box. Each dimension of the tensor states which dimension of the box runs along
    it. Raise Refused if the view is swizzled, if a dimension has several strides, or if its elements do not form a box
    of the tensor.
    """
    layout, begin = place.layout, place.begin(box)
    if isinstance(layout, Access):
        return 0, _dimensions_of_access(layout, box, begin)
    start = 0
    if isinstance(layout, ComposedLayout):
        if layout.outer is not None:
            raise Refused(f"global memory is addressed by strides; {layout} is swizzled")
        start, layout = layout.offset, layout.layout
    dimensions = []
    for d, mode in enumerate(layout):
        if isinstance(mode.shape, tuple):
            raise Refused(f"mode {d} of {layout} has several strides: give each a dimension of the box")
        dimensions.append(_Dimension(mode.shape, mode.stride, d, begin[d]))
    return start, dimensions


def _dimensions_of_access(access: Access, box: tuple[int, ...], begin: tuple[int, ...]) -> list[_Dimension]:
    """Return the dimensions of the tensor that `access` reads or writes. Each has its extent, its stride, the dimension
    of the box that runs along it (None: none), and its first coordinate in the box.

    Adjacent dimensions of the tensor over which one axis runs are joined first. `box` are the extents of the box, and
    `begin` its first coordinates. Raise Refused if the access is swizzled, or if its elements do not form a box of the
    tensor.
    """
    if access.swizzle is not None:
        raise Refused("global memory is addressed by strides; the access is swizzled")
    dimensions, walked = [], set()
    anywhere = (True,) * len(access.shape)
    view = MemoryView("the tensor", "global", access.coordinates, access.shape, access.strides, anywhere, 16)
    view = view.joined(access.axes)
    for coordinate, extent, stride in zip(view.coordinates, view.shape, view.strides, strict=True):
        form = linear_form(coordinate, access.axes)
        if form is None:
            raise Refused(f"the coordinate {coordinate} divides an axis: its box is not one of the tensor")
        first, box_dimension = number(form[1]), None
        for axis, weight in form[0].items():
            d = access.axes.index(axis)
            first += number(weight) * begin[d]
            if box[d] == 1:
                continue  # one value only: a constant
            if number(weight) != 1:
                raise Refused(f"the coordinate {coordinate} steps over elements; a box holds neighbours")
            if box_dimension is not None:
                raise Refused(f"the coordinate {coordinate} is walked by two dimensions of the box")
            if d in walked:
                raise Refused(f"axis {axis.name} walks two dimensions of the tensor")
            box_dimension = d
            walked.add(d)
        dimensions.append(_Dimension(number(extent), number(stride), box_dimension, first))
    idle = [access.axes[d].name for d in range(len(box)) if box[d] > 1 and d not in walked]
    if idle:
        raise Refused(f"axis {idle[0]} walks no dimension of the tensor: its elements would be repeated")
    return dimensions


def number(e: Any) -> int:
    """Return the value of `e` as an int if it is a constant expression. Raise Refused if it is not."""
    if isinstance(e, Const):
        return int(e)
    raise Refused(f"{e} is not a number yet: a tensor map is made when sizes are known")


def _tiled_rule(atom: CopyAtom, request: CopyRequest) -> Iterable[Arguments]:
    """Yield the arguments of each instruction `atom` (a TMA load or store) of the copy `request`, as {"tensor_map",
    "coordinates", "place"}: the tensor map, the coordinates of the box, and the offset in shared memory in elements.
    Raise Refused, while iterating, if tiled TMA instructions cannot do the copy, or do not move exactly the requested
    elements.
    """
    loads = atom.target == "shared"
    near, far = (request.target, request.source) if loads else (request.source, request.target)
    tile = tile_of(request.box, request.size, near)
    start, dimensions = _dimensions(far, request.box)
    ordered = _in_order(tile, dimensions)
    box = tuple(1 if d.walked_by is None else tile.box[d.walked_by] for d in ordered)
    tensor_map = TensorMap(start, tuple(d.extent for d in ordered), tuple(d.stride for d in ordered), box, tile.span)
    check_map(tensor_map.start, tensor_map.extents, tensor_map.strides, far, request.size)
    for d, extent in enumerate(box):
        if extent > MOST_BOX:
            raise Refused(f"the box has {extent} elements in its dimension {d}; the most is {MOST_BOX}")
    # the instruction's box has its own order of dimensions: convert to the request's
    single = tuple(0 if d.walked_by is None else slice(None) for d in ordered)
    order = np.argsort([d.walked_by for d in ordered if d.walked_by is not None])

    def as_asked(values: Array) -> Array:
        """Return `values`, an array over the instruction's box, with its dimensions in the order of the
        requested box.
        """
        return np.transpose(values[single], order).reshape(tile.box)

    for first, place in tile.pieces():
        coordinates = tuple(d.first + (0 if d.walked_by is None else first[d.walked_by]) for d in ordered)
        offsets, inside = tensor_map.offsets(coordinates)
        require_same_elements(
            request,
            loads,
            element_numbers(request, tile.box, first),
            as_asked(offsets),
            as_asked(inside),
            as_asked(table(box_layout(box, place, tile.span, request.size))),
        )
        yield {"tensor_map": tensor_map, "coordinates": coordinates, "place": place}


def _in_order(tile: TmaTile, dimensions: list[_Dimension]) -> list[_Dimension]:
    """Return `dimensions`, those of the tensor, in the order of a tensor map. The dimensions that the box of `tile`
    runs along come first, in the order of shared memory. The others follow; an extent of 1 is left out if the box
    begins at coordinate 0. Raise Refused if a dimension of the box runs along no dimension of the tensor.
    """
    dimension_of = {d.walked_by: d for d in dimensions if d.walked_by is not None and tile.box[d.walked_by] > 1}
    rest = [d for d in dimensions if d not in dimension_of.values()]
    # a dimension of one element, at which the box begins, is left out of the map
    rest = [d for d in rest if d.extent > 1 or d.first]
    missing = [d for d in tile.order if d not in dimension_of]
    if missing:
        raise Refused(f"dimension {missing[0]} of the box walks no dimension of the tensor")
    return [*(dimension_of[d] for d in tile.order), *rest]


def check_map(start: int, extents: tuple[int, ...], strides: tuple[int, ...], place: Place, size: int) -> None:
    """Raise Refused unless a tensor map can describe a tensor with these `extents` and `strides`, fastest dimension
    first. It can if there are at most 5 dimensions, no extent exceeds 2^32, the fastest dimension has stride 1, and all
    other strides are multiples of 16 bytes below 2^40. Strides count elements of `size` bytes. `start` is the offset of
    the first element in the memory `place`; it must be aligned to 16 bytes.
    """
    if len(extents) > MOST_DIMENSIONS:
        raise Refused(f"the tensor has {len(extents)} dimensions; the most is {MOST_DIMENSIONS}")
    if strides[0] != 1:
        raise Refused(f"the fastest dimension has stride {strides[0]} in global memory, not 1")
    for d, stride in enumerate(strides[1:], 1):
        if stride < 0 or stride * size % 16 or stride * size >= 1 << 40:
            raise Refused(f"the stride of dimension {d} is {stride * size} bytes, no multiple of 16 below 2^40")
    if max(extents) > 1 << 32:
        raise Refused(f"an extent of {max(extents)} is more than 2^32")
    need_alignment(place, np.array([start]), size, 16)


def require_same_elements(
    request: CopyRequest, loads: bool, numbers: Array, far: Array, inside: Array, near: Array
) -> None:
    """Raise Refused unless an instruction moves the same elements as `request`. `numbers` are the numbers in the
    request's box of the elements that the instruction moves. `far` and `near` are their offsets in global and in shared
    memory, and `inside` is True for elements in bounds. If `loads`, the copy goes from global to shared memory, else
    from shared to global memory.
    """
    near_table, far_table = (
        (request.target_table, request.source_table) if loads else (request.source_table, request.target_table)
    )
    if (near_table[0][numbers] != near).any():
        raise Refused("the tile in shared memory is not the packed box that the instruction moves")
    if (far_table[1][numbers] != inside).any():
        raise Refused("what is inside memory is not what is inside the tensor: only the tensor's edge is seen")
    if (far_table[0][numbers] != far)[inside].any():
        raise Refused("the elements are not a box of the tensor")


SWIZZLED, CHUNK = (128, 64, 32), 16
"""Bytes of the rows that a tensor map swizzles, and of the chunks that it moves."""
TILED = [
    CopyAtom(
        "tma.load",
        "global",
        "shared",
        _layout,
        _load,
        _tiled_rule,
        lambda request: tiled_conditions(request, loads=True),
        None,
        ("sm_90",),
        completes="mbarrier",
        rows=SWIZZLED,
        chunk=CHUNK,
        pitch=PITCH,
    ),
    CopyAtom(
        "tma.store",
        "shared",
        "global",
        _layout,
        _store,
        _tiled_rule,
        lambda request: tiled_conditions(request, loads=False),
        None,
        ("sm_90",),
        completes="bulk group",
        rows=SWIZZLED,
        chunk=CHUNK,
        pitch=PITCH,
    ),
]
