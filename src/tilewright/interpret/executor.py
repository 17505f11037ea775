"""The executor: what a tile program means, in numpy.

A logical program runs once, on whole tensors. A grid program runs workgroup by workgroup, in ascending id; there
each constrained dimension is cut to the workgroup's tile. Inside `iterate` a dimension is cut to the current tile.
Elements outside the iteration are never read, combined or written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.algebra.expr_use import evaluate
from tilewright.errors import ExecutionError, ExpressionError, OutOfScope, ProgramError, UnboundSymbol
from tilewright.interpret import elementwise, loops
from tilewright.interpret.tiles import (
    Array,
    TileValue,
    accumulator,
    common_parts,
    computable,
    round_to,
    scalar_value,
    spread,
)
from tilewright.ir import dtypes
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType, Value
from tilewright.ir.printer import op_text
from tilewright.ir.tile import REDUCTIONS, loose, union_dims

WORKGROUPS = tuple(symbol(f"WORKGROUP_{i}", 0) for i in range(5))


def execute(
    program: Program,
    symbols: Mapping[Symbol, int],
    arguments: Mapping[Value, Any],
    logs: dict[str, Any] | None = None,
    derived: Mapping[Symbol, Expr] | None = None,
) -> None:
    """Runs the program: `arguments` are numpy arrays, written in place, and numbers.

    `symbols` binds every symbol that the program needs; `derived` those that depend on the workgroup; `logs` receives
    what debug_log keeps.
    """
    run = _Run(program, dict(symbols), logs, dict(derived or {}))
    for value, given in arguments.items():
        if isinstance(value.type, MemoryType):
            run.memory[value] = given
        else:
            run.values[value] = scalar_value(given, value.type.dtype)
    for op in program.body.ops:  # scalar arguments that bind symbols count in constraints too
        if op.name == "set_symbol" and op.operands[0] in arguments:
            run.set_symbol(op)
    for ids in _workgroups(program, run):
        run.workgroup(ids)
        run.block(program.body)


def is_grid(program: Program) -> bool:
    """Whether the program's constraints are part of its meaning: it mentions workgroups or shares memory."""
    for record in program.records:
        if record.name == "grid" or "iters" in record.attrs or "start" in record.attrs:
            return True
        if any(_mentions(e) for e in _expressions(record.attrs)):
            return True
    if any(_mentions(e) for e in program.bindings.values() if isinstance(e, Expr)):
        return True
    return any(
        op.name == "allocate" or loose(op) is not None or any(map(_mentions, _expressions(op.attrs)))
        for op in program.walk()
    )


def _expressions(attrs: Mapping[str, Any]) -> Iterator[Expr]:
    for value in attrs.values():
        if isinstance(value, Expr):
            yield value
        elif isinstance(value, tuple):
            for entry in value:
                for e in entry if isinstance(entry, tuple) else (entry,):
                    if isinstance(e, Expr):
                        yield e
                    elif isinstance(e, tuple):
                        yield from (x for x in e if isinstance(x, Expr))


def _mentions(e: Expr) -> bool:
    return any(s.name.startswith("WORKGROUP_") for s in e.symbols)


def refuse_threads(program: Program) -> None:
    """Raises where a thread's identity is used: a tile program has no threads."""
    for op in [*program.records, *program.walk()]:
        for e in _expressions(op.attrs):
            for s in e.symbols:
                if s.name.startswith("THREAD_"):
                    raise OutOfScope(f"{s.name}: a tile program has no threads", op.loc)


