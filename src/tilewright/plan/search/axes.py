"""Classes of dimensions: dimensions with the same role (M, N, K, batch) in every MMA are tiled as one axis."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.plan.facts import Facts

ROWS, COLUMNS, DEPTH, BATCH, NONE = "rckb-"
"""The role of a dimension in an MMA: on the atom's rows, on its columns, reduced, batch, none."""


@dataclass(frozen=True)
class DimClass:
    """A class of dimensions, outermost first, that have the same role in every MMA; `roles` has the role in each MMA.

    A role is one of "r" (rows of the atom), "c" (columns), "k" (K), "b" (batch) and "-" (not in the MMA). `extent` is
    the product of the extents of `dims`. The grid may split the class if `is_parallel` is True. If `streams` is True,
    one pass over the class suffices, so that it may be processed tile by tile.
    """

    dims: tuple[str, ...]
    roles: tuple[str, ...]
    extent: int
    is_parallel: bool
    streams: bool

    @property
    def is_batch(self) -> bool:
        """True if no MMA has these dimensions as M, N or K: in each MMA they are batch dimensions, or do not occur."""
        return set(self.roles) <= {BATCH, NONE}


def classes_of(facts: Facts, flips: tuple[bool, ...]) -> tuple[DimClass, ...]:
    """Group the program's dimensions into classes, each tiled as one axis; return a tuple of DimClass.

    Two dimensions are in one class if they agree in three respects:

    - their role (row, column, K, batch or none) in every MMA;
    - whether the grid may split them;
    - whether one pass over them, tile by tile, suffices. It does for x * 2, but not for x / sum(x), nor for the
      dimension of a `scan` or `topk`.

    `flips` has an entry for each MMA of `facts`: True if N lies on the atom's rows, which swaps the roles row and
    column. The dimensions of a class, and the classes by their first dimension, are in this order: dimensions that the
    grid may split; dimensions of the first write in memory order; those of the reads; all others.
    """
    order = [dim for n in (*facts.writes[:1], *facts.reads) for form in n.place.coords for dim, _ in form]
    sides = [(*p.side(flip)[:2], p.k, p.batch) for p, flip in zip(facts.products, flips, strict=True)]
    members: dict[tuple[tuple[str, ...], bool, bool], list[str]] = {}
    for dim in dict.fromkeys([*facts.parallel, *order, *facts.extents]):
        roles = tuple(next((r for r, dims in zip("rckb", side, strict=True) if dim in dims), NONE) for side in sides)
        streams = facts.passes[dim] == 1 and dim not in facts.scanned
        members.setdefault((roles, dim in facts.parallel, streams), []).append(dim)
    return tuple(
        DimClass(tuple(dims), roles, facts.size(dims), is_parallel, streams)
        for (roles, is_parallel, streams), dims in members.items()
    )
