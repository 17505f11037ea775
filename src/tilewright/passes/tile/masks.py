"""Conditions on coordinates: tiles where they hold everywhere need no selection, tiles where they hold nowhere no work.

    %sees = le %n, %m                          if (128*k + 127 - first >= 1) {        tiles on the diagonal only
    %s = select %sees, %scores, -inf             map %scores = select(..., %scores, -inf)

A loop goes only over tiles that change what it carries (`plan/hiding`).
"""

from __future__ import annotations

from math import isinf
from typing import TYPE_CHECKING

from tilewright.algebra.expr import Const, Expr, as_expr, symbol
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import linear_form
from tilewright.ir.core import Op, TileType, Value
from tilewright.ir.formula import Formula
from tilewright.ir.tile_formulas import call, is_number, number, scale_of
from tilewright.passes.tile.values import Parts, Tile
from tilewright.plan.hiding import changes_nothing

if TYPE_CHECKING:
    from tilewright.passes.tile.general import Lowering

_ARITHMETIC = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}
_DIFFERENCES = {
    "ge": lambda a, b: a - b,
    "gt": lambda a, b: a - b - 1,
    "le": lambda a, b: b - a,
    "lt": lambda a, b: b - a - 1,
}


def condition_of(formula: Formula) -> list[Expr] | None:
    """What must not be negative for a condition on coordinates to hold; None where it is on data.

    >>> from tilewright.algebra.expr import symbol
    >>> n, m = (Formula("index", (), symbol(s)) for s in "nm")
    >>> condition_of(Formula("le", (n, Formula("add", (m, Formula.number(2))))))
    [<m - n + 2>]
    """
    if formula.name == "and_":
        parts = [condition_of(p) for p in formula.parts]
        return None if any(p is None for p in parts) else [e for p in parts for e in p or ()]
    if formula.name not in _DIFFERENCES:
        return None
    a, b = map(_integer, formula.parts)
    return None if a is None or b is None else [_DIFFERENCES[formula.name](a, b)]


def _integer(formula: Formula) -> Expr | None:
    """A formula of coordinates as an expression."""
    if formula.name == "index":
        found: Expr = formula.value
        return found
    if formula.name == "number" and formula.value == int(formula.value):
        return as_expr(int(formula.value))
    if formula.name == "cast" and formula.value.kind == "int":
        return _integer(formula.parts[0])
    if formula.name in _ARITHMETIC:
        a, b = map(_integer, formula.parts)
        return None if a is None or b is None else _ARITHMETIC[formula.name](a, b)
    return None


def _limit(low: Lowering, e: Expr, dims: tuple[Expr, ...], parts: Parts, least: bool) -> Expr | None:
    """The least, or the greatest, that an expression of coordinates is over a tile; None where that is not seen."""
    at = {low.coordinate(d): parts[d] for d in dims}
    form = linear_form(e, at)
    if form is None:
        return None
    factors, total = form
    for c, factor in factors.items():
        if not isinstance(factor, Const):
            return None
        first, width = at[c]
        total = total + factor * (first if (factor.value > 0) == least else first + width - 1)
    return total


def select(low: Lowering, op: Op, tiles: list[Tile], parts: Parts) -> Tile | None:
    """A selection by coordinates between registers and a number, done in tiles where it is needed; None: elsewhere."""
    kind: TileType = op.results[0].type
    condition, chosen, other = tiles
    home, wanted = low.w.home, condition_of(condition.formula)
    if home is None or wanted is None or not other.filled or chosen.filled:
        return None
    axes = home.axes(kind.dims, parts)
    limits = [_limit(low, e, condition.dims, parts, True) for e in wanted]
    if axes is None or len(axes) < 2 or len(limits) != 1 or limits[0] is None:
        return None
    if low.holds(limits[0]):
        return chosen
    inner, scale = scale_of(chosen.formula)
    value = other.formula.parts[0].value if is_number(other.formula) else other.formula.value
    if not (scale > 0 and isinstance(value, float) and isinf(value)):
        inner, scale = chosen.formula, 1.0
    tensor = low.room(kind.dtype, kind.dims, parts, "seen")
    low.put(tensor, kind.dims, parts, inner)
    held = low.held(tensor, kind.dims, parts)
    with low.branch(limits[0] <= -1):
        there = Formula("index", (), wanted[0] >= 0)  # one number of a lane, compared with others
        low.put(tensor, kind.dims, parts, call("select", there, held.formula, other.formula))
    if scale == 1:
        return held
    return Tile(kind.dtype, kind.dims, held.parts, call("mul", held.formula, number(scale, kind.dtype)))


# -- tiles that change nothing ----------------------------------------------------------------------------


def rounds(low: Lowering, op: Op, first: Expr, tile: int, count: Expr) -> tuple[Expr, Expr]:
    """(first, end) of the rounds of a loop that change what it carries, of `count` of them."""
    axis: Expr = op.attrs["axis"]
    begin = as_expr(0)
    k = symbol("k", 0, None)
    for inner in op.blocks[0].ops:
        if inner.name != "select" or not changes_nothing(op, inner):
            continue
        wanted = _over_tiles(low, op, inner.operands[0])
        for e, dims in wanted:
            parts = {d: (first + tile * k, tile) if d is axis else low.part(d) for d in dims}
            limit = _limit(low, e, dims, parts, False)
            form = None if limit is None else linear_form(limit, [k])
            factor = None if form is None else form[0].get(k)
            if form is None or not isinstance(factor, Const):
                continue
            if factor.value < 0:
                count = maximum(minimum(count, form[1] // -factor.value + 1), 0)
            else:
                begin = maximum(begin, -(form[1] // factor.value))
    return begin, count


def _over_tiles(low: Lowering, op: Op, condition: Value) -> list[tuple[Expr, tuple[Expr, ...]]]:
    """What must not be negative for a condition on coordinates in a loop's body to hold, over which dimensions."""
    made = {r: inner for inner in (*low.program.body.ops, *op.blocks[0].ops) for r in inner.results}

    def formula(value: Value) -> Formula:
        inner = made.get(value)
        if inner is not None and inner.name == "self_index":
            return Formula("index", (), low.coordinate(inner.attrs["dim"]))
        if inner is not None and inner.name == "scalar":
            e = low.expr(as_expr(inner.attrs["value"])) if not isinstance(inner.attrs["value"], float) else None
            return Formula("index", (), e) if e is not None else Formula.argument("unknown")
        if inner is not None and inner.name in (*_ARITHMETIC, *_DIFFERENCES, "and_"):
            return Formula(inner.name, tuple(map(formula, inner.operands)))
        return Formula.argument("unknown")

    found = condition_of(formula(condition))
    return [] if found is None else [(e, condition.type.dims) for e in found]
