"""A checker's view of a program: its dimensions, its products, how operands lie.

Nothing here comes from the planner: dimensions and accesses are read from the traced program. Only the digits in which
a dimension counts (`M_2 32, M_1 56, M_0 56`) are taken from the text of a plan that was printed for these sizes: they
follow from the accesses, and no plan may change them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import MemoryType, Op, Program, TileType
from tilewright.ir.tile import REDUCTIONS
from tilewright.plan.text import parse_plan

SUM_BYTES = 4
"""Bytes of a sum that goes through memory to another kernel."""
WRITES = ("write", "atomic_add", "atomic_min", "atomic_max")
ADDS = ("read", "mma", "yield", "cast", "mul", "add", "sub", "broadcast", "permute", "fill", "scalar")
"""Operations in the body of a loop that only adds products: its tile changes nothing but the order of a sum."""


@dataclass(frozen=True)
class OperandShape:
    """An operand of a product: how its elements lie in memory, or that they are computed."""

    dims: tuple[str, ...]
    argument: str | None
    """The argument it is read from; None: it is computed."""
    contiguous: frozenset[str]
    """The dimensions whose neighbours are neighbours in memory."""
    bytes: float
    """Bytes of one element where it is loaded: less than the product's where it is widened, 0 of another product's."""
    pitches: tuple[int, ...]
    """Bytes between neighbours along each dimension of memory but the last."""
    from_product: bool = False


@dataclass(frozen=True)
class ProductShape:
    """C[rows, columns] += A[rows, summed] * B[summed, columns]; the last dimension of C is among the columns."""

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    kept: tuple[str, ...]
    summed: tuple[str, ...]
    types: tuple[str, str, str]
    precision: str | None
    a: OperandShape
    b: OperandShape

    @property
    def has_rows(self) -> bool:
        """Whether both operands have a dimension of their own, as an atom asks for."""
        return bool(self.rows and self.columns)


@dataclass(frozen=True)
class Shapes:
    """The sizes of a program's dimensions, its products and arguments, and the digits in which dimensions count."""

    sizes: Mapping[str, int]
    products: tuple[ProductShape, ...]
    arguments: tuple[str, ...]
    reduced: frozenset[str]
    """Dimensions along which something is summed, reduced or carried: tasks that cut them would share a result."""
    stated_loops: Mapping[str, int]
    """Tiles of loops that carry more than sums, which the author states: they are part of the meaning."""
    workgroups: Mapping[str, int]
    """Widths of workgroups that are part of a grid program's meaning."""
    result_bytes: int
    writes_tiles: bool
    """Whether a result has the columns of the last product: it leaves through shared memory."""
    values: tuple[tuple[tuple[str, ...], int], ...]
    """(dimensions, bytes of an element) of what is computed of a product and read again: by a reduction, or twice."""
    digits: Mapping[str, tuple[int, int]]
    """(extent, walked) of every digit of the printed plan."""
    printed: str
    """The text of the printed plan."""

    @property
    def reduced_apart(self) -> frozenset[str]:
        """Dimensions along which something is reduced that is neither a product nor the program's own loop."""
        return self.reduced - self.stated_loops.keys() - {d for product in self.products for d in product.summed}

    def dims_of(self, digit: str) -> tuple[str, ...]:
        """The dimensions that a digit of a plan is of: `m_1` of M, `M_N` of M and N as one number; none: of no one."""
        named = {name.lower(): name for name in self.sizes}
        for stem in (digit, re.sub(r"_(\d+|split|part)$", "", digit)):
            if stem.lower() in named:
                return (named[stem.lower()],)
        parts = digit.lower().split("_")
        return tuple(named[part] for part in parts) if all(part in named for part in parts) else ()


