"""Places that need division, decoded into tables.

If a place and its conditions divide one running number u (the flat row of a fused axis), a constant table gives, for
each u, the place of its row, or -1 if there is none. A row then costs one look-up.
"""

from __future__ import annotations

from tilewright.algebra.expr import AtLeastZero, Expr, FloorDiv, Mod, Symbol, as_expr, index
from tilewright.algebra.expr_rules import all_of, linear, multiply, weighted_sum
from tilewright.algebra.expr_use import Substitution, has_division
from tilewright.ir.dtypes import i32
from tilewright.passes.loop_lowering import LoopLowering
from tilewright.passes.places import Where

MOST = 1 << 16
"""Entries that a table may have."""


def tabulated(low: LoopLowering, where: Where, lane: Symbol | None) -> Where:
    """Return the place looked up in a constant table if it divides one running number; any other place as it is."""
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
    return Where(where.buffer, row + moving, (row >= 0,) if conditions else ())


def _in_terms_of(condition: Expr, u: Expr, running: Symbol) -> Expr | None:
    """Return a condition linear in `u` as one on `running`; others as they are; None if it is not a multiple of `u`."""
    if not isinstance(condition, AtLeastZero) or not condition.symbols & u.symbols:
        return condition
    start, steps = linear(u)
    constant, terms = linear(condition.operand)
    mine, theirs = dict(steps), dict(terms)
    if set(mine) != set(theirs):
        return None
    some = next(iter(mine))
    if any(theirs[t] * mine[some] != mine[t] * theirs[some] for t in mine) or theirs[some] % mine[some]:
        return None
    factor = theirs[some] // mine[some]
    return weighted_sum(constant - factor * start, [(running, factor)]) >= 0


def _split_offset(offset: Expr, running: Symbol) -> tuple[Expr | None, Expr]:
    """Return (the part of an offset that depends on `running` only, the rest); (None, offset) if they do not
    separate.
    """
    constant, terms = linear(offset)
    mine = [(t, c) for t, c in terms if running in t.symbols]
    rest = [(t, c) for t, c in terms if running not in t.symbols]
    if any(t.symbols - {running} for t, _ in mine):
        return None, offset
    return weighted_sum(0, mine), weighted_sum(constant, rest)
