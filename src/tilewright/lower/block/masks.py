"""Masks (conditions on coordinates): tiles in which a mask is true everywhere need no select, fully masked tiles no
work.

    %sees = le %n, %m                          if (128*k + 127 - first >= 1) {        tiles on the diagonal only
    %s = select %sees, %scores, -inf             map %scores = select(..., %scores, -inf)

A loop goes only over tiles that change its carried values (`plan/facts/masking`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, isinf

from tilewright.algebra.expr import Const, Expr, as_expr, symbol
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import linear_form
from tilewright.ir import dtypes
from tilewright.ir.core import Op, TileType, Value
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import RegisterType
from tilewright.ir.tile_formulas import call, index, is_number, number, scale_of
from tilewright.lower.block import dynamic_bounds
from tilewright.lower.block.lazy_tiles import Parts, Tile, loads
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.scope import TileScope
from tilewright.plan.facts.masking import changes_nothing, last_maskable

_ARITHMETIC = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}
_DIFFERENCES = {
    "ge": lambda a, b: a - b,
    "gt": lambda a, b: a - b - 1,
    "le": lambda a, b: b - a,
    "lt": lambda a, b: b - a - 1,
}


def condition_of(formula: Formula) -> list[Expr] | None:
    """Return [expressions] for a condition on coordinates: it is true exactly where all expressions are >= 0. `n <= m +
    2` gives [m - n + 2].

    The condition may be <, <=, > or >= between sums, differences and products of coordinates and integers, or several
    of these joined by `and_`. None for anything else, such as a condition on data.

    >>> from tilewright.algebra.expr import symbol
    >>> n, m = (Formula("index", (), symbol(s)) for s in "nm")
    >>> condition_of(Formula("le", (n, Formula("add", (m, Formula.number(2))))))
    [<m - n + 2>]
    """
    if formula.name == "and_":
        conditions = [condition_of(p) for p in formula.parts]
        return None if any(p is None for p in conditions) else [e for p in conditions for e in p or ()]
    if formula.name not in _DIFFERENCES:
        return None
    a, b = map(_as_expression, formula.parts)
    return None if a is None or b is None else [_DIFFERENCES[formula.name](a, b)]


def _as_expression(formula: Formula) -> Expr | None:
    """Return a formula of coordinates and integers, with +, -, * and integer casts, as an Expr; None if it has anything
    else.
    """
    if formula.name == "index":
        index: Expr = formula.value
        return index
    if formula.name == "number" and formula.value == int(formula.value):
        return as_expr(int(formula.value))
    if formula.name == "cast" and formula.value.kind == "int":
        return _as_expression(formula.parts[0])
    if formula.name in _ARITHMETIC:
        a, b = map(_as_expression, formula.parts)
        return None if a is None or b is None else _ARITHMETIC[formula.name](a, b)
    return None


def limit_over(scope: TileScope, e: Expr, dims: tuple[Expr, ...], parts: Parts, least: bool) -> Expr | None:
    """Return the least value of `e` over a tile, as an expression; with `least` False, the greatest value.

    `e` is an expression of the tile's coordinates; `parts` maps the tile's dimensions `dims` to (first index, extent).
    None unless `e` is linear in these coordinates, with numbers as factors.
    """
    at = {scope.coordinate(d): parts[d] for d in dims}
    form = linear_form(e, at)
    if form is None:
        return None
    factors, total = form
    for coordinate, factor in factors.items():
        if not isinstance(factor, Const):
            return None
        first, width = at[coordinate]
        total = total + factor * (first if (factor.value > 0) == least else first + width - 1)
    return total


def select(low: Lowering, op: Op, tiles: list[Tile], parts: Parts) -> Tile | None:
    """Emit a masked copy of a register tile for the select `op`; return the Tile of the copy. Return None if the select
    must be a formula.

    `tiles` are (condition, tile where it is true, tile where it is false); `parts` is {dimension of the result: (first
    index, extent)}. The mask is applied in a branch that only tiles with masked elements take. If it is proved that no
    element is masked, nothing is emitted, and the Tile is that of the true tile. None unless the condition is one
    linear comparison of coordinates, the false tile is one number, and the result has the register layout of values
    between MMAs (`low.writer.fragment_layout`).
    """
    kind: TileType = op.results[0].type
    condition, chosen, other = tiles
    layout, expressions = low.writer.fragment_layout, condition_of(condition.formula)
    if layout is None or expressions is None or not other.filled or chosen.filled:
        return None
    if not all(isinstance(each.tensor.type, RegisterType) for each in loads(chosen.formula)):
        return None
    axes = layout.axes(kind.dims, parts)
    limits = [limit_over(low.scope, e, condition.dims, parts, True) for e in expressions]
    if axes is None or len(axes) < 2 or len(limits) != 1 or limits[0] is None:
        return None
    tile = Tile(kind.dtype, kind.dims, parts, chosen.formula)
    return _masked(low, tile, lambda places: places(expressions[0]), limits[0], other.formula)


def _masked(
    low: Lowering, tile: Tile, mask_of: Callable[[Callable[[Expr], Expr]], Expr], least: Expr, other: Formula
) -> Tile:
    """Emit a copy of `tile` to new registers, with the number `other` where a mask is false; return the Tile of the
    copy.

    `mask_of(places)` gives an expression that is >= 0 where the mask is true; `places` replaces coordinates by
    iterators. `least` is the least value of that expression over the tile: elements are replaced in a branch on `least`
    < 0. If `least` >= 0 is proved, nothing is emitted, and `tile` is returned. If `other` is infinite, a positive
    factor of the tile's formula is applied after masking.
    """
    if low.scope.holds(least):
        return tile
    inner, scale = scale_of(tile.formula)
    value = other.parts[0].value if is_number(other) else other.value
    if not (scale > 0 and isinstance(value, float) and isinf(value)):
        inner, scale = tile.formula, 1.0
    parts = {d: tile.parts[d] for d in tile.dims}
    tensor = low.storage.room(tile.dtype, tile.dims, parts, "seen")
    low.storage.put(tensor, tile.dims, parts, inner)
    held = low.storage.held(tensor, tile.dims, parts)
    with low.branch(least <= -1):
        _, places = low.storage.axes(tile.dims, parts, tensor)
        in_mask = Formula("index", (), mask_of(places) >= 0)  # one number of a lane, compared with others
        low.storage.put(tensor, tile.dims, parts, call("select", in_mask, held.formula, other))
    if scale == 1:
        return held
    return Tile(tile.dtype, tile.dims, held.parts, call("mul", held.formula, number(scale, tile.dtype)))


# -- past the end of a loop's axis ------------------------------------------------------------------------


def hide_end(low: Lowering, op: Op) -> None:
    """Choose the operation in the body of the loop `op` that is masked with -inf past the end of the loop's axis; emit
    nothing.

    `low.scope.unseen[axis]` is set to that operation, the last one that can be masked. It is set to None if a select in
    the body gives -inf there already. It is not set if no operation can be masked.
    """
    axis: Expr = op.attrs["axis"]
    selections = [inner for inner in op.blocks[0].ops if inner.name == "select" and changes_nothing(op, inner)]
    maskable = last_maskable(op)
    scope = low.scope
    if any(_fails_past(scope, e, dims, axis) for s in selections for e, dims in conditions_of(low, s.operands[0])):
        scope.unseen[axis] = None
    elif maskable is not None:
        scope.unseen[axis] = maskable


def _fails_past(scope: TileScope, e: Expr, dims: tuple[Expr, ...], axis: Expr) -> bool:
    """True if it is proved that `e` < 0 at all indices past the end of `axis`, so that a mask that is true where `e` >=
    0 is false there.

    It must be so for all indices along the other dimensions in `dims`. False if one of `dims` depends on data.
    """
    if any(d in scope.walking or not d.symbols.isdisjoint(scope.bound) for d in dims):
        return False
    form = linear_form(e, [scope.coordinate(axis)])
    factor = None if form is None else form[0].get(scope.coordinate(axis))
    parts: Parts = {d: (as_expr(scope.past[axis]), 1) if d is axis else (as_expr(0), scope.size(d)) for d in dims}
    greatest = limit_over(scope, e, dims, parts, False)
    falls = isinstance(factor, Const) and factor.value < 0  # the first one past it is the nearest to what counts
    return falls and greatest is not None and scope.holds(-1 - greatest)


def mask_tail(low: Lowering, op: Op, tile: Tile) -> Tile:
    """Return `tile`, the result of `op`, with -inf past the end of a loop's axis. Return it unchanged unless `op` is
    the operation that `low.scope.unseen`, {axis: operation}, names for an axis.

    A tile with the register layout of accumulators is copied to new registers and masked there, by code that only the
    last iteration runs. Any other tile gets a select in its formula.
    """
    axis = next((d for d, hidden in low.scope.unseen.items() if hidden is op), None)
    if axis is None:
        return tile
    (first, width), last, layout = tile.parts[axis], low.scope.past[axis] - 1, low.writer.fragment_layout
    axes = None if layout is None else layout.axes(tile.dims, tile.parts)
    if axes is None or len(axes) < 2:  # no register tile
        inside = call("le", dynamic_bounds.place(low.scope, axis), index(as_expr(last), dtypes.i64))
        return replace(tile, formula=call("select", inside, tile.formula, number(-inf, tile.dtype)), wide=None)

    def wanted(places: Callable[[Expr], Expr]) -> Expr:
        """Return an expression that is >= 0 up to the end of the axis; `places` replaces coordinates by iterators."""
        return last - places(low.scope.coordinate(axis))  # a coordinate itself is never past the end

    return _masked(low, tile, wanted, last - (first + width - 1), number(-inf, tile.dtype))


# -- tiles that change nothing ----------------------------------------------------------------------------


def unmasked_iterations(low: Lowering, op: Op, first: Expr, tile: int, count: Expr) -> tuple[Expr, Expr]:
    """Return (begin, end), as expressions: the iterations of the loop `op` to run, without fully masked ones at both
    ends.

    All iterations are 0 to `count` - 1; iteration n covers `tile` indices from `first` + `tile` * n on. A fully masked
    iteration changes no carried value, such as one above the diagonal of a causal mask. `first`=0, `tile`=32 and a
    causal mask for rows up to 99 give (0, 4).
    """
    axis: Expr = op.attrs["axis"]
    begin = as_expr(0)
    k = symbol("k", 0, None)
    for inner in op.blocks[0].ops:
        if inner.name != "select" or not changes_nothing(op, inner):
            continue
        for e, dims in conditions_of(low, inner.operands[0]):
            parts = {d: (first + tile * k, tile) if d is axis else low.scope.part(d) for d in dims}
            limit = limit_over(low.scope, e, dims, parts, False)
            form = None if limit is None else linear_form(limit, [k])
            factor = None if form is None else form[0].get(k)
            if form is None or not isinstance(factor, Const):
                continue
            if factor.value < 0:
                count = maximum(minimum(count, form[1] // -factor.value + 1), 0)
            else:
                begin = maximum(begin, -(form[1] // factor.value))
    return begin, count


def conditions_of(low: Lowering, condition: Value) -> list[tuple[Expr, tuple[Expr, ...]]]:
    """Return [(expression, dimensions of the mask), ...]: a mask is true exactly where all these expressions are >= 0.

    `condition` is the mask's value in the program; the expressions are of coordinates. [] if the mask depends on data,
    or on other operations than +, -, *, comparisons (<, <=, >, >=) and `and_`.
    """
    makers = low.program.makers()

    def formula(value: Value) -> Formula:
        """Return the formula of `value` over coordinates; anything that is no coordinate, number or arithmetic becomes
        an unknown argument.
        """
        inner = makers.get(value)
        if inner is not None and inner.name == "self_index":
            return Formula("index", (), low.scope.coordinate(inner.attrs["dim"]))
        if inner is not None and inner.name == "scalar":
            e = low.scope.expr(as_expr(inner.attrs["value"])) if not isinstance(inner.attrs["value"], float) else None
            return Formula("index", (), e) if e is not None else Formula.argument("unknown")
        if inner is not None and inner.name in (*_ARITHMETIC, *_DIFFERENCES, "and_"):
            return Formula(inner.name, tuple(map(formula, inner.operands)))
        return Formula.argument("unknown")

    conditions = condition_of(formula(condition))
    return [] if conditions is None else [(e, condition.type.dims) for e in conditions]
