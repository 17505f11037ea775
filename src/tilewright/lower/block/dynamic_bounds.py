"""Dimensions and loops with data-dependent limits: set_symbol says where they end or start.

Along such a dimension a tile is always as wide as its constraint says. Elements past the end exist, but are masked:
reductions take a neutral element for them, MMAs 0, writes leave them out, and reads may give anything.

A loop whose start, count or end is data has its current start in memory, its *base*: within it, coordinates of the axis
are relative to the base, and accesses add it.

    %K_now = alloc shared i64 ()             the base: where the loop is
    while %going {                           until the last tile
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
from tilewright.lower.block.lazy_tiles import Load, Tile, loads, only_load, rewritten
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.scope import TileScope
from tilewright.lower.block.storage import Storage


def coordinate(storage: Storage, dim: Expr, data: dict[Symbol, Load]) -> Expr:
    """Return the memory coordinate of the index along `dim`, as an expression.

    Usually it is the symbol of the index. In a loop with a data-dependent start, this symbol counts from the start of
    the loop's current tile, so the result is symbol + start. In a while loop over `dim`, the result is the loop's
    current index. The start and the current index are in memory: each becomes a new symbol s here, and `data[s]` is set
    to the Load of its value.
    """
    in_while_loop = dim in storage.scope.walking
    base = storage.scope.bound[dim] if in_while_loop and isinstance(dim, Symbol) else storage.scope.bases.get(dim)
    if base is None:
        return storage.scope.coordinate(dim)
    base_symbol = symbol(storage.writer.fresh("d"))
    _, data[base_symbol] = storage.load_of(base)
    return base_symbol if in_while_loop else storage.scope.coordinate(dim) + base_symbol


def place(scope: TileScope, dim: Expr) -> Formula:
    """Return a formula (type i64) of the index along `dim`. In a loop with a data-dependent start, it adds the start of
    the loop's current tile.
    """
    relative = formulas.index(scope.coordinate(dim), dtypes.i64)
    base = scope.bases.get(dim)
    return relative if base is None else call("add", relative, base.formula)


def in_range(scope: TileScope, dim: Expr) -> Formula | None:
    """Return a formula (type bool): true if the index along `dim` is before the dimension's data-dependent end. Return
    None if the end does not depend on data.
    """
    end = scope.ends.get(dim)
    return None if end is None else call("lt", place(scope, dim), end.formula)


def neutral(low: Lowering, tile: Tile, dims: tuple[Expr, ...], number: float) -> Tile:
    """Return the tile with `number` in place of elements past the ends of the dimensions `dims`; `number` is usually
    the neutral element of a reduction.

    Two kinds of dimensions have such elements: those with a data-dependent end, and axes of loops whose last tile is
    padded (`low.scope.past`). If another operation masks the padding of an axis (`low.scope.unseen`), it stays. A
    padded tile in registers is overwritten by emitted code; any other tile gets a `select` in its formula. For other
    `dims`, the tile is returned unchanged.
    """
    for d in dims:
        if d in low.scope.past and d not in low.scope.unseen:
            tile = _masked_end(low, tile, d, number)
        inside = in_range(low.scope, d)
        if inside is not None:
            other = formulas.number(number, tile.dtype)
            tile = replace(tile, formula=call("select", inside, tile.formula, other), wide=None)
    return tile


def _masked_end(low: Lowering, tile: Tile, dim: Expr, number: float) -> Tile:
    """Return the tile with `number` past the end of `dim`, the axis of a loop whose last tile is padded.

    A tile in registers is overwritten there by emitted code, which only the last iteration runs. Any other tile gets a
    `select` in its formula, and is stored first unless it is a plain load. The tile is returned unchanged in three
    cases: it is proved not to pass the end; it is one number everywhere; or `number` is 0, and the tile loads from an
    argument that is only read, which gives 0 there already.
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


def identity(reduction: str, dtype: DType) -> float:
    """Return the neutral element of the reduction `reduction` in the type `dtype`, a number.

    For "sum" it is 0, for "prod" 1, for "max" the smallest value of the type (-inf for floats), for "min" the largest.
    For bools, "max" has 0, and "min" 1.
    """
    if reduction in ("sum", "prod"):
        return 0 if reduction == "sum" else 1
    if dtype is dtypes.bool_:
        return 0 if reduction == "max" else 1
    if dtype.is_float:
        return -inf if reduction == "max" else inf
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if reduction == "max" else limits.max)


def squeezed(low: Lowering, tile: Tile, dims: tuple[Expr, ...], what: str, op: Op) -> Tile:
    """Return the tile with only those of its dimensions that are in `dims`; of each dropped dimension, it has the first
    element.

    The elements along a dropped dimension must be equal. Unless this is obvious, code is emitted that checks it; if the
    check fails, the call raises an error that names `what` (the name of the value) and the operation `op`. Raise a
    ProgramError if a dropped dimension has no elements.
    """
    dropped = [d for d in tile.dims if d not in dims]
    if any(tile.parts[d][1] == 0 for d in dropped):
        raise ProgramError(f"{op_text(op)}: {what} must have one value here, but has none", op.loc)
    images = Substitution({low.scope.coordinate(d): tile.parts[d][0] for d in dropped})
    kept_dims = tuple(d for d in tile.dims if d in dims)
    first = rewritten(tile.formula, images)
    if any(tile.parts[d][1] != 1 for d in dropped) and not tile.filled:
        differs = Tile(dtypes.bool_, tile.dims, tile.parts, call("ne", tile.formula, first))
        low.reports.report(differs, f"{what} must have one value here, but differs from element to element", op)
    return Tile(tile.dtype, kept_dims, {d: tile.parts[d] for d in kept_dims}, first)


def value(low: Lowering, e: Expr, op: Op) -> Formula:
    """Return `e`, an expression of sizes and of symbols that set_symbol set, as a formula of type i64 without
    dimensions.

    Run-time checks are emitted that these symbols are in their range, and have one value. `op` is the operation that
    errors name.
    """
    known = low.scope.expr(e)
    data: dict[Symbol, Formula] = {}
    for s in sorted(known.symbols, key=lambda s: s.name):
        if s in low.scope.bound:
            low.reports.require_range(s, op)
            tile = squeezed(low, low.scope.bound[s], (), str(s), op)
            data[s] = converted(tile.formula, tile.dtype, dtypes.i64)
    return formulas.of_expr(known, data)


def depends_on_data(scope: TileScope, op: Op, limits: dict[str, Expr]) -> bool:
    """True if the start, the end or the number of iterations of the loop `op` depends on data (on symbols that
    set_symbol set).

    `limits` is {"start": expression, "iters": expression}, without an entry that the author's constraints do not state.
    """
    return op.attrs["axis"] in scope.ends or any(not e.symbols.isdisjoint(scope.bound) for e in limits.values())


def single(low: Lowering, value: Value, op: Op, tile: Tile | None = None) -> Tile:
    """Emit code that stores the one value of `tile` as an i64, and return it as a Tile without dimensions.

    `tile` is the Tile of `value`; None: the one in `low.storage.env`. All its elements must be equal. A run-time check
    of that is emitted, and its error names `op`.
    """
    tile = low.storage.env[value] if tile is None else tile
    if prod(tile.sizes) > 1 and any(loads(tile.formula)):
        tile = low.storage.stored(tile)
    element = squeezed(low, tile, (), value.name or "a value", op)
    return low.storage.stored(Tile(dtypes.i64, (), {}, formulas.converted(element.formula, tile.dtype, dtypes.i64)))
