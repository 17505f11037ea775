"""What follows a product, element by element: how long the lanes of a core take for it.

A function of one element is so many operations of the simplest kind where arithmetic does it, or as long as the
machine's own instruction takes, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tilewright.ir.core import Op, Program, TileType, Value, walk_block
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


def following(program: Program, product: Op, ends: Collection[Op] = ()) -> Iterator[Op]:
    """The operations that depend on a product, in order; those after `ends` only if they do so otherwise too."""
    loops = [op for op in program.walk() if any(x is product for block in op.blocks for x in walk_block(block))]
    values: set[Value] = {r for op in (product, *loops) for r in op.results}
    for op in program.walk():
        if op not in (product, *loops) and not values.isdisjoint(op.operands):
            yield op
            values |= set(op.results) if op not in ends else set()


def after_product(program: Program, product: Op, machine: Machine) -> float:
    """Cycles of a core for one element of a product's sum, from there to where it is written."""
    dims, total = set(product.operands[2].type.dims), 0.0
    for op in following(program, product):
        if any(isinstance(r.type, TileType) and dims <= set(r.type.dims) for r in op.results):
            total += lane_cycles(op, machine)
    return total
