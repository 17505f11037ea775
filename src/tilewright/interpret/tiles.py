"""Tile values at run time: numpy arrays that know which coordinates of each dimension they cover."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr
from tilewright.ir.core import TileType
from tilewright.ir.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(eq=False, slots=True)
class TileValue:
    """An array over dimensions `dims`; `starts` is the first coordinate that it covers along each.

    For an accumulator, `wide` is the value before rounding and `data` its rounded form.
    """

    dtype: DType
    dims: tuple[Expr, ...]
    starts: tuple[int, ...]
    data: Array
    wide: Array | None = None
    number: Array | None = None
    """The value of every element of a filled tile, which has elements at all coordinates where other operands do."""

    @property
    def array(self) -> Array:
        """The tile's elements as a numpy array, rounded to the element type."""
        return self.data

    @property
    def accumulated(self) -> Array:
        """The tile's elements for a further accumulation: unrounded if the tile is an accumulator."""
        return self.data if self.wide is None else self.wide

    def part(self, dim: Expr) -> tuple[int, int]:
        """Return (first, end): the coordinates that the tile covers along `dim`; `end` is one past the last."""
        axis = self.dims.index(dim)
        return self.starts[axis], self.starts[axis] + self.data.shape[axis]


def accumulator(dtype: DType, dims: tuple[Expr, ...], starts: tuple[int, ...], wide: Array) -> TileValue:
    """Return an accumulator tile that keeps `wide`, its elements before rounding; its elements are `wide` rounded to
    `dtype`.

    `dims` are the tile's dimensions, `starts` the first coordinate that it covers along each.
    """
    return TileValue(dtype, dims, starts, round_to(wide, dtype), wide if dtype.numpy != wide.dtype else None)


def round_to(array: Array, dtype: DType) -> Array:
    """Return `array` converted to the element type `dtype`: floats are rounded to nearest even, integers wrap.

    If `array` has this type, return `array`, not a copy.
    """
    if array.dtype == dtype.numpy:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.is_narrow and array.dtype.kind not in "iub":  # numpy does not convert between all small floats
            array = array if array.dtype == np.float64 else array.astype(np.float32)
        return array.astype(dtype.numpy)


def computable(array: Array, dtype: DType) -> Array:
    """Return `array`, of type `dtype`, in the type of arithmetic: f32 for narrow floats, i32 for 4-bit types. Arrays of
    other types are returned unchanged.
    """
    if dtype.is_narrow:
        return array.astype(np.float32)
    if dtype.bits == 4:
        return array.astype(np.int32)
    return array


def filled(kind: TileType, starts: tuple[int, ...], shape: tuple[int, ...], number: Array) -> TileValue:
    """Return a tile of type `kind` in which every element is `number`; it covers `shape` coordinates from `starts`.

    Operations with other tiles extend or restrict it to the coordinates of those tiles.
    """
    return TileValue(kind.dtype, kind.dims, starts, np.broadcast_to(number, shape), number=number)


def numbers_of(tiles: list[TileValue]) -> list[Array] | None:
    """Return a list with the one value of each tile, if every tile is filled (all elements are one number) or without
    dimensions.

    Return None if `tiles` has another tile, or no filled tile.
    """
    if all(t.number is None for t in tiles) or any(t.number is None and t.dims for t in tiles):
        return None
    return [t.array if t.number is None else t.number for t in tiles]


def common_parts(tiles: list[TileValue]) -> dict[Expr, tuple[int, int]]:
    """Return {dimension: (first, end)}, the coordinates that all tiles with the dimension cover; `end` is one past the
    last.

    Filled tiles (all elements are one number) count only for dimensions that no other tile has.
    """
    parts: dict[Expr, tuple[int, int]] = {}
    for tile in tiles:
        if tile.number is None:
            for dim in tile.dims:
                first, last = tile.part(dim)
                common = parts.get(dim)
                first, last = (first, last) if common is None else (max(first, common[0]), min(last, common[1]))
                parts[dim] = first, max(first, last)
    for tile in tiles:
        if tile.number is not None:
            for dim in tile.dims:
                parts.setdefault(dim, tile.part(dim))
    return parts


def spread(tile: TileValue, dims: tuple[Expr, ...], parts: dict[Expr, tuple[int, int]], array: Array) -> Array:
    """Return `array`, the elements of `tile`, at the coordinates `parts` only, and in a shape that broadcasts over
    `dims`.

    `parts` is {dimension: (first, end)}; dimensions without an entry are not restricted. `dims` must include the tile's
    dimensions, in any order; other dimensions get extent 1. For a filled tile (all elements are one number), only the
    element type of `array` is used.
    """
    if tile.number is not None:
        restricted = {d: parts.get(d, tile.part(d)) for d in tile.dims}
        widths = [restricted[d][1] - restricted[d][0] if d in restricted else 1 for d in dims]
        return np.broadcast_to(tile.number.astype(array.dtype), widths)
    slices = []
    for axis, dim in enumerate(tile.dims):
        first, last = parts.get(dim, tile.part(dim))
        slices.append(slice(first - tile.starts[axis], last - tile.starts[axis]))
    array = array[tuple(slices)]
    present = [d for d in dims if d in tile.dims]
    array = array.transpose([tile.dims.index(d) for d in present])
    shape = iter(array.shape)
    return array.reshape([next(shape) if d in present else 1 for d in dims])


def scalar_value(number: Any, dtype: DType) -> TileValue:
    """Return a tile without dimensions that holds `number`, rounded to the type `dtype`."""
    return TileValue(dtype, (), (), round_to(np.asarray(number), dtype))
