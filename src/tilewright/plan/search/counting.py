"""Count the work of a pipelined kernel (cycles and bytes) from its tiling and the placement of its operands."""

from __future__ import annotations

from math import ceil, gcd, prod
from typing import NamedTuple

from tilewright.plan.search.axes import COLUMNS, ROWS
from tilewright.plan.search.cost import line_factor
from tilewright.plan.search.lane_work import LaneCycles
from tilewright.plan.search.liveness import Liveness
from tilewright.plan.search.placement import OperandPlacement
from tilewright.plan.search.tiles import GRID
from tilewright.plan.search.tiling import Loops, Tiling
from tilewright.plan.search.unit import MmaTile
from tilewright.plan.search.work import Phase, TaskEnd, Work


class ResultRows(NamedTuple):
    """The results of an accumulator tile as rows of memory; `pitch` is the number of bytes from row to row.

    There are `rows` rows of `columns` elements, of `bytes` bytes each.
    """

    rows: int
    columns: int
    bytes: int
    pitch: int


def count_work(
    t: Tiling,
    mmas: tuple[MmaTile, ...],
    live: Liveness,
    placed: OperandPlacement,
    phases: dict[int, Loops],
    copying_waves: int,
) -> Work | None:
    """Count the work of a pipelined kernel; return a Work: cycles and bytes per iteration, per epilogue and in all.

    None if no MMA's result is written. `t` (a Tiling) has the tile sizes, `mmas` are the MMA tiles. `live` says which
    MMAs' results are written, and which MMAs wait for another. `placed` has the bytes copied for operands. `phases`
    maps each MMA (node number) to the loops around it. `copying_waves` is the number of waves whose lanes copy
    operands, if bulk copies do not.
    """
    lanes = LaneCycles(t)
    last = next((m for m in mmas if m.node == live.results[-1]), None) if live.results else None
    if last is None:
        return None
    result = result_rows(t, last)
    blocks = prod(t.tiles[n].count for n in t.looped if t.o.classes[n].is_parallel)
    # if MMAs wait for each other, wave groups end a task one by one, while others multiply
    at_end = 0.0 if live.dependent else lanes.end
    end = task_end(t, last, result, at_end, blocks, lanes.reduces_at_end and not live.dependent)
    end = end._replace(by_lanes=_lane_store_cycles(t, result, end.outputs))
    outside, edges = _edge_copies(t, mmas)
    return Work(
        t.tasks,
        _phase_work(t, mmas, live, placed, phases, lanes, copying_waves),
        end,
        _task_lengths(t),
        placed.l2_read,
        placed.resident,
        t.facts.moved_bytes,
        outside=outside,
        edges=edges,
    )


def result_rows(t: Tiling, last: MmaTile) -> ResultRows:
    """Return a ResultRows: the rows of global memory into which a workgroup writes one accumulator tile.

    `last` is the tile of the MMA that computes the result. The ResultRows has the number of rows, the elements per row,
    the bytes per element (of the widest result), and the greatest number of bytes that divides all distances between
    rows. `t` (a Tiling) has the kernel's tile sizes.
    """
    accesses = [w.place for w in t.facts.writes]
    flip = t.o.flips[t.o.products.index(last.oriented)]
    rows, columns = (last.columns, last.rows) if flip else (last.rows, last.columns)
    pitch = gcd(*(a.shape[-1] * a.bytes for a in accesses if a.shape))
    return ResultRows(rows, columns * t.batch, max(a.bytes for a in accesses), pitch)


def task_end(t: Tiling, last: MmaTile, result: ResultRows, lanes: float, blocks: int, reduces: bool) -> TaskEnd:
    """Return a TaskEnd: the cycles and bytes of a workgroup's epilogue, summed over its accumulator tiles.

    `t` (a Tiling) has the tile sizes. `last` is the MMA that computes the result, `result` the rows of one accumulator
    tile in memory, `blocks` the number of accumulator tiles per workgroup. `lanes` is the number of ALU cycles per
    accumulator tile for elementwise work after the MMA. `reduces` says that lanes reduce the result before it is
    stored. Only bulk stores are counted: `by_lanes` is 0, and `l2` and `narrow` are 0 on a machine without bulk stores.
    """
    machine, limits, store = t.machine, t.machine.limits, t.machine.bulk_store
    width = result.columns * result.bytes
    narrow, l2 = 0.0, 0.0
    if store is not None:
        widest, narrowest = store.rows[0], store.rows[-1]
        pieces = sum(count for _, count in store.row_pieces(width)) or width / narrowest
        narrow = result.rows * (pieces - width / widest) * last.row_bytes
        lines = ceil(width / widest) * line_factor(machine, min(width, widest), result.pitch)
        misaligned = limits.misaligned_row if result.pitch % limits.sector_bytes else 1
        l2 = result.rows * lines * limits.leaving_row * misaligned
    outputs = t.batch * last.rows * last.columns
    return TaskEnd(outputs * blocks, lanes * blocks, l2 * blocks, narrow * blocks, blocks, reduces)


