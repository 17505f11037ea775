"""The cycles of one core per element of an elementwise operation."""

from __future__ import annotations

from tilewright.ir.core import Op
from tilewright.ir.tile import ELEMENTWISE, UNARY_FLOAT
from tilewright.machine import Machine

COMPUTED = {*ELEMENTWISE, "select"}
"""Operations that take cycles; others only move elements, or cost nothing beside the store."""


def lane_cycles(op: Op, machine: Machine) -> float:
    """Return the cycles, usually a fraction, that one core with all lanes busy takes per element of the operation `op`.

    Arithmetic counts the simple operations that it is made of, at the rate of the lanes. A function such as exp counts
    that time or one instruction of the machine's function unit, whichever is larger. Casts, and operations that only
    move elements, count 0.
    """
    if op.name not in COMPUTED:
        return 0.0
    limits = machine.limits
    simple = machine.costs.functions.get(op.name, 1) / limits.lane_rate
    return max(simple, 1 / limits.function_rate) if op.name in UNARY_FLOAT else simple
