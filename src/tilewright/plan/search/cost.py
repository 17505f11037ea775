"""The cost model: from counts of work to cycles, with rates from the machine's description, and the roofline."""

from __future__ import annotations

from math import ceil, gcd
from typing import NamedTuple

from tilewright.machine import Limits, Machine
from tilewright.plan.model import moving_cycles
from tilewright.plan.search.ranking import ENOUGH_STAGES
from tilewright.plan.search.work import Phase, TaskEnd, Work


class Overlap(NamedTuple):
    """How the work of a kernel overlaps: `groups` wave groups (such as warpgroups) and `stages` pipeline stages.

    0 stages mean that there is no pipeline. With `ahead`, MMAs start one iteration ahead; with `ordered`, wave groups
    also take turns to start them. With `pingpong`, each half of the wave groups takes every second task.
    """

    groups: int
    stages: int
    ahead: bool = False
    ordered: bool = False
    pingpong: bool = False
    stored: int = 2
    """Buffers of results on their way to memory."""
    halo_stages: int = 0
    """Stages of halo tiles (input patches of a convolution); 0: there are none."""

    @property
    def all_groups(self) -> int:
        """The number of wave groups (such as warpgroups) that multiply; with ping-pong, those of both halves."""
        return self.groups * (2 if self.pingpong else 1)


SAME_WAVES = Overlap(1, 0)
"""The Overlap of kernels without a pipeline: all waves run the same code, and the work of arithmetic and copies adds
up."""


class CopyRate(NamedTuple):
    """How fast copies to shared memory are.

    `share` is the fraction of the machine's cores at work: the more there are, the longer L2 takes for each. `latency`
    is the latency of a copy in cycles.
    """

    share: float
    latency: float


def copy_rate(machine: Machine, w: Work) -> CopyRate:
    """Return a CopyRate (fraction of cores at work, latency of a copy in cycles) for a kernel with the work `w`.

    The latency depends on how many operands L2 still holds since the launch before: few if the kernel moves many bytes.
    It lies between the latency of L2 and that of memory.
    """
    limits, cores = machine.limits, machine.limits.cores or 1
    kept_below, lost_above = (share * limits.l2_bytes for share in limits.operands_kept)
    far = min(1.0, max(0.0, (w.moved - kept_below) / (lost_above - kept_below))) if lost_above > kept_below else 0.0
    return CopyRate(min(w.tasks, cores) / cores, limits.copy_latency + far * limits.far_latency)


class KernelTime(NamedTuple):
    """The predicted cycles of a kernel: `cycles` is the prediction, `unbounded` the cycles if memory had infinite
    bandwidth.

    `cycles` includes the shortest launch that the machine has, `unbounded` a plain launch.
    """

    cycles: float
    unbounded: float


def launch_cycles(machine: Machine) -> float:
    """Return the fixed cycles to start (launch) one kernel, before its first workgroup runs.

    If the machine can launch a kernel while the one before it ends (programmatic dependent launch), it is the smaller
    of the cycles of such a launch and of a plain launch.
    """
    limits = machine.limits
    early = "programmatic" in machine.launches
    return min(limits.launch_cycles, limits.following_cycles) if early else limits.launch_cycles


def roofline(machine: Machine, mma: float, lanes: float, moved: float) -> float:
    """Return the fewest cycles of any schedule: the maximum of MMA, lane (ALU) and memory cycles, plus one launch.

    `mma` and `lanes` are the cycles that a single core would take for all of the program's work; they are divided by
    the number of cores. `moved` is the number of bytes that the program moves to and from global memory. A launch is
    the fixed cycles to start a kernel.
    """
    cores = machine.limits.cores or 1
    return max(mma / cores, lanes / cores, moving_cycles(machine, moved)) + launch_cycles(machine)


