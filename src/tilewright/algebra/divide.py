"""Cutting layouts into tiles and repeating them: divides, products, tiles and partitions.

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
from functools import wraps
from itertools import chain
from typing import Any, Literal

from tilewright.algebra.compose import EMPTY_MODE, _by_mode, coalesce, complement, composition
from tilewright.algebra.inttuple import idx2crd, is_int, leaves, product, unflatten
from tilewright.algebra.layout import Layout, append, make_layout, rank, shape, size, slice_and_offset
from tilewright.algebra.swizzle import ComposedLayout
from tilewright.errors import LayoutError


def _inside_composed(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Lets an operation on layouts act on the inner layout of a swizzled or offset one: f(S o L) = S o f(L)."""

    @wraps(operation)
    def extended(layout: Any, *args: Any, **options: Any) -> Any:
        if isinstance(layout, ComposedLayout):
            return layout.with_layout(extended(layout.layout, *args, **options))
        return operation(layout, *args, **options)

    return extended


# -- divides ----------------------------------------------------------------------------------------


@_inside_composed
def logical_divide(layout: Any, tiler: Any) -> Any:
    """The layout split into (tile, rest): the elements that the tiler picks, and where else to pick them.

    Past the end of L its last mode of more than one element goes on (a last mode, where all have one element).

    Post-condition, for a tiler that is a layout B: R == composition(L, (B, complement(B, size(L)))), for the L
    that ends in that mode; so R[0] == composition(L, B). Where the strides of B chain (see `complement`), R
    reaches every element of L, once each where B divides L.

    >>> logical_divide(Layout((4, 2, 3), (2, 1, 8)), Layout(4, 2))
    Layout(((2, 2), (2, 3)), ((4, 1), (2, 8)))
    >>> logical_divide(Layout((9, 32)), (3, 8))
    Layout(((3, 3), (8, 4)), ((1, 3), (9, 72)))
    """
    if tiler is None:
        return layout
    if isinstance(tiler, tuple):
        return _by_mode(logical_divide, layout, tiler, "logical_divide")
    if not isinstance(tiler, Layout):
        tiler = Layout(tiler)
    return composition(_without_last_ones(layout), make_layout(tiler, complement(tiler, size(layout))))


def _without_last_ones(layout: Layout) -> Layout:
    """The same function of one integer, ending in a mode of more than one element where there is one."""
    return coalesce(layout) if size(layout) > 1 and leaves(layout.shape)[-1] == 1 else layout


@_inside_composed
def zipped_divide(layout: Any, tiler: Any) -> Any:
    """The divide as ((tile modes), (rest modes)): one mode walks inside a tile, the other from tile to tile.

    Where the tiler is None, the tile is 1:0 and all of that mode is rest.

    Post-condition: R[0] == composition(L, tiler), mode by mode for a tuple, where no entry is None (and where the
    tile does not run past the end of a mode that ends in modes of one element: see `logical_divide`).

    >>> zipped_divide(Layout((9, (4, 8)), (59, (13, 1))), (Layout(3, 3), Layout((2, 4), (1, 8))))
    Layout(((3, (2, 4)), (3, (2, 2))), ((177, (13, 2)), (59, (26, 1))))
    """
    return _unzip(logical_divide, layout, tiler, lambda mode: make_layout(EMPTY_MODE, mode))


@_inside_composed
def tiled_divide(layout: Any, tiler: Any) -> Any:
    """The divide as ((tile modes), rest, rest, ...).

    Post-condition: R[0] == zipped_divide(L, tiler)[0]; the further modes are those of its mode 1.

    >>> tiled_divide(Layout((9, 32)), (3, 8))
    Layout(((3, 8), 3, 4), ((1, 9), 3, 72))
    """
    tile, rest = zipped_divide(layout, tiler)
    return make_layout([tile, *rest])


@_inside_composed
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


@_inside_composed
def logical_product(block: Any, tiler: Any) -> Any:
    """The block, repeated: (block, where the copies go), one copy for each element of the tiler, in its order.

    Post-condition, for a tiler that is a layout B: R[0] == A, compatible(B, R[1]), and the copies for different
    values of B are disjoint.

    >>> logical_product(Layout((2, 2), (4, 1)), Layout(6, 1))
    Layout(((2, 2), (2, 3)), ((4, 1), (2, 8)))
    """
    if tiler is None:
        return block
    if isinstance(tiler, tuple):
        return _by_mode(logical_product, block, tiler, "logical_product")
    if not isinstance(tiler, Layout):
        tiler = Layout(tiler)
    for part in (block, tiler):
        if part.has_coordinates:
            raise LayoutError(f"logical_product of {block} by {tiler}: values of {part} are coordinates, not offsets")
    return make_layout(block, composition(complement(block, block.cosize() * tiler.cosize()), tiler))


