"""Kernels whose products run on atoms: every candidate of one program as one kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod

from tilewright.machine import Machine
from tilewright.plan.facts import Facts
from tilewright.plan.search.cost import KernelTime, Overlap, kernel_time, launch_cycles, moving, row_cycles
from tilewright.plan.search.counting import ResultRows, count_work, result_rows, state_bytes, task_end
from tilewright.plan.search.launch import order_of, raster_of
from tilewright.plan.search.liveness import WORD, liveness
from tilewright.plan.search.lowered import why_not_lowered, why_not_oriented, why_not_split
from tilewright.plan.search.orientation import orientations
from tilewright.plan.search.pipeline import AHEAD, ORDERED, KernelPipeline, pipelines
from tilewright.plan.search.placement import OperandPlacement, halo_taps, place_operands
from tilewright.plan.search.ranking import ENOUGH_STAGES, Key, PlanCandidate, Ranking
from tilewright.plan.search.tiles import GRID, LOOP, tilings
from tilewright.plan.search.tiling import Tiling
from tilewright.plan.search.unit import MmaTile, mma_tile
from tilewright.plan.search.work import Work

PARTS = (2, 3, 4, 6, 8, 12, 16, 32, 64)
"""Parts in which a sum may be split over tasks."""
CROWDED = 2
"""Tasks for each core, at most, of a sum that is split."""
UNROLLED = 16
"""Parts that one more launch adds up; more take two."""


@dataclass(frozen=True)
class Parts:
    """A loop that is split over tasks: its dimension, the parts, and the width of each."""

    dim: str
    count: int
    width: int


@dataclass(frozen=True, eq=False)
class KernelSchedule:
    """One kernel: tiles, atoms, pipeline, launch. A kernel of lanes has no atoms, and says what lanes do instead."""

    tiling: Tiling
    mmas: tuple[MmaTile, ...]
    pipeline: KernelPipeline
    parts: Parts | None = None
    raster: int = 1
    order: str = "strided"
    at_memory_bound: bool = False


def kernels_with_atoms(
    facts: Facts, machine: Machine, ranking: Ranking, best: float, only_lowered: bool
) -> Iterator[PlanCandidate]:
    """Yield the candidates of a program whose products all run on atoms; of these those that lowering does."""
    if not facts.products or len(facts.writes) == 0 or any(w.op != "write" for w in facts.writes):
        return
    wholes: list[tuple[PlanCandidate, Work]] = []
    for o in orientations(facts, machine, ranking):
        why = why_not_oriented(o) if only_lowered else ""
        if why:
            ranking.reject("orientation", f"lowering lacks {why}")
            continue
        for tiles, groups in tilings(o):
            ranking.tilings += 1
            t = Tiling(o, tiles, groups)
            why = why_not_lowered(t) if only_lowered else ""
            if why:
                ranking.reject("tiling", f"lowering lacks {why}")
                continue
            for candidate, work in _of_tiling(t, ranking, best):
                best = min(best, candidate.cycles)
                wholes.append((candidate, work))
                yield candidate
    if wholes and not (only_lowered and why_not_split(facts)):
        yield from _all_in_parts(wholes)


def _of_tiling(t: Tiling, ranking: Ranking, best: float) -> Iterator[tuple[PlanCandidate, Work]]:
    """Yield the candidates of a tiling, with their work."""
    mmas = tuple(m for p in t.o.products if (m := mma_tile(t, p)) is not None)
    if len(mmas) < len(t.o.products):
        return
    facts, cores = t.facts, t.machine.limits.cores or 1
    phases = {m.node: t.phase(facts.nodes[m.node]) for m in mmas}
    each = t.batch * sum(m.cycles * t.trips(phases[m.node]) for m in mmas)
    rounds = t.tasks / cores * prod(facts.kept_share.values()) if facts.loops else ceil(t.tasks / cores)
    if t.tasks >= cores and each * rounds > best:
        return
    live = liveness(t, mmas, phases)
    placed = place_operands(t, mmas, phases)
    if placed is None:
        return
    waves = mmas[0].atom.c.lanes // (t.machine.lanes or 1)
    work = count_work(t, mmas, live, placed, phases, waves)
    if work is None:
        return
    for pipeline in pipelines(t, mmas, live, placed, ranking):
        ranking.timed += 1
        kernel = KernelSchedule(t, mmas, pipeline, None, raster_of(t), order_of(work))
        done = _with_pipeline(work, kernel, placed)
        yield _candidate(kernel, done), done


def _with_pipeline(work: Work, kernel: KernelSchedule, placed: OperandPlacement) -> Work:
    """The work under a pipeline: A in registers is not read from shared memory; B may stay beside a halo tile."""
    pipeline = kernel.pipeline
    phases = work.phases
    if pipeline.keeps_a:
        less = sum(x.rows * x.depth * x.atom.a.dtype.bits / 8 for x in placed.keepable)
        phases = tuple(replace(p, shared=max(0.0, p.shared - less)) if p.is_dependent else p for p in phases)
    if pipeline.offsets:
        phases = tuple(replace(p, per_stage=pipeline.offsets) for p in phases)
    if pipeline.offsets == 0 and placed.halo is not None:
        halo, limits = placed.halo, kernel.tiling.machine.limits
        taps = halo_taps(halo)
        b_bytes = halo.chunks * taps * halo.tap
        b_cycles = _b_cycles(kernel, placed)
        (phase,) = phases
        l2 = phase.l2 - b_cycles / phase.trips
        phases = (replace(phase, copied=phase.copied - b_bytes / phase.trips, l2=l2),)
        first = max(b_bytes, b_cycles * limits.l2_rate)
        work = replace(work, l2_read=work.l2_read - b_cycles, first=first)
    return replace(work, phases=phases)


def _b_cycles(kernel: KernelSchedule, placed: OperandPlacement) -> float:
    """Cycles of the L2 cache for all of B."""
    t, m, halo = kernel.tiling, kernel.mmas[0], placed.halo
    assert halo is not None
    access = t.facts.nodes[halo.b_read].place
    extent = t.facts.extents.get(access.contiguous or "", 1)
    if not access.along(m.oriented.product.k):
        return halo.chunks * halo_taps(halo) * halo.tap / t.machine.limits.l2_rate
    slab = m.atom.slab or 1
    return halo_taps(halo) * m.columns * row_cycles(t.machine, extent, slab, access.bytes, access.pitch)


def _time(kernel: KernelSchedule, work: Work) -> KernelTime:
    t, pipeline = kernel.tiling, kernel.pipeline
    roles, overlap = pipeline.roles, pipeline.overlap
    how = Overlap(t.groups, roles.stages, overlap in (AHEAD, ORDERED), overlap == ORDERED, roles.pingpong)
    return kernel_time(t.machine, work, how)


def _candidate(kernel: KernelSchedule, work: Work, extra: float = 0.0) -> PlanCandidate:
    time = _time(kernel, work)
    kernel = replace(kernel, at_memory_bound=_is_bound(kernel, work, time))
    return PlanCandidate((kernel,), time.cycles + extra, _key(kernel, work, time, extra))


def _is_bound(kernel: KernelSchedule, work: Work, time: KernelTime) -> bool:
    machine = kernel.tiling.machine
    return time.unbounded - machine.limits.launch_cycles <= moving(machine, work.moved)


def _key(kernel: KernelSchedule, work: Work, time: KernelTime, extra: float) -> Key:
    """The order of candidates that take the same time.

    Nobody takes turns, pipelines are deep, little is brought while much is to be done, tiles are as large as what they
    cover, and groups of waves are few.
    """
    t, roles = kernel.tiling, kernel.pipeline.roles
    grid = [(c, tile) for c, tile in t.pairs() if tile.level == GRID and not c.is_batch]
    return (
        round(time.cycles + extra),
        roles.pingpong,
        roles.halo > 0,
        -min(roles.stages, ENOUGH_STAGES) if not roles.halo else 0,
        -roles.stored if not roles.halo else 0,
        round(time.unbounded * work.brought) if not roles.halo else 0,
        -prod(min(tile.size, c.extent) for c, tile in grid),
        prod(tile.size for _, tile in grid),
        sum(t.o.flips),
        t.groups if not roles.halo else -t.groups,
        kernel.pipeline.overlap != AHEAD,
        not kernel.pipeline.keeps_a,
        kernel.mmas[0].atom.shape[1],
    )


# -- sums in parts ------------------------------------------------------------------------------------------


def _all_in_parts(wholes: list[tuple[PlanCandidate, Work]]) -> Iterator[PlanCandidate]:
    """Yield kernels whose loop is split over tasks, where the best whole one leaves cores without a task."""
    best, _ = min(wholes, key=lambda x: x[0].key)
    (first,) = best.kernels
    assert isinstance(first, KernelSchedule)
    limits = first.tiling.machine.limits
    cores = limits.cores or 1
    if first.tiling.tasks >= cores:
        return
    least, cycles = min(work.tasks for _, work in wholes), best.cycles
    for candidate, work in sorted(wholes, key=lambda x: x[0].cycles):
        (kernel,) = candidate.kernels
        if (
            not isinstance(kernel, KernelSchedule)
            or kernel.pipeline.offsets is not None
            or kernel.pipeline.roles.pingpong
        ):
            continue
        for parts in _splits(kernel.tiling):
            crowded = parts.count * least > CROWDED * cores
            if not crowded and _least_in_parts(kernel, work, parts) < cycles:
                split = _in_parts(kernel, work, parts)
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
        if tile.level != LOOP or c.is_parallel or not c.streams or not merges:
            continue
        for dim in c.dims:
            yield from _parts_of(t, dim, dict(tile.box)[dim], tile.size)


def _parts_of(t: Tiling, dim: str, box: int, step: int) -> Iterator[Parts]:
    extent = t.facts.extents[dim]
    reads = [r.place for r in t.facts.reads if dim in r.place.dims]
    plain = all(r.lies_alone(dim) for r in reads) and box == min(step, extent) and not _is_computed(t)
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


def _is_computed(t: Tiling) -> bool:
    """Whether an operand is computed: past the end it may be anything."""
    return any(not x.is_read for p in t.facts.products for x in (p.a, p.b))


def _in_parts(kernel: KernelSchedule, work: Work, parts: Parts) -> PlanCandidate:
    """A kernel whose loop is split over tasks; a second one merges their states."""
    t, machine, mmas = kernel.tiling, kernel.tiling.machine, kernel.mmas
    number = t.o.class_of[parts.dim]
    tile = t.tiles[number]
    inner = dict(tile.box)[parts.dim]
    share = ceil(parts.width / inner) / ceil(t.facts.extents[parts.dim] / inner)
    phases = tuple(replace(p, trips=p.trips * share) if p.trips >= tile.count else p for p in work.phases)
    states = state_bytes(t, number)
    last = mmas[-1]
    whole = result_rows(t, last)
    result = ResultRows(whole.rows, whole.columns, WORD, whole.pitch // whole.bytes * WORD)
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
    return _candidate(replace(kernel, parts=parts), split, merge)
