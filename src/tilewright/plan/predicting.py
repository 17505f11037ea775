"""What a program on the general path should take: its operations, or its bytes, on the busiest core.

It is rough: it knows neither caches nor what a compiler makes of a loop. What several tasks compute alike counts for
each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr
from tilewright.ir.core import MemoryType, Op, Program, TileType
from tilewright.machine import Machine
from tilewright.plan.model import Size, cores, element_bytes, l2
from tilewright.plan.rows import tasks_of


def predicted(
    program: Program, sizes: Mapping[Symbol, int], size: Size, machine: Machine, widths: Mapping[Expr, int]
) -> tuple[float, float]:
    """(cycles that a program should take on a CPU whose tasks have these widths, those that its arguments take)."""
    limits, workers = machine.limits, cores(machine)
    lanes = (limits.vector_bytes or 16) // 4
    work = 0.0
    for op in program.walk():
        tiles = {d for v in (*op.operands, *op.results) if isinstance(v.type, TileType) for d in v.type.dims}
        elements = prod(max(1, size(d)) for d in tiles if d.symbols <= set(sizes))
        elements *= prod(-(-size(d) // w) for d, w in widths.items() if d not in tiles)  # by tasks that differ there
        work += elements / lanes if op.name not in ("iterate", "yield") else 0
    moved = 0
    for arg in program.args:
        if isinstance(arg.type, MemoryType):
            known = [d for d in arg.type.sizes if d is not None and d.symbols <= set(sizes)]
            moved += prod(map(size, known)) * element_bytes(arg.type.dtype)
    tasks = max(1, tasks_of(widths, size))
    share = -(-tasks // workers) / tasks
    near = moved <= workers * l2(limits)  # that cache is each core's own
    bound = moved / (limits.l2_rate if near else limits.far_rate) / workers
    return max(work * share, bound * workers * share) + limits.launch_cycles, bound


def is_divided(op: Op, size: Size) -> bool:
    """Whether where a read lies takes divisions, or whether it is there: not where rows run on as they lie."""
    if "otherwise" in op.attrs:
        return any(e.divisions(set()) for e in op.attrs.get("at", ()))
    shape = [size(d) for d in op.operands[0].type.dims]
    places = (e * prod(shape[n + 1 :]) for n, e in enumerate(op.attrs.get("at", ())))
    return bool(sum(places, start=as_expr(0)).divisions(set()))


def neighbours_in_word(op: Op, size: Size, machine: Machine) -> int:
    """How many neighbours a read has in one word: all numbers that divide their places have as many, and rows do."""
    memory: MemoryType = op.operands[0].type
    word = max(1, machine.lane_access.vector_bytes // element_bytes(memory.dtype))
    parts = [node.parts[1] for e in op.attrs["at"] for node in e.divisions(set())]
    if not all(isinstance(n, Const) for n in parts):
        return 1
    return gcd(word, size(memory.dims[-1]), *(n.value for n in parts if isinstance(n, Const)))
