"""Reading and writing memory: which elements, inside what bounds, and what happens outside."""

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
    """Memory of one workgroup, poisoned."""
    kind: MemoryType = op.results[0].type
    shape = tuple(run.number(d, op) for d in kind.dims)
    poison = np.nan if kind.dtype.is_float else 0
    run.memory[op.results[0]] = np.full(shape, poison, kind.dtype.numpy)
    return ()


def read(run: Run, op: Op) -> tuple[TileValue, ...]:
    """The elements of memory that the access names."""
    source, *extra = op.operands
    array = run.memory[source]
    kind: TileType = op.results[0].type
    parts = {d: run.part(d) for d in kind.dims}
    shape = tuple(max(0, parts[d][1] - parts[d][0]) for d in kind.dims)
    if "at" not in op.attrs:
        for d, n in zip(source.type.dims, array.shape, strict=True):  # there is nothing past the end
            parts[d] = tuple(min(c, n) for c in parts[d])
        place = [slice(*parts[d]) for d in source.type.dims]
        found = array[tuple(place)].transpose([source.type.dims.index(d) for d in kind.dims])
        found = found.copy()
    else:
        at = _coordinates(run, op, kind.dims, parts, tuple(extra))
        found = _gather(run, op, array, at, shape)
    kept = _kept(run, op, kind.dims, parts)
    if kept is not None:
        found = np.where(kept, found, round_to(np.asarray(op.attrs.get("otherwise", 0)), kind.dtype))
    return (run.made(kind, parts, found),)


