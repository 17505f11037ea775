"""A random tile program while it is drawn: its dimensions, its arguments, and what is known of each tile.

A tile is known by the range of its elements and by their smallest step, so that a rule sees whether its result is
exact: integers, or multiples of the step, that the element type holds in whatever order they are summed. A tile that is
not exact has `units`: how many units in the last place it may lie from the exact value. Rules add operations to the
program that is traced, and arguments where they read or write memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.algebra.expr import Expr, as_expr
from tilewright.algebra.expr_use import evaluate
from tilewright.ir import dtypes
from tilewright.ir.core import MemoryType, Program, Value, building
from tilewright.ir.printer import program_symbols
from tilewright.ir.tile import TILE, parse_tile
from tilewright.ir.verifier import verify
from tilewright.wave.tracer import MemoryArgument, Tile, Tracer

Array = np.ndarray[Any, np.dtype[Any]]
Dims = tuple[Any, ...]
SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 19, 23, 31, 32, 33, 37, 48, 64, 65, 100)
LARGE = (64, 64, 72, 96, 100, 128, 128, 130)
NAMES = "ABCDEFG"
MOST, WORK = 1600, 12000
"""Elements of one tile; elements over all dimensions that one operation walks."""
FLOATS = ("f32", "f32", "f32", "f16", "bf16", "f64")
SMALL = ("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f6e2m3fn", "f4e2m1fn")
INTEGERS = ("i32", "i32", "i64", "i16", "i8", "u8", "i4")
HELD = {
    "f64": 1 << 40, "f32": 1 << 22, "f16": 2048, "bf16": 256, "f8e4m3fn": 16, "f8e5m2": 8, "f8e4m3fnuz": 16,
    "f8e5m2fnuz": 8, "f6e2m3fn": 7, "f4e2m1fn": 4, "f8e8m0fnu": 1,
}  # fmt: skip
"""By float type: up to where it holds every integer."""


@dataclass(frozen=True, eq=False)
class Known:
    """A tile, and what is known of its elements."""

    tile: Tile
    low: float
    high: float
    step: float = 1.0
    """Elements are multiples of this."""
    units: float = 0.0
    """How many units in the last place it may lie from the exact value; 0: it is exact."""
    odd: bool = False
    """Whether there may be NaN and infinities among the elements."""

    @property
    def dims(self) -> Dims:
        """The dimensions."""
        return tuple(self.tile.type.dims)

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self.tile.type.dtype

    @property
    def plain(self) -> bool:
        """Whether it is exact, and finite."""
        return not self.units and not self.odd


@dataclass
class Argument:
    """An argument of a program: how it is filled, and whether it is written."""

    value: Value
    form: str
    """`small`: integers; `quarters`; `places`: integers from `low` to `high`; `apart`: places no two of which are
    equal; `odd`: NaN and infinities among small integers; `powers` of two; `out`: it is written; `begin`: that too,
    after it held small integers."""
    low: float = -3
    high: float = 3

    @property
    def written(self) -> bool:
        """Whether the program writes it."""
        return self.form in ("out", "begin")


@dataclass
class Drawn:
    """A random program, its sizes, and how its arguments are filled."""

    program: Program
    sizes: dict[str, int]
    arguments: list[Argument]
    units: dict[str, float]
    """By output that is not exact: how far it may lie from the exact value, in units in the last place."""
    dynamic: tuple[str, ...] = ()
    others: dict[str, int] = field(default_factory=dict)
    """Other values of the dynamic sizes."""
    rules: tuple[str, ...] = ()

    @staticmethod
    def of_text(text: str, sizes: dict[str, int], **forms: str) -> Drawn:
        """A program by its text; arguments hold small integers where no form is given, those that begin with y are
        written."""
        program = parse_tile(text)
        arguments = [
            Argument(a, forms.get(a.name or "", "out" if (a.name or "").startswith("y") else "small"))
            for a in program.args
        ]
        for argument in arguments:
            if argument.value.type.dtype.numpy.kind == "u":
                argument.low = 0
        return Drawn(program, sizes, arguments, {})

    @property
    def untold(self) -> dict[str, int]:
        """Sizes that no argument tells."""
        dims = [d for a in self.arguments for d in a.value.type.dims]
        told = {str(s) for d in dims if len(d.symbols) == 1 for s in d.symbols}
        known = {s.name for s in program_symbols(self.program)}
        return {n: size for n, size in self.sizes.items() if n not in told and n in known}

    def bound(self) -> tuple[Program, dict[str, int]]:
        """(the program, with sizes bound that no argument tells; the sizes that arguments tell)."""
        program, untold = self.program, self.untold
        symbols = {s.name: s for s in program_symbols(program)}
        bound = {symbols[n]: as_expr(size) for n, size in untold.items()}
        told = {n: size for n, size in self.sizes.items() if n in symbols and n not in untold}
        return replace(program, bindings={**program.bindings, **bound}), told

    def arrays(self, seed: Any, sizes: dict[str, int] | None = None) -> dict[str, Array]:
        """What the arguments hold before a call."""
        known = {**self.sizes, **(sizes or {})}
        return {a.value.name or "": _filled(a, known, seed) for a in self.arguments}


def _filled(argument: Argument, sizes: dict[str, int], seed: Any) -> Array:
    found: Array = np.asarray(_numbers(argument, sizes, seed))
    return found.astype(argument.value.type.dtype.numpy)


def _numbers(argument: Argument, sizes: dict[str, int], seed: Any) -> Any:
    kind, form = argument.value.type, argument.form
    rng = np.random.default_rng([*map(ord, f"{seed} {argument.value.name}")])
    shape = tuple(int(evaluate(d, sizes)) for d in kind.dims)
    low, high = int(argument.low), int(argument.high)
    if kind.dtype is dtypes.bool_:
        return rng.integers(0, 2, shape)
    if form == "apart":  # no two at one place: which one wins is not said
        places = np.full(shape, -1, np.int64)
        count = min(high - low, places.size)
        places.reshape(-1)[rng.permutation(places.size)[:count]] = low + rng.permutation(high - low)[:count]
        return places
    if form == "places":
        return rng.integers(low, high, shape)
    values = rng.integers(low, high + 1, shape) * 1.0
    if form == "quarters":
        values = rng.integers(4 * low, 4 * high + 1, shape) / 4
    if form == "powers":
        values = 2.0**values
    if form == "odd":
        values = np.where(rng.random(shape) < 0.15, rng.choice([np.nan, np.inf, -np.inf], shape), values)
    return values


class Full(Exception):
    """A rule finds nothing here that it could do."""


class Draft:
    """A program while it is drawn: rules take tiles from the pool and add others."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.large = rng.random() < 0.04
        """Whether products fill the tiles and rings of machines: few dimensions, and long ones."""
        self.most, self.work = (20_000, 1_200_000) if self.large else (MOST, WORK)
        count = rng.choice((3, 3, 4) if self.large else (2, 3, 3, 4, 4, 5))
        self.dims = [getattr(tkl.sym, name) for name in NAMES[:count]]
        self.sizes = {d.name: rng.choice(LARGE if self.large else SIZES) for d in self.dims}
        if self.large and count > 3:
            self.sizes["D"] = rng.choice((1, 2, 3))
        self.long = not self.large and rng.random() < 0.15
        """Whether one dimension is long: reductions over it may be split."""
        if self.long:
            self.most, self.work = 4 * MOST, 6 * WORK
            self.sizes = {name: min(size, 17) for name, size in self.sizes.items()}
            self.sizes[rng.choice(self.dims).name] = rng.choice((300, 512, 700, 1024))
        if rng.random() < 0.25:
            self.sizes[rng.choice(self.dims).name] = 1
        while prod(self.sizes.values()) > 40 * self.work:
            name = max(self.sizes, key=lambda n: self.sizes[n])
            self.sizes[name] = -(-self.sizes[name] // 2)
        self.kind = rng.choice(FLOATS) if rng.random() < 0.7 else rng.choice((*INTEGERS, *SMALL))
        """The element type that most of the program is in."""
        self.trace = Tracer({})
        self.arguments: list[Argument] = []
        self.pool: list[Known] = []
        self.inside: list[Any] = []
        """The axes of the loops around."""
        self.constraints: list[Any] = []
        self.indexed: set[str] = set()
        """The dimensions of tiles of which one element is taken: no grid divides them."""
        self.fixed: set[str] = set()
        """Sizes that the program's meaning needs as they are: they are not left open."""
        self.units: dict[str, float] = {}
        self.rules: list[str] = []
        self.bound: dict[str, int] = {}
        self.bias: dict[str, float] = {}
        """By rule: how much more often this program has it than others."""

    # -- dimensions ----------------------------------------------------------------------------------------------

    def size(self, dim: Any) -> int:
        """The extent of a dimension."""
        return int(evaluate(dim, self.sizes))

    def count(self, dims: Sequence[Any]) -> int:
        """How many elements a tile over dimensions has."""
        return prod(self.size(d) for d in dims)

    def require(self, *dims: Any, most: int | None = None) -> None:
        """That a tile over all of these dimensions is small enough."""
        if self.count(tuple(dict.fromkeys(dims))) > (self.most if most is None else most):
            raise Full

    def some_dims(self, least: int = 0, most: int = 4, beside: Sequence[Any] = ()) -> Dims:
        """Random dimensions in random order, few enough elements together with others."""
        left = [d for d in self.dims if d not in beside]
        for _ in range(8):
            found = self.rng.sample(left, min(len(left), self.rng.randint(least, most)))
            if self.count((*found, *beside)) <= self.most and len(found) >= least:
                return tuple(found)
        raise Full

    def new_dim(self, size: int) -> Any:
        """A further dimension of a given size, which stays as it is."""
        for name in ("P", "Q", "R", "S", "T", "U", "V", "X", "Y", "Z"):
            if name not in self.sizes:
                self.sizes[name] = size
                self.fixed.add(name)
                return getattr(tkl.sym, name)
        raise Full

    def shuffled(self, dims: Sequence[Any]) -> Dims:
        """The dimensions in random order."""
        return tuple(self.rng.sample(list(dims), len(dims)))

    # -- memory --------------------------------------------------------------------------------------------------

    def memory(self, dims: Dims, kind: Any, form: str, low: float = -3, high: float = 3) -> MemoryArgument:
        """A new argument."""
        if len(self.arguments) >= 14:
            raise Full
        of = dtypes.dtype(kind) if isinstance(kind, str) else kind
        if of.numpy.kind == "u" or of is dtypes.bool_:
            low, high = max(0, low), max(0, high)
        letter = "y" if form in ("out", "begin") else "x"
        value = Value(MemoryType(of, tuple(dims), "global"), f"{letter}{len(self.arguments)}")
        self.arguments.append(Argument(value, form, low, high))
        return MemoryArgument(value)

    def fresh(self, dims: Sequence[Any] | None = None, kind: str | None = None, form: str = "small") -> Known:
        """A tile that is read from a new argument, or from one that is there."""
        if dims is None:
            dims = self.some_dims(0 if self.rng.random() < 0.1 else 1)
        kind = kind or self.kind
        low, high = -3, 3
        if form == "small" and self.rng.random() < 0.15 and dtypes.dtype(kind).is_float:
            form = "quarters" if kind not in ("f4e2m1fn", "f6e2m3fn", "f8e5m2", "f8e5m2fnuz") else form
        for each in self.arguments:
            if each.form == form and set(each.value.type.dims) == set(dims) and each.value.type.dtype.name == kind:
                return self.read(each.value, form)
        memory = self.memory(self.shuffled(dims), kind, form, low, high)
        return self.read(memory.value, form)

    def read(self, value: Value, form: str) -> Known:
        """The tile of an argument of a form."""
        argument = next(a for a in self.arguments if a.value is value)
        tile = tkw.read(MemoryArgument(value))
        step = 0.25 if form == "quarters" else 1.0
        return self.keep(tile, argument.low, argument.high, step, odd=form == "odd")

    # -- tiles ---------------------------------------------------------------------------------------------------

    def keep(
        self, tile: Any, low: float, high: float, step: float = 1.0, units: float = 0.0, odd: bool = False
    ) -> Known:
        """A tile that further rules may take; what its type does not hold exactly is clamped, or wraps."""
        of = tile.type.dtype
        if not of.is_float:
            least, most = of.limits
            if low < least or high > most:
                low, high = least, most
        elif not units and not odd and (max(-low, high) / min(step, 1.0) > HELD[of.name] or step < 1 / 16):
            if step < 1:  # it was rounded
                raise Full
            limit = min(8, HELD[of.name])
            tile = tkw.minimum(tkw.maximum(tile, tkw.scalar(-limit, of)), tkw.scalar(limit, of))
            low, high = max(low, -limit), min(high, limit)
        found = Known(tile, low, high, step, units, odd)
        self.pool.append(found)
        return found

    def pick(self, wanted: Callable[[Known], bool] = lambda k: True, kind: str | None = None) -> Known:
        """A plain tile that is wanted: of the pool, or a fresh one."""
        usable = [
            k for k in self.pool
            if k.plain and wanted(k) and (kind is None or k.dtype.name == kind) and len(k.dims) <= 5
        ]  # fmt: skip
        if usable and self.rng.random() < 0.8:
            return self.rng.choice(usable[-6:] if self.rng.random() < 0.6 else usable)
        for _ in range(6):
            found = self.fresh(kind=kind)
            if wanted(found) and found.plain:
                return found
        raise Full

    def within(self, known: Known, limit: float) -> Known:
        """The same tile, clamped to a range."""
        if known.low >= -limit and known.high <= limit:
            return known
        of = known.dtype
        limit = float(limit) if of.is_float else int(limit)
        low = 0 if of.numpy.kind == "u" else -limit
        tile = tkw.minimum(tkw.maximum(known.tile, tkw.scalar(low, of)), tkw.scalar(limit, of))
        return self.keep(tile, max(known.low, low), min(known.high, limit), known.step)

    def whole(self, known: Known) -> Known:
        """The same tile without fractions."""
        return known if known.step >= 1 else self.keep(tkw.floor(known.tile), np.floor(known.low), known.high)

    def as_kind(self, known: Known, kind: str) -> Known:
        """The same tile in another element type, exactly."""
        if known.dtype.name == kind:
            return known
        of = dtypes.dtype(kind)
        if known.dtype is dtypes.bool_:
            return self.keep(tkw.cast(known.tile, of), 0, 1)
        if of.is_float:
            limit = HELD[kind] * min(1.0, known.step)
            known = self.within(known, limit if limit >= 1 else 1)
            if known.step < 1 and (kind == "f4e2m1fn" or max(-known.low, known.high) / known.step > HELD[kind]):
                known = self.whole(known)
            return self.keep(tkw.cast(known.tile, of), known.low, known.high, known.step)
        if known.dtype.is_float:  # towards zero, kept within the range of the type
            least, most = of.limits
            return self.keep(tkw.cast(known.tile, of), max(known.low, least), min(known.high, most))
        return self.keep(tkw.cast(known.tile, of), known.low, known.high)

    def mask(self) -> Known:
        """A bool tile."""
        usable = [k for k in self.pool if k.dtype is dtypes.bool_]
        if usable and self.rng.random() < 0.6:
            return self.rng.choice(usable)
        if self.rng.random() < 0.15:
            return self.fresh(kind="bool")
        x = self.pick(lambda k: k.dtype is not dtypes.bool_)
        of = x.dtype
        name = self.rng.choice(("lt", "le", "gt", "ge", "eq", "ne"))
        other: Any = tkw.scalar(self.rng.randint(0, 2), of)
        if self.rng.random() < 0.5:
            second = self.pick(lambda k: k.dtype is of)
            self.require(*x.dims, *second.dims)
            other = second.tile
        return self.keep(getattr(tkw, name)(x.tile, other), 0, 1)

    @contextmanager
    def body(self, axis: Any, without: Sequence[Any] = ()) -> Iterator[None]:
        """Within it, what is drawn is in the body of a loop: tiles over its axis that are known already are not used,
        and tiles of the body are not known after it."""
        before, rules = self.pool, axis is not None
        self.pool = [k for k in before if axis not in k.dims and not any(d in k.dims for d in without)]
        if rules:
            self.inside.append(axis)
        try:
            yield
        finally:
            self.pool = before
            if rules:
                self.inside.pop()

    def write(self, known: Known, dims: Dims | None = None) -> None:
        """Writes a tile to a new argument, whose dimensions stand in any order."""
        dims = self.shuffled(known.dims) if dims is None else dims
        memory = self.memory(dims, known.dtype, "out")
        tkw.write(known.tile, memory)
        if known.units:
            self.units[memory.value.name or ""] = known.units

    # -- the end -------------------------------------------------------------------------------------------------

    def finished(self, number: int) -> Drawn:
        """The program that was drawn."""
        records = [record for constraint in self.constraints for record in constraint.records()]
        (body,) = self.trace.builder.blocks
        bindings: dict[Expr, Any] = {getattr(tkl.sym, n): tkl.sym.A * 0 + size for n, size in self.bound.items()}
        values = tuple(a.value for a in self.arguments)
        program = Program(TILE, f"drawn{number}", values, body, records, bindings, None, self.trace.hooks)
        verify(program)
        used = {s.name for s in program_symbols(program)}
        told = {str(d) for a in self.arguments for d in a.value.type.dims}
        sizes = {name: size for name, size in self.sizes.items() if name in used}
        dynamic: tuple[str, ...] = ()
        others: dict[str, int] = {}
        free = [name for name in sizes if name in told and name not in self.fixed]
        if free and self.rng.random() < 0.15:
            dynamic = tuple(name for name in free if self.rng.random() < 0.6)
            others = {name: self.rng.choice([n for n in SIZES if n <= 2 * sizes[name]]) for name in dynamic}
        return Drawn(program, sizes, self.arguments, self.units, dynamic, others, tuple(self.rules))


def traced(draft: Draft, draw: Callable[[Draft], None]) -> None:
    """Draws a program's operations while they are traced."""
    with draft.trace, building():
        draw(draft)
