"""Tiling layouts and repeating them: divides and products.

A *tiler* is a layout, an int (that many consecutive elements), None (leave unchanged) or a tuple of tilers, one
for each mode. The four forms of a divide or product hold the same modes, grouped differently; with a tiler
of two modes, T the tile's and R the rest's:

| form    | result                         |
|---------|--------------------------------|
| logical | ((T0,R0), (T1,R1), ...)        |
| zipped  | ((T0,T1), (R0,R1, ...))        |
| tiled   | ((T0,T1), R0, R1, ...)         |
| flat    | (T0, T1, R0, R1, ...)          |

For "...", modes that the tiler does not name follow unchanged. A tile that does not divide its mode
is rounded up: the last one runs past the end, and a coordinate layout tiled in the same way tells where.
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
    """Return the layout split into two modes, (tile, rest): the elements that `tiler` selects, and the steps from tile
    to tile.

    `tiler` is a layout, an int (that many consecutive elements), None (unsplit) or a tuple of tilers, one for each
    mode, which splits every mode.

    Trailing modes of one element are ignored, unless the layout has one element: past the end of the layout, its last
    mode of more than one element continues.

    Post-condition, for the result R, the layout L without those trailing modes and a tiler that is a layout B: R ==
    composition(L, (B, complement(B, size(L)))); so R[0] == composition(L, B). If the strides of B chain (see
    `complement`), R reaches every element of L, once each if B divides L. A tiler whose values are coordinates picks
    coordinates of L, and the complement is taken in the shape of L.

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
    return composition(_drop_trailing_ones(layout), make_layout(tiler, complement(tiler, size(layout))))


def _drop_trailing_ones(layout: Layout) -> Layout:
    """Return the layout coalesced if its last mode has extent 1. Otherwise, and if the layout has one element, return
    it unchanged.

    The result is the same function of one integer index.
    """
    return coalesce(layout) if leaves(layout.shape)[-1:] == (1,) and size(layout) != 1 else layout


@inside_composed
def zipped_divide(layout: Any, tiler: Any) -> Any:
    """Return the layout split into tiles, as ((tile modes), (rest modes)): within a tile, and from tile to tile.

    `tiler` is as for `logical_divide`: an int or layout for one mode, or a tuple with one for each mode.

    If an entry of the tiler is None, the tile is 1:0 along that mode, and all of the mode is rest.

    Post-condition, for the result R and the layout L: if `tiler` is a layout or an int, R[0] == composition(L, tiler);
    if it is a tuple, R[0][i] == composition(L[i], tiler[i]) for each entry that is not None. Trailing modes of one
    element are ignored, as in `logical_divide`.

    >>> zipped_divide(Layout((9, (4, 8)), (59, (13, 1))), (Layout(3, 3), Layout((2, 4), (1, 8))))
    Layout(((3, (2, 4)), (3, (2, 2))), ((177, (13, 2)), (59, (26, 1))))
    """
    return _unzip(logical_divide, layout, tiler, lambda mode: make_layout(EMPTY_MODE, mode))


@inside_composed
def tiled_divide(layout: Any, tiler: Any) -> Any:
    """Return the layout split into tiles, as ((tile modes), rest mode, rest mode, ...).

    `tiler` is as for `logical_divide`: an int or layout for one mode, or a tuple with one for each mode.

    Post-condition, for the result R and the layout L: R[0] == zipped_divide(L, tiler)[0], and R[1], R[2], ... are the
    modes of zipped_divide(L, tiler)[1].

    >>> tiled_divide(Layout((9, 32)), (3, 8))
    Layout(((3, 8), 3, 4), ((1, 9), 3, 72))
    """
    tile, rest = zipped_divide(layout, tiler)
    return make_layout([tile, *rest])


@inside_composed
def flat_divide(layout: Any, tiler: Any) -> Any:
    """Return the layout split into tiles, as (tile mode, tile mode, ..., rest mode, rest mode, ...).

    `tiler` is as for `logical_divide`: an int or layout for one mode, or a tuple with one for each mode.

    Post-condition, for the layout L: the modes are those of zipped_divide(L, tiler)[0], then those of zipped_divide(L,
    tiler)[1].

    >>> flat_divide(Layout((9, 32)), (3, 8))
    Layout((3, 8, 3, 4), (1, 9, 3, 72))
    """
    tile, rest = zipped_divide(layout, tiler)
    return make_layout([*tile, *rest])


