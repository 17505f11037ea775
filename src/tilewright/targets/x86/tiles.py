"""Tile copies of AMX: up to 16 rows of up to 64 bytes, at any distance from each other.

A tile register is [row, element]. Several tiles of one tensor stand one after another in its values. Rows and bytes
of a row are part of the tile configuration, so a smaller tile brings less and leaves zeros.
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
    """(row, element) -> row + 16 * element of the matrix that is moved."""
    return Layout((ROWS, ROW_BYTES // size), (1, ROWS))


def _offsets(layout: Any, start: int, stride: int, rows: int, columns: int) -> Array:
    """Where in memory each [row, element] of the tile lies."""
    numbers = table(layout)[:rows, :columns]
    found: Array = start + numbers % ROWS * stride + numbers // ROWS
    return found


def _load(
    layout: Any, source: Array, target: Array, *, start: int, stride: int, rows: int, columns: int, value: int
) -> None:
    width = min(target.shape[1], ROW_BYTES // source.dtype.itemsize)
    target[:, value : value + width] = 0
    target[:rows, value : value + columns] = source[_offsets(layout, start, stride, rows, columns)]


def _store(
    layout: Any, source: Array, target: Array, *, start: int, stride: int, rows: int, columns: int, value: int
) -> None:
    target[_offsets(layout, start, stride, rows, columns)] = source[:rows, value : value + columns]


def _rule(_: CopyAtom, request: CopyRequest) -> Iterable[Arguments]:
    numbers = request.registers()
    high, values = numbers.shape
    width = min(values, ROW_BYTES // request.size)
    if high > ROWS:
        raise Refused(f"the tile has {high} rows; a tile register holds {ROWS}")
    if values % width:
        raise Refused(f"rows of {values} elements are not whole tiles of {ROW_BYTES} bytes a row")
    offsets, inside = request.memory()[1:]
    for value in range(0, values, width):
        held = numbers[:, value : value + width]
        on, at = inside[held], offsets[held]
        rows, columns = int(on.any(axis=1).sum()), int(on.any(axis=0).sum())
        if on.sum() != rows * columns or not on[:rows, :columns].all():
            raise Refused("what is inside memory is not a block of first rows and first elements: a tile has no mask")
        if rows == 0:
            if request.target.in_registers:
                raise Refused("a whole tile is outside memory: it is to be zeroed, not loaded")
            continue
        at = at[:rows, :columns]
        start = int(at[0, 0])
        stride = int(at[1, 0]) - start if rows > 1 else width
        if columns > 1 and at[0, 1] != start + 1:
            raise Refused(f"elements of a row are {at[0, 1] - start} apart in memory: their stride must be 1")
        if (at != start + np.arange(rows)[:, None] * stride + np.arange(columns)).any():
            raise Refused("the rows of a tile are not at one stride in memory")
        yield {"start": start, "stride": stride, "rows": rows, "columns": columns, "value": value}


def _tile(name: str, loads: bool, hint: Hint = "keep") -> CopyAtom:
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
    # what is loaded so is not kept near: for the operand that is not used again
    _tile("amx.tileloadt1", loads=True, hint="stream"),
    _tile("amx.tilestore", loads=False),
]
