"""Reasons why the lowering (code generator) cannot do an orientation, a tiling or a split that the search proposes."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from tilewright.plan.boxes import own_coordinate
from tilewright.plan.facts import Facts
from tilewright.plan.facts.loops import merging_loop
from tilewright.plan.microkernel import axes_in
from tilewright.plan.search.axes import BATCH, COLUMNS, DEPTH, NONE, ROWS, DimClass
from tilewright.plan.search.halo import halo_window
from tilewright.plan.search.orientation import Orientation, OrientedProduct
from tilewright.plan.search.tiles import BOX, CLUSTER, GRID, INNER_RUN, LOOP, RUN, WHOLE, AxisTile
from tilewright.plan.search.tiling import Tiling

LACKING = "lowering lacks it"
"""The reason given for a choice that only the lowering cannot do."""


def why_not_oriented(o: Orientation) -> str:
    """Return text: why the lowering (code generator) cannot do an orientation; empty if it can.

    An orientation (`o`) says for each MMA which of M and N lies on the atom's rows. Four things are refused: a value
    between MMAs that changes its layout; several MMAs, some with N on the rows; an asynchronous atom beside one that
    lanes issue; and an M or N of one element that a result lacks.
    """
    if o.through_shared:
        return "values between products that change their layout"
    if len(o.products) > 1 and any(o.flips):
        return "several products, some with N on the unit's rows"
    if len({p.atoms[0].asynchronous for p in o.products}) > 1:
        return "a product that lanes multiply beside one of an asynchronous atom"
    return _why_not_one_row_or_column(o)


def _why_not_one_row_or_column(o: Orientation) -> str:
    """Return text: why the lowering (code generator) cannot do an MMA whose M or N has one element; empty if it can.

    It cannot if the program writes a result without that dimension, such as `y[n]` for an M of 1. The text is about the
    first such MMA. `o` (an Orientation) says which of M and N lies on the atom's rows.
    """
    size = o.facts.number_of
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
    """Return text: why the lowering (code generator) cannot do a choice of tile sizes; empty if it can.

    `t` (a Tiling) has the tile sizes. The text is about the first fault. Faults are:

    - halo tiles of sizes known only at a call;
    - chained MMAs with several atoms of rows per wave group, or with reduced rows on the atom's columns;
    - clusters, and loops that need several passes;
    - grid tiles that split a dimension that is N of one MMA, and not N of another;
    - tile shapes and K steps that `_why_not_class_tile` refuses;
    - several GEMMs of a batch in a tile, if they cannot be block-diagonal;
    - loop tiles that do not divide their dimension, or are not the author's.

    The orientation (M or N on the atom's rows) is checked by `why_not_oriented`.
    """
    if t.facts.opened and any(tile.fold == BOX and halo_window(t.o, c) for c, tile in t.pairs()):
        return "halo tiles of sizes that only a call tells"
    facts = t.facts
    if t.o.has_unsplit_results and any(t.o.flips):
        return "reductions of rows that lie on the unit's columns"
    unit = t.o.products[0].atoms[0].shape[0]
    follows = t.o.links_products or t.o.has_unsplit_results
    if follows and any(ROWS in c.roles and tile.size > unit * t.down for c, tile in t.pairs()):
        return "several atoms of rows for each group of waves, of products that follow each other"
    for c, tile in t.pairs():
        if tile.level == CLUSTER:
            return "clusters that exchange values"
        if tile.level == LOOP and max(facts.passes[d] for d in c.dims) > 1:
            return "several passes over a loop"
        if tile.level == GRID and tile.size < c.extent and COLUMNS in c.roles and set(c.roles) != {COLUMNS}:
            return "tasks that share the rows of several products"
        why = _why_not_class_tile(t.o, c, tile)
        if why:
            return why
        if tile.level == GRID and tile.size > 1 and set(c.roles) <= {BATCH, NONE} and not _can_be_block_diagonal(t):
            return "several of a batch in one tile whose columns are not an atom's"
        if t.batch > 1 and (why := why_not_beside(t.o.facts, "blocks on a diagonal")):
            return why
    for axis, loop in facts.loops.items():
        tile = t.tile_of(axis)
        if loop.source is None and tile.level != WHOLE and facts.extents[axis] % tile.size:
            return f"a loop over {axis} in tiles that do not divide it"
        if loop.source is not None and (tile.level == WHOLE or (tile.size != loop.tile and loop.merge is None)):
            return f"tiles of the loop over {axis} that are not the author's"
    return ""


@lru_cache
def _why_not_class_tile(o: Orientation, c: DimClass, tile: AxisTile) -> str:
    """Return text: why the lowering (code generator) cannot do the tile `tile` of the dimensions `c`; empty if it can.

    Checked are the tile's shape and the size of its K steps. `c` is a class of dimensions (same role, such as M or K,
    in every MMA); `o` (an Orientation) says which of M and N lies on the atom's rows. The result is cached, as the same
    tile is combined with many tiles of other classes.
    """
    return _why_not_tile_shape(o, c, tile) or _why_not_step_size(o, c, tile)


def _why_not_tile_shape(o: Orientation, c: DimClass, tile: AxisTile) -> str:
    """Return text: why the lowering (code generator) cannot do a tile of this shape; empty if it can.

    `c` is the tile's class of dimensions (same role, such as M or K, in every MMA). A run is a range of contiguous flat
    indices; a box is a rectangle. `o` (an Orientation) says which of M and N lies on the atom's rows.

    A tile that has all of `c` is always possible, and so is a run along the last dimension of `c`. Three shapes are
    refused:

    - a tile with several elements along more than one dimension of the program;
    - a box without a halo tile, if it extends along several dimensions, or if `c` is one dimension of the program and
      takes another number of boxes than of runs of the same size;
    - a run over several dimensions of the program, unless it lies within the innermost one and divides its extent.
    """
    if tile.level == WHOLE or tile.fold == INNER_RUN:
        return ""
    box, runs = dict(tile.box), ceil(c.extent / tile.size)
    wide = [d for d in c.dims if box[d] > 1]
    owners = {_program_dim(o.facts, d) for d in wide}
    if len(owners) > 1:
        return f"a tile of {tile.size} over {', '.join(sorted(owners))}"
    program_dims = {_program_dim(o.facts, d) for d in c.dims}
    if (
        tile.fold == BOX
        and halo_window(o, c) is None
        and (len(wide) > 1 or (len(program_dims) == 1 and tile.count != runs))
    ):
        return "boxes of rows without a halo tile"
    inner = c.dims[-1]
    if tile.fold == RUN and len(program_dims) > 1 and (tile.size > box[inner] or o.facts.extents[inner] % tile.size):
        return f"a run over {', '.join(c.dims)}"
    return ""


def _why_not_step_size(o: Orientation, c: DimClass, tile: AxisTile) -> str:
    """Return text: why the lowering (code generator) cannot do K steps of the size of `tile`; empty if it can.

    It cannot if the last step reads past the end of K and finds elements of another sliding window in memory instead of
    zeros. Only K steps that bulk copies load are checked; for other tiles the text is empty. `c` is the tile's class of
    dimensions (same role, such as M or K, in every MMA); `o` (an Orientation) says which of M and N lies on the atom's
    rows.
    """
    if tile.level != LOOP or DEPTH not in c.roles or o.by_threads:
        return ""
    facts = o.facts
    shared_dims = frozenset(d for p in facts.products for d in (*p.batch, *p.k))
    past = [d for d, n in tile.box if n > 1 and facts.extents[d] % tile.size]
    digits = next((x for x in facts.digits.values() if len(x) > 1 and set(c.dims) <= set(x)), ())
    if digits and tile.fold == RUN and not any(r.place.contiguous in digits for r in facts.reads):
        # steps cover digits of one dimension, which ends where the first digit does
        past = [d for d in digits if d in facts.extents][:1] if c.extent % tile.size else []
    for d in past:
        shared = [
            r.place for r in facts.reads if any(d in window and window - shared_dims for window in r.place.windows)
        ]
        if shared:
            return f"steps of {tile.size} past the end of {d}, where {shared[0].memory} goes on"
    return ""


def why_not_beside(facts: Facts, what: str) -> str:
    """Return text: the lowering (code generator) cannot do `what`, because the program has several MMAs; else empty.

    `what` is a text that names a feature. The text that is returned adds the names of the first two MMAs: "copied
    operands of mma beside mma2". `facts` is the analysed program.
    """
    if len(facts.products) > 1:
        first, second, *_ = facts.products
        return f"{what} of {first.name} beside {second.name}"
    return ""


def _can_be_block_diagonal(t: Tiling) -> bool:
    """True if the GEMMs of a batch in one tile can run as one GEMM, with a block-diagonal B.

    Four conditions must hold: M lies on the atom's rows; a tile has all columns of each GEMM; each GEMM is one atom
    wide; and all GEMMs of the tile together are not wider than the widest atom. `t` (a Tiling) has the kernel's tile
    sizes.
    """
    whole = all(tile.size == c.extent for c, tile in t.pairs() if COLUMNS in c.roles)
    return whole and not any(t.o.flips) and all(_are_one_atom_wide(t, p) for p in t.o.products)


def _are_one_atom_wide(t: Tiling, p: OrientedProduct) -> bool:
    """True if N of each GEMM of a batch is as wide as an atom, and some atom is as wide as all GEMMs of a tile.

    `p` is the MMA with the atoms that take its operands; `t` (a Tiling) has the kernel's tile sizes.
    """
    widths = {atom.shape[1] for atom in p.atoms}
    return t.span(p.columns) in widths and t.span(p.columns) * t.batch <= max(widths)


def _program_dim(facts: Facts, name: str) -> str:
    """Return the program dimension of which `name` is a digit (mixed-radix part); `name` itself if it is no digit."""
    return next((d for d, digits in facts.digits.items() if name in digits), name)


def why_not_split(facts: Facts) -> str:
    """Return text: why the lowering (code generator) cannot do split-K (workgroups share K); empty if it can.

    It can in two cases. The program has a single MMA, and its loops only add to the accumulator. Or it has one loop
    around all MMAs, and the partial results of that loop merge. `facts` is the analysed program.
    """
    if not facts.loops and len(facts.products) == 1:
        return ""
    loop = merging_loop(facts.program)
    return f"merging the states of a split loop: {loop}" if isinstance(loop, str) else ""
