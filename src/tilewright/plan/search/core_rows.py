"""The cycles of a CPU core's vectors in tasks without MMAs, and of bytes that a task reads again from its caches.

Vectors run along the last dimension of a tile. An element costs more if that dimension is shorter than a vector, if a
read is not contiguous along it, and if an address divides or is gathered: its elements are then loaded one by one.
"""

from __future__ import annotations

from math import ceil, log2, prod

from tilewright.algebra.expr import Expr
from tilewright.ir.core import TileType
from tilewright.plan.facts import Facts, ValueFacts
from tilewright.plan.facts.graph import SCANS
from tilewright.plan.kept_rows import reduced_and_used_again
from tilewright.plan.model import l1, missing_share, piece_of_row
from tilewright.plan.search.core_reads import cycles_beyond_l1
from tilewright.plan.search.single_lane_scans import TOPK
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule


def vector_cycles(kernel: UniformKernelSchedule, n: ValueFacts) -> float:
    """Return a CPU core's cycles for one element of the value `n`, which is computed, loaded or stored with vectors.

    Vectors run along the last dimension of the value's tile. An element takes longer if vectors are not full, in scans,
    and if elements are loaded or stored one by one. An element of the result of a topk takes as long as a walk over its
    row. 0 for loads and stores of whole vectors, and if no operation of the program computes the value.
    """
    machine, source = kernel.machine, n.source
    if source is None:
        return 0.0
    vector = max(1, (machine.limits.vector_bytes or n.bytes) // n.bytes)
    if n.op == "read" or n.op == "write":
        return _access_cycles(kernel, n, vector)
    if n.op == TOPK:
        return float(kernel.width(source.attrs["dim"]) * machine.limits.latency)  # each of the largest walks the row
    dims = (source.operands[0] if n.reduces or n.op in SCANS else source.results[0]).type.dims
    full_vector_cycles = kernel.facts.lane_cycles(n, machine)
    if not dims or not full_vector_cycles:
        return full_vector_cycles
    last = kernel.width(dims[-1])
    if n.op in SCANS and source.attrs["dim"] is dims[-1]:
        return machine.limits.latency * (1 + log2(vector)) / vector
    if str(dims[-1]) in n.reduces and last < vector:  # row by row, in one lane
        return full_vector_cycles * vector
    return full_vector_cycles * ceil(last / vector) * vector / last


def _access_cycles(kernel: UniformKernelSchedule, n: ValueFacts, vector: int) -> float:
    """Return the extra cycles of a CPU core per element of the read or write `n`; 0 if it moves whole vectors.

    Elements are accessed one by one, and take extra cycles, in three cases: the tile's last dimension has a stride
    other than 0 or 1 in memory; the address divides that dimension's index; or it looks the index up in a tensor.
    `vector` is the number of elements in a vector.
    """
    costs, source = kernel.machine.costs, n.source
    assert source is not None
    kind = source.results[0].type if n.op == "read" else source.operands[0].type
    single_element = costs.lanes.lane_store / vector
    if not kind.dims or kernel.width(kind.dims[-1]) == 1:
        return 0.0
    last = kind.dims[-1]
    if n.place.linear:
        return 0.0 if n.place.steps.get(str(last), 0) in (0, 1) else single_element
    index = dict(zip(kind.dims, source.attrs["over"], strict=True)).get(last)
    divides = any(index in node.symbols for e in source.attrs["at"] for node in e.divisions(set()))
    values = source.operands[1:] if n.op == "read" else source.operands[2:]
    looked_up = any(last in v.type.dims for v in values if isinstance(v.type, TileType))
    return single_element + costs.functions.get("div", 0.0) / 2 if divides or looked_up else 0.0


def again_cycles(kernel: UniformKernelSchedule) -> float:
    """Return the cycles of a CPU core for the bytes that one task (one thread's tile) moves a second time.

    A tile that is read, reduced and used again counts its bytes once for each use after the first. The input of a scan,
    other than top-k, counts its bytes twice. Bytes that L1 still holds take no cycles. All other bytes come from L2, or
    from memory if the task's tiles together do not fit in L2. `kernel` has the tile sizes and the machine.
    """
    program, limits = kernel.facts.program, kernel.machine.limits
    users, again, between = program.users(), 0.0, 0.0

    def task_bytes(dims: tuple[Expr, ...], element: int) -> float:
        """Return the bytes of a task's tile of a value with the dimensions `dims`, of `element` bytes each."""
        return float(prod(kernel.width(d) for d in dims) * element)

    for op in (op for op in program.body.ops if op.name == "read"):
        reduced, uses = reduced_and_used_again(users, op.result)
        if reduced:
            rows = task_bytes(op.result.type.dims, op.result.type.dtype.numpy.itemsize)
            again, between = again + (uses - 1) * rows, between + rows
    for n in kernel.facts.nodes:
        if n.op in SCANS and n.op != TOPK and n.source is not None:
            rows = 2 * task_bytes(n.source.operands[0].type.dims, n.bytes)
            again, between = again + rows, between + rows
    return cycles_beyond_l1(limits, again * missing_share(between, l1(limits)), between)


def bytes_fetched_in_vain(kernel: UniformKernelSchedule) -> float:
    """Return the bytes that CPU cores fetch from memory without using them, because tasks read pieces of rows.

    A task that reduces over another dimension than the contiguous one reads a piece of every row. Caches fetch some
    lines after each piece, and lose these lines before a task uses them. 0 if tasks read whole rows: such rows follow
    one another in memory.
    """
    facts, costs = kernel.facts, kernel.machine.costs.vectors
    lines, widths = 0.0, {str(d): n for d, n in kernel.widths.items()}
    for n in strided_reads(facts):
        row = facts.extents[n.place.contiguous or ""]
        piece = min(widths.get(n.place.contiguous or "", row), piece_of_row(kernel.machine, n.place.bytes))
        if piece < row:
            lines += costs.ahead * facts.size(n.dims & n.place.dims) / piece
    return lines * kernel.machine.limits.line_bytes


def strided_reads(facts: Facts) -> list[ValueFacts]:
    """Return the reads of which the program reduces a dimension, but not the dimension that is contiguous in memory.

    `x[i, j]` of a row-major tensor is returned if the program sums over i alone. Reads without a contiguous dimension
    are left out.
    """
    reduced = {d for n in facts.nodes for d in n.reduces}
    return [
        n
        for n in facts.reads
        if n.place.contiguous is not None and n.place.contiguous not in reduced and not reduced.isdisjoint(n.place.dims)
    ]
