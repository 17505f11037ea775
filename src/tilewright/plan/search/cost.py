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


BALANCED = 5
"""The tasks per core from which on uneven cores end at about the same time."""


class CopyRate(NamedTuple):
    """How fast copies to shared memory are.

    `share` is the fraction of the machine's cores at work: the more cores work, the longer L2 takes for each. `latency`
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

    If the machine can launch a kernel while the kernel before it ends (programmatic dependent launch), the result is
    the smaller of the cycles of such a launch and of a plain launch.
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

    The row is copied in slabs (rows of shared memory) of `slab` elements, `element_bytes` bytes each. A last slab that
    is not full takes as long as a full one, but has a slow-down of its own if it ends within an L2 sector. `pitch` is
    the number of bytes between the starts of rows in global memory; 0 means that all rows are aligned. Copies take
    longer if the bytes of an L2 sector, or of a slab, do not divide `pitch`.
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

    The longest of three decides: arithmetic (the longer of MMAs and lanes, plus the exposed share of the shorter),
    reads of shared memory, and copies to shared memory. Exposed latencies and serial work are added. Too few stages
    make the iteration longer, unless one of its MMAs waits for another (`p.is_dependent`). `o` (an Overlap) has the
    wave groups and stages, `rate` (a CopyRate) says how fast copies are; `extra_copy_cycles` are added to the copies.
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

    A stage that MMAs have read is filled again, which takes a minimum time. `cycles` is the length of an iteration
    without the wait. The first iterations of a task find all stages free and do not wait. `p` (a Phase) is the work of
    an iteration, `o` (an Overlap) has the number of stages. 0 if no operand has stages.
    """
    if not p.per_stage:
        return 0.0
    handed_over = max(0.0, 1 - o.stages * p.per_stage / p.trips)
    return handed_over * max(0.0, limits.least_step / p.per_stage - cycles)


def _copy_cycles(limits: Limits, p: Phase, share: float) -> float:
    """Return the cycles of one core to copy the operands of one iteration to shared memory.

    It is the longest of three: the copied bytes at L2's rate; the traffic in L2, multiplied by `share`; and the loads
    of lanes that copy operands without bulk copies. `share` is the fraction of the machine's cores at work. `p` (a
    Phase) has the bytes and cycles.
    """
    return max(p.copied / limits.l2_rate, max(p.l2, limits.alone * p.alone / limits.l2_rate) * share, p.gather)


def _exposed_share(limits: Limits, p: Phase, o: Overlap) -> float:
    """Return the fraction (0 to 1) of the shorter of MMA and ALU (lane) cycles that stays exposed in an iteration.

    Exposed cycles overlap nothing else. `p` (a Phase) is the iteration's work. `o` (an Overlap) has the number g of
    wave groups, the stages, and `ahead`: MMAs start one iteration ahead. There are two cases:

    - MMAs are independent: 0 with `ahead`; else 1/g, as g groups overlap each other.
    - An MMA waits for another MMA of the iteration: 1/g**2. With `ahead` and two or more stages it is 0 instead, or the
      machine's constant `lone_shown` for a single group.
    """
    ahead = o.ahead and o.stages > 1
    if not p.is_dependent:
        return 0.0 if o.ahead else 1 / o.groups
    if ahead:
        return limits.lone_shown if o.groups == 1 else 0.0
    return 1 / o.groups**2


def stored_cycles(machine: Machine, e: TaskEnd) -> float:
    """Return the cycles of one core to write the results of a workgroup's epilogue `e` to shared memory.

    Each element takes one register word.
    """
    return e.outputs * machine.register_file.word_bytes / machine.limits.shared_rate


def end_cycles(machine: Machine, e: TaskEnd, o: Overlap) -> float:
    """Return the cycles of one workgroup's epilogue `e`, which writes results through shared to global memory.

    `o` (an Overlap) says how many wave groups (such as warpgroups) share the epilogue: the more groups, the shorter the
    waits between accumulator tiles. If `o` has a single buffer for results, the workgroup also waits for that buffer.
    The latency of the last copy to global memory is included.
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
    core runs several tasks at a time (`w.at_a_time`), the waits of one task overlap the memory traffic of the others.
    If there are fewer tasks than cores, idle cores move nothing, so that bandwidth cycles grow.
    """
    limits, cores = machine.limits, machine.limits.cores or 1
    tasks_per_core = tasks_in_turn(machine, w.tasks)
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