def line_factor(machine: Machine, row_bytes: int, pitch: int) -> float:
    """Return the factor (1 or more) by which L2 is slower because rows do not start at multiples of their width.

    A row has `row_bytes` bytes, and rows start `pitch` bytes apart in global memory. The factor is 1 if `row_bytes`
    divides `pitch`.
    """
    return 1 + (machine.limits.crossing - 1) * (1 - gcd(row_bytes, pitch) / row_bytes)


def row_cycles(machine: Machine, k: int, slab: int, element_bytes: int, pitch: int) -> float:
    """Return the L2 cycles of one core to copy one operand row of `k` elements from global to shared memory.

    The row is copied in slabs (rows of shared memory) of `slab` elements, `element_bytes` bytes each. `pitch` is the
    number of bytes between the starts of rows in global memory; copies take longer if it is no multiple of an L2
    sector. 0 means that all rows are aligned. A last slab that is not full takes at least as long as a full one.
    """
    limits, row = machine.limits, slab * element_bytes
    whole, rest = divmod(k, slab)
    misaligned = limits.misaligned_row if pitch % limits.sector_bytes else 1.0
    tail = rest * element_bytes
    last = (
        limits.misaligned_row_tail
        if pitch and tail > limits.sector_bytes and tail % limits.sector_bytes
        else misaligned
    )
    factor = line_factor(machine, row, pitch) / limits.l2_rate
    return row * factor * (whole * misaligned + (last if rest else 0))


def step_cycles(machine: Machine, p: Phase, o: Overlap, rate: CopyRate, extra_copy_cycles: float = 0.0) -> float:
    """Return one core's cycles for one iteration of a loop with a pipeline; `p` (a Phase) has the loop's work.

    It is the maximum of three: arithmetic (the longer of MMAs and lanes, plus the exposed share of the shorter), reads
    of shared memory, and copies to shared memory. Exposed latencies are added, and too few stages make it longer. `o`
    (an Overlap) has the wave groups and stages, `rate` (a CopyRate) says how fast copies are; `extra_copy_cycles` are
    added to copies.
    """
    limits = machine.limits
    is_lone = p.is_lone or (o.all_groups == 1 and not p.is_dependent)
    mma, lanes = p.mma * (limits.lone_group if is_lone else 1), p.lanes
    if p.is_dependent:
        mma, lanes = mma + limits.group_latency * o.groups, lanes + limits.lane_latency / o.groups
    elif o.groups == 1:
        lanes *= limits.lone_lanes
    busy = max(mma, lanes) + min(mma, lanes) * _exposed_share(limits, p, o)
    busy += limits.operand_latency * p.computed
    copies = _copy_cycles(limits, p, rate.share) + extra_copy_cycles
    cycles = max(busy, p.shared / limits.shared_rate, copies) + limits.copy_shown * copies
    slowly_read = max(limits.strewn * p.strewn, limits.rewritten * p.rewritten)
    cycles = max(cycles, (1 + limits.copy_shown) * slowly_read / limits.l2_rate * rate.share)
    if p.is_dependent:
        return cycles + p.serial + (limits.turn_latency if o.ordered else 0)
    if copies:  # a stage is used, and filled again, while the others are used
        if o.stages > 1 and p.per_stage:
            cycles = max(cycles, (busy + copies + rate.latency / p.per_stage) / o.stages)
        if o.halo_stages:
            cycles = max(cycles, (busy + copies + rate.latency / p.per_halo_stage) / o.halo_stages)
    if o.stages * p.slabs < ENOUGH_STAGES and o.stages > 1:
        cycles *= limits.shallow_ring
    if p.mma:
        cycles += _stage_wait(limits, p, o, cycles) + limits.group_step * (o.all_groups - 1)
    return cycles + p.serial


def _stage_wait(limits: Limits, p: Phase, o: Overlap, cycles: float) -> float:
    """Return the average cycles per iteration that waves wait for a pipeline stage, because iterations are too short.

    A stage that was used goes back to the copies, which takes a minimum time. `cycles` is the length of an iteration
    without the wait. The first iterations of a task find all stages free and do not wait. `p` (a Phase) is the work of
    an iteration, `o` (an Overlap) has the number of stages. 0 if no operand has stages.
    """
    if not p.per_stage:
        return 0.0
    handed_over = max(0.0, 1 - o.stages * p.per_stage / p.trips)
    return handed_over * max(0.0, limits.least_step / p.per_stage - cycles)


