"""Writes a softmax between two MMAs as a loop over its dimension, so that all forms of attention get the same plan.

An author may divide the weights by their sum before the second MMA or its result after it. The loop needs the second:

    %p = div %w, %l : f32[M, N]             %o = mma %w, %v, %zero : f32[M, E]
    %o = mma %p, %v, %zero : f32[M, E]      %y = div %o, %l : f32[M, E]
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Block, Op, Program, TileType, Value, building
from tilewright.ir.tile import TILE
from tilewright.plan.facts.loops import EXPONENTIALS, SAME_ELEMENTS
from tilewright.plan.facts.online_softmax import OnlineSoftmax, online_softmax
from tilewright.rewrite.tile_between_gemms import has_dim, summed_between, with_loop_over

TILE_SIZE = 128
"""Elements of an iteration as the loop is written; plans choose another number."""


def with_softmax_loops(program: Program, free: Collection[Op]) -> tuple[Program, Collection[Op]]:
    """Write each softmax between two MMAs as a loop over its dimension (an online softmax).

    Return (new program, those of the loops `free` that are still in it). Both are returned unchanged if there is no
    such softmax. A division by the sum of weights is first moved behind the second MMA. A dimension that the author
    loops over or constrains stays as it is. `free` holds the loops that give the same result for every tile size.
    """
    return _with_each_softmax(program, free, lambda divided, dim: with_loop_over(divided, dim, TILE_SIZE))


def with_divisions_last(program: Program, free: Collection[Op]) -> tuple[Program, Collection[Op]]:
    """Move the division of each softmax between two MMAs behind the second MMA, whose result has fewer elements than
    the weights. Return (new program, the loops of `free` in it).

    Both are returned unchanged if there is no such softmax. `free` holds the loops whose result does not depend on the
    tile size.
    """
    return _with_each_softmax(program, free, lambda divided, _: divided)


def _with_each_softmax(
    program: Program, free: Collection[Op], rewrite: Callable[[Program, Expr], Program | str]
) -> tuple[Program, Collection[Op]]:
    """Return (new program, the loops of `free` in it), in which divisions follow MMAs and `rewrite` was applied.

    `rewrite` takes a program and the dimension of a softmax between two MMAs, and returns the new program, or text: why
    it stays as it is. It is not called for a dimension that the author loops over or constrains.
    """
    rewritten = program
    for dim in summed_between(program):
        if _is_constrained(program, dim):
            continue
        divided = _divided_last(rewritten, dim)
        if isinstance(online_softmax(divided, dim), OnlineSoftmax):
            changed = rewrite(divided, dim)
            rewritten = rewritten if isinstance(changed, str) else changed
    if rewritten is program:
        return program, free
    ops = set(rewritten.walk())
    return rewritten, {op for op in free if op in ops}


def _is_constrained(program: Program, dim: Expr) -> bool:
    """True if `program` has a loop over `dim`, or a constraint on it."""
    return any(op.name == "iterate" and op.attrs["axis"] is dim for op in program.walk()) or any(
        record.attrs.get("dim") is dim for record in program.records
    )


def _divided_last(program: Program, dim: Expr) -> Program:
    """Return `program` with divisions of MMA operands moved behind the MMAs, to their results: (w / l) v becomes (w v)
    / l.

    Only MMAs with `dim` in an operand, and divisors without it, are changed; `_division` has all conditions. A
    multiplication counts as a division.
    """
    for product in program.body.ops:
        if product.name == "mma" and any(has_dim(v, dim) for v in product.operands[:2]):
            for operand in product.operands[:2]:
                division = _division(program, product, operand, dim)
                if division is not None:
                    return _divided_last(_moved_behind(program, product, *division), dim)
    return program


def _division(program: Program, product: Op, operand: Value, dim: Expr) -> tuple[Op, Value, Value] | None:
    """Return (division, divided value, divisor) if `operand` of the MMA `product` can be divided after the MMA instead.

    Otherwise return None. `operand` must be a quotient, perhaps cast, broadcast or permuted. The divided value must be
    the result of an exponential, and have `dim`. The divisor must be a tile without `dim`; the MMA's result must have
    its dimensions and element type. Nothing else may use the quotient, and the MMA must start from zero. A
    multiplication counts as a division.
    """
    makers, users = program.makers(), program.users()
    op, value = makers.get(operand), operand
    while op is not None and op.name in ("cast", *SAME_ELEMENTS) and len(users[value]) == 1:
        value = op.operands[0]
        op = makers.get(value)
    if op is None or op.name not in ("div", "mul") or len(users[value]) != 1 or op not in program.body.ops:
        return None
    start, result = makers.get(product.operands[2]), product.result.type
    if start is None or start.name != "fill" or start.attrs["value"] != 0:
        return None
    pairs = [op.operands] if op.name == "div" else [op.operands, op.operands[::-1]]
    for divided, divisor in pairs:
        fits = divided.type == op.result.type and divisor.type.dtype is result.dtype
        rows = isinstance(divisor.type, TileType) and set(divisor.type.dims) <= set(result.dims) - {dim}
        maker = makers.get(divided)
        is_weight = maker is not None and maker.name in EXPONENTIALS  # at most 1: no narrower type overflows
        if fits and rows and is_weight and has_dim(divided, dim):
            return op, divided, divisor
    return None


def _moved_behind(program: Program, product: Op, division: Op, divided: Value, divisor: Value) -> Program:
    """Return `program` with the operation `division` moved from an operand of the MMA `product` to its result.

    The operand is then `divided`, and the MMA's result is divided by `divisor`.
    """
    with building():
        ops: list[Op] = []
        for op in program.body.ops:
            if op is division:
                continue
            operands = tuple(divided if v is division.result else v for v in op.operands)
            results = (Value(product.result.type),) if op is product else op.results
            changed = operands != op.operands or op is product
            ops.append(Op(op.spec, operands, op.attrs, results, op.blocks, op.loc) if changed else op)
            if op is product:
                quotient = (results[0], divisor)
                ops.append(Op(TILE.ops[division.name], quotient, {}, product.results, (), division.loc))
        return replace(program, body=Block(program.body.args, ops))
