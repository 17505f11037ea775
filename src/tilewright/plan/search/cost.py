"""The cost: from counts of work to cycles, with rates from the machine's row, and the roofline."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd

from tilewright.machine import Limits, Machine
from tilewright.plan.search.ranking import ENOUGH_STAGES
from tilewright.plan.search.work import Phase, TaskEnd, Work


@dataclass(frozen=True)
class Overlap:
    """How the work of a kernel overlaps: groups of waves, pipeline stages, and what runs beside what.

    Without stages there is no pipeline. `ahead`: products start one iteration ahead; `ordered`: groups of waves take
    turns at that; `pingpong`: halves of the groups take tasks in turn.
    """

    groups: int
    stages: int
    ahead: bool = False
    ordered: bool = False
    pingpong: bool = False


SAME_WAVES = Overlap(1, 0)
"""All waves do the same: what they do adds up, and tasks of a core overlap."""


@dataclass(frozen=True)
class KernelTime:
    """Cycles of a kernel: in all, and without the bound that memory sets and without a quicker launch."""

    cycles: float
    unbounded: float


def launch_cycles(machine: Machine) -> float:
    """Cycles of a launch: one that begins while the kernel before it ends, where the machine has those."""
    limits = machine.limits
    early = "programmatic" in machine.launches
    return min(limits.launch_cycles, limits.following_cycles) if early else limits.launch_cycles


def moving(machine: Machine, count: float, *, from_memory: bool = False) -> float:
    """Cycles in which all cores together move bytes, which the L2 cache has kept where it holds them."""
    limits = machine.limits
    kept = limits.l2_bytes is not None and count <= limits.l2_bytes and not from_memory
    return count / (limits.far_rate * (limits.warm if kept else 1)) / (limits.cores or 1)


def roofline(machine: Machine, mma: float, lanes: float, moved: float) -> float:
    """Cycles that no schedule beats: matrix units or lanes on all cores, or memory; and a launch."""
    cores = machine.limits.cores or 1
    return max(mma / cores, lanes / cores, moving(machine, moved)) + launch_cycles(machine)


def line_factor(machine: Machine, row: int, pitch: int) -> float:
    """How many times as long the L2 cache takes for rows of `row` bytes that lie `pitch` bytes apart."""
    return 1 + (machine.limits.crossing - 1) * (1 - gcd(row, pitch) / row)


def row_cycles(machine: Machine, k: int, slab: int, element: int, pitch: int) -> float:
    """Cycles of the L2 cache for a row of all of K, in slabs; 0 as pitch: rows lie well."""
    limits, row = machine.limits, slab * element
    whole, rest = divmod(k, slab)
    misaligned = limits.askew if pitch % limits.sector_bytes else 1.0
    tail = rest * element
    last = limits.askew_partial if pitch and tail > limits.sector_bytes and tail % limits.sector_bytes else misaligned
    factor = line_factor(machine, row, pitch) / limits.l2_rate
    return row * factor * (whole * misaligned + (last if rest else 0))


def step_cycles(machine: Machine, p: Phase, o: Overlap, share: float, more: float = 0.0) -> float:
    """Cycles of one iteration: the slowest of matrix units, lanes, shared memory and copies, and what nothing hides.

    `share` is that of the cores which are at work; `more` are cycles of copies beside their own.
    """
    limits = machine.limits
    mma, lanes = p.mma * (limits.lone_group if p.is_lone else 1), p.lanes
    if p.is_dependent:
        mma, lanes = mma + limits.group_latency * o.groups, lanes + limits.lane_latency / o.groups
    busy = max(mma, lanes) + min(mma, lanes) * _shown_share(limits, p, o)
    copies = max(p.copied / limits.l2_rate, p.l2 * share, p.gather) + more
    cycles = max(busy, p.shared / limits.shared_rate, copies) + limits.copy_shown * copies
    if not p.is_dependent and o.stages > 1 and copies:  # a stage is used, and filled again, while the others are used
        cycles = max(cycles, (busy + copies + limits.copy_latency / p.per_stage) / o.stages)
    if o.stages * p.slabs < ENOUGH_STAGES and o.stages > 1 and not p.is_dependent:
        cycles *= limits.shallow_ring
    return cycles + p.serial + (limits.turn_latency if o.ordered and p.is_dependent else 0)


def _shown_share(limits: Limits, p: Phase, o: Overlap) -> float:
    """The share that shows of the shorter of matrix units and lanes: other groups of waves hide it, or products ahead.

    With one stage no product starts ahead, and one group alone hides a part of its own.
    """
    ahead = o.ahead and o.stages > 1
    if not p.is_dependent:
        return 0.0 if o.ahead else 1 / o.groups
    if ahead:
        return limits.lone_shown if o.groups == 1 else 0.0
    return 1 / o.groups**2


def end_cycles(machine: Machine, e: TaskEnd, groups: int) -> float:
    """Cycles of the end of a task."""
    limits = machine.limits
    stored = e.outputs * machine.register_file.word_bytes / limits.shared_rate
    way_out = stored + e.lanes if e.reduces else max(stored, e.lanes)
    waits = (e.blocks - 1) * limits.round_latency / groups**2
    return way_out + e.narrow / limits.l2_rate + limits.copy_latency + waits


def kernel_time(machine: Machine, w: Work, o: Overlap) -> KernelTime:
    """Cycles of a kernel with its launch."""
    limits = machine.limits
    if o.stages:
        total, least = _pipelined(machine, w, o), moving(machine, w.moved)
    else:
        total, least = _without_pipeline(machine, w)
    return KernelTime(max(total, least) + launch_cycles(machine), total + limits.launch_cycles)


def _without_pipeline(machine: Machine, w: Work) -> tuple[float, float]:
    """Cycles of tasks whose waves all do the same: by lanes and atoms, or loads; and by memory.

    Cores have several tasks at a time, so that all of them move something to the end.
    """
    limits, cores = machine.limits, machine.limits.cores or 1
    rounds = ceil(w.tasks / cores)
    each = [p.mma + p.lanes + p.copied / limits.l2_rate + p.shared / limits.shared_rate for p in w.phases]
    busy = rounds * sum(p.trips * max(cycles, p.gather) for p, cycles in zip(w.phases, each, strict=True))
    moved = moving(machine, w.moved, from_memory=w.from_memory) * max(1, cores / w.tasks)
    if w.at_a_time:
        moved += w.again / limits.far_rate / cores
        full = w.tasks / (cores * w.at_a_time)
        waiting = max(0.0, full - 1) * limits.copy_latency + full * w.exchange
        own = max(1.0, full) * w.moved / w.tasks / limits.far_rate  # a task waits for its own bytes, and no longer
        overlapping = together(machine.costs.resident.sharpness, moved, waiting + own)
        return max(busy, min(overlapping, moved + waiting)) + w.waits, moved + w.waits
    return max(busy, w.latency) + w.waits, moved + w.waits


def together(sharpness: float, *cycles: float) -> float:
    """Cycles of parts that overlap: about those of the longest, and more where others are nearly as long."""
    longest = max(cycles)
    return float(longest * sum((x / longest) ** sharpness for x in cycles) ** (1 / sharpness)) if longest else 0.0


def _pipelined(machine: Machine, w: Work, o: Overlap) -> float:
    """Cycles of tasks whose operands arrive while others are multiplied."""
    limits, cores = machine.limits, machine.limits.cores or 1
    share = min(w.tasks, cores) / cores
    steps = [step_cycles(machine, p, o, share) for p in w.phases]
    arriving = next((max(p.copied / limits.l2_rate, p.l2 * share, p.gather) for p in w.phases if p.copied), 0.0)
    before = float(limits.copy_latency)
    if not any(p.is_dependent for p in w.phases):  # otherwise the first iteration is as long as others
        before += arriving + (w.resident + w.first) / limits.l2_rate
    end = end_cycles(machine, w.end, o.groups)
    longer = _edge_cycles(machine, w, o, share)
    if len(w.lengths) > 1:
        tasks = _uneven(machine, w, steps, end)
    else:
        tasks = _even(machine, w, o, steps, end, share)
    return tasks + longer + before


def _body(w: Work, steps: list[float], share: float, masked: float) -> float:
    """Cycles of the iterations of a task."""
    total = 0.0
    for p, step in zip(w.phases, steps, strict=True):
        total += p.trips * (share if p.is_dependent or p.masked else 1) * step + masked * p.masked
    return total


def _even(machine: Machine, w: Work, o: Overlap, steps: list[float], end: float, share: float) -> float:
    """Cycles of tasks that are all alike: rounds of them on all cores, the last one whole."""
    limits = machine.limits
    of_trips, masked, _ = w.lengths[0]
    body = _body(w, steps, of_trips, masked)
    if not o.ordered:  # groups wait for one another's first product
        body += (o.groups - 1) / 2 * sum(p.first for p in w.phases if p.is_dependent)
    rounds = ceil(w.tasks / (limits.cores or 1))
    busy = (w.l2_read + w.end.l2) * share + limits.task_cycles
    if o.pingpong and rounds > 1:
        return rounds * max(body, (body + end) / 2, busy) + end
    return rounds * max(body + end, busy)


def _uneven(machine: Machine, w: Work, steps: list[float], end: float) -> float:
    """Cycles of tasks of several lengths: whoever is done takes the next task, the longest first, and waits for it."""
    limits, cores = machine.limits, machine.limits.cores or 1
    begin = limits.task_cycles + limits.copy_latency
    lengths = [(begin + _body(w, steps, share, masked) + end, tasks) for share, masked, tasks in w.lengths]
    total = sum(cycles * tasks for cycles, tasks in lengths) / cores + min(cycles for cycles, _ in lengths)
    return max(total, max(cycles for cycles, _ in lengths))


def _edge_cycles(machine: Machine, w: Work, o: Overlap, share: float) -> float:
    """Cycles more of tasks at edges, which bring rows outside their tensor."""
    if not w.edges:
        return 0.0
    p = max((p for p in w.phases if p.copied), key=lambda p: p.trips)
    more = step_cycles(machine, p, o, share, w.outside * machine.limits.outside_row) - step_cycles(machine, p, o, share)
    return w.edges * p.trips * more
