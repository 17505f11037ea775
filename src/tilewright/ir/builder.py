"""Build programs operation by operation; front ends and passes create all programs with a `Builder`.

A `Builder` holds the blocks that are open, innermost last. `emit` appends an operation; the types of its results follow
from its operands, and an invalid operation raises at its source location. `inside` and `open`/`close` nest blocks;
`inside` leaves the builder as it was if an exception passes through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilewright.errors import ProgramError
from tilewright.ir.attrs import check_attrs, plain_attrs
from tilewright.ir.core import Block, Level, Op, Program, Value


class Builder:
    """A program of one level under construction.

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
        """Append an argument called `name`, of type `kind`, to the program's arguments, and return its value."""
        self.args.append(Value(kind, name))
        return self.args[-1]

    def record(self, name: str, attrs: dict[str, Any], loc: Any = None) -> Op:
        """Append a header line called `name`, such as "param", and return it as an operation.

        `attrs` are its attributes, {name: value}, and `loc` is its source location. Raise ProgramError if the level has
        no such header line, or if a required attribute is missing, or if an attribute is invalid.
        """
        spec = self.level.records.get(name)
        if spec is None:
            raise ProgramError(f"there is no header line {name} on the {self.level.name} level", loc)
        values = plain_attrs(spec.attrs, attrs)
        check_attrs(spec.attrs, values, name, loc)
        self.records.append(Op(spec, (), values, loc=loc))
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
        """Create the operation `name`, append it to the innermost open block, and return it.

        `operands`, `attrs` ({name: value}) and nested `blocks` become parts of the operation. `types` are the result
        types; without `types`, they are inferred from the operands. `names` are printed names of the results. Raise
        ProgramError, with the source location `loc`, if a required attribute is missing, or if an attribute or operand
        is invalid.
        """
        op = self.create(name, operands, attrs, types, blocks, loc, names)
        self.blocks[-1].ops.append(op)
        return op

    def create(
        self,
        name: str,
        operands: Sequence[Value] = (),
        attrs: dict[str, Any] | None = None,
        types: tuple[Any, ...] | None = None,
        blocks: tuple[Block, ...] = (),
        loc: Any = None,
        names: Sequence[str | None] = (),
    ) -> Op:
        """Create the operation `name` and return it, without appending it to a block.

        `operands`, `attrs` ({name: value}) and nested `blocks` become parts of the operation. `types` are the result
        types; without `types`, they are inferred from the operands. `names` are printed names of the results. Raise
        ProgramError, with the source location `loc`, if a required attribute is missing, or if an attribute or operand
        is invalid.
        """
        spec = self.level.ops.get(name)
        if spec is None:
            raise ProgramError(f"there is no operation {name} on the {self.level.name} level", loc)
        values = plain_attrs(spec.attrs, attrs) if attrs else {}
        check_attrs(spec.attrs, values, name, loc)
        op = Op(spec, tuple(operands), {k: values[k] for k in spec.attrs if k in values}, (), blocks, loc)
        try:
            if types is None:
                types = () if spec.result_types is None else spec.result_types(op)
            result_names = (*names, *[None] * (len(types) - len(names)))
            op.results = tuple(Value(t, n) for t, n in zip(types, result_names, strict=False))
            if spec.check is not None:
                spec.check(op)
        except ProgramError as fault:
            if fault.location is None and loc is not None:
                raise type(fault)(fault.what, loc) from None
            raise
        return op

    def open(self, args: tuple[Value, ...] = ()) -> Block:
        """Start a new block with the arguments `args`, and return it. Operations are emitted into it until it is
        closed.
        """
        self.blocks.append(Block(args))
        return self.blocks[-1]

    def close(self, block: Block) -> Block:
        """End `block`, which must be the innermost open block, and return it.

        The caller passes it to the operation that it belongs to. Raise ProgramError if another block is innermost, or
        if `block` is the program's body.
        """
        if self.blocks[-1] is not block or len(self.blocks) == 1:
            raise ProgramError("a block is closed while one within it is open")
        return self.blocks.pop()

    @contextmanager
    def into(self, block: Block) -> Iterator[Block]:
        """Context manager: operations emitted inside the `with` are appended to `block`, an existing block, which it
        yields.
        """
        depth = len(self.blocks)
        self.blocks.append(block)
        try:
            yield block
        finally:
            del self.blocks[depth:]

    @contextmanager
    def within(self, args: tuple[Value, ...] = ()) -> Iterator[Block]:
        """Context manager that yields a new block with the arguments `args`. Operations emitted inside the `with` go
        into it.

        The caller passes the block to an operation. Raise ProgramError if a block opened inside the `with` is still
        open at the end of the `with`.
        """
        with self.into(Block(args)) as block:
            yield block
            if self.blocks[-1] is not block:
                raise ProgramError("a block is closed while one within it is open")

    @contextmanager
    def inside(
        self, name: str, operands: Sequence[Value] = (), attrs: dict[str, Any] | None = None, loc: Any = None
    ) -> Iterator[None]:
        """Context manager: operations emitted inside the `with` become the block of a new operation `name`.

        The new operation is emitted at the end of the `with`, with `operands`, `attrs` ({name: value}) and the source
        location `loc`. If an exception leaves the `with`, nothing is emitted.
        """
        with self.within() as block:
            yield
        self.emit(name, operands, attrs, blocks=(block,), loc=loc)

    def program(self, name: str, **more: Any) -> Program:
        """Return the finished program, called `name`.

        `more` are further fields of `Program`, such as `bindings`. Raise ValueError if a block is still open.
        """
        (body,) = self.blocks
        return Program(self.level, name, tuple(self.args), body, self.records, **more)
