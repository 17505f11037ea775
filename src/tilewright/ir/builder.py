"""Programs written operation by operation: the one way in which front ends and passes make them.

A `Builder` holds the blocks that are open, innermost last. `emit` appends an operation; the types of its results follow
from its operands, and what makes no sense raises at the operation's location. `inside` and `open`/`close` nest blocks,
and both leave the builder as it was where something raises within.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilewright.errors import ProgramError
from tilewright.ir.attrs import check_attr, plain_attrs
from tilewright.ir.core import Block, Level, Op, Program, Value


class Builder:
    """A program of a level as it grows.

    >>> from tilewright.ir.attrs import Range
    >>> from tilewright.ir.block import BLOCK
    >>> from tilewright.ir.dtypes import f32
    >>> from tilewright.ir.tensors import TensorType
    >>> from tilewright.algebra.expr import as_expr, index
    >>> b = Builder(BLOCK)
    >>> y = b.argument("y", TensorType("global", f32, (as_expr(4), as_expr(8)), role="out"))
    >>> loop, j = Range.of("m", 0, 4), index("j", 8)
    >>> with b.inside("tasks", attrs={"ranges": (loop,)}):
    ...     view = b.emit("view", (y,), {"over": (j,), "at": ((loop.symbol, False), (j, False))}, names=("row",))
    ...     _ = b.emit("fill", (view.result,), {"value": 0})
    >>> print(b.program("zero"))
    block zero(%y: out global f32 (4, 8))
    {
      tasks m in 0..4 {
        %row = view %y (j 8) -> [m, j]
        fill %row 0
      }
    }
    <BLANKLINE>
    """

    def __init__(self, level: Level):
        self.level = level
        self.args: list[Value] = []
        self.records: list[Op] = []
        self.blocks: list[Block] = [Block()]

    def argument(self, name: str, kind: Any) -> Value:
        """A further argument of the program."""
        self.args.append(Value(kind, name))
        return self.args[-1]

    def record(self, name: str, attrs: dict[str, Any], loc: Any = None) -> Op:
        """A further line of the header."""
        spec = self.level.records[name]
        self.records.append(Op(spec, (), plain_attrs(spec.attrs, attrs), loc=loc))
        return self.records[-1]

    def emit(
        self,
        name: str,
        operands: Sequence[Value] = (),
        attrs: dict[str, Any] | None = None,
        types: tuple[Any, ...] | None = None,
        blocks: tuple[Block, ...] = (),
        loc: Any = None,
        names: Sequence[str | None] = (),
    ) -> Op:
        """A new operation at the end of the innermost open block; as `made`."""
        op = self.made(name, operands, attrs, types, blocks, loc, names)
        self.blocks[-1].ops.append(op)
        return op

    def made(
        self,
        name: str,
        operands: Sequence[Value] = (),
        attrs: dict[str, Any] | None = None,
        types: tuple[Any, ...] | None = None,
        blocks: tuple[Block, ...] = (),
        loc: Any = None,
        names: Sequence[str | None] = (),
    ) -> Op:
        """A new operation that stands nowhere yet; a ProgramError at `loc` if it makes no sense.

        `types` are those of the results where they do not follow from the operands; `names` are the results' names.
        """
        spec = self.level.ops.get(name)
        if spec is None:
            raise ProgramError(f"there is no operation {name} on the {self.level.name} level", loc)
        given = plain_attrs(spec.attrs, attrs) if attrs else {}
        for key, value in given.items():
            if key not in spec.attrs:
                raise ProgramError(f"{name} has no attribute {key}; it has {', '.join(spec.attrs) or 'none'}", loc)
            check_attr(spec.attrs[key], key, value, name, loc)
        op = Op(spec, tuple(operands), {k: given[k] for k in spec.attrs if k in given}, (), blocks, loc)
        try:
            if types is None:
                types = () if spec.result_types is None else spec.result_types(op)
            shown = (*names, *[None] * (len(types) - len(names)))
            op.results = tuple(Value(t, n) for t, n in zip(types, shown, strict=False))
            if spec.check is not None:
                spec.check(op)
        except ProgramError as fault:
            if fault.location is None and loc is not None:
                raise type(fault)(fault.what, loc) from None
            raise
        return op

    def open(self, args: tuple[Value, ...] = ()) -> Block:
        """A new innermost block: operations go there until it is closed."""
        self.blocks.append(Block(args))
        return self.blocks[-1]

    def close(self, block: Block) -> Block:
        """Ends a block, which must be the innermost; gives it, to be a block of the operation that follows."""
        if self.blocks[-1] is not block or len(self.blocks) == 1:
            raise ProgramError("a block is closed while one within it is open")
        return self.blocks.pop()

    @contextmanager
    def into(self, block: Block) -> Iterator[Block]:
        """Operations go to a block that is made elsewhere, for the time being."""
        depth = len(self.blocks)
        self.blocks.append(block)
        try:
            yield block
        finally:
            del self.blocks[depth:]

    @contextmanager
    def within(self, args: tuple[Value, ...] = ()) -> Iterator[Block]:
        """A block that is open for the time being; it is gone where something raises."""
        with self.into(Block(args)) as block:
            yield block
            if self.blocks[-1] is not block:
                raise ProgramError("a block is closed while one within it is open")

    @contextmanager
    def inside(
        self, name: str, operands: Sequence[Value] = (), attrs: dict[str, Any] | None = None, loc: Any = None
    ) -> Iterator[None]:
        """An operation whose block holds what is written within; nothing is written where that raises."""
        with self.within() as block:
            yield
        self.emit(name, operands, attrs, blocks=(block,), loc=loc)

    def program(self, name: str, **more: Any) -> Program:
        """The program, when all blocks are closed; `more` are further fields of it."""
        (body,) = self.blocks
        return Program(self.level, name, tuple(self.args), body, self.records, **more)
