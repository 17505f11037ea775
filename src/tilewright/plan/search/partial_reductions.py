"""Rule: split a reduction over tasks; a second kernel combines the partial results in fixed order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, inf, prod

from tilewright.algebra.expr import Expr, symbol
from tilewright.ir.tile import REDUCTIONS
from tilewright.machine import Machine
from tilewright.plan.computed import GIVEN, SIMPLE
from tilewright.plan.facts import Facts, ValueFacts
from tilewright.plan.model import line_bytes, moving_cycles
from tilewright.plan.rows import task_widths_and_waves, tasks_of, widths_across_rows
from tilewright.plan.search.cost import SAME_WAVES, kernel_time, launch_cycles
from tilewright.plan.search.kernel import CROWDED, Parts
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.split_k import has_dimension
from tilewright.plan.search.uniform import count_uniform_work
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule
from tilewright.plan.search.work import Phase, Work

WHOLE_LINES = 16
"""Cache lines per part beyond which parts are rounded to whole lines."""
MAPS = frozenset({*SIMPLE, *GIVEN, "read"})
"""Elementwise operations, constants and reads."""
WHAT = "a reduction in parts"


def kernels_in_parts(whole: PlanCandidate, ranking: Ranking) -> Iterator[PlanCandidate]:
    """Yield at most one candidate: the kernel of `whole` with its single reduction split over more workgroups.

    A second kernel combines the partial results. The kernel of `whole` must be a UniformKernelSchedule (without a
    pipeline). Yields nothing in three cases: `whole` has workgroups for more than half of the cores; the program has no
    reduction that can be split; or the reduction is too short, which is noted in `ranking` (the search's result).
    """
    kernel = whole.kernel
    assert isinstance(kernel, UniformKernelSchedule)
    facts, machine = kernel.facts, kernel.machine
    size = facts.number_of
    tasks, cores = tasks_of(kernel.widths, size), machine.limits.cores or 1
    reduction = _single_reduction(facts)
    if reduction is None or CROWDED * tasks > cores:
        return
    count = _best_part_count(kernel, reduction)
    extent = facts.extents[_reduced_dim(reduction)]
    width = _part_width(facts, machine, _reduced_dim(reduction), extent // count)
    if count < 2 or width < 1:
        ranking.reject(WHAT, f"{_reduced_dim(reduction)}, {extent}, has too few elements for {cores} cores")
        return
    yield _split_candidate(kernel, Parts(_reduced_dim(reduction), count, width))


def _reduced_dim(reduction: ValueFacts) -> str:
    """Return the name of the dimension that a reduction reduces; there must be exactly one."""
    (axis,) = reduction.reduces
    return axis


def _single_reduction(facts: Facts) -> ValueFacts | None:
    """Return the program's only reduction if different workgroups can each reduce a part of its input; else None.

    They can under these conditions: the reduction is over one dimension and accumulates in the type of its result; its
    input is computed elementwise from plain reads in bounds; and nothing else uses the input. None also if the program
    has loops, scans or constraints of the author, or is half of a split program. `facts` is the analysed program.
    """
    reductions = [n for n in facts.nodes if n.reduces]
    if len(reductions) != 1 or facts.loops or facts.stated_tasks or facts.stated_loops or facts.part or facts.scanned:
        return None
    (n,) = reductions
    source = n.source
    if n.op not in REDUCTIONS or len(n.reduces) != 1 or source is None or len(source.operands) != 1:
        return None
    inside = set(facts.behind(n.args[0]))
    reads = [facts.nodes[i] for i in inside if facts.nodes[i].op == "read"]
    is_map = all(facts.nodes[i].op in MAPS for i in inside)
    is_used_again = any(user not in inside and user != n.id for i in inside for user in facts.users[i])
    (axis,) = n.reduces
    along = [r for r in reads if axis in r.dims]
    is_plain = all(
        r.place.is_plain_coordinate(axis) and has_dimension(r, axis) and not r.place.can_leave for r in along
    )
    return n if is_map and is_plain and not is_used_again and n.dtype.accumulator is n.dtype else None


def _best_part_count(kernel: UniformKernelSchedule, reduction: ValueFacts) -> int:
    """Return the number of parts into which to split a reduction, so that reading its input takes the least time.

    `kernel` is the kernel without a split, `reduction` the reduction. On a CPU it is the number of cores divided by the
    number of the kernel's tasks, rounded down. On a GPU it is 1 if a split would save less time than the launch that it
    adds. Otherwise the best number is searched, up to a limit: each part must have enough elements, and cores must not
    get too many tasks.
    """
    facts, machine, limits = kernel.facts, kernel.machine, kernel.machine.limits
    size, cores = facts.number_of, limits.cores or 1
    if machine.lanes is None:  # each core has a part of its own
        return cores // tasks_of(kernel.widths, size)
    source = facts.nodes[reduction.args[0]]
    elements = facts.size(source.dims)
    moved = elements * source.bytes / limits.far_rate / cores
    if elements * source.bytes / limits.l2_rate / tasks_of(kernel.widths, size) <= moved + limits.launch_cycles:
        return 1
    fewest_tasks = tasks_of(
        widths_across_rows(facts.program, kernel.widths, size, machine, tasks_per_core=inf) or kernel.widths, size
    )
    extent = facts.extents[_reduced_dim(reduction)]

    def cost(parts: int) -> tuple[float, int]:
        """Return the sort key (relative memory time, elements left over at the end) of splitting into `parts` parts."""
        tasks_per_core = ceil(parts * fewest_tasks / cores)
        busy = max(1, tasks_per_core * cores / (parts * fewest_tasks) / limits.far_alone)
        return busy + tasks_per_core * limits.copy_latency / moved, extent % parts

    most_parts = min(2 * CROWDED * cores // fewest_tasks, elements // machine.row_tasks.part_elements)
    return min(range(1, max(2, most_parts + 1)), key=cost)


def _part_width(facts: Facts, machine: Machine, axis: str, width: int) -> int:
    """Return the number of elements of one part of a reduction along `axis`: `width`, perhaps rounded down.

    A width of more than WHOLE_LINES (16) cache lines is rounded down to whole lines: with 32 elements per line, 1000 ->
    992. Shorter widths stay. `facts` is the analysed program.
    """
    sides = [n.place.bytes for n in facts.reads if n.place.contiguous == axis]
    line = max((line_bytes(machine) // n for n in sides), default=1)
    return width // line * line if width > WHOLE_LINES * line else width


def _split_candidate(kernel: UniformKernelSchedule, parts: Parts) -> PlanCandidate:
    """Return `kernel` with its reduction split into `parts`, as a PlanCandidate with its predicted cycles.

    On a GPU, task widths and waves are chosen anew, for workgroups that reduce one or more parts each. On a CPU, task
    widths stay, and a task reduces one part. The cycles include the kernel that combines the partial results.
    """
    facts, machine, numbers = kernel.facts, kernel.machine, kernel.facts.number_of
    split = symbol(f"{parts.dim}_split", 1)

    def size(d: Expr) -> int:
        """Return the extent of the dimension `d` in the kernel that reduces the parts.

        It is the number of parts for the new dimension `split`, and the elements per part for the reduced dimension.
        For any other dimension it is the extent in the program.
        """
        return parts.count if d is split else parts.width if str(d) == parts.dim else numbers(d)

    extents = {split: parts.count, **{d: numbers(d) for d in facts.cut}}
    if machine.lanes is None:
        widths, waves = {split: 1, **kernel.widths}, 1
    else:
        widths, waves = task_widths_and_waves(facts.program, extents, size, machine)
    task_widths = {d: n for d, n in widths.items() if d is not split}
    split_kernel = replace(kernel, widths=task_widths, waves=waves, parts=parts, parts_of_task=widths[split])
    return candidate_in_parts(split_kernel, parts)


def candidate_in_parts(kernel: UniformKernelSchedule, parts: Parts) -> PlanCandidate:
    """Return a kernel whose reduction or loop is split into `parts`, as a PlanCandidate with its predicted cycles.

    The cycles include the second kernel, which combines the partial results.
    """
    work, merge = work_in_parts(kernel, parts)
    cycles = kernel_time(kernel.machine, work, SAME_WAVES).cycles + merge
    return PlanCandidate(kernel, cycles, (round(cycles),))


def work_in_parts(kernel: UniformKernelSchedule, parts: Parts) -> tuple[Work, float]:
    """Return (Work of the kernel that reduces the parts, cycles of the second kernel, which combines the results).

    The Work has the first kernel's cycles and bytes. The second kernel's cycles include its launch. `kernel` is the
    first kernel, with a reduction or a loop that is split into `parts`.
    """
    facts, machine, unsplit = kernel.facts, kernel.machine, count_uniform_work(kernel)
    tasks = unsplit.tasks * ceil(parts.count / kernel.parts_of_task)
    states = parts.count * _carried_bytes(facts, parts.dim)
    lanes = sum(p.lanes for p in unsplit.phases) * unsplit.tasks
    waits = unsplit.waits + _iteration_waits(kernel, parts, tasks)
    work = unsplit._replace(
        tasks=tasks, phases=(Phase(1, lanes=lanes / tasks),), moved=unsplit.moved + states, waits=waits
    )
    return work, moving_cycles(machine, states) + machine.limits.copy_latency + launch_cycles(machine)


def _carried_bytes(facts: Facts, dim: str) -> float:
    """Return the size in bytes of one partial result, if the reduction or loop over `dim` is split.

    It is the size of all values that the loop over `dim` carries; without such a loop, of the results of all
    reductions. `facts` is the analysed program.
    """
    loops = [op for op in facts.program.walk() if op.name == "iterate" and str(op.attrs["axis"]) == dim]
    if not loops:
        return sum(facts.size(n.dims) * n.bytes for n in facts.nodes if n.reduces)
    size, kinds = facts.number_of, [result.type for result in loops[0].results]
    return float(sum(prod(map(size, kind.dims)) * kind.dtype.numpy.itemsize for kind in kinds))


def _iteration_waits(kernel: UniformKernelSchedule, parts: Parts, tasks: int) -> float:
    """Return the cycles that the workgroups of a core wait for reads of iterations after the first; 0 without a loop.

    `kernel` is split into `parts`. Workgroups that run on a core at the same time wait together. `tasks` is the number
    of workgroups.
    """
    tile = next((n for d, n in kernel.loops.items() if str(d) == parts.dim), parts.width)
    machine, lanes = kernel.machine, kernel.waves * (kernel.machine.lanes or 1)
    at_a_time = max(1, machine.costs.resident.lanes // lanes)
    tasks_per_core = ceil(tasks / ((machine.limits.cores or 1) * at_a_time))
    return tasks_per_core * (ceil(parts.width / tile) - 1) * machine.limits.copy_latency
