"""AMX's tile copies: up to 16 rows of up to 64 bytes, at any stride.

A tile register is [row, element]. Several tiles of one tensor follow each other in its values. The numbers of rows and
of bytes in a row are part of the tile configuration, so a smaller tile loads less and leaves zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from tilewright.algebra import Layout
from tilewright.machine import CopyAtom, CopyRequest, Refused
from tilewright.machine.copy import Arguments, Array, Hint, table
from tilewright.targets.cpu.vectors import ORDINARY
from tilewright.targets.x86.tile_views import tile_conditions

ROWS, ROW_BYTES = 16, 64


def _layout(size: int, _: Arguments) -> Layout:
    """Return the register layout of a tile with elements of `size` bytes: (row, element) -> row + 16 * element. The
    second parameter, the arguments of the copy, is not used.
    """
    return Layout((ROWS, ROW_BYTES // size), (1, ROWS))


def _offsets(layout: Any, start: int, stride: int, rows: int, columns: int) -> Array:
    """Return an array [row, column] of offsets in memory: start + row * stride + column. The array has the first `rows`
    rows and `columns` columns of a tile. `layout` is the register layout that `_layout` returns.
    """
    numbers = table(layout)[:rows, :columns]
    offsets: Array = start + numbers % ROWS * stride + numbers // ROWS
    return offsets


def _load(
    layout: Any, source: Array, target: Array, *, start: int, stride: int, rows: int, columns: int, value: int
) -> None:
    """Execute a tile load in the interpreter. It copies `rows` x `columns` elements from the flat array `source` to the
    first rows of `target`, from column `value` on. `target` is an array [row, value] of a register tensor. Element (r,
    c) of the tile is source[start + r * stride + c]. Before the copy, the columns of `target` that belong to this tile
    register become zero in all rows. `layout` is the tile's register layout.
    """
    width = min(target.shape[1], ROW_BYTES // source.dtype.itemsize)
    target[:, value : value + width] = 0
    target[:rows, value : value + columns] = source[_offsets(layout, start, stride, rows, columns)]


def _store(
    layout: Any, source: Array, target: Array, *, start: int, stride: int, rows: int, columns: int, value: int
) -> None:
    """Execute a tile store in the interpreter. It copies `rows` x `columns` elements from the first rows of `source`,
    from column `value` on, to the flat array `target`. `source` is an array [row, value] of a register tensor. Element
    (r, c) of the tile goes to target[start + r * stride + c]. `layout` is the tile's register layout.
    """
    target[_offsets(layout, start, stride, rows, columns)] = source[:rows, value : value + columns]


def _rule(_: CopyAtom, request: CopyRequest) -> Iterable[Arguments]:
    """Yield the arguments of each tile instruction of the copy `request`, as {argument name: number}: `start` and
    `stride` in memory, in elements; `rows` and `columns` in bounds; `value`, the tile's first column in the register
    tensor. A store skips tiles that are entirely out of bounds. Raise Refused, while iterating, if tile instructions
    cannot do the copy.
    """
    numbers = request.registers()
    row_count, values = numbers.shape
    width = min(values, ROW_BYTES // request.size)
    if row_count > ROWS:
        raise Refused(f"the tile has {row_count} rows; a tile register holds {ROWS}")
    if values % width:
        raise Refused(f"rows of {values} elements are not whole tiles of {ROW_BYTES} bytes a row")
    offsets, inside = request.memory()[1:]
    for value in range(0, values, width):
        elements = numbers[:, value : value + width]
        in_bounds, addresses = inside[elements], offsets[elements]
        rows, columns = int(in_bounds.any(axis=1).sum()), int(in_bounds.any(axis=0).sum())
        if in_bounds.sum() != rows * columns or not in_bounds[:rows, :columns].all():
            raise Refused("what is inside memory is not a block of first rows and first elements: a tile has no mask")
        if rows == 0:
            if request.target.in_registers:
                raise Refused("a whole tile is outside memory: it is to be zeroed, not loaded")
            continue
        addresses = addresses[:rows, :columns]
        start = int(addresses[0, 0])
        stride = int(addresses[1, 0]) - start if rows > 1 else width
        if columns > 1 and addresses[0, 1] != start + 1:
            raise Refused(f"elements of a row are {addresses[0, 1] - start} apart in memory: their stride must be 1")
        if (addresses != start + np.arange(rows)[:, None] * stride + np.arange(columns)).any():
            raise Refused("the rows of a tile are not at one stride in memory")
        yield {"start": start, "stride": stride, "rows": rows, "columns": columns, "value": value}


def _tile(name: str, loads: bool, hint: Hint = "keep") -> CopyAtom:
    """Return the AMX copy atom `name`: a tile load if `loads`, else a tile store. `hint` is the cache hint: "keep", or
    "stream" for data that need not stay in the near caches.
    """
    source, target = ("global", "register") if loads else ("register", "global")
    meaning = _load if loads else _store
    return CopyAtom(
        name,
        source,
        target,
        _layout,
        meaning,
        _rule,
        partial(tile_conditions, rows=ROWS, row_bytes=ROW_BYTES),
        ROWS * ROW_BYTES,
        ("amx-tile",),
        hint,
        alike=ORDINARY,
    )


TILE_COPIES = [
    _tile("amx.tileload", loads=True),
    # for an operand that is not used again: its lines need not stay in the near caches
    _tile("amx.tileloadt1", loads=True, hint="stream"),
    _tile("amx.tilestore", loads=False),
]
