"""Axes: dimensions with the same part in every product form a class, and a class is an axis of the schedule."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.plan.facts import Facts

ROWS, COLUMNS, DEPTH, BATCH, NONE = "rckb-"
"""The part of a dimension in a product: on the unit's rows, on its columns, summed, kept by both operands, none."""


@dataclass(frozen=True)
class DimClass:
    """Dimensions with the same part in all products, outermost first; `roles` has the part in each product.

    Tasks may cut a class that `is_parallel`; one that `streams` may be gone over tile by tile, in one pass.
    """

    dims: tuple[str, ...]
    roles: tuple[str, ...]
    extent: int
    is_parallel: bool
    streams: bool

    @property
    def is_batch(self) -> bool:
        """Whether every product keeps it, or lacks it."""
        return set(self.roles) <= {BATCH, NONE}


def classes_of(facts: Facts, flips: tuple[bool, ...]) -> tuple[DimClass, ...]:
    """The classes of a program whose products are oriented so, in the order in which results lie."""
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
