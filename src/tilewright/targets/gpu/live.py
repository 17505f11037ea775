"""How many registers a lane's fragments take at a time: the assembler is not asked for less.

load %1 ...                             72 registers
compute %x = %1                         the same ones: %1 is not looked at again
compute %sum = fma(f32(%x), ...)        and those of the sum
"""

from __future__ import annotations

from tilewright.ir.core import Op, Program, Value, walk_block
from tilewright.ir.loop_types import FragmentType

WORD = 4
"""Bytes of a register."""


def registers_at_once(program: Program) -> int:
    """The most registers that the fragments of a role take between two operations."""
    return max((_most(op) for op in program.body.ops if op.name == "role"), default=0)


def _most(role: Op) -> int:
    begins: dict[Value, int] = {}
    ends: dict[Value, int] = {}
    number = 0

    def walk(ops: list[Op]) -> None:
        nonlocal number
        for op in ops:
            first = number
            number += 1
            for value in (v for v in op.operands if isinstance(v.type, FragmentType)):
                begins.setdefault(value, first)
                ends[value] = first
            for block in op.blocks:
                walk(block.ops)
            used = {v for block in op.blocks for inner in walk_block(block) for v in inner.operands}
            for value in (v for v in used if begins.get(v, number) < first):  # another round may look at it
                ends[value] = number

    walk([op for block in role.blocks for op in block.ops])
    change = [0] * (number + 1)
    for value, begin in begins.items():
        words = -(-int(value.type.shape[1]) * value.type.dtype.numpy.itemsize // WORD)
        change[begin] += words
        change[ends[value]] -= words
    most = now = 0
    for each in change:
        now += each
        most = max(most, now)
    return most
