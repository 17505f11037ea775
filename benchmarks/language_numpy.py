"""The meaning of a tile program a second time, said in numpy without the package's interpreters.

Numbers are float64 and int64, and are not rounded: of exact programs every value is one of its type's, and of others it
is what theirs is an approximation of. Integers wrap. Whole tensors are computed at once; within a loop a dimension is
the part that is its turn. `Unsaid` is raised for what is not said here: memory of a workgroup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.algebra.expr_use import evaluate
from tilewright.ir import dtypes
from tilewright.ir.core import Block, MemoryType, Op, Program, Value

Array = np.ndarray[Any, np.dtype[Any]]


class Unsaid(Exception):
    """An operation that this evaluator does not say."""


def _erf(x: Array) -> Array:
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(x)


UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x, "abs": np.abs, "relu": lambda x: np.maximum(x, 0), "floor": np.floor, "ceil": np.ceil,
    "round": lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5), "roundeven": np.round, "exp": np.exp, "exp2": np.exp2,
    "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5, "reciprocal": lambda x: 1 / x, "tanh": np.tanh, "erf": _erf,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "sin": np.sin, "cos": np.cos, "sinh": np.sinh, "cosh": np.cosh,
    "cbrt": np.cbrt, "not_": lambda x: ~x,
}  # fmt: skip


def _divided(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    found: Array = (np.abs(a) // np.abs(b)) * np.sign(a) * np.sign(b)
    return found


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": _divided,
    "floordiv": lambda a, b: np.floor_divide(a, b), "mod": lambda a, b: a - b * np.floor_divide(a, b),
    "remf": np.fmod, "maximum": np.maximum, "minimum": np.minimum, "powf": lambda a, b: a**b, "atan2": np.arctan2,
    "and_": lambda a, b: a & b, "or_": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
}  # fmt: skip
REDUCED: dict[str, Any] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "cumsum": np.add,
    "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum, "atomic_add": np.add,
    "atomic_min": np.minimum, "atomic_max": np.maximum,
}  # fmt: skip


def of_type(array: Any, kind: dtypes.DType) -> Array:
    """An array as this evaluator keeps values of a type: integers wrapped, floats as they are."""
    found: Array = np.array(array)
    if kind is dtypes.bool_:
        return found.astype(bool)
    if kind.is_float:
        return found.astype(np.float64)
    found = found.astype(np.int64)
    if kind.bits == 4:
        return np.asarray((found + 8) % 16 - 8)
    return found.astype(kind.numpy).astype(np.int64)


class Evaluator:
    """One run of a program over arrays, which are written in place."""

    def __init__(self, program: Program, sizes: Mapping[str, int], arrays: Mapping[str, Array]):
        self.program = program
        self.known: dict[str, Any] = dict(sizes)
        for s, e in program.bindings.items():
            self.known[str(s)] = int(evaluate(e, self.known))
        self.arrays = {a: arrays[a.name or ""] for a in program.args}
        self.memory = {a: of_type(array, a.type.dtype) for a, array in self.arrays.items()}
        self.values: dict[Value, Array] = {}
        self.parts: dict[Any, tuple[int, int]] = {}
        self.masks: list[tuple[Any, Array]] = []

    def run(self) -> dict[str, Array]:
        """The arguments after the run, in float64 or int64."""
        with np.errstate(all="ignore"):
            self.block(self.program.body)
        return {a.name or "": array for a, array in self.memory.items()}

    # -- dimensions ----------------------------------------------------------------------------------------------

    def number(self, e: Any) -> int:
        """The value of an expression of sizes."""
        return int(evaluate(e, self.known))

    def part(self, dim: Any) -> tuple[int, int]:
        """The coordinates of a dimension whose turn it is: the first, and one past the last."""
        return self.parts.get(dim) or (0, self.number(dim))

    def shape(self, dims: Any) -> tuple[int, ...]:
        """The extents of a tile over dimensions."""
        return tuple(last - first for first, last in map(self.part, dims))

    def spread(self, value: Value, dims: Any, array: Array | None = None) -> Array:
        """A tile's array, in the order of other dimensions; 1 wide along those that it lacks."""
        its = value.type.dims
        array = self.values[value] if array is None else array
        array = array.transpose([its.index(d) for d in dims if d in its])
        return np.expand_dims(array, tuple(n for n, d in enumerate(dims) if d not in its))

    def put(self, op: Op, array: Any, place: int = 0) -> None:
        """Keeps a result, filled up to its dimensions."""
        kind = op.results[place].type
        self.values[op.results[place]] = of_type(np.broadcast_to(array, self.shape(kind.dims)), kind.dtype)

    # -- operations ----------------------------------------------------------------------------------------------

    def block(self, block: Block) -> list[Value]:
        """Runs the operations of a block; gives what it yields."""
        for op in block.ops:
            if op.name == "yield":
                return list(op.operands)
            self.operation(op)
        return []

    def operation(self, op: Op) -> None:
        """Runs one operation."""
        name, operands = op.name, op.operands
        kind: Any = op.results[0].type if op.results else None
        if name in ("debug_log", "barrier"):
            return
        if name in BINARY or name == "select":
            arrays = [self.spread(v, kind.dims) for v in operands]
            self.put(op, np.where(*arrays) if name == "select" else BINARY[name](*arrays))
        elif name in UNARY:
            self.put(op, UNARY[name](self.values[operands[0]]))
        elif name in ("fill", "scalar"):
            value = op.attrs["value"]
            self.put(op, value if isinstance(value, int | float) else self.number(value))
        elif name == "self_index":
            self.put(op, np.arange(*self.part(op.attrs["dim"])))
        elif name in ("broadcast", "permute"):
            self.put(op, self.spread(operands[0], kind.dims))
        elif name in ("sum", "prod", "max", "min"):
            self.reduction(op)
        elif name in ("cumsum", "cumprod", "cummax", "cummin"):
            self.scan(op)
        elif name.startswith("atomic") or name == "write":
            self.write(op)
        elif name == "set_symbol":
            self.known[str(op.attrs["symbol"])] = int(self.values[operands[0]].reshape(-1)[0])
        else:
            said = getattr(self, name, None)
            if said is None:
                raise Unsaid(name)
            said(op)

    def cast(self, op: Op) -> None:
        """The same numbers as another type."""
        array, to = self.values[op.operands[0]], op.attrs["dtype"]
        if array.dtype.kind == "f" and to.kind == "int":
            low, high = to.limits
            array = np.where(np.isnan(array), 0, np.clip(np.trunc(array), low, high))
        self.put(op, array)

    def bitcast(self, op: Op) -> None:
        """The same bits as another type."""
        source = op.operands[0]
        array = self.values[source].astype(source.type.dtype.numpy, order="C")
        self.put(op, array.view(op.attrs["dtype"].numpy))

    def reshape(self, op: Op) -> None:
        """The same elements, last dimension fastest, over other dimensions."""
        self.put(op, self.values[op.operands[0]].reshape(self.shape(op.results[0].type.dims)))

    def repeat(self, op: Op) -> None:
        """Each element several times."""
        source = op.operands[0]
        at = source.type.dims.index(op.attrs["dim"])
        self.put(op, np.repeat(self.values[source], op.attrs["times"], axis=at))

    def extract(self, op: Op) -> None:
        """One element."""
        self.put(op, self.values[op.operands[0]][tuple(map(self.number, op.attrs["offset"]))])

    def apply(self, op: Op) -> None:
        """An integer expression of elements."""
        dims = op.results[0].type.dims
        arrays = [np.broadcast_to(self.spread(v, dims), self.shape(dims)) for v in op.operands]
        known = {**self.known, **{str(s): a for s, a in zip(op.attrs["over"], arrays, strict=True)}}
        self.put(op, evaluate(op.attrs["value"], known))

    def reduction(self, op: Op) -> None:
        """A reduction along a dimension, of all sources and the start."""
        combine, dim, kind = REDUCED[op.name], op.attrs["dim"], op.results[0].type
        *sources, start = (*op.operands, None) if not op.attrs.get("acc") else op.operands
        left = [d for d in sources[0].type.dims if d is not dim]
        total: Any = None
        for v in sources:
            found = combine.reduce(self.values[v], v.type.dims.index(dim))
            total = found if total is None else combine(total, found)
        total = total.transpose([left.index(d) for d in kind.dims])
        self.put(op, total if start is None else combine(total, self.spread(start, kind.dims)))

    def scan(self, op: Op) -> None:
        """Running values along a dimension, from a start."""
        source, *start = op.operands
        combine = REDUCED[op.name]
        total = combine.accumulate(self.values[source], axis=source.type.dims.index(op.attrs["dim"]))
        self.put(op, combine(total, self.spread(start[0], source.type.dims)) if start else total)

    def topk(self, op: Op) -> None:
        """The largest elements, one after another."""
        source, count = op.operands[0], self.number(op.attrs["count"])
        at = source.type.dims.index(op.attrs["dim"])
        array = np.moveaxis(self.values[source], at, -1)
        rank = np.where(np.isnan(array), np.inf, array) if array.dtype.kind == "f" else array
        values, places = (np.zeros((*array.shape[:-1], count), x) for x in (array.dtype, np.int64))
        for row in np.ndindex(*array.shape[:-1]):
            keys = [(not np.isnan(array[row][n]), -float(rank[row][n]), n) for n in range(array.shape[-1])]
            order = [n for *_, n in sorted(keys)][:count]
            values[row], places[row] = array[row][order], order
        self.put(op, np.moveaxis(values, -1, at))
        self.put(op, np.moveaxis(places, -1, at), 1)

    def mma(self, op: Op) -> None:
        """The start and the sum of products."""
        a, b, acc = op.operands
        letters: dict[Any, str] = {}
        for d in (*a.type.dims, *b.type.dims, *acc.type.dims):
            letters.setdefault(d, chr(ord("a") + len(letters)))
        one, two, out = ("".join(letters[d] for d in v.type.dims) for v in (a, b, acc))
        self.put(op, np.einsum(f"{one},{two}->{out}", self.values[a], self.values[b]) + self.values[acc])

    # -- memory --------------------------------------------------------------------------------------------------

    def places(self, op: Op, dims: Any, memory: Value, lookups: Any) -> list[Array]:
        """The coordinates of memory of each element of a tile."""
        shape = self.shape(dims)
        grid = {
            d: np.arange(*self.part(d)).reshape([-1 if n == m else 1 for m in range(len(dims))])
            for n, d in enumerate(dims)
        }
        if "at" not in op.attrs:
            if any(d not in grid for d in memory.type.dims):
                raise Unsaid("a write at every coordinate")
            return [np.broadcast_to(grid[d], shape) for d in memory.type.dims]
        known = dict(self.known)
        for it, d in zip(op.attrs["over"], dims, strict=True):
            known[str(it)] = np.broadcast_to(grid[d], shape)
        for (name, at), value in zip(op.attrs.get("lookups", ()), lookups, strict=True):
            where = []
            for e, d in zip(at, value.type.dims, strict=True):
                where.append(np.broadcast_to(evaluate(e, known), shape) - self.part(d)[0])
            known[str(name)] = np.broadcast_to(self.values[value][tuple(where)], shape)
        return [np.broadcast_to(np.asarray(evaluate(e, known)), shape) for e in op.attrs["at"]]

    def read(self, op: Op) -> None:
        """The elements that an access names, or another number where there are none."""
        source, *lookups = op.operands
        at = self.places(op, op.results[0].type.dims, source, lookups)
        array = self.memory[source]
        inside = np.ones(self.shape(op.results[0].type.dims), bool)
        for coordinate, size in zip(at, array.shape, strict=True):
            inside &= (coordinate >= 0) & (coordinate < size)
        if not array.size:
            self.put(op, op.attrs.get("otherwise", 0))
            return
        found = array[tuple(np.clip(c, 0, n - 1) for c, n in zip(at, array.shape, strict=True))]
        self.put(op, np.where(inside, found, op.attrs.get("otherwise", 0)))

    def write(self, op: Op) -> None:
        """Elements to memory, in ascending order: those that lie inside, where the conditions hold."""
        source, target, *lookups = op.operands
        dims, values = source.type.dims, self.values[source]
        if "at" not in op.attrs:
            more = tuple(d for d in target.type.dims if d not in dims)
            dims = (*dims, *more)
            values = np.broadcast_to(self.spread(source, dims), self.shape(dims))
        at, array = self.places(op, dims, target, lookups), self.memory[target]
        inside = np.ones(values.shape, bool)
        for coordinate, size in zip(at, array.shape, strict=True):
            inside &= (coordinate >= 0) & (coordinate < size)
        for of, mask in self.masks:
            wide = mask.transpose([of.index(d) for d in dims if d in of])
            inside &= np.expand_dims(wide, tuple(n for n, d in enumerate(dims) if d not in of))
        where = tuple(c[inside] for c in at)
        if not where:
            array = array.reshape(1)
            where = (np.zeros(np.count_nonzero(inside), np.int64),)
        if op.name == "write":
            array[where] = of_type(values[inside], target.type.dtype)
        else:
            REDUCED[op.name].at(array, where, values[inside])
            array[...] = of_type(array, target.type.dtype)
        if op.results:
            self.values[op.results[0]] = np.zeros_like(values)  # what was there before: no rule uses it

    def allocate(self, op: Op) -> None:
        """Memory of the only workgroup that there is."""
        if any(r.name in ("workgroup", "grid", "wave") for r in self.program.records):
            raise Unsaid("allocate")
        kind: MemoryType = op.results[0].type
        poison = np.nan if kind.dtype.is_float else 77
        self.memory[op.results[0]] = of_type(np.full([self.number(d) for d in kind.dims], poison), kind.dtype)

    # -- control -------------------------------------------------------------------------------------------------

    def iterate(self, op: Op) -> None:
        """A loop over tiles of a dimension, or one that goes its own way."""
        axis, body = op.attrs["axis"], op.blocks[0]
        if op.attrs.get("start"):
            first, *carried = (self.values[v] for v in op.operands)
            self.known[str(axis)] = int(first)
            while evaluate(op.attrs["condition"], self.known):
                carried = self._round(body, carried)
            del self.known[str(axis)]
        else:
            carried = [self.values[v] for v in op.operands]
            if any(r.name == "workgroup" and r.attrs["dim"] is axis for r in self.program.records):
                raise Unsaid("iterate over a dimension of the grid")
            tiles = [r.attrs["tile"] for r in self.program.records if r.name == "tiling" and r.attrs["dim"] is axis]
            size = self.number(axis)
            tile = self.number(tiles[0]) if tiles else max(1, size)
            for begin in range(0, size, tile):
                self.parts[axis] = begin, min(size, begin + tile)
                carried = self._round(body, carried)
            self.parts.pop(axis, None)
        for n, array in enumerate(carried):
            self.put(op, array, n)

    def _round(self, body: Block, carried: list[Array]) -> list[Array]:
        for arg, array in zip(body.args, carried, strict=True):
            self.values[arg] = np.broadcast_to(array, self.shape(arg.type.dims))
        given = self.block(body)
        return [
            np.broadcast_to(self.spread(v, arg.type.dims), self.shape(arg.type.dims))
            for v, arg in zip(given, body.args, strict=True)
        ]

    def conditional(self, op: Op) -> None:
        """Writes where a condition holds, and other values there."""
        if "when" in op.attrs:
            raise Unsaid("conditional on an expression")
        where, *otherwise = op.operands
        self.masks.append((where.type.dims, self.values[where].astype(bool)))
        given = self.block(op.blocks[0])
        self.masks.pop()
        for n, (yes, no) in enumerate(zip(given, otherwise, strict=True)):
            dims = no.type.dims
            self.put(op, np.where(self.spread(where, dims).astype(bool), self.spread(yes, dims), self.values[no]), n)


def evaluated(program: Program, sizes: Mapping[str, int], arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arguments after a run, as float64 and int64."""
    return Evaluator(program, sizes, arrays).run()
