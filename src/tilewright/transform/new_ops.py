"""New operations that a pass inserts into a block program: result types are inferred, and names are unused ones."""

from __future__ import annotations

from typing import Any

from tilewright.ir.block import BLOCK
from tilewright.ir.core import Op, Program, Value


class Inserting:
    """Makes new operations for a block program; the pass inserts them where they belong."""

    def __init__(self, program: Program):
        self.names = {v.name for op in program.walk() for v in op.results}

    def op(self, spec: str, operands: tuple[Value, ...] = (), name: str | None = None, /, **attrs: Any) -> Op:
        """Return a new block operation named `spec` (such as "view") with these operands and attributes. It is not
        inserted into the program. The types of its results are inferred. The name of a result is `name`, with a number
        if `name` is used; None stands for no name.
        """
        op = Op(BLOCK.ops[spec], operands, attrs, (), ())
        types = op.spec.result_types(op) if op.spec.result_types is not None else ()
        op.results = tuple(Value(kind, self.fresh(name)) for kind in types)
        return op

    def fresh(self, name: str | None) -> str | None:
        """Return a value name that the program does not use yet, and mark it as used: `name`, or `name` with a number
        (`x_2`). Return None if `name` is None.
        """
        if name is None:
            return None
        count, candidate = 1, name
        while candidate in self.names:
            count += 1
            candidate = f"{name}_{count}"
        self.names.add(candidate)
        return candidate
