"""Classes of dimensions: dimensions with the same role in every MMA form a
class, and a class is an axis of the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.plan.facts import Facts

ROWS, COLUMNS, DEPTH, BATCH, NONE = "rckb-"
"""The role of a dimension in an MMA: on the atom's rows, on its columns, reduced, batch, none."""


@dataclass(frozen=True)
class DimClass:
    """A class of dimensions: those with the same role in all MMAs, outermost first; `roles` has the role in each MMA.

    The grid may split a class that `is_parallel`. A class that `streams` may be processed tile by tile in one pass.
    """

    dims: tuple[str, ...]
    roles: tuple[str, ...]
    extent: int
    is_parallel: bool
    streams: bool

    @property
    def is_batch(self) -> bool:
        """True if these dimensions are M, N or K of no MMA: every MMA has them as batch dimensions or not at all."""
        return set(self.roles) <= {BATCH, NONE}


def classes_of(facts: Facts, flips: tuple[bool, ...]) -> tuple[DimClass, ...]:
    """Group the program's dimensions into classes, returned as a tuple of DimClass; each class is tiled as one axis.

    Two dimensions are in one class if they agree in three things: their role (row, column, K, batch or none) in every
    MMA; whether the grid may split them; and whether a loop may process them tile by tile in one pass (not if they are
    scanned). Classes, and the dimensions in a class, are in this order: dimensions that the grid may split, then the
    memory order of the first write, then of the reads, then all others. `flips` has one entry per MMA: True if N lies
    on the atom's rows, which swaps the roles of rows and columns.
    """
    order = [dim for n in (*facts.writes[:1], *facts.reads) for form in n.place.coords for dim, _ in form]
    sides = [(*p.side(flip)[:2], p.k, p.batch) for p, flip in zip(facts.products, flips, strict=True)]
    members: dict[tuple[tuple[str, ...], bool, bool], list[str]] = {}
    for dim in dict.fromkeys([*facts.parallel, *order, *facts.extents]):
        parts = tuple(next((r for r, dims in zip("rckb", side, strict=True) if dim in dims), NONE) for side in sides)
        streams = facts.passes[dim] == 1 and dim not in facts.scanned
        members.setdefault((parts, dim in facts.parallel, streams), []).append(dim)
    return tuple(
        DimClass(tuple(dims), parts, facts.size(dims), is_parallel, streams)
        for (parts, is_parallel, streams), dims in members.items()
    )
