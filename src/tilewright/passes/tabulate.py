"""Places that need division, decoded into tables.

Where a place and its conditions divide one running number u (the flat row of a fused axis), a constant table gives,
for each u, the place of its row, or -1 where there is none. A row then costs one look-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.algebra.expr import Expr, FloorDiv, Mod, Symbol, as_expr, index
from tilewright.algebra.expr_rules import all_of, linear, multiply, weighted_sum
from tilewright.algebra.expr_use import Substitution, has_division, linear_form
from tilewright.ir.dtypes import i32
from tilewright.passes.places import Where

if TYPE_CHECKING:
    from tilewright.passes.lower import Lowering

MOST = 1 << 16
"""Entries that a table may have."""


def tabulated(low: Lowering, where: Where, lane: Symbol | None) -> Where:
    """The place by way of a table, where it divides a running number; as it is, otherwise."""
    if not has_division(where.offset) and not any(has_division(c) for c in where.conditions):
        return where
    dividends = {
        node.left
        for e in (where.offset, *where.conditions)
        for node in e.walk()
        if isinstance(node, FloorDiv | Mod) and not has_division(node.left)
    }
    if len(dividends) != 1:
        return where
    (u,) = dividends
    lo, hi = u.lo, u.hi
    if lane in u.symbols or not (lo >= 0 and hi < MOST) or not u.symbols:
        return where
    variable = min(u.symbols, key=lambda s: (abs(_factor(u, s) or 1 << 40), s.name))
    factor = _factor(u, variable)
    if factor is None or factor != 1:
        return where
    others = {s for e in (where.offset, *where.conditions) for s in e.symbols} - {variable}
    if any(variable in s.background for s in others):
        return where  # a loop whose limits move with it
    running = index("u", int(hi) + 1)
    images = Substitution({variable: running - (u - variable)})
    offset = images(where.offset)
    conditions = [images(c) for c in where.conditions]
    fixed, moving = _parted(offset, running)
    if fixed is None or any(c.symbols - {running} for c in conditions):
        return where
    there = all_of(*conditions) if conditions else as_expr(1)
    entry = multiply(there, fixed + 1) - 1
    table = low.table(entry, running, i32)
    row = low.symbol("row", -1, int(max(fixed.hi, 0)) if fixed.hi < float("inf") else MOST * 1024)
    low.emit("fetch", (table,), symbol=row, at=(u,))
    return Where(where.buffer, row + moving, (row >= 0,) if conditions else ())


def _factor(u: Expr, variable: Symbol) -> int | None:
    form = linear_form(u, [variable])
    if form is None:
        return None
    found = form[0].get(variable)
    return None if found is None or not found.is_constant else int(found)


def _parted(offset: Expr, running: Symbol) -> tuple[Expr | None, Expr]:
    """(what depends on the running number only, the rest), None if they do not part."""
    constant, terms = linear(offset)
    mine = [(t, c) for t, c in terms if running in t.symbols]
    rest = [(t, c) for t, c in terms if running not in t.symbols]
    if any(t.symbols - {running} for t, _ in mine):
        return None, offset
    return weighted_sum(0, mine), weighted_sum(constant, rest)
