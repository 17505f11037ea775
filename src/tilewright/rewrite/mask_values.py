"""Copies the constant of a masking select into the loop of the select: a mask whose value is known can be skipped.

%low = fill value=-inf                     iterate ... {
iterate ... {                                %low = fill value=-inf
  %s = select %seen, %scores, %low           %s = select %seen, %scores, %low
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.ir.core import Op, Program, Value, building
from tilewright.rewrite.rewriter import Regrouped, within

CONSTANTS = ("fill", "scalar")


def with_mask_values_in_loops(program: Program, free: Collection[Op]) -> tuple[Program, Collection[Op]]:
    """Copy constants into loops, before selects that give them where their condition is false, such as the -inf of a
    mask.

    Return (new program, counterparts of the loops `free` in it). Both are returned unchanged if no loop has such a
    select. Only constants (`fill`, `scalar`) outside of all loops are copied. `free` holds the loops that give the same
    result for every tile size.
    """
    constants = {r: op for op in program.body.ops if op.name in CONSTANTS for r in op.results}
    loops = [op for op in program.body.ops if op.name == "iterate"]
    if not any(op.name == "select" and op.operands[2] in constants for loop in loops for op in within(loop)):
        return program, free
    with building():
        rewrite = _WithConstantsInside(constants)
        rewritten = replace(program, body=rewrite.body(program.body))
    return rewritten, {rewrite.kept[op] for op in free if op in rewrite.kept}


class _WithConstantsInside(Regrouped):
    """Rewrites a program with a copy of the constant before each select of a loop that gives it."""

    def __init__(self, constants: Mapping[Value, Op]):
        """`constants` are {value of the program's body: the operation that makes it}."""
        super().__init__(())
        self.constants = constants
        self.depth = 0

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten form of each operation in the list `given` to `ops`.

        In a loop, a copy of the constant is appended before each select that gives a constant of `self.constants` where
        its condition is false.
        """
        self.depth += 1
        for op in given:
            is_inside = op.name == "select" and self.depth > 1
            constant = self.constants.get(op.operands[2]) if is_inside else None
            if constant is None:
                super().block([op], ops)
                continue
            value = constant.result
            copied = Op(constant.spec, (), constant.attrs, (Value(value.type, value.name),), (), constant.loc)
            ops.append(copied)
            outer, self.values[value] = self.of(value), copied.result
            super().block([op], ops)
            self.values[value] = outer
        self.depth -= 1
