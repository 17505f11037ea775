"""Rule: split a loop without MMAs over tasks; a second kernel merges the parts' carried values, in fixed order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, inf, prod

from tilewright.algebra.expr import Expr, symbol
from tilewright.ir.core import Op, TileType
from tilewright.plan.facts.loops import merging_loop
from tilewright.plan.facts.masking import neutral_values
from tilewright.plan.rows import task_widths_and_waves, tasks_of, widths_across_rows
from tilewright.plan.search.kernel import CROWDED, Parts
from tilewright.plan.search.partial_reductions import candidate_in_parts
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule

TILES = (1, 2, 4, 8, 16, 32, 64)
"""Tile sizes (elements per iteration) that a split tries, besides the author's."""
WHAT = "a loop in parts"


def loops_in_parts(whole: PlanCandidate, ranking: Ranking) -> Iterator[PlanCandidate]:
    """Yield at most one candidate: the kernel of `whole` with its loop split over more workgroups.

    Each workgroup does a part of the iterations, and a second kernel merges the partial results. Several numbers of
    parts and tile sizes are tried. Of the splits with values that fit the registers of lanes, the one with the best
    sort key is yielded; if none fits, the first split. The kernel of `whole` must be a UniformKernelSchedule (without a
    pipeline).

    Nothing is yielded if the program has no loop that can be split (see `_loop_to_split`), or if `whole` has workgroups
    for more than half of the cores. If the loop is too short, `ranking` (the search's result) gets that as the reason.
    """
    kernel = whole.kernel
    assert isinstance(kernel, UniformKernelSchedule)
    facts, cores = kernel.facts, kernel.machine.limits.cores or 1
    loop = _loop_to_split(kernel)
    if loop is None or CROWDED * tasks_of(kernel.widths, facts.number_of) > cores:
        return
    axis = str(loop.attrs["axis"])
    tiles: tuple[int, ...] = (*TILES, facts.stated_loops.get(axis, 1))
    if kernel.machine.lanes is None:
        tiles = tuple(n for d, n in kernel.loops.items() if str(d) == axis)
    splits = [_split_kernel(kernel, parts, tile) for tile in tiles for parts in _parts(kernel, loop, tile)]
    if splits:
        room = inf if kernel.machine.lanes is None else kernel.machine.row_tasks.values
        fitting = [split for split in splits if _values_of_lane(split) <= room]
        candidates = [
            candidate_in_parts(split, split.parts) for split in fitting or splits[:1] if split.parts is not None
        ]
        yield min(candidates, key=lambda candidate: candidate.key)
    else:
        ranking.reject(WHAT, f"{axis}, {facts.extents[axis]}, has too few elements for {cores} cores")


def _loop_to_split(kernel: UniformKernelSchedule) -> Op | None:
    """Return the program's only loop if a second kernel could merge partial results of its parts; else None.

    None also if the program has several loops, MMAs or scans, if the author states tasks, or if the program is already
    half of a split program.
    """
    facts = kernel.facts
    if facts.products or facts.part or facts.stated_tasks or facts.scanned:
        return None
    loop = merging_loop(facts.program)
    return None if isinstance(loop, str) or str(loop.attrs["axis"]) not in facts.extents else loop


def _parts(kernel: UniformKernelSchedule, loop: Op, tile: int) -> Iterator[Parts]:
    """Yield a Parts (dimension, count, width) for each number of parts into which `loop` may be split.

    Each workgroup does one part, of whole iterations of `tile` elements. On a GPU, up to three counts are tried: they
    give each core about half a workgroup, one, or CROWDED (2). On a CPU, one count is tried. A count that does not
    divide the loop is left out if elements past the loop's end cannot be made neutral (such as 0 for a sum).
    """
    facts, cores, axis = kernel.facts, kernel.machine.limits.cores or 1, str(loop.attrs["axis"])
    extent, size = facts.extents[axis], facts.number_of
    is_cpu = kernel.machine.lanes is None  # each core has a part of its own
    across = (
        None if is_cpu else widths_across_rows(facts.program, kernel.widths, size, kernel.machine, tasks_per_core=inf)
    )
    fewest_tasks = tasks_of(across or kernel.widths, size)
    is_ragged = neutral_values(loop) is not None
    counts = set[int]()
    for tasks_per_core in (1,) if is_cpu else (0.5, 1, CROWDED):
        width = ceil(extent / max(2, int(tasks_per_core * cores / fewest_tasks)) / tile) * tile
        count = ceil(extent / width)
        if count > 1 and count not in counts and (is_ragged or count * width == extent):
            counts.add(count)
            yield Parts(axis, count, width)


def _split_kernel(kernel: UniformKernelSchedule, parts: Parts, tile: int) -> UniformKernelSchedule:
    """Return `kernel` with its loop split into `parts`, in iterations of `tile` elements.

    On a GPU, task widths and waves are chosen anew; on a CPU, task widths stay.
    """
    facts, numbers = kernel.facts, kernel.facts.number_of
    split, loops = (
        symbol(f"{parts.dim}_split", 1),
        {d: tile if str(d) == parts.dim else n for d, n in kernel.loops.items()},
    )

    def size(d: Expr) -> int:
        """Return the extent of the dimension `d` in one iteration; for the new dimension `split`, the part count."""
        return parts.count if d is split else loops.get(d) or numbers(d)

    extents, widths, waves = {split: 1, **{d: numbers(d) for d in facts.cut}}, kernel.widths, 1
    if kernel.machine.lanes is not None:
        widths, waves = task_widths_and_waves(facts.program, extents, size, kernel.machine)
    task_widths = {d: n for d, n in widths.items() if d is not split}
    return replace(kernel, widths=task_widths, waves=waves, loops=loops, parts=parts)


def _values_of_lane(kernel: UniformKernelSchedule) -> float:
    """Return the number of elements per lane of the largest value that one iteration reads or computes."""
    lanes = kernel.waves * (kernel.machine.lanes or 1)
    tiles = [v.type.dims for op in kernel.facts.program.walk() for v in op.results if isinstance(v.type, TileType)]
    return max((prod(map(kernel.width, dims)) for dims in tiles), default=1) / lanes
