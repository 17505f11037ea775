"""Work of GPU kernels without MMAs that depends on how many workgroups (tasks) a core runs at a time.

It counts spilled registers, rows that are read again, reductions across waves, short runs in memory, and waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd, prod

from tilewright.machine import Machine
from tilewright.plan.kept_rows import RowRead, reused_reads
from tilewright.plan.search.single_lane_scans import single_lane_cycles
from tilewright.plan.search.tiles import filled_box
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule
from tilewright.plan.search.work import Work


def with_resident_tasks(kernel: UniformKernelSchedule, work: Work) -> Work:
    """Return the `work` of a GPU kernel without MMAs, with the counts filled in that resident workgroups determine.

    Several workgroups are resident on a core at a time. They determine these counts:

    - workgroups per core at a time, and cycles to exchange partial reductions between waves;
    - bytes moved again: spills, and rows that are read again;
    - shared memory traffic of rows and windows, loads of windows, and cycles for partly used cache lines;
    - waits of scans by one lane;
    - arithmetic that overlaps nothing, if all workgroups of a core run at once and read rows again;
    - cycles in which the machine starts the workgroups.

    `work` must have exactly one phase (loop nest). It is returned unchanged if the machine's description has no such
    costs.
    """
    machine, facts, costs = kernel.machine, kernel.facts, kernel.machine.costs.resident
    if not costs.lanes:
        return work
    lanes, rows = kernel.waves * (machine.lanes or 1), prod(kernel.widths.values())
    padded_rows = 1 << (rows - 1).bit_length()
    reductions = [n for n in facts.nodes if n.reduces]
    again = _spilled_share(kernel, work, lanes) * _result_elements(kernel) * machine.register_file.word_bytes
    if reductions and padded_rows > rows:
        again = max(again, (costs.uneven - 1) * work.moved)
    at_a_time = max(1, costs.lanes // lanes)
    is_plain = kernel.waves > 1 and not facts.part and not facts.loops
    reads = reused_reads(facts.program, kernel.width, lanes, machine) if is_plain else []
    again += work.tasks * _bytes_read_again(machine, reads, min(work.tasks, at_a_time * (machine.limits.cores or 1)))
    shared = _row_bytes(kernel, reads, lanes) + _window_bytes(kernel) / work.tasks
    (phase,) = work.phases
    lanes_of_windows = _window_loads(kernel) * machine.limits.gather_cycles / machine.limits.lane_rate
    phase = phase._replace(lanes=phase.lanes + lanes_of_windows, shared=phase.shared + shared)
    phase = phase._replace(gather=_line_cycles(kernel, work.tasks, reads))
    exchange = len(reductions) * costs.exchange if _do_waves_share_rows(kernel, padded_rows) else 0.0
    core_tasks, waits = ceil(work.tasks / (machine.limits.cores or 1)), work.waits
    # if all tasks of a core run at once, none loads while the others compute
    if core_tasks <= at_a_time and any(row.keeper != "nobody" for row in reads):
        waits += core_tasks * phase.trips * phase.lanes
    latency = ceil(core_tasks / at_a_time) * single_lane_cycles(kernel)
    return work._replace(
        phases=(phase,),
        at_a_time=at_a_time,
        exchange=exchange,
        again=again,
        waits=waits,
        latency=latency,
        starts=start_cycles(machine, work.tasks, at_a_time),
    )


def start_cycles(machine: Machine, tasks: int, at_a_time: int) -> float:
    """Return the cycles in which a machine starts workgroups one after another, without those started by the launch.

    There are `tasks` workgroups, of which each core runs `at_a_time` at a time. As many as run on all cores at once
    start with the launch. 0 on a CPU, which starts no workgroups.
    """
    return max(0, tasks - at_a_time * (machine.limits.cores or 1)) * machine.limits.start_cycles


def _row_bytes(kernel: UniformKernelSchedule, reads: Sequence[RowRead], lanes: int) -> float:
    """Return the bytes of shared memory traffic of one workgroup for rows that it keeps in shared memory.

    `reads` are reads that a workgroup reduces and uses again; a row is written once and read for each use. Rows that
    fit in registers of the workgroup's `lanes` lanes, and rows that are not kept, count 0.
    """
    most = kernel.machine.row_tasks.values * lanes
    kept = [row for row in reads if row.keeper == "workgroup"]
    longer = [row for row in kept if row.task_bytes > most * row.read.result.type.dtype.numpy.itemsize]
    return float(sum((row.uses + 1) * row.task_bytes for row in longer))


def _bytes_read_again(machine: Machine, reads: Sequence[RowRead], tasks: int) -> float:
    """Return the bytes of rows that a workgroup reads again after their first use, as bytes of memory traffic.

    `reads` are reads that a workgroup reduces and uses again; only rows that it keeps nowhere count. `tasks` workgroups
    run at a time. If L2 holds the rows of all these workgroups, each byte counts less: the ratio of memory to L2
    bandwidth.
    """
    limits, not_kept = machine.limits, [row for row in reads if row.keeper == "nobody"]
    near = tasks * sum(row.task_bytes for row in not_kept) <= limits.l2_bytes
    share = limits.far_rate / limits.l2_rate if near else 1.0
    return share * sum((row.uses - 1) * row.task_bytes for row in not_kept)


def _line_cycles(kernel: UniformKernelSchedule, tasks: int, reads: Sequence[RowRead]) -> float:
    """Return the cycles of one core for the loads and stores of one task (workgroup): one cycle per cache line.

    A line that a wave's load touches takes a cycle, even if the wave needs only a part of it. The kernel has `tasks`
    tasks. `reads` are reads that a task reduces and uses again; rows that it does not keep in between are loaded for
    each use.
    """
    facts, line, size = kernel.facts, kernel.machine.lane_access.line_bytes, kernel.facts.number_of
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
    """Return the bytes that all workgroups together load from shared memory for sliding windows, which overlap.

    If a window slides along the contiguous dimension, elements are loaded one by one, and each counts as at least one
    register word. 0 if no read has a sliding window.
    """
    facts, word, total = kernel.facts, kernel.machine.register_file.word_bytes, 0.0
    parallel = {name for d in kernel.widths for name in facts.digit_names(d)}
    for n in facts.reads:
        slides = [len(form) > 1 and any(d not in parallel for d, _ in form) for form in n.place.coords]
        if any(slides):
            total += facts.size(n.dims) * (max(word, n.place.bytes) if slides[-1] else n.place.bytes)
    return total


def _window_loads(kernel: UniformKernelSchedule) -> float:
    """Return the number of loads with which one workgroup's lanes copy inputs of sliding windows to shared memory.

    A load is a vector if the rows of the inputs begin at multiples of a vector, else one element. 0 if no read has a
    sliding window.
    """
    facts, vector_bytes, loads = kernel.facts, kernel.machine.lane_access.vector_bytes, 0.0
    widths = dict[str, int]()
    for d in kernel.widths:
        digits = tuple(name for name in facts.digit_names(d) if name in facts.extents)
        widths |= filled_box(facts, digits, kernel.width(d), up=True)
    for place in (n.place for n in facts.reads):
        if not any(len(form) > 1 and any(d not in widths for d, _ in form) for form in place.coords):
            continue
        spans = [1 + sum(abs(c) * (widths.get(d, facts.extents[d]) - 1) for d, c in form) for form in place.coords]
        begins = place.offsets[-1] if place.offsets else 0
        vector = gcd(vector_bytes // place.bytes, place.shape[-1], spans[-1], begins if isinstance(begins, int) else 1)
        loads += prod(spans) / vector
    return loads


def _do_waves_share_rows(kernel: UniformKernelSchedule, padded_rows: int) -> bool:
    """True if several waves reduce parts of the same row, so that they combine their results through shared memory.

    `padded_rows` is the number of rows of a workgroup, rounded up to a power of two. If rows are contiguous in memory,
    waves share them if there are more waves than rows. If neighbouring rows are contiguous instead (column-major),
    lanes are first distributed across rows, a vector of rows each. Waves then share rows if lanes are left over, and
    the reduced dimensions have more elements than the lanes of one wave that work on a row.
    """
    facts, machine = kernel.facts, kernel.machine
    lanes = machine.lanes or 1
    across = [n.place for n in facts.reads if n.place.contiguous in {str(d) for d in kernel.widths}]
    if not across:
        return padded_rows < kernel.waves
    vector = machine.lane_access.vector_bytes // min(place.bytes for place in across)
    slots = max(1, padded_rows // vector)
    reduced = facts.size(frozenset[str]().union(*(n.space - n.dims for n in facts.nodes if n.reduces)))
    return slots < lanes * kernel.waves and reduced > lanes // min(lanes, slots)


def _result_elements(kernel: UniformKernelSchedule) -> float:
    """Return the number of elements that all workgroups together write in one loop iteration, of the largest result.

    Without loops, that is the whole result. A loop over n of the d elements of a dimension per iteration multiplies the
    number by n / d, whether or not the result has this dimension.
    """
    size, facts = kernel.facts.number_of, kernel.facts
    most = max((facts.size(n.dims) for n in facts.writes), default=0)
    return most * prod(min(1.0, n / max(1, size(d))) for d, n in kernel.loops.items())


def _spilled_share(kernel: UniformKernelSchedule, work: Work, lanes: int) -> float:
    """Return the fraction (0 to 1) of a lane's live values that do not fit in its registers.

    A core is taken to run as many lanes as the machine's costs say. `lanes` is the number of lanes per workgroup;
    `work` is the kernel's counted work, with the number of workgroups. 0 on a machine whose description has no register
    file.
    """
    machine, facts, costs = kernel.machine, kernel.facts, kernel.machine.costs.resident
    file = machine.spaces["register"].bytes
    if file is None:
        return 0.0
    word, smallest = (
        machine.register_file.word_bytes,
        min((n.place.bytes for n in facts.reads or facts.writes), default=1),
    )
    live_words = _result_elements(kernel) / work.tasks / lanes * (smallest + word) / 2 / word
    lane_words = file / word / max(costs.lanes, lanes) - costs.registers
    return max(0.0, 1 - lane_words / live_words) if live_words else 0.0
