"""Softmax between products that a loop can do a tile at a time: it rescales what it has whenever the maximum grows.

    %m = max %s dim=(N)                     m' = max(s, m); r = exp(m - m')
    %w = exp(%s - %m)                       w = exp(s - m')
    %l = sum %w dim=(N)                     l' = sum(w) + l * r
    %o = mma %w, %v, 0                      o' = mma(w, v, o * r)

Whatever is summed must have exactly one factor exp(t - m): then both sides are rescaled by the same number.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op, Program, TileType, Value, walk_block
from tilewright.ir.dtypes import f32
from tilewright.ir.tile import REDUCTIONS
from tilewright.plan.computed import GIVEN, SIMPLE
from tilewright.plan.facts.loops import EXPONENTIALS, SAME_ELEMENTS
from tilewright.plan.general import only_adds

SCALED = ("cast", "mul", *SAME_ELEMENTS)
"""Operations that keep a factor of one operand."""


@dataclass(frozen=True)
class OnlineSoftmax:
    """The operations of a softmax along a dimension: all along it, its maximum, the sums and the MMAs over it."""

    along: tuple[Op, ...]
    maximum: Op
    power: Op
    """The first of the operations that raise e, or 2, to a difference to the maximum."""
    sums: tuple[Op, ...]
    products: tuple[Op, ...]


def online_softmax(program: Program, dim: Expr) -> OnlineSoftmax | str:
    """Return an OnlineSoftmax if a loop can compute the program's softmax along `dim` tile by tile; else text: why not.

    The loop rescales its sums whenever the running maximum grows. The softmax must lie between MMAs: its weights must
    be operands of MMAs that reduce `dim`. An OnlineSoftmax lists operations of the program: those whose result has
    `dim`; the maximum over `dim`; the first exponential of a difference to it; and the sums and MMAs that reduce `dim`.
    """
    ops = program.body.ops
    reductions = [op for op in ops if op.name in REDUCTIONS and op.attrs["dim"] is dim]
    maxima = [op for op in reductions if op.name == "max"]
    sums = tuple(op for op in reductions if op.name == "sum")
    products = tuple(op for op in ops if op.name == "mma" and all(_has_dim(v, dim) for v in op.operands[:2]))
    if len(maxima) != 1 or len(reductions) != 1 + len(sums) or any(op.attrs.get("acc") for op in reductions):
        return f"{dim} is not reduced by one maximum and by sums of what is computed with that maximum"
    makers = program.makers()
    if not products or any(_has_dim(op.result, dim) or not _is_zero(makers.get(op.operands[2])) for op in products):
        return f"no product begins to sum {dim} at zero"
    (maximum,) = maxima
    along = tuple(op for op in ops if any(_has_dim(v, dim) for v in op.results))
    if any(op.name not in {*SIMPLE, *GIVEN, "read", "mma"} and not _is_k_loop(op) for op in along):
        return f"what lies along {dim} is not computed element by element from a product"
    weights = _weights(along, maximum)
    if isinstance(weights, str):
        return weights
    ends = {*reductions, *products}
    for op in (op for op in ops if op not in along and op not in ends):
        if any(
            _has_dim(v, dim) for x in (op, *(y for block in op.blocks for y in walk_block(block))) for v in x.operands
        ):
            return f"what lies along {dim} is used by more than the products and sums over it"
    if any(sum(v in weights for v in op.operands[:2]) != 1 for op in (*sums, *products)):
        return f"a sum over {dim} is not one of weights"
    after = _dependents(ops, {maximum.result, *(op.result for op in (*sums, *products))}, along) - {maximum.result}
    if any(v in after for op in along for v in op.operands) or maximum.operands[0].type.dtype is not f32:
        return f"what lies along {dim} depends on a sum over it"
    power = next((op for op in along if op.name in EXPONENTIALS and op.result in weights), None)
    if power is None:
        return f"nothing is raised to a difference to the maximum over {dim}"
    return OnlineSoftmax(along, maximum, power, sums, products)


def _weights(along: tuple[Op, ...], maximum: Op) -> set[Value] | str:
    """Return the set of softmax weights, as values; or a text that says why there are none.

    A weight is exp(t - m) or exp2(t - m) for any value t, where m is the result of `maximum`, a reduction over a
    dimension. A weight that is cast, broadcast, or multiplied by a value that is no weight, is a weight too. `along`
    are the operations whose results have that dimension, in order.

    A text is returned if `along` uses m, t - m or a weight in any other way. It is also returned if there is no
    exponential, or if both exp and exp2 are used.
    """
    differences, weights, kinds = set[Value](), set[Value](), set[str]()
    for op in along:
        scaled = [v for v in op.operands if v in weights]
        if maximum.result in op.operands:
            if op.name != "sub" or op.operands[1] is not maximum.result or scaled:
                return f"{op.name} of a maximum is no difference to it"
            differences.add(op.result)
        elif not differences.isdisjoint(op.operands):
            if op.name not in EXPONENTIALS:
                return f"{op.name} of a difference to a maximum"
            kinds.add(op.name)
            weights.add(op.result)
        elif scaled:
            if op.name not in SCALED or len(scaled) != 1:
                return f"{op.name} of weights"
            weights.add(op.result)
    if not kinds:
        return "nothing is raised to a difference from the maximum"
    return weights if len(kinds) == 1 else "weights are raised in two ways"


def _dependents(ops: list[Op], values: set[Value], along: tuple[Op, ...]) -> set[Value]:
    """Return the set of `values` and of all values computed from them, where operations in `along` are not followed.

    `ops` are the program's operations, in order. `along` are the operations whose results have the softmax's dimension.
    """
    dependents = set(values)
    for op in ops:
        if op not in along and not dependents.isdisjoint(op.operands):
            dependents |= set(op.results)
    return dependents


def _is_zero(op: Op | None) -> bool:
    """True if `op` is an operation that fills a tile with the number 0; False if it is another operation, or None."""
    return op is not None and op.name == "fill" and op.attrs["value"] == 0


def _is_k_loop(op: Op) -> bool:
    """True if `op` is a loop whose body has only reads, MMAs and the yield (end of an iteration)."""
    return op.name == "iterate" and only_adds(op)


def _has_dim(value: Value, dim: Expr) -> bool:
    """True if `value` is a tile (not a memory or a scalar size) that has the dimension `dim`."""
    return isinstance(value.type, TileType) and dim in value.type.dims