def tasks_in_turn(machine: Machine, tasks: int) -> float:
    """Return the time until all `tasks` are done on all cores, in units of the time of an average task.

    If the cores of the machine are equally fast, or if there is one core or one task, it is tasks / cores, rounded up.
    Otherwise it is the mean of that number and of max(1, tasks / cores) * (1 + delay). With one task per core, the
    delay is `limits.uneven`. It falls linearly to 0 at BALANCED (5) tasks per core, since the last tasks go to cores
    that are ready.
    """
    cores, uneven = machine.limits.cores or 1, machine.limits.uneven
    in_rounds = ceil(tasks / cores)
    if not uneven or min(tasks, cores) == 1:
        return in_rounds
    per_core = max(1.0, tasks / cores)
    delayed = max(0.0, (BALANCED - per_core) / (BALANCED - 1))
    return (in_rounds + per_core * (1 + uneven * delayed)) / 2


def _phase_cycles(machine: Machine, p: Phase) -> float:
    """Return the cycles of one core for one iteration of the loop nest `p` (a Phase) of a kernel without a pipeline.

    On a GPU it is the sum of the cycles of MMAs, lanes (ALUs), shared memory and copies; loads by lanes (`p.gather`)
    are left to the caller. On a machine without lanes (a CPU) it is the cycles of vectors, plus about the longer of
    MMAs and reads of operands: loads overlap the MMAs that use them.
    """
    limits = machine.limits
    if machine.lanes is None:
        return overlapped_cycles(p.sharpness, p.mma, p.gather, p.late) + p.lanes
    return p.mma + p.copied / limits.l2_rate + p.lanes + p.shared / limits.shared_rate


def overlapped_cycles(sharpness: float, *cycles: float) -> float:
    """Return the total time of activities that overlap: about the longest, more if others are nearly as long.

    It is the p-norm of `cycles` (the time of each activity; at least one) with the exponent p = `sharpness`. The
    exponent 1 gives the sum, a large exponent nearly the maximum, and 0 the maximum.

    >>> overlapped_cycles(0, 3, 4), overlapped_cycles(1, 3, 4), overlapped_cycles(2, 3, 4)
    (4, 7.0, 5.0)
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

    `w` is the kernel's work, `steps` are the cycles per iteration of each phase. Masks let a task skip iterations: the
    task executes the fraction `share` (0 to 1) of them. The fraction applies to phases with masks, and to phases in
    which MMAs wait for each other; all iterations of other phases are executed. `masked` is the number of the task's
    partly masked iterations, which take longer.
    """
    total = 0.0
    for p, step in zip(w.phases, steps, strict=True):
        total += p.trips * (share if p.is_dependent or p.masked or p.is_skipped else 1) * step + masked * p.masked
    return total


def _even_tasks_cycles(machine: Machine, w: Work, o: Overlap, steps: list[float], end: float, share: float) -> float:
    """Return the cycles of all tasks (workgroups' tiles) of a pipelined kernel whose tasks are equally long.

    Cores work in rounds, each core on one task per round; the result is the sum over rounds. `steps` are the cycles per
    iteration of each phase (loop nest), `end` the cycles per epilogue, `share` the fraction of cores at work. `w` is
    the kernel's work; its `lengths` has one entry. With ping-pong in `o` (an Overlap), the epilogue of a task overlaps
    the iterations of the next task.
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
    """Return the extra cycles per core for tiles at the edges of C, which copy out-of-bounds rows too.

    An edge tile extends past the end of M or N; the cycles are summed over all edge tiles of the core, 0 if it has
    none. Only bulk copies count, because lanes that copy operands leave out rows that are out of bounds. `rate` (a
    CopyRate) says how fast copies are. `w` is the kernel's work, `o` (an Overlap) has its wave groups and stages.
    """
    copying = [p for p in w.phases if p.copied]
    if not w.edges or not copying:
        return 0.0
    p = max(copying, key=lambda p: p.trips)
    longer = step_cycles(machine, p, o, rate, w.outside * machine.limits.outside_row)
    return w.edges * p.trips * (longer - step_cycles(machine, p, o, rate))
