"""The shared-memory side of a TMA copy: a packed box, perhaps swizzled.

One instruction moves a box whose first dimension is fastest, without gaps. The swizzle is a function of the absolute
shared address, so a tile's base must be aligned to the swizzle's period for a layout to describe it. A larger box is
split at the modes of the tile's layout: of a dimension with modes (64, 2), the first is the extent of an instruction's
box and the second is the number of instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra import Access, ComposedLayout, Layout, Swizzle, flatten
from tilewright.machine import CopyRequest, Place, Refused
from tilewright.machine.copy import Array

# {bytes of a swizzled row: bytes after which the pattern repeats}; 0: no swizzle, TMA's alignment
PERIODS = {0: 128, 32: 256, 64: 512, 128: 1024}


def swizzle_of(span: int, size: int) -> Swizzle | None:
    """Return the swizzle for rows of `span` bytes, on offsets that count elements of `size` bytes. It permutes chunks
    of 16 bytes by the address bits from 128 bytes on. Return None if `span` is 0 (no swizzle).

    >>> swizzle_of(128, 2), swizzle_of(64, 4), swizzle_of(0, 2)
    (Swizzle(3, 3, 3), Swizzle(2, 2, 3), None)
    """
    if span == 0:
        return None
    return Swizzle((span // 16).bit_length() - 1, (16 // size).bit_length() - 1, 3)


@dataclass(frozen=True)
class TmaTile:
    """The shared-memory side of a copy, in terms of the dimensions of the request's box."""

    place: int
    """Offset of the first element."""
    span: int
    """Bytes of a swizzled row; 0: no swizzle."""
    box: tuple[int, ...]
    """Extents of one instruction's box, in the order of the request's dimensions."""
    order: tuple[int, ...]
    """The request's dimensions, fastest in shared memory first; those of extent 1 are left out."""
    repeats: tuple[tuple[tuple[int, int, int], ...], ...]
    """For each dimension, its splits: (number of instructions, step of the coordinate, step of the offset)."""

    def pieces(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield (coordinates in the request's box, offset in shared memory) of the first element of each instruction's
        box.
        """
        splits = [(d, cut) for d, dimension in enumerate(self.repeats) for cut in dimension]
        for counts in product(*(range(cut[0]) for _, cut in splits)):
            first, offset_in_tile = [0] * len(self.box), self.place
            for (d, (_, step, offset_step)), count in zip(splits, counts, strict=True):
                first[d] += step * count
                offset_in_tile += offset_step * count
            yield tuple(first), offset_in_tile


def tile_of(box: tuple[int, ...], size: int, place: Place, most: int | None = None) -> TmaTile:
    """Return how TMA instructions tile `place`, the view in shared memory of a copy. `box` are the extents of the
    copied box, in elements of `size` bytes. Raise Refused if TMA cannot move the layout of this view.

    An instruction's box has the `most` fastest dimensions (None: all of them). There is one instruction for each
    coordinate along the other dimensions.
    """
    layout: Any = place.layout
    if isinstance(layout, Access):
        raise Refused("the tile in shared memory must be a layout, not an access")
    if place.extents() != box or any(place.begin(box)):
        raise Refused(f"the tile in shared memory must be the box {box}, not part of another tensor")
    swizzle, start = None, 0
    if isinstance(layout, ComposedLayout):
        swizzle, start, layout = layout.outer, layout.offset, layout.layout
    span = next((s for s in PERIODS if swizzle_of(s, size) == swizzle), None)
    if span is None:
        raise Refused(f"{swizzle} is none of the swizzles of 32, 64 or 128 bytes for elements of {size} bytes")
    first, repeats = [], []
    for mode in layout:
        flat = flatten(mode)
        leaves = [(s, d) for s, d in zip(_tuple(flat.shape), _tuple(flat.stride), strict=True) if s > 1] or [(1, 0)]
        first.append(leaves[0])
        step, splits = leaves[0][0], []
        for count, stride in leaves[1:]:
            splits.append((count, step, stride))
            step *= count
        repeats.append(tuple(splits))
    order = tuple(sorted((d for d, (s, _) in enumerate(first) if s > 1), key=lambda d: first[d][1]))
    for d in order[most:] if most is not None else ():
        repeats[d] = ((first[d][0], 1, first[d][1]), *repeats[d])
        first[d] = (1, 0)
    order = order[:most]
    expected = 1
    for d in order:
        if first[d][1] != expected:
            raise Refused(f"dimension {d} of the tile has stride {first[d][1]}, not the {expected} of a packed box")
        expected *= first[d][0]
    if not order:
        raise Refused("a box of one element has no row of 16 bytes")
    tile = TmaTile(start, span, tuple(s for s, _ in first), order, tuple(repeats))
    _check_bytes(size, place, tile)
    return tile


def _check_bytes(size: int, place: Place, tile: TmaTile) -> None:
    """Raise Refused unless TMA can move the rows of `tile` in shared memory. A row must have whole 16 bytes, or exactly
    the bytes of a swizzled row. Each box must begin at a multiple of 128 bytes. The memory `place` must be aligned to
    the period of the swizzle. Elements have `size` bytes.
    """
    row = tile.box[tile.order[0]] * size
    if row % 16:
        raise Refused(f"a row of the box has {row} bytes, no multiple of 16")
    if tile.span and row != tile.span:
        raise Refused(f"a row of the box has {row} bytes, not the {tile.span} of this swizzle")
    period = PERIODS[tile.span]
    if place.alignment is not None and place.alignment % period:
        reason = "the swizzle follows the absolute address" if tile.span else "it writes from such addresses on"
        raise Refused(f"shared memory is aligned to {place.alignment} bytes, and {period} are needed: {reason}")
    for _, offset in tile.pieces():
        if offset * size % 128:
            raise Refused(f"a box starts at byte {offset * size} of shared memory, which is not 128-byte aligned")


def box_layout(box: tuple[int, ...], place: int, span: int, size: int) -> ComposedLayout:
    """Return the layout of one instruction's box in shared memory: coordinates -> offset. `box` are the extents of the
    box, and `place` is the offset of its first element. `span` is the number of bytes of a swizzled row (0: no
    swizzle). Elements have `size` bytes.
    """
    return ComposedLayout(swizzle_of(span, size), place, Layout(box))


def element_numbers(request: CopyRequest, box: tuple[int, ...], first: tuple[int, ...]) -> Array:
    """Return an array of the shape `box` with the number of each element in the request's box, counted with the first
    dimension fastest. `box` are the extents of an instruction's box. `first` are the coordinates of its first element
    in the request's box.
    """
    strides = [prod(request.box[:d]) for d in range(len(request.box))]
    numbers = np.zeros(box, int)
    for d, index in enumerate(np.indices(box)):
        numbers += (first[d] + index) * strides[d]
    return numbers


def _tuple(x: Any) -> tuple[Any, ...]:
    """Return `x` if it is a tuple, else (x,)."""
    return x if isinstance(x, tuple) else (x,)
