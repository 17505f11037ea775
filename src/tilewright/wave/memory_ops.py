"""Operations on memory, as functions that kernels call: read, write, atomics, and the access (index map) of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, ExprLike, Symbol, as_expr
from tilewright.errors import BadMapping, DimensionMismatch, DtypeMismatch, OutOfScope
from tilewright.ir import dtypes
from tilewright.ir.core import MemoryType, Op, TileType, Value
from tilewright.ir.dtypes import DTypeLike, element_type
from tilewright.ir.location import author_location
from tilewright.ir.tile import dims_text
from tilewright.lang.mapping import IndexMapping
from tilewright.lang.symbols import SHARED_ADDRESS_SPACE
from tilewright.limits import written
from tilewright.wave.tracer import MemoryArgument, Tile, dims_of, memory_of, operand, tile_of, tracer


def read(
    memory: Any,
    elements_per_thread: Any = None,
    mapping: IndexMapping | None = None,
    mapping_dynamic_vals: Sequence[Any] = (),
    bounds: dict[Any, ExprLike] | None = None,
    flags: Any = None,
    source: Sequence[Any] | None = None,
    target: Sequence[Any] | None = None,
    otherwise: float | None = None,
    tag: str | None = None,
) -> Tile:
    """Emit a `read` of `memory` (a kernel argument, or allocated memory) and return its elements as a tile.

    Without a `mapping`, the tile has the dimensions of the memory. A `mapping` gives the memory coordinates of each
    tile element; its dynamic values (indices that are data) are the tiles `mapping_dynamic_vals`. Instead of a mapping,
    `source` may list the memory coordinates and `target` the tile's iterators; the kernel's IteratorBindings give the
    dimension of each iterator. `bounds` is {tile dimension: size}: memory is not read for elements with a coordinate of
    `size` or more.

    `otherwise` is the value of elements out of bounds of memory or beyond `bounds`; raise DtypeMismatch if it is no
    number. Without `otherwise`, elements beyond `bounds` are 0, and a mapping must stay in bounds of memory; but in a
    kernel traced by the rules of Wave (`as_wave`), a read with a mapping returns 0 out of bounds. `elements_per_thread`
    is a hint to the planner; `flags` and `tag` are ignored. Raise BadMapping for arguments that do not fit the memory.
    """
    value = memory_of(memory, "read")
    memory_type: MemoryType = value.type
    tracer("read").hint("read", value.name, elements_per_thread)
    attrs, dynamic_values, dims = _access_of(
        "read", memory_type, mapping, mapping_dynamic_vals, bounds, source, target, reading=True
    )
    if otherwise is None and "at" in attrs and tracer("read").as_wave:
        otherwise = 0
    if otherwise is not None:
        number = otherwise.item() if isinstance(otherwise, np.generic) else otherwise
        if not isinstance(number, int | float):
            raise DtypeMismatch(f"read: otherwise={written(number, 60)} is no number", author_location())
        attrs["otherwise"] = number
    op = tracer("read").emit(
        "read", (value, *dynamic_values), attrs, (TileType(memory_type.dtype, dims or memory_type.dims),)
    )
    return Tile(op.result)


def write(
    register_: Any,
    memory: Any,
    elements_per_thread: Any = None,
    mapping: IndexMapping | None = None,
    mapping_dynamic_vals: Sequence[Any] = (),
    bounds: dict[Any, ExprLike] | None = None,
    flags: Any = None,
    source: Sequence[Any] | None = None,
    target: Sequence[Any] | None = None,
    tag: str | None = None,
) -> None:
    """Emit a `write` of the tile `register_` to `memory`; elements that are out of bounds are not written.

    A write to a narrower element type rounds; the compiler warns of it. Without a `mapping`, a tile that lacks
    dimensions of the memory is written at every coordinate along them. The other parameters are those of `read`, but
    `source` lists the tile's iterators and `target` the memory coordinates.
    """
    _emit_store("write", register_, memory, mapping, mapping_dynamic_vals, bounds, source, target, elements_per_thread)


def atomic_add(
    register_: Any,
    memory: Any,
    elements_per_thread: Any = None,
    mapping: IndexMapping | None = None,
    mapping_dynamic_vals: Sequence[Any] = (),
    bounds: dict[Any, ExprLike] | None = None,
    tag: str | None = None,
) -> Tile:
    """Emit an `atomic_add`, which atomically adds each element of the tile `register_` to an element of `memory`.
    Return the old values of memory as a tile.

    Several tile elements may be mapped to one memory element. The other parameters are those of `read`.
    """
    return _emit_atomic("atomic_add", register_, memory, mapping, mapping_dynamic_vals, bounds, elements_per_thread)


def atomic_min(
    register_: Any,
    memory: Any,
    elements_per_thread: Any = None,
    mapping: IndexMapping | None = None,
    mapping_dynamic_vals: Sequence[Any] = (),
    bounds: dict[Any, ExprLike] | None = None,
    tag: str | None = None,
) -> Tile:
    """Emit an `atomic_min`, which atomically replaces an element of `memory` by the minimum of its value and an element
    of the tile `register_`. Return the old values of memory as a tile.

    Several tile elements may be mapped to one memory element. The other parameters are those of `read`.
    """
    return _emit_atomic("atomic_min", register_, memory, mapping, mapping_dynamic_vals, bounds, elements_per_thread)


def scatter_add(
    register_src: Any,
    register_idx: Any,
    dim: Any,
    memory: Any,
    mapping: IndexMapping | None = None,
    elements_per_thread: Any = 1,
    bounds: dict[Any, ExprLike] | None = None,
    tag: str | None = None,
) -> None:
    """Emit an `atomic_add` that adds element e of the tile `register_src` to `memory`, at the coordinate
    `register_idx[e]` along `dim`.

    `dim` is a dimension of the memory, or the number of a dimension. The other memory coordinates are the coordinates
    of e with the same dimensions, or those of `mapping` (with the tile as input and the memory as output).
    `elements_per_thread` is a hint to the planner (1: none). `bounds` is as in `read`, `tag` is ignored. Raise
    `BadMapping` if the memory lacks `dim`.
    """
    value, indices = tile_of(register_src, "scatter_add"), tile_of(register_idx, "scatter_add")
    memory_type = memory_of(memory, "scatter_add").type
    is_position = isinstance(dim, int) and -len(memory_type.dims) <= dim < len(memory_type.dims)
    scatter_dim = memory_type.dims[dim] if is_position else as_expr(dim)
    if scatter_dim not in memory_type.dims:
        raise BadMapping(
            f"scatter_add: the memory {dims_text(memory_type.dims)} has no dimension {scatter_dim}", author_location()
        )
    dims = value.type.dims
    iterators = {d: IndexMapping.iterator(n) for n, d in enumerate(dims)}
    if mapping is not None:
        inputs, outputs = mapping.inputs, dict(mapping.outputs)
    else:
        inputs, outputs = dict(iterators), {d: iterators[d] for d in memory_type.dims if d in iterators}
    by_dim = {d: inputs[d] for d in indices.type.dims if d in inputs}
    index = IndexMapping(len(dims), inputs, {**outputs, scatter_dim: IndexMapping.dynamic_val(0)}, by_dim)
    hint = None if isinstance(elements_per_thread, int) and elements_per_thread == 1 else elements_per_thread
    _emit_store("atomic_add", register_src, memory, index, (register_idx,), bounds, elements=hint)


def _emit_atomic(
    name: str,
    tile: Any,
    memory: Any,
    mapping: IndexMapping | None,
    dynamic: Sequence[Any],
    bounds: dict[Any, ExprLike] | None,
    elements: Any,
) -> Tile:
    """Emit the atomic operation `name`, such as "atomic_add", which combines the elements of `tile` into `memory`.
    Return the old values of memory as a tile.

    `mapping` may have the tile as input, like that of a write, or as output, like that of a read: Wave allows both.
    `dynamic` are the tiles for the dynamic values of `mapping` (indices that are data). `bounds` is as in `read`;
    `elements` is the `elements_per_thread` hint, or None.
    """
    if isinstance(mapping, IndexMapping) and all(e in mapping.iterators for e in mapping.outputs.values()):
        inverse = IndexMapping(mapping.num_iterators, mapping.outputs, mapping.inputs, mapping.dynamic_val_mappings)
        if set(inverse.inputs) == set(tile_of(tile, name).type.dims):
            mapping = inverse
    op = _emit_store(name, tile, memory, mapping, dynamic, bounds, elements=elements)
    return Tile(op.result)


def _emit_store(
    name: str,
    tile: Any,
    memory: Any,
    mapping: IndexMapping | None,
    dynamic: Sequence[Any],
    bounds: dict[Any, ExprLike] | None,
    source: Sequence[Any] | None = None,
    target: Sequence[Any] | None = None,
    elements: Any = None,
) -> Op:
    """Emit the operation `name` ("write" or an atomic) from `tile` to `memory` and return the operation.

    `mapping`, `bounds`, `source` and `target` are as in `write`. `dynamic` are the tiles for the dynamic values of
    `mapping` (indices that are data); `elements` is the `elements_per_thread` hint, or None. The tile must have the
    tile dimensions of the mapping, in any order. If it has other dimensions and is the result of a `fill`, a `fill`
    over the mapping's dimensions is stored instead; otherwise raise DimensionMismatch.
    """
    value, memory_value = tile_of(tile, name), memory_of(memory, name)
    tracer(name).hint(name, memory_value.name, elements)
    attrs, dynamic_values, dims = _access_of(
        name, memory_value.type, mapping, dynamic, bounds, source, target, reading=False
    )
    if dims is not None and set(dims) != set(value.type.dims):
        value = _broadcast_fill(value, dims)
    if dims is not None and (set(dims) != set(value.type.dims) or len(dims) != len(value.type.dims)):
        raise DimensionMismatch(
            f"{name}: the mapping is over {dims_text(dims)}, the tile has {dims_text(value.type.dims)}",
            author_location(2),
        )
    if dims is not None and tuple(dims) != value.type.dims:
        iterator_of = dict(zip(dims, attrs["over"], strict=True))
        attrs["over"] = tuple(iterator_of[d] for d in value.type.dims)
    return tracer(name).emit(name, (value, memory_value, *dynamic_values), attrs)


def _broadcast_fill(value: Value, dims: tuple[Expr, ...]) -> Value:
    """If the tile `value` is the result of a `fill` operation in a block that is being traced, emit a `fill` with the
    same number and the dimensions `dims`, and return that tile. Otherwise return `value`.
    """
    trace = tracer("write")
    producer = next((op for block in trace.builder.blocks for op in block.ops if value in op.results), None)
    if producer is None or producer.name != "fill":
        return value
    return trace.emit("fill", (), dict(producer.attrs), (TileType(value.type.dtype, dims),)).result


def _access_of(
    what: str,
    memory: MemoryType,
    mapping: IndexMapping | None,
    dynamic: Sequence[Any],
    bounds: dict[Any, ExprLike] | None,
    source: Sequence[Any] | None,
    target: Sequence[Any] | None,
    *,
    reading: bool,
) -> tuple[dict[str, Any], list[Value], tuple[Expr, ...] | None]:
    """Return (attributes, dynamic values, tile dimensions) that describe how the operation `what` accesses memory of
    type `memory`.

    `attributes` is {name: value}: `over` (iterators of the tile), `at` (memory coordinates as expressions of the
    iterators), `lookups` (coordinates at which each dynamic value is read) and `bounds`. `mapping`, `bounds`, `source`
    and `target` are as in `read`. Without `mapping`, `source` and `target`, only `bounds` is set, and the tile
    dimensions are None (those of the memory). `dynamic` are the tiles for the dynamic values of `mapping` (indices that
    are data). `reading` is True for reads, where the tile is the output of the mapping.

    Raise BadMapping for arguments of a wrong type, and for coordinates that are missing or do not fit the memory. Raise
    DtypeMismatch for a dynamic value that is neither a tile nor a number.
    """
    attrs: dict[str, Any] = {}
    for name, argument, types, expected in (
        ("mapping", mapping, (IndexMapping,), "an IndexMapping"),
        ("bounds", bounds, (Mapping,), "a dictionary of dimensions and sizes"),
        ("mapping_dynamic_vals", dynamic, (list, tuple), "a list of tiles"),
        ("source", source, (list, tuple), "a list of coordinates"),
        ("target", target, (list, tuple), "a list of iterators"),
    ):
        if argument is not None and not isinstance(argument, types):
            raise BadMapping(f"{what}: {name}={written(argument, 60)} is not {expected}", author_location(2))
    if bounds:
        attrs["bounds"] = tuple((as_expr(d), as_expr(e)) for d, e in bounds.items())
    if source is not None or target is not None:
        return _access_by_iterators(what, attrs, memory, source, target, reading=reading)
    if mapping is None:
        if dynamic:
            raise BadMapping(f"{what}: mapping_dynamic_vals come with a mapping", author_location(2))
        return attrs, [], None
    tile_side, memory_side = (mapping.outputs, mapping.inputs) if reading else (mapping.inputs, mapping.outputs)
    dim_of_symbol = _dims_named_by_symbol(memory_side, memory.dims)
    tile_side = {dim_of_symbol.get(d, d): e for d, e in tile_side.items()}
    memory_side = {dim_of_symbol.get(d, d): e for d, e in memory_side.items()}
    dims, iterators = mapping.tile_side(tile_side, what)
    attrs["over"] = iterators
    attrs["at"] = mapping.memory_side(memory_side, memory.dims, what)
    dynamic_values = [operand(v, dtypes.i32, what) for v in dynamic]
    coordinates_of = _lookup_coordinates(mapping, dynamic_values)
    looked_up = tuple(e for row in coordinates_of for e in row.values())
    dims = _dims_of_assigned_symbols(dims, iterators, (*attrs["at"], *looked_up))
    dims = _dims_of_dynamic_values(
        dims, iterators, (*attrs["at"], *looked_up), zip(dynamic_values, coordinates_of, strict=True)
    )
    lookups = []
    for number, (value, row) in enumerate(zip(dynamic_values, coordinates_of, strict=True)):
        at = []
        for dim in value.type.dims:
            if dim in row:
                at.append(row[dim])
            elif dim in dims and not row:
                at.append(iterators[dims.index(dim)])
            else:
                raise BadMapping(
                    f"{what}: dynamic value {number} has the dimension {dim}; dynamic_val_mappings must say where to "
                    "look it up",
                    author_location(2),
                )
        lookups.append((IndexMapping.dynamic_val(number), tuple(at)))
    if lookups:
        attrs["lookups"] = tuple(lookups)
    return attrs, dynamic_values, dims


def _dims_named_by_symbol(side: dict[Expr, Expr], dims: tuple[Expr, ...]) -> dict[Expr, Expr]:
    """Return {symbol: memory dimension} for memory dimensions that a mapping names by the only symbol in them, as Wave
    allows.

    If the mapping has a coordinate for K, and the memory has the dimension K/2 but no K, return {K: K/2}. `side` is
    {dimension: coordinate} of the mapping's memory coordinates; `dims` are the memory's dimensions.
    """
    unnamed = [d for d in dims if d not in side and len(d.symbols) == 1]
    return {s: d for d in unnamed for s in d.symbols if s in side and s not in dims}


def _dims_of_assigned_symbols(
    dims: tuple[Expr, ...], iterators: tuple[Expr, ...], at: tuple[Expr, ...]
) -> tuple[Expr, ...]:
    """Return the tile dimensions `dims`, in which a symbol that `set_symbol` assigned may be replaced by a dimension of
    the assigned tile.

    If S was set to a tile over M, [S, N] becomes [M, N]. A symbol is replaced only if the entry of `iterators` at the
    same position occurs in no coordinate of `at`, and if exactly one dimension of the assigned tile is missing from
    `dims`.
    """
    assigned = tracer("read").assigned
    used = {s for e in at for s in e.symbols}
    new_dims = list(dims)
    for position, d in enumerate(dims):
        if isinstance(d, Symbol) and d in assigned and iterators[position] not in used:
            missing = [dim for dim in assigned[d] if dim not in dims]
            if len(missing) == 1:
                new_dims[position] = missing[0]
    return tuple(new_dims)


def _lookup_coordinates(mapping: IndexMapping, values: Sequence[Value]) -> list[dict[Expr, Expr]]:
    """Return a list with {dimension: coordinate expression} for each of `values`, the dynamic values of `mapping`
    (tiles with elements that are used as indices).

    `mapping` looks the dynamic value up at these coordinates. Dimensions that the dynamic value lacks are left out; {}
    if the mapping gives no coordinates.
    """
    coordinates = [mapping.dynamic[n] if n < len(mapping.dynamic) else {} for n in range(len(values))]
    return [{d: e for d, e in row.items() if d in v.type.dims} for v, row in zip(values, coordinates, strict=True)]


def _dims_of_dynamic_values(
    dims: tuple[Expr, ...],
    iterators: tuple[Expr, ...],
    at: tuple[Expr, ...],
    values: Iterable[tuple[Value, dict[Expr, Expr]]],
) -> tuple[Expr, ...]:
    """Return the tile dimensions `dims`, in which the dimension of an unused iterator may be replaced by a dimension
    that only a dynamic value has.

    A dynamic value is a tile with elements that are used as indices; `values` are pairs (dynamic value, {dimension:
    lookup coordinate}). An iterator is unused if no coordinate in `at` contains it. The dimension is replaced only if
    exactly one of `iterators` is unused, and exactly one dimension of the dynamic values is neither in `dims` nor
    looked up. So a scatter to indices held in a tile runs once per index, as in Wave, where each thread has one index.
    """
    missing = list(dict.fromkeys(d for v, row in values for d in v.type.dims if d not in dims and d not in row))
    used = {s for e in at for s in e.symbols}
    unused = [position for position, iterator in enumerate(iterators) if iterator not in used]
    if len(missing) != 1 or len(unused) != 1:
        return dims
    return tuple(missing[0] if position == unused[0] else d for position, d in enumerate(dims))


def _access_by_iterators(
    what: str,
    attrs: dict[str, Any],
    memory: MemoryType,
    source: Sequence[Any] | None,
    target: Sequence[Any] | None,
    *,
    reading: bool,
) -> tuple[dict[str, Any], list[Value], tuple[Expr, ...]]:
    """Return (attributes, dynamic values, tile dimensions) of an access by the operation `what` to memory of type
    `memory`, given by `source=` and `target=`.

    For `reading`, `target` lists the tile's iterators and `source` the memory coordinates; otherwise the reverse. A
    coordinate that is a tile is an index read from data; these tiles are the dynamic values. The kernel's
    IteratorBindings give the dimension of each iterator. The attributes are added to the dictionary `attrs`, which is
    returned.

    Raise BadMapping if `source` or `target` is missing, if an iterator is unknown, or if the number of coordinates is
    not that of the memory's dimensions.
    """
    dim_of_iterator = tracer(what).iterators
    tile_side, memory_side = (target, source) if reading else (source, target)
    if tile_side is None or memory_side is None:
        raise BadMapping(f"{what}: source= and target= come together", author_location(2))
    for s in tile_side:
        if s not in dim_of_iterator:
            raise BadMapping(
                f"{what}: {s} is no iterator; the kernel's IteratorBindings name {dims_text(tuple(dim_of_iterator))}",
                author_location(2),
            )
    dims = tuple(dim_of_iterator[s] for s in tile_side)
    dynamic_values: list[Value] = []
    lookups = []
    at: list[Expr] = []
    for entry in memory_side:
        if isinstance(entry, Tile):
            lookup = tuple(next(s for s, d in dim_of_iterator.items() if d is dim) for dim in entry.type.dims)
            dynamic_symbol = IndexMapping.dynamic_val(len(dynamic_values))
            lookups.append((dynamic_symbol, lookup))
            dynamic_values.append(entry.value)
            at.append(dynamic_symbol)
        else:
            at.append(as_expr(entry))
    if len(at) != len(memory.dims):
        raise BadMapping(
            f"{what}: {len(at)} coordinates for memory of {len(memory.dims)} dimensions", author_location(2)
        )
    attrs |= {"over": tuple(tile_side), "at": tuple(at)}
    if lookups:
        attrs["lookups"] = tuple(lookups)
    return attrs, dynamic_values, dims


def allocate(
    shape: Any,
    distributed_shape: Any,
    dtype: DTypeLike,
    address_space: Any = None,
    padding: int = 0,
    parent: Any = None,
    offset: Any = None,
    tail_padding: int = 0,
    tag: str | None = None,
) -> MemoryArgument:
    """Emit an `allocate` of shared memory, which the threads of a workgroup share, and return it as a `MemoryArgument`.

    `shape` and `dtype` are the dimensions and the element type of the memory; `distributed_shape` is the tile of
    `shape` that one workgroup has. `padding`, `tail_padding` and `tag` are ignored: the compiler chooses the layout.
    Raise OutOfScope for an `address_space` that is not shared memory, and if `parent` or `offset` is given.
    """
    where = author_location()
    if address_space not in (None, SHARED_ADDRESS_SPACE):
        space = written(address_space)
        raise OutOfScope(f"allocate: address_space={space}: memory is allocated in SHARED_ADDRESS_SPACE", where)
    if parent is not None or offset is not None:
        raise OutOfScope("allocate: parent, offset: allocated memory is no part of other memory; leave both out", where)
    memory_type = MemoryType(element_type(dtype), dims_of(shape), "shared")
    op = tracer("allocate").emit("allocate", (), {"tile": dims_of(distributed_shape)}, (memory_type,))
    return MemoryArgument(op.result)


def shared_memory_barrier(*args: Any, **options: Any) -> None:
    """Emit a barrier of the workgroup: accesses to allocated memory before the barrier complete before those after it.
    All arguments are ignored.
    """
    tracer("shared_memory_barrier").emit("barrier")


workgroup_barrier = shared_memory_barrier


__all__ = [
    "allocate",
    "atomic_add",
    "atomic_min",
    "read",
    "scatter_add",
    "shared_memory_barrier",
    "workgroup_barrier",
    "write",
]
