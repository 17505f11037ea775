"""One tile of a layout, and what one thread of many owns."""

from __future__ import annotations

from typing import Any, Literal

from tilewright.algebra.divide import zipped_divide
from tilewright.algebra.inttuple import ceil_quotient, divides, idx2crd, is_int, product
from tilewright.algebra.layout import Layout, rank, shape, shape_text, size
from tilewright.algebra.modes import as_layout, slice_and_offset
from tilewright.algebra.swizzle import ComposedLayout
from tilewright.errors import LayoutError


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
    layout = as_layout(layout)
    if proj is not None:
        for part in (tiler, coord):
            if not isinstance(part, tuple) or len(part) != len(proj):
                raise LayoutError(f"local_tile of {layout}: proj {proj} needs a tiler and a coordinate of its rank")
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
    elif is_int(coord) and is_int(product(extents)) and not 0 <= coord < product(extents):
        raise LayoutError(f"local_tile of {layout} by {tiler}: there is no tile {coord}, there are {product(extents)}")


def local_partition(
    layout: Any, threads: Layout, index: int, mode: Literal["block", "cyclic"] = "cyclic"
) -> ComposedLayout:
    """The elements of a layout that one thread of a thread layout owns, with the offset at which they start.

    `threads` maps thread coordinates to thread numbers. "cyclic" deals elements out one by one, as CuTe
    does; "block" gives each thread neighbouring elements, as the Composable Kernel wrapper does.

    Post-condition: over all threads, every element of L is owned exactly once. Raises where the threads do not
    divide L: the last share would run over offsets that are others'. Only a cyclic partition of coordinates goes on,
    since those past the end can be told.

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
            whole = tuple(ceil_quotient(size(layout, i), n) * n for i, n in enumerate(extents))
            raise LayoutError(
                f"local_partition of {layout} by {threads}: {count} threads do not divide the {size(layout, m)} "
                f"elements of mode {m}; pad it to {shape_text(whole)}, or deal out its "
                'coordinates (make_identity_layout), mode="cyclic"'
            )
    if not 0 <= index < threads.cosize():
        raise LayoutError(f"local_partition: there is no thread {index} in {threads}")
    flat = idx2crd(index, threads.shape, threads.stride)
    where = flat if isinstance(flat, tuple) else (flat,)
    where = tuple(_flat_coordinate(w, s) for w, s in zip(where, _modes(threads.shape), strict=True))
    if mode == "block":
        per_thread = tuple(ceil_quotient(size(layout, m), count) for m, count in enumerate(extents))
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
