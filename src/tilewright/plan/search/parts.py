"""Rule: a loop split over tasks in parts, whose states a second kernel merges (split-K)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from tilewright.plan.facts import ValueFacts
from tilewright.plan.model import moving
from tilewright.plan.search.axes import DEPTH
from tilewright.plan.search.cost import launch_cycles
from tilewright.plan.search.counting import ResultRows, result_rows, state_bytes, task_end
from tilewright.plan.search.kernel import CROWDED, KernelSchedule, Parts, candidate_of
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.tiles import LOOP
from tilewright.plan.search.tiling import Tiling
from tilewright.plan.search.uniform import loops_around
from tilewright.plan.search.work import Work

PARTS = (2, 3, 4, 6, 8, 12, 16, 32, 64)
"""Parts in which a sum may be split over tasks."""
UNROLLED = 16
"""Parts that one more launch adds up; more take two."""


def in_parts(wholes: list[tuple[PlanCandidate, Work]], ranking: Ranking) -> Iterator[PlanCandidate]:
    """Yield kernels whose loop is split over tasks, where the best whole one leaves cores without a task."""
    best, _ = min(wholes, key=lambda x: x[0].key)
    first = best.kernel
    assert isinstance(first, KernelSchedule)
    limits = first.tiling.machine.limits
    cores = limits.cores or 1
    if first.tiling.tasks >= cores:
        return
    least, cycles = min(work.tasks for _, work in wholes), best.cycles
    for candidate, work in sorted(wholes, key=lambda x: x[0].cycles):
        kernel = candidate.kernel
        if (
            not isinstance(kernel, KernelSchedule)
            or kernel.pipeline.offsets is not None
            or kernel.pipeline.roles.pingpong
        ):
            continue
        for parts in _splits(kernel.tiling):
            crowded = parts.count * least > CROWDED * cores
            if not crowded and (ranking.keeps_all or _least_in_parts(kernel, work, parts) < cycles):
                split = _split(kernel, work, parts)
                cycles = min(cycles, split.cycles)
                yield split


def _least_in_parts(kernel: KernelSchedule, work: Work, parts: Parts) -> float:
    """Cycles that a kernel in parts takes at least: its matrix units and copies, the merge, both launches."""
    t, limits = kernel.tiling, kernel.tiling.machine.limits
    each = sum(p.trips * max(p.mma, p.copied / limits.l2_rate, p.gather) for p in work.phases)
    rounds = ceil(t.tasks * parts.count / (limits.cores or 1))
    merge = moving(t.machine, (parts.count + 1) * state_bytes(t, t.o.class_of[parts.dim])) + limits.following_cycles
    return rounds * each / parts.count + merge + 2 * limits.copy_latency + launch_cycles(t.machine)


def _splits(t: Tiling) -> Iterator[Parts]:
    """Yield the ways to split one loop over tasks: in equal parts, or in whole steps where operands lie plainly."""
    for c, tile in t.pairs():
        merges = all(loop.merge for axis, loop in t.facts.loops.items() if axis in c.dims)
        if tile.level != LOOP or c.is_parallel or not c.streams or not merges or DEPTH not in c.roles:
            continue
        looped = _looped(t)
        for dim in (d for d in c.dims if not looped or d in looped):
            yield from _parts_of(t, dim, dict(tile.box)[dim], tile.size)


def _parts_of(t: Tiling, dim: str, box: int, step: int) -> Iterator[Parts]:
    extent = t.facts.extents[dim]
    reads = [r for r in t.facts.reads if dim in r.place.dims]
    plain = (
        all(r.place.lies_alone(dim) and has_dimension(r, dim) for r in reads)
        and box == min(step, extent)
        and not _is_computed(t)
    )
    plain = plain and dim in _looped(t)
    if plain and len(t.o.classes[t.o.class_of[dim]].dims) == 1:
        for count in PARTS:
            width = ceil(extent / count / step) * step
            if ceil(extent / width) > 1:
                yield Parts(dim, ceil(extent / width), width)
        return
    unit = step if box > 1 else 1
    whole, rest = divmod(extent, unit)
    for count in range(2, whole + 1) if not rest else ():
        if whole % count == 0:
            yield Parts(dim, count, extent // count)


def has_dimension(read: ValueFacts, dim: str) -> bool:
    """Whether the memory that is read has a dimension of this name: parts of it may end in zeros."""
    return read.source is None or dim in map(str, read.source.operands[0].type.dims)


def _looped(t: Tiling) -> set[str]:
    """The dimensions that loops of the program go over around its product; past their ends zeros are read."""
    return {str(loop.attrs["axis"]) for loops in loops_around(t.facts.program).values() for loop in loops}


def _is_computed(t: Tiling) -> bool:
    """Whether an operand is computed: past the end it may be anything."""
    return any(not x.is_read for p in t.facts.products for x in (p.a, p.b))


def _split(kernel: KernelSchedule, work: Work, parts: Parts) -> PlanCandidate:
    """A kernel whose loop is split over tasks; a second one merges their states."""
    split, merge = split_work(kernel, work, parts)
    return candidate_of(replace(kernel, parts=parts), split, merge)


def split_work(kernel: KernelSchedule, work: Work, parts: Parts) -> tuple[Work, float]:
    """(the work of a kernel whose loop is split over tasks, the cycles of the one that merges their states)."""
    t, machine, mmas = kernel.tiling, kernel.tiling.machine, kernel.mmas
    number = t.o.class_of[parts.dim]
    tile = t.tiles[number]
    inner = dict(tile.box)[parts.dim]
    share = ceil(parts.width / inner) / ceil(t.facts.extents[parts.dim] / inner)
    phases = tuple(replace(p, trips=p.trips * share) if p.trips >= tile.count else p for p in work.phases)
    states = state_bytes(t, number)
    last = mmas[-1]
    whole = result_rows(t, last)
    word = machine.register_file.word_bytes
    result = ResultRows(whole.rows, whole.columns, word, whole.pitch // whole.bytes * word)
    end = task_end(t, last, result, 0.0, work.end.blocks, False)
    written = sum(w.place.elements * w.place.bytes for w in t.facts.writes)
    tasks = t.tasks * parts.count
    split = replace(
        work,
        tasks=tasks,
        phases=phases,
        end=end,
        lengths=((1.0, 0.0, tasks),),
        l2_read=work.l2_read * share,
        moved=work.moved - written + parts.count * states,
        edges=work.edges,
    )
    launches = 1 if parts.count <= UNROLLED else 2
    merge = moving(machine, (parts.count + 1) * states) + launches * machine.limits.following_cycles
    return split, merge
