"""Cutting layouts into tiles and repeating them: divides and products.

A *tiler* is a layout, an int (that many consecutive elements), None (leave alone) or a tuple of tilers, one
for each mode. The four forms of a divide or product hold the same modes, grouped differently; with a tiler
of two modes, T the tile's and R the rest's:

| form    | result                         |
|---------|--------------------------------|
| logical | ((T0,R0), (T1,R1), ...)        |
| zipped  | ((T0,T1), (R0,R1, ...))        |
| tiled   | ((T0,T1), R0, R1, ...)         |
| flat    | (T0, T1, R0, R1, ...)          |

Where "..." stands, modes that the tiler does not name follow unchanged. A tile that does not divide its mode
is rounded up: the last one runs past the end, and a coordinate layout cut the same way tells where.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, zip_longest
from typing import Any

from tilewright.algebra.compose import EMPTY_MODE, by_mode, coalesce, composition
from tilewright.algebra.inttuple import ceil_quotient, is_int, leaves, product, unflatten
from tilewright.algebra.inverse import complement
from tilewright.algebra.layout import Layout, cosize, make_layout, rank, size
from tilewright.algebra.modes import append, as_layout, inside_composed
from tilewright.errors import LayoutError

# -- divides ----------------------------------------------------------------------------------------


@inside_composed
def logical_divide(layout: Any, tiler: Any) -> Any:
    """The layout split into (tile, rest): the elements that the tiler picks, and where else to pick them.

    Past the end of L its last mode of more than one element goes on (a last mode, where all have one element).

    Post-condition, for a tiler that is a layout B: R == composition(L, (B, complement(B, size(L)))), for the L
    that ends in that mode; so R[0] == composition(L, B). Where the strides of B chain (see `complement`), R
    reaches every element of L, once each where B divides L. A tiler whose values are coordinates picks coordinates
    of L, and the complement is taken in the shape of L.

    >>> logical_divide(Layout((4, 2, 3), (2, 1, 8)), Layout(4, 2))
    Layout(((2, 2), (2, 3)), ((4, 1), (2, 8)))
    >>> logical_divide(Layout((9, 32)), (3, 8))
    Layout(((3, 3), (8, 4)), ((1, 3), (9, 72)))
    """
    if tiler is None:
        return layout
    if isinstance(tiler, tuple):
        return by_mode(logical_divide, as_layout(layout), tiler, "logical_divide")
    layout, tiler = as_layout(layout), as_layout(tiler)
    if tiler.has_coordinates:
        return composition(layout, make_layout(tiler, complement(tiler, layout.shape)))
    return composition(_without_last_ones(layout), make_layout(tiler, complement(tiler, size(layout))))


def _without_last_ones(layout: Layout) -> Layout:
    """The same function of one integer, ending in a mode of more than one element where there is one."""
    return coalesce(layout) if leaves(layout.shape)[-1:] == (1,) and size(layout) != 1 else layout


@inside_composed
def zipped_divide(layout: Any, tiler: Any) -> Any:
    """The divide as ((tile modes), (rest modes)): one mode walks inside a tile, the other from tile to tile.

    Where the tiler is None, the tile is 1:0 and all of that mode is rest.

    Post-condition: R[0] == composition(L, tiler), mode by mode for a tuple, where no entry is None (and where the
    tile does not run past the end of a mode that ends in modes of one element: see `logical_divide`).

    >>> zipped_divide(Layout((9, (4, 8)), (59, (13, 1))), (Layout(3, 3), Layout((2, 4), (1, 8))))
    Layout(((3, (2, 4)), (3, (2, 2))), ((177, (13, 2)), (59, (26, 1))))
    """
    return _unzip(logical_divide, layout, tiler, lambda mode: make_layout(EMPTY_MODE, mode))


@inside_composed
def tiled_divide(layout: Any, tiler: Any) -> Any:
    """The divide as ((tile modes), rest, rest, ...).

    Post-condition: R[0] == zipped_divide(L, tiler)[0]; the further modes are those of its mode 1.

    >>> tiled_divide(Layout((9, 32)), (3, 8))
    Layout(((3, 8), 3, 4), ((1, 9), 3, 72))
    """
    tile, rest = zipped_divide(layout, tiler)
    return make_layout([tile, *rest])


@inside_composed
def flat_divide(layout: Any, tiler: Any) -> Any:
    """The divide as (tile, tile, ..., rest, rest, ...).

    Post-condition: the modes of zipped_divide(L, tiler)[0], then those of its mode 1.

    >>> flat_divide(Layout((9, 32)), (3, 8))
    Layout((3, 8, 3, 4), (1, 9, 3, 72))
    """
    tile, rest = zipped_divide(layout, tiler)
    return make_layout([*tile, *rest])


def _unzip(
    splitter: Callable[[Any, Any], Any], layout: Layout, tiler: Any, alone: Callable[[Layout], Layout]
) -> Layout:
    """Gathers the first and the second modes of a mode-by-mode split: ((A0,B0),(A1,B1)) to ((A0,A1),(B0,B1)).

    `alone` splits the modes for which the tiler is None.
    """
    layout = as_layout(layout)
    if tiler is None:
        return alone(layout)
    if not isinstance(tiler, tuple):
        result: Layout = splitter(layout, tiler)
        return result
    if rank(layout) < len(tiler):
        raise LayoutError(f"tiler {tiler} has {len(tiler)} modes, but {layout} has {rank(layout)}")
    halves = [_unzip(splitter, layout[i], t, alone) for i, t in enumerate(tiler)]
    untouched = (layout[i] for i in range(len(tiler), rank(layout)))
    return make_layout(make_layout([h[0] for h in halves]), make_layout(chain((h[1] for h in halves), untouched)))


# -- products ---------------------------------------------------------------------------------------


@inside_composed
def logical_product(block: Any, tiler: Any) -> Any:
    """The block, repeated: (block, where the copies go), one copy for each element of the tiler, in its order.

    Where the values of the block are coordinates, so are those of the tiler: they count copies along each axis.

    Post-condition, for a tiler that is a layout B: R[0] == A, compatible(B, R[1]), and the copies for different
    values of B are disjoint.

    >>> logical_product(Layout((2, 2), (4, 1)), Layout(6, 1))
    Layout(((2, 2), (2, 3)), ((4, 1), (2, 8)))
    >>> from tilewright.algebra import E
    >>> logical_product(Layout((4, 5), (E(0), E(1))), Layout((2, 3), (E(0), E(1))))
    Layout(((4, 5), (2, 3)), ((1@0, 1@1), (4@0, 5@1)))
    """
    if tiler is None:
        return block
    if isinstance(tiler, tuple):
        return by_mode(logical_product, as_layout(block), tiler, "logical_product")
    block, tiler = as_layout(block), as_layout(tiler)
    if block.has_coordinates != tiler.has_coordinates:
        one, other = (block, tiler) if block.has_coordinates else (tiler, block)
        raise LayoutError(
            f"logical_product of {block} by {tiler}: values of {one} are coordinates, those of {other} offsets; "
            "give both the same kind, as in (4,5):(1@0,1@1) by (2,3):(1@0,1@1)"
        )
    return make_layout(block, composition(complement(block, _times(cosize(block), cosize(tiler))), tiler))


def _times(a: Any, b: Any) -> Any:
    """The product of two extents, axis by axis where they are shapes."""
    if not isinstance(a, tuple) and not isinstance(b, tuple):
        return a * b
    pairs = zip_longest(*(x if isinstance(x, tuple) else (x,) for x in (a, b)), fillvalue=1)
    return tuple(_times(x, y) for x, y in pairs)


@inside_composed
def zipped_product(block: Any, tiler: Any) -> Any:
    """The product as ((block modes), (tiler modes)).

    Where the tiler is None, the mode stays in the block, with one copy: 1:0.

    Post-condition: the modes of logical_product, regrouped as by zipped_divide.

    >>> zipped_product(Layout((2, 5), (5, 1)), (3, 4))
    Layout(((2, 5), (3, 4)), ((5, 1), (1, 5)))
    """
    return _unzip(logical_product, block, tiler, lambda mode: make_layout(mode, EMPTY_MODE))


@inside_composed
def tiled_product(block: Any, tiler: Any) -> Any:
    """The product as ((block modes), tiler mode, tiler mode, ...).

    Post-condition: the modes of zipped_product, the second ungrouped.

    >>> tiled_product(Layout(4, 1), Layout((2, 3)))
    Layout((4, 2, 3), (1, 4, 8))
    """
    inner, outer = zipped_product(block, tiler)
    return make_layout([inner, *outer])


@inside_composed
def flat_product(block: Any, tiler: Any) -> Any:
    """The product as (block mode, ..., tiler mode, ...).

    Post-condition: the modes of zipped_product, both ungrouped.

    >>> flat_product(Layout((2, 2)), Layout((2, 3)))
    Layout((2, 2, 2, 3), (1, 2, 4, 8))
    """
    inner, outer = zipped_product(block, tiler)
    return make_layout([*inner, *outer])


def _ranked_product(block: Layout, tiler: Any) -> list[tuple[Layout, Layout]]:
    """(mode of the block, its copies) for each mode of the product of layouts brought to one rank."""
    block, tiler = as_layout(block), as_layout(tiler)
    ranks = max(rank(block), rank(tiler))
    block, tiler = append(block, EMPTY_MODE, ranks), append(tiler, EMPTY_MODE, ranks)
    product = logical_product(block, tiler)
    # a tiler that is an int is one mode, also where its copies need several strides
    copies = list(product[1]) if isinstance(tiler.shape, tuple) else [product[1]]
    return list(zip(block, copies, strict=True))


@inside_composed
def blocked_product(block: Any, tiler: Any) -> Any:
    """Copies of the block side by side, mode by mode: mode i is (block mode i, tiler mode i).

    Post-condition: R[i] == (A[i], copies along i); a block stays together.

    >>> blocked_product(Layout((2, 5), (5, 1)), Layout((3, 4)))
    Layout(((2, 3), (5, 4)), ((5, 10), (1, 30)))
    """
    return make_layout([make_layout(mode, copies) for mode, copies in _ranked_product(block, tiler)])


@inside_composed
def raked_product(block: Any, tiler: Any) -> Any:
    """Copies of the block interleaved, mode by mode: mode i is (tiler mode i, block mode i).

    Post-condition: R[i] == (copies along i, A[i]); neighbours belong to different copies.

    >>> raked_product(Layout((2, 5), (5, 1)), Layout((3, 4)))
    Layout(((3, 2), (4, 5)), ((10, 5), (30, 1)))
    """
    return make_layout([make_layout(copies, mode) for mode, copies in _ranked_product(block, tiler)])


def make_ordered_layout(extents: Any, order: Any) -> Layout:
    """The packed layout whose modes are laid out in ascending `order`: order 0 is the fastest.

    An entry of the order for a nested mode is that of all its modes. Of modes of one order the first is the fastest.

    Post-condition: size(R) == cosize(R), and a mode of smaller order has smaller strides.

    >>> make_ordered_layout((2, 3, 4), (2, 0, 1))
    Layout((2, 3, 4), (12, 1, 3))
    >>> make_ordered_layout((2, (2, 2), 2), (0, 2, 1))
    Layout((2, (2, 2), 2), (1, (4, 8), 2))
    """
    flat, places = leaves(extents), _places(extents, order, extents, order)
    for place in places:
        if not is_int(place):
            raise LayoutError(f"order {order} of shape {extents}: {place!r} is no integer")
    strides = [0] * len(flat)
    running = 1
    for mode in sorted(range(len(flat)), key=lambda m: places[m]):
        if flat[mode] != 1:  # a mode of one element never moves
            strides[mode] = running
            running *= flat[mode]
    return Layout(extents, unflatten(strides, extents))


def make_layout_like(layout: Any) -> Layout:
    """The packed layout of the same shape whose modes lie in the order of L's strides; modes that stand still do so.

    Post-condition: congruent(R, L), cosize(R) == size(filter_zeros(L)), and of two modes the one with the smaller
    stride in L has the smaller stride in R.

    >>> make_layout_like(Layout((2, (3, 4)), (40, (0, 5))))
    Layout((2, (3, 4)), (4, (0, 1)))
    """
    layout = as_layout(layout)
    if not isinstance(layout, Layout) or layout.has_coordinates:
        raise LayoutError(f"make_layout_like of {layout}: its strides have no order; give a layout of plain offsets")
    extents, strides = leaves(layout.shape), leaves(layout.stride)
    for s, d in zip(extents, strides, strict=True):
        if d < 0:
            raise LayoutError(f"make_layout_like of {layout}: mode {s}:{d} runs backwards")
    found, running = [0] * len(extents), 1
    for mode in sorted(range(len(extents)), key=lambda m: strides[m]):
        if strides[mode] != 0 and extents[mode] != 1:
            found[mode] = running
            running *= extents[mode]
    return Layout(layout.shape, unflatten(found, layout.shape))


def _places(extents: Any, order: Any, shape: Any, whole: Any) -> list[Any]:
    """The entry of the order for each leaf of the extents."""
    if not isinstance(order, tuple):
        return [order] * len(leaves(extents))
    if not isinstance(extents, tuple) or len(extents) != len(order):
        raise LayoutError(
            f"order {whole} has {len(leaves(whole))} entries for the {len(leaves(shape))} modes of shape {shape}"
        )
    return [place for e, o in zip(extents, order, strict=True) for place in _places(e, o, shape, whole)]


@inside_composed
def tile_to_shape(block: Any, extents: Any, order: Any = None) -> Any:
    """The block repeated until it fills a shape, the copies laid out by `order` (first mode fastest).

    A block that does not divide the shape is repeated until it covers it, as a divide rounds its last tile up.

    `order` has one entry for each mode, no two alike.

    Post-condition: size(R[i]) is product(extents[i]), rounded up to whole blocks, for every mode.

    >>> tile_to_shape(Layout((8, 64), (64, 1)), (128, 64))
    Layout(((8, 16), (64, 1)), ((64, 512), (1, 0)))
    >>> tile_to_shape(Layout((3, 3), (1, 3)), (5, 8))
    Layout(((3, 2), (3, 3)), ((1, 9), (3, 18)))
    """
    block = as_layout(block)
    if not isinstance(extents, tuple):
        extents = (extents,)
    ranks = len(extents)
    if rank(block) > ranks:
        raise LayoutError(f"tile_to_shape of {block} to {extents}: the shape has fewer modes than the block")
    if order is None:
        order = tuple(range(ranks))
    elif len(set(leaves(order))) != ranks or rank(order) != ranks:
        raise LayoutError(
            f"tile_to_shape of {block} to {extents}: the order {order} must have {ranks} entries, no two alike"
        )
    padded = append(block, EMPTY_MODE, ranks)
    copies = tuple(ceil_quotient(product(wanted), size(padded, mode)) for mode, wanted in enumerate(extents))
    return blocked_product(padded, make_ordered_layout(copies, order))
