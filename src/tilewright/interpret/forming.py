"""Interpret elementwise operations and changes of element type or dimensions."""

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
    """Execute an elementwise operation and return its result, a tile over the coordinates that all operands cover.

    Raise ProgramError for arithmetic (add, sub, mul) on bool tiles.
    """
    tiles = run.tiles(op)
    result: TileType = op.results[0].type
    parts = common_parts(tiles)
    dtype = tiles[0].dtype
    function: Callable[..., Any] = tables.UNARY.get(op.name) or tables.BINARY[op.name]
    if dtype is dtypes.bool_ and op.name in ("add", "mul", "sub"):
        raise ProgramError(f"{op.name} of bool tiles: use &, | or select", op.loc)
    numbers = numbers_of(tiles)
    if numbers is not None:  # the result on filled tiles is a filled tile, which has no extent of its own
        number = function(*[computable(x, t.dtype) for x, t in zip(numbers, tiles, strict=True)])
        return (run.filled(result, parts, round_to(np.asarray(number), result.dtype)),)
    arrays = [spread(t, result.dims, parts, computable(t.array, t.dtype)) for t in tiles]
    return (run.new_tile(result, parts, round_to(np.asarray(function(*arrays)), result.dtype)),)


def cast(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `cast`: return the tile with its elements converted to another element type.

    Floats are rounded to nearest even. Floats become integers by truncation, clamped to the range of the integer type,
    and NaN becomes 0. Integers wrap.
    """
    (tile,) = run.tiles(op)
    dtype = op.attrs["dtype"]
    array = tile.array
    if tile.dtype.is_float and dtype.kind == "int":
        array = _towards_zero(computable(array, tile.dtype), dtype)
    array = round_to(array, dtype)
    if tile.number is not None and array.size:
        return (filled(TileType(dtype, tile.dims), tile.starts, array.shape, np.asarray(array[(0,) * array.ndim])),)
    return (TileValue(dtype, tile.dims, tile.starts, array),)


def bitcast(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `bitcast`: return the tile with its bits reinterpreted as another element type.

    If the widths differ, the extent of the last dimension is multiplied by old width / new width.
    """
    (tile,) = run.tiles(op)
    dtype = op.attrs["dtype"]
    array = _same_bits(np.asarray(tile.array, order="C"), tile.dtype, dtype)
    starts = tile.starts
    if starts and dtype.bits != tile.dtype.bits:
        starts = (*starts[:-1], starts[-1] * tile.dtype.bits // dtype.bits)
    return (TileValue(dtype, op.results[0].type.dims, starts, array),)


def _same_bits(array: Array, dtype: dtypes.DType, to: dtypes.DType) -> Array:
    """Return `array`, of type `dtype`, with its bits reinterpreted as elements of type `to`.

    Two 4-bit elements are packed in a byte, the first element in the lower half.
    """
    if 4 not in (dtype.bits, to.bits) or dtype.bits == to.bits:
        return array.view(to.numpy)
    codes = array.view(np.uint8)
    if dtype.bits == 4:
        return _same_bits((codes[..., ::2] & 15) | (codes[..., 1::2] << 4), dtypes.u8, to)
    halves = np.stack([codes & 15, codes >> 4], axis=-1)
    return halves.reshape(*codes.shape[:-1], -1).view(to.numpy)


def repeat(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `repeat`: return the tile with each element repeated `times` times along a dimension: [1, 2] -> [1, 1,
    2, 2].
    """
    (tile,) = run.tiles(op)
    axis, times = tile.dims.index(op.attrs["dim"]), op.attrs["times"]
    starts = tuple(s * times if n == axis else s for n, s in enumerate(tile.starts))
    return (TileValue(tile.dtype, op.results[0].type.dims, starts, np.repeat(tile.array, times, axis=axis)),)


def broadcast(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `broadcast` or `permute`: return the tile repeated along more dimensions, or with its dimensions
    reordered.
    """
    (tile,) = run.tiles(op)
    kind: TileType = op.results[0].type
    parts = {d: tile.part(d) if d in tile.dims else run.part(d) for d in kind.dims}
    if tile.number is not None:
        return (run.filled(kind, parts, tile.number),)
    return (run.new_tile(kind, parts, spread(tile, kind.dims, parts, tile.array)),)


def reshape(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `reshape`: return the tile's elements over other dimensions, in the same order (last dimension
    fastest).

    Raise ExecutionError if the numbers of elements differ.
    """
    (tile,) = run.tiles(op)
    kind: TileType = op.results[0].type
    starts, shape = run.starts_and_shape(kind.dims)
    if prod(shape) != tile.array.size:
        raise ExecutionError(f"reshape of {tile.array.shape} to {shape}: the sizes differ", op.loc)
    return (TileValue(tile.dtype, kind.dims, starts, np.ascontiguousarray(tile.array).reshape(shape)),)


def select(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `select`: return a tile with elements of the second operand where the first operand holds, otherwise of
    the third.
    """
    tiles = run.tiles(op)
    kind: TileType = op.results[0].type
    parts = common_parts(tiles)
    numbers = numbers_of(tiles)
    if numbers is not None:
        return (run.filled(kind, parts, np.where(*numbers)),)
    condition, a, b = (spread(t, kind.dims, parts, t.array) for t in tiles)
    return (run.new_tile(kind, parts, np.where(condition, a, b)),)


def extract(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute an `extract`: return one element of a tile, at the indices `offset`, as a tile without dimensions.

    A single offset is the element's position in row-major order.
    """
    (tile,) = run.tiles(op)
    offsets = [run.number(e, op) for e in op.attrs["offset"]]
    flat = tile.array.reshape(-1)[offsets[0]] if len(offsets) == 1 else tile.array[tuple(offsets)]
    return (TileValue(tile.dtype, (), (), np.asarray(flat)),)


def _towards_zero(array: Array, to: dtypes.DType) -> Array:
    """Return the floats in `array` rounded towards zero and clamped to the range of the integer type `to`; NaN becomes
    0.
    """
    low, high = (-8, 7) if to.bits == 4 else (np.iinfo(to.numpy).min, np.iinfo(to.numpy).max)
    truncated = np.where(np.isnan(array), 0, np.trunc(array)).astype(np.float64)
    in_range = (truncated > low) & (
        truncated < high
    )  # a float may not represent the limit exactly, so it is inserted as an integer
    return np.where(in_range, np.where(in_range, truncated, 0).astype(np.int64), np.where(truncated <= low, low, high))
