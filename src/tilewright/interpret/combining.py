"""Combining elements: multiplication, reductions, scans, the largest few."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr
from tilewright.errors import ExecutionError
from tilewright.interpret.run import Run
from tilewright.interpret.tiles import (
    Array,
    TileValue,
    accumulator,
    common_parts,
    round_to,
    spread,
)
from tilewright.ir import dtypes
from tilewright.ir.core import Op, TileType
from tilewright.ir.tile import SCANS, loose, require_elements

_COMBINE: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def mma(run: Run, op: Op) -> tuple[TileValue, ...]:
    """acc + the sum of products over what both factors have and the accumulator lacks, in the wide type.

    With `blocks`, its last dimension and the last of those are so many blocks each, and only elements of blocks with
    the same number are multiplied.
    """
    a, b, acc = run.tiles(op)
    parts = common_parts([a, b, acc])
    for d in (loose(op) or (set(),))[0]:
        if parts[d][1] - parts[d][0] != 1:
            raise ExecutionError(
                f"mma: {d} is in one factor only, but is {parts[d][1] - parts[d][0]} wide here", op.loc
            )
    if op.attrs.get("accumulate") is not None:
        return (_rounded_each_time(a, b, acc, parts),)
    carried = acc.dtype.accumulator.numpy
    if a.dtype is dtypes.f64 or b.dtype is dtypes.f64:
        carried = np.dtype(np.float64)
    exact = carried.kind == "i" and max(a.dtype.bits, b.dtype.bits) <= 16
    compute = np.dtype(np.float64) if exact else np.dtype(np.int64) if carried.kind == "i" else carried
    arrays = [spread(t, t.dims, parts, t.array).astype(compute) for t in (a, b)]
    if op.attrs.get("precision") == "tf32":
        arrays = [_tf32(x) for x in arrays]
    with np.errstate(all="ignore"):
        total = _products(run, op, arrays, (a, b, acc), parts)
        if carried.kind == "i":
            total = total.astype(np.int64)
        total = total + spread(acc, acc.dims, parts, acc.accumulated).astype(total.dtype)
    starts = tuple(parts[d][0] for d in acc.dims)
    return (accumulator(acc.dtype, acc.dims, starts, total.astype(carried)),)


def _products(
    run: Run,
    op: Op,
    arrays: list[Array],
    tiles: tuple[TileValue, ...],
    parts: dict[Expr, tuple[int, int]],
) -> Array:
    """The sums of products, of factors over these parts; block by block, where there are several."""
    blocks = op.attrs.get("blocks", 1)
    a, b, acc = tiles
    if blocks == 1:
        return _contracted(arrays, (a.dims, b.dims), acc.dims)
    dims = acc.dims[-1], [d for d in a.dims if d in b.dims and d not in acc.dims][-1]
    for d in dims:
        if run.number(d, op) % blocks:
            raise ExecutionError(f"mma: blocks={blocks} do not divide {d}, which is {run.number(d, op)}", op.loc)
    total = np.zeros([parts[d][1] - parts[d][0] for d in acc.dims], arrays[0].dtype)
    for number in range(blocks):
        own = {}
        for d in dims:
            each, (first, end) = run.number(d, op) // blocks, parts[d]
            own[d] = slice(max(0, number * each - first), max(0, min(end, (number + 1) * each) - first))
        some = [x[tuple(own.get(d, slice(None)) for d in t.dims)] for x, t in zip(arrays, (a, b), strict=True)]
        total[..., own[dims[0]]] = _contracted(some, (a.dims, b.dims), acc.dims)
    return total


def _contracted(arrays: list[Array], dims: tuple[tuple[Expr, ...], ...], out: tuple[Expr, ...]) -> Array:
    """The sums of products over what both arrays have and `out` lacks, over the dimensions `out`, as one product of
    matrices for each place of the dimensions that all three have."""
    a, b = dims
    batch = [d for d in out if d in a and d in b]
    rows, columns = [d for d in out if d in a and d not in b], [d for d in out if d in b and d not in a]
    summed = [d for d in a if d in b and d not in out]
    sizes = {d: n for array, of in zip(arrays, dims, strict=True) for d, n in zip(of, array.shape, strict=True)}
    widths = [prod(sizes[d] for d in some) for some in (rows, summed, columns)]

    def matrices(array: Array, of: tuple[Expr, ...], first: list[Expr], second: list[Expr]) -> Array:
        alone = tuple(n for n, d in enumerate(of) if d not in (*batch, *first, *second))  # they are one wide
        kept = [d for n, d in enumerate(of) if n not in alone]
        order = [kept.index(d) for d in (*batch, *first, *second)]
        shape = [prod(sizes[d] for d in some) for some in (first, second)]
        return array.squeeze(alone).transpose(order).reshape([sizes[d] for d in batch] + shape)

    left, right = matrices(arrays[0], a, rows, summed), matrices(arrays[1], b, summed, columns)
    product = np.matmul(left, right) if widths[1] else np.zeros((*left.shape[:-1], widths[2]), left.dtype)
    order = [*batch, *rows, *columns]
    return product.reshape([sizes[d] for d in order]).transpose([order.index(d) for d in out])


def _rounded_each_time(a: TileValue, b: TileValue, acc: TileValue, parts: dict[Expr, tuple[int, int]]) -> TileValue:
    """The sum of products in the accumulator's own type: each product is added exactly, and the sum rounded.

    Products come in ascending order, so that the sum is the same for every tile size of a loop.
    """
    beside = tuple(d for d in dict.fromkeys((*a.dims, *b.dims)) if d not in acc.dims)
    factors = [spread(t, (*acc.dims, *beside), parts, t.array.astype(np.float64)) for t in (a, b)]
    sizes = tuple(parts[d][1] - parts[d][0] for d in acc.dims)
    total = np.broadcast_to(round_to(spread(acc, acc.dims, parts, acc.accumulated), acc.dtype), sizes)
    kept = len(acc.dims)
    for place in np.ndindex(*(parts[d][1] - parts[d][0] for d in beside)):
        left, right = (x[(..., *np.minimum(place, np.subtract(x.shape[kept:], 1)))] for x in factors)
        with np.errstate(all="ignore"):
            total = round_to(total.astype(np.float64) + left * right, acc.dtype)
    return TileValue(acc.dtype, acc.dims, tuple(parts[d][0] for d in acc.dims), total)


def reduce(run: Run, op: Op) -> tuple[TileValue, ...]:
    """The sum, maximum, minimum or product along a dimension, with an accumulator if there is one."""
    tiles = run.tiles(op)
    carried = tiles.pop() if op.attrs.get("acc") else None
    kind: TileType = op.results[0].type
    dim = op.attrs["dim"]
    parts = common_parts(tiles)
    wide = kind.dtype.accumulator.numpy if kind.dtype is not dtypes.bool_ else np.dtype(np.bool_)
    combine = _COMBINE[op.name]
    total: Any = None
    dims = (*kind.dims, dim)
    for tile in tiles:
        array = spread(tile, dims, parts, tile.array).astype(wide)
        if array.shape[-1] == 0 and op.name in ("max", "min"):
            continue
        with np.errstate(all="ignore"):
            found = combine.reduce(array, axis=-1, dtype=wide)
            total = found if total is None else combine(total, found)
    if carried is not None:
        inner = {d: parts.get(d, carried.part(d)) for d in kind.dims}
        start = spread(carried, kind.dims, inner, carried.accumulated).astype(wide)
        total = start if total is None else combine(total, start)
    if total is None:
        raise ExecutionError(f"{op.name} over {dim}: there is nothing to combine", op.loc)
    return (accumulator(kind.dtype, kind.dims, tuple(parts[d][0] for d in kind.dims), np.asarray(total)),)


def scan(run: Run, op: Op) -> tuple[TileValue, ...]:
    """The running sum, product, maximum or minimum along a dimension, from a start if there is one."""
    tile, *start = run.tiles(op)
    axis = tile.dims.index(op.attrs["dim"])
    wide = tile.dtype.accumulator.numpy
    combine = _COMBINE[SCANS[op.name]]
    with np.errstate(all="ignore"):
        total = combine.accumulate(tile.array.astype(wide), axis=axis, dtype=wide)
    if start:
        parts = {d: tile.part(d) for d in tile.dims}
        carried = start[0]
        if op.attrs["dim"] in carried.dims:  # a start given as a tile along the dimension: its last element counts
            place = carried.dims.index(op.attrs["dim"])
            last = np.take(carried.accumulated, [-1], axis=place)
            before = last.transpose([carried.dims.index(d) for d in tile.dims])
        else:
            before = spread(carried, tile.dims, parts, carried.accumulated)
        with np.errstate(all="ignore"):
            total = combine(total, before.astype(wide))
    return (TileValue(tile.dtype, tile.dims, tile.starts, round_to(total, tile.dtype)),)


def topk(run: Run, op: Op) -> tuple[TileValue, ...]:
    """The largest elements along a dimension, and where they are; the lower place wins a tie, NaN is the largest."""
    (tile,) = run.tiles(op)
    values, places = op.results
    axis = tile.dims.index(op.attrs["dim"])
    count = run.number(op.attrs["count"], op)
    require_elements(op, count, tile.array.shape[axis])
    if tile.dtype.is_float:
        wide = tile.array.astype(np.float64)
        numbers = ~np.isnan(wide)
        order = np.lexsort((np.where(numbers, -wide, 0), numbers), axis=axis)  # by the second first
    else:
        order = np.argsort(~tile.array, axis=axis, kind="stable")
    order = np.take(order, np.arange(count), axis=axis)
    found = np.take_along_axis(tile.array, order, axis)
    starts = tuple(0 if i == axis else s for i, s in enumerate(tile.starts))
    where = (order + tile.starts[axis]).astype(np.int32)
    return (
        TileValue(tile.dtype, values.type.dims, starts, found),
        TileValue(dtypes.i32, places.type.dims, starts, where),
    )


def _tf32(array: Array) -> Array:
    """f32 numbers rounded to ten bits of fraction."""
    bits = array.astype(np.float32).view(np.uint32)
    rounded = bits + 0xFFF + ((bits >> 13) & 1)
    return np.where(np.isfinite(array), (rounded & 0xFFFFE000).view(np.float32), array)
