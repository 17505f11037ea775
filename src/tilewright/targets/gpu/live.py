"""The number of registers that a lane's fragments need at once, if lanes multiply by themselves (fma): a lower bound.

load %1 ...                             72 registers
compute %x = %1                         the same ones: %1 is not used again
compute %sum = fma(f32(%x), ...)        and those of the accumulator
"""

from __future__ import annotations

from tilewright.ir.core import Op, Program, Value, walk_block
from tilewright.ir.loop_types import FragmentType

WORD = 4
"""Bytes of a register."""


def registers_of_products(program: Program) -> int:
    """Return the largest number of 32-bit registers per lane that the fragments of a role of `program` occupy at one
    time. Return 0 if no operation of the program adds products to an accumulator; values of such programs can be
    computed or loaded again.
    """
    if not any(op.name == "compute" and _multiplies(op) for op in program.walk()):
        return 0
    return max((_most_live_words(op) for op in program.body.ops if op.name == "role"), default=0)


def _multiplies(op: Op) -> bool:
    """True if the `compute` operation `op` adds products to an accumulator: its formula has an fma, or it has a product
    and a sum and reads the register that it writes.
    """
    parts = {part.name for part in op.attrs["formula"].walk()}
    return "fma" in parts or (op.operands[0] in op.operands[1:] and {"add", "mul"} <= parts)


def _words(value: Value) -> int:
    """Return the number of 32-bit registers that a lane needs for its elements of the fragment `value`."""
    return -(-int(value.type.shape[1]) * int(value.type.dtype.numpy.itemsize) // WORD)


def _most_live_words(role: Op) -> int:
    """Return the largest number of 32-bit registers per lane that the fragments of `role` occupy at one time. A
    fragment is live from its first to its last use. A copy within a lane shares the registers of its source. An
    operation that adds products to an accumulator needs as many registers again as the accumulator, for converted
    operands.
    """
    begins: dict[Value, int] = {}
    ends: dict[Value, int] = {}
    alias_of: dict[Value, Value] = {}  # a fragment and the one it is a copy of
    widened: list[tuple[int, Value]] = []  # operations that convert an operand to the accumulator's type
    number = 0

    def walk(ops: list[Op]) -> None:
        """Number the operations of `ops` and of their blocks in program order, and record the first and last use of
        each fragment in `begins` and `ends`. A fragment that is defined before a loop and read in it lives until the
        loop ends.
        """
        nonlocal number
        for op in ops:
            first = number
            number += 1
            if op.name == "shuffle" and op.attrs["at"][0] is op.attrs["over"][0]:
                alias_of[op.operands[0]] = alias_of.get(op.operands[1], op.operands[1])
            for value in (alias_of.get(v, v) for v in op.operands if isinstance(v.type, FragmentType)):
                begins.setdefault(value, first)
                ends[value] = first
            if op.name == "compute" and _multiplies(op):
                widened.append((first, op.operands[0]))
            for block in op.blocks:
                walk(block.ops)
            used = {alias_of.get(v, v) for block in op.blocks for inner in walk_block(block) for v in inner.operands}
            for value in (v for v in used if begins.get(v, number) < first):  # another iteration may read it
                ends[value] = number

    walk([op for block in role.blocks for op in block.ops])
    change = [0] * (number + 2)
    for value, begin in begins.items():
        change[begin] += _words(value)
        change[ends[value]] -= _words(value)
    for at_op, value in widened:
        change[at_op] += _words(value)
        change[at_op + 1] -= _words(value)
    highest = live = 0
    for step in change:
        live += step
        highest = max(highest, live)
    return highest
