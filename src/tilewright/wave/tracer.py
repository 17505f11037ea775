"""Tracing: a kernel's Python function is called once on symbolic tiles, and the operations it calls form a tile
program.
"""

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
from tilewright.wave.fractions import fraction, has_fraction
from tilewright.wave.powers import as_products
from tilewright.wave.truth import instead_of_truth

_current: ContextVar[Tracer | None] = ContextVar("tracer", default=None)


class Tracer:
    """The state of one kernel's tracing: the open blocks, the loop axes, the hints and the iterators' dimensions."""

    def __init__(self, iterators: dict[Symbol, Expr], as_wave: bool = False):
        self.builder = Builder(TILE)
        self.iterators = iterators
        self.as_wave = as_wave
        """Whether % on tiles takes the sign of the dividend, and out-of-bounds reads return 0, as in Wave."""
        self.assigned: dict[Symbol, tuple[Expr, ...]] = {}
        self.hooks: dict[str, tuple[Any, Any]] = {}
        self.axes: list[Expr] = []
        """The axes of the enclosing loops, outermost first."""
        self.hints: dict[tuple[str, str, Expr], None] = {}
        """An ordered set of (operation, its memory or dimension, `elements_per_thread`)."""

    def emit(
        self,
        name: str,
        operands: Sequence[Value] = (),
        attrs: dict[str, Any] | None = None,
        types: tuple[Any, ...] | None = None,
        blocks: tuple[Block, ...] = (),
    ) -> Op:
        """Append the operation `name`, located at the author's current line, to the tile program and return it.

        `operands` are the operands, `attrs` the attributes, `types` the result types (None: inferred from the
        operands), and `blocks` the nested bodies of the operation. Raise `OutOfScope` if an attribute contains a thread
        id.
        """
        for value in (attrs or {}).values():
            refuse_threads(value)
        return self.builder.emit(name, tuple(operands), attrs, types, blocks, author_location(2))

    def hint(self, what: str, of: str | None, elements: Any) -> None:
        """Add an `elements_per_thread` hint to `self.hints`; it does not change what the program computes.

        `what` is the operation, `of` the name of the memory or dimension that the operation uses (None: allocated
        memory), and `elements` the number of elements. If `elements` is None, nothing is added; raise DimensionMismatch
        if it is neither an integer nor an expression.
        """
        if elements is not None:
            self.hints[what, of or "allocated memory", dim_of(elements, f"{what}: elements_per_thread")] = None

    def body(self, function: Callable[..., Any], args: Sequence[Value], emit_yield: Callable[[Any], Any]) -> Block:
        """Call the Python function `function` on the tiles of `args` and return a block of the operations that it
        emits: the body of a loop or branch.

        `emit_yield` is called inside the block with the function's return value, to emit the block's `yield`. Raise
        DimensionMismatch if the function cannot be called with `len(args)` arguments.
        """
        require_call(function, len(args))
        with self.builder.within(tuple(args)) as block:
            emit_yield(function(*[Tile(v) for v in args]))
        return block

    @contextmanager
    def along(self, axis: Expr) -> Iterator[None]:
        """Context manager: operations traced inside it belong to a loop over the dimension `axis`."""
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
    """Raise `DimensionMismatch` if the Python function `function` cannot be called with `count` positional arguments.

    `which` describes the arguments in the message.
    """
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError as fault:
        name = getattr(function, "__name__", repr(function))
        raise DimensionMismatch(
            f"the body {name} is called with the {count} values {which}: {fault}", author_location(3)
        ) from None


def refuse_threads(value: Any) -> None:
    """Raise `OutOfScope` if `value`, an expression or a nested tuple of expressions, contains a thread id: tile
    programs have no threads. Other values pass.
    """
    if isinstance(value, tuple):
        for entry in value:
            refuse_threads(entry)
    elif isinstance(value, Expr):
        for s in value.symbols:
            if s in THREADS:
                raise OutOfScope(f"{s.name}: a tile program has no threads", author_location(2))


def tracer(what: str) -> Tracer:
    """Return the tracer of the kernel that is being traced. Raise `ProgramError` outside a kernel; `what` names the
    operation in the message.
    """
    current = _current.get()
    if current is None:
        raise ProgramError(f"{what} only has a meaning inside a kernel", author_location(2))
    return current


def _unsupported_on_memory(what: str) -> Any:
    """Return an operator method for `MemoryArgument` that always raises `DtypeMismatch`: memory must be read first.

    `what` names the operator in the message, such as "a comparison".
    """

    def refuse(self: MemoryArgument, *others: Any) -> Any:
        """Raise `DtypeMismatch`, always."""
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