def _copy_cycles(limits: Limits, p: Phase, share: float) -> float:
    """Return the cycles of one core to copy the operands of one iteration to shared memory.

    It is the longest of the bytes at L2's rate, the traffic in L2, and lanes' own loads. L2 takes longer the more cores
    are at work: `share` is the fraction of the machine's cores. `p` (a Phase) has the bytes.
    """
    return max(p.copied / limits.l2_rate, max(p.l2, limits.alone * p.alone / limits.l2_rate) * share, p.gather)


def _exposed_share(limits: Limits, p: Phase, o: Overlap) -> float:
    """Return the fraction (0 to 1) of the shorter of MMA and ALU (lane) cycles that stays exposed in an iteration.

    Exposed cycles overlap nothing else. With one wave group all of them are exposed; g groups overlap each other, and
    expose 1/g. MMAs that start one iteration ahead leave nothing exposed. If MMAs wait for another MMA of the
    iteration, g groups expose 1/g**2, and starting ahead needs two or more stages; a single group then still exposes a
    constant share. `p` (a Phase) is the iteration's work, `o` (an Overlap) has wave groups and stages.
    """
    ahead = o.ahead and o.stages > 1
    if not p.is_dependent:
        return 0.0 if o.ahead else 1 / o.groups
    if ahead:
        return limits.lone_shown if o.groups == 1 else 0.0
    return 1 / o.groups**2


def stored_cycles(machine: Machine, e: TaskEnd) -> float:
    """Return the cycles of one core to write the results of a workgroup's epilogue `e` to shared memory."""
    return e.outputs * machine.register_file.word_bytes / machine.limits.shared_rate


def end_cycles(machine: Machine, e: TaskEnd, o: Overlap) -> float:
    """Return the cycles of one workgroup's epilogue `e`, which writes results through shared to global memory.

    `o` (an Overlap) says how many wave groups (such as warpgroups) share the epilogue: the more groups, the shorter the
    waits between accumulator tiles. With a single buffer for results, the workgroup also waits for that buffer.
    """
    limits, stored = machine.limits, stored_cycles(machine, e)
    storing = stored + e.lanes if e.reduces else max(stored, e.lanes)
    waits = (e.blocks - 1) * limits.round_latency / o.groups**2 + (limits.lone_store if o.stored == 1 else 0)
    latency = limits.copy_latency + limits.epilogue_latency
    return storing + e.by_lanes + e.narrow / limits.l2_rate + latency + waits


def kernel_time(machine: Machine, w: Work, o: Overlap) -> KernelTime:
    """Predict the time of a kernel; return a KernelTime (cycles, unbounded).

    `cycles` is the prediction: at least the time to move the kernel's bytes to and from memory, plus the shortest
    launch that the machine has. `unbounded` ignores the limit of memory bandwidth, and has a plain launch. A launch is
    the fixed cycles to start a kernel. `w` is the kernel's work. `o` (an Overlap) has the pipeline: with stages, copies
    overlap MMAs; with zero stages, all waves run the same code, and the cycles of MMAs, lanes and loads add up.
    """
    limits = machine.limits
    if o.stages:
        total, bandwidth_cycles = _pipelined_cycles(machine, w, o), moving_cycles(machine, w.moved)
        bounded = overlapped_cycles(limits.sharpness, total, bandwidth_cycles)
    else:
        total, bandwidth_cycles = _unpipelined_cycles(machine, w)
        bounded = max(total, bandwidth_cycles)
    return KernelTime(bounded + launch_cycles(machine), total + limits.launch_cycles)


