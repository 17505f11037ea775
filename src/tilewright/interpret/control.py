"""Interpret loops over tiles, while loops and conditionals."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, symbol
from tilewright.errors import ExecutionError
from tilewright.interpret import loops
from tilewright.interpret.run import Run
from tilewright.interpret.tiles import (
    TileValue,
    common_parts,
    scalar_value,
    spread,
)
from tilewright.ir import dtypes
from tilewright.ir.core import Op, TileType
from tilewright.ir.tile import union_dims

_EFFECTS = ("write", "atomic_add", "atomic_min", "atomic_max", "set_symbol", "debug_log")


def iterate(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a loop over tiles of an axis: run the body for each tile in order. Return the final carried values.

    One tile covers the whole axis if the tile size does not affect the result. With the attribute `start` it is a while
    loop. Raise ExecutionError if the loop needs a tile size and has none. Raise it too if the author promised by
    `any_tile` that the results are equal for all tile sizes, but two tile sizes give different results; a loop with
    side effects is not tested.
    """
    if op.attrs.get("start"):
        return _while_loop(run, op)
    axis: Expr = op.attrs["axis"]
    carried = run.tiles(op)
    tiling = loops.tiling_of(run.program, axis)
    attrs = tiling.attrs if tiling is not None else {}
    first, size = run.part(axis)
    any_size = loops.accumulates_only(op) and not (loops.logs_iterations(op) and "tile" in attrs)
    if any_size and "iters" not in attrs and "start" not in attrs:
        tile = max(1, size - first)
    elif "tile" in attrs:
        tile = run.number(attrs["tile"], op)
    elif op.attrs.get("any_tile"):
        tile = max(1, size - first)
        if not any(inner.name in _EFFECTS for inner in op.blocks[0].ops):
            _check_any_tile(run, op, axis, first, size, carried)
    else:
        raise ExecutionError(f"iterate over {axis} has no tile size", op.loc)
    begin = run.number(attrs["start"], op) if "start" in attrs else first
    count = run.number(attrs["iters"], op) if "iters" in attrs else -(-(size - begin) // tile)
    return _run_tiles(
        run, op, axis, [(begin + i * tile, min(begin + (i + 1) * tile, size)) for i in range(count)], carried
    )


def _run_tiles(
    run: Run, op: Op, axis: Expr, tiles: list[tuple[int, int]], carried: list[TileValue]
) -> tuple[TileValue, ...]:
    """Execute the body of the loop `op` for each range (first, end) in `tiles` of `axis`, and return the final carried
    values.

    `carried` are the initial carried values. Empty ranges are skipped. Set `run.parts[axis]` and `run.iteration[axis]`
    for the body. Raise ExecutionError if a carried value has the dimension `axis`.
    """
    (body,) = op.blocks
    outer_part = run.parts.get(axis)
    for number, (first, last) in enumerate(tiles):
        if last <= first:
            continue
        run.parts[axis] = (first, last)
        run.iteration[axis] = number
        for arg, tile in zip(body.args, carried, strict=True):
            run.values[arg] = tile
        carried = [run.conform(tile, arg.type.dims, op) for tile, arg in zip(run.block(body), body.args, strict=True)]
    if outer_part is None:
        run.parts.pop(axis, None)
    else:
        run.parts[axis] = outer_part
    results = []
    for tile, value in zip(carried, op.results, strict=True):
        if axis in tile.dims:
            raise ExecutionError(f"iterate over {axis}: a carried value has that dimension itself", op.loc)
        parts = {d: tile.part(d) for d in tile.dims}
        kind: TileType = value.type
        results.append(run.new_tile(kind, parts, spread(tile, kind.dims, parts, tile.array)))
    return tuple(results)


def _check_any_tile(run: Run, op: Op, axis: Expr, first: int, size: int, carried: list[TileValue]) -> None:
    """Raise ExecutionError if the loop `op` gives different results, beyond rounding, for two tile sizes: the whole
    axis and half of it.

    The author promised by `any_tile` that the results are equal. The loop runs over coordinates `first` to `size` of
    `axis`; `carried` are the initial carried values.
    """
    half = max(1, (size - first + 1) // 2)
    results = [
        _run_tiles(run, op, axis, [(k, min(k + step, size)) for k in range(first, size, step)], carried)
        for step in (max(1, size - first), half)
    ]
    for a, b in zip(*results, strict=True):
        x, y = a.array.astype(np.float64), b.array.astype(np.float64)
        eps = float(np.finfo(a.dtype.numpy).eps) if a.dtype.is_float and a.dtype.bits >= 16 else 0.13
        bound = (size - first) * eps * np.maximum(np.abs(x), np.abs(y)) if a.dtype.is_float else 0
        if not np.all((np.abs(x - y) <= bound) | (x == y) | (np.isnan(x) & np.isnan(y))):
            raise ExecutionError(
                f"iterate over {axis} with any_tile=True: tiles of {size - first} and of {half} give different "
                "results; the tile size is part of the meaning",
                op.loc,
            )


def _while_loop(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a while loop: run the body as long as the condition holds. Return the final carried values.

    The first operand is the start value of the axis. Raise ExecutionError if the body does not set the axis by
    set_symbol.
    """
    start, *carried = run.tiles(op)
    axis: Any = op.attrs["axis"]
    (body,) = op.blocks
    outer_value = run.bound.get(axis)
    run.bound[axis] = start
    run.walking.add(axis)
    while _holds(run, op, carried):
        previous = run.bound[axis]
        for arg, tile in zip(body.args, carried, strict=True):
            run.values[arg] = tile
        carried = list(run.block(body))
        if run.bound[axis] is previous:
            raise ExecutionError(f"while loop over {axis}: the body never sets it by tkw.set_symbol", op.loc)
    run.walking.discard(axis)
    if outer_value is None:
        del run.bound[axis]
    else:
        run.bound[axis] = outer_value
    return tuple(carried)


def _holds(run: Run, op: Op, carried: list[TileValue]) -> bool:
    """Return True if the condition of the while loop `op` holds for the carried values `carried`.

    GET_ITER_ARG(n) in the condition stands for the carried value number n; these symbols are bound in `run.bound`.
    """
    for number, tile in enumerate(carried):
        run.bound[symbol(f"GET_ITER_ARG_{number}")] = tile
    return bool(run.number(op.attrs["condition"], op))


def conditional(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a conditional and return its results: the results of the body where the condition holds, and the `else`
    values (the operands after the condition) elsewhere.

    The body is executed once if the condition holds for any element, otherwise not at all; its writes are masked by the
    condition.
    """
    (body,) = op.blocks
    if "when" in op.attrs:
        otherwise = run.tiles(op)
        tiles = [t for s, t in run.bound.items() if s in op.attrs["when"].symbols and t.dims]
        if tiles:
            dims: tuple[Expr, ...] = ()
            for t in tiles:
                dims = union_dims(dims, t.dims)
            parts = common_parts(tiles)
            truth = run.on_grid(op.attrs["when"], dims, parts, {}, op) != 0
            condition = run.new_tile(TileType(dtypes.bool_, dims), parts, truth)
        else:
            condition = scalar_value(bool(run.number(op.attrs["when"], op)), dtypes.bool_)
    else:
        condition, *otherwise = run.tiles(op)
        condition = TileValue(dtypes.bool_, condition.dims, condition.starts, condition.array.astype(bool))
    if not np.any(condition.array):
        return tuple(otherwise)
    if np.all(condition.array):
        return run.block(body) if op.results else (run.block(body), ())[1]
    with run.masked_by(condition):
        body_results = run.block(body)
    results = []
    for when_true, when_false in zip(body_results, otherwise, strict=True):
        parts = common_parts([when_true, when_false, condition])
        arrays = [spread(t, when_true.dims, parts, t.array) for t in (condition, when_true, when_false)]
        results.append(run.new_tile(TileType(when_true.dtype, when_true.dims), parts, np.where(*arrays)))
    return tuple(results)
