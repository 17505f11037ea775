"""Tiles while a program runs: numpy arrays that know which part of each dimension they hold."""

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
    """An array over dimensions; `starts` is the first coordinate it holds along each.

    `wide` carries an accumulator that is not rounded yet: `array` is its rounded form.
    """

    dtype: DType
    dims: tuple[Expr, ...]
    starts: tuple[int, ...]
    data: Array
    wide: Array | None = None
    number: Array | None = None
    """What every element is, where the tile was filled: it then has elements wherever others have."""

    @property
    def array(self) -> Array:
        """The elements, rounded to the element type."""
        return self.data

    @property
    def accumulated(self) -> Array:
        """The elements as a running sum sees them: not rounded yet where they are an accumulator."""
        return self.data if self.wide is None else self.wide

    def part(self, dim: Expr) -> tuple[int, int]:
        """The coordinates it holds along one of its dimensions: first, and one past the last."""
        place = self.dims.index(dim)
        return self.starts[place], self.starts[place] + self.data.shape[place]


def accumulator(dtype: DType, dims: tuple[Expr, ...], starts: tuple[int, ...], wide: Array) -> TileValue:
    """An accumulator in its wide type, beside its value rounded to `dtype`."""
    return TileValue(dtype, dims, starts, round_to(wide, dtype), wide if dtype.numpy != wide.dtype else None)


def round_to(array: Array, dtype: DType) -> Array:
    """The array in another element type: floats rounded to nearest even, integers wrapped."""
    if array.dtype == dtype.numpy:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.is_narrow and array.dtype.kind not in "iub":  # not all small floats become each other by themselves
            array = array if array.dtype == np.float64 else array.astype(np.float32)
        return array.astype(dtype.numpy)


def computable(array: Array, dtype: DType) -> Array:
    """The array in the type arithmetic is done in: f32 for narrow floats, i32 for i4."""
    if dtype.is_narrow:
        return array.astype(np.float32)
    if dtype.bits == 4:
        return array.astype(np.int32)
    return array


def filled(kind: TileType, starts: tuple[int, ...], shape: tuple[int, ...], number: Array) -> TileValue:
    """A tile of one number, which has elements wherever others have."""
    return TileValue(kind.dtype, kind.dims, starts, np.broadcast_to(number, shape), number=number)


def numbers_of(tiles: list[TileValue]) -> list[Array] | None:
    """The one value of all elements of filled tiles and numbers; None where a tile is no such tile, or none is
    filled."""
    if all(t.number is None for t in tiles) or any(t.number is None and t.dims for t in tiles):
        return None
    return [t.array if t.number is None else t.number for t in tiles]


def common_parts(tiles: list[TileValue]) -> dict[Expr, tuple[int, int]]:
    """By dimension, the coordinates that all tiles hold: inside a loop, the current tile of the dimension."""
    parts: dict[Expr, tuple[int, int]] = {}
    for tile in tiles:
        if tile.number is None:
            for dim in tile.dims:
                first, last = tile.part(dim)
                known = parts.get(dim)
                first, last = (first, last) if known is None else (max(first, known[0]), min(last, known[1]))
                parts[dim] = first, max(first, last)
    for tile in tiles:
        if tile.number is not None:
            for dim in tile.dims:
                parts.setdefault(dim, tile.part(dim))
    return parts


def spread(tile: TileValue, dims: tuple[Expr, ...], parts: dict[Expr, tuple[int, int]], array: Array) -> Array:
    """An array of this tile, cut to `parts` and shaped to broadcast over `dims`."""
    if tile.number is not None:
        cut = {d: parts.get(d, tile.part(d)) for d in tile.dims}
        widths = [cut[d][1] - cut[d][0] if d in cut else 1 for d in dims]
        return np.broadcast_to(tile.number.astype(array.dtype), widths)
    slices = []
    for place, dim in enumerate(tile.dims):
        first, last = parts.get(dim, tile.part(dim))
        slices.append(slice(first - tile.starts[place], last - tile.starts[place]))
    array = array[tuple(slices)]
    kept = [d for d in dims if d in tile.dims]
    array = array.transpose([tile.dims.index(d) for d in kept])
    shape = iter(array.shape)
    return array.reshape([next(shape) if d in kept else 1 for d in dims])


def scalar_value(number: Any, dtype: DType) -> TileValue:
    """A tile without dimensions."""
    return TileValue(dtype, (), (), round_to(np.asarray(number), dtype))
