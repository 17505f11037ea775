"""Programs built by functions: for passes and for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tilewright.errors import ProgramError
from tilewright.ir.attrs import plain_attrs
from tilewright.ir.core import Block, Level, Op, Program, Value


class ProgramBuilder:
    """A program of a level, written operation by operation; result types follow, and what makes no sense raises.

    >>> from tilewright.ir.attrs import Range
    >>> from tilewright.ir.block import BLOCK
    >>> from tilewright.ir.dtypes import f32
    >>> from tilewright.ir.tensors import TensorType
    >>> from tilewright.algebra.expr import as_expr, index
    >>> b = ProgramBuilder(BLOCK, "zero")
    >>> y = b.argument("y", TensorType("global", f32, (as_expr(4), as_expr(8)), role="out"))
    >>> loop, j = Range.of("m", 0, 4), index("j", 8)
    >>> with b.inside("tasks", ranges=(loop,)):
    ...     row = b.op("view", y, over=(j,), at=((loop.symbol, False), (j, False)), names=("row",))
    ...     b.op("fill", row, value=0)
    >>> print(b.program())
    block zero(%y: out global f32 (4, 8))
    {
      tasks m in 0..4 {
        %row = view %y (j 8) -> [m, j]
        fill %row 0
      }
    }
    <BLANKLINE>
    """

    def __init__(self, level: Level, name: str):
        self.level, self.name = level, name
        self.args: list[Value] = []
        self.records: list[Op] = []
        self.open = [Block(())]

    def argument(self, name: str, kind: Any) -> Value:
        """A further argument."""
        self.args.append(Value(kind, name))
        return self.args[-1]

    def record(self, name: str, **attrs: Any) -> None:
        """A line of the header."""
        spec = self.level.records[name]
        self.records.append(Op(spec, (), plain_attrs(spec.attrs, attrs)))

    def op(self, name: str, *operands: Value, names: tuple[str, ...] = (), **attrs: Any) -> Any:
        """An operation at the end of the open block; gives its result, its results, or None."""
        return self._add(name, operands, attrs, (), names)

    @contextmanager
    def inside(self, name: str, *operands: Value, **attrs: Any) -> Iterator[None]:
        """An operation whose block holds what is written within."""
        self.open.append(Block(()))
        yield
        self._add(name, operands, attrs, (self.open.pop(),), ())

    @contextmanager
    def more(self) -> Iterator[None]:
        """A further block of the operation written last: `finally` of a loop, `else` of a branch."""
        last = self.open[-1].ops[-1]
        self.open.append(Block(()))
        yield
        last.blocks = (*last.blocks, self.open.pop())

    def _add(
        self, name: str, operands: tuple[Value, ...], attrs: dict[str, Any], blocks: tuple[Block, ...], names: Any
    ) -> Any:
        spec = self.level.ops.get(name)
        if spec is None:
            raise ProgramError(f"there is no operation {name} on the {self.level.name} level")
        for key in attrs:
            if key not in spec.attrs:
                raise ProgramError(f"{name} has no attribute {key}; it has {', '.join(spec.attrs) or 'none'}")
        given = plain_attrs(spec.attrs, attrs)
        op = Op(spec, operands, {k: given[k] for k in spec.attrs if k in given}, (), blocks)
        deferred = op.attrs.get("overlap") == "defer"  # its second block is still to come
        types = () if spec.result_types is None or deferred else spec.result_types(op)
        shown = [*names, *([None] * (len(types) - len(names)))]
        op.results = tuple(Value(t, n) for t, n in zip(types, shown, strict=True))
        self.open[-1].ops.append(op)
        return op.results[0] if len(op.results) == 1 else op.results or None

    def program(self) -> Program:
        """The program."""
        (body,) = self.open
        return Program(self.level, self.name, tuple(self.args), body, self.records)
