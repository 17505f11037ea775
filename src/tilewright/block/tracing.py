"""Tracing of a block kernel: each call in its Python function becomes an operation of a block program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import index
from typing import Any

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr
from tilewright.block.names import author_names
from tilewright.errors import ProgramError
from tilewright.ir.attrs import Range, axis, check_attr, kind_of
from tilewright.ir.block import BLOCK
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.location import Location, author_location
from tilewright.ir.tensors import TensorType
from tilewright.limits import written
from tilewright.machine import Machine

_current: ContextVar[Trace | None] = ContextVar("block_trace", default=None)


@dataclass(eq=False)
class Frame:
    """An operation with blocks (such as a loop) that is being traced; it is emitted when its last block ends."""

    name: str
    operands: tuple[Value, ...]
    attrs: dict[str, Any]
    loc: Location | None
    blocks: list[Block] = field(default_factory=list)
    ended: bool = False
    """Whether its last block has ended, so that nothing may follow in it."""


class Trace:
    """The program under construction: the builder, the open frames, and the symbols that are in scope."""

    def __init__(self, machine: Machine | None, parameters: Mapping[str, Any]):
        self.builder = Builder(BLOCK)
        self.machine, self.parameters = machine, parameters
        self.frames: list[Frame] = []
        self.counts: dict[str, int] = {}
        self.known: list[set[Symbol]] = [{v for v in parameters.values() if isinstance(v, Symbol)}]

    def __enter__(self) -> Trace:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)

    # -- operations -----------------------------------------------------------------------------------

    def emit(
        self,
        name: str,
        operands: Sequence[Value] = (),
        attrs: dict[str, Any] | None = None,
        names: Sequence[str] = (),
        fallback: str = "t",
    ) -> Op:
        """Append the operation `name`, located at the author's line, to the program and return it. Attributes in
        `attrs` that are None are left out.

        The results are called `names`; without `names`, like the variables to which the author assigns them; without
        variables, `fallback` (with a number if there are several results). A number is appended to a name that was used
        before. Raise a ProgramError after the loop's `finally_` block, or if an attribute uses a symbol that is out of
        scope.
        """
        loc = author_location(2)
        attributes = {key: attribute for key, attribute in (attrs or {}).items() if attribute is not None}
        self.require_open(loc)
        self._require_in_scope(name, attributes, loc)
        op = self.builder.emit(name, operands, attributes, loc=loc)
        chosen = tuple(names) or author_names(loc)
        for i, value in enumerate(op.results):
            if len(chosen) == len(op.results):
                value.name = self._unique_name(chosen[i])
            else:
                value.name = self._unique_name(fallback if len(op.results) == 1 else f"{fallback}{i}")
        return op

    def argument(self, name: str, kind: TensorType) -> Value:
        """Add an argument of type `kind` to the program, and return its value. A number is appended to `name` if the
        name was used before.
        """
        return self.builder.argument(self._unique_name(name), kind)

    def _unique_name(self, name: str) -> str:
        """Return `name`, with a number appended if it was used before: acc, acc_2, acc_3. Count this use in
        `self.counts`.
        """
        count = self.counts[name] = self.counts.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"

    def require_open(self, loc: Location | None) -> None:
        """Raise a ProgramError, located at `loc`, if the innermost open operation is a loop with a finished `finally_`
        block: nothing may follow that block in the loop.
        """
        if self.frames and self.frames[-1].ended:
            raise ProgramError(
                f"finally_ ends a round of {self.frames[-1].name}: nothing may follow it in the loop", loc
            )

    def _require_in_scope(self, name: str, attrs: dict[str, Any], loc: Location | None) -> None:
        """Raise a ProgramError, located at `loc`, if an attribute in `attrs` of the operation `name` is invalid or uses
        a symbol that is not in scope, such as a loop variable after its loop.
        """
        spec = BLOCK.ops[name]
        bound: set[Symbol] = set()
        used: set[Symbol] = set()
        for key, value in attrs.items():
            kind = kind_of(spec.attrs[key])
            check_attr(spec.attrs[key], key, kind.plain(value), name, loc)
            bound |= set(kind.bound(value))
            for expression in kind.expressions(value):
                used |= expression.symbols
        for s in used - bound:
            if not any(s in scope for scope in self.known):
                raise ProgramError(
                    f"{name}: {s.name} has no value here; a loop variable has one within its loop, a size where it is "
                    "a parameter of the kernel",
                    loc,
                )

    # -- blocks ---------------------------------------------------------------------------------------

    def enter(self, frame: Frame, symbols: Iterable[Symbol] = ()) -> None:
        """Open a block of `frame`, an operation such as a loop that is being traced: operations emitted from now on go
        into this block. `symbols` are in scope in the block.

        Raise a ProgramError after the enclosing loop's `finally_` block, or if an attribute uses a symbol that is out
        of scope.
        """
        self.require_open(frame.loc)
        self._require_in_scope(frame.name, frame.attrs, frame.loc)
        self.frames.append(frame)
        self.known.append(set(symbols))
        frame.blocks.append(self.builder.open())

    def next_block(self, frame: Frame) -> None:
        """Close the current block of `frame` and open the next one, such as an `else`. Raise a ProgramError if `frame`
        is not the innermost open operation.
        """
        self._require_innermost(frame)
        self.builder.close(frame.blocks[-1])
        frame.blocks.append(self.builder.open())

    def leave(self, frame: Frame) -> Op:
        """Close the last block of `frame`, emit the operation of `frame` (such as a loop), and return it. Raise a
        ProgramError if `frame` is not the innermost open operation.
        """
        self._require_innermost(frame)
        self.builder.close(frame.blocks[-1])
        self.frames.pop()
        self.known.pop()
        return self.builder.emit(frame.name, frame.operands, frame.attrs, blocks=tuple(frame.blocks), loc=frame.loc)

    @contextmanager
    def within(self, frame: Frame, symbols: Iterable[Symbol] = ()) -> Iterator[None]:
        """Context manager: trace its body as the next block of `frame`, an operation such as an `if`, then emit the
        operation.

        `symbols` are in scope in the block. If the body raises, the operation is discarded.
        """
        depths = len(self.frames), len(self.known), len(self.builder.blocks)
        self.enter(frame, symbols)
        try:
            yield
            self.leave(frame)
        finally:
            del self.frames[depths[0] :], self.known[depths[1] :], self.builder.blocks[depths[2] :]

    def _require_innermost(self, frame: Frame | None) -> None:
        """Raise a ProgramError if an operation inside `frame`, such as a loop, is still open because of a break, a
        return or an exception. With `frame` None, raise it if any operation is open.
        """
        inner = self.frames[-1] if self.frames else None
        if inner is not frame and inner is not None:
            raise ProgramError(
                f"{inner.name}: this loop was left by break, return or an exception; its body is traced once, for all "
                "rounds, and runs to its end. Say what is not done in every round with tb.if_",
                inner.loc,
            )

    def finished(self) -> None:
        """Raise a ProgramError if an operation such as a loop is still open after the kernel's function
        has returned.
        """
        self._require_innermost(None)

    # -- names ----------------------------------------------------------------------------------------

    def free(self, name: str) -> str:
        """Return `name`, with a number appended if a symbol in scope has that name: m, m_2, m_3."""
        used = {variable.name for scope in self.known for variable in scope}
        candidate, count = name, 1
        while candidate in used:
            count += 1
            candidate = f"{name}_{count}"
        return candidate

    def axes(self, names: Sequence[str], extents: Sequence[Any]) -> tuple[Symbol, ...]:
        """Return a tuple of new coordinate symbols, one for each of `names`, which run from 0 to the corresponding
        entry of `extents` minus 1. A number is appended to a name that a symbol in scope has.
        """
        return tuple(axis(self.free(name), as_expr(extent)) for name, extent in zip(names, extents, strict=True))

    def range(self, name: str, lo: Any, hi: Any, step: int, before: Sequence[Symbol]) -> Range:
        """Return a new Range: a loop variable that takes the values lo, lo + step, ... below `hi`.

        The variable is called `name`, with a suffix if a symbol in scope, or one of `before` (the earlier variables of
        the same loop), has that name.
        """
        unused = self.free(name)
        while any(unused == variable.name for variable in before):
            unused = f"{unused}_"
        return Range.of(unused, lo, hi, step)


def trace(what: str) -> Trace:
    """Return the trace of the kernel that is being traced. Raise a ProgramError outside a kernel; `what` names the
    function in the message.
    """
    current = _current.get()
    if current is None:
        raise ProgramError(f"{what} only has a meaning inside a kernel, under @tb.kernel", author_location(2))
    return current


def only_value(s: Symbol) -> Expr:
    """Return the symbol `s`. If its range is constant and has only one value, return this value as an expression
    instead.
    """
    is_constant = s.lo == s.hi and isinstance(s.lower, Const) and isinstance(s.upper, Const)
    return as_expr(int(s.lo)) if is_constant else s


def as_tuple(x: Any) -> tuple[Any, ...]:
    """Return the list or tuple `x` as a tuple; return (x,) for anything else."""
    return tuple(x) if isinstance(x, tuple | list) else (x,)


def number(x: Any, what: str) -> Expr:
    """Return `x`, an integer or an expression, as an expression. Raise a ProgramError for anything else; `what`
    describes `x` in the message ("view: an extent").
    """
    if isinstance(x, Expr):
        return x
    integer: Any = None if isinstance(x, bool) else x
    try:
        return as_expr(index(integer))
    except TypeError:
        text = f"{what} is {written(x, 80)}; it must be an integer or an expression of sizes"
        raise ProgramError(text, author_location(2)) from None


def function(x: Any, what: str) -> Callable[..., Any]:
    """Return the Python function `x`. Raise a ProgramError if `x` is not callable; `what` describes `x` in the message
    ("view: at").
    """
    if not callable(x):
        raise ProgramError(f"{what} is {written(x, 80)}; it must be a function", author_location(2))
    checked: Callable[..., Any] = x
    return checked
