"""Tracing: a kernel's Python function is called once, and what it does becomes a tile program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.errors import (
    BadMapping,
    DimensionMismatch,
    DtypeMismatch,
    NoSuchAttribute,
    OutOfScope,
    ProgramError,
    PythonControlFlow,
)
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, MemoryType, Op, TileType, Value
from tilewright.ir.dtypes import DType, plain_number
from tilewright.ir.location import author_location
from tilewright.ir.tile import REDUCTIONS, SCANS, TILE
from tilewright.lang.symbols import THREADS
from tilewright.lang.types import Register
from tilewright.limits import written
from tilewright.wave.powers import as_products
from tilewright.wave.truth import instead_of_truth

_current: ContextVar[Tracer | None] = ContextVar("tracer", default=None)


class Tracer:
    """One kernel being traced: the blocks that are open, and the iterators' dimensions."""

    def __init__(self, iterators: dict[Symbol, Expr], as_wave: bool = False):
        self.builder = Builder(TILE)
        self.iterators = iterators
        self.as_wave = as_wave
        """Whether % on tiles takes the dividend's sign, and reads outside memory give 0."""
        self.assigned: dict[Symbol, tuple[Expr, ...]] = {}
        self.hooks: dict[str, tuple[Any, Any]] = {}
        self.axes: list[Expr] = []
        """The axes of the loops around, outermost first."""
        self.hints: dict[tuple[str, str, Expr], None] = {}
        """(operation, what it is of, elements of a thread): what `elements_per_thread` says, in order."""

    def emit(
        self,
        name: str,
        operands: Sequence[Value] = (),
        attrs: dict[str, Any] | None = None,
        types: tuple[Any, ...] | None = None,
        blocks: tuple[Block, ...] = (),
    ) -> Op:
        """A new operation at the author's line."""
        for value in (attrs or {}).values():
            refuse_threads(value)
        return self.builder.emit(name, tuple(operands), attrs, types, blocks, author_location(2))

    def hint(self, what: str, of: str | None, elements: Any) -> None:
        """Notes an operation's `elements_per_thread`, which is no part of the meaning, for `explain()`."""
        if elements is not None:
            self.hints[what, of or "allocated memory", dim_of(elements, f"{what}: elements_per_thread")] = None

    def body(self, function: Callable[..., Any], args: Sequence[Value], ends: Callable[[Any], Any]) -> Block:
        """The block that calling `function` with these values makes; `ends` is told what it returns, within it."""
        require_call(function, len(args))
        with self.builder.within(tuple(args)) as block:
            ends(function(*[Tile(v) for v in args]))
        return block

    @contextmanager
    def along(self, axis: Expr) -> Iterator[None]:
        """Within it, what is traced is the body of a loop over an axis."""
        self.axes.append(axis)
        try:
            yield
        finally:
            self.axes.pop()

    def __enter__(self) -> Tracer:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def require_call(function: Callable[..., Any], count: int, which: str = "that are carried") -> None:
    """Raises where a body does not take as many values as it is called with; `which` says what values these are."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError as fault:
        name = getattr(function, "__name__", repr(function))
        raise DimensionMismatch(
            f"the body {name} is called with the {count} values {which}: {fault}", author_location(3)
        ) from None


def refuse_threads(value: Any) -> None:
    """Raises where an expression names a thread: a tile program has none."""
    if isinstance(value, tuple):
        for entry in value:
            refuse_threads(entry)
    elif isinstance(value, Expr):
        for s in value.symbols:
            if s in THREADS:
                raise OutOfScope(f"{s.name}: a tile program has no threads", author_location(2))


def tracer(what: str) -> Tracer:
    """The kernel being traced; an error that names `what` if there is none."""
    found = _current.get()
    if found is None:
        raise ProgramError(f"{what} only has a meaning inside a kernel", author_location(2))
    return found


def _refused(what: str) -> Any:
    """An operator that memory does not have."""

    def refuse(self: MemoryArgument, *others: Any) -> Any:
        raise DtypeMismatch(
            f"{what} of {self.value.name}, which is memory: read it first, with tkw.read({self.value.name}); results "
            f"are written by tkw.write(tile, {self.value.name})",
            author_location(2),
        )

    return refuse


_ATTRIBUTES = {
    "shape": "dimensions go by name; tkw.self_index(dim) gives coordinates",
    "T": "dimensions go by name, in any order; tkw.permute(tile, [...]) orders them",
    "dtype": "its element type is `.type.dtype`",
    "astype": "write tkw.cast(tile, element type)",
    **{name: f"write tkw.{name}(tile, dim=...)" for name in (*REDUCTIONS, *SCANS, "argmax", "argmin")},
}


def _missing(self: MemoryArgument | Tile, name: str) -> Any:
    """What arrays have and this has not: the error says what to write instead."""
    hint = _ATTRIBUTES.get(name, "tkw has functions of tiles: tkw.exp, tkw.sum, tkw.reshape, ...")
    raise NoSuchAttribute(f"{self!r} has no attribute {name}: {hint}", author_location(2))


class MemoryArgument:
    """A tensor inside a kernel: it can be read and written, not computed with."""

    __slots__ = ("value",)
    __hash__ = object.__hash__
    __array_ufunc__ = _refused("a function of numpy's")
    __getattr__ = _missing

    def __init__(self, value: Value):
        self.value = value

    __getitem__ = __setitem__ = _refused("an element")
    __iter__ = __len__ = __bool__ = _refused("Python's use")
    __lt__ = __le__ = __gt__ = __ge__ = _refused("a comparison")
    __neg__ = __abs__ = __invert__ = _refused("an operator")
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refused("an operator")
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = _refused("an operator")
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = _refused("an operator")

    @property
    def type(self) -> MemoryType:
        """Its dimensions and element type."""
        found: MemoryType = self.value.type
        return found

    def __repr__(self) -> str:
        return f"<memory {self.value.name}: {self.type}>"


def _binary(name: str, *, reflected: bool = False) -> Any:
    def operate(self: Tile, other: Any) -> Any:
        other = operand(other, self.type.dtype, name)
        pair = (other, self.value) if reflected else (self.value, other)
        return Tile(tracer(name).emit(name, pair).result)

    return operate


def _power(self: Tile, exponent: Any) -> Any:
    """The operator **: products, where the exponent is a small integer."""
    found = as_products(self.value, exponent, tracer("powf").emit)
    return _binary("powf")(self, exponent) if found is None else Tile(found)


def _modulo(*, reflected: bool = False) -> Any:
    """The operator %: -7 % 3 is 2, as Python has it; -1 where the tracer is to follow Wave."""
    floored = _binary("mod", reflected=reflected)

    def operate(self: Tile, other: Any) -> Any:
        other = operand(other, self.type.dtype, "mod")
        if other is NotImplemented or not tracer("mod").as_wave:
            return floored(self, other if other is NotImplemented else Tile(other))
        a, b = (Tile(other), self) if reflected else (self, Tile(other))
        if self.type.dtype.is_float:
            return Tile(tracer("mod").emit("remf", (a.value, b.value)).result)
        return a - a / b * b  # / on integers goes towards zero

    return operate


class Tile:
    """A register tile inside a kernel. Operators work element by element; dimensions broadcast by name.

    **% differs from Wave's**: -7 % 3 is 2 here, as in Python, where Wave takes the dividend's sign and gives -1.
    Kernels compiled by `compat.wave.wave_compile` get Wave's meaning.
    """

    __slots__ = ("value",)
    __hash__ = object.__hash__
    __getattr__ = _missing

    def __init__(self, value: Value):
        self.value = value

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """A number of numpy's beside a tile is a number; numpy's functions have no tiles."""
        operator = _OPERATORS.get(function.__name__) if method == "__call__" and len(inputs) == 2 else None
        if operator is None:
            raise DtypeMismatch(
                f"numpy.{function.__name__} of {self!r}: a tile's values are not known while the kernel is traced; tkw "
                "has functions of tiles",
                author_location(),
            )
        first, second = inputs
        if operator == "powf" and isinstance(first, Tile):
            return first**second
        known = first if isinstance(first, Tile) else second
        pair = [operand(x, known.type.dtype, operator) for x in (first, second)]
        return Tile(tracer(operator).emit(operator, pair).result)

    def __matmul__(self, other: Any) -> Any:
        raise DtypeMismatch(f"@ of {self!r}: write tkw.mma(a, b, acc), which names the accumulator", author_location())

    __rmatmul__ = __matmul__

    @property
    def type(self) -> TileType:
        """Its dimensions and element type."""
        found: TileType = self.value.type
        return found

    __add__, __radd__ = _binary("add"), _binary("add", reflected=True)
    __sub__, __rsub__ = _binary("sub"), _binary("sub", reflected=True)
    __mul__, __rmul__ = _binary("mul"), _binary("mul", reflected=True)
    __truediv__, __rtruediv__ = _binary("div"), _binary("div", reflected=True)
    __floordiv__, __rfloordiv__ = _binary("floordiv"), _binary("floordiv", reflected=True)
    __mod__, __rmod__ = _modulo(), _modulo(reflected=True)
    __pow__, __rpow__ = _power, _binary("powf", reflected=True)
    __and__, __rand__ = _binary("and_"), _binary("and_", reflected=True)
    __or__, __ror__ = _binary("or_"), _binary("or_", reflected=True)
    __xor__, __rxor__ = _binary("xor"), _binary("xor", reflected=True)
    __lshift__, __rshift__ = _binary("shl"), _binary("shr")
    __lt__, __le__, __gt__, __ge__ = (_binary(name) for name in ("lt", "le", "gt", "ge"))
    __eq__, __ne__ = _binary("eq"), _binary("ne")

    def __neg__(self) -> Tile:
        return Tile(tracer("neg").emit("neg", (self.value,)).result)

    def __invert__(self) -> Tile:
        return Tile(tracer("not").emit("not_", (self.value,)).result)

    def __abs__(self) -> Tile:
        return Tile(tracer("abs").emit("abs", (self.value,)).result)

    def __bool__(self) -> bool:
        where = author_location()
        raise PythonControlFlow(
            "a tile has no single truth value: its elements are not known while the kernel is traced. "
            f"{instead_of_truth(where)}",
            where,
        )

    def _as_number(self) -> Any:
        raise PythonControlFlow(
            f"{self!r} is no Python number: its elements are not known while the kernel is traced. tkw.cast(tile, "
            "element type) changes its element type, tkw.extract(tile, [...]) takes one element",
            author_location(),
        )

    __float__ = __int__ = __index__ = __complex__ = _as_number

    def __iter__(self) -> Any:
        raise PythonControlFlow(
            "Python's `for` cannot walk a tile: its elements are not known while the kernel is traced. Loop over a "
            "dimension with @tkw.iterate(DIM, init_args=[...])",
            author_location(),
        )

    def __len__(self) -> int:
        raise PythonControlFlow("a tile has no length while the kernel is traced", author_location())

    def __getitem__(self, place: Any) -> Tile:
        """One element, at a coordinate for each dimension."""
        offset = place if isinstance(place, tuple) else (place,)
        numbers = all(isinstance(e, Expr | int | np.integer) and not isinstance(e, bool) for e in offset)
        if not numbers or len(offset) != len(self.type.dims):
            raise PythonControlFlow(
                f"[{written(place, 80)}] of {self!r}: give a coordinate for each of its {len(self.type.dims)} "
                "dimensions, integers or expressions, which take one element",
                author_location(),
            )
        return Tile(tracer("[]").emit("extract", (self.value,), {"offset": tuple(map(as_expr, offset))}).result)

    def __repr__(self) -> str:
        return f"<tile {self.value.name or ''}: {self.type}>"


_NUMPY = (
    *("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "power"),
    *("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"),
)
_OURS = (
    *("add", "sub", "mul", "div", "floordiv", "mod", "powf", "lt", "le", "gt", "ge", "eq", "ne"),
    *("and_", "or_", "xor", "shl", "shr"),
)
_OPERATORS = dict(zip(_NUMPY, _OURS, strict=True))
"""numpy's functions behind Python's operators, and what they are called here."""


def operand(x: Any, dtype: DType, what: str) -> Any:
    """X as an operand beside a tile of this element type: numbers and expressions become scalars."""
    if isinstance(x, Tile):
        return x.value
    if isinstance(x, MemoryArgument):
        raise DtypeMismatch(f"{what}: {x.value.name} is memory; read it first, with tkw.read", author_location(2))
    number = x if isinstance(x, Expr) else plain_number(x)
    if number is not None:
        if isinstance(number, float) and not dtype.is_float:
            raise DtypeMismatch(
                f"{what} of a tile of {dtype} and the number {number}: it is no integer; cast the tile, for instance "
                "tkw.cast(x, tkl.f32)",
                author_location(2),
            )
        return tracer(what).emit("scalar", (), {"value": number, "dtype": dtype}).result
    raise DtypeMismatch(f"{what} takes tiles and numbers, not {written(x, 60)}", author_location(2))


def tile_of(x: Any, what: str) -> Value:
    """The value of a tile; an error that names `what` otherwise."""
    if isinstance(x, Tile):
        return x.value
    if isinstance(x, MemoryArgument):
        raise DtypeMismatch(f"{what}: {x.value.name} is memory; read it first, with tkw.read", author_location(2))
    raise DtypeMismatch(f"{what} takes a tile, not {written(x, 60)}", author_location(2))


def memory_of(x: Any, what: str) -> Value:
    """The value of a tensor in memory; an error that names `what` otherwise."""
    if isinstance(x, MemoryArgument):
        return x.value
    raise BadMapping(f"{what} takes memory (an argument of the kernel, or tkw.allocate), not {x!r}", author_location(2))


def _fill(register: Register, value: Any) -> Tile:
    if not isinstance(value, Expr) and plain_number(value) is None:
        raise DtypeMismatch(f"{register}(...) is filled with a number, not {value!r}", author_location(2))
    made = tracer("Register[...](value)").emit("fill", (), {"value": value}, (TileType(register.dtype, register.dims),))
    return Tile(made.result)


Register.fill = staticmethod(_fill)


def dims_of(shape: Any) -> tuple[Expr, ...]:
    """A shape as dimensions."""
    return tuple(dim_of(d, "a shape") for d in (shape if isinstance(shape, list | tuple) else (shape,)))


def dim_of(dim: Any, what: str) -> Expr:
    """A dimension, or a coordinate; an error that names `what` otherwise."""
    if isinstance(dim, Expr | int | np.integer) and not isinstance(dim, bool):
        return as_expr(dim)
    several = isinstance(dim, list | tuple) and all(isinstance(d, Expr) for d in dim)
    if several:
        raise DimensionMismatch(
            f"{what} takes one dimension, not several; {written(dim, 60)} are given", author_location(2)
        )
    raise DimensionMismatch(f"{what}: {written(dim, 60)} is neither a symbol nor an integer", author_location(2))
