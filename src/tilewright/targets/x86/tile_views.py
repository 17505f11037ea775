"""When AMX's tile copies can move elements between views: rows of neighbours, at any distance from each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.algebra import is_nonneg
from tilewright.machine import Condition, Refused, ViewRequest
from tilewright.machine.copy import Array
from tilewright.machine.offsets import Offsets


def tile_conditions(request: ViewRequest, rows: int, row_bytes: int) -> Iterator[Condition]:
    """What a copy between a tile's registers and memory needs."""
    registers, memory = request.sides()
    held = registers.elements
    high, values = held.shape
    width = min(values, row_bytes // request.size)
    if high > rows:
        raise Refused(f"{registers.name} has {high} rows; a tile register holds {rows}")
    if values % width:
        raise Refused(f"rows of {values} elements of {registers.name} are not whole tiles of {row_bytes} bytes a row")
    if memory.swizzle is not None:
        raise Refused(f"{memory.name} is swizzled: the rows of a tile have one stride")
    found = Offsets.of(memory, request.axes)
    tiles = held.reshape(high, -1, width).swapaxes(0, 1)  # [tile, row, element]
    reason = f"elements of a row are not neighbours in {memory.name}: their stride must be 1"
    yield from found.apart(tiles, tiles[:, :, :1], np.arange(width), reason)
    if high > 2:
        firsts = tiles[:, :, 0]
        for part in found.offset.parts.values():
            steps = np.diff(part[firsts], axis=1)
            if (steps != steps[:, :1]).any():
                raise Refused(f"the rows of a tile are not at one stride in {memory.name}")
    _need_first_rows(found, tiles)


def _need_first_rows(found: Offsets, tiles: Array) -> None:
    """Refuses unless what lies outside is at the end of a tile's rows, or of its elements: a tile has no mask."""
    found.need_no_ends("a tile has no mask")
    for d, (coordinate, extent) in enumerate(zip(found.coordinates, found.view.shape, strict=True)):
        whole = found.view.coordinates[d]
        if not found.view.loose[d] or (is_nonneg(whole) and is_nonneg(extent - 1 - whole)):
            continue
        for part in coordinate.parts.values():
            down, along = np.diff(part[tiles], axis=1), np.diff(part[tiles], axis=2)
            if (down < 0).any() or (along < 0).any() or (down.any() and along.any()):
                raise Refused(f"what lies outside {found.view.name} is not at the end of a tile: it has no mask")
        for row in coordinate.rows(tiles[:, 0, 0]):
            first = coordinate.at(row)
            if not is_nonneg(first) or not is_nonneg(extent - 1 - first):
                raise Refused(
                    f"a tile may begin at {first} in dimension {d} of {found.view.name}, outside of it: it is to be "
                    "zeroed, not loaded"
                )
