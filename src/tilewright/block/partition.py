"""Partition of a tile over threads, as CK's make_local_partition and CuTe's local_partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.algebra import Layout, composition, make_layout, rank, right_inverse, size, zipped_divide
from tilewright.algebra.expr import Const
from tilewright.algebra.inttuple import is_int
from tilewright.errors import BadPartition
from tilewright.ir.location import author_location
from tilewright.limits import written


def partition(extents: Sequence[int], threads: Layout, mode: str = "block", vector: int | None = None) -> Layout:
    """Return the layout (thread, value) -> element number that distributes a tile of shape `extents` over threads.
    Elements are numbered with the first dimension fastest.

    `threads` maps thread coordinates to the thread's number, with one mode for each dimension of the tile. `mode`
    "block" gives each thread contiguous elements, as CK does; "cyclic" distributes elements one by one, as CuTe does.
    The values of a thread run along the first dimension first, or along dimension `vector`. Raise a BadPartition if an
    element would have no thread or several threads, for an unknown `mode`, for a `vector` that is no dimension, for
    extents that are no known integers, and if `threads` is no layout.

    >>> print(partition((8, 8), Layout((2, 4), (4, 1))))
    ((4,2),(4,2)):((16,4),(1,8))
    >>> print(partition((8, 8), Layout((2, 4), (4, 1)), "cyclic", vector=1))
    ((4,2),(2,4)):((8,1),(32,2))
    >>> partition((6, 8), Layout((4, 4)))
    Traceback (most recent call last):
        ...
    tilewright.errors.BadPartition: partition: dimension 0 has 6 elements, which 4 threads do not share evenly; pad it
    to 8, or choose other threads
    ...
    """
    thread_layout: Any = threads
    if not isinstance(thread_layout, Layout):
        raise BadPartition(f"partition: threads={written(threads, 80)} is no layout", author_location())
    if not isinstance(extents, Sequence) or not all(is_int(e) or isinstance(e, Const) for e in extents):
        raise BadPartition(f"partition: extents={written(extents, 80)} are no known integers", author_location())
    shape = tuple(int(e) for e in extents)
    counts = tuple(size(threads, m) for m in range(rank(threads)))
    _require_one_owner(shape, threads, counts, mode, vector)
    per = tuple(extent // count for extent, count in zip(shape, counts, strict=True))
    inner, outer = zipped_divide(Layout(shape), per if mode == "block" else counts)
    owned, owners = (inner, outer) if mode == "block" else (outer, inner)
    if vector is not None:
        owned = make_layout([owned[vector], *(owned[d] for d in range(len(shape)) if d != vector)])
    layout: Layout = make_layout(composition(owners, right_inverse(threads)), owned)
    return layout


def _require_one_owner(
    shape: tuple[int, ...], threads: Layout, counts: tuple[int, ...], mode: str, vector: int | None
) -> None:
    """Raise a BadPartition unless each element of a tile of shape `shape` goes to exactly one thread. Raise one too for
    an unknown `mode`, and for a `vector` that is no dimension.

    `counts` is the number of threads along each dimension; the other arguments are those of `partition`.
    """
    if mode not in ("block", "cyclic"):
        raise BadPartition(f'partition mode {mode!r}: "block" or "cyclic"', author_location())
    if len(counts) != len(shape):
        raise BadPartition(
            f"partition: {threads} has {len(counts)} modes; the tile {shape} has {len(shape)}", author_location()
        )
    for dim, (extent, count) in enumerate(zip(shape, counts, strict=True)):
        if extent % count:
            raise BadPartition(
                f"partition: dimension {dim} has {extent} elements, which {count} threads do not share evenly; pad it "
                f"to {-(-extent // count) * count}, or choose other threads",
                author_location(),
            )
    if size(right_inverse(threads)) != size(threads):
        raise BadPartition(
            f"partition: {threads} does not number its {size(threads)} threads from 0 on, each once", author_location()
        )
    if vector is not None and not 0 <= vector < len(shape):
        raise BadPartition(
            f"partition: vector={vector}, but the tile {shape} has {len(shape)} dimensions, from 0", author_location()
        )