def _raise_no_attribute(self: MemoryArgument | Tile, name: str) -> Any:
    """Raise `NoSuchAttribute`, always: `self`, a tile or memory, has no attribute `name`. For an attribute of arrays,
    such as `shape`, the message says what to write instead.
    """
    hint = _ATTRIBUTES.get(name, "tkw has functions of tiles: tkw.exp, tkw.sum, tkw.reshape, ...")
    raise NoSuchAttribute(f"{self!r} has no attribute {name}: {hint}", author_location(2))


class MemoryArgument:
    """A tensor inside a kernel: it can be read and written, not computed with."""

    __slots__ = ("value",)
    __hash__ = object.__hash__
    __array_ufunc__ = _unsupported_on_memory("a function of numpy's")
    __getattr__ = _raise_no_attribute

    def __init__(self, value: Value):
        self.value = value

    __getitem__ = __setitem__ = _unsupported_on_memory("an element")
    __iter__ = __len__ = __bool__ = _unsupported_on_memory("Python's use")
    __lt__ = __le__ = __gt__ = __ge__ = _unsupported_on_memory("a comparison")
    __neg__ = __abs__ = __invert__ = _unsupported_on_memory("an operator")
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _unsupported_on_memory(
        "an operator"
    )
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = _unsupported_on_memory(
        "an operator"
    )
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = _unsupported_on_memory(
        "an operator"
    )

    @property
    def type(self) -> MemoryType:
        """The IR type of the memory: its dimensions, element type and address space."""
        memory_type: MemoryType = self.value.type
        return memory_type

    def __repr__(self) -> str:
        return f"<memory {self.value.name}: {self.type}>"


def _binary_operator(name: str, *, reflected: bool = False) -> Any:
    """Return an operator method of `Tile`, such as `__add__`, that emits the operation `name` and returns the result as
    a tile.

    The tile is the left operand; with `reflected` it is the right one.
    """

    def operate(self: Tile, other: Any) -> Any:
        """Emit the operation on `self` and `other`, a tile or a number; return the result."""
        other = operand(other, self.type.dtype, name)
        pair = (other, self.value) if reflected else (self.value, other)
        return Tile(tracer(name).emit(name, pair).result)

    return operate


def _power_operator(self: Tile, exponent: Any) -> Any:
    """Emit `self` ** `exponent` for a tile and return the resulting tile.

    It is multiplications for a small integer exponent (see `as_products`), otherwise one `powf`.
    """
    power = as_products(self.value, exponent, tracer("powf").emit)
    return _binary_operator("powf")(self, exponent) if power is None else Tile(power)