def shapes_of(program: Program, sizes: Mapping[str, int], printed: str) -> Shapes:
    """The shapes of a traced program for these sizes; `printed` is the plan that was printed for them."""
    values = _values(program, sizes)
    makers = program.makers()
    tiles = [v.type for op in program.walk() for v in (*op.operands, *op.results) if isinstance(v.type, TileType)]
    extents = {str(d): values(d) for kind in tiles for d in kind.dims}
    products = tuple(
        _product(f"mma{n + 1 if n else ''}", op, makers, values)
        for n, op in enumerate(op for op in program.walk() if op.name == "mma")
    )
    reduced = {str(op.attrs["dim"]) for op in program.walk() if op.name in REDUCTIONS and "dim" in op.attrs}
    reduced |= {str(op.attrs["axis"]) for op in program.walk() if op.name == "iterate"}
    reduced |= {d for product in products for d in product.summed}
    written = [op.operands[1].type for op in program.walk() if op.name in WRITES]
    plan = parse_plan(printed)
    digits = {
        d.name: (d.extent, d.padded_extent) for part in (plan, plan.then) if part for a in part.axes for d in a.digits
    }
    carried = {str(op.attrs["axis"]) for op in program.walk() if op.name == "iterate" and not _only_adds(op)}
    stated: dict[str, dict[str, int]] = {"workgroup": {}, "tiling": {}}
    for record in program.records:
        if record.name in stated and record.attrs.get("tile") is not None:
            stated[record.name][str(record.attrs["dim"])] = values(record.attrs["tile"])
    return Shapes(
        extents,
        products,
        tuple(a.name for a in program.args if a.name is not None),
        frozenset(reduced),
        {d: stated["tiling"].get(d, extents[d]) for d in carried},
        stated["workgroup"],
        max((kind.dtype.bits // 8 for kind in written), default=4),
        _writes_tiles(program, products),
        _values_of_products(program),
        digits,
        printed,
    )


def _writes_tiles(program: Program, products: tuple[ProductShape, ...]) -> bool:
    tiles = [set(map(str, op.operands[0].type.dims)) for op in program.walk() if op.name in WRITES]
    return bool(products) and any(set(products[-1].columns) <= dims for dims in tiles)


def _values_of_products(program: Program) -> tuple[tuple[tuple[str, ...], int], ...]:
    """What no single expression computes on the way from a product to a result: it is kept until it is read again."""
    computed: set[Any] = set()
    readers: dict[Any, list[str]] = {}
    for op in program.walk():
        for value in op.operands:
            readers.setdefault(value, []).append(op.name)
        if op.name == "mma" or not computed.isdisjoint(op.operands):
            computed |= {v for v in op.results if isinstance(v.type, TileType)}
    kept = [v for v in readers if v in computed and (len(readers[v]) > 1 or readers[v][0] in REDUCTIONS)]
    return tuple((tuple(map(str, v.type.dims)), v.type.dtype.bits // 8) for v in kept)


def _only_adds(op: Op) -> bool:
    """Whether a loop's body only multiplies what it reads or computes of that, and adds it to what it carries."""
    sums = {x.result for x in op.blocks[0].ops if x.name == "mma"}
    used = {v for x in op.blocks[0].ops if x.name != "yield" for v in x.operands}
    return sums.isdisjoint(used) and all(x.name in ADDS for x in op.blocks[0].ops)


def _values(program: Program, sizes: Mapping[str, int]) -> Any:
    named = {s.name: s for a in program.args for d in getattr(a.type, "dims", ()) for s in d.symbols}
    known = {named[name]: size for name, size in sizes.items() if name in named}
    for _ in range(len(program.bindings) + 1):
        known |= {s: Substitution(known)(e) for s, e in program.bindings.items()}
    resolved = Substitution(known)
    return lambda d: int(resolved(d)) if not isinstance(d, int) else d


def _product(name: str, op: Op, makers: Any, values: Any) -> ProductShape:
    a, b, c = (tuple(map(str, v.type.dims)) for v in op.operands)
    first, second = op.operands[:2]
    if c and c[-1] in a and c[-1] not in b:
        a, b, first, second = b, a, second, first
    types = str(first.type.dtype), str(second.type.dtype), str(op.operands[2].type.dtype)
    return ProductShape(
        name,
        tuple(d for d in c if d in a and d not in b),
        tuple(d for d in c if d in b and d not in a),
        tuple(d for d in c if d in a and d in b),
        tuple(d for d in a if d in b and d not in c),
        types,
        op.attrs.get("precision"),
        _operand(first, makers, values),
        _operand(second, makers, values),
    )


def _operand(value: Any, makers: Any, values: Any) -> OperandShape:
    dims, op = tuple(map(str, value.type.dims)), makers.get(value)
    if op is None or op.name != "read":
        reads, from_product = _sources(value, makers)
        bytes_ = sum(r.operands[0].type.dtype.bits / 8 for r in reads if len(r.results[0].type.dims) == len(dims))
        return OperandShape(dims, None, frozenset(dims), 0.0 if from_product else bytes_, (), from_product)
    memory: MemoryType = op.operands[0].type
    if "at" in op.attrs:
        over = dict(zip(map(str, op.results[0].type.dims), op.attrs["over"], strict=True))
        last = op.attrs["at"][-1].symbols if op.attrs["at"] else frozenset()
        contiguous = frozenset(d for d, symbol in over.items() if symbol in last)
    else:
        contiguous = frozenset(map(str, memory.dims[-1:]))
    each, pitches, stride = memory.dtype.bits // 8, [], 1
    for d in reversed(memory.dims[1:]):
        stride *= values(d)
        pitches.append(stride * each)
    return OperandShape(dims, op.operands[0].name, contiguous, each, tuple(pitches))


def _sources(value: Any, makers: Any) -> tuple[list[Op], bool]:
    """The reads that a value is computed from, and whether a product is among what it is computed from."""
    reads, todo, seen, product = [], [value], set(), False
    while todo:
        op = makers.get(todo.pop())
        if op is None or op in seen:
            continue
        seen.add(op)
        if op.name == "mma" or (op.name == "iterate" and any(x.name == "mma" for x in op.blocks[0].ops)):
            product = True
        elif op.name == "read":
            reads.append(op)
        else:
            todo += op.operands
    return reads, product
