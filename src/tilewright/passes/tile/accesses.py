"""Which elements of memory a read or a write means: expressions of coordinates, and numbers found in data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.algebra.expr import ONE, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution, evaluate, number_or
from tilewright.errors import ProgramError
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Op, Value
from tilewright.ir.formula import Formula
from tilewright.ir.printer import op_text
from tilewright.passes.places import Size, linear_step
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.moving import coordinate, squeezed
from tilewright.passes.tile.scope import TileScope
from tilewright.passes.tile.values import Load, Parts, load

TABLED = 1 << 22
"""Elements whose coordinates are worked out one by one, where ranges do not tell enough."""


@dataclass(frozen=True)
class TileAccess:
    """Memory coordinates as expressions of the tile's coordinates and of numbers found in data."""

    tensor: Value
    shape: tuple[Size, ...]
    at: tuple[Expr, ...]
    data: dict[Symbol, Load]

    def formulas(self) -> dict[Symbol, Formula]:
        """What the numbers found in data are, as formulas of i64."""
        return {s: Formula.cast(dtypes.i64, load(found.tensor, *found.at)) for s, found in self.data.items()}


def access_of(low: Lowering, op: Op, target: Value, dims: tuple[Expr, ...], extra: tuple[Value, ...]) -> TileAccess:
    """The access of a read or a write over these dimensions."""
    scope = low.scope
    tensor = low.arguments.tensor(target, scope, low.writer)
    shape = low.arguments.shapes[target]
    data: dict[Symbol, Load] = {}
    if "at" not in op.attrs:
        at: tuple[Expr, ...] = tuple(coordinate(low.storage, d, data) for d in target.type.dims)
        if target in low.arguments.origins:
            at = tuple(c - first for c, first in zip(at, low.arguments.origins[target], strict=True))
        return TileAccess(tensor, shape, at, data)
    known: dict[Symbol, Expr] = {
        i: coordinate(low.storage, d, data) for i, d in zip(op.attrs["over"], dims, strict=True)
    }
    beside: dict[Symbol, Expr] = {i: scope.coordinate(d) for i, d in zip(op.attrs["over"], dims, strict=True)}
    images = Substitution(known)
    for (name, at), value in zip(op.attrs.get("lookups", ()), extra, strict=True):
        tile, found = low.storage.load_of(low.storage.env[value])
        places = {}
        for d, e in zip(tile.dims, at, strict=True):
            if isinstance(e, Symbol) and e in beside and d in scope.bases:  # the tile is relative to the base too
                where = beside[e]
            else:
                where = images(with_data(low, scope.expr(e), data, dims, op))
            first, width = tile.parts[d]
            if where.symbols & data.keys() or not _inside(low, where - first, width, dims):
                raise ProgramError(
                    f"{op_text(op)}: the dynamic value is looked up at {e}, which cannot be shown to lie inside it; "
                    "that has no native form yet",
                    op.loc,
                )
            places[scope.coordinate(d)] = where
        fresh = symbol(low.writer.fresh("d"))
        data[fresh] = Load(found.tensor, tuple(map(Substitution(places), found.at)))
        known[name] = fresh
        images = Substitution(known)
    places_of = tuple(images(with_data(low, scope.expr(e), data, dims, op)) for e in op.attrs["at"])
    return TileAccess(tensor, shape, places_of, data)


def with_data(low: Lowering, e: Expr, data: dict[Symbol, Load], dims: tuple[Expr, ...], op: Op) -> Expr:
    """The expression with symbols that set_symbol bound as numbers found in data, which are added."""
    images: dict[Symbol, Expr] = {}
    for s in sorted(e.symbols, key=lambda s: s.name):
        tile = low.scope.bound.get(s)
        if tile is None:
            continue
        low.reports.require_range(s, op)
        _, found = low.storage.load_of(squeezed(low, tile, dims, str(s), op))
        images[s] = symbol(low.writer.fresh("d"))
        data[images[s]] = found  # type: ignore[index]
    return Substitution(images)(e) if images else e