def _workgroups(program: Program, run: _Run) -> Iterator[tuple[int, ...] | None]:
    """The ids of the workgroups in ascending order, first grid dimension fastest; None once for a logical program."""
    if not is_grid(program):
        yield None
        return
    sizes: dict[int, int] = {}
    persistent = [record for record in program.records if record.name == "grid"]
    if persistent:  # a fixed number of workgroups, which share the work among themselves
        yield from ((i,) for i in range(run.number(persistent[0].attrs["count"])))
        return
    for record in program.records:
        if record.name == "workgroup" and record.attrs.get("primary", True):
            attrs = record.attrs
            if "iters" in attrs:
                count = run.number(attrs["iters"])
            else:
                count = -(-run.number(attrs["dim"]) // run.number(attrs["tile"]))
            sizes[attrs["grid"]] = count
    counts = [sizes.get(i, 1) for i in range(max(sizes, default=0) + 1)]
    for ids in product(*[range(n) for n in reversed(counts)]):
        yield tuple(reversed(ids))


@dataclass(eq=False)
class _Run:
    """One execution: values, memory, what symbols stand for, and which part of each dimension is current."""

    program: Program
    symbols: dict[Symbol, int]
    logs: dict[str, Any] | None
    derived: dict[Symbol, Expr]
    values: dict[Value, TileValue] = field(default_factory=dict)
    memory: dict[Value, Array] = field(default_factory=dict)
    parts: dict[Expr, tuple[int, int]] = field(default_factory=dict)
    """Dimensions of which only a part is current: first coordinate, one past the last."""
    bound: dict[Symbol, TileValue] = field(default_factory=dict)
    """What set_symbol made symbols stand for."""
    walking: set[Expr] = field(default_factory=set)
    """The axes of the while loops around."""
    masks: list[TileValue] = field(default_factory=list)
    """The conditions of the conditionals around."""

    # -- numbers and dimensions -----------------------------------------------------------------------

    def number(self, e: Expr, at: Op | None = None) -> int:
        """An expression that has one value now."""
        try:
            known: dict[Any, Any] = dict(self.symbols)
            for s, tile in self.bound.items():
                if s in e.symbols:
                    known[s] = self.uniform(tile, str(s), at)
            return int(evaluate(e, known))
        except ExpressionError as fault:
            raise UnboundSymbol(f"{e}: {fault}", at.loc if at else None) from None

    def uniform(self, tile: TileValue, what: str, at: Op | None) -> Any:
        """The one value of a tile whose elements are all alike."""
        flat = tile.array.reshape(-1)
        if flat.size == 0 or not np.all(flat == flat[0]):
            raise ExecutionError(
                f"{what} must have one value here, but differs from element to element", at.loc if at else None
            )
        return flat[0].item()

    def part(self, dim: Expr) -> tuple[int, int]:
        """The current coordinates of a dimension: first, and one past the last."""
        current = self.bound.get(dim) if isinstance(dim, Symbol) else None
        if current is not None and dim in self.walking:  # the axis of a while loop is one wide
            place = int(self.uniform(current, str(dim), None))
            return place, place + 1
        found = self.parts.get(dim)
        if found is not None:
            if current is not None:  # set_symbol gave the dimension a size: it ends there
                size = int(self.uniform(current, str(dim), None))
                return min(found[0], size), min(found[1], size)
            return found
        cut = [s for s in dim.symbols if s in self.parts]
        if cut and not isinstance(dim, Symbol):
            (s,) = cut
            known: dict[Any, Any] = dict(self.symbols)
            first, last = self.parts[s]
            low = evaluate(dim, {**known, s: first})
            return int(low), int(evaluate(dim, {**known, s: last}))
        return 0, self.number(dim)

    def starts_and_shape(self, dims: tuple[Expr, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        parts = [self.part(d) for d in dims]
        return tuple(first for first, _ in parts), tuple(max(0, last - first) for first, last in parts)

    def workgroup(self, ids: tuple[int, ...] | None) -> None:
        """Makes one workgroup current: its ids, and its part of every constrained dimension."""
        self.parts.clear()
        if ids is None:
            return
        for i, s in enumerate(WORKGROUPS):
            self.symbols[s] = ids[i] if i < len(ids) else 0
        for s, e in self.derived.items():
            self.symbols[s] = self.number(e)
        reordered = {
            r.attrs["grid"]: self.number(r.attrs["value"]) for r in self.program.records if r.name == "reordering"
        }
        for grid, value in reordered.items():
            self.symbols[WORKGROUPS[grid]] = value
        for record in self.program.records:
            if record.name != "workgroup":
                continue
            attrs = record.attrs
            tile = self.number(attrs["tile"])
            own = reordered.get(attrs["grid"], ids[attrs["grid"]] if attrs["grid"] < len(ids) else 0)
            if any(r.name == "grid" for r in self.program.records):
                own = 0  # the kernel itself adds where each of its tiles starts
            first = self.number(attrs["start"]) if "start" in attrs else own * tile
            size = self.number(attrs["dim"])
            if attrs.get("primary", True):
                self.parts[attrs["dim"]] = (min(first, size), min(first + tile, size))
            else:  # it goes along with another dimension, and mappings bring it into range
                self.parts[attrs["dim"]] = (first, first + tile)
        self.memory = {v: array for v, array in self.memory.items() if v.type.space != "shared"}

    # -- running --------------------------------------------------------------------------------------

    def block(self, block: Block) -> tuple[TileValue, ...]:
        """Runs the operations; gives what the block yields."""
        for op in block.ops:
            if op.name == "yield":
                return tuple(self.values[v] for v in op.operands)
            try:
                results = self.op(op)
            except ProgramError:
                raise
            except (ArithmeticError, IndexError, ValueError, FloatingPointError) as fault:
                raise ExecutionError(f"{op_text(op)}: {fault}", op.loc) from fault
            for value, result in zip(op.results, results, strict=op.name != "allocate"):  # memory is no tile
                self.values[value] = result
        return ()

    def op(self, op: Op) -> tuple[TileValue, ...]:
        handler = _HANDLERS.get(op.name)
        if handler is not None:
            return handler(self, op)
        with np.errstate(all="ignore"):
            return (self.elementwise(op),)

    def tiles(self, op: Op) -> list[TileValue]:
        return [self.values[v] for v in op.operands]

    def elementwise(self, op: Op) -> TileValue:
        tiles = self.tiles(op)
        result: TileType = op.results[0].type
        parts = common_parts(tiles)
        dtype = tiles[0].dtype
        arrays = [spread(t, result.dims, parts, computable(t.array, t.dtype)) for t in tiles]
        function: Callable[..., Any] = elementwise.UNARY.get(op.name) or elementwise.BINARY[op.name]
        if dtype is dtypes.bool_ and op.name in ("add", "mul", "sub"):
            raise ProgramError(f"{op.name} of bool tiles: use &, | or select", op.loc)
        return self.made(result, parts, round_to(np.asarray(function(*arrays)), result.dtype))

    def made(self, kind: TileType, parts: dict[Expr, tuple[int, int]], array: Array) -> TileValue:
        """A new tile over these parts; the array broadcasts to them."""
        shape = tuple(parts[d][1] - parts[d][0] for d in kind.dims)
        return TileValue(kind.dtype, kind.dims, tuple(parts[d][0] for d in kind.dims), np.broadcast_to(array, shape))

    def conform(self, tile: TileValue, dims: tuple[Expr, ...], at: Op) -> TileValue:
        """The tile over other dimensions: those left out or added must be one coordinate wide now."""
        if set(tile.dims) == set(dims):
            return tile
        array, wide = tile.data, tile.wide
        kept = [i for i, d in enumerate(tile.dims) if d in dims]
        for i in reversed(range(len(tile.dims))):
            if i not in kept:
                if array.shape[i] != 1:
                    raise ExecutionError(
                        f"{at.name}: {tile.dims[i]} is left out, but is {array.shape[i]} wide here", at.loc
                    )
                array = array.squeeze(i)
                wide = None if wide is None else wide.squeeze(i)
        added = [d for d in dims if d not in tile.dims]
        starts = [tile.starts[i] for i in kept]
        for d in added:
            first, last = self.part(d)
            if last - first != 1:
                raise ExecutionError(f"{at.name}: {d} is added, but is {last - first} wide here", at.loc)
            starts.append(first)
        shape = (*array.shape, *[1] * len(added))
        found = (*(tile.dims[i] for i in kept), *added)
        return TileValue(
            tile.dtype, found, tuple(starts), array.reshape(shape), None if wide is None else wide.reshape(shape)
        )

    # -- making values ----------------------------------------------------------------------------------

    def fill(self, op: Op) -> tuple[TileValue, ...]:
        kind: TileType = op.results[0].type
        value = op.attrs["value"]
        starts, shape = self.starts_and_shape(kind.dims)
        number = self.number(value, op) if isinstance(value, Expr) else value
        array = np.broadcast_to(round_to(np.asarray(number), kind.dtype), shape)
        return (TileValue(kind.dtype, kind.dims, starts, array),)

    def scalar(self, op: Op) -> tuple[TileValue, ...]:
        value = op.attrs["value"]
        if isinstance(value, Expr):
            tiles = [t for s, t in self.bound.items() if s in value.symbols]
            if any(t.dims for t in tiles):  # a symbol that differs from element to element makes a tile
                dims: tuple[Expr, ...] = ()
                for tile in tiles:
                    dims = union_dims(dims, tile.dims)
                parts = common_parts(tiles)
                array = self.on_grid(value, dims, parts, {}, op)
                return (self.made(TileType(op.attrs["dtype"], dims), parts, round_to(array, op.attrs["dtype"])),)
            value = self.number(value, op)
        return (scalar_value(value, op.attrs["dtype"]),)

    def self_index(self, op: Op) -> tuple[TileValue, ...]:
        kind: TileType = op.results[0].type
        first, last = self.part(op.attrs["dim"])
        return (TileValue(kind.dtype, kind.dims, (first,), np.arange(first, last).astype(kind.dtype.numpy)),)

    def apply(self, op: Op) -> tuple[TileValue, ...]:
        kind: TileType = op.results[0].type
        tiles = self.tiles(op)
        parts = common_parts(tiles)
        known = {
            s: spread(t, kind.dims, parts, t.array).astype(np.int64)
            for s, t in zip(op.attrs["over"], tiles, strict=True)
        }
        array = self.on_grid(op.attrs["value"], kind.dims, parts, known, op)
        return (self.made(kind, parts, round_to(array, kind.dtype)),)

    def on_grid(
        self,
        e: Expr,
        dims: tuple[Expr, ...],
        parts: Mapping[Expr, tuple[int, int]],
        known: Mapping[Symbol, Any],
        at: Op,
    ) -> Array:
        """An expression at every element of a tile over `dims`; symbols set from tiles take their element's value."""
        values: dict[Any, Any] = {**self.symbols, **known}
        for s in e.symbols:
            tile = self.bound.get(s)
            if tile is None or s in known:
                continue
            if all(d in dims for d in tile.dims):
                values[s] = spread(tile, dims, dict(parts), tile.array).astype(np.int64)
            else:
                values[s] = self.uniform(tile, str(s), at)
        try:
            return np.asarray(evaluate(e, values))
        except ExpressionError as fault:
            raise UnboundSymbol(f"{e}: {fault}", at.loc) from None

    def set_symbol(self, op: Op) -> tuple[TileValue, ...]:
        (tile,) = self.tiles(op)
        self.bound[op.attrs["symbol"]] = tile
        return ()

    # -- memory -----------------------------------------------------------------------------------------

    def allocate(self, op: Op) -> tuple[TileValue, ...]:
        kind: MemoryType = op.results[0].type
        shape = tuple(self.number(d, op) for d in kind.dims)
        poison = np.nan if kind.dtype.is_float else 0
        self.memory[op.results[0]] = np.full(shape, poison, kind.dtype.numpy)
        return ()

    def coordinates(
        self, op: Op, dims: tuple[Expr, ...], parts: dict[Expr, tuple[int, int]], extra: tuple[Value, ...]
    ) -> list[Array]:
        """The memory coordinates of every element of the tile, each shaped to broadcast over the tile."""
        known: dict[Symbol, Any] = {}
        for place, (iterator, dim) in enumerate(zip(op.attrs["over"], dims, strict=True)):
            shape = [1] * len(dims)
            shape[place] = -1
            known[iterator] = np.arange(*parts[dim]).reshape(shape)
        for (name, at), value in zip(op.attrs.get("lookups", ()), extra, strict=True):
            tile = self.values[value]
            where = []
            for e, start, size in zip(at, tile.starts, tile.array.shape, strict=True):
                place_ = self.on_grid(e, dims, parts, known, op) - start
                if np.any((place_ < 0) | (place_ >= size)):
                    raise ExecutionError(f"{op.name}: the dynamic value is looked up at {e}, outside it", op.loc)
                where.append(place_)
            known[name] = tile.array[tuple(where)].astype(np.int64)
        return [self.on_grid(e, dims, parts, known, op) for e in op.attrs["at"]]

    def kept(self, op: Op, dims: tuple[Expr, ...], parts: dict[Expr, tuple[int, int]]) -> Array | None:
        """Where `bounds` and the conditionals around let an access through; None: everywhere."""
        result: Array | None = None
        for dim, bound in op.attrs.get("bounds", ()):
            if dim not in dims:
                continue
            shape = [1] * len(dims)
            shape[dims.index(dim)] = -1
            inside = np.arange(*parts[dim]).reshape(shape) < self.on_grid(bound, dims, parts, {}, op)
            result = inside if result is None else result & inside
        return result

    def masked(
        self, op: Op, dims: tuple[Expr, ...], parts: dict[Expr, tuple[int, int]], kept: Array | None
    ) -> Array | None:
        for mask in self.masks:
            if all(d in dims for d in mask.dims):
                inside = spread(mask, dims, parts, mask.array).astype(bool)
            else:
                inside = np.asarray(bool(self.uniform(mask, "the condition", op)))
            kept = inside if kept is None else kept & inside
        return kept

    def read(self, op: Op) -> tuple[TileValue, ...]:
        source, *extra = op.operands
        array = self.memory[source]
        kind: TileType = op.results[0].type
        parts = {d: self.part(d) for d in kind.dims}
        shape = tuple(max(0, parts[d][1] - parts[d][0]) for d in kind.dims)
        if "at" not in op.attrs:
            place = [slice(*parts[d]) for d in source.type.dims]
            found = array[tuple(place)].transpose([source.type.dims.index(d) for d in kind.dims])
            found = found.copy()
        else:
            at = self.coordinates(op, kind.dims, parts, tuple(extra))
            found = self.gather(op, array, at, shape)
        kept = self.kept(op, kind.dims, parts)
        if kept is not None:
            found = np.where(kept, found, round_to(np.asarray(op.attrs.get("otherwise", 0)), kind.dtype))
        return (self.made(kind, parts, found),)

    def gather(self, op: Op, array: Array, at: list[Array], shape: tuple[int, ...]) -> Array:
        """The elements at these coordinates; outside memory the `otherwise` value, or an error."""
        if prod(shape) == 0:
            return np.empty(shape, array.dtype)
        valid: Array | None = None
        for coordinate, size in zip(at, array.shape, strict=True):
            if coordinate.min() < 0 or coordinate.max() >= size:
                inside = (coordinate >= 0) & (coordinate < size)
                valid = inside if valid is None else valid & inside
        if valid is None:
            return np.broadcast_to(array[tuple(at)], shape)
        if "otherwise" not in op.attrs:
            through = self.masked(op, op.results[0].type.dims, {d: self.part(d) for d in op.results[0].type.dims}, None)
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

    def write(self, op: Op) -> tuple[TileValue, ...]:
        source, target, *extra = op.operands
        tile = self.values[source]
        array = self.memory[target]
        if "at" not in op.attrs:
            tile = self.conform(tile, target.type.dims, op)
        parts = {d: tile.part(d) for d in tile.dims}
        for d in tile.dims:  # inside a loop or a workgroup only the current part is written
            first, last = self.part(d)
            parts[d] = (max(first, parts[d][0]), min(last, parts[d][1]))
        if any(last <= first for first, last in parts.values()):
            return (tile,) if op.results else ()
        data = round_to(spread(tile, tile.dims, parts, tile.array), target.type.dtype)
        kept = self.masked(op, tile.dims, parts, self.kept(op, tile.dims, parts))
        if "at" not in op.attrs and kept is None and op.name == "write":
            data = data.transpose([tile.dims.index(d) for d in target.type.dims])
            array[tuple(slice(*parts[d]) for d in target.type.dims)] = data
            return ()
        if "at" in op.attrs:
            at = self.coordinates(op, tile.dims, parts, tuple(extra))
        else:
            at = []
            for d in target.type.dims:
                shape = [1] * len(tile.dims)
                shape[tile.dims.index(d)] = -1
                at.append(np.arange(*parts[d]).reshape(shape))
        before = self.scatter(op, array, at, data, kept)
        return () if before is None else (self.made(TileType(tile.dtype, tile.dims), parts, before),)

    def scatter(self, op: Op, array: Array, at: list[Array], data: Array, kept: Array | None) -> Array | None:
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

    # -- combining --------------------------------------------------------------------------------------

    def mma(self, op: Op) -> tuple[TileValue, ...]:
        a, b, acc = self.tiles(op)
        parts = common_parts([a, b, acc])
        for d in (loose(op) or (set(),))[0]:
            if parts[d][1] - parts[d][0] != 1:
                raise ExecutionError(
                    f"mma: {d} is in one factor only, but is {parts[d][1] - parts[d][0]} wide here", op.loc
                )
        letters: dict[Expr, str] = {}
        for d in (*a.dims, *b.dims):
            letters.setdefault(d, chr(ord("a") + len(letters)))
        left, right = ("".join(letters[d] for d in t.dims) for t in (a, b))
        out = "".join(letters[d] for d in acc.dims)
        carried = acc.dtype.accumulator.numpy
        if a.dtype is dtypes.f64 or b.dtype is dtypes.f64:
            carried = np.dtype(np.float64)
        exact = carried.kind == "i" and max(a.dtype.bits, b.dtype.bits) <= 16
        compute = np.dtype(np.float64) if exact else np.dtype(np.int64) if carried.kind == "i" else carried
        arrays = [spread(t, t.dims, parts, t.array).astype(compute) for t in (a, b)]
        if op.attrs.get("precision") == "tf32":
            arrays = [_tf32(x) for x in arrays]
        with np.errstate(all="ignore"):
            total = np.einsum(f"{left},{right}->{out}", *arrays, optimize=True)
            if carried.kind == "i":
                total = total.astype(np.int64)
            total = total + spread(acc, acc.dims, parts, acc.accumulated).astype(total.dtype)
        starts = tuple(parts[d][0] for d in acc.dims)
        return (accumulator(acc.dtype, acc.dims, starts, total.astype(carried)),)

    def reduce(self, op: Op) -> tuple[TileValue, ...]:
        tiles = self.tiles(op)
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

    def cumsum(self, op: Op) -> tuple[TileValue, ...]:
        tile, *start = self.tiles(op)
        axis = tile.dims.index(op.attrs["dim"])
        wide = tile.dtype.accumulator.numpy
        total = np.cumsum(tile.array.astype(wide), axis=axis, dtype=wide)
        if start:
            parts = {d: tile.part(d) for d in tile.dims}
            carried = start[0]
            if op.attrs["dim"] in carried.dims:  # a start given as a tile along the dimension: its last element counts
                place = carried.dims.index(op.attrs["dim"])
                last = np.take(carried.accumulated, [-1], axis=place)
                total = total + last.transpose([carried.dims.index(d) for d in tile.dims]).astype(wide)
            else:
                total = total + spread(carried, tile.dims, parts, carried.accumulated).astype(wide)
        return (TileValue(tile.dtype, tile.dims, tile.starts, round_to(total, tile.dtype)),)

    def topk(self, op: Op) -> tuple[TileValue, ...]:
        (tile,) = self.tiles(op)
        values, places = op.results
        axis = tile.dims.index(op.attrs["dim"])
        count = self.number(op.attrs["count"], op)
        key = -tile.array.astype(np.float64)
        order = np.argsort(key, axis=axis, kind="stable")
        order = np.take(order, np.arange(min(count, order.shape[axis])), axis=axis)
        found = np.take_along_axis(tile.array, order, axis)
        starts = tuple(0 if i == axis else s for i, s in enumerate(tile.starts))
        where = (order + tile.starts[axis]).astype(np.int32)
        return (
            TileValue(tile.dtype, values.type.dims, starts, found),
            TileValue(dtypes.i32, places.type.dims, starts, where),
        )

    # -- changing form ----------------------------------------------------------------------------------

    def cast(self, op: Op) -> tuple[TileValue, ...]:
        (tile,) = self.tiles(op)
        to = op.attrs["dtype"]
        array = tile.array
        if tile.dtype.is_float and to.kind == "int":
            array = _towards_zero(computable(array, tile.dtype), to)
        return (TileValue(to, tile.dims, tile.starts, round_to(array, to)),)

    def bitcast(self, op: Op) -> tuple[TileValue, ...]:
        (tile,) = self.tiles(op)
        to = op.attrs["dtype"]
        array = np.ascontiguousarray(tile.array).view(to.numpy)
        starts = tile.starts
        if starts and to.bits != tile.dtype.bits:
            starts = (*starts[:-1], starts[-1] * tile.dtype.bits // to.bits)
        return (TileValue(to, op.results[0].type.dims, starts, array),)

    def broadcast(self, op: Op) -> tuple[TileValue, ...]:
        (tile,) = self.tiles(op)
        kind: TileType = op.results[0].type
        parts = {d: tile.part(d) if d in tile.dims else self.part(d) for d in kind.dims}
        return (self.made(kind, parts, spread(tile, kind.dims, parts, tile.array)),)

    def reshape(self, op: Op) -> tuple[TileValue, ...]:
        (tile,) = self.tiles(op)
        kind: TileType = op.results[0].type
        starts, shape = self.starts_and_shape(kind.dims)
        if prod(shape) != tile.array.size:
            raise ExecutionError(f"reshape of {tile.array.shape} to {shape}: the sizes differ", op.loc)
        return (TileValue(tile.dtype, kind.dims, starts, np.ascontiguousarray(tile.array).reshape(shape)),)

    def select(self, op: Op) -> tuple[TileValue, ...]:
        tiles = self.tiles(op)
        kind: TileType = op.results[0].type
        parts = common_parts(tiles)
        condition, a, b = (spread(t, kind.dims, parts, t.array) for t in tiles)
        return (self.made(kind, parts, np.where(condition, a, b)),)

    def extract(self, op: Op) -> tuple[TileValue, ...]:
        (tile,) = self.tiles(op)
        offsets = [self.number(e, op) for e in op.attrs["offset"]]
        flat = tile.array.reshape(-1)[offsets[0]] if len(offsets) == 1 else tile.array[tuple(offsets)]
        return (TileValue(tile.dtype, (), (), np.asarray(flat)),)

    # -- control flow -----------------------------------------------------------------------------------

    def iterate(self, op: Op) -> tuple[TileValue, ...]:
        if op.attrs.get("start"):
            return self.while_loop(op)
        axis: Expr = op.attrs["axis"]
        carried = self.tiles(op)
        tiling = loops.tiling_of(self.program, axis)
        attrs = tiling.attrs if tiling is not None else {}
        first, size = self.part(axis)
        if loops.accumulates_only(op) and "iters" not in attrs and "start" not in attrs:
            tile = max(1, size - first)
        elif "tile" in attrs:
            tile = self.number(attrs["tile"], op)
        elif op.attrs.get("any_tile"):
            tile = max(1, size - first)
            if not any(inner.name in _EFFECTS for inner in op.blocks[0].ops):
                self.check_any_tile(op, axis, first, size, carried)
        else:
            raise ExecutionError(f"iterate over {axis} has no tile size", op.loc)
        begin = self.number(attrs["start"], op) if "start" in attrs else first
        count = self.number(attrs["iters"], op) if "iters" in attrs else -(-(size - begin) // tile)
        return self.run_tiles(
            op, axis, [(begin + i * tile, min(begin + (i + 1) * tile, size)) for i in range(count)], carried
        )

    def run_tiles(
        self, op: Op, axis: Expr, tiles: list[tuple[int, int]], carried: list[TileValue]
    ) -> tuple[TileValue, ...]:
        (body,) = op.blocks
        outside = self.parts.get(axis)
        for first, last in tiles:
            if last <= first:
                continue
            self.parts[axis] = (first, last)
            for arg, tile in zip(body.args, carried, strict=True):
                self.values[arg] = tile
            carried = [
                self.conform(tile, arg.type.dims, op) for tile, arg in zip(self.block(body), body.args, strict=True)
            ]
        if outside is None:
            self.parts.pop(axis, None)
        else:
            self.parts[axis] = outside
        results = []
        for tile, value in zip(carried, op.results, strict=True):
            if axis in tile.dims:
                raise ExecutionError(f"iterate over {axis}: a carried value has that dimension itself", op.loc)
            parts = {d: tile.part(d) for d in tile.dims}
            kind: TileType = value.type
            results.append(self.made(kind, parts, spread(tile, kind.dims, parts, tile.array)))
        return tuple(results)

    def check_any_tile(self, op: Op, axis: Expr, first: int, size: int, carried: list[TileValue]) -> None:
        """That two tile sizes give the same, within rounding: the author promised that all do."""
        half = max(1, (size - first + 1) // 2)
        results = [
            self.run_tiles(op, axis, [(k, min(k + step, size)) for k in range(first, size, step)], carried)
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

    def while_loop(self, op: Op) -> tuple[TileValue, ...]:
        start, *carried = self.tiles(op)
        axis: Any = op.attrs["axis"]
        (body,) = op.blocks
        outside = self.bound.get(axis)
        self.bound[axis] = start
        self.walking.add(axis)
        while self.holds(op, carried):
            before = self.bound[axis]
            for arg, tile in zip(body.args, carried, strict=True):
                self.values[arg] = tile
            carried = list(self.block(body))
            if self.bound[axis] is before:
                raise ExecutionError(f"while loop over {axis}: the body never sets it by tkw.set_symbol", op.loc)
        self.walking.discard(axis)
        if outside is None:
            del self.bound[axis]
        else:
            self.bound[axis] = outside
        return tuple(carried)

    def holds(self, op: Op, carried: list[TileValue]) -> bool:
        """The condition of a while loop now; GET_ITER_ARG(n) in it is the n-th carried value."""
        for place, tile in enumerate(carried):
            self.bound[symbol(f"GET_ITER_ARG_{place}")] = tile
        return bool(self.number(op.attrs["condition"], op))

    def conditional(self, op: Op) -> tuple[TileValue, ...]:
        (body,) = op.blocks
        if "when" in op.attrs:
            otherwise = self.tiles(op)
            tiles = [t for s, t in self.bound.items() if s in op.attrs["when"].symbols and t.dims]
            if tiles:
                dims: tuple[Expr, ...] = ()
                for t in tiles:
                    dims = union_dims(dims, t.dims)
                parts = common_parts(tiles)
                truth = self.on_grid(op.attrs["when"], dims, parts, {}, op) != 0
                condition = self.made(TileType(dtypes.bool_, dims), parts, truth)
            else:
                condition = scalar_value(bool(self.number(op.attrs["when"], op)), dtypes.bool_)
        else:
            condition, *otherwise = self.tiles(op)
            condition = TileValue(dtypes.bool_, condition.dims, condition.starts, condition.array.astype(bool))
        if not np.any(condition.array):
            return tuple(otherwise)
        if np.all(condition.array):
            return self.block(body) if op.results else (self.block(body), ())[1]
        with self.masked_by(condition):
            found = self.block(body)
        results = []
        for yes, no in zip(found, otherwise, strict=True):
            parts = common_parts([yes, no, condition])
            arrays = [spread(t, yes.dims, parts, t.array) for t in (condition, yes, no)]
            results.append(self.made(TileType(yes.dtype, yes.dims), parts, np.where(*arrays)))
        return tuple(results)

    @contextmanager
    def masked_by(self, condition: TileValue) -> Iterator[None]:
        self.masks.append(condition)
        try:
            yield
        finally:
            self.masks.pop()

    def debug_log(self, op: Op) -> tuple[TileValue, ...]:
        """Keeps the tile, put together over all loops and workgroups: each part where its coordinates say."""
        if self.logs is None:
            return ()
        (tile,) = self.tiles(op)
        label = op.attrs["label"]
        dims = op.attrs.get("to", tile.dims)
        if label not in self.logs:
            shape = tuple(self.number(d, op) for d in dims)
            poison = np.nan if tile.dtype.is_float else 0
            self.logs[label] = {"value": np.full(shape, poison, tile.dtype.numpy)}
        value = self.logs[label]["value"]
        parts = {d: tile.part(d) for d in tile.dims}
        if "at" in op.attrs:
            at = self.coordinates(op, tile.dims, parts, ())
            inside = np.asarray(True)
            for coordinate, size in zip(at, value.shape, strict=True):
                inside = inside & (coordinate >= 0) & (coordinate < size)
            inside = np.broadcast_to(inside, tile.array.shape)
            value[tuple(np.broadcast_to(c, tile.array.shape)[inside] for c in at)] = tile.array[inside]
        else:
            value[tuple(slice(*parts[d]) for d in dims)] = tile.array
        return ()

    def nothing(self, op: Op) -> tuple[TileValue, ...]:
        return ()


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


def _towards_zero(array: Array, to: dtypes.DType) -> Array:
    """Floats without their fraction, kept within the range of an integer type; what is no number becomes 0."""
    low, high = (-8, 7) if to.bits == 4 else (np.iinfo(to.numpy).min, np.iinfo(to.numpy).max)
    whole = np.where(np.isnan(array), 0, np.trunc(array)).astype(np.float64)
    inside = (whole > low) & (whole < high)  # beyond, the limit itself: floats may not hold it
    return np.where(inside, np.where(inside, whole, 0).astype(np.int64), np.where(whole <= low, low, high))


def _tf32(array: Array) -> Array:
    """f32 numbers rounded to ten bits of fraction."""
    bits = array.astype(np.float32).view(np.uint32)
    rounded = bits + 0xFFF + ((bits >> 13) & 1)
    return np.where(np.isfinite(array), (rounded & 0xFFFFE000).view(np.float32), array)


_ATOMICS: dict[str, Any] = {"atomic_add": np.add, "atomic_min": np.minimum, "atomic_max": np.maximum}
_EFFECTS = ("write", "atomic_add", "atomic_min", "atomic_max", "set_symbol", "debug_log")
_COMBINE: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
_HANDLERS: dict[str, Callable[[_Run, Op], tuple[TileValue, ...]]] = {
    **dict.fromkeys(REDUCTIONS, _Run.reduce),
    **dict.fromkeys(("write", "atomic_add", "atomic_min", "atomic_max"), _Run.write),
    **dict.fromkeys(("broadcast", "permute"), _Run.broadcast),
    **{
        name: getattr(_Run, name)
        for name in (
            *(
                "fill",
                "read",
                "mma",
                "iterate",
                "conditional",
                "cast",
                "bitcast",
                "reshape",
                "select",
                "cumsum",
                "topk",
            ),
            *("self_index", "apply", "set_symbol", "scalar", "extract", "allocate", "debug_log"),
        )
    },
    "barrier": _Run.nothing,
}