def _unpipelined_cycles(machine: Machine, w: Work) -> tuple[float, float]:
    """Return (busy cycles, bandwidth cycles) of a kernel without a pipeline, whose waves all run the same code.

    Busy cycles are those of arithmetic and loads, bandwidth cycles those of memory traffic. Both are for all tasks (one
    workgroup's tile each) and include waits for memory, but not the launch (the fixed cycles to start a kernel). If a
    core runs several tasks at a time, the waits of one task overlap the memory traffic of the others.
    """
    limits, cores = machine.limits, machine.limits.cores or 1
    tasks_per_core = ceil(w.tasks / cores)
    phase_cycles = [_phase_cycles(machine, p) for p in w.phases]
    busy = tasks_per_core * sum(
        p.trips * max(cycles, p.gather) for p, cycles in zip(w.phases, phase_cycles, strict=True)
    )
    moved = moving_cycles(machine, w.moved, from_memory=w.from_memory) * max(1, cores / w.tasks)
    if w.at_a_time:
        moved += w.again / limits.far_rate / cores
        full = w.tasks / (cores * w.at_a_time)
        waiting = max(0.0, full - 1) * limits.copy_latency + full * w.exchange
        task_traffic = (
            max(1.0, full) * w.moved / w.tasks / limits.far_rate
        )  # a task waits for its own bytes, and no longer
        overlapping = overlapped_cycles(machine.costs.resident.sharpness, moved, waiting + task_traffic)
        return max(busy, w.starts, w.latency, min(overlapping, moved + waiting)) + w.waits, moved + w.waits
    return max(busy, w.starts, w.latency) + w.waits, moved + w.waits


def _phase_cycles(machine: Machine, p: Phase) -> float:
    """Return the cycles of one core for one iteration of the loop nest `p` (a Phase) of a kernel without a pipeline.

    It is the sum of the cycles of MMAs, lanes (ALUs), shared memory and copies. On a machine without lanes (a CPU) it
    is the cycles of vectors, plus about the longer of MMAs and reads of operands: loads overlap the MMAs that use them.
    """
    limits = machine.limits
    if machine.lanes is None:
        return overlapped_cycles(p.sharpness, p.mma, p.gather, p.late) + p.lanes
    return p.mma + p.copied / limits.l2_rate + p.lanes + p.shared / limits.shared_rate


def overlapped_cycles(sharpness: float, *cycles: float) -> float:
    """Return the total time of activities that overlap: about the longest, more if others are nearly as long.

    It is the p-norm of `cycles` (the time of each activity) with the exponent p = `sharpness`: 1 gives the sum, a large
    one nearly the maximum. With `sharpness` 0 it is the maximum.
    """
    longest = max(cycles)
    if not longest or not sharpness:
        return longest
    return float(longest * sum((x / longest) ** sharpness for x in cycles) ** (1 / sharpness))


def _pipelined_cycles(machine: Machine, w: Work, o: Overlap) -> float:
    """Return the cycles of all tasks of a pipelined kernel, in which copies of operands run ahead of the MMAs.

    A task is one workgroup's tile. The cycles include the first copies, the iterations and the epilogues, but neither
    the launch nor the bound of memory bandwidth. `w` is the kernel's work, `o` (an Overlap) has its wave groups and
    stages.
    """
    limits, rate = machine.limits, copy_rate(machine, w)
    steps = [step_cycles(machine, p, o, rate) for p in w.phases]
    arriving = next((_copy_cycles(limits, p, rate.share) for p in w.phases if p.copied), 0.0)
    before, last = float(limits.copy_latency), 0.0
    if not any(p.is_dependent for p in w.phases):  # otherwise the first iteration is as long as others
        before += arriving + (w.resident + w.first) / limits.l2_rate
        # nothing runs beside the last stores; groups that wait for each other's MMAs end one by one
        last = (stored_cycles(machine, w.end) + limits.last_store * w.end.l2 * rate.share) / w.end.blocks
    end = end_cycles(machine, w.end, o)
    longer = _edge_cycles(machine, w, o, rate)
    if len(w.lengths) > 1:
        tasks = _uneven_tasks_cycles(machine, w, steps, end)
    else:
        tasks = _even_tasks_cycles(machine, w, o, steps, end, rate.share)
    return tasks + longer + before + last


