"""Tasks of kernels without a pipeline that run on a core at a time: their registers, and what each waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

from tilewright.machine import Machine
from tilewright.plan.boxes import numbers_of
from tilewright.plan.kept_rows import RowRead, row_reads
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule
from tilewright.plan.search.walks import walk_cycles
from tilewright.plan.search.work import Work


def with_residence(kernel: UniformKernelSchedule, work: Work) -> Work:
    """Return `work` with what depends on how a task of a GPU goes over its rows, and how many tasks a core runs.

    That is: the number of tasks (workgroups) that a core runs at a time; the cycles per task in which its waves
    exchange partial reductions; the bytes that move a second time, because registers spill, because lanes share rows
    unevenly, or because rows are read again; the bytes of rows and of windows in shared memory; the cycles of loads and
    stores whose runs are shorter than a cache line; and the arithmetic on rows that are loaded before, if all tasks of
    a core run at once, so that nothing overlaps it. `work` is returned unchanged if the machine's description has
    no costs for these.
    """
    machine, facts, costs = kernel.machine, kernel.facts, kernel.machine.costs.resident
    if not costs.lanes:
        return work
    lanes, rows = kernel.waves * (machine.lanes or 1), prod(kernel.widths.values())
    dealt = 1 << (rows - 1).bit_length()
    reductions = [n for n in facts.nodes if n.reduces]
    again = _spilled_share(kernel, work, lanes) * _result_elements(kernel) * machine.register_file.word_bytes
    if reductions and dealt > rows:
        again = max(again, (costs.uneven - 1) * work.moved)
    at_a_time = max(1, costs.lanes // lanes)
    is_plain = kernel.waves > 1 and not facts.part and not facts.loops
    reads = row_reads(facts.program, kernel.width, lanes, machine) if is_plain else []
    again += work.tasks * _bytes_read_again(machine, reads, min(work.tasks, at_a_time * (machine.limits.cores or 1)))
    shared = _row_bytes(kernel, reads, lanes) + _window_bytes(kernel) / work.tasks
    (phase,) = work.phases
    phase = replace(phase, shared=phase.shared + shared, gather=_line_cycles(kernel, work.tasks, reads))
    exchange = len(reductions) * costs.exchange if _is_shared_by_waves(kernel, dealt) else 0.0
    of_core, waits = ceil(work.tasks / (machine.limits.cores or 1)), work.waits
    if of_core <= at_a_time and any(row.keeper != "nobody" for row in reads):  # when they compute, no other task loads
        waits += of_core * phase.trips * phase.lanes
    latency = ceil(of_core / at_a_time) * walk_cycles(kernel)
    return replace(
        work,
        phases=(phase,),
        at_a_time=at_a_time,
        exchange=exchange,
        again=again,
        waits=waits,
        latency=latency,
        starts=start_cycles(machine, work.tasks, at_a_time),
    )


def start_cycles(machine: Machine, tasks: int, at_a_time: int) -> float:
    """Return the cycles in which a machine starts the workgroups of all tasks but the first that its cores hold.

    A core holds the workgroups of `at_a_time` tasks; the first are part of the launch. 0 on a CPU, which starts none.
    """
    return max(0, tasks - at_a_time * (machine.limits.cores or 1)) * machine.limits.start_cycles


def _row_bytes(kernel: UniformKernelSchedule, reads: Sequence[RowRead], lanes: int) -> float:
    """Return the bytes of shared memory that a task of `lanes` lanes stores and loads of rows that it keeps there.

    Rows for which lanes have registers take none.
    """
    most = kernel.machine.row_tasks.values * lanes
    kept = [row for row in reads if row.keeper == "workgroup"]
    longer = [row for row in kept if row.task_bytes > most * row.read.result.type.dtype.numpy.itemsize]
    return float(sum((row.uses + 1) * row.task_bytes for row in longer))


def _bytes_read_again(machine: Machine, reads: Sequence[RowRead], tasks: int) -> float:
    """Return the bytes of rows that a task reads again, as many as memory moves in the time that their cache takes.

    Rows come from L2 if it holds those of all `tasks` that run at a time.
    """
    limits, longest = machine.limits, [row for row in reads if row.keeper == "nobody"]
    near = tasks * sum(row.task_bytes for row in longest) <= limits.l2_bytes
    share = limits.far_rate / limits.l2_rate if near else 1.0
    return share * sum((row.uses - 1) * row.task_bytes for row in longest)


def _line_cycles(kernel: UniformKernelSchedule, tasks: int, reads: Sequence[RowRead]) -> float:
    """Return the cycles of one core in which the loads and stores of a task go over cache lines, one after another.

    A wave's load takes a cycle for each line that it touches, however little of the line it needs.
    """
    facts, line, size = kernel.facts, kernel.machine.lane_access.line_bytes, numbers_of(kernel.facts.sizes)
    dims = {str(d): d for d in facts.order}
    uses = {row.read: row.uses for row in reads if row.keeper == "nobody"}
    cycles = 0.0
    for n in (*facts.reads, *facts.writes):
        run = line
        if (d := dims.get(str(n.place.contiguous))) is not None and kernel.width(d) * n.place.bytes < line:
            is_row = kernel.width(d) == size(d) == n.place.shape[-1] and len(n.place.shape) == 1
            run = line if is_row else kernel.width(d) * n.place.bytes
        times = uses.get(n.source, 1) if n.source is not None else 1
        cycles += times * facts.size(n.dims) / tasks * n.place.bytes / run
    return cycles


def _window_bytes(kernel: UniformKernelSchedule) -> float:
    """Return the bytes that all tasks load of windows in shared memory, where neighbouring windows overlap.

    If windows slide along what is contiguous, elements are loaded one by one, each in the time of a register.
    """
    facts, word, total = kernel.facts, kernel.machine.register_file.word_bytes, 0.0
    parallel = {name for d in kernel.widths for name in facts.digit_names(d)}
    for n in facts.reads:
        slides = [len(form) > 1 and any(d not in parallel for d, _ in form) for form in n.place.coords]
        if any(slides):
            total += facts.size(n.dims) * (max(word, n.place.bytes) if slides[-1] else n.place.bytes)
    return total


def _is_shared_by_waves(kernel: UniformKernelSchedule, dealt: int) -> bool:
    """True if several waves have parts of a row that is reduced, so that they exchange them through shared memory.

    `dealt` is the number of rows of a task, as a power of two. Lanes lie along rows that are contiguous; where
    neighbours in memory are of different rows, they lie across rows first, a vector of rows each.
    """
    facts, machine = kernel.facts, kernel.machine
    lanes = machine.lanes or 1
    across = [n.place for n in facts.reads if n.place.contiguous in {str(d) for d in kernel.widths}]
    if not across:
        return dealt < kernel.waves
    vector = machine.lane_access.vector_bytes // min(place.bytes for place in across)
    slots = max(1, dealt // vector)
    reduced = facts.size(frozenset[str]().union(*(n.space - n.dims for n in facts.nodes if n.reduces)))
    return slots < lanes * kernel.waves and reduced > lanes // min(lanes, slots)


def _result_elements(kernel: UniformKernelSchedule) -> float:
    """Return the number of elements of the largest result that all workgroups together compute in one loop iteration.

    Without loops these are all elements of the result.
    """
    size, facts = numbers_of(kernel.facts.sizes), kernel.facts
    most = max((facts.size(n.dims) for n in facts.writes), default=0)
    return most * prod(min(1.0, n / max(1, size(d))) for d, n in kernel.loops.items())


def _spilled_share(kernel: UniformKernelSchedule, work: Work, lanes: int) -> float:
    """Return the fraction (0 to 1) of a lane's live values that do not fit in its registers.

    `lanes` is the number of lanes per workgroup. 0 on a machine that does not state its registers. `work` is the
    kernel's counted work (cycles and bytes).
    """
    machine, facts, costs = kernel.machine, kernel.facts, kernel.machine.costs.resident
    file = machine.spaces["register"].bytes
    if file is None:
        return 0.0
    word, smallest = (
        machine.register_file.word_bytes,
        min((n.place.bytes for n in facts.reads or facts.writes), default=1),
    )
    held = _result_elements(kernel) / work.tasks / lanes * (smallest + word) / 2 / word
    room = file / word / max(costs.lanes, lanes) - costs.registers
    return max(0.0, 1 - room / held) if held else 0.0
