"""Rounds of K loops that are left out, because an operand lies outside its tensor as a whole: how many are done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tilewright.plan.facts.access import AccessFacts
from tilewright.plan.search.tiling import Tiling
from tilewright.plan.search.work import Phase


def kept_rounds(t: Tiling) -> tuple[float, float]:
    """Return (mean over all tasks, largest of a task) of the share of K iterations that are done; (1, 1): all are.

    An iteration is left out if a coordinate of an operand, the same for the whole tile, is out of bounds
    (`passes/empty_rounds`). `t` (a Tiling) has the tile sizes. Several MMAs share iterations: then all are done.
    """
    mean = longest = 1.0
    if len(t.facts.products) != 1:
        return mean, longest
    (p,) = t.facts.products
    for operand in (p.a, p.b):
        place = t.facts.nodes[operand.reads[0]].place if operand.is_read else None
        if place is None or not (place.can_leave and place.linear):
            continue
        for inside in _uniform(t, place, p.k):
            each = inside.mean(axis=-1)
            mean, longest = mean * float(each.mean()), longest * float(each.max())
    return mean, longest


def busiest_share(t: Tiling) -> float:
    """Return the share of its K iterations that the core with the most of them does.

    Tasks are dealt out in turn: a core with few tasks may have more of the longest ones than others.
    """
    mean, longest = kept_rounds(t)
    rounds = -(-t.tasks // (t.machine.limits.cores or 1))
    return mean + (longest - mean) / (1 + rounds)


def _uniform(t: Tiling, place: AccessFacts, k: frozenset[str]) -> Iterator[np.ndarray]:
    """Yield for each coordinate that a tile has one value of: where it is in bounds, (tasks, iterations)."""
    offsets = place.offsets or (0,) * len(place.coords)
    digits = {digit for of_dim in t.facts.digits.values() for digit in of_dim}  # a tile of a flat index may have two
    for coord, offset, extent in zip(place.coords, offsets, place.shape, strict=True):
        steps = dict(coord)
        is_uniform = all(t.size.get(d) == 1 and d not in digits for d in steps)
        if not k & steps.keys() or not isinstance(offset, int) or not is_uniform:
            continue
        dims = sorted(steps, key=lambda d: d in k)
        grid = np.ogrid[tuple(slice(0, t.facts.extents[d]) for d in dims)]
        value = np.asarray(sum((steps[d] * axis for d, axis in zip(dims, grid, strict=True)), start=offset))
        rounds = int(np.prod([t.facts.extents[d] for d in dims if d in k]))
        yield ((value >= 0) & (value < extent)).reshape(-1, rounds)


def less_work(p: Phase, share: float) -> Phase:
    """Return the mean work of an iteration, if only this share of all iterations is done; their number stays."""
    names = ("mma", "lanes", "masked", "shared", "copied", "l2", "gather", "serial")
    return replace(p, **{name: getattr(p, name) * share for name in names})
