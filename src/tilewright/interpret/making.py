"""Interpret operations that create tiles from constants, coordinates and expressions, and `set_symbol`."""

from __future__ import annotations

import numpy as np

from tilewright.algebra.expr import Expr
from tilewright.interpret.run import Run
from tilewright.interpret.tiles import (
    TileValue,
    common_parts,
    filled,
    round_to,
    scalar_value,
    spread,
)
from tilewright.ir.core import Op, TileType
from tilewright.ir.tile import union_dims


def fill(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `fill` and return its result: a tile in which every element is one number, rounded to the
    tile's type.
    """
    kind: TileType = op.results[0].type
    value = op.attrs["value"]
    starts, shape = run.starts_and_shape(kind.dims)
    number = run.number(value, op) if isinstance(value, Expr) else value
    return (filled(kind, starts, shape, round_to(np.asarray(number), kind.dtype)),)


def scalar(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `scalar` and return its result: a number, or the value of an expression, as a tile without dimensions.

    If set_symbol bound a symbol of the expression to a tile with dimensions, the result has the dimensions of that
    tile.
    """
    value = op.attrs["value"]
    if isinstance(value, Expr):
        tiles = [t for s, t in run.bound.items() if s in value.symbols]
        if any(t.dims for t in tiles):  # a symbol that differs from element to element makes a tile
            dims: tuple[Expr, ...] = ()
            for tile in tiles:
                dims = union_dims(dims, tile.dims)
            parts = common_parts(tiles)
            array = run.on_grid(value, dims, parts, {}, op)
            return (run.new_tile(TileType(op.attrs["dtype"], dims), parts, round_to(array, op.attrs["dtype"])),)
        value = run.number(value, op)
    return (scalar_value(value, op.attrs["dtype"]),)


def self_index(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `self_index` and return its result: a tile of the current coordinates along a dimension, such as 16,
    17, ..., 31 in the second iteration of a loop over tiles of 16.
    """
    kind: TileType = op.results[0].type
    first, last = run.part(op.attrs["dim"])
    return (TileValue(kind.dtype, kind.dims, (first,), np.arange(first, last).astype(kind.dtype.numpy)),)


def apply(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute an `apply` and return its result: a tile of the values of an integer expression.

    The symbols in the attribute `over` have the values of the operands' elements.
    """
    kind: TileType = op.results[0].type
    tiles = run.tiles(op)
    parts = common_parts(tiles)
    symbol_values = {
        s: spread(t, kind.dims, parts, t.array).astype(np.int64) for s, t in zip(op.attrs["over"], tiles, strict=True)
    }
    array = run.on_grid(op.attrs["value"], kind.dims, parts, symbol_values, op)
    return (run.new_tile(kind, parts, round_to(array, kind.dtype)),)


def set_symbol(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `set_symbol`: bind a symbol to a tile in `run.bound`, and return (). The value of the symbol is then
    the element of the tile at the current coordinates.
    """
    (tile,) = run.tiles(op)
    run.bound[op.attrs["symbol"]] = tile
    return ()
