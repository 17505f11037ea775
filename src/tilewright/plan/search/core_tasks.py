"""Rule: kernels for any program on a CPU, whose cores run one thread each: a task is one thread's tile of the grid.

Caches hold the data that tasks share, so that a task may have many accumulator tiles, one after the other. Accumulators
stay in registers over all of K if registers hold the accumulator tiles of all MMAs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import product as combinations
from math import ceil, prod

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op
from tilewright.machine import Machine
from tilewright.plan.boxes import choose_task_widths, reads_sliding_window, why_whole
from tilewright.plan.facts import Facts
from tilewright.plan.general import blocks_of, room_of
from tilewright.plan.microkernel import Microkernel, axes_in
from tilewright.plan.model import Size, element_bytes, l2
from tilewright.plan.rows import tasks_of
from tilewright.plan.search.core_rows import strided_reads
from tilewright.plan.search.product_tasks import task_widths
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.uniform import loop_tiles, microkernels, uniform_candidate
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule
from tilewright.plan.stepping import why_no_k_loop

FEWEST_K_TILES = 4
"""The fewest K tiles of a loop that is split for caches."""
FEWEST_IN_L2 = 4
"""The shorter K tile for L2 is a quarter of the longest for which L2 holds B of a column of accumulator tiles."""
TASKS_PER_CORE = 32
"""The most tasks per core that task widths may give."""


def kernels_of_cores(
    facts: Facts, machine: Machine, ranking: Ranking, *, in_registers: bool = True
) -> Iterator[PlanCandidate]:
    """Yield CPU candidates for any program, one per choice of task widths and K tiles; a task is one thread's tile.

    With `in_registers`, the first candidates have no K loops but those of the author, so that accumulators may stay in
    registers over all of K. Without it, only candidates are yielded whose accumulators go through memory between K
    tiles. Yields nothing on a machine with lanes (a GPU). `ranking` (the search's result) gets the reason for each
    dimension that the grid cannot split; `ranking.timed` is incremented for each candidate.
    """
    if machine.lanes is not None:
        return
    size, loops = facts.number_of, loop_tiles(facts)
    for d in (d for d in facts.order if d.symbols <= facts.sizes.keys()):
        if d not in facts.cut and size(d) > 1:
            why = "elements are computed in order" if facts.in_order else why_whole(facts.program, d)
            ranking.reject(f"tasks over {d}", why)

    def of_whole_tasks(k_tiles: Mapping[Expr, int]) -> dict[Op, Microkernel | None]:
        """Return {MMA: microkernel (atom and accumulator tile)} for tasks that have all of each dimension of the grid.

        The value is None if no atom fits the MMA. `k_tiles` maps each looped dimension to its elements per iteration.
        """
        return microkernels(facts, machine, lambda d: size(d) if d in facts.cut else k_tiles.get(d) or size(d))

    microkernels_of_all = of_whole_tasks(loops)
    choices = [(loops, microkernels_of_all)] if in_registers else []
    choices += [(k_tiles, of_whole_tasks(k_tiles)) for k_tiles in _k_tiles(facts, machine, microkernels_of_all, loops)]
    tried: list[tuple[dict[Expr, int], dict[Expr, int]]] = []
    for k_tiles, products in choices:
        for widths in task_width_choices(facts, machine, products, loops):
            kernel = UniformKernelSchedule(facts, machine, widths, 1, k_tiles, products)
            kernel = _cpu_kernel(kernel, holds=k_tiles is loops, chooses=not tried)
            if (kernel.widths, kernel.loops) not in tried:
                tried.append((kernel.widths, kernel.loops))
                ranking.timed += 1
                yield uniform_candidate(kernel, len(tried))


def _k_tiles(
    facts: Facts, machine: Machine, products: Mapping[Op, Microkernel | None], loops: dict[Expr, int]
) -> Iterator[dict[Expr, int]]:
    """Yield choices of {loop dimension: elements per iteration}: copies of `loops` with a shorter K tile of one MMA.

    Tiles are chosen for the caches: B of one column of accumulator tiles then takes half of L1 or all of it, or a
    quarter or half of L2. The loop keeps at least FEWEST_K_TILES (4) iterations. An MMA without a K loop gets one, if
    its operands can be computed tile by tile.

    Some MMAs get no shorter tile: those without an atom; those whose loop carries more than accumulators, has a stated
    tile, or has an extent known only at the call; and those that reduce further dimensions. `products` maps each MMA to
    its microkernel (atom and tile).
    """
    size = facts.number_of
    fixed = {*facts.loops, *facts.stated_loops, *(str(d) for d in facts.opened)}
    for op, microkernel in products.items():
        axes = axes_in(op, size)
        if microkernel is None or isinstance(axes, str) or str(axes.k) in fixed:
            continue
        if any(size(d) > 1 for d in axes.deep) or why_no_k_loop(facts.program, axes.k) is not None:
            continue
        extent = loops.get(axes.k) or size(axes.k)
        row_bytes = microkernel.columns * element_bytes(axes.operands(op)[1].type.dtype)
        in_l1, in_l2 = (
            1 << (int(room) // row_bytes).bit_length() - 1 for room in (machine.limits.l1_bytes, l2(machine.limits))
        )
        fitting = {n for n in (in_l1 // 2, in_l1, in_l2 // FEWEST_IN_L2, in_l2 // 2) if n >= microkernel.atom.shape[2]}
        yield from ({**loops, axes.k: n} for n in sorted(fitting) if FEWEST_K_TILES * n <= extent)


def task_width_choices(
    facts: Facts, machine: Machine, products: Mapping[Op, Microkernel | None], loops: Mapping[Expr, int]
) -> Iterator[dict[Expr, int]]:
    """Yield choices of {dimension that the grid splits: elements per task} to try; a task is one thread's tile.

    The first follows from goals for the number and size of tasks. If MMAs have atoms, more follow: powers of two times
    the accumulator tile along M and N. They have at least cores / 2 tasks, and at most TASKS_PER_CORE (32) times the
    number of cores or of tasks in the first choice, whichever is larger. Without MMAs, tasks with longer pieces of rows
    follow, if tasks reduce over another dimension than that of rows. There is only the first choice if a size is known
    only at the call, if the program logs, or if elements are computed in order. Widths that the author states are in
    all choices. `products` maps each MMA to its microkernel, `loops` each looped dimension to elements per iteration.
    """
    size = facts.number_of
    stated = {d: min(n, size(d)) for d in facts.cut if (n := facts.stated_tasks.get(str(d))) is not None}
    if facts.products and facts.cut:
        widths = task_widths(facts, machine, loops)
    else:
        chosen = choose_task_widths(facts.program, size, room_of(machine), facts.logs, facts.opened)
        widths = {d: chosen.get(d, size(d)) for d in facts.cut} | stated
    yield widths
    if facts.opened or facts.logs or facts.in_order:
        return
    if not facts.products:
        yield from _with_longer_pieces_of_rows(facts, widths)
        return
    tiles = _accumulator_tiles(products, size)
    cores = machine.limits.cores or 1
    enough = max(cores, tasks_of(widths, size))
    choices = [_extents(size(d), widths[d], () if d in stated else tiles.get(d, ())) for d in facts.cut]
    for extents in combinations(*choices) if tiles else ():
        tasks = prod(ceil(size(d) / n) for d, n in zip(facts.cut, extents, strict=True))
        if cores <= 2 * tasks and tasks <= TASKS_PER_CORE * enough:
            yield dict(zip(facts.cut, extents, strict=True))


def _extents(extent: int, width: int, tiles: Collection[int]) -> list[int]:
    """Return the extents of a task to try along a dimension of `extent` elements, ascending; `width` is always tried.

    `tiles` are extents of accumulator tiles along the dimension. If `tiles` is not empty, all of the dimension and
    powers of two times each of `tiles` are tried too.

    >>> _extents(100, 25, ()), _extents(100, 25, (16, 48))
    ([25], [16, 25, 32, 48, 64, 96, 100])
    """
    wider = {n << power for n in tiles for power in range(extent.bit_length())}
    return sorted({width, *([extent] if tiles else ()), *(n for n in wider if n < extent)})


def _accumulator_tiles(products: Mapping[Op, Microkernel | None], size: Size) -> dict[Expr, set[int]]:
    """Return {dimension: set of extents of accumulator tiles along it} over all MMAs that have an atom.

    `products` maps each MMA to its microkernel (atom and accumulator tile), or None; `size(d)` evaluates the extent of
    a dimension d.
    """
    tiles = dict[Expr, set[int]]()
    for op, microkernel in products.items():
        axes = axes_in(op, size)
        if microkernel is not None and not isinstance(axes, str):
            for d, n in ((axes.m, microkernel.rows), (axes.n, microkernel.columns)):
                tiles.setdefault(d, set()).add(n)
    return tiles


def _with_longer_pieces_of_rows(facts: Facts, widths: Mapping[Expr, int]) -> Iterator[dict[Expr, int]]:
    """Yield copies of `widths`, elements per task of a program without MMAs, in which a task has longer pieces of rows.

    Rows are contiguous in memory, and tasks reduce over another dimension. Pieces are divisors of a row, at least twice
    as long each time, and whole rows. Widths that the author states stay.
    """
    size, rows = facts.number_of, {n.place.contiguous for n in strided_reads(facts)}
    for d, width in widths.items():
        if str(d) not in rows or str(d) in facts.stated_tasks:
            continue
        longer = (n for n in range(width + 1, size(d) + 1) if size(d) % n == 0)
        for n in longer:
            if n >= 2 * width or n == size(d):
                width = n
                yield {**widths, d: n}


def keeps_cores_busy(candidate: PlanCandidate | None, machine: Machine) -> bool:
    """True if a candidate has at least one task (one thread's tile) per core, on a CPU.

    False for None, on a machine with lanes (a GPU), and for a kernel of one product in accumulator tiles that stay in
    registers over K (BlockedKernelSchedule).
    """
    if machine.lanes is not None or candidate is None or not isinstance(candidate.kernel, UniformKernelSchedule):
        return False
    kernel = candidate.kernel
    return tasks_of(kernel.widths, kernel.facts.number_of) >= (machine.limits.cores or 1)


def _cpu_kernel(kernel: UniformKernelSchedule, *, holds: bool, chooses: bool) -> UniformKernelSchedule:
    """Return `kernel` with microkernels (atoms and accumulator tiles) and task widths that fit each other, on a CPU.

    With `holds`, tasks loop over accumulator tiles that stay in registers over all of K; task widths are rounded up to
    whole tiles. Tasks have no such loops if registers cannot hold the tiles of all MMAs at once, or if the author
    states tasks smaller than a tile. Microkernels are then chosen anew for the task widths if `chooses` is set, or if a
    task is smaller than its tile.
    """
    facts, machine = kernel.facts, kernel.machine
    blocks = blocks_of(kernel.products, facts.cut, kernel.width, machine) if holds else {}
    if any(n > kernel.width(d) and str(d) in facts.stated_tasks for d, n in blocks.items()):
        blocks = {}
    tiles = _accumulator_tiles(kernel.products, kernel.width).items()
    if not blocks and (chooses or any(n > kernel.width(d) for d, extents in tiles for n in extents)):
        kernel = replace(kernel, products=microkernels(facts, machine, kernel.width))
    return replace(kernel, widths=whole_tiles(facts, kernel.widths, blocks), blocks=blocks)


def whole_tiles(facts: Facts, widths: Mapping[Expr, int], blocks: Mapping[Expr, int]) -> dict[Expr, int]:
    """Return {dimension: elements per task}: `widths`, rounded up to multiples of the extents `blocks` of a tile.

    `blocks` has the accumulator tile's extent per dimension. Widths that the author states stay as they are. Other
    widths do not exceed the dimension's extent, if the extent is known before the call. If it is known only at the
    call, and a sliding window reads along the dimension, the dimension is left out: a task has all of it.
    """
    size, rounded = facts.number_of, dict(widths)
    for d, n in blocks.items():
        if str(d) in facts.stated_tasks:
            continue
        padded = ceil(widths[d] / n) * n
        rounded[d] = padded if d in facts.opened else min(size(d), padded)
        if d in facts.opened and reads_sliding_window(facts.program, d):
            del rounded[d]
    return rounded