def _lane_store_cycles(t: Tiling, result: ResultRows, outputs: float) -> float:
    """Return the cycles of a core's lanes to store `outputs` elements of a task to global memory, one by one.

    0 if bulk stores write the elements instead: they do if the bytes between rows of `result` are a multiple of the row
    alignment of bulk copies. 0 also on a machine without bulk stores. `t` is the Tiling; a task is one workgroup's
    tile.
    """
    machine, store = t.machine, t.machine.bulk_store
    if store is None or result.pitch % store.pitch == 0:
        return 0.0
    return outputs * machine.limits.lane_store / machine.limits.lane_rate


def _phase_work(
    t: Tiling,
    mmas: tuple[MmaTile, ...],
    live: Liveness,
    placed: OperandPlacement,
    phases: dict[int, Loops],
    lanes: LaneCycles,
    copying_waves: int,
) -> tuple[Phase, ...]:
    """Return a tuple of Phase: the work of one iteration of each loop nest of a workgroup, in cycles and bytes.

    Loop nests with fewer loops come first. `lanes` has the ALU cycles of elementwise work, `live` the MMAs that wait
    for each other, `placed` the bytes copied for operands. `t` is the Tiling, `mmas` are the MMA tiles; `phases` maps
    each MMA (node number) to the loops around it. `copying_waves` is the number of waves whose lanes copy operands, if
    bulk copies do not.
    """
    limits = t.machine.limits
    nests = {*phases.values(), *(operand for operand, n in placed.copied.items() if n), *lanes.by_phase, *lanes.serial}
    work_of_phases = []
    for loops in sorted(nests, key=lambda operand: (len(operand), sorted(operand))):
        nest_mmas = [m for m in mmas if phases[m.node] == loops]
        copied, serial = placed.copied.get(loops, 0.0), lanes.serial.get(loops, 0.0)
        for operand, product in t.o.through_shared:
            if phases[product.node] == loops:
                value = t.facts.nodes[operand.value]
                serial += 2 * t.span(value.dims) * value.bytes / limits.shared_rate
        gather = 0.0
        if t.o.by_threads and copied:
            inside = _share_of_k_in_bounds(t, nest_mmas)
            words = placed.words.get(loops, 0.0) / (copying_waves * (t.machine.lanes or 1))
            gather = words * (limits.gather_cycles + inside * limits.gather_latency)
        by_lanes = 0.0 if all(m.atom.asynchronous for m in nest_mmas) else gather  # such MMAs need the same lanes
        first = nest_mmas[0].cycles / t.groups if nest_mmas else 0.0
        work_of_phases.append(
            Phase(
                t.trips(loops),
                t.batch * sum(m.cycles for m in nest_mmas) + by_lanes,
                lanes.by_phase.get(loops, 0.0),
                lanes.masked.get(loops, 0.0),
                t.batch * sum(m.shared_bytes for m in nest_mmas),
                copied,
                placed.l2.get(loops, 0.0),
                rewritten=copied if t.facts.is_repacked and not t.o.by_threads else 0.0,
                gather=gather,
                is_dependent=any(m.node in live.dependent for m in nest_mmas),
                computed=_blocks_of_rows(t, nest_mmas) if loops in lanes.computing else 0,
                first=first,
                is_lone=bool(nest_mmas)
                and t.groups == 1
                and all(m.rows / m.atom.shape[0] < t.machine.shared_memory.atoms_in_flight for m in nest_mmas),
                serial=serial,
                slabs=_slabs_of_stage(placed, mmas, phases, loops),
                is_skipped=bool(nest_mmas) and t.facts.masked_product is not None,
            )
        )
    return tuple(work_of_phases)


