"""MMAs around which a loop over K tiles can be put, although the program has no such loop."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op, Program, TileType, Value, walk_block
from tilewright.plan.computed import GIVEN, SIMPLE

_AGAIN = {*SIMPLE, *GIVEN, "read"}
"""Operations that a loop can compute one tile at a time, with the same result."""


def unlooped_mmas(program: Program, dim: Expr) -> list[Op]:
    """Return the MMAs of a program that sum the dimension `dim` (their K) and are in no loop over `dim`."""
    loops = [op for op in program.walk() if op.name == "iterate" and op.attrs["axis"] is dim]
    looped = {x for op in loops for block in op.blocks for x in walk_block(block)}
    return [op for op in program.walk() if op.name == "mma" and op not in looped and dim in _reduction_dims(op)]


def why_no_k_loop(program: Program, dim: Expr) -> str | None:
    """Return text: why no loop over tiles of `dim` can be put around the MMAs that sum `dim`; None if a loop can.

    Each operand with the dimension `dim` must be read, or computed elementwise from reads, by accesses that do not
    depend on the size of `dim`. MMAs that are in a loop over `dim` already are left out.
    """
    makers = program.makers()
    operands = [v for op in unlooped_mmas(program, dim) for v in op.operands[:2]]
    return next((why for v in operands if (why := _why_not_by_tiles(v, dim, makers)) is not None), None)


def _why_not_by_tiles(value: Value, dim: Expr, makers: Mapping[Value, Op]) -> str | None:
    """Return text: why `value`, an MMA operand, cannot be computed one tile of `dim` at a time; None if it can.

    A value without `dim` can. A value with `dim` can if it is read by an access that does not depend on the size of
    `dim`, or if it is computed elementwise from values that can. `makers` maps each value of the program to the
    operation that computes or reads it.
    """
    if not isinstance(value.type, TileType) or dim not in value.type.dims:
        return None
    op = makers.get(value)
    if op is None or op.name not in _AGAIN:
        return f"what lies along {dim} is neither read nor computed element by element from what is read"
    if any(dim in e.symbols for e in op.attrs.get("at", ())):
        return f"an access depends on the size of {dim}"
    return next((why for v in op.operands if (why := _why_not_by_tiles(v, dim, makers)) is not None), None)


def _reduction_dims(op: Op) -> list[Expr]:
    """Return the dimensions that the mma `op` sums (K): its operands have them, and its result does not."""
    a, b, c = (v.type.dims for v in op.operands)
    return [d for d in a if d in b and d not in c]
