"""Products that a loop can sum in steps of K, whether or not the program has such a loop."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op, Program, TileType, Value, walk_block
from tilewright.plan.computed import GIVEN, SIMPLE

_AGAIN = {*SIMPLE, *GIVEN, "read"}
"""Operations that may be done again in a loop: they give the same, a tile at a time."""


def products_over(program: Program, dim: Expr) -> list[Op]:
    """Return the MMAs that sum all of a dimension at once, outside of a loop over it."""
    loops = [op for op in program.walk() if op.name == "iterate" and op.attrs["axis"] is dim]
    looped = {x for op in loops for block in op.blocks for x in walk_block(block)}
    return [op for op in program.walk() if op.name == "mma" and op not in looped and dim in _summed(op)]


def why_not_in_steps(program: Program, dim: Expr) -> str | None:
    """Return text: why no loop over `dim` can be put around the MMAs that sum it; None if it can.

    It can if operands along `dim` are read, or computed element by element from what is read.
    """
    makers = program.makers()
    operands = [v for op in products_over(program, dim) for v in op.operands[:2]]
    return next((why for v in operands if (why := _why_not_by_tiles(v, dim, makers)) is not None), None)


def _why_not_by_tiles(value: Value, dim: Expr, makers: Mapping[Value, Op]) -> str | None:
    """Return text: why an operand cannot be computed one tile of `dim` at a time; None if it can."""
    if not isinstance(value.type, TileType) or dim not in value.type.dims:
        return None
    op = makers.get(value)
    if op is None or op.name not in _AGAIN:
        return f"what lies along {dim} is neither read nor computed element by element from what is read"
    if any(dim in e.symbols for e in op.attrs.get("at", ())):
        return f"an access depends on the size of {dim}"
    return next((why for v in op.operands if (why := _why_not_by_tiles(v, dim, makers)) is not None), None)


def _summed(op: Op) -> list[Expr]:
    """Return the dimensions that an MMA sums (K)."""
    a, b, c = (v.type.dims for v in op.operands)
    return [d for d in a if d in b and d not in c]
