"""TMA for convolutions: columns of pixels of an image, gathered as a filter's tap sees them.

The map says where the filter's first tap may stand: from the lower corner to the upper one, in steps of the
convolution's stride. An instruction walks so many positions from its coordinates on, over ends of lines and of
images, adds the tap's offsets, and copies some channels of each pixel. Outside the image there are zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from tilewright.algebra import Access, ComposedLayout, has_division, index, linear_form, substitute
from tilewright.algebra.expr import Expr, FloorDiv, Mod, Symbol, as_expr
from tilewright.algebra.expr_rules import linear, weighted_sum
from tilewright.machine import Condition, CopyAtom, CopyRequest, MemoryView, Refused, ViewRequest
from tilewright.machine.copy import Arguments, Array, table
from tilewright.targets.nvidia.tma import check_map, number, same_as_asked
from tilewright.targets.nvidia.tma_tile import Tile, element_numbers, tile_of, written
from tilewright.targets.nvidia.tma_view import map_conditions, near_tile, sides

# by the number of spatial dimensions: bits of a corner (signed), bits of an offset (unsigned)
CORNER_BITS = {1: 16, 2: 8, 3: 5}
OFFSET_BITS = {1: 16, 2: 8, 3: 5}
MOST_CHANNELS, MOST_PIXELS, MOST_STEP = 256, 1024, 8


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
        """The map of a whole convolution: `image` is (N, ..., H, W, C) packed, the others are (..., H, W)."""
        extents = tuple(reversed(image))
        lower = tuple(-p for p in reversed(padding))
        reach = tuple((t - 1) * d for t, d in zip(reversed(taps), reversed(dilation), strict=True))
        upper = tuple(p - r for p, r in zip(reversed(padding), reach, strict=True))
        strides = tuple(prod(extents[:d]) for d in range(len(extents)))
        return cls(0, extents, strides, lower, upper, tuple(reversed(stride)), channels, pixels, swizzle)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many positions there are along W, H, ..."""
        sizes = zip(self.extents[1:-1], self.lower, self.upper, self.steps, strict=True)
        return tuple((extent - 1 + high - low) // step + 1 for extent, low, high, step in sizes)

    def offsets(self, coordinates: tuple[int, ...], taps: tuple[int, ...]) -> tuple[Array, Array]:
        """(offset in global memory, whether inside the image) for each [channel, pixel]."""
        channel = coordinates[0] + np.arange(self.channels)[:, None]
        walked = np.arange(self.pixels)[None, :]
        at = self.start + channel * self.strides[0] + 0 * walked
        inside = (channel >= 0) & (channel < self.extents[0]) & (walked >= 0)
        for d, (count, low, step) in enumerate(zip(self.counts, self.lower, self.steps, strict=True)):
            walked = walked + (coordinates[d + 1] - low) // step
            position = low + walked % count * step + taps[d]
            walked = walked // count
            at = at + position * self.strides[d + 1]
            inside = inside & (position >= 0) & (position < self.extents[d + 1])
        image = coordinates[-1] + walked
        return at + image * self.strides[-1], inside & (image >= 0) & (image < self.extents[-1])


def _layout(size: int, arguments: Arguments) -> ComposedLayout:
    tensor_map: Im2colMap = arguments["tensor_map"]
    return written((tensor_map.channels, tensor_map.pixels), arguments["place"], tensor_map.swizzle, size)


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
    offsets, inside = tensor_map.offsets(coordinates, taps)
    found = np.zeros(offsets.shape, source.dtype)
    found[inside] = source[offsets[inside]]
    target[table(layout)] = found


@dataclass(frozen=True)
class _Walk:
    """How the access moves along one spatial dimension: positions, and the offset of each tap dimension of the box."""

    low: int
    step: int
    count: int
    taps: dict[int, int]


def _walks(access: Access, box: tuple[int, ...], channel: int, pixel: int) -> tuple[int, list[_Walk]]:
    """(first channel, the walks along W, H, ...) that the access describes, with one axis over all positions."""
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
        walk = _walk(access, spatial, weights, positions)
        positions *= walk.count
        walks.append(walk)
    images, first = forms[0]
    if first or any(weights.get(axis) != positions or weight != 1 for axis, weight in images.items()):
        raise Refused("the axis over pixels does not go through images last, one after another")
    used = {axis for form in forms for axis in form[0]}
    idle = [axis.name for d, axis in enumerate(access.axes) if box[d] > 1 and d != pixel and axis not in used]
    if idle:
        raise Refused(f"axis {idle[0]} walks no dimension of the image")
    return forms[-1][1], walks


def _walk(access: Access, form: tuple[dict[Symbol, int], int], weights: dict[Symbol, int], positions: int) -> _Walk:
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
    return _Walk(low, step, count, taps)


def _rule(_: CopyAtom, request: CopyRequest) -> Iterable[Arguments]:
    access = request.source.layout
    if not isinstance(access, Access):
        raise Refused("an image is read through an access: a layout does not say what lies outside it")
    # every further dimension of the box is a tap: one instruction for each of its values
    tile = tile_of(request.box, request.size, request.target, most=2)
    if len(tile.order) < 2:
        raise Refused("a column has several channels and several pixels")
    channel, pixel = tile.order
    first_channel, walks = _walks(access, request.box, channel, pixel)
    tensor_map, tap_lows = _map(access, walks, tile, channel, pixel)
    _check(tensor_map, request)
    begin = request.source.begin(request.box)
    for first, place in tile.pieces():
        where = [b + f for b, f in zip(begin, first, strict=True)]
        position = where[pixel]
        coordinates = [first_channel + where[channel]]
        for count, low, step in zip(tensor_map.counts, tensor_map.lower, tensor_map.steps, strict=True):
            coordinates.append(low + position % count * step)
            position //= count
        coordinates.append(position)
        taps = tuple(
            sum(weight * where[d] for d, weight in walk.taps.items()) - low
            for walk, low in zip(walks, tap_lows, strict=True)
        )
        bits = OFFSET_BITS[len(walks)]
        if any(not 0 <= tap < 1 << bits for tap in taps):
            raise Refused(f"a tap at {taps} is outside what an offset of {bits} bits can say")
        offsets, inside = tensor_map.offsets(tuple(coordinates), taps)
        shape = tile.box
        turned: Any = (lambda x: x) if channel < pixel else np.transpose
        same_as_asked(
            request,
            True,
            element_numbers(request, shape, first),
            turned(offsets).reshape(shape),
            turned(inside).reshape(shape),
            turned(
                table(written((tensor_map.channels, tensor_map.pixels), place, tensor_map.swizzle, request.size))
            ).reshape(shape),
        )
        yield {"tensor_map": tensor_map, "coordinates": tuple(coordinates), "taps": taps, "place": place}


def _map(access: Access, walks: list[_Walk], tile: Tile, channel: int, pixel: int) -> tuple[Im2colMap, tuple[int, ...]]:
    """The map for all taps of the access, and the least sum of tap offsets along each spatial dimension."""
    extents = tuple(number(e) for e in reversed(access.shape))
    strides = tuple(number(s) for s in reversed(access.strides))
    # offsets of taps are not negative: what the least of them is goes into the corner
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


# -- views -----------------------------------------------------------------------------------------------


def _conditions(request: ViewRequest) -> Iterator[Condition]:
    """What a copy needs whose rows are pixels: the flat number of a pixel is one axis of the box plus where it begins.

    The taps of a filter come from outside the box: where the first one reads, and how far the others are from it, is
    seen at the least and the largest values of what they depend on.
    """
    near, far = sides(request, loads=True)
    tile = near_tile(request, near, most=2)
    if len(tile.order) < 2:
        raise Refused("a column has several channels and several pixels")
    channel, pixel = tile.order
    flat = _flat_pixels(request, far, pixel)
    ends = [_walks_at(request, flat, tile, end) for end in ("lo", "hi")]
    (_, walks), (_, others) = ends
    extents = tuple(number(e) for e in reversed(far.shape))
    bits = CORNER_BITS[len(walks)]
    for walk, other, extent in zip(walks, others, extents[1:-1], strict=True):
        if (walk.step, walk.count) != (other.step, other.count):
            raise Refused("positions of the filter are not alike for all taps")
        least, most = sorted((walk.low, other.low))
        for corner in (least, least + (walk.count - 1) * walk.step - (extent - 1)):
            if not -(1 << bits - 1) <= corner < 1 << bits - 1:
                raise Refused(f"a corner of {corner} does not fit the {bits} bits that it has")
        if most - least >= 1 << OFFSET_BITS[len(walks)]:
            raise Refused(f"taps {most - least} apart are more than an offset of {bits} bits can say")
        if not 1 <= walk.step <= MOST_STEP:
            raise Refused(f"positions {walk.step} apart are more than {MOST_STEP}, or not forwards")
    if tile.box[channel] > MOST_CHANNELS or tile.box[pixel] > MOST_PIXELS:
        raise Refused(
            f"a column of {tile.box[pixel]} pixels and {tile.box[channel]} channels is more than 1024 and 256"
        )
    yield from map_conditions(request, far, list(reversed(list(enumerate(far.strides)))))


def _flat_pixels(request: ViewRequest, far: MemoryView, pixel: int) -> tuple[Symbol, MemoryView]:
    """The number of a pixel, counted over all images, as a symbol; and the view in terms of it."""
    axis = request.axes[pixel]
    parts = [c for c in far.coordinates if axis in c.symbols]
    nodes = [n.left for c in parts for n in c.walk() if isinstance(n, FloorDiv | Mod) and axis in n.left.symbols]
    divided = [e for e in nodes if not has_division(e, (axis,))] or parts
    forms = {linear_form(e, (axis,)) is not None and (e - axis) for e in divided}
    begin = forms.pop() if len(forms) == 1 else False
    if begin is False:
        raise Refused(f"axis {pixel} of the box does not count pixels of {far.name}: its coordinates do not agree")
    most = max([int(e.hi) for e in divided if isinstance(e.hi, int)] + [request.box[pixel]])
    whole = [n.right for c in far.coordinates[:1] for n in c.walk() if isinstance(n, FloorDiv)]
    count = number(far.shape[0]) * number(whole[0]) if whole else most + 1
    flat = index("pixel", max(count, 1))
    return flat, far.substituted({axis: flat - begin})


def _walks_at(
    request: ViewRequest, flat: tuple[Symbol, MemoryView], tile: Tile, end: Literal["lo", "hi"]
) -> tuple[int, list[_Walk]]:
    """(first channel, walks along W, H, ...) where all that varies has its least, or its largest value."""
    pixels, view = flat
    channel, pixel = tile.order
    axes = tuple(pixels if d == pixel else axis for d, axis in enumerate(request.axes))
    outside = {s for c in view.coordinates for s in c.symbols} - set(axes)
    values = {s: getattr(s, end) for s in outside}
    if any(not isinstance(v, int) for v in values.values()):
        raise Refused(f"{view.name} is read where {', '.join(s.name for s in outside)} has no limits")
    fixed = view.substituted(values)
    access = Access.of(fixed.coordinates, axes, view.shape, view.strides)
    box = tuple(request.box)
    return _walks(access, box, channel, pixel)


def column_of(request: ViewRequest) -> tuple[Im2colMap, Tile, tuple[Expr, ...], tuple[Expr, ...]]:
    """(map, tile, coordinates, offsets of the tap) of a copy that the conditions above allow, as expressions.

    Coordinates and offsets are those of the first pixel and channel, fastest dimension first.
    """
    near, far = sides(request, loads=True)
    tile = near_tile(request, near, most=2)
    channel, pixel = tile.order
    flat = _flat_pixels(request, far, pixel)
    _, walks = _walks_at(request, flat, tile, "lo")
    extents = tuple(number(e) for e in reversed(far.shape))
    strides = tuple(number(s) for s in reversed(far.strides))
    lower = tuple(walk.low for walk in walks)
    upper = tuple(
        walk.low + (walk.count - 1) * walk.step - (extent - 1)
        for walk, extent in zip(walks, extents[1:-1], strict=True)
    )
    steps = tuple(walk.step for walk in walks)
    shape = (tile.box[channel], tile.box[pixel])
    tensor_map = Im2colMap(0, extents, strides, lower, upper, steps, *shape, tile.span)
    begin = {axis: as_expr(0) for axis in request.axes}
    coordinates, offsets = [], []
    for d, coordinate in enumerate(reversed(far.coordinates)):
        constant, terms = linear(coordinate)
        if 0 < d < len(extents) - 1:  # what does not move along pixels says which tap it is
            tap = weighted_sum(constant, [(t, c) for t, c in terms if request.axes[pixel] not in t.symbols])
            offsets.append(tap - walks[d - 1].low)
            coordinate = coordinate - offsets[-1]
        coordinates.append(substitute(coordinate, begin))
    return tensor_map, tile, tuple(coordinates), tuple(offsets)


IM2COL = CopyAtom(
    "tma.load.im2col",
    "global",
    "shared",
    _layout,
    _load,
    _rule,
    None,
    ("sm_90",),
    completes="mbarrier",
    on_views=_conditions,
)