@_inside_composed
def zipped_product(block: Any, tiler: Any) -> Any:
    """The product as ((block modes), (tiler modes)).

    Where the tiler is None, the mode stays in the block, with one copy: 1:0.

    Post-condition: the modes of logical_product, regrouped as by zipped_divide.

    >>> zipped_product(Layout((2, 5), (5, 1)), (3, 4))
    Layout(((2, 5), (3, 4)), ((5, 1), (1, 5)))
    """
    return _unzip(logical_product, block, tiler, lambda mode: make_layout(mode, EMPTY_MODE))


@_inside_composed
def tiled_product(block: Any, tiler: Any) -> Any:
    """The product as ((block modes), tiler mode, tiler mode, ...).

    Post-condition: the modes of zipped_product, the second ungrouped.

    >>> tiled_product(Layout(4, 1), Layout((2, 3)))
    Layout((4, 2, 3), (1, 4, 8))
    """
    inner, outer = zipped_product(block, tiler)
    return make_layout([inner, *outer])


@_inside_composed
def flat_product(block: Any, tiler: Any) -> Any:
    """The product as (block mode, ..., tiler mode, ...).

    Post-condition: the modes of zipped_product, both ungrouped.

    >>> flat_product(Layout((2, 2)), Layout((2, 3)))
    Layout((2, 2, 2, 3), (1, 2, 4, 8))
    """
    inner, outer = zipped_product(block, tiler)
    return make_layout([*inner, *outer])


def _ranked_product(block: Layout, tiler: Any) -> tuple[Layout, Layout]:
    """The two modes of the product of layouts brought to one rank."""
    if not isinstance(tiler, Layout):
        tiler = Layout(tiler)
    ranks = max(rank(block), rank(tiler))
    inner, outer = logical_product(append(block, EMPTY_MODE, ranks), append(tiler, EMPTY_MODE, ranks))
    return inner, outer


@_inside_composed
def blocked_product(block: Any, tiler: Any) -> Any:
    """Copies of the block side by side, mode by mode: mode i is (block mode i, tiler mode i).

    Post-condition: R[i] == (A[i], copies along i); a block stays together.

    >>> blocked_product(Layout((2, 5), (5, 1)), Layout((3, 4)))
    Layout(((2, 3), (5, 4)), ((5, 10), (1, 30)))
    """
    inner, outer = _ranked_product(block, tiler)
    return make_layout([make_layout(a, b) for a, b in zip(inner, outer, strict=True)])


@_inside_composed
def raked_product(block: Any, tiler: Any) -> Any:
    """Copies of the block interleaved, mode by mode: mode i is (tiler mode i, block mode i).

    Post-condition: R[i] == (copies along i, A[i]); neighbours belong to different copies.

    >>> raked_product(Layout((2, 5), (5, 1)), Layout((3, 4)))
    Layout(((3, 2), (4, 5)), ((10, 5), (30, 1)))
    """
    inner, outer = _ranked_product(block, tiler)
    return make_layout([make_layout(b, a) for a, b in zip(inner, outer, strict=True)])


def make_ordered_layout(extents: Any, order: Any) -> Layout:
    """The packed layout whose modes are laid out in ascending `order`: order 0 is the fastest.

    >>> make_ordered_layout((2, 3, 4), (2, 0, 1))
    Layout((2, 3, 4), (12, 1, 3))
    """
    flat, places = leaves(extents), leaves(order)
    if len(flat) != len(places):
        raise LayoutError(f"order {order} has {len(places)} entries for the {len(flat)} modes of shape {extents}")
    strides = [0] * len(flat)
    running = 1
    for mode in sorted(range(len(flat)), key=lambda m: places[m]):
        if flat[mode] > 1:  # a mode of one element never moves
            strides[mode] = running
            running *= flat[mode]
    return Layout(extents, unflatten(strides, extents))


@_inside_composed
def tile_to_shape(block: Any, extents: Any, order: Any = None) -> Any:
    """The block repeated until it fills a shape, the copies laid out by `order` (first mode fastest).

    Post-condition: size(R[i]) == product(extents[i]) for every mode. Raises where the block does not divide the shape.

    >>> tile_to_shape(Layout((8, 64), (64, 1)), (128, 64))
    Layout(((8, 16), (64, 1)), ((64, 512), (1, 0)))
    """
    if not isinstance(extents, tuple):
        extents = (extents,)
    ranks = len(extents)
    if rank(block) > ranks:
        raise LayoutError(f"tile_to_shape of {block} to {extents}: the shape has fewer modes than the block")
    padded = append(block, EMPTY_MODE, ranks)
    copies = []
    for mode, wanted in enumerate(extents):
        count, ragged = divmod(product(wanted), size(padded, mode))
        if ragged:
            raise LayoutError(
                f"tile_to_shape of {block} to {extents}: {size(padded, mode)} does not divide {wanted} in mode {mode}"
            )
        copies.append(count)
    return blocked_product(padded, make_ordered_layout(tuple(copies), order or tuple(range(ranks))))