def write(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Writes a tile, or combines it atomically; atomics give what was there before."""
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
    kept = _masked(run, op, tile.dims, parts, _kept(run, op, tile.dims, parts))
    if "at" not in op.attrs and kept is None and op.name == "write":
        data = data.transpose([tile.dims.index(d) for d in target.type.dims])
        array[tuple(slice(*parts[d]) for d in target.type.dims)] = data
        return ()
    if "at" in op.attrs:
        at = _coordinates(run, op, tile.dims, parts, tuple(extra))
    else:
        at = []
        for d in target.type.dims:
            shape = [1] * len(tile.dims)
            shape[tile.dims.index(d)] = -1
            at.append(np.arange(*parts[d]).reshape(shape))
    before = _scatter(run, op, array, at, data, kept)
    return () if before is None else (run.made(TileType(tile.dtype, tile.dims), parts, before),)


def debug_log(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Keeps the tile, put together over all loops and workgroups: each part where its coordinates say."""
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
    slot = tuple(min(run.iteration.get(axis, 0), count - 1) for axis, count in counts)
    value = run.logs[label]["value"][slot] if slot else run.logs[label]["value"]
    parts = {d: tile.part(d) for d in tile.dims}
    if "at" in op.attrs:
        at = _coordinates(run, op, tile.dims, parts, ())
        inside = np.asarray(True)
        for coordinate, size in zip(at, value.shape, strict=True):
            inside = inside & (coordinate >= 0) & (coordinate < size)
        inside = np.broadcast_to(inside, tile.array.shape)
        value[tuple(np.broadcast_to(c, tile.array.shape)[inside] for c in at)] = tile.array[inside]
    else:
        value[tuple(slice(*parts[d]) for d in dims)] = tile.array
    return ()


def _coordinates(
    run: Run, op: Op, dims: tuple[Expr, ...], parts: dict[Expr, tuple[int, int]], extra: tuple[Value, ...]
) -> list[Array]:
    """The memory coordinates of every element of the tile, each shaped to broadcast over the tile."""
    known: dict[Symbol, Any] = {}
    for place, (iterator, dim) in enumerate(zip(op.attrs["over"], dims, strict=True)):
        shape = [1] * len(dims)
        shape[place] = -1
        known[iterator] = np.arange(*parts[dim]).reshape(shape)
    for (name, at), value in zip(op.attrs.get("lookups", ()), extra, strict=True):
        tile = run.values[value]
        where = []
        for e, start, size in zip(at, tile.starts, tile.array.shape, strict=True):
            place_ = run.on_grid(e, dims, parts, known, op) - start
            if np.any((place_ < 0) | (place_ >= size)):
                raise ExecutionError(f"{op.name}: the dynamic value is looked up at {e}, outside it", op.loc)
            where.append(place_)
        known[name] = tile.array[tuple(where)].astype(np.int64)
    return [run.on_grid(e, dims, parts, known, op) for e in op.attrs["at"]]


def _kept(run: Run, op: Op, dims: tuple[Expr, ...], parts: dict[Expr, tuple[int, int]]) -> Array | None:
    """Where `bounds` and the conditionals around let an access through; None: everywhere."""
    result: Array | None = None
    for dim, bound in op.attrs.get("bounds", ()):
        if dim not in dims:
            continue
        shape = [1] * len(dims)
        shape[dims.index(dim)] = -1
        inside = np.arange(*parts[dim]).reshape(shape) < run.on_grid(bound, dims, parts, {}, op)
        result = inside if result is None else result & inside
    return result


def _masked(
    run: Run, op: Op, dims: tuple[Expr, ...], parts: dict[Expr, tuple[int, int]], kept: Array | None
) -> Array | None:
    for mask in run.masks:
        if all(d in dims for d in mask.dims):
            inside = spread(mask, dims, parts, mask.array).astype(bool)
        else:
            inside = np.asarray(bool(run.uniform(mask, "the condition", op)))
        kept = inside if kept is None else kept & inside
    return kept


def _gather(run: Run, op: Op, array: Array, at: list[Array], shape: tuple[int, ...]) -> Array:
    """The elements at these coordinates; outside memory the `otherwise` value, or an error."""
    if prod(shape) == 0:
        return np.empty(shape, array.dtype)
    valid: Array | None = None
    for coordinate, size in zip(at, array.shape, strict=True):
        if coordinate.min() < 0 or coordinate.max() >= size:
            inside = (coordinate >= 0) & (coordinate < size)
            valid = inside if valid is None else valid & inside
    if valid is None:
        box = _box(array, at)
        return np.broadcast_to(array[tuple(at)] if box is None else box, shape)
    if "otherwise" not in op.attrs:
        through = _masked(run, op, op.results[0].type.dims, {d: run.part(d) for d in op.results[0].type.dims}, None)
        if through is None or np.any(through & ~valid):
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


def _box(array: Array, at: list[Array]) -> Array | None:
    """The elements at these coordinates as a copy of a box of memory, which takes less time than element by element.

    None, unless each coordinate is one number, or consecutive numbers along a dimension of the tile of its own.
    """
    slices, along = [], []
    for coordinate in at:
        flat = coordinate.reshape(-1)
        first, axes = int(flat[0]), [n for n, width in enumerate(coordinate.shape) if width > 1]
        if len(axes) > 1 or (axes and (axes[0] in along or not (flat[1:] - flat[:-1] == 1).all())):
            return None
        slices.append(slice(first, first + flat.size))
        along.append(axes[0] if axes else -1)
    found = array[tuple(slices)].copy()
    kept = [place for place, axis in enumerate(along) if axis >= 0]
    found = found.reshape([found.shape[place] for place in kept])
    order = sorted(range(len(kept)), key=lambda n: along[kept[n]])
    widths = {along[place]: found.shape[n] for n, place in enumerate(kept)}
    rank = max((c.ndim for c in at), default=0)
    return found.transpose(order).reshape([widths.get(axis, 1) for axis in range(rank)])


def _scatter(run: Run, op: Op, array: Array, at: list[Array], data: Array, kept: Array | None) -> Array | None:
    """Writes, or combines, where the coordinates lie in memory and the conditions hold; atomics tell what was."""
    inside: Array = np.asarray(True) if kept is None else kept
    for coordinate, size in zip(at, array.shape, strict=True):
        inside = inside & (coordinate >= 0) & (coordinate < size)
    inside = np.broadcast_to(inside, data.shape)
    where = tuple(np.broadcast_to(c, data.shape)[inside] for c in at)
    chosen = data[inside]
    if op.name == "write":
        array[where] = chosen
        return None
    before = np.zeros_like(data)
    before[inside] = _atomically(_ATOMICS[op.name], array, where, chosen)
    return before


def _atomically(combine: Any, array: Array, where: tuple[Array, ...], values: Array) -> Array:
    """Combines values into an array one after another; gives what each found."""
    flat = np.ravel_multi_index(where, array.shape)
    if np.unique(flat).size == flat.size:
        found = array[where]
        array[where] = combine(found, values)
        return found
    result = np.empty_like(values)
    for i, place in enumerate(zip(*where, strict=True)):
        result[i] = array[place]
        array[place] = combine(array[place], values[i])
    return result
