"""Address tables: offsets that need divisions, looked up in constant tables.

If an offset and its conditions divide one index u (such as the flat row of a fused axis), a constant table has, for
each u, the offset of its row, or -1 if the row is out of bounds. Addressing a row then costs one look-up.
"""

from __future__ import annotations

from tilewright.algebra.expr import AtLeastZero, Expr, FloorDiv, Mod, Symbol, as_expr, index
from tilewright.algebra.expr_rules import all_of, linear, multiply, weighted_sum
from tilewright.algebra.expr_use import Substitution, has_division
from tilewright.analysis.flat_memory import TensorAddress
from tilewright.ir.dtypes import i32
from tilewright.lower.loop_lowering import LoopLowering

MOST = 1 << 16
"""The most entries that a table may have."""


def tabulated(low: LoopLowering, where: TensorAddress, lane: Symbol | None) -> TensorAddress:
    """Return the address `where` with its divisions replaced by a look-up in a constant table; the look-up is emitted.
    Example: 1000*(u//14) + u%14 + l -> table[u] + l. An index out of bounds has the entry -1, and the bounds check of
    the result is that the entry is at least 0.

    Return `where` itself if it has no divisions, or if its divisions have several dividends. The one dividend u must
    lie in 0..65535, must not depend on open sizes alone, and must not have the symbol `lane` of the vector's lanes.
    Bounds checks must depend on u alone. Return `where` itself if one of these conditions fails.
    """
    if not has_division(where.offset) and not any(has_division(c) for c in where.conditions):
        return where
    divisions = {
        node
        for e in (where.offset, *where.conditions)
        for node in e.walk()
        if isinstance(node, FloorDiv | Mod) and not has_division(node.left) and node.right.is_constant
    }
    dividends = {node.left for node in divisions}
    if len(dividends) != 1:
        return where
    (u,) = dividends
    if lane in u.symbols or u.symbols <= low.open or not (u.lo >= 0 and u.hi < MOST):
        return where
    running = index("u", 1 << int(u.hi).bit_length())  # rows of one strip share a table
    images = Substitution({})
    for e in (where.offset, *where.conditions):
        images.done |= {s: s for s in e.symbols}  # they stay, also where their limits divide the same number
    for node in divisions:
        images.done[node] = running // node.right if isinstance(node, FloorDiv) else running % node.right
    conditions = [_in_terms_of(images(c), u, running) for c in where.conditions]
    fixed, moving = _split_offset(images(where.offset), running)
    if fixed is None or any(c is None or c.symbols - {running} for c in conditions):
        return where
    in_bounds = all_of(*(c for c in conditions if c is not None)) if conditions else as_expr(1)
    table = low.table(multiply(in_bounds, fixed + 1) - 1, running, i32)
    row = low.symbol("row", -1, int(max(fixed.hi, 0)) if fixed.hi < float("inf") else MOST * 1024)
    low.emit("fetch", (table,), symbol=row, at=(u,))
    return TensorAddress(where.buffer, row + moving, (row >= 0,) if conditions else ())


def _in_terms_of(condition: Expr, u: Expr, running: Symbol) -> Expr | None:
    """Return a bounds condition with the index `u` replaced by the symbol `running`: with u = 3*i + j, the condition
    6*i + 2*j >= 4 becomes 2*running >= 4. A condition without symbols of `u`, or one that is not of the form e >= 0, is
    returned as it is. Return None if it is no multiple of `u` plus a constant.
    """
    if not isinstance(condition, AtLeastZero) or not condition.symbols & u.symbols:
        return condition
    start, steps = linear(u)
    constant, terms = linear(condition.operand)
    steps_of_u, steps_of_condition = dict(steps), dict(terms)
    if set(steps_of_u) != set(steps_of_condition):
        return None
    first_term = next(iter(steps_of_u))
    if (
        any(
            steps_of_condition[t] * steps_of_u[first_term] != steps_of_u[t] * steps_of_condition[first_term]
            for t in steps_of_u
        )
        or steps_of_condition[first_term] % steps_of_u[first_term]
    ):
        return None
    factor = steps_of_condition[first_term] // steps_of_u[first_term]
    return weighted_sum(constant - factor * start, [(running, factor)]) >= 0


def _split_offset(offset: Expr, running: Symbol) -> tuple[Expr | None, Expr]:
    """Return (sum of the terms of `offset` that have the symbol `running`, sum of all other terms). Return (None,
    `offset`) if a term has both `running` and other symbols.
    """
    constant, terms = linear(offset)
    running_terms = [(t, c) for t, c in terms if running in t.symbols]
    other_terms = [(t, c) for t, c in terms if running not in t.symbols]
    if any(t.symbols - {running} for t, _ in running_terms):
        return None, offset
    return weighted_sum(0, running_terms), weighted_sum(constant, other_terms)
