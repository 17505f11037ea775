"""Interpret operations that combine elements: mma, reductions, scans, topk."""

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
from tilewright.ir.tile import SCANS, mismatched_dims, require_elements

_COMBINE: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def mma(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute an `mma` and return its result, a tile: the accumulator plus the sum of products A*B. The tile also keeps
    the sums before rounding, in the wide type of the accumulator.

    Products are summed over the dimensions that A and B have and the accumulator lacks. With the attribute `blocks`,
    the product is block-diagonal (see `_products`). With the attribute `accumulate`, the sum is rounded after each
    product, and no wide sums are kept. Raise ExecutionError if a dimension that only one of the three tiles has covers
    more than one coordinate now.
    """
    a, b, acc = run.tiles(op)
    parts = common_parts([a, b, acc])
    for d in (mismatched_dims(op) or (set(),))[0]:
        if parts[d][1] - parts[d][0] != 1:
            raise ExecutionError(
                f"mma: {d} is in one factor only, but is {parts[d][1] - parts[d][0]} wide here", op.loc
            )
    if op.attrs.get("accumulate") is not None:
        return (_sum_with_rounding(a, b, acc, parts),)
    wide_type = acc.dtype.accumulator.numpy
    if a.dtype is dtypes.f64 or b.dtype is dtypes.f64:
        wide_type = np.dtype(np.float64)
    exact = wide_type.kind == "i" and max(a.dtype.bits, b.dtype.bits) <= 16
    compute = np.dtype(np.float64) if exact else np.dtype(np.int64) if wide_type.kind == "i" else wide_type
    arrays = [spread(t, t.dims, parts, t.array).astype(compute) for t in (a, b)]
    if op.attrs.get("precision") == "tf32":
        arrays = [_tf32(x) for x in arrays]
    with np.errstate(all="ignore"):
        total = _products(run, op, arrays, (a, b, acc), parts)
        if wide_type.kind == "i":
            total = total.astype(np.int64)
        total = total + spread(acc, acc.dims, parts, acc.accumulated).astype(total.dtype)
    starts = tuple(parts[d][0] for d in acc.dims)
    return (accumulator(acc.dtype, acc.dims, starts, total.astype(wide_type)),)


def _products(
    run: Run,
    op: Op,
    arrays: list[Array],
    tiles: tuple[TileValue, ...],
    parts: dict[Expr, tuple[int, int]],
) -> Array:
    """Return the sums of products of A and B as an array over the accumulator's dimensions. The accumulator is not
    added.

    `arrays` are the elements of A and B, at coordinates `parts`, {dimension: (first, end)}; `tiles` are A, B and the
    accumulator. If the mma `op` has the attribute `blocks`, B is block-diagonal: N (the accumulator's last dimension)
    and K (the last reduced dimension of A) are split into `blocks` equal blocks, and block i of N sums over block i of
    K only. Raise ExecutionError if `blocks` does not divide the extents of N and K.
    """
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
        block_slices = {}
        for d in dims:
            block_size, (first, end) = run.number(d, op) // blocks, parts[d]
            block_slices[d] = slice(
                max(0, number * block_size - first), max(0, min(end, (number + 1) * block_size) - first)
            )
        block_operands = [
            x[tuple(block_slices.get(d, slice(None)) for d in t.dims)] for x, t in zip(arrays, (a, b), strict=True)
        ]
        total[..., block_slices[dims[0]]] = _contracted(block_operands, (a.dims, b.dims), acc.dims)
    return total


def _contracted(arrays: list[Array], dims: tuple[tuple[Expr, ...], ...], out: tuple[Expr, ...]) -> Array:
    """Return the contraction of two arrays, as np.einsum would: dimensions that both arrays have and `out` lacks are
    summed.

    `dims` are the dimensions of each array, `out` those of the result, in order. A dimension that only one array has,
    and `out` lacks, must have extent 1; it is dropped.
    """
    a, b = dims
    batch = [d for d in out if d in a and d in b]
    rows, columns = [d for d in out if d in a and d not in b], [d for d in out if d in b and d not in a]
    summed = [d for d in a if d in b and d not in out]
    sizes = {d: n for array, of in zip(arrays, dims, strict=True) for d, n in zip(of, array.shape, strict=True)}
    widths = [prod(sizes[d] for d in group) for group in (rows, summed, columns)]

    def matrices(array: Array, of: tuple[Expr, ...], first: list[Expr], second: list[Expr]) -> Array:
        """Return `array`, which has the dimensions `of`, as an array of matrices with shape (*batch, size of `first`,
        size of `second`), where `first` and `second` are groups of dimensions.
        """
        unit_axes = tuple(n for n, d in enumerate(of) if d not in (*batch, *first, *second))  # they are one wide
        remaining = [d for n, d in enumerate(of) if n not in unit_axes]
        order = [remaining.index(d) for d in (*batch, *first, *second)]
        shape = [prod(sizes[d] for d in group) for group in (first, second)]
        return array.squeeze(unit_axes).transpose(order).reshape([sizes[d] for d in batch] + shape)

    left, right = matrices(arrays[0], a, rows, summed), matrices(arrays[1], b, summed, columns)
    product = np.matmul(left, right) if widths[1] else np.zeros((*left.shape[:-1], widths[2]), left.dtype)
    order = [*batch, *rows, *columns]
    return product.reshape([sizes[d] for d in order]).transpose([order.index(d) for d in out])


def _sum_with_rounding(a: TileValue, b: TileValue, acc: TileValue, parts: dict[Expr, tuple[int, int]]) -> TileValue:
    """Return the result of an `mma` in the accumulator's element type: the sum is rounded after each product is added.

    Products are added in ascending order of the reduced coordinates, so the result does not depend on a loop's tile
    size. `parts` is {dimension: (first, end)}, the coordinates to compute.
    """
    reduced_dims = tuple(d for d in dict.fromkeys((*a.dims, *b.dims)) if d not in acc.dims)
    operands = [spread(t, (*acc.dims, *reduced_dims), parts, t.array.astype(np.float64)) for t in (a, b)]
    sizes = tuple(parts[d][1] - parts[d][0] for d in acc.dims)
    total = np.broadcast_to(round_to(spread(acc, acc.dims, parts, acc.accumulated), acc.dtype), sizes)
    rank = len(acc.dims)
    for indices in np.ndindex(*(parts[d][1] - parts[d][0] for d in reduced_dims)):
        left, right = (x[(..., *np.minimum(indices, np.subtract(x.shape[rank:], 1)))] for x in operands)
        with np.errstate(all="ignore"):
            total = round_to(total.astype(np.float64) + left * right, acc.dtype)
    return TileValue(acc.dtype, acc.dims, tuple(parts[d][0] for d in acc.dims), total)


def reduce(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `sum`, `prod`, `max` or `min` and return its result, a tile: all operands combined along a dimension,
    and with one another.

    With the attribute `acc`, the last operand is an accumulator, which is not reduced but combined with the result.
    Raise ExecutionError for a `max` or `min` of no elements.
    """
    tiles = run.tiles(op)
    accumulator_tile = tiles.pop() if op.attrs.get("acc") else None
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
            partial = combine.reduce(array, axis=-1, dtype=wide)
            total = partial if total is None else combine(total, partial)
    if accumulator_tile is not None:
        inner = {d: parts.get(d, accumulator_tile.part(d)) for d in kind.dims}
        start = spread(accumulator_tile, kind.dims, inner, accumulator_tile.accumulated).astype(wide)
        total = start if total is None else combine(total, start)
    if total is None:
        raise ExecutionError(f"{op.name} over {dim}: there is nothing to combine", op.loc)
    return (accumulator(kind.dtype, kind.dims, tuple(parts[d][0] for d in kind.dims), np.asarray(total)),)


def scan(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a scan along a dimension and return its result, a tile: the running sum, product, maximum or minimum.

    A second operand is a start value that is combined with every element. If the start value has the scanned dimension
    too, only its last element along that dimension is used.
    """
    tile, *start = run.tiles(op)
    axis = tile.dims.index(op.attrs["dim"])
    wide = tile.dtype.accumulator.numpy
    combine = _COMBINE[SCANS[op.name]]
    with np.errstate(all="ignore"):
        total = combine.accumulate(tile.array.astype(wide), axis=axis, dtype=wide)
    if start:
        parts = {d: tile.part(d) for d in tile.dims}
        start_tile = start[0]
        if op.attrs["dim"] in start_tile.dims:  # a start given as a tile along the dimension: its last element counts
            axis_of_start = start_tile.dims.index(op.attrs["dim"])
            last = np.take(start_tile.accumulated, [-1], axis=axis_of_start)
            start_values = last.transpose([start_tile.dims.index(d) for d in tile.dims])
        else:
            start_values = spread(start_tile, tile.dims, parts, start_tile.accumulated)
        with np.errstate(all="ignore"):
            total = combine(total, start_values.astype(wide))
    return (TileValue(tile.dtype, tile.dims, tile.starts, round_to(total, tile.dtype)),)


def topk(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `topk` and return two tiles: the largest elements along a dimension in descending order, and their
    indices.

    The attribute `count` is the number of elements to return; raise a DimensionMismatch if the tile has fewer along the
    dimension. Of equal elements, the one with the lower index comes first; NaN is the largest.
    """
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
    largest = np.take_along_axis(tile.array, order, axis)
    starts = tuple(0 if i == axis else s for i, s in enumerate(tile.starts))
    indices = (order + tile.starts[axis]).astype(np.int32)
    return (
        TileValue(tile.dtype, values.type.dims, starts, largest),
        TileValue(dtypes.i32, places.type.dims, starts, indices),
    )


def _tf32(array: Array) -> Array:
    """Return `array`, f32 numbers, rounded to the 10 fraction bits of TF32, to nearest even; infinities and NaN are
    unchanged.
    """
    bits = array.astype(np.float32).view(np.uint32)
    rounded = bits + 0xFFF + ((bits >> 13) & 1)
    return np.where(np.isfinite(array), (rounded & 0xFFFFE000).view(np.float32), array)
