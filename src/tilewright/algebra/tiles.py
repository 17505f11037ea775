"""One tile of a layout, and the elements that one thread of many owns."""

from __future__ import annotations

from typing import Any, Literal

from tilewright.algebra.divide import zipped_divide
from tilewright.algebra.inttuple import ceil_quotient, divides, idx2crd, is_int, product
from tilewright.algebra.layout import Layout, rank, shape, shape_text, size
from tilewright.algebra.modes import as_layout, slice_and_offset
from tilewright.algebra.swizzle import ComposedLayout
from tilewright.errors import LayoutError


def local_tile(layout: Any, tiler: Any, coord: Any, proj: tuple[Any, ...] | None = None) -> ComposedLayout:
    """Return one tile of a layout, as a ComposedLayout with the offset at which the tile starts.

    `tiler` is the shape of a tile, or tilers as for `zipped_divide`. `coord` is the number of the tile, or a tuple with
    one entry for each mode; an entry None keeps all tiles of that mode as a further mode. Entries of tiler and
    coordinate are dropped if `proj` has None at their position, so that one (M, N, K) tiler serves A, B and C. Raise
    LayoutError if there is no such tile, or if `proj`, `tiler` and `coord` differ in length.

    Post-condition, for the result R: R(i, j, ..., r) == zipped_divide(layout, tiler)((i, j, ...), coord with r for
    None).

    >>> tile = local_tile(Layout((16, 4, 4)), (2, 4, 2), (3, 0, 1))
    >>> print(tile)
    134 + (2,4,2):(1,16,64)
    >>> print(local_tile(Layout((128, 64)), (32, 16, 8), (1, 0, None), proj=(1, None, 1)))
    32 + (32,8,8):(1,128,1024)
    """
    layout = as_layout(layout)
    if proj is not None:
        for argument in (tiler, coord):
            if not isinstance(argument, tuple) or len(argument) != len(proj):
                raise LayoutError(f"local_tile of {layout}: proj {proj} needs a tiler and a coordinate of its rank")
        kept_modes = [i for i, p in enumerate(proj) if p is not None]
        tiler = tuple(tiler[i] for i in kept_modes)
        coord = tuple(coord[i] for i in kept_modes)
    if isinstance(layout, ComposedLayout):
        return layout.with_tile(local_tile(layout.layout, tiler, coord))
    divided = zipped_divide(layout, tiler)
    _require_tile_exists(coord, shape(divided, 1), layout, tiler)
    tile_modes = (None,) * rank(divided, 0) if isinstance(shape(divided, 0), tuple) else None
    if isinstance(coord, tuple):
        coord = (*coord, *[None] * (rank(divided, 1) - len(coord)))
    tile, offset = slice_and_offset((tile_modes, coord), divided)
    return ComposedLayout(None, offset, tile)


def _require_tile_exists(coord: Any, tile_counts: Any, layout: Layout, tiler: Any) -> None:
    """Raise LayoutError unless `coord` is the coordinate of a tile; `tile_counts` has the number of tiles along each
    mode.

    An entry None of `coord` is not checked. `layout` and `tiler` are named in the message.
    """
    if isinstance(coord, tuple) and isinstance(tile_counts, tuple):
        for c, extent in zip(coord, tile_counts, strict=False):
            _require_tile_exists(c, extent, layout, tiler)
    elif is_int(coord) and is_int(product(tile_counts)) and not 0 <= coord < product(tile_counts):
        raise LayoutError(
            f"local_tile of {layout} by {tiler}: there is no tile {coord}, there are {product(tile_counts)}"
        )


def local_partition(
    layout: Any, threads: Layout, index: int, mode: Literal["block", "cyclic"] = "cyclic"
) -> ComposedLayout:
    """Return the elements of a layout that thread number `index` holds, as a ComposedLayout with the offset of the
    first one.

    `threads` maps thread coordinates to thread numbers. With `mode` "cyclic", neighbouring elements belong to different
    threads, as in CuTe; with "block", each thread has neighbouring elements. `threads` has at most as many modes as the
    layout; each thread holds all elements along further modes.

    Post-condition: over all threads, every element of the layout is held exactly once. Raise LayoutError if the number
    of threads along a mode does not divide the mode; for a cyclic partition of a layout of coordinates this is allowed,
    since coordinates past the end can be recognised. Raise LayoutError also if there is no such thread or mode.

    >>> print(local_partition(Layout((8, 8)), Layout((2, 4)), 5))
    17 + (4,2):(2,32)
    >>> print(local_partition(Layout((8, 8)), Layout((2, 4)), 5, mode="block"))
    36 + (4,2):(1,8)
    """
    layout = as_layout(layout)
    if not isinstance(threads, Layout) or threads.has_coordinates:
        raise LayoutError(f"local_partition: threads are a layout of thread numbers, not {threads!r}")
    extents = tuple(size(threads, m) for m in range(rank(threads)))
    if rank(layout) < len(extents):
        raise LayoutError(f"thread layout {threads} has more modes than {layout}")
    for m, count in enumerate(extents):
        if not divides(count, size(layout, m)) and not (layout.has_coordinates and mode == "cyclic"):
            padded = tuple(ceil_quotient(size(layout, i), n) * n for i, n in enumerate(extents))
            raise LayoutError(
                f"local_partition of {layout} by {threads}: {count} threads do not divide the {size(layout, m)} "
                f"elements of mode {m}; pad it to {shape_text(padded)}, or deal out its "
                'coordinates (make_identity_layout), mode="cyclic"'
            )
    if not 0 <= index < threads.cosize():
        raise LayoutError(f"local_partition: there is no thread {index} in {threads}")
    thread_coordinate = idx2crd(index, threads.shape, threads.stride)
    tile_index = thread_coordinate if isinstance(thread_coordinate, tuple) else (thread_coordinate,)
    tile_index = tuple(_flat_coordinate(w, s) for w, s in zip(tile_index, _as_modes(threads.shape), strict=True))
    if mode == "block":
        per_thread = tuple(ceil_quotient(size(layout, m), count) for m, count in enumerate(extents))
        return local_tile(layout, per_thread, tile_index)
    if mode != "cyclic":
        raise LayoutError(f'local_partition mode {mode!r}: "block" or "cyclic"')
    if isinstance(layout, ComposedLayout):
        return layout.with_tile(local_partition(layout.layout, threads, index, mode))
    divided = zipped_divide(layout, extents)
    elements, offset = slice_and_offset((tile_index, (None,) * rank(divided, 1)), divided)
    return ComposedLayout(None, offset, elements)


def _as_modes(x: Any) -> tuple[Any, ...]:
    """Return a shape as a tuple of its modes; an int has one."""
    return x if isinstance(x, tuple) else (x,)


def _flat_coordinate(crd: Any, extents: Any) -> Any:
    """Return the coordinate `crd` in the shape `extents` as one linear index, first mode fastest."""
    return Layout(extents)(crd)
