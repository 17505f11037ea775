"""Changing tiles element by element: arithmetic, element types, dimensions, choices."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import ExecutionError, ProgramError
from tilewright.interpret import elementwise as tables
from tilewright.interpret.run import Run
from tilewright.interpret.tiles import (
    Array,
    TileValue,
    common_parts,
    computable,
    filled,
    numbers_of,
    round_to,
    spread,
)
from tilewright.ir import dtypes
from tilewright.ir.core import Op, TileType


def elementwise(run: Run, op: Op) -> tuple[TileValue, ...]:
    """An operation of the tables, on the coordinates that all operands hold."""
    tiles = run.tiles(op)
    result: TileType = op.results[0].type
    parts = common_parts(tiles)
    dtype = tiles[0].dtype
    function: Callable[..., Any] = tables.UNARY.get(op.name) or tables.BINARY[op.name]
    if dtype is dtypes.bool_ and op.name in ("add", "mul", "sub"):
        raise ProgramError(f"{op.name} of bool tiles: use &, | or select", op.loc)
    numbers = numbers_of(tiles)
    if numbers is not None:  # a function of what is filled is filled: it has no end of its own
        number = function(*[computable(x, t.dtype) for x, t in zip(numbers, tiles, strict=True)])
        return (run.filled(result, parts, round_to(np.asarray(number), result.dtype)),)
    arrays = [spread(t, result.dims, parts, computable(t.array, t.dtype)) for t in tiles]
    return (run.made(result, parts, round_to(np.asarray(function(*arrays)), result.dtype)),)


def cast(run: Run, op: Op) -> tuple[TileValue, ...]:
    """The same numbers in another element type."""
    (tile,) = run.tiles(op)
    to = op.attrs["dtype"]
    array = tile.array
    if tile.dtype.is_float and to.kind == "int":
        array = _towards_zero(computable(array, tile.dtype), to)
    array = round_to(array, to)
    if tile.number is not None and array.size:
        return (filled(TileType(to, tile.dims), tile.starts, array.shape, np.asarray(array[(0,) * array.ndim])),)
    return (TileValue(to, tile.dims, tile.starts, array),)


def bitcast(run: Run, op: Op) -> tuple[TileValue, ...]:
    """The same bits in another element type."""
    (tile,) = run.tiles(op)
    to = op.attrs["dtype"]
    array = _same_bits(np.asarray(tile.array, order="C"), tile.dtype, to)
    starts = tile.starts
    if starts and to.bits != tile.dtype.bits:
        starts = (*starts[:-1], starts[-1] * tile.dtype.bits // to.bits)
    return (TileValue(to, op.results[0].type.dims, starts, array),)


def _same_bits(array: Array, dtype: dtypes.DType, to: dtypes.DType) -> Array:
    """The bits of a line's elements as another type; of two that share a byte, the lower four bits come first."""
    if 4 not in (dtype.bits, to.bits) or dtype.bits == to.bits:
        return array.view(to.numpy)
    codes = array.view(np.uint8)
    if dtype.bits == 4:
        return _same_bits((codes[..., ::2] & 15) | (codes[..., 1::2] << 4), dtypes.u8, to)
    halves = np.stack([codes & 15, codes >> 4], axis=-1)
    return halves.reshape(*codes.shape[:-1], -1).view(to.numpy)


def repeat(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Each element of a dimension several times in a row, along a dimension that is so much longer."""
    (tile,) = run.tiles(op)
    axis, times = tile.dims.index(op.attrs["dim"]), op.attrs["times"]
    starts = tuple(s * times if n == axis else s for n, s in enumerate(tile.starts))
    return (TileValue(tile.dtype, op.results[0].type.dims, starts, np.repeat(tile.array, times, axis=axis)),)


def broadcast(run: Run, op: Op) -> tuple[TileValue, ...]:
    """The tile over more dimensions, or the same in another order."""
    (tile,) = run.tiles(op)
    kind: TileType = op.results[0].type
    parts = {d: tile.part(d) if d in tile.dims else run.part(d) for d in kind.dims}
    if tile.number is not None:
        return (run.filled(kind, parts, tile.number),)
    return (run.made(kind, parts, spread(tile, kind.dims, parts, tile.array)),)


def reshape(run: Run, op: Op) -> tuple[TileValue, ...]:
    """The same elements, last dimension fastest, over other dimensions."""
    (tile,) = run.tiles(op)
    kind: TileType = op.results[0].type
    starts, shape = run.starts_and_shape(kind.dims)
    if prod(shape) != tile.array.size:
        raise ExecutionError(f"reshape of {tile.array.shape} to {shape}: the sizes differ", op.loc)
    return (TileValue(tile.dtype, kind.dims, starts, np.ascontiguousarray(tile.array).reshape(shape)),)


def select(run: Run, op: Op) -> tuple[TileValue, ...]:
    """One tile where a condition holds, another elsewhere."""
    tiles = run.tiles(op)
    kind: TileType = op.results[0].type
    parts = common_parts(tiles)
    numbers = numbers_of(tiles)
    if numbers is not None:
        return (run.filled(kind, parts, np.where(*numbers)),)
    condition, a, b = (spread(t, kind.dims, parts, t.array) for t in tiles)
    return (run.made(kind, parts, np.where(condition, a, b)),)


def extract(run: Run, op: Op) -> tuple[TileValue, ...]:
    """One element."""
    (tile,) = run.tiles(op)
    offsets = [run.number(e, op) for e in op.attrs["offset"]]
    flat = tile.array.reshape(-1)[offsets[0]] if len(offsets) == 1 else tile.array[tuple(offsets)]
    return (TileValue(tile.dtype, (), (), np.asarray(flat)),)


def _towards_zero(array: Array, to: dtypes.DType) -> Array:
    """Floats without their fraction, kept within the range of an integer type; what is no number becomes 0."""
    low, high = (-8, 7) if to.bits == 4 else (np.iinfo(to.numpy).min, np.iinfo(to.numpy).max)
    whole = np.where(np.isnan(array), 0, np.trunc(array)).astype(np.float64)
    inside = (whole > low) & (whole < high)  # beyond, the limit itself: floats may not hold it
    return np.where(inside, np.where(inside, whole, 0).astype(np.int64), np.where(whole <= low, low, high))
