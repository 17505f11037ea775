"""Rule: kernels of lanes alone, without atoms: how much a task has, and how many waves do it.

Enough bytes are in flight where every lane has a few vectors in registers and a core has several workgroups. Rows that
are reduced are whole; short rows are several to a task, long ones are shared by more waves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod

from tilewright.algebra.expr import Expr
from tilewright.machine import Machine
from tilewright.plan.boxes import NOTHING, boxes, numbers_of
from tilewright.plan.facts import Facts, ValueFacts
from tilewright.plan.general import CHOSEN, DEEPEST, WHOLE, drafted, only_adds, room_of
from tilewright.plan.model import l2
from tilewright.plan.plan import BACKWARD, Cut, Plan
from tilewright.plan.predicting import is_divided, neighbours_in_word
from tilewright.plan.rows import rows_and_waves, widths_of_rows
from tilewright.plan.search.cost import lane_kernel_time
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.work import LaneWork


@dataclass(frozen=True, eq=False)
class LaneKernelSchedule:
    """A kernel of lanes: the width of a task along each dimension that tasks cut, its waves, and the loops' tiles.

    `backward`: tasks begin with the last, as what was written last is still in the L2 cache.
    """

    facts: Facts
    machine: Machine
    widths: dict[Expr, int]
    waves: int
    loops: dict[Expr, int]
    backward: bool = False


def kernels_of_lanes(facts: Facts, machine: Machine, ranking: Ranking) -> Iterator[PlanCandidate]:
    """Yield the candidates of a program without products as one kernel of lanes."""
    if facts.products or machine.lanes is None:
        return
    ranking.timed += 1
    if facts.part:
        yield from _kernel_of_part(facts, machine)
        return
    size = numbers_of(facts.sizes)
    loops = _loop_tiles(facts)
    wide = boxes(facts.program, size, room_of(machine), False, loops, NOTHING) if facts.cut else {}
    whole = {d: wide.get(d, size(d)) for d in facts.cut}
    widths, waves = rows_and_waves(facts.program, whole, lambda d: loops.get(d) or size(d), machine)
    kernel = LaneKernelSchedule(facts, machine, widths, waves, loops)
    yield PlanCandidate((kernel,), (cycles := lane_kernel_time(machine, count_lanes(kernel))), (round(cycles),))


def _kernel_of_part(facts: Facts, machine: Machine) -> Iterator[PlanCandidate]:
    """Yield the kernel of a part of a program whose rows lie along memory: as many rows a task as lanes hold."""
    rows = [d for d in facts.extents if d not in facts.parallel]
    along = [n.place.contiguous for n in (*facts.reads, *facts.writes) if set(rows) & n.dims]
    if not rows or facts.loops or any(d not in rows for d in along):
        return
    size = numbers_of(facts.sizes)
    row = max(facts.size(n.dims & set(rows)) for n in facts.nodes)
    accesses = [n.place for n in (*facts.reads, *facts.writes)]
    most = max(facts.size(n.dims) for n in (*facts.reads, *facts.writes))
    sides = (facts.reads, facts.writes)
    read, written = (
        sum({n.place.memory: n.place.bytes for n in side if facts.size(n.dims) == most}.values()) for side in sides
    )
    widths, waves = widths_of_rows(
        machine, row, min(a.bytes for a in accesses), (read, written), {d: size(d) for d in facts.cut}
    )
    kernel = LaneKernelSchedule(facts, machine, widths, waves, {}, backward=reads_backward(facts, machine))
    yield PlanCandidate((kernel,), (cycles := lane_kernel_time(machine, count_lanes(kernel))), (round(cycles),))


def reads_backward(facts: Facts, machine: Machine) -> bool:
    """Whether tasks begin with the last: the kernel before wrote more than the L2 cache holds."""
    between = [n.place for n in facts.reads if n.source is None]
    return any(place.elements * place.bytes > l2(machine.limits) for place in between)


def _loop_tiles(facts: Facts) -> dict[Expr, int]:
    """The tile of every loop: the author's, or all of the axis where that is short."""
    size, tiles = numbers_of(facts.sizes), {}
    for op in facts.program.walk():
        if op.name != "iterate":
            continue
        axis = op.attrs["axis"]
        extent, loop = size(axis), facts.loops.get(str(axis))
        if loop is not None:
            tiles[axis] = loop.tile or extent
        elif only_adds(op):
            tiles[axis] = min(extent, DEEPEST)
        else:
            tiles[axis] = extent if extent <= WHOLE else CHOSEN
    return tiles


def count_lanes(kernel: LaneKernelSchedule) -> LaneWork:
    """The work of a kernel of lanes."""
    facts, machine, size = kernel.facts, kernel.machine, numbers_of(kernel.facts.sizes)
    counts = {d: ceil(size(d) / n) for d, n in kernel.widths.items()}
    lanes = 0.0
    for n in facts.nodes:
        each = _element_cycles(facts, n, machine)
        repeated = prod(count for d, count in counts.items() if not _has(facts, n, d))
        lanes += each * facts.size(n.space) * repeated
    return LaneWork(prod(counts.values()), lanes, _argument_bytes(facts), kernel.waves)


def _has(facts: Facts, n: ValueFacts, dim: Expr) -> bool:
    names = facts.digits.get(str(dim), (str(dim),))
    return any(name in n.space for name in names) or all(facts.extents.get(name, 1) == 1 for name in names)


def _element_cycles(facts: Facts, n: ValueFacts, machine: Machine) -> float:
    """Cycles of lanes for one element of a value: arithmetic, or working out where it is read."""
    size = numbers_of(facts.sizes)
    if n.op == "read" and n.source is not None and is_divided(n.source, size):
        return machine.limits.placing / machine.limits.lane_rate / neighbours_in_word(n.source, size, machine)
    if n.op == "cumsum":
        return 0.0
    return facts.lane_cycles(n, machine)


def _argument_bytes(facts: Facts) -> float:
    """Bytes of all arguments."""
    places = {n.place.memory: n.place for n in (*facts.reads, *facts.writes)}
    return float(sum(prod(place.shape) * place.bytes for place in places.values()))


def plan_of_lanes(kernel: LaneKernelSchedule) -> Plan:
    """The plan of a kernel of lanes."""
    facts, size = kernel.facts, numbers_of(kernel.facts.sizes)
    whole = [d for d in facts.order if d not in kernel.widths]
    cuts = {d: (Cut("task", n),) for d, n in kernel.widths.items()}
    cuts |= {d: (Cut("loop", n),) for d, n in kernel.loops.items() if d in whole and n < size(d)}
    plan = drafted((*kernel.widths, *whole), size, cuts, kernel.widths)
    early = True if "programmatic" in kernel.machine.launches else None
    schedule = BACKWARD if kernel.backward and plan.tasks else "strided"
    return replace(plan, waves=kernel.waves, early=early, schedule=schedule)
