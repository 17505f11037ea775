"""Registers of an MMA: those of its operands for a K step, and those that a task keeps for all of its blocks."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.core import Value
from tilewright.lower.block.writer import BlockWriter
from tilewright.plan.microkernel import Axes, Microkernel


@dataclass(frozen=True)
class OperandRegisters:
    """The registers of A (`left`) and B (`right`) for a K step; `streams`: for each, True if its loads bypass the L1
    cache.
    """

    left: Value
    right: Value
    streams: tuple[bool, bool] = (False, False)


def operand_registers(
    w: BlockWriter, kernel: Microkernel, rows: int, columns: int, streams: tuple[bool, bool] = (False, False)
) -> OperandRegisters:
    """Emit the allocation of registers of A and B for one K step of an accumulator tile; return them as
    OperandRegisters.

    The tile has `rows` x `columns` elements; `kernel` has the atom, and so the depth of a K step. `streams` is (True if
    loads of A bypass the L1 cache, the same for B); it is stored with the registers.
    """
    atom, depth = kernel.atom, kernel.atom.shape[2]
    left = w.registers(atom.a.dtype, (rows, depth), f"{atom.name}.a", "left")
    right = w.registers(atom.b.dtype, (depth, columns), f"{atom.name}.b", "right")
    return OperandRegisters(left, right, streams)


@dataclass(frozen=True)
class TaskRegisters:
    """The registers and staged rows that a task has for an MMA in tile registers, for all of its blocks."""

    axes: Axes
    sums: Value
    operands: OperandRegisters
    scratch: Value
    """Memory to which the accumulator of a finished block is copied, for the epilogue."""
    late: bool
    """True if results are stored one iteration later, during the next block."""
    at_once: bool = False
    """True if another MMA of the block needs the accumulator: it is copied to `scratch` right after its K loops."""
