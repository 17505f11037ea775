"""Conditions under which AMX's tile copies move elements between views: rows of contiguous elements at a constant
stride."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.algebra import is_nonneg
from tilewright.machine import Condition, Refused, ViewRequest
from tilewright.machine.copy import Array
from tilewright.machine.offsets import Offsets


def tile_conditions(request: ViewRequest, rows: int, row_bytes: int) -> Iterator[Condition]:
    """Yield the conditions on symbolic sizes under which tile instructions can do the copy `request` between a view in
    tile registers and a view in memory.

    A tile register holds at most `rows` rows of `row_bytes` bytes. Longer rows of the view are divided among several
    tile registers; more than `rows` rows are refused. Raise Refused, while the conditions are iterated, if a reason
    that does not depend on sizes forbids the copy, for example if the rows of a tile are at varying strides.
    """
    registers, memory = request.sides()
    elements = registers.elements
    row_count, values = elements.shape
    width = min(values, row_bytes // request.size)
    if row_count > rows:
        raise Refused(f"{registers.name} has {row_count} rows; a tile register holds {rows}")
    if values % width:
        raise Refused(f"rows of {values} elements of {registers.name} are not whole tiles of {row_bytes} bytes a row")
    if memory.swizzle is not None:
        raise Refused(f"{memory.name} is swizzled: the rows of a tile have one stride")
    offsets = Offsets.of(memory, request.axes)
    tiles = elements.reshape(row_count, -1, width).swapaxes(0, 1)  # [tile, row, element]
    reason = f"elements of a row are not neighbours in {memory.name}: their stride must be 1"
    yield from offsets.require_steps(tiles, tiles[:, :, :1], np.arange(width), reason)
    if row_count > 2:
        firsts = tiles[:, :, 0]
        for part in offsets.offset.parts.values():
            steps = np.diff(part[firsts], axis=1)
            if (steps != steps[:, :1]).any():
                raise Refused(f"the rows of a tile are not at one stride in {memory.name}")
    _need_first_rows(offsets, tiles)


def _need_first_rows(offsets: Offsets, tiles: Array) -> None:
    """Raise Refused unless in each tile the elements in bounds are its first rows, or the first elements of all its
    rows, and each tile begins in bounds. Tile instructions have no masks; they can only load fewer rows or shorter
    rows. `offsets` has the coordinates in memory of all elements. `tiles` is an array [tile, row, element] of element
    numbers.
    """
    offsets.need_no_ends("a tile has no mask")
    for d, (coordinate, extent) in enumerate(zip(offsets.coordinates, offsets.view.shape, strict=True)):
        position = offsets.view.coordinates[d]
        if not offsets.view.may_leave[d] or (is_nonneg(position) and is_nonneg(extent - 1 - position)):
            continue
        for part in coordinate.parts.values():
            down, along = np.diff(part[tiles], axis=1), np.diff(part[tiles], axis=2)
            if (down < 0).any() or (along < 0).any() or (down.any() and along.any()):
                raise Refused(f"what lies outside {offsets.view.name} is not at the end of a tile: it has no mask")
        for row in coordinate.rows(tiles[:, 0, 0]):
            first = coordinate.at(row)
            if not is_nonneg(first) or not is_nonneg(extent - 1 - first):
                raise Refused(
                    f"a tile may begin at {first} in dimension {d} of {offsets.view.name}, outside of it: it is to be "
                    "zeroed, not loaded"
                )
