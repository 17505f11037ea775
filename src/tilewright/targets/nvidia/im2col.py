"""TMA's im2col copies for convolutions: columns of pixels of an image, gathered for one tap of a filter.

The tensor map says where the filter's first tap may be: from the lower corner to the upper one, in steps of the
convolution's stride. An instruction walks a number of positions from its coordinates on, over ends of lines and of
images, adds the tap's offsets, and copies some channels of each pixel. Pixels outside the image are zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra import Access, ComposedLayout, linear_form, substitute
from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.machine import CopyAtom, CopyRequest, Refused, ViewRequest
from tilewright.machine.copy import Arguments, Array, table
from tilewright.targets.nvidia.im2col_view import (
    CORNER_BITS,
    MOST_CHANNELS,
    MOST_PIXELS,
    MOST_STEP,
    OFFSET_BITS,
    im2col_conditions,
    walks,
)
from tilewright.targets.nvidia.tma import check_map, number, require_same_elements
from tilewright.targets.nvidia.tma_tile import TmaTile, box_layout, element_numbers, tile_of
from tilewright.targets.nvidia.tma_view import PITCH, near_tile, sides


@dataclass(frozen=True)
class Im2colMap:
    """An image and how it is walked; dimensions fastest first: channels, W, H, ..., images. Strides in elements.

    A line of 5 pixels with padding 1 under a filter of 3 has 5 positions; the first tap reads the padding:

    >>> tensor_map = Im2colMap.of_convolution((2, 5, 2), (3,), (1,), (1,), (1,), channels=2, pixels=6)
    >>> tensor_map.lower, tensor_map.upper, tensor_map.counts
    ((-1,), (-1,), (5,))
    >>> tensor_map.offsets((0, -1, 0), (0,))[1][0]
    array([False, True, True, True, True, False])
    """

    start: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]
    channels: int
    pixels: int
    swizzle: int

    @classmethod
    def of_convolution(
        cls,
        image: tuple[int, ...],
        taps: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        padding: tuple[int, ...],
        channels: int,
        pixels: int,
        swizzle: int = 0,
    ) -> Im2colMap:
        """Return the im2col map of a convolution. `image` is the shape (N, ..., H, W, C) of a contiguous tensor. `taps`
        (the filter's extents), `stride`, `dilation` and `padding` are tuples (..., H, W). One instruction copies
        `channels` channels of `pixels` pixels. `swizzle` is the number of bytes of a swizzled row (0: no swizzle).
        """
        extents = tuple(reversed(image))
        lower = tuple(-p for p in reversed(padding))
        reach = tuple((t - 1) * d for t, d in zip(reversed(taps), reversed(dilation), strict=True))
        upper = tuple(p - r for p, r in zip(reversed(padding), reach, strict=True))
        strides = tuple(prod(extents[:d]) for d in range(len(extents)))
        return cls(0, extents, strides, lower, upper, tuple(reversed(stride)), channels, pixels, swizzle)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of positions of the filter along each spatial dimension, in the order (W, H, ...)."""
        sizes = zip(self.extents[1:-1], self.lower, self.upper, self.steps, strict=True)
        return tuple((extent - 1 + high - low) // step + 1 for extent, low, high, step in sizes)

    def offsets(self, coordinates: tuple[int, ...], taps: tuple[int, ...]) -> tuple[Array, Array]:
        """Return two arrays [channel, pixel] for the elements that one instruction copies: offsets in global memory,
        and True for elements inside the image. `coordinates` are (channel, W, H, ..., image) of the first element.
        `taps` are the offsets (W, H, ...) of the filter's tap.
        """
        channel = coordinates[0] + np.arange(self.channels)[:, None]
        pixel_number = np.arange(self.pixels)[None, :]
        address = self.start + channel * self.strides[0] + 0 * pixel_number
        inside = (channel >= 0) & (channel < self.extents[0]) & (pixel_number >= 0)
        for d, (count, low, step) in enumerate(zip(self.counts, self.lower, self.steps, strict=True)):
            pixel_number = pixel_number + (coordinates[d + 1] - low) // step
            position = low + pixel_number % count * step + taps[d]
            pixel_number = pixel_number // count
            address = address + position * self.strides[d + 1]
            inside = inside & (position >= 0) & (position < self.extents[d + 1])
        image = coordinates[-1] + pixel_number
        return address + image * self.strides[-1], inside & (image >= 0) & (image < self.extents[-1])


def _layout(size: int, arguments: Arguments) -> ComposedLayout:
    """Return the layout of one instruction's box in shared memory: (channel, pixel) -> offset, with the swizzle.
    `arguments` are the instruction's arguments, as `_rule` yields them. Elements have `size` bytes.
    """
    tensor_map: Im2colMap = arguments["tensor_map"]
    return box_layout((tensor_map.channels, tensor_map.pixels), arguments["place"], tensor_map.swizzle, size)


def _load(
    layout: Any,
    source: Array,
    target: Array,
    *,
    tensor_map: Im2colMap,
    coordinates: tuple[int, ...],
    taps: tuple[int, ...],
    place: int,
) -> None:
    """Execute one im2col instruction in the interpreter: copy channels of pixels from the flat array `source` (global
    memory) to the flat array `target` (shared memory). `tensor_map` describes the image. `coordinates` are those of the
    first element, and `taps` are the offsets of the filter's tap. `layout` gives the offsets in `target`. Elements
    outside the image become zero. `place` is not used.
    """
    offsets, inside = tensor_map.offsets(coordinates, taps)
    elements = np.zeros(offsets.shape, source.dtype)
    elements[inside] = source[offsets[inside]]
    target[table(layout)] = elements


@dataclass(frozen=True)
class _SpatialWalk:
    """How the access moves along one spatial dimension: from position `low` in `count` steps of `step`; `taps` maps
    dimensions of the box to the offset of one tap."""

    low: int
    step: int
    count: int
    taps: dict[int, int]


def _spatial_walks(
    access: Access, box: tuple[int, ...], channel: int, pixel: int
) -> tuple[int, int, list[_SpatialWalk]]:
    """Return (first channel, first image, [one _SpatialWalk each for W, H, ...]) of the image access `access` of an
    im2col copy. `box` are the extents of the copied box. `channel` and `pixel` are the numbers of its dimensions over
    channels and over positions. Raise Refused if im2col cannot describe the access.
    """
    normal = access.normalise()
    if normal.general:
        raise Refused(f"the access has no normal form: {normal.general}")
    definitions = dict(normal.indices)
    pixel_form = linear_form(definitions[access.axes[pixel]], normal.axes)
    if pixel_form is None:
        raise Refused(f"axis {access.axes[pixel].name} is not made of digits")
    weights = {digit: number(weight) for digit, weight in pixel_form[0].items()}
    forms = []
    for coordinate in normal.coordinates:
        form = linear_form(coordinate, normal.axes)
        if form is None:
            raise Refused(f"the coordinate {coordinate} is not linear")
        forms.append(({axis: number(weight) for axis, weight in form[0].items()}, number(form[1])))
    if len(forms) - 2 not in CORNER_BITS:
        raise Refused(f"an image has 3 to 5 dimensions, channels last; the tensor has {len(forms)}")
    if forms[-1][0] != {access.axes[channel]: 1}:
        raise Refused("the last dimension is not walked by the channels alone")
    walks, positions = [], 1
    for spatial in reversed(forms[1:-1]):
        walk = _axis_walk(access, spatial, weights, positions)
        positions *= walk.count
        walks.append(walk)
    images, first = forms[0]
    if any(weights.get(axis) != positions or weight != 1 for axis, weight in images.items()):
        raise Refused("the axis over pixels does not go through images last, one after another")
    used = {axis for form in forms for axis in form[0]}
    idle = [axis.name for d, axis in enumerate(access.axes) if box[d] > 1 and d != pixel and axis not in used]
    if idle:
        raise Refused(f"axis {idle[0]} walks no dimension of the image")
    return forms[-1][1], first, walks


def _axis_walk(
    access: Access, form: tuple[dict[Symbol, int], int], weights: dict[Symbol, int], positions: int
) -> _SpatialWalk:
    """Return the movement along one spatial dimension of the image as (low, step, count, taps). The coordinate is `low`
    + `step` * p + the offset of the tap, where p is a position from 0 to `count` - 1. `taps` is {dimension of the
    copied box: distance between neighbouring taps along it}.

    `form` is the coordinate as a linear form ({axis of `access` or digit: weight}, constant). `weights` is {digit of
    the pixel number: weight}. `positions` is the number of positions of all faster dimensions together. Raise Refused
    if pixels are not counted line by line, or if the axis of a filter tap is split.
    """
    low, step, count, taps = form[1], 1, 1, {}
    for axis, weight in form[0].items():
        if axis in weights:
            if weights[axis] != positions or count > 1:
                raise Refused("the axis over pixels does not go along lines first, then from line to line")
            step, count = weight, int(axis.hi) + 1
            continue
        if axis not in access.axes:
            raise Refused(f"axis {axis.name} is part of a tap that was divided: give each tap its own axis")
        taps[access.axes.index(axis)] = weight
    return _SpatialWalk(low, step, count, taps)


def _rule(_: CopyAtom, request: CopyRequest) -> Iterable[Arguments]:
    """Yield the arguments of each im2col instruction of the copy `request`, as {"tensor_map", "coordinates", "taps",
    "place"}: the im2col map, the coordinates of the first element, the tap's offsets, and the offset in shared memory
    in elements. Raise Refused, while iterating, if im2col instructions cannot do the copy, or do not move exactly the
    requested elements.
    """
    access = request.source.layout
    if not isinstance(access, Access):
        raise Refused("an image is read through an access: a layout does not say what lies outside it")
    # each further dimension of the box is over taps: one instruction for each of its values
    tile = tile_of(request.box, request.size, request.target, most=2)
    if len(tile.order) < 2:
        raise Refused("a column has several channels and several pixels")
    channel, pixel = tile.order
    first_channel, first_image, walks = _spatial_walks(access, request.box, channel, pixel)
    tensor_map, tap_lows = _map(access, walks, tile, channel, pixel)
    _check(tensor_map, request)
    begin = request.source.begin(request.box)
    for first, place in tile.pieces():
        start_of_box = [b + f for b, f in zip(begin, first, strict=True)]
        position = start_of_box[pixel]
        coordinates = [first_channel + start_of_box[channel]]
        for count, low, step in zip(tensor_map.counts, tensor_map.lower, tensor_map.steps, strict=True):
            coordinates.append(low + position % count * step)
            position //= count
        coordinates.append(first_image + position)
        taps = tuple(
            sum(weight * start_of_box[d] for d, weight in walk.taps.items()) - low
            for walk, low in zip(walks, tap_lows, strict=True)
        )
        bits = OFFSET_BITS[len(walks)]
        if any(not 0 <= tap < 1 << bits for tap in taps):
            raise Refused(f"a tap at {taps} is outside what an offset of {bits} bits can say")
        offsets, inside = tensor_map.offsets(tuple(coordinates), taps)
        shape = tile.box
        reorder: Any = (lambda x: x) if channel < pixel else np.transpose
        require_same_elements(
            request,
            True,
            element_numbers(request, shape, first),
            reorder(offsets).reshape(shape),
            reorder(inside).reshape(shape),
            reorder(
                table(box_layout((tensor_map.channels, tensor_map.pixels), place, tensor_map.swizzle, request.size))
            ).reshape(shape),
        )
        yield {"tensor_map": tensor_map, "coordinates": tuple(coordinates), "taps": taps, "place": place}


def _map(
    access: Access, walks: list[_SpatialWalk], tile: TmaTile, channel: int, pixel: int
) -> tuple[Im2colMap, tuple[int, ...]]:
    """Return (im2col map for all taps of the access, smallest tap offset along each of W, H, ...). `walks` are the
    movements along W, H, ... . `tile` is the box in shared memory. `channel` and `pixel` are the numbers of its
    dimensions over channels and over positions.
    """
    extents = tuple(number(e) for e in reversed(access.shape))
    strides = tuple(number(s) for s in reversed(access.strides))
    # an instruction's tap offsets are not negative: the least one is moved into the corner
    tap_lows = tuple(sum(min(0, weight * int(access.axes[d].hi)) for d, weight in walk.taps.items()) for walk in walks)
    lower = tuple(walk.low + least for walk, least in zip(walks, tap_lows, strict=True))
    upper = tuple(
        low + (walk.count - 1) * walk.step - (extent - 1)
        for low, walk, extent in zip(lower, walks, extents[1:-1], strict=True)
    )
    steps = tuple(walk.step for walk in walks)
    return (
        Im2colMap(0, extents, strides, lower, upper, steps, tile.box[channel], tile.box[pixel], tile.span),
        tap_lows,
    )


def _check(tensor_map: Im2colMap, request: CopyRequest) -> None:
    """Raise Refused unless the hardware's tensor map can represent `tensor_map`, and the source of the copy `request`
    is aligned for it.
    """
    check_map(tensor_map.start, tensor_map.extents, tensor_map.strides, request.source, request.size)
    bits = CORNER_BITS[len(tensor_map.lower)]
    for corner in (*tensor_map.lower, *tensor_map.upper):
        if not -(1 << bits - 1) <= corner < 1 << bits - 1:
            raise Refused(f"a corner of {corner} does not fit the {bits} bits that it has")
    if tensor_map.channels > MOST_CHANNELS or tensor_map.pixels > MOST_PIXELS:
        raise Refused(
            f"a column of {tensor_map.pixels} pixels and {tensor_map.channels} channels is more than 1024 and 256"
        )
    if any(not 1 <= step <= MOST_STEP for step in tensor_map.steps):
        raise Refused(f"positions {max(tensor_map.steps)} apart are more than {MOST_STEP}, or not forwards")


def column_of(request: ViewRequest) -> tuple[tuple[Any, ...], TmaTile, tuple[Expr, ...], tuple[Expr, ...]]:
    """Return (fields of an Im2colMap, tile in shared memory, coordinates, tap offsets) of the im2col copy `request`. It
    must fulfil `im2col_conditions`.

    Extents, strides and upper corners may be expressions of open sizes. Coordinates are those of the first element, in
    the order (channel, W, H, ..., image). Tap offsets are in the order (W, H, ...).
    """
    near, far = sides(request, loads=True)
    tile = near_tile(request, near, most=2)
    channel, pixel = tile.order
    its_walks = list(walks(far, request.axes[channel], request.axes[pixel]))
    extents, strides = (tuple(reversed(values)) for values in (far.shape, far.strides))
    lower, steps = tuple(int(walk.taps.lo) for walk in its_walks), tuple(walk.step for walk in its_walks)
    upper = tuple(
        low + (walk.count - 1) * walk.step - (far.shape[walk.dimension] - 1)
        for low, walk in zip(lower, its_walks, strict=True)
    )
    shape = (tile.box[channel], tile.box[pixel])
    map_fields = (0, extents, strides, lower, upper, steps, *shape, tile.span)
    # the offset of a tap is separate from the position of the first tap
    offsets = {walk.dimension: walk.taps - low for walk, low in zip(its_walks, lower, strict=True)}
    begin = {axis: as_expr(0) for axis in request.axes}
    coordinates = tuple(substitute(c - offsets.get(d, 0), begin) for d, c in enumerate(far.coordinates))
    return map_fields, tile, tuple(reversed(coordinates)), tuple(offsets.values())


IM2COL = CopyAtom(
    "tma.load.im2col",
    "global",
    "shared",
    _layout,
    _load,
    _rule,
    im2col_conditions,
    None,
    ("sm_90",),
    completes="mbarrier",
    pitch=PITCH,
    furthest=MOST_STEP,
)
