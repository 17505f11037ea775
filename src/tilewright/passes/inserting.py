"""Operations that a pass adds to a block program: their results' types follow, and names are not taken yet."""

from __future__ import annotations

from typing import Any

from tilewright.ir.block import BLOCK
from tilewright.ir.core import Op, Program, Value


class Inserting:
    """Makes operations of a program; the pass puts them where they belong."""

    def __init__(self, program: Program):
        self.names = {v.name for op in program.walk() for v in op.results}

    def op(self, spec: str, operands: tuple[Value, ...] = (), name: str | None = None, /, **attrs: Any) -> Op:
        """An operation, with a name for its results like the one given."""
        made = Op(BLOCK.ops[spec], operands, attrs, (), ())
        types = made.spec.result_types(made) if made.spec.result_types is not None else ()
        made.results = tuple(Value(kind, self.fresh(name)) for kind in types)
        return made

    def fresh(self, name: str | None) -> str | None:
        """A name that no value has: the one given, or that with a number."""
        if name is None:
            return None
        count, found = 1, name
        while found in self.names:
            count += 1
            found = f"{name}_{count}"
        self.names.add(found)
        return found
