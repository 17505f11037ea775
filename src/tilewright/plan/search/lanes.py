"""Rule: kernels without MMAs (elementwise, row-wise): task widths and wave counts.

Enough bytes are in flight if every lane has a few vectors in registers and a core has several workgroups. A task has
whole rows of a reduction: several short ones, or a long one that more waves share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tilewright.ir.core import Op
from tilewright.machine import Machine
from tilewright.plan.boxes import choose_task_widths
from tilewright.plan.facts import Facts
from tilewright.plan.general import room_of
from tilewright.plan.model import l2, moving_cycles
from tilewright.plan.rows import contiguous_row_widths, task_widths_and_waves
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.uniform import count_uniform_work, loop_tiles, uniform_candidate
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule


def kernels_of_lanes(facts: Facts, machine: Machine, ranking: Ranking) -> Iterator[PlanCandidate]:
    """Yield GPU candidates of one kernel for a program without MMAs (elementwise, or reductions of rows).

    There is one candidate. If starting its tasks (workgroups' tiles) takes longer than moving their bytes, there is a
    second one with larger tasks, unless sizes are known only at the call or tasks run in the program's order. Yields
    nothing if the program has MMAs, or on a machine without lanes (a CPU). `ranking.timed` is incremented for each
    candidate.

    For one half of a program that is split into two kernels, `_kernel_of_half` gives at most one candidate instead;
    `ranking.timed` is then incremented even without a candidate.
    """
    if facts.products or machine.lanes is None:
        return
    ranking.timed += 1
    if facts.part:
        yield from _kernel_of_half(facts, machine)
        return
    size = facts.number_of
    loops = loop_tiles(facts)
    chosen = choose_task_widths(facts.program, size, room_of(machine), facts.logs, facts.opened) if facts.cut else {}
    unnarrowed = {d: chosen.get(d, size(d)) for d in facts.cut}
    if facts.opened or facts.in_order:  # lanes hold a number of elements, at the end of a dimension too
        widths = {d: 1 if d in facts.opened else n for d, n in unnarrowed.items()}
        yield uniform_candidate(UniformKernelSchedule(facts, machine, widths, 1, loops))
        return
    widths, waves = task_widths_and_waves(facts.program, unnarrowed, lambda d: loops.get(d) or size(d), machine)
    widths |= {d: min(n, size(d)) for d in facts.cut if (n := facts.stated_tasks.get(str(d))) is not None}
    kernel = UniformKernelSchedule(facts, machine, widths, waves, loops, backward=should_run_backward(facts, machine))
    yield uniform_candidate(kernel)
    longer = _with_longer_tasks(kernel)
    if longer is not None:
        ranking.timed += 1
        yield uniform_candidate(longer)


def _with_longer_tasks(kernel: UniformKernelSchedule) -> UniformKernelSchedule | None:
    """Return `kernel` with larger tasks (workgroups' tiles), and waves to match; None if larger tasks are not needed.

    They are needed if starting the tasks takes longer than moving their bytes. Tasks grow along the last dimensions
    first, by divisors of the extents. None also for a program that reduces or scans, if the author states tasks, or if
    tasks cannot grow.
    """
    facts, machine, size = kernel.facts, kernel.machine, kernel.facts.number_of
    work = count_uniform_work(kernel)
    has_other_tasks = facts.stated_tasks or facts.scanned or any(n.reduces for n in facts.nodes)
    if has_other_tasks or work.starts <= moving_cycles(machine, work.moved):
        return None
    tasks, widths = machine.row_tasks, dict(kernel.widths)
    lanes = machine.lanes or 1
    elements = max(prod(kernel.width(d) for d in op.operands[0].type.dims) for op in _writes(facts))
    most_elements = tasks.waves * lanes * tasks.most_values
    for d in reversed(facts.cut):
        width = widths.get(d, size(d))
        fitting = (
            n for n in range(2, size(d) // width + 1) if size(d) % (width * n) == 0 and elements * n <= most_elements
        )
        times = max(fitting, default=1)
        widths[d], elements = width * times, elements * times
    if widths == kernel.widths:
        return None
    waves = min(tasks.waves, max(1, elements // (lanes * tasks.values)))
    return replace(kernel, widths=widths, waves=1 << waves.bit_length() - 1)


def _writes(facts: Facts) -> list[Op]:
    """Return the program's operations that write a tensor."""
    return [n.source for n in facts.writes if n.source is not None]


def _kernel_of_half(facts: Facts, machine: Machine) -> Iterator[PlanCandidate]:
    """Yield at most one candidate: the kernel of one half of a program that is split into two; the half has no MMAs.

    A row is all elements along the dimensions that the grid cannot split, such as reduced dimensions. A workgroup has
    as many rows as the registers of its lanes hold. Yields nothing if the grid can split all dimensions, if the half
    has loops, or if an access is not contiguous along a row. `facts` is the half's analysed program.
    """
    rows = [d for d in facts.extents if d not in facts.parallel]
    along = [n.place.contiguous for n in (*facts.reads, *facts.writes) if set(rows) & n.dims]
    if not rows or facts.loops or any(d not in rows for d in along):
        return
    size = facts.number_of
    row = max(facts.size(n.dims & set(rows)) for n in facts.nodes)
    accesses = [n.place for n in (*facts.reads, *facts.writes)]
    most = max(facts.size(n.dims) for n in (*facts.reads, *facts.writes))
    sides = (facts.reads, facts.writes)
    read, written = (
        sum({n.place.memory: n.place.bytes for n in side if facts.size(n.dims) == most}.values()) for side in sides
    )
    widths, waves = contiguous_row_widths(
        machine, row, min(a.bytes for a in accesses), (read, written), {d: size(d) for d in facts.cut}
    )
    kernel = UniformKernelSchedule(facts, machine, widths, waves, {}, backward=should_run_backward(facts, machine))
    yield uniform_candidate(kernel)


def should_run_backward(facts: Facts, machine: Machine) -> bool:
    """True if a kernel should run its workgroups in reverse order, because L2 still has the end of an operand.

    It should if the first kernel of a split program wrote the operand, and the operand has more bytes than L2 holds.
    `facts` is the kernel's analysed program.
    """
    between = [n.place for n in facts.reads if n.place.memory == facts.between]
    return any(place.elements * place.bytes > l2(machine.limits) for place in between)