def _unzip(
    split: Callable[[Any, Any], Any], layout: Layout, tiler: Any, split_alone: Callable[[Layout], Layout]
) -> Layout:
    """Return a divide or product of `layout`, mode by mode, regrouped from ((A0,B0),(A1,B1)) to ((A0,A1),(B0,B1)).

    `split(mode, entry)` is the divide or product of a mode by its entry of `tiler`. If the entry is None,
    `split_alone(mode)` is used instead. Modes beyond the tiler go into the second group. A `tiler` that is no tuple
    splits the whole layout. Raise LayoutError if the tiler has more modes than the layout.
    """
    layout = as_layout(layout)
    if tiler is None:
        return split_alone(layout)
    if not isinstance(tiler, tuple):
        result: Layout = split(layout, tiler)
        return result
    if rank(layout) < len(tiler):
        raise LayoutError(f"tiler {tiler} has {len(tiler)} modes, but {layout} has {rank(layout)}")
    halves = [_unzip(split, layout[i], t, split_alone) for i, t in enumerate(tiler)]
    untouched = (layout[i] for i in range(len(tiler), rank(layout)))
    return make_layout(make_layout([h[0] for h in halves]), make_layout(chain((h[1] for h in halves), untouched)))


# -- products ---------------------------------------------------------------------------------------


@inside_composed
def logical_product(block: Any, tiler: Any) -> Any:
    """Return the layout (block, offsets of the copies): one copy of the block for each element of the tiler, in the
    tiler's order.

    `tiler` is a layout, an int (that many copies), None (the block is returned unchanged) or a tuple of tilers, one for
    each mode. If the values of the block are coordinates, the values of the tiler must be coordinates too, which count
    copies along each axis; otherwise raise LayoutError.

    Post-condition, for the result R, the block A and a tiler that is a layout B: R[0] == A, compatible(B, R[1]), and
    the copies for different values of B are disjoint.

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
    return make_layout(block, composition(complement(block, _multiply_extents(cosize(block), cosize(tiler))), tiler))


def _multiply_extents(a: Any, b: Any) -> Any:
    """Return a * b for two extents. If one is a shape (a tuple), multiply entry by entry; missing entries
    count as 1.
    """
    if not isinstance(a, tuple) and not isinstance(b, tuple):
        return a * b
    pairs = zip_longest(*(x if isinstance(x, tuple) else (x,) for x in (a, b)), fillvalue=1)
    return tuple(_multiply_extents(x, y) for x, y in pairs)


@inside_composed
def zipped_product(block: Any, tiler: Any) -> Any:
    """Return the block repeated over the layout `tiler`, as ((block modes), (tiler modes)).

    `tiler` is as for `logical_product`: an int or layout for one mode, or a tuple with one for each mode. For an entry
    None, the mode stays in the block, with one copy: 1:0.

    Post-condition: the modes are those of logical_product, regrouped as by zipped_divide.

    >>> zipped_product(Layout((2, 5), (5, 1)), (3, 4))
    Layout(((2, 5), (3, 4)), ((5, 1), (1, 5)))
    """
    return _unzip(logical_product, block, tiler, lambda mode: make_layout(mode, EMPTY_MODE))


@inside_composed
def tiled_product(block: Any, tiler: Any) -> Any:
    """Return the block repeated over the layout `tiler`, as ((block modes), tiler mode, tiler mode, ...).

    `tiler` is as for `logical_product`: an int or layout for one mode, or a tuple with one for each mode.

    Post-condition: the modes are those of zipped_product, with its second mode ungrouped.

    >>> tiled_product(Layout(4, 1), Layout((2, 3)))
    Layout((4, 2, 3), (1, 4, 8))
    """
    inner, outer = zipped_product(block, tiler)
    return make_layout([inner, *outer])


@inside_composed
def flat_product(block: Any, tiler: Any) -> Any:
    """Return the block repeated over the layout `tiler`, as (block mode, ..., tiler mode, ...).

    `tiler` is as for `logical_product`: an int or layout for one mode, or a tuple with one for each mode.

    Post-condition: the modes are those of zipped_product, both ungrouped.

    >>> flat_product(Layout((2, 2)), Layout((2, 3)))
    Layout((2, 2, 2, 3), (1, 2, 4, 8))
    """
    inner, outer = zipped_product(block, tiler)
    return make_layout([*inner, *outer])


def _ranked_product(block: Layout, tiler: Any) -> list[tuple[Layout, Layout]]:
    """Return pairs (mode of the block, layout of the offsets of its copies), one for each mode of the logical product.

    Block and tiler are first extended to the same rank by modes of extent 1.
    """
    block, tiler = as_layout(block), as_layout(tiler)
    ranks = max(rank(block), rank(tiler))
    block, tiler = append(block, EMPTY_MODE, ranks), append(tiler, EMPTY_MODE, ranks)
    product = logical_product(block, tiler)
    # an int tiler is one mode, even if its copies need several strides
    copies = list(product[1]) if isinstance(tiler.shape, tuple) else [product[1]]
    return list(zip(block, copies, strict=True))


@inside_composed
def blocked_product(block: Any, tiler: Any) -> Any:
    """Return the block repeated mode by mode, with copies kept together: mode i is (block mode i, layout of the copies
    along i).

    `tiler` is a layout, an int or a shape; its mode i counts the copies along mode i of the block. If block and tiler
    differ in rank, missing modes have one element.

    Post-condition, for the result R and the block A: R[i] == (A[i], copies along i), so the elements of a block stay
    neighbours.

    >>> blocked_product(Layout((2, 5), (5, 1)), Layout((3, 4)))
    Layout(((2, 3), (5, 4)), ((5, 10), (1, 30)))
    """
    return make_layout([make_layout(mode, copies) for mode, copies in _ranked_product(block, tiler)])


@inside_composed
def raked_product(block: Any, tiler: Any) -> Any:
    """Return the block repeated mode by mode, with copies interleaved: mode i is (layout of the copies along i, block
    mode i).

    `tiler` is as for `blocked_product`.

    Post-condition, for the result R and the block A: R[i] == (copies along i, A[i]), so neighbours belong to different
    copies.

    >>> raked_product(Layout((2, 5), (5, 1)), Layout((3, 4)))
    Layout(((3, 2), (4, 5)), ((10, 5), (30, 1)))
    """
    return make_layout([make_layout(copies, mode) for mode, copies in _ranked_product(block, tiler)])


def make_ordered_layout(extents: Any, order: Any) -> Layout:
    """Return the packed layout of shape `extents` in which modes with smaller entries of `order` have smaller strides.

    `order` has one integer for each mode; an entry for a nested mode holds for all modes inside. Of modes with equal
    entries the first is fastest. A mode of one element has stride 0. Raise LayoutError if `order` does not have the
    structure of the shape, or if an entry is no integer.

    Post-condition, for the result R: size(R) == cosize(R), and of two modes of more than one element the one of smaller
    order has the smaller strides.

    >>> make_ordered_layout((2, 3, 4), (2, 0, 1))
    Layout((2, 3, 4), (12, 1, 3))
    >>> make_ordered_layout((2, (2, 2), 2), (0, 2, 1))
    Layout((2, (2, 2), 2), (1, (4, 8), 2))
    """
    flat, orders = leaves(extents), _order_of_leaves(extents, order, extents, order)
    for entry in orders:
        if not is_int(entry):
            raise LayoutError(f"order {order} of shape {extents}: {entry!r} is no integer")
    strides = [0] * len(flat)
    stride = 1
    for mode in sorted(range(len(flat)), key=lambda m: orders[m]):
        if flat[mode] != 1:  # a mode of one element has stride 0
            strides[mode] = stride
            stride *= flat[mode]
    return Layout(extents, unflatten(strides, extents))


def make_layout_like(layout: Any) -> Layout:
    """Return the packed layout with the shape of `layout` and the same order of strides; stride 0 stays 0.

    A mode of one element gets stride 0. Of modes with equal strides the first is fastest. Raise LayoutError if a stride
    is negative, if the values are coordinates, or for a composed layout.

    Post-condition, for the result R and the layout L: congruent(R, L), cosize(R) == size(filter_zeros(L)), and of two
    modes of more than one element the one with the smaller stride in L has the smaller stride in R.

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
    packed, stride = [0] * len(extents), 1
    for mode in sorted(range(len(extents)), key=lambda m: strides[m]):
        if strides[mode] != 0 and extents[mode] != 1:
            packed[mode] = stride
            stride *= extents[mode]
    return Layout(layout.shape, unflatten(packed, layout.shape))