# -- tiles and partitions -----------------------------------------------------------------------------


def local_tile(layout: Any, tiler: Any, coord: Any, proj: tuple[Any, ...] | None = None) -> ComposedLayout:
    """One tile of a layout, with the offset at which it starts.

    `coord` says which tile: an int, or one entry for each mode, where None keeps all tiles of that mode as
    a further mode. `proj` leaves out the tiler's and coordinate's modes that it pairs with None, so that
    one (M, N, K) tiler serves A, B and C.

    Post-condition: R(i, j, ..., r) == zipped_divide(L, tiler)((i, j, ...), coord with r for None).

    >>> tile = local_tile(Layout((16, 4, 4)), (2, 4, 2), (3, 0, 1))
    >>> print(tile)
    134 + (2,4,2):(1,16,64)
    >>> print(local_tile(Layout((128, 64)), (32, 16, 8), (1, 0, None), proj=(1, None, 1)))
    32 + (32,8,8):(1,128,1024)
    """
    if proj is not None:
        kept = [i for i, p in enumerate(proj) if p is not None]
        tiler = tuple(tiler[i] for i in kept)
        coord = tuple(coord[i] for i in kept)
    if isinstance(layout, ComposedLayout):
        return layout.with_tile(local_tile(layout.layout, tiler, coord))
    divided = zipped_divide(layout, tiler)
    _require_tile(coord, shape(divided, 1), layout, tiler)
    tile_modes = (None,) * rank(divided, 0) if isinstance(shape(divided, 0), tuple) else None
    if isinstance(coord, tuple):
        coord = (*coord, *[None] * (rank(divided, 1) - len(coord)))
    kept_layout, offset = slice_and_offset((tile_modes, coord), divided)
    return ComposedLayout(None, offset, kept_layout)


def _require_tile(coord: Any, extents: Any, layout: Layout, tiler: Any) -> None:
    """Raises unless the coordinate names a tile that exists."""
    if isinstance(coord, tuple) and isinstance(extents, tuple):
        for c, extent in zip(coord, extents, strict=False):
            _require_tile(c, extent, layout, tiler)
    elif is_int(coord) and not 0 <= coord < product(extents):
        raise LayoutError(f"local_tile of {layout} by {tiler}: there is no tile {coord}, there are {product(extents)}")


def local_partition(
    layout: Any, threads: Layout, index: int, mode: Literal["block", "cyclic"] = "cyclic"
) -> ComposedLayout:
    """The elements of a layout that one thread of a thread layout owns, with the offset at which they start.

    `threads` maps thread coordinates to thread numbers. "cyclic" deals elements out one by one, as CuTe
    does; "block" gives each thread neighbouring elements, as the Composable Kernel wrapper does.

    Post-condition: over all threads, every element of L is owned exactly once (where the threads divide L).

    >>> print(local_partition(Layout((8, 8)), Layout((2, 4)), 5))
    17 + (4,2):(2,32)
    >>> print(local_partition(Layout((8, 8)), Layout((2, 4)), 5, mode="block"))
    36 + (4,2):(1,8)
    """
    extents = tuple(size(threads, m) for m in range(rank(threads)))
    if rank(layout) < len(extents):
        raise LayoutError(f"thread layout {threads} has more modes than {layout}")
    if not 0 <= index < threads.cosize():
        raise LayoutError(f"local_partition: there is no thread {index} in {threads}")
    flat = idx2crd(index, threads.shape, threads.stride)
    where = flat if isinstance(flat, tuple) else (flat,)
    where = tuple(_flat_coordinate(w, s) for w, s in zip(where, _modes(threads.shape), strict=True))
    if mode == "block":
        per_thread = tuple(-(-size(layout, m) // count) for m, count in enumerate(extents))
        return local_tile(layout, per_thread, where)
    if mode != "cyclic":
        raise LayoutError(f'local_partition mode {mode!r}: "block" or "cyclic"')
    if isinstance(layout, ComposedLayout):
        return layout.with_tile(local_partition(layout.layout, threads, index, mode))
    divided = zipped_divide(layout, extents)
    kept, offset = slice_and_offset((where, (None,) * rank(divided, 1)), divided)
    return ComposedLayout(None, offset, kept)


def _modes(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _flat_coordinate(crd: Any, extents: Any) -> Any:
    """A nested coordinate as one index, first mode fastest."""
    return Layout(extents)(crd)
