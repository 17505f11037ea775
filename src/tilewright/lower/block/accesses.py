"""Memory coordinates of reads and writes: as expressions, and with indices that are loaded from data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.algebra.expr import ONE, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution, evaluate, number_or
from tilewright.analysis.flat_memory import Size, linear_step
from tilewright.errors import ProgramError
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Op, Value
from tilewright.ir.formula import Formula
from tilewright.ir.printer import op_text
from tilewright.lower.block.dynamic_bounds import coordinate, squeezed
from tilewright.lower.block.lazy_tiles import Load, Parts, load
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.scope import TileScope

TABLED = 1 << 22
"""The most elements whose coordinates are evaluated one by one, if their ranges do not show that they are in bounds."""


@dataclass(frozen=True)
class TileAccess:
    """The coordinates `at` of a read or write in `tensor`, as expressions of the tile's coordinates and of loaded
    indices.

    `data` maps each symbol of `at` that is a loaded index to its Load (indirect access).
    """

    tensor: Value
    shape: tuple[Size, ...]
    at: tuple[Expr, ...]
    data: dict[Symbol, Load]

    def formulas(self) -> dict[Symbol, Formula]:
        """Return {symbol: formula of type i64} for all symbols of this access that are loaded indices.

        `self.data` is {symbol: the tensor element (a Load) that gives its value}; each formula loads that element and
        casts it to i64.
        """
        return {s: Formula.cast(dtypes.i64, load(source.tensor, *source.at)) for s, source in self.data.items()}


def access_of(low: Lowering, op: Op, target: Value, dims: tuple[Expr, ...], extra: tuple[Value, ...]) -> TileAccess:
    """Return the memory coordinates of `op`, a read, write or atomic, as a TileAccess. `target` is the argument or
    allocated memory that it accesses; `dims` are the dimensions of its tile.

    The coordinates are the attribute `at` of `op`. Without it, they are the index along each dimension of `target`; in
    memory that a workgroup allocates, they count from its first element. `extra` are the tiles from which `op` loads
    indices (indirect access, `x[rows[i]]`); code is emitted that stores those that are no plain load. If coordinates
    have symbols that set_symbol set, checks of their values are emitted too. Raise a ProgramError if it is not proved
    that an index is loaded from inside its tile.
    """
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
    relative: dict[Symbol, Expr] = {i: scope.coordinate(d) for i, d in zip(op.attrs["over"], dims, strict=True)}
    images = Substitution(known)
    for (index_symbol, at), value in zip(op.attrs.get("lookups", ()), extra, strict=True):
        tile, load = low.storage.load_of(low.storage.env[value])
        places = {}
        for d, e in zip(tile.dims, at, strict=True):
            if isinstance(e, Symbol) and e in relative and d in scope.bases:  # the tile is relative to the base too
                position = relative[e]
            else:
                position = images(with_data(low, scope.expr(e), data, dims, op))
            first, width = tile.parts[d]
            if position.symbols & data.keys() or not _inside(low, position - first, width, dims):
                raise ProgramError(
                    f"{op_text(op)}: the dynamic value is looked up at {e}, which cannot be shown to lie inside it; "
                    "that has no native form yet",
                    op.loc,
                )
            places[scope.coordinate(d)] = position
        fresh = symbol(low.writer.fresh("d"))
        data[fresh] = Load(load.tensor, tuple(map(Substitution(places), load.at)))
        known[index_symbol] = fresh
        images = Substitution(known)
    places_of = tuple(images(with_data(low, scope.expr(e), data, dims, op)) for e in op.attrs["at"])
    return TileAccess(tensor, shape, places_of, data)


def with_data(low: Lowering, e: Expr, data: dict[Symbol, Load], dims: tuple[Expr, ...], op: Op) -> Expr:
    """Return `e` with a fresh symbol in place of each symbol that set_symbol set; add {fresh symbol: Load of its value}
    to `data`.

    `op` is the read or write that uses `e`, and `dims` are the dimensions of its tile. Run-time checks are emitted: a
    value must be in the range of its symbol, and must be the same along dimensions that `dims` lacks.
    """
    images: dict[Symbol, Expr] = {}
    for s in sorted(e.symbols, key=lambda s: s.name):
        tile = low.scope.bound.get(s)
        if tile is None:
            continue
        low.reports.require_range(s, op)
        _, load = low.storage.load_of(squeezed(low, tile, dims, str(s), op))
        images[s] = symbol(low.writer.fresh("d"))
        data[images[s]] = load  # type: ignore[index]
    return Substitution(images)(e) if images else e


def bounds_marks(scope: TileScope, access: TileAccess, images: Substitution) -> tuple[bool, ...]:
    """Return a tuple of bools, one for each memory coordinate of `access`: True if it may be out of bounds, False if it
    is proved to be in bounds.

    `images` replaces the coordinate symbols of dimensions by expressions that stay within the current parts.
    """
    return tuple(not scope.is_inside(images(e), size) for e, size in zip(access.at, access.shape, strict=True))


def may_leave(e: Expr, size: Size | Expr) -> bool:
    """True if the coordinate `e` may be out of bounds: its range is not proved to lie within 0..size-1."""
    return not ((e >= 0) is ONE and (e < size) is ONE)


def marked(places: Sequence[Expr], shape: Sequence[Size | Expr]) -> list[tuple[Expr, bool]]:
    """Return [(coordinate, True if it may be out of bounds), ...] for the coordinates `places` in a tensor of extents
    `shape`.
    """
    return [(e, may_leave(e, n)) for e, n in zip(places, shape, strict=True)]


def memory_step(scope: TileScope, source: Load, dim: Expr) -> int | None:
    """Return the distance in memory, in elements, between the two elements that `source` loads for neighbouring indices
    of `dim`: `x[3*i + 1]` -> 3.

    0 if no coordinate depends on `dim`. None if the distance is not constant, if another coordinate than the last
    depends on `dim`, or if the tensor has no dimensions.
    """
    c = scope.coordinate(dim)
    if any(c in e.symbols for e in source.at[:-1]) or not source.at:
        return None
    return linear_step(source.at[-1], c)


def ranges_out_of_bounds(
    scope: TileScope, access: TileAccess, dims: tuple[Expr, ...], marks: tuple[bool, ...]
) -> tuple[str, ...]:
    """Evaluate the coordinates of an access for all elements of its tile; return () if every one is in bounds.

    Otherwise return a text for each coordinate, with its range and extent: "-1..64 of 64". All indices of the tile's
    dimensions `dims` are evaluated, not only the current part. Raise a ProgramError if a size is known only at the
    call, or if the tile has more than 4M (TABLED) elements; it names the first coordinate for which `marks` is True.
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
    """Return the text of an error: which coordinate is not proved to be in bounds, and what the author can do about it.

    The text names the first coordinate of `access` for which `marks` is True. `dims` are the dimensions of the tile.
    Example: "coordinate 1, N + 1, cannot be shown to be at least 0 and below 64: add otherwise=0".
    """
    place = marks.index(True)
    at = Substitution({scope.coordinate(d): symbol(f"{d}", 0) for d in dims})(access.at[place])
    reason = f"coordinate {place}, {at}, cannot be shown to be at least 0 and below {access.shape[place]}"
    if scope.opened:
        reason += (
            " for all values of the dynamic sizes: bind a size that follows from another, as in {S: (K + 31) // 32}"
        )
    return f"{reason}{', or' if scope.opened else ':'} add otherwise=0"


def _inside(low: Lowering, e: Expr, size: Size, dims: tuple[Expr, ...]) -> bool:
    """True if `e`, an expression of the coordinates of `dims`, is proved to lie in 0..size-1 for all indices of their
    current parts.
    """
    parts: Parts = {d: low.scope.part(d) for d in dims}
    over = low.writer.axes([1 if parts[d][1] == 0 else parts[d][1] for d in dims])
    return low.scope.is_inside(low.scope.images(dims, parts, over)(e), size)


def out_of_bounds_formula(access: TileAccess) -> Formula:
    """Return a formula of type bool: true for an element of which a coordinate in `access` is out of bounds."""
    data = access.formulas()
    outside: Formula | None = None
    for e, size in zip(access.at, access.shape, strict=True):
        c = formulas.of_expr(e, data)
        for name, limit in (("lt", 0), ("ge", size)):
            step = formulas.call(name, c, formulas.of_expr(as_expr(limit), {}))
            outside = step if outside is None else Formula("or_", (outside, step))
    return formulas.number(0, dtypes.bool_) if outside is None else outside
