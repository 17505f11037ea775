"""Skips K iterations of an MMA in which masks make an operand zero, or hide the result of the task.

    %left = select(k <= m, %a, 0)            for e in 0..64 {  becomes  for e in 0..min(64, first_M//64 + 2) {
    mma %sums += %left * %b

Both roles of a pipeline run the same iterations. All values are assumed to be finite, as for masks of loops
(`plan/facts/masking`).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.algebra.expr import ZERO, Const, Expr, as_expr, symbol
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import linear_form
from tilewright.ir.core import Op
from tilewright.lower.block.lazy_tiles import Parts
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.masks import conditions_of, limit_over
from tilewright.lower.block.mma.k_loops import KRun
from tilewright.plan.facts.masking import masks_of_product

Condition = tuple[Expr, tuple[Expr, ...]]
"""(expression of coordinates that is >= 0 where a mask is true, dimensions of the mask)."""


def masks_on_product(low: Lowering, op: Op) -> tuple[Condition, ...]:
    """Return the masks of the MMA `op`, each as (expression, dimensions of the mask); a mask is true where its
    expression is >= 0.

    The MMA adds nothing where a mask is false, or its result is not used there. The result is () in three cases: the
    plan has no pipeline; consumers take tasks in turn (ping-pong); or the program's own loop is around the MMAs,
    because that loop skips masked iterations itself.
    """
    roles = low.plan.pipeline
    if roles is None or roles.pingpong or low.bound.loop_tiles:
        return ()
    selects = masks_of_product(low.program, op)
    return tuple(each for select in selects for each in conditions_of(low, select.operands[0]))


def unmasked_run(low: Lowering, run: KRun, conditions: tuple[Condition, ...], k: Expr, parts: Parts) -> KRun:
    """Return the K iterations `run` without those at its start and end in which a mask is false over the whole tile.

    `conditions` has (expression that is >= 0 where a mask is true, dimensions of the mask). A condition is ignored if
    it is not linear in the iteration, or has a dimension that `parts` lacks. `k` is the dimension K; `parts` is
    {dimension: (first index, extent)}. `run` itself is returned if nothing is left out.
    """
    number = symbol("number", 0, None)
    first, end = as_expr(run.first), as_expr(run.end)
    for e, dims in conditions:
        if not parts.keys() >= set(dims):
            continue
        here = {**parts, k: (parts[k][0] + run.base + run.step * number, run.step)}
        limit = limit_over(low.scope, e, dims, here, False)
        form = None if limit is None else linear_form(limit, [number])
        factor = None if form is None else form[0].get(number, ZERO)
        if form is None or not isinstance(factor, Const):
            continue
        if factor.value < 0:
            end = minimum(end, maximum(form[1] // -factor.value + 1, 0))
        elif factor.value > 0:
            first = maximum(first, -(form[1] // factor.value))
        else:  # all iterations, or none
            end = end * minimum(maximum(form[1] + 1, 0), 1)
    return (
        run
        if (first, end) == (as_expr(run.first), as_expr(run.end))
        else replace(run, first=first, end=maximum(end, first))
    )
