"""The work and time of a kernel of one product on a CPU, whose accumulator tiles stay in registers over all of K.

A task (one core's tile) iterates over accumulator tiles in one of two orders. MMAs, and the loads that feed them,
overlap with reads of operands from caches and memory; staging (copying) of A and stores of tile registers do not.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan import lanes, tile_registers
from tilewright.plan.blocking import COLUMNS, LANES, Blocking, required_lane_digit, round_up
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.model import Cost, copy_kernel_cycles, cores, element_bytes, l2, missing_share, operand_bytes
from tilewright.plan.search.core_reads import OperandReads, cycles_beyond_l1, operand_cycles, slower_rows
from tilewright.plan.search.core_shares import shares_of_core
from tilewright.plan.search.cost import SAME_WAVES, kernel_time, overlapped_cycles, tasks_in_turn
from tilewright.plan.search.work import Phase, Work
from tilewright.plan.sliding import stride_between_rows
from tilewright.plan.task_shape import TaskShape, columns_of, task_shape
from tilewright.plan.vectors import step_cycles


def block_cost(space: Contraction, blocking: Blocking, machine: Machine) -> Cost:
    """Predict the time of a blocking (tile sizes, loop order) of one product on a CPU; return a Cost.

    The Cost has the cycles of the busiest core, by cause: MMAs, staging of A, stores, launch, packing of B, and memory,
    which is the rest of the predicted time. Packing is 0 if B is constant, as it is then packed before the launch.
    `space` is the product's index space.
    """
    shape, limits, workers = task_shape(space, blocking), machine.limits, cores(machine)
    mma = shape.repeats * _task_mma_cycles(space, blocking, machine, shape) + _task_overhead(blocking, machine)
    reading = shape.repeats * _task_read_cycles(space, blocking, machine, shape)
    staging = shape.repeats * _task_staging_cycles(space, blocking, machine, shape)
    storing = shape.repeats * _task_storing_cycles(space, blocking, machine, shape)
    waiting = _task_waiting_cycles(space, blocking, machine, shape)
    sharpness = _sharpness(blocking, machine)
    ragged, ragged_reading = 0.0, 0.0
    if (
        shape.last_tail
    ):  # the last task along M also has a ragged tile of this number of rows, for which B is read again
        last_tasks = ceil(shape.column_tasks * shape.around / workers)
        products = shape.across * _tile_cycles(space, blocking, machine, shape.last_tail, blocking.vectors)
        _, b = _operand_reads(space, blocking, machine, shape)
        ragged_reading = last_tasks * operand_cycles(limits, replace(b, first=0.0, again=b.first))
        ragged = overlapped_cycles(sharpness, last_tasks * products, ragged_reading)
    tensors = {x.name: operand_bytes(x) for x in (space.a, space.b, space.out, *space.extras)}
    phase = Phase(1, mma, staging + storing + waiting, gather=reading, sharpness=sharpness)
    work = Work(shape.tasks, (phase,), moved=sum(tensors.values()), waits=ragged)
    cycles, in_turn = kernel_time(machine, work, SAME_WAVES).cycles, tasks_in_turn(machine, shape.tasks)
    known = in_turn * (mma + staging + storing) + ragged + limits.launch_cycles
    return Cost(
        products=in_turn * mma + ragged,
        memory=cycles - known,
        staging=in_turn * staging,
        storing=in_turn * storing,
        launch=limits.launch_cycles,
        packing=0.0 if space.b.constant else copy_kernel_cycles(space.b, space.b, machine),
        tasks=shape.tasks,
        busiest=ceil(shape.tasks / workers),
        reading=in_turn * reading + ragged_reading,
        staged_bytes=in_turn * shape.repeats * shape.staged_bytes,
    )


def _sharpness(blocking: Blocking, machine: Machine) -> float:
    """Return the exponent of the p-norm that joins MMAs with reads of operands; 0 if only the longer of both counts."""
    if blocking.by_lanes:
        return 0.0
    return (machine.costs.tiles if blocking.in_tiles else machine.costs.vectors).sharpness


# -- MMAs -------------------------------------------------------------------------------------------------


def _task_mma_cycles(space: Contraction, blocking: Blocking, machine: Machine, shape: TaskShape) -> float:
    """Return one core's cycles for the MMAs of one task, for one batch element, with the loads that feed them.

    A task is one core's tile. `shape` has its numbers of accumulator tiles, `blocking` the size of one. `space` is the
    product's index space. A line (run of rows) ends in a ragged tile, which costs only its own rows.

    If `blocking.by_lanes` is set, vectors run along a dimension that A, B and the result share, such as the channels of
    a depthwise convolution. The cycles are then multiplied by the extent of N. The last tile of the shared dimension
    may be ragged; it costs only its own vectors if one task has the whole dimension. All other tiles along N are
    charged as full.
    """

    def line(vectors: int) -> float:
        """Return the cycles of all accumulator tiles of one line (run of rows) of the task, each `vectors` wide.

        `vectors` counts vectors of the atom. The line's ragged last tile, with fewer rows, is included.
        """
        full = shape.blocks * _tile_cycles(space, blocking, machine, blocking.rows, vectors)
        return full + (_tile_cycles(space, blocking, machine, shape.tail, vectors) if shape.tail else 0.0)

    ragged_vectors = columns_of(space, blocking) % blocking.columns // blocking.atom.shape[1]
    if not blocking.by_lanes or not ragged_vectors or shape.column_tasks > 1:
        total = shape.across * line(blocking.vectors)
    else:
        total = (shape.across - 1) * line(blocking.vectors) + line(ragged_vectors)
    columns = space.extent(space.columns) if blocking.by_lanes else 1  # one after the other
    return shape.lines * columns * total


def _tile_cycles(space: Contraction, blocking: Blocking, machine: Machine, rows: int, vectors: int) -> float:
    """Return one core's cycles for one accumulator tile of `rows` rows by `vectors` vectors, over all of K.

    `space` is the product's index space, `blocking` has the atom and the size of a full tile. With tile registers, a
    tile of fewer rows than a full one takes longer: its rows are copied to scratch memory in each K step.
    """
    if blocking.by_lanes:
        return lanes.block_cycles(space, blocking, machine, rows, vectors)
    atom = blocking.atom
    assert isinstance(atom, MultiplyAtom)
    steps = _k_elements(space, blocking) / atom.shape[2]
    if blocking.in_tiles:
        row_tiles, costs = blocking.rows // atom.shape[0], machine.costs.tiles
        both = (rows + blocking.columns) * _k_elements(space, blocking) * element_bytes(space.a.dtype)
        step = tile_registers.step_cycles(machine, atom, row_tiles, vectors, both)
        return steps * (step + (costs.staged if rows < blocking.rows else 0)) + costs.block
    row_stride = (stride_between_rows(space) or 0) * element_bytes(space.a.dtype)
    return steps * step_cycles(machine, atom, rows, vectors, row_stride) + machine.costs.vectors.block


def _task_overhead(blocking: Blocking, machine: Machine) -> float:
    """Return one core's cycles to begin and end a task (one core's tile), beside its accumulator tiles.

    It is a constant of the machine. With tile registers it is 0 unless stores are delayed.
    """
    costs = machine.costs
    if blocking.in_tiles:
        return costs.tiles.task if blocking.overlap == "delayed store" else 0.0
    return costs.lanes.task if blocking.by_lanes else costs.vectors.task


def _k_elements(space: Contraction, blocking: Blocking) -> int:
    """Return the K extent of an accumulator tile: the channels rounded up to the atom's K, times all filter taps.

    100 channels, 9 taps and an atom with a K of 32 give 1152. `space` is the product's index space, `blocking` has the
    atom.
    """
    return round_up(size(space.depth[-1]), blocking.atom.shape[2]) * space.extent(space.depth[:-1])


# -- operands and results ---------------------------------------------------------------------------------


def _task_read_cycles(space: Contraction, blocking: Blocking, machine: Machine, shape: TaskShape) -> float:
    """Return one core's cycles to read operands and write results for one task and batch element.

    A task is one core's tile; `shape` has its numbers of accumulator tiles. `space` is the product's index space. Bytes
    come from the nearest cache that holds them, or from memory. An operand is read again for later accumulator tiles.
    Whether a cache still holds it depends on the bytes read in between, and so on the order of the loops over
    accumulator tiles (`blocking.order`). Blockings by lanes (vectors along a dimension that A, B and the result share)
    read short runs of memory, which takes longer.
    """
    limits, core = machine.limits, sum(_core_bytes(space, blocking, machine, shape))
    written = operand_bytes(space.out) / (shape.tasks * shape.repeats)
    reads = _operand_reads(space, blocking, machine, shape)
    total = sum(operand_cycles(limits, x) for x in reads) + cycles_beyond_l1(limits, written, core)
    if blocking.by_lanes:  # short runs of A and of the result
        total *= 1 + limits.line_bytes / 2 / (blocking.columns * element_bytes(space.a.dtype))
        total *= machine.costs.lanes.parted if shape.column_tasks > 1 else 1
    return total + _shared_row_cycles(space, blocking, machine, shape)


def _shared_row_cycles(space: Contraction, blocking: Blocking, machine: Machine, shape: TaskShape) -> float:
    """Return one core's cycles, in one task and batch element, for rows of the result of which it writes a piece only.

    Other cores write the other pieces, and their prefetches fetch the first cache lines of this one. The cycles are 0
    with tile registers, which count them with their stores, on one core, and if a task has whole rows.
    """
    costs = machine.costs.vectors
    if blocking.in_tiles or shape.column_tasks == 1 or cores(machine) == 1:
        return 0.0
    lines = blocking.task_columns * element_bytes(space.out.dtype) / machine.limits.line_bytes
    return costs.shared * shape.rows * min(costs.shared_lines, lines)


def _task_waiting_cycles(space: Contraction, blocking: Blocking, machine: Machine, shape: TaskShape) -> float:
    """Return one core's cycles to wait, in one task, for lines of B that other cores packed just before the kernel.

    A core reads its part of B for the first time from the caches of other cores, which hold the lines as modified; MMAs
    do not overlap with that. The cycles are spread over the core's tasks. They are 0 if B is constant, as it is then
    packed long before, and on one core.
    """
    workers, limits = cores(machine), machine.limits
    if space.b.constant or workers == 1:
        return 0.0
    a, b, out = _core_bytes(space, blocking, machine, shape)
    in_caches = b * (1 - missing_share(a + b + out, l2(limits)))
    return in_caches * (1 / limits.far_rate - 1 / limits.l2_rate) / max(1, shape.tasks / workers)


def _operand_reads(
    space: Contraction, blocking: Blocking, machine: Machine, shape: TaskShape
) -> tuple[OperandReads, OperandReads]:
    """Return the (OperandReads of A, OperandReads of B) for one task and batch element.

    A task is one core's tile; `shape` has its numbers of accumulator tiles. `space` is the product's index space. If A
    is staged (copied to scratch memory), all of its reads count as repeated reads, because the copy itself is counted
    elsewhere. Reads for a ragged tile of the last task are left out.
    """
    a_bytes, tile_a = _a_bytes(space, blocking, shape)
    tile_b = blocking.columns * _k_elements(space, blocking) * element_bytes(space.b.dtype)
    b_bytes, passes = tile_b * shape.across, 1 if blocking.by_lanes else shape.across
    kept_a, kept_b = (0.0 if name in blocking.streams else n for name, n in (("a", tile_a), ("b", tile_b)))
    if blocking.order[0] == COLUMNS:
        between_a, between_b = a_bytes + tile_b, tile_b + kept_a
    else:
        between_a, between_b = tile_a + kept_b, b_bytes + tile_a
    core = sum(_core_bytes(space, blocking, machine, shape))
    again = (passes if blocking.stage else passes - 1) * a_bytes
    slower = 1.0
    if isinstance(blocking.atom, MultiplyAtom) and not blocking.stage:
        stride = (stride_between_rows(space) or 0) * element_bytes(space.a.dtype)
        slower = slower_rows(machine, blocking.atom, blocking.rows, stride, streams="a" in blocking.streams)
    a = OperandReads(0.0 if blocking.stage else a_bytes, core, again, between_a, slower)
    b = OperandReads(b_bytes, core, (shape.row_tiles - 1) * b_bytes, between_b)
    return a, b


def _a_bytes(space: Contraction, blocking: Blocking, shape: TaskShape) -> tuple[float, float]:
    """Return (bytes of A that one task and batch element reads, bytes of A that one accumulator tile reads).

    A task is one core's tile; `shape` has its numbers of accumulator tiles. If A is staged (copied to scratch memory),
    the first number is the staged bytes. In a convolution, neighbouring rows share elements along the last filter
    dimension. An accumulator tile counts a shared element once, unless A is staged as a panel, which has a copy for
    each row.
    """
    element, share_of_a = element_bytes(space.a.dtype), operand_bytes(space.a) / shape.a_parts
    if blocking.by_lanes:
        share_of_a /= shape.column_tasks
    row_bytes = _k_elements(space, blocking) * element
    task = shape.staged_bytes or (share_of_a if blocking.by_lanes else min(shape.rows * row_bytes, share_of_a))
    if blocking.stage != "panel" and len(space.rows) > 1:
        row_bytes = size(space.depth[-1]) * prod(map(size, space.depth[:-2])) * element
    return task, min(blocking.rows * row_bytes, task)


def _core_bytes(
    space: Contraction, blocking: Blocking, machine: Machine, shape: TaskShape
) -> tuple[float, float, float]:
    """Return (bytes of A, bytes of B, bytes of the result) that one core reads or writes in all of its tasks.

    The tasks of a core follow from the order of the grid. `space` is the product's index space; `shape` has the number
    of tasks.
    """
    workers = cores(machine)
    batch = [d for d in space.batch if not blocking.by_lanes or d is not required_lane_digit(space)]
    of_rows, columns_first = (shape.around, shape.row_tasks), blocking.tasks[0] in (COLUMNS, LANES)
    counts = (shape.column_tasks, *of_rows) if columns_first else (*of_rows, shape.column_tasks)
    shares = shares_of_core(counts, workers, blocking.schedule)
    columns, around, rows = shares if columns_first else (shares[2], shares[0], shares[1])
    a = operand_bytes(space.a) * around * rows * (columns if blocking.by_lanes else 1)
    b = operand_bytes(space.b) * columns * (around if space.extent(tuple(batch)) > 1 else 1)
    return a, b, operand_bytes(space.out) / min(shape.tasks * shape.repeats, workers)


def _task_staging_cycles(space: Contraction, blocking: Blocking, machine: Machine, shape: TaskShape) -> float:
    """Return one core's cycles to stage A (copy it to scratch memory) for one task and batch element; 0 if `blocking`
    does not stage A.

    A task is one core's tile. The cycles are those of the copy, those by which first reads of A from memory are slower
    than from L2 (for the share that misses L2), and those to write the share of the staged bytes that L2 cannot hold to
    memory. `shape` has the task's staged bytes.
    """
    if not blocking.stage:
        return 0.0
    limits, staged = machine.limits, shape.staged_bytes
    core = sum(_core_bytes(space, blocking, machine, shape))
    missed = operand_bytes(space.a) / shape.a_parts * missing_share(core, l2(limits))
    spilled = staged * missing_share(staged, l2(limits))
    packing = machine.costs.tiles.packing * staged / limits.copy_rate
    return packing + missed * (1 / limits.far_rate - 1 / limits.l2_rate) + spilled / limits.far_rate


def _task_storing_cycles(space: Contraction, blocking: Blocking, machine: Machine, shape: TaskShape) -> float:
    """Return one core's cycles to store the results of one task and batch element that do not overlap other work.

    A task is one core's tile; `shape` has its numbers of accumulator tiles. With tile registers, the result is the sum
    of up to three terms:

    - cycles per element, unless stores are delayed and so overlap the next accumulator tile;
    - cycles per cache line of the result, if a task writes its rows in several pieces;
    - cycles per cache line of the result, if several tasks write parts of the same row.

    With vector registers, only rows in several pieces take cycles. Then the operands of the epilogue, which are read in
    pieces too, count like the result.
    """
    in_pieces = not blocking.stage and blocking.order[0] == COLUMNS and shape.across > 1
    if not blocking.in_tiles:
        moved = sum(map(operand_bytes, (space.out, *space.extras))) / (shape.tasks * shape.repeats)
        is_scattered = in_pieces and not blocking.by_lanes
        return machine.costs.vectors.scattered * moved / machine.limits.line_bytes if is_scattered else 0.0
    costs, elements = machine.costs.tiles, shape.row_tiles * shape.across * blocking.rows * blocking.columns
    storing = 0.0 if blocking.overlap == "delayed store" else elements * costs.store
    lines = elements * element_bytes(space.out.dtype) / machine.limits.line_bytes
    if in_pieces:
        storing += lines * costs.scattered
    return storing + (lines * costs.shared if shape.column_tasks > 1 else 0.0)
