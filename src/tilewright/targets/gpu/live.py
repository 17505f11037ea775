"""How many registers a lane's fragments take at a time, where lanes multiply: the assembler is not asked for less.

load %1 ...                             72 registers
compute %x = %1                         the same ones: %1 is not looked at again
compute %sum = fma(f32(%x), ...)        and those of the sum
"""

from __future__ import annotations

from tilewright.ir.core import Op, Program, Value, walk_block
from tilewright.ir.loop_types import FragmentType

WORD = 4
"""Bytes of a register."""


def registers_of_products(program: Program) -> int:
    """The most registers that fragments take between two operations, where lanes add up products; 0: they do not.

    Of other programs most can be computed again, or be had later.
    """
    if not any(op.name == "compute" and _multiplies(op) for op in program.walk()):
        return 0
    return max((_most(op) for op in program.body.ops if op.name == "role"), default=0)


def _multiplies(op: Op) -> bool:
    """Whether an operation adds products to a sum: by fma, or, of integers, by an addition to what it writes."""
    parts = {part.name for part in op.attrs["formula"].walk()}
    return "fma" in parts or (op.operands[0] in op.operands[1:] and {"add", "mul"} <= parts)


def _words(value: Value) -> int:
    """The registers of a lane for a fragment."""
    return -(-int(value.type.shape[1]) * int(value.type.dtype.numpy.itemsize) // WORD)


def _most(role: Op) -> int:
    begins: dict[Value, int] = {}
    ends: dict[Value, int] = {}
    same: dict[Value, Value] = {}  # a lane's own values by another name
    widened: list[tuple[int, Value]] = []  # where a factor is as wide as its sum
    number = 0

    def walk(ops: list[Op]) -> None:
        nonlocal number
        for op in ops:
            first = number
            number += 1
            if op.name == "shuffle" and op.attrs["at"][0] is op.attrs["over"][0]:
                same[op.operands[0]] = same.get(op.operands[1], op.operands[1])
            for value in (same.get(v, v) for v in op.operands if isinstance(v.type, FragmentType)):
                begins.setdefault(value, first)
                ends[value] = first
            if op.name == "compute" and _multiplies(op):
                widened.append((first, op.operands[0]))
            for block in op.blocks:
                walk(block.ops)
            used = {same.get(v, v) for block in op.blocks for inner in walk_block(block) for v in inner.operands}
            for value in (v for v in used if begins.get(v, number) < first):  # another round may look at it
                ends[value] = number

    walk([op for block in role.blocks for op in block.ops])
    change = [0] * (number + 2)
    for value, begin in begins.items():
        change[begin] += _words(value)
        change[ends[value]] -= _words(value)
    for place, value in widened:
        change[place] += _words(value)
        change[place + 1] -= _words(value)
    most = now = 0
    for each in change:
        now += each
        most = max(most, now)
    return most
