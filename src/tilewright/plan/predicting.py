"""A rough time for a program that the general lowering takes: its operations, or its bytes, on the busiest core.

It knows neither caches nor what a compiler makes of a loop. A task is one tile of the grid; work that several tasks
repeat counts once for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr
from tilewright.ir.core import MemoryType, Op, Program, TileType
from tilewright.machine import Machine
from tilewright.plan.model import Size, cores, element_bytes, l2
from tilewright.plan.rows import tasks_of


def predict_cycles(
    program: Program, sizes: Mapping[Symbol, int], size: Size, machine: Machine, widths: Mapping[Expr, int]
) -> tuple[float, float]:
    """Return (cycles of a program on a CPU, launch included; cycles of all cores for moving its arguments alone).

    The first is the larger of computing and moving on the busiest core. `size` gives the extent of a dimension,
    `widths` the extent of a task (tile of the grid) along each dimension that the grid splits. Dimensions with symbols
    that `sizes` lacks count as 1.
    """
    limits, workers = machine.limits, cores(machine)
    lanes = (limits.vector_bytes or 16) // 4
    work = 0.0
    for op in program.walk():
        tiles = {d for v in (*op.operands, *op.results) if isinstance(v.type, TileType) for d in v.type.dims}
        elements = prod(max(1, size(d)) for d in tiles if d.symbols <= set(sizes))
        elements *= prod(-(-size(d) // w) for d, w in widths.items() if d not in tiles)  # by tasks that differ there
        work += elements / lanes if op.name not in ("iterate", "yield") else 0
    argument_bytes = 0
    for arg in program.args:
        if isinstance(arg.type, MemoryType):
            known = [d for d in arg.type.sizes if d is not None and d.symbols <= set(sizes)]
            argument_bytes += prod(map(size, known)) * element_bytes(arg.type.dtype)
    tasks = max(1, tasks_of(widths, size))
    busiest_share = -(-tasks // workers) / tasks
    in_l2 = argument_bytes <= workers * l2(limits)  # that cache is each core's own
    memory_cycles = argument_bytes / (limits.l2_rate if in_l2 else limits.far_rate) / workers
    return max(work * busiest_share, memory_cycles * workers * busiest_share) + limits.launch_cycles, memory_cycles


def needs_division(op: Op, size: Size) -> bool:
    """True if the address of the read `op`, or its bounds check, needs an integer division.

    Without a bounds check only the flat offset counts: divisions that cancel when coordinates are merged into it need
    none. `size` gives the extent of a dimension.
    """
    if "otherwise" in op.attrs:
        return any(e.divisions(set()) for e in op.attrs.get("at", ()))
    shape = [size(d) for d in op.operands[0].type.dims]
    offsets = (e * prod(shape[n + 1 :]) for n, e in enumerate(op.attrs.get("at", ())))
    return bool(sum(offsets, start=as_expr(0)).divisions(set()))


def elements_per_load(op: Op, size: Size, machine: Machine) -> int:
    """Return how many adjacent elements of the read `op` one vector load of a lane can fetch; at least 1.

    It is the largest count that divides the load's width in elements, the length of a row of memory, and every number
    by which a coordinate is divided; 1 if one of these is not constant. `size` gives the extent of a dimension.
    """
    memory: MemoryType = op.operands[0].type
    elements_per_word = max(1, machine.lane_access.vector_bytes // element_bytes(memory.dtype))
    divisors = [node.parts[1] for e in op.attrs["at"] for node in e.divisions(set())]
    if not all(isinstance(n, Const) for n in divisors):
        return 1
    return gcd(elements_per_word, size(memory.dims[-1]), *(n.value for n in divisors if isinstance(n, Const)))
