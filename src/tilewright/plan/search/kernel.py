"""Kernels whose MMAs run on atoms of a pipeline: their candidates, work, time and rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod

from tilewright.plan.model import moving_cycles
from tilewright.plan.search.cost import KernelTime, Overlap, kernel_time, row_cycles
from tilewright.plan.search.counting import count_work, result_rows
from tilewright.plan.search.empty_rounds import busiest_share, kept_rounds, less_work
from tilewright.plan.search.launch import CYCLIC, order_of, raster_factor, raster_of, share_read_alone
from tilewright.plan.search.liveness import Liveness, liveness
from tilewright.plan.search.lowered import why_not_split
from tilewright.plan.search.pipeline import AHEAD, ORDERED, KernelPipeline, pipelines
from tilewright.plan.search.placement import OperandPlacement, halo_taps, place_operands
from tilewright.plan.search.ranking import ENOUGH_STAGES, Key, PlanCandidate, Ranking
from tilewright.plan.search.tiles import BOX, GRID, can_pad
from tilewright.plan.search.tiling import Loops, Tiling
from tilewright.plan.search.unit import MmaTile, mma_tile
from tilewright.plan.search.work import Work

CROWDED = 2
"""The most tasks per core of a kernel with split-K."""


@dataclass(frozen=True)
class Parts:
    """Split-K: the dimension, the number of parts, and the elements of each part along it."""

    dim: str
    count: int
    width: int


@dataclass(frozen=True, eq=False)
class KernelSchedule:
    """One kernel with MMA atoms: tiles, atoms, pipeline, split-K, and the order of its tasks.

    `raster` is the number of neighbouring tasks along the first axis that run next to each other, `order` the order in
    which cores take tasks. `at_memory_bound`: memory bandwidth limits its time.
    """

    tiling: Tiling
    mmas: tuple[MmaTile, ...]
    pipeline: KernelPipeline
    parts: Parts | None = None
    raster: int = 1
    order: str = "cyclic"
    columns_first: bool = False
    """True if the grid has the columns of C before its rows."""
    at_memory_bound: bool = False
    early: bool = True
    """False if no kernel of the plan begins while the one before it ends, though the machine could."""

    @property
    def cuts_both(self) -> bool:
        """True if the grid splits M and N of all MMAs, and each of these dimensions has the same role in every MMA.

        Only such a kernel has a raster (an order in which the grid visits tiles of C).
        """
        return self.tiling.cuts_both

    @property
    def family(self) -> str:
        """A name for this kernel's design, such as "a pipeline, bulk copies".

        The first half is "halo tiles" (input patches of a convolution), "parts" (split-K: workgroups share K) or "a
        pipeline"; the second says whether bulk copies or lanes copy operands. `explain` shows one candidate of each
        name.
        """
        tiles = "halo tiles" if self.pipeline.offsets is not None else "parts" if self.parts else "a pipeline"
        return f"{tiles}, {'lanes copy' if self.tiling.o.by_threads else 'bulk copies'}"


def candidates_of_tiling(t: Tiling, ranking: Ranking, best: float) -> Iterator[tuple[PlanCandidate, Work]]:
    """Yield (PlanCandidate, its Work) for each pipeline with which a tiling fits registers and shared memory.

    `t` is the Tiling (tile sizes); `best` is the time of the best candidate so far, in cycles. Yields nothing in five
    cases: a lower bound of the tiling's time exceeds `best`; some MMA has no atom that fits; a tile is a box
    (rectangle) of output positions without a halo tile; no accumulator is written; rows of the result cannot be stored.
    `ranking.timed` is incremented for each pipeline, and `ranking` gets the reasons for pipelines that do not fit.
    """
    mmas = tuple(m for p in t.o.products if (m := mma_tile(t, p)) is not None)
    if len(mmas) < len(t.o.products):
        return
    phases = {m.node: t.phase(t.facts.nodes[m.node]) for m in mmas}
    if _least_cycles(t, mmas, phases) > best:
        return
    placed = place_operands(t, mmas, phases)
    if placed is None or _least_copy_cycles(t, placed, phases) > best:
        return
    live = liveness(t, mmas, phases)
    waves = mmas[0].atom.c.lanes // (t.machine.lanes or 1)
    work = count_work(t, mmas, live, placed, phases, waves)
    if work is None or not _can_store_rows(t, mmas, live):
        return
    raster, order = raster_of(t), order_of(work)
    for pipeline in pipelines(t, mmas, live, placed, ranking):
        ranking.timed += 1
        in_turn = t.facts.masked_product is not None and (pipeline.roles.pingpong or pipeline.offsets is not None)
        kernel = KernelSchedule(t, mmas, pipeline, None, raster, CYCLIC if in_turn else order)
        done = _with_pipeline(work, kernel, placed)
        yield candidate_of(kernel, done), done


def _can_store_rows(t: Tiling, mmas: tuple[MmaTile, ...], live: Liveness) -> bool:
    """True if a workgroup can store its rows of the result, by bulk copies or by lanes.

    True on a machine without bulk stores. Bulk copies can store a row if they can cut it into pieces. Lanes can under
    two conditions: the tile has exactly all columns; and elements past the last column would be in bounds of memory, so
    that padding could not be dropped. `t` (a Tiling) has the tile sizes, `mmas` are the MMA tiles; the last MMA in
    `live.results` computes the result.
    """
    last = next(m for m in mmas if m.node == live.results[-1])
    result = result_rows(t, last)
    store = t.machine.bulk_store
    if store is None or store.row_pieces(result.columns * result.bytes):
        return True
    columns = [(c, tile) for c, tile in t.pairs() if set(c.dims) & last.oriented.columns]
    return all(tile.size == c.extent and not can_pad(t.facts, c.dims[0]) for c, tile in columns)


def _least_cycles(t: Tiling, mmas: tuple[MmaTile, ...], phases: dict[int, Loops]) -> float:
    """Return a lower bound of the cycles of any kernel with this tiling, without its launch (fixed start cycles).

    It is the longer of MMA and copy cycles of one task (workgroup's tile), times a lower bound of the tasks per core.
    It is 0 (no bound) if the program's loops carry values and there are fewer tasks than cores. `t` (a Tiling) has the
    tile sizes, `mmas` are the MMA tiles. `phases` maps each MMA (node number) to the loops around it.
    """
    task_cycles = t.batch * sum(m.cycles * t.trips(phases[m.node]) for m in mmas)
    return max(task_cycles, _least_copied_bytes(t, mmas) / t.machine.limits.l2_rate) * _least_tasks_per_core(t)


def _least_copied_bytes(t: Tiling, mmas: tuple[MmaTile, ...]) -> float:
    """Return a lower bound of the bytes that a task copies to shared memory in the loops over its operands.

    If several MMAs use a read, it may be copied once for all of them; so only the MMA that needs the most bytes of it
    counts. The result is 0 if tiles have several GEMMs of a batch, or are boxes (rectangles of positions), as filter
    taps may then share a copy. `t` (a Tiling) has the tile sizes, `mmas` are the MMA tiles.
    """
    if t.batch > 1 or any(tile.fold == BOX and tile.level == GRID for tile in t.tiles):
        return 0.0
    copied: dict[int, float] = {}
    for m in mmas:
        for x, count in ((m.oriented.a, m.rows), (m.oriented.b, m.columns)):
            n = t.facts.nodes[x.reads[0] if x.is_read else x.value]
            if x.is_read and n.place.linear and m.oriented.product.k & n.place.dims and t.loops_over(n.dims):
                bytes_read = count * n.place.bytes * m.depth * t.trips(t.loops_over(n.dims))
                copied[n.id] = max(copied.get(n.id, 0.0), bytes_read)
    return sum(copied.values())


def _least_copy_cycles(t: Tiling, placed: OperandPlacement, phases: dict[int, Loops]) -> float:
    """Return a lower bound of the cycles of any kernel with the tiling `t`: the time of its copies to shared memory.

    The cycles are summed over one core's tasks (workgroups' tiles). It is 0 (no bound) if the program's loops carry
    values and there are fewer tasks than cores. `placed` has the copied bytes per iteration of each loop nest; `phases`
    maps each MMA (node number) to the loops around it.
    """
    limits = t.machine.limits
    copied = sum(t.trips(loops) * placed.copied[loops] for loops in set(phases.values()) if loops in placed.copied)
    share = min(1, t.tasks / (limits.cores or 1))
    skips = t.facts.loops or t.facts.masked_product is not None  # masks may leave out a part of it
    read = 0.0 if skips else placed.l2_read * share
    return max(copied / limits.l2_rate, read) * _least_tasks_per_core(t)


def _least_tasks_per_core(t: Tiling) -> float:
    """Return a lower bound of the number of workgroups that the busiest core runs one after another; it may be a
    fraction.

    It is workgroups / cores, times the share of work that masks leave, and times the share of K iterations that are
    left when those with an operand out of bounds are skipped (`kept_rounds`); a share from a mask on an MMA replaces
    both. It is rounded up only if all workgroups do the same work and split-K cannot fill the last round. It is 0 (no
    bound) if the program's loops carry values and there are fewer workgroups than cores. `t` is the Tiling (tile
    sizes).
    """
    facts, cores = t.facts, t.machine.limits.cores or 1
    if facts.loops and t.tasks < cores:
        return 0.0
    if facts.masked_product is not None:
        return t.tasks / cores * facts.masked_product.share(t.size)
    tasks_per_core = t.tasks / cores * prod(facts.unmasked_shares.values())
    if (kept := kept_rounds(t)[0]) < 1:
        return tasks_per_core * kept
    may_split = not facts.opened and t.tasks <= 2 * CROWDED * cores and not why_not_split(facts)
    return tasks_per_core if facts.loops or may_split else ceil(tasks_per_core)


def work_of(kernel: KernelSchedule) -> Work | None:
    """Count the work of a kernel as if it had no split-K; return a Work (cycles and bytes), or None.

    It serves to count the work again, for example after the kernel's machine was replaced. None if a grid tile is a box
    (rectangle) of output positions that a sliding window reads and that has no halo tile, or if no MMA's accumulator is
    written.
    """
    t, mmas = kernel.tiling, kernel.mmas
    phases = {m.node: t.phase(t.facts.nodes[m.node]) for m in mmas}
    placed = place_operands(t, mmas, phases)
    if placed is None:
        return None
    waves = mmas[0].atom.c.lanes // (t.machine.lanes or 1)
    work = count_work(t, mmas, liveness(t, mmas, phases), placed, phases, waves)
    return None if work is None else _with_pipeline(work, kernel, placed)


def _with_pipeline(work: Work, kernel: KernelSchedule, placed: OperandPlacement) -> Work:
    """Return `work`, which was counted from the tiling alone, adjusted to the kernel's pipeline and raster.

    There are five adjustments:

    - A raster (order in which the grid visits tiles of C) that is worse than the best makes copies longer.
    - An A that stays in registers is not read from shared memory again.
    - Iterations that are skipped because an operand is out of bounds are subtracted, except with ping-pong or halo
      tiles.
    - With ping-pong, tasks also do the iterations that masks would skip.
    - With a halo tile (input patch) of A, a stage of B has several filter taps, or all of B is copied once per core.

    `placed` has the operands in shared memory.
    """
    pipeline, t = kernel.pipeline, kernel.tiling
    phases = work.phases
    if kernel.cuts_both and pipeline.offsets is None:
        longer = raster_factor(t, kernel.raster, kernel.columns_first)
        alone = _share_read_alone(kernel)
        phases = tuple(p._replace(copied=p.copied * longer, l2=p.l2 * longer, alone=p.copied * alone) for p in phases)
    if pipeline.keeps_a:
        less = sum(x.rows * x.depth * x.atom.a.dtype.bits / 8 for x in placed.keepable)
        phases = tuple(p._replace(shared=max(0.0, p.shared - less)) if p.is_dependent else p for p in phases)
    if pipeline.offsets:
        phases = tuple(p._replace(per_stage=pipeline.offsets) for p in phases)
    if placed.halo is not None:
        taps = halo_taps(placed.halo)
        phases = tuple(p._replace(per_halo_stage=taps) for p in phases)
    if pipeline.offsets == 0 and placed.halo is not None:
        halo, limits = placed.halo, t.machine.limits
        b_bytes = halo.chunks * taps * halo.tap
        b_cycles = _l2_cycles_of_b(kernel, placed)
        (phase,) = phases
        l2 = phase.l2 - b_cycles / phase.trips
        copied = phase.copied - b_bytes / phase.trips
        phases = (phase._replace(copied=copied, l2=l2, rewritten=min(phase.rewritten, copied), per_stage=0),)
        first = max(b_bytes, b_cycles * limits.l2_rate)
        work = work._replace(l2_read=work.l2_read - b_cycles, first=first)
    if pipeline.roles.pingpong and t.facts.masked_product is not None:  # halves that take turns do all iterations
        work = work._replace(lengths=((1.0, 0.0, t.tasks),))
    if not pipeline.roles.pingpong and pipeline.offsets is None and (share := busiest_share(t)) < 1:
        phases = tuple(less_work(p, share) for p in phases)
        work = work._replace(l2_read=work.l2_read * share)
    return work._replace(phases=phases)


def _share_read_alone(kernel: KernelSchedule) -> float:
    """Return the fraction (0 to 1) of the copied bytes that no other core reads at about the same time.

    It is 0 if lanes copy operands, and if rows of an operand overlap in memory, as L2 then has most of the bytes. It is
    also 0 if the grid has a batch, because workgroups of neighbouring batch entries read the rest of the same cache
    lines.
    """
    t, products = kernel.tiling, [m.oriented for m in kernel.mmas]
    reads = [t.facts.nodes[read].place for p in products for read in (*p.a.reads, *p.b.reads)]
    batched = any(c.is_batch and tile.count > 1 for c, tile in t.pairs())
    if t.o.by_threads or batched or any(read.rows_overlap for read in reads):
        return 0.0
    return share_read_alone(t, kernel.raster, kernel.columns_first, kernel.order)


def _l2_cycles_of_b(kernel: KernelSchedule, placed: OperandPlacement) -> float:
    """Return the L2 cycles to copy the tile of B that one task reads, for a kernel that loads A as halo tiles.

    They are the cycles of one core. The tile of B has all filter taps and input channels, and the columns of the task's
    tile of C. A halo tile is an input patch; `placed` must have one.
    """
    t, m, halo = kernel.tiling, kernel.mmas[0], placed.halo
    assert halo is not None
    access = t.facts.nodes[halo.b_read].place
    extent = t.facts.extents.get(access.contiguous or "", 1) * t.batch
    if not access.rows_run_along(m.oriented.product.k):
        return halo.chunks * halo_taps(halo) * halo.tap / t.machine.limits.l2_rate
    slab = m.atom.slab or 1
    return (
        halo_taps(halo)
        * m.columns
        * t.batch
        * row_cycles(t.machine, extent, slab, access.bytes, 0 if t.batch > 1 else access.pitch)
    )


def time_of(kernel: KernelSchedule, work: Work) -> KernelTime:
    """Predict the time of a kernel from its `work` and its pipeline's overlap; return a KernelTime (cycles, unbounded).

    The time of merging partial results of split-K is not included.
    """
    t, pipeline = kernel.tiling, kernel.pipeline
    roles, overlap = pipeline.roles, pipeline.overlap
    ahead, ordered = overlap in (AHEAD, ORDERED), overlap == ORDERED
    stored, halo_stages = roles.epilogue_stages, roles.halo_stages
    overlaps = Overlap(t.groups, roles.stages, ahead, ordered, roles.pingpong, stored, halo_stages)
    return kernel_time(t.machine, work, overlaps)


def candidate_of(kernel: KernelSchedule, work: Work, extra: float = 0.0) -> PlanCandidate:
    """Return a kernel as a PlanCandidate, with its predicted cycles and its sort key.

    The cycles are predicted from `work` (its cycles and bytes). `extra` cycles are added, such as for merging the
    partial results of split-K. The candidate has a copy of `kernel`, with `at_memory_bound` set if memory bandwidth
    limits its time.
    """
    time = time_of(kernel, work)
    kernel = replace(kernel, at_memory_bound=_is_memory_bound(kernel, work, time))
    return PlanCandidate(kernel, time.cycles + extra, _sort_key(kernel, work, time, extra))


def _is_memory_bound(kernel: KernelSchedule, work: Work, time: KernelTime) -> bool:
    """True if memory bandwidth limits the kernel's predicted time.

    It does if moving the bytes of `work` to and from global memory takes at least as many cycles as the kernel takes
    with unlimited bandwidth (`time.unbounded`), without its launch (fixed start cycles).
    """
    machine = kernel.tiling.machine
    return time.unbounded - machine.limits.launch_cycles <= moving_cycles(machine, work.moved)


def _sort_key(kernel: KernelSchedule, work: Work, time: KernelTime, extra: float) -> Key:
    """Return a candidate's sort key, a tuple: rounded cycles with `extra` added, then tie-breakers; smaller is better.

    Ties prefer no ping-pong, no halo tiles, deep pipelines, many epilogue stages, few copied bytes, large tiles that do
    not exceed the problem, M on the atom's rows, few wave groups (many with halo tiles), MMAs that start ahead, A in
    registers, and narrow atoms, in this order. `work` and `time` are the kernel's counted work and predicted time.
    """
    t, roles = kernel.tiling, kernel.pipeline.roles
    grid = [(c, tile) for c, tile in t.pairs() if tile.level == GRID and not c.is_batch]
    return (
        round(time.cycles + extra),
        roles.pingpong,
        roles.halo_stages > 0,
        -min(roles.stages, ENOUGH_STAGES) if not roles.halo_stages else 0,
        -roles.epilogue_stages if not roles.halo_stages else 0,
        round(time.unbounded * work.copied_bytes) if not roles.halo_stages else 0,
        -prod(min(tile.size, c.extent) for c, tile in grid),
        prod(tile.size for _, tile in grid),
        sum(t.o.flips),
        t.groups if not roles.halo_stages else -t.groups,
        kernel.pipeline.overlap != AHEAD,
        not kernel.pipeline.keeps_a,
        kernel.mmas[0].atom.shape[1],
    )
