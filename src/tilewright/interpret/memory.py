"""Interpret reads and writes of memory: which elements, in which bounds, and what happens out of bounds."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol
from tilewright.errors import ExecutionError
from tilewright.interpret.run import Run
from tilewright.interpret.tiles import (
    Array,
    TileValue,
    round_to,
    spread,
)
from tilewright.ir.core import MemoryType, Op, TileType, Value

_ATOMICS: dict[str, Any] = {"atomic_add": np.add, "atomic_min": np.minimum, "atomic_max": np.maximum}


def allocate(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute an `allocate`: create the shared memory of one workgroup in `run.memory`, and return ().

    The memory is filled with NaN (integers: 0), so that reads of unwritten elements are noticed.
    """
    kind: MemoryType = op.results[0].type
    shape = tuple(run.number(d, op) for d in kind.dims)
    poison = np.nan if kind.dtype.is_float else 0
    run.memory[op.results[0]] = np.full(shape, poison, kind.dtype.numpy)
    return ()


def read(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `read` and return its result: a tile of the elements of memory at the coordinates of `op`.

    The attribute `otherwise` replaces elements out of bounds or beyond the attribute `bounds`; without `otherwise`,
    elements beyond `bounds` are 0. Without an index mapping, the tile ends where memory ends. With an index mapping,
    raise ExecutionError for elements out of bounds, unless `otherwise` is set or a conditional masks the elements.
    """
    source, *extra = op.operands
    array = run.memory[source]
    kind: TileType = op.results[0].type
    parts = {d: run.part(d) for d in kind.dims}
    shape = tuple(max(0, parts[d][1] - parts[d][0]) for d in kind.dims)
    if "at" not in op.attrs:
        for d, n in zip(source.type.dims, array.shape, strict=True):  # there is nothing past the end
            parts[d] = tuple(min(c, n) for c in parts[d])
        slices = [slice(*parts[d]) for d in source.type.dims]
        elements = array[tuple(slices)].transpose([source.type.dims.index(d) for d in kind.dims])
        elements = elements.copy()
    else:
        coordinates = _coordinates(run, op, kind.dims, parts, tuple(extra))
        elements = _gather(run, op, array, coordinates, shape)
    valid = _bounds_mask(run, op, kind.dims, parts)
    if valid is not None:
        elements = np.where(valid, elements, round_to(np.asarray(op.attrs.get("otherwise", 0)), kind.dtype))
    return (run.new_tile(kind, parts, elements),)


def write(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `write`, or an atomic operation, of a tile to memory. Elements that are out of bounds, or masked by
    conditionals, are not written.

    Return () for a write. An atomic operation combines the tile with memory, and returns a tile of the previous
    elements of memory.
    """
    source, target, *extra = op.operands
    tile = run.values[source]
    array = run.memory[target]
    if "at" not in op.attrs:
        tile = run.conform(tile, target.type.dims, op)
    parts = {d: tile.part(d) for d in tile.dims}
    for d in tile.dims:  # inside a loop or a workgroup only the current part is written
        first, last = run.part(d)
        parts[d] = (first, last) if tile.number is not None else (max(first, parts[d][0]), min(last, parts[d][1]))
    if "at" not in op.attrs:
        for d, n in zip(target.type.dims, array.shape, strict=True):  # there is nothing past the end
            parts[d] = (min(parts[d][0], n), min(parts[d][1], n))
    if any(last <= first for first, last in parts.values()):
        return (tile,) if op.results else ()
    data = round_to(spread(tile, tile.dims, parts, tile.array), target.type.dtype)
    valid = _with_conditions(run, op, tile.dims, parts, _bounds_mask(run, op, tile.dims, parts))
    if "at" not in op.attrs and valid is None and op.name == "write":
        data = data.transpose([tile.dims.index(d) for d in target.type.dims])
        array[tuple(slice(*parts[d]) for d in target.type.dims)] = data
        return ()
    if "at" in op.attrs:
        coordinates = _coordinates(run, op, tile.dims, parts, tuple(extra))
    else:
        coordinates = []
        for d in target.type.dims:
            shape = [1] * len(tile.dims)
            shape[tile.dims.index(d)] = -1
            coordinates.append(np.arange(*parts[d]).reshape(shape))
    previous = _scatter(run, op, array, coordinates, data, valid)
    return () if previous is None else (run.new_tile(TileType(tile.dtype, tile.dims), parts, previous),)


def debug_log(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `debug_log`: record a tile under its label in `run.logs`, and return (). If `run.logs` is None, nothing
    is recorded.

    The tiles of all loop iterations and workgroups form one array, each tile at its coordinates.
    """
    if run.logs is None:
        return ()
    (tile,) = run.tiles(op)
    label = op.attrs["label"]
    dims = op.attrs.get("to", tile.dims)
    counts = [(axis, run.number(count, op)) for axis, count in op.attrs.get("iterations", ())]
    if label not in run.logs:
        shape = (*(count for _, count in counts), *(run.number(d, op) for d in dims))
        poison = np.nan if tile.dtype.is_float else 0
        run.logs[label] = {"value": np.full(shape, poison, tile.dtype.numpy)}
        if counts:
            run.logs[label]["iteration_dimensions"] = list(op.attrs["names"])
    iteration_index = tuple(min(run.iteration.get(axis, 0), count - 1) for axis, count in counts)
    value = run.logs[label]["value"][iteration_index] if iteration_index else run.logs[label]["value"]
    parts = {d: tile.part(d) for d in tile.dims}
    if "at" in op.attrs:
        coordinates = _coordinates(run, op, tile.dims, parts, ())
        in_bounds = np.asarray(True)
        for coordinate, size in zip(coordinates, value.shape, strict=True):
            in_bounds = in_bounds & (coordinate >= 0) & (coordinate < size)
        in_bounds = np.broadcast_to(in_bounds, tile.array.shape)
        value[tuple(np.broadcast_to(c, tile.array.shape)[in_bounds] for c in coordinates)] = tile.array[in_bounds]
    else:
        value[tuple(slice(*parts[d]) for d in dims)] = tile.array
    return ()


def _coordinates(
    run: Run, op: Op, dims: tuple[Expr, ...], parts: dict[Expr, tuple[int, int]], extra: tuple[Value, ...]
) -> list[Array]:
    """Return the memory coordinates that `op` accesses for every element of a tile: one array for each dimension of
    memory.

    The tile covers `parts`, {dimension: (first, end)}, of `dims`, and each array broadcasts over the tile. `extra` are
    the tiles from which indices are read; raise ExecutionError if an index is read outside of its tile.
    """
    symbol_values: dict[Symbol, Any] = {}
    for dim_number, (iterator, dim) in enumerate(zip(op.attrs["over"], dims, strict=True)):
        shape = [1] * len(dims)
        shape[dim_number] = -1
        symbol_values[iterator] = np.arange(*parts[dim]).reshape(shape)
    for (name, lookup_expressions), value in zip(op.attrs.get("lookups", ()), extra, strict=True):
        tile = run.values[value]
        indices = []
        for e, start, size in zip(lookup_expressions, tile.starts, tile.array.shape, strict=True):
            index = run.on_grid(e, dims, parts, symbol_values, op) - start
            if np.any((index < 0) | (index >= size)):
                raise ExecutionError(f"{op.name}: the dynamic value is looked up at {e}, outside it", op.loc)
            indices.append(index)
        symbol_values[name] = tile.array[tuple(indices)].astype(np.int64)
    return [run.on_grid(e, dims, parts, symbol_values, op) for e in op.attrs["at"]]


def _bounds_mask(run: Run, op: Op, dims: tuple[Expr, ...], parts: dict[Expr, tuple[int, int]]) -> Array | None:
    """Return a mask of the elements that the attribute `bounds` of a read or write allows; None without `bounds`.

    The mask broadcasts over a tile that covers `parts`, {dimension: (first, end)}, of `dims`.
    """
    result: Array | None = None
    for dim, bound in op.attrs.get("bounds", ()):
        if dim not in dims:
            continue
        shape = [1] * len(dims)
        shape[dims.index(dim)] = -1
        in_bounds = np.arange(*parts[dim]).reshape(shape) < run.on_grid(bound, dims, parts, {}, op)
        result = in_bounds if result is None else result & in_bounds
    return result


def _with_conditions(
    run: Run, op: Op, dims: tuple[Expr, ...], parts: dict[Expr, tuple[int, int]], allowed: Array | None
) -> Array | None:
    """Return the mask `allowed` (None: all elements) combined with the conditions of the enclosing conditionals; None
    if there is neither a mask nor a conditional.

    The tile covers `parts`, {dimension: (first, end)}, of `dims`.
    """
    for mask in run.masks:
        if all(d in dims for d in mask.dims):
            condition = spread(mask, dims, parts, mask.array).astype(bool)
        else:
            condition = np.asarray(bool(run.uniform(mask, "the condition", op)))
        allowed = condition if allowed is None else allowed & condition
    return allowed


def _gather(run: Run, op: Op, array: Array, at: list[Array], shape: tuple[int, ...]) -> Array:
    """Return the elements of `array` at the coordinates `at`, one array for each dimension, which broadcast to `shape`.

    The attribute `otherwise` of `op` replaces elements out of bounds. Without `otherwise`, raise ExecutionError if an
    element out of bounds is not masked by a conditional.
    """
    if prod(shape) == 0:
        return np.empty(shape, array.dtype)
    valid: Array | None = None
    for coordinate, size in zip(at, array.shape, strict=True):
        if coordinate.min() < 0 or coordinate.max() >= size:
            in_bounds = (coordinate >= 0) & (coordinate < size)
            valid = in_bounds if valid is None else valid & in_bounds
    if valid is None:
        box = _read_box(array, at)
        return np.broadcast_to(array[tuple(at)] if box is None else box, shape)
    if "otherwise" not in op.attrs:
        executed = _with_conditions(
            run, op, op.results[0].type.dims, {d: run.part(d) for d in op.results[0].type.dims}, None
        )
        if executed is None or np.any(executed & ~valid):
            worst = [f"{c.min()}..{c.max()} of {n}" for c, n in zip(at, array.shape, strict=True)]
            raise ExecutionError(
                f"read leaves its tensor: its coordinates reach {', '.join(worst)}; say what lies outside with "
                "read(..., otherwise=0)",
                op.loc,
            )
    if 0 in array.shape:
        return np.full(shape, op.attrs.get("otherwise", 0), array.dtype)
    clipped = tuple(np.clip(c, 0, n - 1) for c, n in zip(at, array.shape, strict=True))
    other = np.asarray(op.attrs.get("otherwise", 0)).astype(array.dtype)
    return np.broadcast_to(np.where(valid, array[clipped], other), shape)


def _read_box(array: Array, at: list[Array]) -> Array | None:
    """Return a copy of the elements of `array` at the coordinates `at`, if these form a box; otherwise None.

    They form a box if each coordinate is constant, or consists of consecutive numbers along a dimension of the tile
    along which no other coordinate varies. The result broadcasts over the tile.
    """
    slices, tile_axes = [], []
    for coordinate in at:
        flat = coordinate.reshape(-1)
        first, axes = int(flat[0]), [n for n, width in enumerate(coordinate.shape) if width > 1]
        if len(axes) > 1 or (axes and (axes[0] in tile_axes or not (flat[1:] - flat[:-1] == 1).all())):
            return None
        slices.append(slice(first, first + flat.size))
        tile_axes.append(axes[0] if axes else -1)
    elements = array[tuple(slices)].copy()
    box_dims = [dim for dim, axis in enumerate(tile_axes) if axis >= 0]
    elements = elements.reshape([elements.shape[dim] for dim in box_dims])
    order = sorted(range(len(box_dims)), key=lambda n: tile_axes[box_dims[n]])
    widths = {tile_axes[dim]: elements.shape[n] for n, dim in enumerate(box_dims)}
    rank = max((c.ndim for c in at), default=0)
    return elements.transpose(order).reshape([widths.get(axis, 1) for axis in range(rank)])


def _scatter(run: Run, op: Op, array: Array, at: list[Array], data: Array, allowed: Array | None) -> Array | None:
    """Write `data` to `array` at the coordinates `at`, or combine them atomically if `op` is an atomic operation.

    Only elements in bounds are written, and only where the mask `allowed` (None: all) is True. Return None for a write,
    the previous elements for an atomic operation (0 where nothing was written).
    """
    selected: Array = np.asarray(True) if allowed is None else allowed
    for coordinate, size in zip(at, array.shape, strict=True):
        selected = selected & (coordinate >= 0) & (coordinate < size)
    selected = np.broadcast_to(selected, data.shape)
    indices = tuple(np.broadcast_to(c, data.shape)[selected] for c in at)
    chosen = data[selected]
    if op.name == "write":
        array[indices] = chosen
        return None
    previous = np.zeros_like(data)
    previous[selected] = _combine_in_order(_ATOMICS[op.name], array, indices, chosen)
    return previous


def _combine_in_order(combine: Any, array: Array, where: tuple[Array, ...], values: Array) -> Array:
    """Combine `values` into `array` one after another, and return for each value the element of `array` before the
    value was combined.

    `where` has one array of indices for each dimension; an element may occur several times. `combine` is a numpy
    function of two arrays, such as np.add.
    """
    flat = np.ravel_multi_index(where, array.shape)
    if np.unique(flat).size == flat.size:
        previous = array[where]
        array[where] = combine(previous, values)
        return previous
    result = np.empty_like(values)
    for i, index in enumerate(zip(*where, strict=True)):
        result[i] = array[index]
        array[index] = combine(array[index], values[i])
    return result
