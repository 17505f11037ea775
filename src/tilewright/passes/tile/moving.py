"""Parts that data decide: dimensions that end where set_symbol says, and loops that start there.

Along such a dimension a tile is always as wide as its constraint says. Elements past the end are there, but do not
count: reductions take a neutral element for them, products 0, writes leave them out, reads may find anything.

A loop whose start, count or end is data walks by a number in memory, its *base*: within it, coordinates of the axis
are relative to the base, and accesses add it.

    %K_now = alloc shared i64 ()             where the loop is
    while %going {                           as long as it is before the last tile
      ... gathers at K_now + i0 ...
      map %K_now = %K_now + 16
    }
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ProgramError
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.printer import op_text
from tilewright.ir.tile_formulas import call, converted
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.scope import TileScope
from tilewright.passes.tile.storage import Storage
from tilewright.passes.tile.values import Load, Tile, loads, only_load, rewritten


def coordinate(storage: Storage, dim: Expr, data: dict[Symbol, Load]) -> Expr:
    """Return a dimension's coordinate in memory; in a loop with a data-dependent start, the loaded base is added.

    The load of the base is added to `data`.
    """
    walked = dim in storage.scope.walking
    base = storage.scope.bound[dim] if walked and isinstance(dim, Symbol) else storage.scope.bases.get(dim)
    if base is None:
        return storage.scope.coordinate(dim)
    now = symbol(storage.writer.fresh("d"))
    _, data[now] = storage.load_of(base)
    return now if walked else storage.scope.coordinate(dim) + now


def place(scope: TileScope, dim: Expr) -> Formula:
    """Return a dimension's coordinate as a formula of type i64."""
    relative = formulas.index(scope.coordinate(dim), dtypes.i64)
    base = scope.bases.get(dim)
    return relative if base is None else call("add", relative, base.formula)


def counts(scope: TileScope, dim: Expr) -> Formula | None:
    """Return the predicate that an element lies before a data-dependent end of `dim`; None if there is no such end."""
    end = scope.ends.get(dim)
    return None if end is None else call("lt", place(scope, dim), end.formula)


def neutral(low: Lowering, tile: Tile, dims: tuple[Expr, ...], number: float) -> Tile:
    """Return the tile with `number` for elements past the end of `dims`, so that they do not count."""
    for d in dims:
        if d in low.scope.past and d not in low.scope.unseen:
            tile = _masked_end(low, tile, d, number)
        inside = counts(low.scope, d)
        if inside is not None:
            other = formulas.number(number, tile.dtype)
            tile = replace(tile, formula=call("select", inside, tile.formula, other), wide=None)
    return tile


def _masked_end(low: Lowering, tile: Tile, dim: Expr, number: float) -> Tile:
    """Return the tile with `number` past the end of `dim`, if a tile of a loop may go past it.

    It is stored where the tile is held, only in the last iteration. Arguments are zero there already.
    """
    (first, width), end = tile.parts[dim], low.scope.past[dim]
    load = only_load(tile.formula)
    argument = load is not None and load.is_given
    if low.scope.holds(end - first - width) or tile.filled or (argument and number == 0):
        return tile
    tile, load = low.storage.load_of(tile)
    inside = call("lt", place(low.scope, dim), formulas.index(as_expr(end), dtypes.i64))
    formula = call("select", inside, tile.formula, formulas.number(number, tile.dtype))
    if load.tensor not in low.storage.sums:
        return replace(tile, formula=formula, wide=None)
    with low.branch(first + width >= end + 1):
        low.storage.put(load.tensor, tile.dims, tile.parts, formula)
    return tile


def identity(how: str, dtype: DType) -> float:
    """Return the neutral element of `how` (sum, prod, max or min) in the type `dtype`."""
    if how in ("sum", "prod"):
        return 0 if how == "sum" else 1
    if dtype is dtypes.bool_:
        return 0 if how == "max" else 1
    if dtype.is_float:
        return -inf if how == "max" else inf
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if how == "max" else limits.max)


def squeezed(low: Lowering, tile: Tile, dims: tuple[Expr, ...], what: str, op: Op) -> Tile:
    """Return a tile without the dimensions not in `dims`: its first element along them; a check reports other
    elements.
    """
    gone = [d for d in tile.dims if d not in dims]
    if any(tile.parts[d][1] == 0 for d in gone):
        raise ProgramError(f"{op_text(op)}: {what} must have one value here, but has none", op.loc)
    images = Substitution({low.scope.coordinate(d): tile.parts[d][0] for d in gone})
    kept = tuple(d for d in tile.dims if d in dims)
    first = rewritten(tile.formula, images)
    if any(tile.parts[d][1] != 1 for d in gone) and not tile.filled:
        differs = Tile(dtypes.bool_, tile.dims, tile.parts, call("ne", tile.formula, first))
        low.reports.report(differs, f"{what} must have one value here, but differs from element to element", op)
    return Tile(tile.dtype, kept, {d: tile.parts[d] for d in kept}, first)


def value(low: Lowering, e: Expr, op: Op) -> Formula:
    """Return an expression of sizes and of symbols that set_symbol bound, as a formula of type i64."""
    known = low.scope.expr(e)
    data: dict[Symbol, Formula] = {}
    for s in sorted(known.symbols, key=lambda s: s.name):
        if s in low.scope.bound:
            low.reports.require_range(s, op)
            tile = squeezed(low, low.scope.bound[s], (), str(s), op)
            data[s] = converted(tile.formula, tile.dtype, dtypes.i64)
    return formulas.of_expr(known, data)


def is_moved(scope: TileScope, op: Op, limits: dict[str, Expr]) -> bool:
    """True if data decide where a loop starts, how often it runs or where it ends."""
    return op.attrs["axis"] in scope.ends or any(not e.symbols.isdisjoint(scope.bound) for e in limits.values())


def single(low: Lowering, value: Value, op: Op, tile: Tile | None = None) -> Tile:
    """Return the only value of a tile whose elements are all equal, as i64 without dimensions."""
    tile = low.storage.env[value] if tile is None else tile
    if prod(tile.sizes) > 1 and any(loads(tile.formula)):
        tile = low.storage.stored(tile)
    element = squeezed(low, tile, (), value.name or "a value", op)
    return low.storage.stored(Tile(dtypes.i64, (), {}, formulas.converted(element.formula, tile.dtype, dtypes.i64)))
