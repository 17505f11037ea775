"""Reading and writing memory, as functions that kernels call: which element each element of a tile is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, ExprLike, Symbol, as_expr
from tilewright.errors import BadMapping, DimensionMismatch, DtypeMismatch
from tilewright.ir import dtypes
from tilewright.ir.core import MemoryType, Op, TileType, Value
from tilewright.ir.dtypes import DTypeLike, element_type
from tilewright.ir.location import author_location
from tilewright.ir.tile import dims_text
from tilewright.lang.mapping import IndexMapping
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
    """The tile of memory's elements; with a mapping, of those that it names.

    `otherwise` is the value of elements outside memory: it says padding. Without it a read must not leave memory.
    """
    value = memory_of(memory, "read")
    kind: MemoryType = value.type
    tracer("read").hint("read", value.name, elements_per_thread)
    attrs, extra, dims = _access("read", kind, mapping, mapping_dynamic_vals, bounds, source, target, reading=True)
    if otherwise is None and "at" in attrs and tracer("read").as_wave:
        otherwise = 0
    if otherwise is not None:
        number = otherwise.item() if isinstance(otherwise, np.generic) else otherwise
        if not isinstance(number, int | float):
            raise DtypeMismatch(f"read: otherwise={written(number, 60)} is no number", author_location())
        attrs["otherwise"] = number
    made = tracer("read").emit("read", (value, *extra), attrs, (TileType(kind.dtype, dims or kind.dims),))
    return Tile(made.result)


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
    """Writes a tile to memory; elements outside memory are not written. A narrowing write rounds, and is reported.

    Without a mapping, a tile that lacks dimensions of the memory is written at every coordinate of these.
    """
    _store("write", register_, memory, mapping, mapping_dynamic_vals, bounds, source, target, elements_per_thread)


def atomic_add(
    register_: Any,
    memory: Any,
    elements_per_thread: Any = None,
    mapping: IndexMapping | None = None,
    mapping_dynamic_vals: Sequence[Any] = (),
    bounds: dict[Any, ExprLike] | None = None,
    tag: str | None = None,
) -> Tile:
    """Adds each element of the tile to memory; several may meet at one place. Gives what was there before."""
    return _atomic("atomic_add", register_, memory, mapping, mapping_dynamic_vals, bounds, elements_per_thread)


def atomic_min(
    register_: Any,
    memory: Any,
    elements_per_thread: Any = None,
    mapping: IndexMapping | None = None,
    mapping_dynamic_vals: Sequence[Any] = (),
    bounds: dict[Any, ExprLike] | None = None,
    tag: str | None = None,
) -> Tile:
    """Lowers each place of memory to the smallest element that meets it. Gives what was there before."""
    return _atomic("atomic_min", register_, memory, mapping, mapping_dynamic_vals, bounds, elements_per_thread)


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
    """Adds each element of a tile to memory where `dim`'s coordinate is the element of `register_idx` beside it.

    `dim` is a dimension of the memory, or its number. The other coordinates are the element's own, or what a mapping
    (turned as for a write) says.
    """
    value, places = tile_of(register_src, "scatter_add"), tile_of(register_idx, "scatter_add")
    kind = memory_of(memory, "scatter_add").type
    numbered = isinstance(dim, int) and -len(kind.dims) <= dim < len(kind.dims)
    along = kind.dims[dim] if numbered else as_expr(dim)
    if along not in kind.dims:
        raise BadMapping(f"scatter_add: the memory {dims_text(kind.dims)} has no dimension {along}", author_location())
    dims = value.type.dims
    iterators = {d: IndexMapping.iterator(n) for n, d in enumerate(dims)}
    if mapping is not None:
        inputs, outputs = mapping.inputs, dict(mapping.outputs)
    else:
        inputs, outputs = dict(iterators), {d: iterators[d] for d in kind.dims if d in iterators}
    by_dim = {d: inputs[d] for d in places.type.dims if d in inputs}
    index = IndexMapping(len(dims), inputs, {**outputs, along: IndexMapping.dynamic_val(0)}, by_dim)
    said = None if isinstance(elements_per_thread, int) and elements_per_thread == 1 else elements_per_thread
    _store("atomic_add", register_src, memory, index, (register_idx,), bounds, elements=said)


def _atomic(
    name: str,
    tile: Any,
    memory: Any,
    mapping: IndexMapping | None,
    dynamic: Sequence[Any],
    bounds: dict[Any, ExprLike] | None,
    elements: Any,
) -> Tile:
    """An atomic; its mapping may be turned as for a write or, as Wave does, as for a read."""
    if isinstance(mapping, IndexMapping) and all(e in mapping.iterators for e in mapping.outputs.values()):
        turned = IndexMapping(mapping.num_iterators, mapping.outputs, mapping.inputs, mapping.dynamic_val_mappings)
        if set(turned.inputs) == set(tile_of(tile, name).type.dims):
            mapping = turned
    made = _store(name, tile, memory, mapping, dynamic, bounds, elements=elements)
    return Tile(made.result)


def _store(
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
    value, place = tile_of(tile, name), memory_of(memory, name)
    tracer(name).hint(name, place.name, elements)
    attrs, extra, dims = _access(name, place.type, mapping, dynamic, bounds, source, target, reading=False)
    if dims is not None and set(dims) != set(value.type.dims):
        value = _filled_over(value, dims)
    if dims is not None and (set(dims) != set(value.type.dims) or len(dims) != len(value.type.dims)):
        raise DimensionMismatch(
            f"{name}: the mapping is over {dims_text(dims)}, the tile has {dims_text(value.type.dims)}",
            author_location(2),
        )
    if dims is not None and tuple(dims) != value.type.dims:
        by_dim = dict(zip(dims, attrs["over"], strict=True))
        attrs["over"] = tuple(by_dim[d] for d in value.type.dims)
    return tracer(name).emit(name, (value, place, *extra), attrs)


def _filled_over(value: Value, dims: tuple[Expr, ...]) -> Value:
    """A register that is filled with one number, filled over other dimensions; any other tile as it is."""
    trace = tracer("write")
    made = next((op for block in trace.builder.blocks for op in block.ops if value in op.results), None)
    if made is None or made.name != "fill":
        return value
    return trace.emit("fill", (), dict(made.attrs), (TileType(value.type.dtype, dims),)).result


def _access(
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
    """(attributes, dynamic values, the tile's dimensions) of an access; dimensions are None without a mapping."""
    attrs: dict[str, Any] = {}
    for name, given, kinds, wanted in (
        ("mapping", mapping, (IndexMapping,), "an IndexMapping"),
        ("bounds", bounds, (Mapping,), "a dictionary of dimensions and sizes"),
        ("mapping_dynamic_vals", dynamic, (list, tuple), "a list of tiles"),
        ("source", source, (list, tuple), "a list of coordinates"),
        ("target", target, (list, tuple), "a list of iterators"),
    ):
        if given is not None and not isinstance(given, kinds):
            raise BadMapping(f"{what}: {name}={written(given, 60)} is not {wanted}", author_location(2))
    if bounds:
        attrs["bounds"] = tuple((as_expr(d), as_expr(e)) for d, e in bounds.items())
    if source is not None or target is not None:
        return _by_iterators(what, attrs, memory, source, target, reading=reading)
    if mapping is None:
        if dynamic:
            raise BadMapping(f"{what}: mapping_dynamic_vals come with a mapping", author_location(2))
        return attrs, [], None
    tile_side, memory_side = (mapping.outputs, mapping.inputs) if reading else (mapping.inputs, mapping.outputs)
    renamed = _by_symbol(memory_side, memory.dims)
    tile_side = {renamed.get(d, d): e for d, e in tile_side.items()}
    memory_side = {renamed.get(d, d): e for d, e in memory_side.items()}
    dims, iterators = mapping.tile_side(tile_side, what)
    attrs["over"] = iterators
    attrs["at"] = mapping.memory_side(memory_side, memory.dims, what)
    extra = [operand(v, dtypes.i32, what) for v in dynamic]
    rows = _lookups(mapping, extra)
    looked_up = tuple(e for row in rows for e in row.values())
    dims = _iterated(dims, iterators, (*attrs["at"], *looked_up))
    dims = _along_values(dims, iterators, (*attrs["at"], *looked_up), zip(extra, rows, strict=True))
    lookups = []
    for number, (value, row) in enumerate(zip(extra, rows, strict=True)):
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
    return attrs, extra, dims


def _by_symbol(side: dict[Expr, Expr], dims: tuple[Expr, ...]) -> dict[Expr, Expr]:
    """Which dimensions a mapping names by their symbol, K for the memory's K/2, as Wave allows."""
    open_ = [d for d in dims if d not in side and len(d.symbols) == 1]
    return {s: d for d in open_ for s in d.symbols if s in side and s not in dims}


def _iterated(dims: tuple[Expr, ...], iterators: tuple[Expr, ...], at: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The tile's dimensions; one that is a symbol set from a tile goes along a dimension of that tile.

    That is so where no coordinate, of memory or of a dynamic value, uses the dimension's iterator: the symbol itself
    says which element is meant.
    """
    assigned = tracer("read").assigned
    used = {s for e in at for s in e.symbols}
    found = list(dims)
    for place, d in enumerate(dims):
        if isinstance(d, Symbol) and d in assigned and iterators[place] not in used:
            missing = [of for of in assigned[d] if of not in dims]
            if len(missing) == 1:
                found[place] = missing[0]
    return tuple(found)


def _lookups(mapping: IndexMapping, values: Sequence[Value]) -> list[dict[Expr, Expr]]:
    """The coordinates at which each dynamic value is looked up, by its own dimensions; others are ignored."""
    rows = [mapping.dynamic[n] if n < len(mapping.dynamic) else {} for n in range(len(values))]
    return [{d: e for d, e in row.items() if d in v.type.dims} for v, row in zip(values, rows, strict=True)]


def _along_values(
    dims: tuple[Expr, ...],
    iterators: tuple[Expr, ...],
    at: tuple[Expr, ...],
    values: Iterable[tuple[Value, dict[Expr, Expr]]],
) -> tuple[Expr, ...]:
    """The tile's dimensions; an iterator that no coordinate uses goes along a dimension that only a dynamic value has.

    So a scatter whose places are a tile happens once for each of them, as in Wave, where each thread has one.
    """
    missing = list(dict.fromkeys(d for v, row in values for d in v.type.dims if d not in dims and d not in row))
    used = {s for e in at for s in e.symbols}
    unused = [place for place, iterator in enumerate(iterators) if iterator not in used]
    if len(missing) != 1 or len(unused) != 1:
        return dims
    return tuple(missing[0] if place == unused[0] else d for place, d in enumerate(dims))


def _by_iterators(
    what: str,
    attrs: dict[str, Any],
    memory: MemoryType,
    source: Sequence[Any] | None,
    target: Sequence[Any] | None,
    *,
    reading: bool,
) -> tuple[dict[str, Any], list[Value], tuple[Expr, ...]]:
    """The access that `source=` and `target=` say, by the IteratorBindings of the kernel."""
    bound = tracer(what).iterators
    tile_side, memory_side = (target, source) if reading else (source, target)
    if tile_side is None or memory_side is None:
        raise BadMapping(f"{what}: source= and target= come together", author_location(2))
    for s in tile_side:
        if s not in bound:
            raise BadMapping(
                f"{what}: {s} is no iterator; the kernel's IteratorBindings name {dims_text(tuple(bound))}",
                author_location(2),
            )
    dims = tuple(bound[s] for s in tile_side)
    extra: list[Value] = []
    lookups = []
    at: list[Expr] = []
    for entry in memory_side:
        if isinstance(entry, Tile):
            place = tuple(next(s for s, d in bound.items() if d is dim) for dim in entry.type.dims)
            number = IndexMapping.dynamic_val(len(extra))
            lookups.append((number, place))
            extra.append(entry.value)
            at.append(number)
        else:
            at.append(as_expr(entry))
    if len(at) != len(memory.dims):
        raise BadMapping(
            f"{what}: {len(at)} coordinates for memory of {len(memory.dims)} dimensions", author_location(2)
        )
    attrs |= {"over": tuple(tile_side), "at": tuple(at)}
    if lookups:
        attrs["lookups"] = tuple(lookups)
    return attrs, extra, dims


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
    """Memory shared by the threads of one workgroup."""
    kind = MemoryType(element_type(dtype), dims_of(shape), "shared")
    made = tracer("allocate").emit("allocate", (), {"tile": dims_of(distributed_shape)}, (kind,))
    return MemoryArgument(made.result)


def shared_memory_barrier(*args: Any, **options: Any) -> None:
    """Orders accesses to allocated memory before and after it."""
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
