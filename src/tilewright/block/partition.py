"""Who owns which element: a tile dealt out to threads, as CK's make_local_partition and CuTe's local_partition do."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.algebra import Layout, composition, make_layout, rank, right_inverse, size, zipped_divide
from tilewright.errors import BadPartition
from tilewright.ir.location import author_location


def partition(extents: Sequence[int], threads: Layout, mode: str = "block", vector: int | None = None) -> Layout:
    """(thread, value) -> element of a tile of these extents, elements numbered with the first dimension fastest.

    `threads` sends coordinates among the threads to a thread's number, one mode for each dimension of the tile. "block"
    gives each thread neighbouring elements, as CK does; "cyclic" deals them out one by one, as CuTe does. A thread's
    values run along the first dimension first, or along the dimension `vector`. A tile that the threads do not divide
    is refused: elements would have two owners, or none.

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
    whole = tuple(int(e) for e in extents)
    counts = tuple(size(threads, m) for m in range(rank(threads)))
    _require(whole, threads, counts, mode, vector)
    per = tuple(extent // count for extent, count in zip(whole, counts, strict=True))
    inner, outer = zipped_divide(Layout(whole), per if mode == "block" else counts)
    owned, owners = (inner, outer) if mode == "block" else (outer, inner)
    if vector is not None:
        owned = make_layout([owned[vector], *(owned[d] for d in range(len(whole)) if d != vector)])
    found: Layout = make_layout(composition(owners, right_inverse(threads)), owned)
    return found


def _require(whole: tuple[int, ...], threads: Layout, counts: tuple[int, ...], mode: str, vector: int | None) -> None:
    """Raises unless each element has exactly one owner."""
    if mode not in ("block", "cyclic"):
        raise BadPartition(f'partition mode {mode!r}: "block" or "cyclic"', author_location())
    if len(counts) != len(whole):
        raise BadPartition(
            f"partition: {threads} has {len(counts)} modes; the tile {whole} has {len(whole)}", author_location()
        )
    for dim, (extent, count) in enumerate(zip(whole, counts, strict=True)):
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
    if vector is not None and not 0 <= vector < len(whole):
        raise BadPartition(
            f"partition: vector={vector}, but the tile {whole} has {len(whole)} dimensions, from 0", author_location()
        )
