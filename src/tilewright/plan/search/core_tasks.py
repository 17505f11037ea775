"""Rule: kernels of a machine whose cores run one thread each (a CPU): a task is the work of a core between two others.

Caches hold what tasks share, so that a task may have many accumulator tiles, one after the other. The accumulator of a
single MMA stays in registers over all of K; its tasks are those that the cost of vector blockings ranks first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil

from tilewright.algebra.expr import Expr
from tilewright.machine import Machine
from tilewright.plan.boxes import choose_task_widths, numbers_of, reads_sliding_window, why_whole
from tilewright.plan.facts import Facts
from tilewright.plan.general import blocks_of, room_of
from tilewright.plan.ranked import rank_vector_blockings
from tilewright.plan.rows import tasks_of
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.uniform import loop_tiles, microkernels, uniform_candidate
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule


def kernels_of_cores(facts: Facts, machine: Machine, ranking: Ranking) -> Iterator[PlanCandidate]:
    """Yield one candidate: the program as one CPU kernel, in which each task (a tile of the grid) runs on one thread.

    Yields nothing on a machine with lanes (a GPU). Each dimension that the grid cannot split is noted in `ranking` (the
    search's result) with the reason.
    """
    if machine.lanes is not None:
        return
    size, loops = numbers_of(facts.sizes), loop_tiles(facts)
    chosen = choose_task_widths(facts.program, size, room_of(machine), facts.logs, loops, facts.opened)
    widths = {d: chosen.get(d, size(d)) for d in facts.cut}
    widths |= {d: min(n, size(d)) for d in facts.cut if (n := facts.stated_tasks.get(str(d))) is not None}
    for d in (d for d in facts.order if d.symbols <= facts.sizes.keys()):
        if d not in facts.cut and size(d) > 1:
            why = "elements are computed in order" if facts.in_order else why_whole(facts.program, d)
            ranking.reject(f"tasks over {d}", why)
    ranking.timed += 1
    yield uniform_candidate(_cpu_kernel(facts, machine, widths, loops))


def keeps_cores_busy(ranking: Ranking, machine: Machine) -> bool:
    """True if the best candidate in `ranking` is a CPU kernel with at least one task (one thread's work) per core.

    `ranking` is the search's result. False on a machine with lanes (a GPU), if the ranking has no candidate, and for a
    kernel of one product in accumulator tiles (a BlockedKernelSchedule).
    """
    best = ranking.best
    if machine.lanes is not None or best is None or not isinstance(best.kernel, UniformKernelSchedule):
        return False
    kernel = best.kernel
    return tasks_of(kernel.widths, numbers_of(kernel.facts.sizes)) >= (machine.limits.cores or 1)


def _cpu_kernel(
    facts: Facts, machine: Machine, widths: dict[Expr, int], loops: dict[Expr, int]
) -> UniformKernelSchedule:
    """Return the CPU kernel (a UniformKernelSchedule) with `widths` elements per task and `loops` per iteration.

    A task is one thread's work. If the program has a single MMA whose accumulator tile stays in registers, each width
    is rounded up to whole accumulator tiles. If also the author states no widths, nothing is logged and all sizes are
    known before the call, the widths and the accumulator tile are first taken from the fastest blocking on vector
    registers, if there is one.
    """
    size = numbers_of(facts.sizes)

    def width(d: Expr) -> int:
        """Return the extent of `d` in the innermost tile, in elements.

        It is per task if the grid splits `d`; else per iteration if the kernel loops over `d`; else all of `d`.
        """
        return widths.get(d) or loops.get(d) or size(d)

    products, blocks = microkernels(facts, machine, width), dict[Expr, int]()
    if len(products) == 1:
        single = microkernels(facts, machine, lambda d: size(d) if d in facts.cut else width(d))
        blocks = blocks_of(single, facts.cut, width)
        products = single if blocks else products
        is_free = blocks and not (facts.stated_tasks or facts.opened or facts.logs)
        (op,) = products
        ranked = rank_vector_blockings(facts.program, op, blocks, size, machine) if is_free else None
        if ranked is not None:
            widths = widths | {d: n for d, n in ranked[0].items() if d in facts.cut}
            blocks, products = ranked[1], dict.fromkeys(products, ranked[2])
    return UniformKernelSchedule(facts, machine, _whole_tiles(facts, widths, blocks), 1, loops, products, blocks)


def _whole_tiles(facts: Facts, widths: Mapping[Expr, int], blocks: Mapping[Expr, int]) -> dict[Expr, int]:
    """Return {dimension: elements per task}: `widths` rounded up to multiples of the accumulator tile `blocks`.

    A task is one thread's work. A width that the author states stays as it is. A width is clamped to the extent of its
    dimension, unless that extent is known only at the call. If the extent is known only at the call, and a sliding
    window reads along the dimension, the dimension is left out of the result, so that a task has all of it. `facts` is
    the analysed program.
    """
    size, rounded = numbers_of(facts.sizes), dict(widths)
    for d, n in blocks.items():
        if str(d) in facts.stated_tasks:
            continue
        whole = ceil(widths[d] / n) * n
        rounded[d] = whole if d in facts.opened else min(size(d), whole)
        if d in facts.opened and reads_sliding_window(facts.program, d):
            del rounded[d]
    return rounded
