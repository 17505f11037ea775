"""How long the lanes of a core take for an operation on one element.

A function of one element is so many operations of the simplest kind where arithmetic does it, or as long as the
machine's own instruction takes, whichever is longer.
"""

from __future__ import annotations

from tilewright.ir.core import Op
from tilewright.ir.tile import ELEMENTWISE, UNARY_FLOAT
from tilewright.machine import Machine

COMPUTED = {*ELEMENTWISE, "select"}
"""Operations that compute; others only say which element is meant, or are done with what stores it."""


def lane_cycles(op: Op, machine: Machine) -> float:
    """Cycles of a core for one element of an operation."""
    if op.name not in COMPUTED:
        return 0.0
    limits = machine.limits
    simple = machine.costs.functions.get(op.name, 1) / limits.lane_rate
    return max(simple, 1 / limits.function_rate) if op.name in UNARY_FLOAT else simple
