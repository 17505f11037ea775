"""Tilings that the search finds and the lowering cannot do."""

from __future__ import annotations

from math import ceil

from tilewright.plan.boxes import numbers_of, own_coordinate
from tilewright.plan.facts import Facts
from tilewright.plan.microkernel import axes_in
from tilewright.plan.search.axes import BATCH, COLUMNS, DEPTH, NONE, ROWS, DimClass
from tilewright.plan.search.halo import halo_window
from tilewright.plan.search.orientation import Orientation
from tilewright.plan.search.tiles import BOX, CLUSTER, GRID, LOOP, RUN, WHOLE, AxisTile
from tilewright.plan.search.tiling import Tiling, is_chained

LACKING = "lowering lacks it"
"""Why a choice is not made that only the lowering stands against."""


def why_not_oriented(o: Orientation) -> str:
    """Return what the lowering lacks for an orientation of the MMAs, as text; empty if it can do it."""
    if o.through_shared:
        return "values between products that change their layout"
    if len(o.products) > 1 and any(o.flips):
        return "several products, some with N on the unit's rows"
    return _why_not_unit_sides(o)


def _why_not_unit_sides(o: Orientation) -> str:
    """Return why the lowering cannot do an MMA whose M or N has one element and is
    no dimension of results; else empty text.
    """
    size = numbers_of(o.facts.sizes)
    for p in o.facts.products:
        source = o.facts.nodes[p.node].source
        axes = axes_in(source, size) if source is not None and not (p.m and p.n) else None
        if axes is None or isinstance(axes, str):
            continue
        for d in (axes.m, axes.n):
            written = [own_coordinate(w.source, d) for w in o.facts.writes if w.source is not None]
            if size(d) == 1 and None in written:
                return f"a tile along {d}, which results do not have"
    return ""


def why_not_lowered(t: Tiling) -> str:
    """Return what the lowering lacks for a tiling, as text; empty if it can do it."""
    if t.facts.opened and any(tile.fold == BOX and halo_window(t.o, c) for c, tile in t.pairs()):
        return "halo tiles of sizes that only a call tells"
    facts = t.facts
    if is_chained(t) and any(t.o.flips):
        return "reductions of rows that lie on the unit's columns"
    unit = t.o.products[0].atoms[0].shape[0]
    if is_chained(t) and any(ROWS in c.roles and tile.size > unit * t.down for c, tile in t.pairs()):
        return "several atoms of rows for each group of waves, of products that follow each other"
    for c, tile in t.pairs():
        if tile.level == CLUSTER:
            return "clusters that exchange values"
        if tile.level == LOOP and max(facts.passes[d] for d in c.dims) > 1:
            return "several passes over a loop"
        if tile.level == GRID and tile.size < c.extent and COLUMNS in c.roles and set(c.roles) != {COLUMNS}:
            return "tasks that share the rows of several products"
        why = _why_not_tile(t, c, tile) or _why_not_steps(t, c, tile)
        if why:
            return why
        if tile.level == GRID and tile.size > 1 and set(c.roles) <= {BATCH, NONE} and not _is_diagonal(t):
            return "several of a batch in one tile whose columns are not an atom's"
    for axis, loop in facts.loops.items():
        tile = t.tile_of(axis)
        if loop.source is None and tile.level != WHOLE and facts.extents[axis] % tile.size:
            return f"a loop over {axis} in tiles that do not divide it"
        if loop.source is not None and (tile.level == WHOLE or tile.size != loop.tile):
            return f"tiles of the loop over {axis} that are not the author's"
    return ""


def _why_not_tile(t: Tiling, c: DimClass, tile: AxisTile) -> str:
    """Return what the lowering lacks for the tile of the class `c` of dimensions, as text; empty if it can do it.

    It does runs (contiguous flat indices) over the digits (sub-indices) of one program dimension, and boxes (rectangles
    of digits) only as halo tiles.
    """
    if tile.level == WHOLE:
        return ""
    box, runs = dict(tile.box), ceil(c.extent / tile.size)
    wide = [d for d in c.dims if box[d] > 1]
    owners = {_owner(t.facts, d) for d in wide}
    if len(owners) > 1:
        return f"a tile of {tile.size} over {', '.join(sorted(owners))}"
    every = {_owner(t.facts, d) for d in c.dims}
    if tile.fold == BOX and halo_window(t.o, c) is None and (len(wide) > 1 or (len(every) == 1 and tile.count != runs)):
        return "boxes of rows without a halo tile"
    inner = c.dims[-1]
    if tile.fold == RUN and len(every) > 1 and (tile.size > box[inner] or t.facts.extents[inner] % tile.size):
        return f"a run over {', '.join(c.dims)}"
    return ""


def _why_not_steps(t: Tiling, c: DimClass, tile: AxisTile) -> str:
    """Return why the lowering cannot do the K steps of `tile` along the class `c` of dimensions; empty text if it can.

    The last step reads past the end of K, where an operand must give zeros and not the elements of another window.
    """
    if tile.level != LOOP or DEPTH not in c.roles or t.o.by_threads:
        return ""
    facts = t.facts
    alike = frozenset(d for p in facts.products for d in (*p.batch, *p.k))
    for d in (d for d, n in tile.box if n > 1 and facts.extents[d] % tile.size):
        shared = [r.place for r in facts.reads if any(d in window and window - alike for window in r.place.windows)]
        if shared:
            return f"steps of {tile.size} past the end of {d}, where {shared[0].memory} goes on"
    return ""


def _is_diagonal(t: Tiling) -> bool:
    """True if all columns of each GEMM of a batch in a tile fill one atom's N, as blocks of a block-diagonal B."""
    (p,) = t.o.products
    columns = [(c, tile) for c, tile in t.pairs() if COLUMNS in c.roles]
    widths = {atom.shape[1] for atom in p.atoms}
    whole = all(tile.size == c.extent for c, tile in columns)
    return not t.o.flips[0] and whole and t.span(p.columns) in widths and t.span(p.columns) * t.batch <= max(widths)


def _owner(facts: Facts, name: str) -> str:
    """Return the program dimension of which the canonical dimension `name` is a digit (sub-index); `name` if of
    none.
    """
    return next((d for d, digits in facts.digits.items() if name in digits), name)


def why_not_split(facts: Facts) -> str:
    """Return why the lowering cannot do split-K of a program; empty text if it can."""
    return "kernels that merge the states of a split loop" if facts.loops or len(facts.products) > 1 else ""