def _order_of_leaves(extents: Any, order: Any, full_shape: Any, full_order: Any) -> list[Any]:
    """Return a flat list with the entry of `order` for each leaf of the shape `extents`: ((2, 2), 3) and (1, 0) -> [1,
    1, 0].

    Raise LayoutError unless `order` has an entry for each mode. `full_shape` and `full_order` are the caller's
    arguments, for the message.
    """
    if not isinstance(order, tuple):
        return [order] * len(leaves(extents))
    if not isinstance(extents, tuple) or len(extents) != len(order):
        raise LayoutError(
            f"order {full_order} has {len(leaves(full_order))} entries for the {len(leaves(full_shape))} modes "
            f"of shape {full_shape}"
        )
    return [
        entry for e, o in zip(extents, order, strict=True) for entry in _order_of_leaves(e, o, full_shape, full_order)
    ]


@inside_composed
def tile_to_shape(block: Any, extents: Any, order: Any = None) -> Any:
    """Return the block repeated along each mode until it covers the shape `extents`; mode i is (block mode i, its
    copies).

    A block that does not divide the shape is repeated until it covers it, as a divide rounds its last tile up. `order`
    has one entry for each mode, no two equal: copies along the mode with the smallest entry come first in memory.
    Without it the first mode's copies come first. Raise LayoutError for any other order, or if the shape has fewer
    modes than the block.

    Post-condition, for the result R: size(R[i]) is product(extents[i]), rounded up to whole blocks, for every mode.

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
    copies = tuple(ceil_quotient(product(extent), size(padded, mode)) for mode, extent in enumerate(extents))
    return blocked_product(padded, make_ordered_layout(copies, order))