def _blocks_of_rows(t: Tiling, nest_mmas: list[MmaTile]) -> int:
    """Return the number of blocks of an atom's rows that each wave group multiplies in one iteration of a loop nest.

    A tile of 256 rows has 2 blocks for each of 2 groups, with atoms of 64 rows. Of several MMAs in `nest_mmas` the one
    with the most blocks counts. It is 1 if a wave group has less than a block, and if there are no MMAs. `t` (a Tiling)
    has the wave groups.
    """
    return max((m.rows // (m.atom.shape[0] * t.down) for m in nest_mmas), default=1) or 1


def _slabs_of_stage(placed: OperandPlacement, mmas: tuple[MmaTile, ...], phases: dict[int, Loops], loops: Loops) -> int:
    """Return the number of slabs (rows of shared memory along K) that one pipeline stage of the loop nest `loops` has.

    If all MMAs are in this nest, it is the number of slabs in one K step, summed over the MMAs. If some are in other
    nests, it is the number of slabs of all operands that this nest loads; 1 if it loads none. `placed` has the slabs of
    operands, `mmas` are the MMA tiles; `phases` maps each MMA (node number) to the loops around it.
    """
    if loops and set(phases.values()) == {loops}:
        return sum(ceil(m.depth / (m.atom.slab or 1)) for m in mmas)
    return placed.slabs.get(loops, 1)


def _share_of_k_in_bounds(t: Tiling, nest_mmas: list[MmaTile]) -> float:
    """Return the fraction (0 to 1) of K that is not padding, if K is padded to whole rows of shared memory (slabs).

    K of 96 in rows of 64 elements gives 0.75. `nest_mmas` are the MMAs of one loop nest; the first one with a K
    dimension decides. If it has several K dimensions, the one that is contiguous in memory counts, else the last by
    name. The result is 1 if no MMA has a K dimension. `t` is the Tiling.
    """
    for m in nest_mmas:
        rows = [t.facts.nodes[r].place.contiguous for r in (*m.oriented.a.reads, *m.oriented.b.reads)]
        k = next((d for d in rows if d in m.oriented.product.k), None) or max(m.oriented.product.k, default=None)
        if k is not None:
            extent, slab = t.facts.extents[k], m.atom.slab or 1
            return extent / (ceil(extent / slab) * slab)
    return 1.0


def _edge_copies(t: Tiling, mmas: tuple[MmaTile, ...]) -> tuple[float, int]:
    """Return (out-of-bounds operand rows that an edge tile copies per K step, edge tiles of the busiest core).

    A tile is the part of C that one workgroup computes; an edge tile extends past the end of M or N. `t` (a Tiling) has
    the tile sizes, `mmas` are the MMA tiles. The result is (0, 0) if no tile is an edge tile, and in three further
    cases: lanes, not bulk copies, load operands; a workgroup does more than sum one tile of C; or MMAs have different
    K.
    """
    if t.o.by_threads or t.o.is_chained or any(m.oriented.product.k != mmas[0].oriented.product.k for m in mmas):
        return 0.0, 0
    per_core = ceil(t.tasks / (t.machine.limits.cores or 1))
    outside, edges = 0.0, 0
    for c, tile in t.pairs():
        for m, role in zip(mmas, c.roles, strict=True):
            operand = {ROWS: m.oriented.a, COLUMNS: m.oriented.b}.get(role)
            is_ragged = tile.level == GRID and len(c.dims) == 1 and c.extent % tile.size != 0
            if operand is None or not is_ragged or not operand.reads:
                continue
            if t.facts.nodes[operand.reads[0]].place.is_plain_coordinate(c.dims[0]):
                outside += -c.extent % tile.size
                edges = max(edges, ceil(per_core / tile.count))
    sides = [side for m in mmas for side in ((m.oriented.rows, m.rows), (m.oriented.columns, m.columns))]
    for dims, tile_size in sides:
        if not dims:  # one row, or one column
            outside, edges = outside + tile_size - 1, per_core
    return outside, edges


def _task_lengths(t: Tiling) -> tuple[tuple[float, float, int], ...]:
    """Return a tuple of (fraction of all iterations, partly masked iterations, number of tasks of this length).

    There is one such triple per length of a task (one workgroup's tile). Tasks differ in length only if masks skip
    iterations; otherwise the only triple is (1, 0, number of all tasks). `t` is the Tiling (tile sizes).
    """
    for axis, masks in t.facts.masks.items():
        number = t.o.class_of.get(axis)
        if masks and number in t.looped:
            counted = t.facts.trips(axis, t.tiles[number].size, t.size)
            all_iterations, total = t.tiles[number].count, sum(counted.values())
            return tuple(
                (n / all_iterations, masked, round(tasks * t.tasks / total)) for (n, masked), tasks in counted.items()
            )
    if t.facts.masked_product is not None:
        lengths = t.facts.masked_product.lengths(t.size)
        total = sum(tasks for _, tasks in lengths)
        return tuple((share, 0.0, round(tasks * t.tasks / total)) for share, tasks in lengths)
    return ((1.0, 0.0, t.tasks),)


def state_bytes(t: Tiling, class_index: int) -> float:
    """Return the bytes of all values that one loop carries from iteration to iteration, summed over all tasks.

    It is the loop over the dimensions of class number `class_index` (a class has dimensions with the same role, such as
    M or K, in every MMA). If the program itself has this loop, the loop's carried values count. Otherwise the
    accumulators of MMAs that reduce one of the dimensions count. Each element takes one register word. `t` (a Tiling)
    gives the program, its classes and the machine; its tile sizes do not matter.
    """
    facts, dims = t.facts, set(t.o.classes[class_index].dims)
    loop = next((x for axis, x in facts.loops.items() if axis in dims), None)
    if loop is not None:
        values = [facts.nodes[s] for s in loop.states]
    else:
        values = [facts.nodes[p.node] for p in facts.products if p.k & dims]
    return float(sum(facts.size(v.dims) * t.machine.register_file.word_bytes for v in values))
