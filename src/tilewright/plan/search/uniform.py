"""Work and plan of kernels without a pipeline: all waves run the same code, with or without MMAs.

A task is one workgroup's tile of the grid; on a CPU it is one thread's tile, and the lanes are a vector's elements.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, gcd, prod

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op
from tilewright.ir.tile import SCANS
from tilewright.machine import Machine
from tilewright.plan.addresses import elements_per_load, needs_division
from tilewright.plan.facts import Facts, ValueFacts
from tilewright.plan.general import CHOSEN, DEEPEST, WHOLE, axis_of, only_adds, plan_over_dims
from tilewright.plan.microkernel import Microkernel, all_tiles_cycles, best_microkernels, waves_of
from tilewright.plan.model import Size, cycles_to_copy
from tilewright.plan.schedule import REVERSED, ProductUnit, Schedule, Split
from tilewright.plan.search.core_reads import (
    is_packed_before,
    read_of,
    task_overhead_cycles,
    task_packing_cycles,
    task_read_cycles,
    task_staging_cycles,
    task_value_cycles,
)
from tilewright.plan.search.core_rows import again_cycles, bytes_fetched_in_vain, vector_cycles
from tilewright.plan.search.cost import SAME_WAVES, kernel_time
from tilewright.plan.search.kernel import Parts
from tilewright.plan.search.ranking import PlanCandidate
from tilewright.plan.search.resident import start_cycles, with_resident_tasks
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule
from tilewright.plan.search.work import Phase, Work
from tilewright.plan.tile_tasks import plan_of_tile_task, tasks_alone


def uniform_candidate(kernel: UniformKernelSchedule, *ties: float) -> PlanCandidate:
    """Return a kernel without a pipeline as a PlanCandidate with its predicted cycles.

    `ties` are further numbers that order candidates of equal cycles: smaller is better.
    """
    cycles = kernel_time(kernel.machine, count_uniform_work(kernel), SAME_WAVES).cycles
    return PlanCandidate(kernel, cycles, (round(cycles), *ties))


def loop_tiles(facts: Facts) -> dict[Expr, int]:
    """Return {loop dimension: elements per iteration} for the loops that the author wrote in the program `facts`.

    A tile that the author states is used. Otherwise the first case that applies decides:

    - the loop carries more than an accumulator: all of the dimension;
    - the loop adds up an MMA: at most DEEPEST (4096) elements, or all if the extent is known only at the call;
    - any other loop: all of the dimension up to WHOLE (512) elements, and CHOSEN (256) elements beyond.

    While loops, and loops over dimensions that the grid splits, are left out.
    """
    size, tiles = facts.number_of, {}
    for op in facts.program.walk():
        if op.name != "iterate":
            continue
        axis = op.attrs["axis"]
        if axis in facts.cut or not axis.symbols <= facts.sizes.keys():  # no size tells that of a while loop
            continue
        extent, stated = size(axis), facts.stated_loops.get(str(axis))
        if stated is not None:
            tiles[axis] = stated
        elif str(axis) in facts.loops:
            tiles[axis] = extent
        elif only_adds(op):
            tiles[axis] = extent if axis in facts.opened else min(extent, DEEPEST)
        else:
            tiles[axis] = extent if extent <= WHOLE else CHOSEN
    return tiles


def microkernels(facts: Facts, machine: Machine, width: Size, lanes: int | None = None) -> dict[Op, Microkernel | None]:
    """Return {MMA: its Microkernel (atom and accumulator tile), or None if no atom fits} for the MMAs of a kernel.

    `width(d)` is the extent of a dimension d in a workgroup's tile (on CPUs a thread's). `lanes` is the number of lanes
    that an atom must span, None for any. `facts` is the analysed program of this kernel: MMAs that another kernel
    computes are left out.
    """
    mmas = {facts.nodes[p.node].source for p in facts.products}
    every = best_microkernels(facts.program, machine, width, facts.number_of, facts.opened, lanes)
    return {op: microkernel for op, microkernel in every.items() if op in mmas}


def count_uniform_work(kernel: UniformKernelSchedule) -> Work:
    """Count the work of a kernel without a pipeline; return a Work: cycles per task, bytes of memory traffic, waits.

    A task is one workgroup's tile (on a CPU one thread's). The waits are the cycles in which a core waits. Without MMAs
    they are the latency of one copy. With MMAs they are summed over the tasks of a core: a workgroup waits for its
    operands in every K step of every accumulator tile.

    If another kernel packs B of an MMA first, the waits include the cycles of that kernel. The bytes that it moves are
    added to the traffic only on a GPU.
    """
    facts, machine, size = kernel.facts, kernel.machine, kernel.facts.number_of
    counts = {d: ceil(size(d) / n) for d, n in kernel.widths.items()}
    waves = max(kernel.waves, waves_of(machine, kernel.products.values()))
    slower = machine.costs.one_wave if waves == 1 else 1.0
    mma = lanes = 0.0
    in_lanes = machine.lanes is not None or bool(kernel.products)
    for n in facts.nodes:
        repeated = prod(count for d, count in counts.items() if not _is_computed_over(facts, n, d))
        each = _element_cycles(kernel, n) if in_lanes else vector_cycles(kernel, n)
        cycles = each * facts.size(n.space) * repeated
        mma, lanes = (mma + cycles, lanes) if n.op == "mma" else (mma, lanes + cycles)
    tasks = prod(counts.values())
    waits = float(machine.limits.copy_latency)
    if kernel.products:
        steps, iterations = _operand_waits(kernel)
        waits = (waits * steps + machine.limits.meeting * iterations) * ceil(tasks / (machine.limits.cores or 1))
    packed = _bytes_packed_before(kernel)
    if machine.lanes is None:
        waits += sum(cycles_to_copy(machine, n, n) for n in packed)
    else:
        waits += len(packed) * (machine.limits.following_cycles + machine.limits.copy_latency)
    if machine.lanes is None and kernel.products:
        fixed = task_packing_cycles(kernel) + task_overhead_cycles(kernel) + task_staging_cycles(kernel)
        between = max(lanes / max(1, tasks), task_value_cycles(kernel))  # vectors load values while they compute
        late = between if kernel.tile_task is not None else 0.0
        in_tiles = any(unit is not None and unit.is_matrix_atom for unit in kernel.products.values())
        sharpness = machine.costs.tiles.sharpness if in_tiles else 0.0
        reading = task_read_cycles(kernel)
        phase = Phase(1, mma / max(1, tasks), between - late + fixed, gather=reading, sharpness=sharpness, late=late)
    elif machine.lanes is None:
        overhead = machine.costs.vectors.task
        phase = Phase(1, lanes=lanes / max(1, tasks) + overhead, gather=again_cycles(kernel))
    else:
        copied, words = _operand_copies(kernel)
        lanes += tasks * words * machine.limits.gather_cycles / machine.limits.lane_rate
        mma, lanes = (cycles * slower / max(1, tasks) for cycles in (mma, lanes))
        phase = Phase(1, mma, lanes, shared=2 * copied, copied=copied)  # written to shared memory, and read
    moved = touched_bytes(facts, machine) + (0 if machine.lanes is None else 2 * sum(packed))
    if machine.lanes is None and not kernel.products:
        moved += bytes_fetched_in_vain(kernel)
    work = Work(max(1, tasks), (phase,), moved=moved, waits=waits, starts=start_cycles(machine, tasks, 1))
    return work if kernel.products else with_resident_tasks(kernel, work)


def _bytes_packed_before(kernel: UniformKernelSchedule) -> list[float]:
    """Return a list with the bytes of each operand B that another kernel packs before this one; [] if none is packed.

    Packing copies B so that the elements that one atom reads are contiguous. Three kinds of B do not count: a B that is
    computed; a B of which a read may be out of bounds; and a constant B, which is packed once, when it is bound.
    """
    facts, packed = kernel.facts, []
    for op in kernel.products:
        axes = kernel.axes_of(op)
        if isinstance(axes, str) or not is_packed_before(kernel, op):
            continue
        read = read_of(facts, axes.operands(op)[1])
        if read is not None and not read.place.can_leave and read.place.memory not in facts.constant:
            packed.append(float(prod(read.place.shape) * read.place.bytes))
    return packed


def _operand_copies(kernel: UniformKernelSchedule) -> tuple[float, float]:
    """Return (bytes, loads) of one workgroup for the operands of its MMAs, summed over all loop iterations.

    A load is a lane's load instruction, of as many bytes as the operand's alignment allows. A is loaded once per
    accumulator tile along N, B once per accumulator tile along M. MMAs without an atom and computed operands count
    nothing.
    """
    facts, copied, words = kernel.facts, 0.0, 0.0
    vector = kernel.machine.lane_access.vector_bytes
    for p in facts.products:
        op = facts.nodes[p.node].source
        assert op is not None
        microkernel, axes = kernel.products[op], kernel.axes_of(op)
        if microkernel is None or isinstance(axes, str):
            continue
        rows, columns, depth = axes.sizes(kernel.width)
        loads_per_operand = ceil(columns / microkernel.columns), ceil(rows / microkernel.rows)
        padding = (
            ceil(depth / microkernel.slab) * microkernel.slab / depth if microkernel.slab else 1.0
        )  # lanes write zeros past the end of K
        trips = kernel.trips[op]
        for operand, times in zip(axes.operands(op), loads_per_operand, strict=True):
            elements = padding * prod(kernel.width(d) for d in operand.type.dims)
            read = read_of(facts, operand)
            if read is not None:
                place = read.place
                word = gcd(vector, place.pitch) if place.pitch and place.linear else place.bytes
                copied += trips * times * elements * place.bytes
                words += trips * times * elements * place.bytes / word
    return copied, words


def _is_computed_over(facts: Facts, n: ValueFacts, dim: Expr) -> bool:
    """True if the value `n` has or reduces the program dimension `dim`, or if `dim` has only one element.

    If False, all tiles along `dim` compute the same value again. `facts` is the analysed program.
    """
    names = facts.digits.get(str(dim), (str(dim),))
    return any(name in n.space for name in names) or all(facts.extents.get(name, 1) == 1 for name in names)


def _element_cycles(kernel: UniformKernelSchedule, n: ValueFacts) -> float:
    """Return the cycles of one core for one element of the value `n` (a node of the program's graph).

    For an MMA an element is one multiply-add. For a read, only the arithmetic of addresses with divisions counts. It is
    0 for scans, and for operations that take no arithmetic.
    """
    facts, machine, size = kernel.facts, kernel.machine, kernel.facts.number_of
    if n.op == "read" and n.source is not None and needs_division(n.source, size):
        return float(machine.limits.placing / machine.limits.lane_rate / elements_per_load(n.source, size, machine))
    if n.op == "mma" and n.source is not None:
        return _multiply_add_cycles(kernel, n.source)
    return 0.0 if n.op in SCANS else facts.lane_cycles(n, machine)


def _multiply_add_cycles(kernel: UniformKernelSchedule, op: Op) -> float:
    """Return the cycles of one core for one multiply-add of the MMA `op`: by its atom, or by lanes if it has none.

    M and N of a workgroup's tile are padded to whole atoms; the cycles of the padding are spread over all multiply-adds
    that are not padding. On a machine without lanes (a CPU), loads that feed the atom, and loads and stores of
    accumulator tiles, count too.
    """
    microkernel, axes = kernel.products.get(op), kernel.axes_of(op)
    if microkernel is None or isinstance(axes, str):
        return 1 / kernel.machine.limits.lane_rate
    sizes = axes.sizes(kernel.width)
    if kernel.machine.lanes is None:
        return all_tiles_cycles(kernel.machine, microkernel, sizes) / prod(sizes)
    rows, columns, _ = sizes
    whole = ceil(rows / microkernel.atom.shape[0]) * ceil(columns / microkernel.atom.shape[1]) / (rows * columns)
    return microkernel.atom.cycles * whole / microkernel.atom.shape[2]


def _operand_waits(kernel: UniformKernelSchedule) -> tuple[int, int]:
    """Return (how often one workgroup waits for operands of its MMAs, iterations of the loops around its MMAs).

    Both are sums over all MMAs. Each accumulator tile of each iteration has its own K steps; an MMA without an atom has
    one step per iteration. In each step the workgroup waits twice, for A and for B. If the atom reads shared memory,
    the workgroup waits a third time, until A and B are stored in shared memory.
    """
    total = iterations = 0
    for op, microkernel in kernel.products.items():
        axes, steps = kernel.axes_of(op), 1
        if microkernel is not None and not isinstance(axes, str):
            rows, columns, depth = axes.sizes(kernel.width)
            slabs = ceil(depth / microkernel.slab) if microkernel.slab else 1
            k_indices = prod(kernel.width(d) for d in (*axes.deep, *axes.around))
            steps = ceil(rows / microkernel.rows) * ceil(columns / microkernel.columns) * slabs * k_indices
        reads_shared = 1 if microkernel is not None and microkernel.slab else 0
        total += (2 + reads_shared) * steps * kernel.trips[op]
        iterations += kernel.trips[op]
    return total, iterations


def touched_bytes(facts: Facts, machine: Machine) -> float:
    """Estimate a program's bytes of memory traffic.

    Each tensor counts the bytes of all its reads and writes, but at most its own size. Memory is moved in whole sectors
    (on CPUs whole cache lines), so that short rows and strided elements count more than their own bytes. `facts` is the
    analysed program.
    """
    unit = max(machine.limits.sector_bytes, 1 if machine.lanes is not None else machine.limits.line_bytes)
    touched: dict[str, tuple[float, int]] = {}
    for n in (*facts.reads, *facts.writes):
        place = n.place
        elements = facts.size(n.dims & place.dims)
        row = facts.extents.get(place.contiguous or "", 1)
        moved = elements / row * ceil(row * place.bytes / unit) * unit
        before, _ = touched.get(place.memory, (0.0, 0))
        touched[place.memory] = before + moved, prod(place.shape) * place.bytes
    return float(sum(min(moved, whole) for moved, whole in touched.values()))


def plan_of_uniform(kernel: UniformKernelSchedule) -> Schedule:
    """Return the plan (a Schedule) of a kernel without a pipeline, whose waves all run the same code.

    If the kernel splits a reduction or a loop into parts, it is the plan in which different workgroups reduce the
    parts.
    """
    facts, size = kernel.facts, kernel.facts.number_of
    tiled = [d for d in facts.cut if d in kernel.widths or d in kernel.blocks]
    whole = [d for d in facts.order if d not in tiled]
    if kernel.parts is not None:
        return _plan_in_parts(kernel, kernel.parts, whole)
    cuts = {
        d: tuple(Split(level, of[d]) for level, of in (("task", kernel.widths), ("loop", kernel.blocks)) if d in of)
        for d in tiled
    }
    cuts |= {d: (Split("loop", n),) for d, n in kernel.loops.items() if d in whole and n < size(d)}
    plan = plan_over_dims((*tiled, *whole), size, cuts, kernel.widths)
    names = {facts.nodes[p.node].source: p.name for p in facts.products}
    products = tuple(
        ProductUnit(names[op], None)
        if microkernel is None
        else ProductUnit(names[op], microkernel.atom.name, *microkernel.tile, microkernel.transposed)
        for op, microkernel in kernel.products.items()
    )
    early = True if "programmatic" in kernel.machine.launches else None
    schedule = REVERSED if kernel.backward and plan.grid else "cyclic"
    plan = replace(plan, products=products, waves=kernel.waves, early=early, order=schedule)
    if kernel.tile_task is None:
        return plan
    plan = replace(plan, axes=tasks_alone(plan.axes))
    tile = products[0].rows, products[0].columns
    words = dict(zip((*tiled, *whole), (axis.name for axis in plan.axes), strict=True))
    return plan_of_tile_task(plan, kernel.tile_task, tile, kernel.staged, words, size)


def _plan_in_parts(kernel: UniformKernelSchedule, parts: Parts, whole: list[Expr]) -> Schedule:
    """Return the plan (a Schedule) of a kernel with a split reduction or loop; the grid's first axis counts `parts`.

    `parts` are the pieces of the reduced dimension; each workgroup reduces one or more. `whole` are the dimensions that
    the grid does not split. A dimension in `whole` gets an axis only if the input of a reduction has it: all others
    belong to the second kernel, which combines the partial results.
    """
    size, split = kernel.facts.number_of, f"{parts.dim}_split"
    tasks = [axis_of(str(d), size(d), (Split("task", n),)) for d, n in kernel.widths.items()]
    loops = {d: (Split("loop", n),) for d, n in kernel.loops.items()}
    reduced = {d for n in kernel.facts.nodes if n.reduces and n.source for d in n.source.operands[0].type.dims}
    others = [
        axis_of(f"{d}_part", parts.width, loops.get(d, ())) if str(d) == parts.dim else axis_of(str(d), size(d), ())
        for d in whole
        if d in reduced
    ]
    return Schedule(
        (axis_of(split, parts.count, (Split("task", kernel.parts_of_task),)), *tasks, *others),
        (split, *(axis.name for axis in tasks)),
        parts=(parts.dim, parts.count),
        waves=kernel.waves,
        early=True if "programmatic" in kernel.machine.launches else None,
    )