def _modulo_operator(*, reflected: bool = False) -> Any:
    """Return the method of `Tile` for %, which emits the remainder and returns it as a tile; -7 % 3 is 2, as in Python.

    The tile is the left operand; with `reflected` it is the right one. If the tracer follows Wave (`as_wave`), the
    result has the sign of the dividend: -7 % 3 is -1.
    """
    floored = _binary_operator("mod", reflected=reflected)

    def operate(self: Tile, other: Any) -> Any:
        """Emit the remainder of `self` and `other`, a tile or a number; return the result."""
        other = operand(other, self.type.dtype, "mod")
        if not tracer("mod").as_wave:
            return floored(self, Tile(other))
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
    __getattr__ = _raise_no_attribute

    def __init__(self, value: Value):
        self.value = value

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Emit an operator between a numpy number and a tile; raise `DtypeMismatch` for all other numpy functions."""
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
        """The IR type of the tile: its dimensions and element type."""
        tile_type: TileType = self.value.type
        return tile_type

    __add__, __radd__ = _binary_operator("add"), _binary_operator("add", reflected=True)
    __sub__, __rsub__ = _binary_operator("sub"), _binary_operator("sub", reflected=True)
    __mul__, __rmul__ = _binary_operator("mul"), _binary_operator("mul", reflected=True)
    __truediv__, __rtruediv__ = _binary_operator("div"), _binary_operator("div", reflected=True)
    __floordiv__, __rfloordiv__ = _binary_operator("floordiv"), _binary_operator("floordiv", reflected=True)
    __mod__, __rmod__ = _modulo_operator(), _modulo_operator(reflected=True)
    __pow__, __rpow__ = _power_operator, _binary_operator("powf", reflected=True)
    __and__, __rand__ = _binary_operator("and_"), _binary_operator("and_", reflected=True)
    __or__, __ror__ = _binary_operator("or_"), _binary_operator("or_", reflected=True)
    __xor__, __rxor__ = _binary_operator("xor"), _binary_operator("xor", reflected=True)
    __lshift__, __rshift__ = _binary_operator("shl"), _binary_operator("shr")
    __lt__, __le__, __gt__, __ge__ = (_binary_operator(name) for name in ("lt", "le", "gt", "ge"))
    __eq__, __ne__ = _binary_operator("eq"), _binary_operator("ne")

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
        """Raise `PythonControlFlow`, always: the elements of a tile are not known while the kernel is traced."""
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

    def __getitem__(self, coordinates: Any) -> Tile:
        """Emit an `extract` of one element, at one coordinate for each dimension."""
        offset = coordinates if isinstance(coordinates, tuple) else (coordinates,)
        numbers = all(isinstance(e, Expr | int | np.integer) and not isinstance(e, bool) for e in offset)
        if not numbers or len(offset) != len(self.type.dims):
            raise PythonControlFlow(
                f"[{written(coordinates, 80)}] of {self!r}: give a coordinate for each of its {len(self.type.dims)} "
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
"""{name of the numpy function behind a Python operator: name of the tile operation}."""


def operand(x: Any, dtype: DType, what: str) -> Any:
    """Return `x` as an IR value for an operation beside a tile of element type `dtype`.

    For a tile, it is the tile's value. For a number or an expression, emit a `scalar`; beside floats, a quotient of
    sizes such as M / N is a fraction. Raise `DtypeMismatch` for memory, for other objects, and for a number that is no
    integer beside integers; `what` names the operation in the message.
    """
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
        emit = tracer(what).emit
        if isinstance(number, Expr) and dtype.is_float and has_fraction(number):
            return fraction(emit, number, dtype)
        return emit("scalar", (), {"value": number, "dtype": dtype}).result
    raise DtypeMismatch(f"{what} takes tiles and numbers, not {written(x, 60)}", author_location(2))


def tile_of(x: Any, what: str) -> Value:
    """Return the IR value of the tile `x`. Raise `DtypeMismatch` if `x` is no tile; `what` names the operation in the
    message.
    """
    if isinstance(x, Tile):
        return x.value
    if isinstance(x, MemoryArgument):
        raise DtypeMismatch(f"{what}: {x.value.name} is memory; read it first, with tkw.read", author_location(2))
    raise DtypeMismatch(f"{what} takes a tile, not {written(x, 60)}", author_location(2))


def memory_of(x: Any, what: str) -> Value:
    """Return the IR value of the memory `x`, a `MemoryArgument`. Raise `BadMapping` for another object; `what` names
    the operation in the message.
    """
    if isinstance(x, MemoryArgument):
        return x.value
    raise BadMapping(f"{what} takes memory (an argument of the kernel, or tkw.allocate), not {x!r}", author_location(2))


def _filled_tile(register: Register, value: Any) -> Tile:
    """Emit a tile with the dimensions and element type of `register` and return it; all elements are the number or
    expression `value`. Raise DtypeMismatch if `value` is neither.
    """
    if not isinstance(value, Expr) and plain_number(value) is None:
        raise DtypeMismatch(f"{register}(...) is filled with a number, not {value!r}", author_location(2))
    emit = tracer("Register[...](value)").emit
    if isinstance(value, Expr) and register.dtype.is_float and has_fraction(value):
        number = fraction(emit, value, register.dtype)
        return Tile(emit("broadcast", (number,), {"to": register.dims}).result if register.dims else number)
    return Tile(emit("fill", (), {"value": value}, (TileType(register.dtype, register.dims),)).result)


Register.fill = staticmethod(_filled_tile)


def dims_of(shape: Any) -> tuple[Expr, ...]:
    """Return `shape`, a sequence of dimensions or a single dimension, as a tuple of expressions. Raise
    `DimensionMismatch` if an entry is neither a symbol, an expression nor an integer.
    """
    return tuple(dim_of(d, "a shape") for d in (shape if isinstance(shape, list | tuple) else (shape,)))


def dim_of(dim: Any, what: str) -> Expr:
    """Return the dimension `dim`, a symbol, expression or integer, as an expression.

    Raise `DimensionMismatch` for anything else; `what` names the operation in the message.
    """
    if isinstance(dim, Expr | int | np.integer) and not isinstance(dim, bool):
        return as_expr(dim)
    several = isinstance(dim, list | tuple) and all(isinstance(d, Expr) for d in dim)
    if several:
        raise DimensionMismatch(
            f"{what} takes one dimension, not several; {written(dim, 60)} are given", author_location(2)
        )
    raise DimensionMismatch(f"{what}: {written(dim, 60)} is neither a symbol nor an integer", author_location(2))
