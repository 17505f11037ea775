"""Tracing: a kernel's Python function is called once, and what it does becomes a tile program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.errors import BadMapping, DtypeMismatch, OutOfScope, ProgramError, PythonControlFlow
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, MemoryType, Op, TileType, Value
from tilewright.ir.dtypes import DType, plain_number
from tilewright.ir.location import author_location
from tilewright.ir.tile import TILE
from tilewright.lang.symbols import THREADS
from tilewright.lang.types import Register

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

    def body(self, function: Callable[..., Any], args: Sequence[Value], ends: Callable[[Any], Any]) -> Block:
        """The block that calling `function` with these values makes; `ends` is told what it returns, within it."""
        with self.builder.within(tuple(args)) as block:
            ends(function(*[Tile(v) for v in args]))
        return block

    def __enter__(self) -> Tracer:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


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


class MemoryArgument:
    """A tensor inside a kernel: it can be read and written, not computed with."""

    def __init__(self, value: Value):
        self.value = value

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
        if other is NotImplemented:
            return NotImplemented
        pair = (other, self.value) if reflected else (self.value, other)
        return Tile(tracer(name).emit(name, pair).result)

    return operate


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
    __array_ufunc__ = None  # numpy's numbers leave `number * tile` to the tile
    __hash__ = object.__hash__

    def __init__(self, value: Value):
        self.value = value

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
    __pow__ = _binary("powf")
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
        raise PythonControlFlow(
            "Python's `if`, `while`, `and` and `or` cannot ask a tile: its values are not known while the kernel is "
            "traced. Choose element by element with tkw.select(condition, a, b), or guard writes with "
            "@tkw.conditional(condition)",
            author_location(),
        )

    def __iter__(self) -> Any:
        raise PythonControlFlow(
            "Python's `for` cannot walk a tile: its elements are not known while the kernel is traced. Loop over a "
            "dimension with @tkw.iterate(DIM, init_args=[...])",
            author_location(),
        )

    def __len__(self) -> int:
        raise PythonControlFlow("a tile has no length while the kernel is traced", author_location())

    def __getitem__(self, place: Any) -> Any:
        raise PythonControlFlow("a tile has no Python elements; tkw.extract(tile, place) takes one", author_location())

    def __repr__(self) -> str:
        return f"<tile {self.value.name or ''}: {self.type}>"


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
    return NotImplemented


def tile_of(x: Any, what: str) -> Value:
    """The value of a tile; an error that names `what` otherwise."""
    if isinstance(x, Tile):
        return x.value
    if isinstance(x, MemoryArgument):
        raise DtypeMismatch(f"{what}: {x.value.name} is memory; read it first, with tkw.read", author_location(2))
    raise DtypeMismatch(f"{what} takes a tile, not {x!r}", author_location(2))


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
    return tuple(as_expr(d) for d in (shape if isinstance(shape, list | tuple) else (shape,)))