def loose(scope: TileScope, access: TileAccess, images: Substitution) -> tuple[bool, ...]:
    """Which of the memory coordinates may lie outside, over a part of the dimensions."""
    return tuple(not scope.is_inside(images(e), size) for e, size in zip(access.at, access.shape, strict=True))


def may_leave(e: Expr, size: Size | Expr) -> bool:
    """Whether a coordinate may lie outside 0..size-1, by its range alone."""
    return not ((e >= 0) is ONE and (e < size) is ONE)


def marked(places: Sequence[Expr], shape: Sequence[Size | Expr]) -> list[tuple[Expr, bool]]:
    """Coordinates in a tensor of this shape, and which of them may lie outside."""
    return [(e, may_leave(e, n)) for e, n in zip(places, shape, strict=True)]


def apart_along(scope: TileScope, found: Load, dim: Expr) -> int | None:
    """How far neighbours along a dimension lie apart in memory, if that is the same everywhere."""
    c = scope.coordinate(dim)
    if any(c in e.symbols for e in found.at[:-1]) or not found.at:
        return None
    return linear_step(found.at[-1], c)


def outside(scope: TileScope, access: TileAccess, dims: tuple[Expr, ...], marks: tuple[bool, ...]) -> tuple[str, ...]:
    """What the coordinates of an access without data reach, where one lies outside; empty if all lie inside.

    `marks` says which of them are not shown to.
    Ranges do not always tell; then the coordinates of all elements are worked out.
    """
    sizes = tuple(scope.size(d) for d in dims)
    shape = tuple(n for n in sizes if isinstance(n, int))
    extents = [n for n in map(number_or, map(as_expr, access.shape)) if isinstance(n, int)]
    if len(shape) < len(sizes) or len(extents) < len(access.shape) or prod(shape) > TABLED:
        raise ProgramError(_unknown(scope, access, dims, marks))
    grid = np.ogrid[tuple(slice(0, n) for n in shape)]
    known = {scope.coordinate(d): g for d, g in zip(dims, grid, strict=True)}
    worst, wrong = [], False
    for e, size in zip(access.at, access.shape, strict=True):
        c = np.asarray(evaluate(e, known))
        worst.append(f"{c.min()}..{c.max()} of {size}")
        wrong = wrong or bool(c.min() < 0 or c.max() >= int(size))
    return tuple(worst) if wrong else ()


def _unknown(scope: TileScope, access: TileAccess, dims: tuple[Expr, ...], marks: tuple[bool, ...]) -> str:
    """Which coordinate cannot be shown to lie inside memory, and what can be done about that."""
    place = marks.index(True)
    at = Substitution({scope.coordinate(d): symbol(f"{d}", 0) for d in dims})(access.at[place])
    found = f"coordinate {place}, {at}, cannot be shown to be at least 0 and below {access.shape[place]}"
    if scope.opened:
        found += (
            " for all values of the dynamic sizes: bind a size that follows from another, as in {S: (K + 31) // 32}"
        )
    return f"{found}{', or' if scope.opened else ':'} add otherwise=0"


def _inside(low: Lowering, e: Expr, size: Size, dims: tuple[Expr, ...]) -> bool:
    """Whether an expression of the current coordinates lies in 0..size-1."""
    parts: Parts = {d: low.scope.part(d) for d in dims}
    over = low.writer.axes([1 if parts[d][1] == 0 else parts[d][1] for d in dims])
    return low.scope.is_inside(low.scope.images(dims, parts, over)(e), size)


def is_outside(access: TileAccess) -> Formula:
    """The formula that tells, element by element, whether an access leaves its memory; of type bool."""
    data = access.formulas()
    found: Formula | None = None
    for e, size in zip(access.at, access.shape, strict=True):
        c = formulas.of_expr(e, data)
        for name, limit in (("lt", 0), ("ge", size)):
            step = formulas.call(name, c, formulas.of_expr(as_expr(limit), {}))
            found = step if found is None else Formula("or_", (found, step))
    return formulas.number(0, dtypes.bool_) if found is None else found
