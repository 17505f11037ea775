"""The share of K iterations that are not skipped; one is skipped if the whole tile of an operand is out of bounds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from tilewright.plan.facts import AccessFacts, Dims, Facts
from tilewright.plan.search.tiling import Tiling
from tilewright.plan.search.work import Phase


@lru_cache  # bounds of a tiling and all its pipelines ask for it, one after the other
def kept_rounds(t: Tiling) -> tuple[float, float]:
    """Return (mean fraction of K iterations that a task does not skip, the largest such fraction of any task).

    An iteration is skipped if an operand's whole tile is out of bounds along some memory coordinate, as at the padded
    edge of an image. Only operands that all MMAs share count. Both fractions are 1 if no iteration is skipped. `t` is
    the Tiling (tile sizes); a task is one workgroup's tile. The result is cached.
    """
    mean = longest = 1.0
    for read, k in _shared_operands(t.facts):
        place = t.facts.nodes[read].place
        if not (place.can_leave and place.linear):
            continue
        for inside in _in_bounds_tables(t, place, k):
            in_bounds_share = inside.mean(axis=-1)
            mean, longest = mean * float(in_bounds_share.mean()), longest * float(in_bounds_share.max())
    return mean, longest


def _shared_operands(facts: Facts) -> Iterator[tuple[int, Dims]]:
    """Yield (node number, K) of each read that is an operand of every MMA of `facts`, if all MMAs have the same K.

    The MMAs then share one K loop, and an iteration whose tile of the read is all zeros adds nothing to any of them.
    """
    sums = {p.k for p in facts.products}
    operands = [{x.reads[0] for x in (p.a, p.b) if x.is_read} for p in facts.products]
    for read in facts.reads:
        for k in sums:
            if sums == {k} and all(read.id in reads for reads in operands):
                yield read.id, k


def busiest_share(t: Tiling) -> float:
    """Estimate the fraction (0 to 1) of K iterations that are not skipped, on the core that skips the fewest.

    An iteration is skipped if an operand's whole tile is out of bounds. The fraction lies between that of an average
    task (workgroup's tile) and that of the longest task; the fewer tasks per core, the nearer to the longest. `t` is
    the Tiling (tile sizes).
    """
    mean, longest = kept_rounds(t)
    tasks_per_core = -(-t.tasks // (t.machine.limits.cores or 1))
    return mean + (longest - mean) / (1 + tasks_per_core)


def _in_bounds_tables(t: Tiling, place: AccessFacts, k: frozenset[str]) -> Iterator[np.ndarray]:
    """Yield tables that say in which K iterations a whole tile of a read is in bounds.

    There is one boolean array for each memory coordinate of the access `place` that depends on K (the dimensions `k`)
    and is the same for all elements of a tile. The shape of an array is (positions, K iterations): positions are the
    indices along the other dimensions of the coordinate. An entry is True if the coordinate is in bounds. `t` is the
    Tiling (tile sizes).
    """
    offsets = place.offsets or (0,) * len(place.coords)
    # a tile of a flat index may span two values of a digit
    digits = {digit for of_dim in t.facts.digits.values() for digit in of_dim}
    for coord, offset, extent in zip(place.coords, offsets, place.shape, strict=True):
        steps = dict(coord)
        is_uniform = all(t.size.get(d) == 1 and d not in digits for d in steps)
        if not k & steps.keys() or not isinstance(offset, int) or not is_uniform:
            continue
        dims = sorted(steps, key=lambda d: d in k)
        grid = np.ogrid[tuple(slice(0, t.facts.extents[d]) for d in dims)]
        value = np.asarray(sum((steps[d] * axis for d, axis in zip(dims, grid, strict=True)), start=offset))
        iterations = int(np.prod([t.facts.extents[d] for d in dims if d in k]))
        yield ((value >= 0) & (value < extent)).reshape(-1, iterations)


def less_work(p: Phase, share: float) -> Phase:
    """Return a copy of the loop nest `p` with the work of an average iteration if some iterations are skipped.

    Cycles and bytes per iteration are multiplied by `share`, the fraction of the iterations that are not skipped. The
    number of iterations, `p.trips`, stays.
    """
    names = ("mma", "lanes", "masked", "shared", "copied", "l2", "rewritten", "gather", "serial")
    return p._replace(**{name: getattr(p, name) * share for name in names})
