"""The cycles in which a CPU core moves operands and results of its MMAs to and from the cache or memory with them.

A task is one thread's work. It iterates over accumulator tiles column by column: B of a column of tiles is read once
for each tile in it, and A once for each column. Bytes that are read again come from the nearest cache that holds all
bytes that are read and written in between; first reads come from the nearest cache that holds all that the core reads
of the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from tilewright.algebra.expr import Expr
from tilewright.ir.core import MemoryType, Op, Value
from tilewright.machine import Limits, Machine, MultiplyAtom, OpaqueOperand
from tilewright.plan.facts import Facts, ValueFacts
from tilewright.plan.microkernel import Axes, Microkernel, row_stride_of_a
from tilewright.plan.model import element_bytes, l1, l2, missing_share, share_of_sets, stays_in_l1
from tilewright.plan.search.core_shares import shares_of_core
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule


def cycles_beyond_l1(limits: Limits, moved: float, needed: float, slower: float = 1.0) -> float:
    """Return the cycles of one core to move `moved` bytes that L1 does not hold, to or from L2 and memory.

    `needed` is the number of bytes that a task uses before it uses the same byte again: the more there are, the larger
    the share of `moved` that misses L2 and goes to memory. Bytes that L2 holds move at L2's rate divided by `slower`.
    `limits` has the machine's rates.
    """
    misses = missing_share(needed, l2(limits))
    return moved * (misses / limits.far_rate + (1 - misses) * slower / limits.l2_rate)


@dataclass(frozen=True)
class OperandReads:
    """The bytes of one operand that one task reads: `first` for the first time, `again` all further times.

    `core` is the number of bytes of the operand's tensor that a core reads in all its tasks. `between` is a cache size:
    if a cache holds that number of bytes, it still holds an element of the operand when the task reads the element
    again. Reads from L2 take `slower` times as long as at L2's rate.
    """

    first: float
    core: float
    again: float
    between: float
    slower: float = 1.0


def slower_rows(machine: Machine, atom: MultiplyAtom, rows: int, stride: int, *, streams: bool = False) -> float:
    """Return the factor (1 or more) by which loads of A into tile registers are slower than L2's rate.

    A load of `atom` reads `rows` separate rows of A, which start `stride` bytes apart. Loads are slower still in two
    cases: the rows fall into so few sets of L1 that L1 cannot hold a cache line of each; and loads bypass L1
    (`streams`). The factor is 1 for atoms without tile registers.
    """
    if not isinstance(atom.c, OpaqueOperand):
        return 1.0
    costs, limits = machine.costs.tile_loads, machine.limits
    conflict = not stays_in_l1(limits, rows, limits.line_bytes, stride)
    return costs.strided * (costs.conflict if conflict else 1.0) * (costs.bypass if streams else 1.0)


def operand_cycles(limits: Limits, reads: OperandReads, held: float = 0.0) -> float:
    """Return the cycles of one core to read an operand in one task (one thread's work), from caches or memory.

    `reads` has the bytes of first reads and of repeated reads. A repeated read finds its bytes in the nearest cache
    that holds everything used since the read before. `held` is the size of the task's scratch memory, which uses the
    same caches. `limits` has the machine's rates.
    """
    repeated = reads.again * missing_share(reads.between, l1(limits))
    return cycles_beyond_l1(limits, reads.first, reads.core + held, reads.slower) + cycles_beyond_l1(
        limits, repeated, reads.between + held, reads.slower
    )


def task_read_cycles(kernel: UniformKernelSchedule) -> float:
    """Return the cycles of one core to read the operands of all MMAs of one task (one thread's work), all iterations.

    MMAs without an atom count nothing. `kernel` is a kernel without a pipeline on a CPU.
    """
    trips, held, total = _trips(kernel), value_bytes(kernel), 0.0
    loaded = set[str]()
    for op, microkernel in kernel.products.items():
        axes = kernel.axes_of(op)
        if microkernel is not None and not isinstance(axes, str):
            batch = prod(kernel.width(d) for d in axes.around)
            a = "" if kernel.tile_task is None else kernel.tile_task.arguments[op][0]
            reads_a = not a or a not in loaded  # one K loop loads A for several MMAs
            total += trips[op] * batch * _product_cycles(kernel, op, microkernel, axes, held, reads_a=reads_a)
            loaded.add(a)
    return total


def task_overhead_cycles(kernel: UniformKernelSchedule) -> float:
    """Return the cycles of one core that a task (one thread's work) takes beside its MMAs, such as stores of tiles.

    The sum has a fixed time per task, the largest of those of its MMAs, and a time per accumulator tile in every
    iteration of the loops. For a tile in tile registers, this is a fixed time and the time to store its elements; the
    stores take no time if they are delayed (`kernel.tile_task` is not None). For a tile in vector registers, it is a
    fixed time only, as its stores count with its MMAs. `kernel` is a kernel without a pipeline on a CPU; it must have
    an MMA.
    """
    costs, trips = kernel.machine.costs, _trips(kernel)
    total, store = 0.0, costs.tiles.store if kernel.tile_task is None else 0.0
    for op, microkernel in kernel.products.items():
        axes = kernel.axes_of(op)
        if microkernel is None or isinstance(axes, str):
            continue
        rows, columns, _ = axes.sizes(kernel.width)
        tiles = (
            ceil(rows / microkernel.rows)
            * ceil(columns / microkernel.columns)
            * prod(kernel.width(d) for d in axes.around)
        )
        tile = (
            costs.tiles.block + microkernel.rows * microkernel.columns * store
            if microkernel.is_matrix_atom
            else costs.vectors.block
        )
        total += trips[op] * tiles * tile
    return total + max(
        costs.tiles.task if microkernel is not None and microkernel.is_matrix_atom else costs.vectors.task
        for microkernel in kernel.products.values()
    )


def task_staging_cycles(kernel: UniformKernelSchedule) -> float:
    """Return the cycles of one core to copy rows of A to a buffer within one task (one thread's work); 0 if it copies
    none.
    """
    if kernel.tile_task is None or not kernel.staged:
        return 0.0
    task = kernel.tile_task
    staged = {task.arguments[op][0]: _bytes_of(kernel, op, axes)[0] for op, axes in task.products.items()}
    return kernel.machine.costs.tiles.packing * sum(staged.values()) / kernel.machine.limits.copy_rate


def task_packing_cycles(kernel: UniformKernelSchedule) -> float:
    """Return the cycles of one core to pack operands B within one task (one thread's work), over all its iterations."""
    trips = _trips(kernel)
    packed = sum(trips[op] * _bytes_packed_in_task(kernel, op) for op in kernel.products)
    return 2 * packed / kernel.machine.limits.copy_rate


def is_packed_before(kernel: UniformKernelSchedule, op: Op) -> bool:
    """True if B of the MMA `op` counts as packed for all tasks by a kernel that runs before this one.

    Atoms that read several neighbours along K always want B packed. For other atoms, B is packed on a CPU if it is not
    contiguous along N and several tasks read it. False if the atom reads shared memory, or if the MMA has no atom.
    Whether tasks split N within an accumulator tile, and so have to pack B themselves, is not checked.
    """
    microkernel, axes = kernel.products[op], kernel.axes_of(op)
    if microkernel is None or microkernel.slab or isinstance(axes, str):
        return False
    if microkernel.k_pack > 1:
        return True
    return _lies_across_n(kernel, op, axes) and _is_read_by_several(kernel, op, axes)


def _bytes_packed_in_task(kernel: UniformKernelSchedule, op: Op) -> float:
    """Return the bytes of B that one iteration of a task packs for the MMA `op` on a CPU; 0 if it packs none.

    A task packs B if tasks split N within an accumulator tile, so that no kernel before can pack it. It also packs a B
    that is not contiguous along N and that no other task reads.
    """
    microkernel, axes = kernel.products[op], kernel.axes_of(op)
    if microkernel is None or isinstance(axes, str):
        return 0.0
    is_cut = not _has_whole_tiles(kernel, microkernel, axes)
    if microkernel.k_pack > 1:
        is_packed = is_cut
    else:
        is_packed = _lies_across_n(kernel, op, axes) and (is_cut or not _is_read_by_several(kernel, op, axes))
    return _bytes_of(kernel, op, axes)[1] if is_packed else 0.0


def _has_whole_tiles(kernel: UniformKernelSchedule, microkernel: Microkernel, axes: Axes) -> bool:
    """True if tasks do not split N, or split it at whole accumulator tiles."""
    width = kernel.width(axes.n)
    return width >= kernel.facts.number_of(axes.n) or width % microkernel.columns == 0


def _lies_across_n(kernel: UniformKernelSchedule, op: Op, axes: Axes) -> bool:
    """True if B of the MMA `op` is read from a tensor on a CPU, and is not contiguous along N."""
    b = read_of(kernel.facts, axes.operands(op)[1])
    return kernel.machine.lanes is None and b is not None and _stride(kernel, b, axes.n) != 1


def read_of(facts: Facts, value: Value) -> ValueFacts | None:
    """Return the read (a node of the program's graph) with the result `value`; None if the program computes `value`."""
    return next((n for n in facts.reads if n.source is not None and value in n.source.results), None)


def _stride(kernel: UniformKernelSchedule, read: ValueFacts, dim: Expr) -> int:
    """Return the stride, in elements, of the access `read` along the program dimension `dim`.

    It is 0 if the address does not depend on `dim`. If `dim` was split into digits (mixed-radix parts), it is the
    stride of the last digit.
    """
    names = kernel.facts.digit_names(dim)
    return read.place.steps.get(names[-1], 0) if names else 0


def _is_read_by_several(kernel: UniformKernelSchedule, op: Op, axes: Axes) -> bool:
    """True if several tasks read the same elements of B of the MMA `op`: they split a dimension that B lacks."""
    size, dims = kernel.facts.number_of, axes.operands(op)[1].type.dims
    return any(size(d) > n and d not in dims for d, n in kernel.widths.items())


def task_value_cycles(kernel: UniformKernelSchedule) -> float:
    """Return the cycles of one core to write and read values of one task (one thread's work) in its scratch memory.

    The values are the accumulators of all MMAs, and operands that the task computes or transposes. Values that L1 holds
    take no cycles.
    """
    limits, held, trips = kernel.machine.limits, value_bytes(kernel), _trips(kernel)
    tiles = prod(ceil(kernel.width(d) / n) for d, n in kernel.blocks.items())
    moved = sum(2 * trips[op] * tiles * _value_bytes_of(kernel, op) for op in kernel.products)
    return missing_share(held, l1(limits)) * cycles_beyond_l1(limits, moved, held)


def value_bytes(kernel: UniformKernelSchedule) -> float:
    """Return the bytes of a CPU task's scratch memory for its MMAs.

    It holds the accumulators of all MMAs, and the operands that the task computes or transposes.
    """
    return sum(_value_bytes_of(kernel, op) for op in kernel.products)


def _value_bytes_of(kernel: UniformKernelSchedule, op: Op) -> float:
    """Return the bytes of scratch memory per iteration for the MMA `op`: accumulator, computed operands, transposed B.

    The accumulator and computed operands count with the accumulator's element size; if a task loops over accumulator
    tiles, with the elements of one tile. A B that the task transposes counts with its bytes per task, and only for
    atoms that take one element of K at a time.
    """
    values = {*op.results, *(v for v in op.operands[:2] if _argument(kernel, v) is None)}
    elements = sum(prod(kernel.blocks.get(d) or kernel.width(d) for d in v.type.dims) for v in values)
    microkernel = kernel.products[op]
    is_transposed = microkernel is not None and microkernel.k_pack == 1
    packed = _bytes_packed_in_task(kernel, op) if is_transposed else 0.0
    return float(elements * element_bytes(op.results[0].type.dtype)) + packed


def _argument(kernel: UniformKernelSchedule, value: Value) -> MemoryType | None:
    """Return the type of the tensor from which the operand `value` is read.

    None if the program computes `value`, or if an extent of the tensor is unknown.
    """
    maker = kernel.facts.program.makers().get(value)
    kind = None if maker is None or maker.name != "read" else maker.operands[0].type
    return kind if isinstance(kind, MemoryType) and None not in kind.sizes else None


def _trips(kernel: UniformKernelSchedule) -> dict[Op, int]:
    """Return {MMA: iterations of the loops around it within one task} of a CPU kernel; a task is one thread's work.

    All are 1 if the task loops over accumulator tiles: K loops are then inside, and a tile is loaded and stored once.
    """
    return dict.fromkeys(kernel.products, 1) if kernel.blocks else kernel.trips


def _bytes_of(kernel: UniformKernelSchedule, op: Op, axes: Axes) -> tuple[float, float]:
    """Return (bytes of A, bytes of B) that one iteration of a task reads for the MMA `op`, for one batch element.

    If the task loops over accumulator tiles, all of K counts. `axes` says which dimensions of the MMA are M, N and K.
    """
    size = kernel.facts.number_of

    def extent(d: Expr) -> int:
        """Return the number of elements of `d` that one iteration reads; all of K if accumulators stay in registers."""
        return size(d) if kernel.blocks and d not in op.results[0].type.dims else kernel.width(d)

    a, b = (
        prod(extent(d) for d in v.type.dims if d not in axes.around) * element_bytes(v.type.dtype)
        for v in axes.operands(op)
    )
    return float(a), float(b)


def _seen_bytes(kernel: UniformKernelSchedule, value: Value, task_bytes: float) -> float:
    """Return the bytes of an operand's tensor that one core reads in all its tasks (one thread's work each).

    `value` is the operand, `task_bytes` its bytes per task. Tasks along the operand's dimensions read separate parts of
    the tensor; the core's tasks follow from the cyclic order of the grid. If the operand is computed, not read,
    `task_bytes` is returned.
    """
    tensor, size = _argument(kernel, value), kernel.facts.number_of
    if tensor is None:
        return task_bytes
    total = prod(size(d) for d in tensor.sizes if d is not None) * element_bytes(tensor.dtype)
    counts = tuple(ceil(size(d) / n) for d, n in kernel.widths.items())
    shares = zip(kernel.widths, shares_of_core(counts, kernel.machine.limits.cores or 1, "cyclic"), strict=True)
    return max(task_bytes, total * prod(share for d, share in shares if d in value.type.dims))


def _product_cycles(
    kernel: UniformKernelSchedule, op: Op, microkernel: Microkernel, axes: Axes, held: float, *, reads_a: bool
) -> float:
    """Return the cycles of one core to read A and B of the MMA `op` in one iteration, for one element of the batch.

    `axes` says which dimensions are M, N and K; `microkernel` has the accumulator tile. `held` are the bytes of values
    in the task's scratch memory, which use the same caches. Without `reads_a`, A is in registers already.
    """
    limits = kernel.machine.limits
    rows, columns, _ = axes.sizes(kernel.width)
    row_tiles, column_tiles = ceil(rows / microkernel.rows), ceil(columns / microkernel.columns)
    sizes = _bytes_of(kernel, op, axes)
    tile_a, tile_b = sizes[0] / row_tiles, sizes[1] / column_tiles
    again = (
        (column_tiles - 1, sizes[0] + tile_b),
        (row_tiles - 1, tile_a + tile_b / _share_of_sets(kernel, op, microkernel, axes)),
    )  # (passes, bytes in between)
    stride = row_stride_of_a(kernel.facts.program, op, axes, kernel.facts.number_of)
    slower = 1.0 if kernel.staged else slower_rows(kernel.machine, microkernel.atom, microkernel.rows, stride), 1.0
    tiles = {axes.m: microkernel.rows, axes.n: microkernel.columns}
    total = 0.0
    operands = list(zip(axes.operands(op), sizes, again, slower, strict=True))
    for value, read, (passes, needed), times in operands if reads_a else operands[1:]:
        reads = OperandReads(read, _seen_bytes(kernel, value, read), passes * read, needed, times)
        runs = _runs(kernel, value, read, tiles) * missing_share(reads.core + held, l2(limits))
        total += operand_cycles(limits, reads, held) + runs * limits.run_cycles
    return total


def _share_of_sets(kernel: UniformKernelSchedule, op: Op, microkernel: Microkernel, axes: Axes) -> float:
    """Return the share (above 0, at most 1) of L1's sets that B of one accumulator tile uses.

    Rows of B a power of two apart fall into few sets. The share is 1 if B is packed or computed.
    """
    b = read_of(kernel.facts, axes.operands(op)[1])
    if b is None or microkernel.k_pack > 1 or _lies_across_n(kernel, op, axes):
        return 1.0
    row_bytes, stride = microkernel.columns * b.place.bytes, _stride(kernel, b, axes.k) * b.place.bytes
    return share_of_sets(kernel.machine.limits, row_bytes, stride)


def _runs(kernel: UniformKernelSchedule, value: Value, read: float, tiles: Mapping[Expr, int]) -> float:
    """Return the number of contiguous runs in memory from which a task reads `read` bytes of the operand `value`.

    A run ends at the edge of the accumulator tile or of the task; `tiles` has the tile's extents along M and N. Return
    0 if the operand is computed, if it is contiguous along no dimension, or if tiles and tasks have whole rows of the
    tensor, which follow one another in memory.
    """
    size, node = kernel.facts.number_of, read_of(kernel.facts, value)
    dim = None if node is None else next((d for d in value.type.dims if _stride(kernel, node, d) == 1), None)
    if dim is None:
        return 0.0
    run = min(tiles.get(dim, size(dim)), kernel.width(dim))
    return 0.0 if run >= size(dim) else read / (run * element_bytes(value.type.dtype))
