"""Registers that an MMA works in: those of its operands for a K step, and those that a task keeps for its blocks."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.core import Value
from tilewright.passes.tile.writer import BlockWriter
from tilewright.plan.microkernel import Axes, Microkernel


@dataclass(frozen=True)
class OperandRegisters:
    """The registers of A and B for a K step; `streams`: for each, True if its loads bypass the first cache."""

    left: Value
    right: Value
    streams: tuple[bool, bool] = (False, False)


def operand_registers(
    w: BlockWriter, how: Microkernel, rows: int, columns: int, streams: tuple[bool, bool] = (False, False)
) -> OperandRegisters:
    """Return new registers for the K steps of an accumulator tile of this size."""
    atom, depth = how.atom, how.atom.shape[2]
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
    """Memory to which the accumulator of a finished block is copied: the epilogue finds it there."""
    late: bool
    """True if the results of the current blocks are stored an iteration later."""
    at_once: bool = False
    """True if another MMA of the block needs the sums: they are copied to `scratch` as soon as they are done."""