def _loop_cycles(w: Work, steps: list[float], share: float, masked: float) -> float:
    """Return the cycles of all iterations of one task (one workgroup's tile): the sum over its phases (loop nests).

    `w` is the kernel's work, `steps` are the cycles per iteration of each phase. Masks let a task skip iterations:
    `share` is the fraction (0 to 1) that it does. It applies to phases with masks, and to phases in which MMAs wait for
    each other; other phases do all iterations. `masked` is the number of the task's partly masked iterations, which
    take longer.
    """
    total = 0.0
    for p, step in zip(w.phases, steps, strict=True):
        total += p.trips * (share if p.is_dependent or p.masked or p.is_skipped else 1) * step + masked * p.masked
    return total


def _even_tasks_cycles(machine: Machine, w: Work, o: Overlap, steps: list[float], end: float, share: float) -> float:
    """Return the cycles of all tasks (workgroups' tiles) of a pipelined kernel whose tasks are equally long.

    Cores work in rounds, each core on one task per round; the result is the sum over rounds. `steps` are the cycles per
    iteration of each phase (loop nest), `end` the cycles per epilogue, `share` the fraction of cores at work. `w` is
    the kernel's work. With ping-pong in `o` (an Overlap), the epilogue of a task overlaps the iterations of the next
    task.
    """
    limits = machine.limits
    of_trips, masked, _ = w.lengths[0]
    body = _loop_cycles(w, steps, of_trips, masked)
    if not o.ordered:  # groups wait for one another's first product
        body += (o.groups - 1) / 2 * sum(p.first for p in w.phases if p.is_dependent)
    tasks_per_core = ceil(w.tasks / (limits.cores or 1))
    busy = (w.l2_read + w.end.l2) * share + limits.task_cycles
    between = (tasks_per_core - 1) * limits.next_task
    if o.pingpong and tasks_per_core > 1:
        return tasks_per_core * max(body, (body + end) / 2, busy) + end + between
    return tasks_per_core * max(body + end, busy) + between


def _uneven_tasks_cycles(machine: Machine, w: Work, steps: list[float], end: float) -> float:
    """Return the cycles of all tasks (workgroups' tiles) of a pipelined kernel if masks make tasks differ in length.

    An idle core takes the longest task that is left. `w` is the kernel's work, `steps` are the cycles per iteration of
    each phase (loop nest), `end` the cycles per epilogue. Each task also waits for its first operands. The result is at
    least the cycles of the longest task.
    """
    limits, cores = machine.limits, machine.limits.cores or 1
    begin = limits.task_cycles + limits.copy_latency
    lengths = [(begin + _loop_cycles(w, steps, share, masked) + end, tasks) for share, masked, tasks in w.lengths]
    total = sum(cycles * tasks for cycles, tasks in lengths) / cores + min(cycles for cycles, _ in lengths)
    return max(total, max(cycles for cycles, _ in lengths))


def _edge_cycles(machine: Machine, w: Work, o: Overlap, rate: CopyRate) -> float:
    """Return the extra cycles per core for tiles at the edges of C, which copy out-of-bounds rows too; 0 if there are
    none.

    An edge tile extends past the end of M or N; the cycles are summed over all edge tiles of the core. Lanes that copy
    rows leave those out that lie outside, so that only bulk copies count. `rate` (a CopyRate) says how fast copies are.
    `w` is the kernel's work, `o` (an Overlap) has its wave groups and stages.
    """
    copying = [p for p in w.phases if p.copied]
    if not w.edges or not copying:
        return 0.0
    p = max(copying, key=lambda p: p.trips)
    longer = step_cycles(machine, p, o, rate, w.outside * machine.limits.outside_row)
    return w.edges * p.trips * (longer - step_cycles(machine, p, o, rate))
