"""One kernel being traced: what its Python function does becomes a block program, an operation for each call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr
from tilewright.block.names import author_names
from tilewright.errors import ProgramError
from tilewright.ir.attrs import Range, axis, kind_of
from tilewright.ir.block import BLOCK
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.location import Location, author_location
from tilewright.ir.tensors import TensorType
from tilewright.machine import Machine

_current: ContextVar[Trace | None] = ContextVar("block_trace", default=None)


@dataclass(eq=False)
class Frame:
    """An operation whose blocks are being traced: it is written when the last of them ends."""

    name: str
    operands: tuple[Value, ...]
    attrs: dict[str, Any]
    loc: Location | None
    blocks: list[Block] = field(default_factory=list)
    ended: bool = False
    """Whether its last block has ended, so that nothing may follow in it."""


class Trace:
    """The program as it grows: the builder, the frames that are open, the symbols that have a meaning here."""

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
        """A new operation at the author's line; attributes that are None are left out.

        Results have these names, or those that the author assigns them to, or the fallback.
        """
        loc = author_location(2)
        given = {k: v for k, v in (attrs or {}).items() if v is not None}
        self.require_open(loc)
        self._require_known(name, given, loc)
        op = self.builder.emit(name, operands, given, loc=loc)
        chosen = tuple(names) or author_names(loc)
        for i, value in enumerate(op.results):
            if len(chosen) == len(op.results):
                value.name = self._unique(chosen[i])
            else:
                value.name = self._unique(fallback if len(op.results) == 1 else f"{fallback}{i}")
        return op

    def argument(self, name: str, kind: TensorType) -> Value:
        """A further argument of the program."""
        return self.builder.argument(self._unique(name), kind)

    def _unique(self, name: str) -> str:
        count = self.counts[name] = self.counts.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"

    def require_open(self, loc: Location | None) -> None:
        """Raises where a loop's `finally_` has ended, and its body goes on."""
        if self.frames and self.frames[-1].ended:
            raise ProgramError(
                f"finally_ ends a round of {self.frames[-1].name}: nothing may follow it in the loop", loc
            )

    def _require_known(self, name: str, attrs: dict[str, Any], loc: Location | None) -> None:
        """Raises where an attribute names a loop variable whose loop has ended."""
        spec = BLOCK.ops[name]
        own: set[Symbol] = set()
        used: set[Symbol] = set()
        for key, value in attrs.items():
            kind = kind_of(spec.attrs[key])
            own |= set(kind.bound(value))
            for e in kind.expressions(value):
                used |= e.symbols
        for s in used - own:
            if not any(s in known for known in self.known):
                raise ProgramError(
                    f"{name}: {s.name} has no value here; a loop variable has one within its loop, a size where it is "
                    "a parameter of the kernel",
                    loc,
                )

    # -- blocks ---------------------------------------------------------------------------------------

    def enter(self, frame: Frame, symbols: Iterable[Symbol] = ()) -> None:
        """Operations go to a block of the frame from now on; these symbols have a meaning there."""
        self.require_open(frame.loc)
        self._require_known(frame.name, frame.attrs, frame.loc)
        self.frames.append(frame)
        self.known.append(set(symbols))
        frame.blocks.append(self.builder.open())

    def next_block(self, frame: Frame) -> None:
        """The frame's block ends, and another one begins."""
        self._require_innermost(frame)
        self.builder.close(frame.blocks[-1])
        frame.blocks.append(self.builder.open())

    def leave(self, frame: Frame) -> Op:
        """The frame's last block ends: its operation is written."""
        self._require_innermost(frame)
        self.builder.close(frame.blocks[-1])
        self.frames.pop()
        self.known.pop()
        return self.builder.emit(frame.name, frame.operands, frame.attrs, blocks=tuple(frame.blocks), loc=frame.loc)

    @contextmanager
    def within(self, frame: Frame, symbols: Iterable[Symbol] = ()) -> Iterator[None]:
        """A frame for the time being; nothing of it stays where something raises."""
        state = len(self.frames), len(self.known), len(self.builder.blocks)
        self.enter(frame, symbols)
        try:
            yield
            self.leave(frame)
        finally:
            del self.frames[state[0] :], self.known[state[1] :], self.builder.blocks[state[2] :]

    def _require_innermost(self, frame: Frame | None) -> None:
        """Raises where a loop within was left on the way: its body is traced once, and goes to its end."""
        left = self.frames[-1] if self.frames else None
        if left is not frame and left is not None:
            raise ProgramError(
                f"{left.name}: this loop was left by break, return or an exception; its body is traced once, for all "
                "rounds, and runs to its end. Say what is not done in every round with tb.if_",
                left.loc,
            )

    def finished(self) -> None:
        """Raises where a loop is still open when the kernel's function has returned."""
        self._require_innermost(None)

    # -- names ----------------------------------------------------------------------------------------

    def free(self, name: str) -> str:
        """The name, or one like it, that no symbol has here."""
        taken = {s.name for known in self.known for s in known}
        found, count = name, 1
        while found in taken:
            count += 1
            found = f"{name}_{count}"
        return found

    def axes(self, names: Sequence[str], extents: Sequence[Any]) -> tuple[Symbol, ...]:
        """Coordinates that run over these extents."""
        return tuple(axis(self.free(n), as_expr(e)) for n, e in zip(names, extents, strict=True))

    def range(self, name: str, lo: Any, hi: Any, step: int, before: Sequence[Symbol]) -> Range:
        """A loop variable with the numbers it takes; `before` are those of the same loop."""
        found = self.free(name)
        while any(found == s.name for s in before):
            found = f"{found}_"
        return Range.of(found, lo, hi, step)


def trace(what: str) -> Trace:
    """The kernel being traced; an error that names `what` if there is none."""
    found = _current.get()
    if found is None:
        raise ProgramError(f"{what} only has a meaning inside a kernel, under @tb.kernel", author_location(2))
    return found


def only_value(s: Symbol) -> Expr:
    """The symbol, or its value where it has only one, as binding a program's parameters would leave it."""
    one = s.lo == s.hi and isinstance(s.lower, Const) and isinstance(s.upper, Const)
    return as_expr(int(s.lo)) if one else s


def several(x: Any) -> tuple[Any, ...]:
    """A sequence as a tuple; a single thing as a tuple of one."""
    return tuple(x) if isinstance(x, tuple | list) else (x,)


def number(x: Any, what: str) -> Expr:
    """An integer or an expression, as an expression."""
    if isinstance(x, Expr):
        return x
    if isinstance(x, bool) or not hasattr(x, "__index__"):
        raise ProgramError(f"{what} is {x!r}; it must be an integer or an expression of sizes", author_location(2))
    return as_expr(int(x))
