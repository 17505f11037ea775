"""The cycles of a core's vectors in tasks without products, and of what a task reads again from its caches.

Vectors go along the last dimension of a tile. So elements cost more where that is shorter than a vector, where a read
does not lie side by side along it, and where a place divides or is gathered: each of those is loaded by itself.
"""

from __future__ import annotations

from math import ceil, log2, prod

from tilewright.algebra.expr import Expr
from tilewright.ir.core import TileType
from tilewright.plan.facts import ValueFacts
from tilewright.plan.facts.graph import SCANS
from tilewright.plan.kept_rows import reduced_and_used_again
from tilewright.plan.model import l1
from tilewright.plan.search.core_reads import cycles_beyond_l1, missing_share
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule
from tilewright.plan.search.walks import TOPK


def vector_cycles(kernel: UniformKernelSchedule, n: ValueFacts) -> float:
    """Return the cycles of a core for one element of a value, on a machine whose cores have vectors (a CPU)."""
    machine, source = kernel.machine, n.source
    if source is None:
        return 0.0
    vector = max(1, (machine.limits.vector_bytes or n.bytes) // n.bytes)
    if n.op == "read" or n.op == "write":
        return _access_cycles(kernel, n, vector)
    if n.op == TOPK:
        return float(kernel.width(source.attrs["dim"]) * machine.limits.latency)  # each of the largest walks the row
    dims = (source.operands[0] if n.reduces or n.op in SCANS else source.results[0]).type.dims
    alone = kernel.facts.lane_cycles(n, machine)
    if not dims or not alone:
        return alone
    last = kernel.width(dims[-1])
    if n.op in SCANS and source.attrs["dim"] is dims[-1]:
        return machine.limits.latency * (1 + log2(vector)) / vector
    if str(dims[-1]) in n.reduces and last < vector:  # row by row, in one lane
        return alone * vector
    return alone * ceil(last / vector) * vector / last


def _access_cycles(kernel: UniformKernelSchedule, n: ValueFacts, vector: int) -> float:
    """Return the cycles for one element of a read or write whose elements are loaded or stored by themselves; else 0.

    They are if the tile's last dimension does not run along memory, or if an element's place is divided or gathered.
    """
    costs, source = kernel.machine.costs, n.source
    assert source is not None
    kind = source.results[0].type if n.op == "read" else source.operands[0].type
    apart = costs.lanes.apart / vector
    if not kind.dims or kernel.width(kind.dims[-1]) == 1:
        return 0.0
    last = kind.dims[-1]
    if n.place.linear:
        return 0.0 if n.place.steps.get(str(last), 0) in (0, 1) else apart
    index = dict(zip(kind.dims, source.attrs["over"], strict=True)).get(last)
    divides = any(index in node.symbols for e in source.attrs["at"] for node in e.divisions(set()))
    values = source.operands[1:] if n.op == "read" else source.operands[2:]
    looked_up = any(last in v.type.dims for v in values if isinstance(v.type, TileType))
    return apart + costs.functions.get("div", 0.0) / 2 if divides or looked_up else 0.0


def again_cycles(kernel: UniformKernelSchedule) -> float:
    """Return the cycles of a core for what a task reads again, each byte from the nearest cache that holds the rows.

    It reads rows again that it reduces and then uses, once for each use; what a scan makes goes through memory.
    """
    program, limits = kernel.facts.program, kernel.machine.limits
    users, again, between = program.users(), 0.0, 0.0

    def task_bytes(dims: tuple[Expr, ...], element: int) -> float:
        """Return the bytes that a task has of a tile."""
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
