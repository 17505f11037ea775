"""What a program on the general path should take: its operations, or its bytes, on the busiest core.

It is rough: it knows neither caches nor what a compiler makes of a loop. What several tasks compute alike counts for
each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, gcd, prod

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType
from tilewright.ir.tile import REDUCTIONS
from tilewright.machine import Machine
from tilewright.plan.epilogue import lane_cycles
from tilewright.plan.microkernel import Microkernel, axes_in, waves_of
from tilewright.plan.model import Size, cores, element_bytes, l2, moving
from tilewright.plan.rows import tasks_of


def predicted(
    program: Program,
    sizes: Mapping[Symbol, int],
    size: Size,
    machine: Machine,
    widths: Mapping[Expr, int],
    products: Mapping[Op, Microkernel | None],
    waves: int,
    looped: Mapping[Expr, int],
) -> tuple[float, float]:
    """(cycles that the program should take, those that moving its arguments alone takes).

    Tasks have these widths, and so many waves each, or as many as products take; loops go in these steps.
    """
    limits, workers, waves = machine.limits, cores(machine), max(waves, waves_of(machine, products.values()))
    lanes = (limits.vector_bytes or 16) // 4
    work = 0.0

    def width(d: Expr) -> int:
        return max(1, widths.get(d) or looped.get(d) or size(d))

    for op in program.walk():
        tiles = {d for v in (*op.operands, *op.results) if isinstance(v.type, TileType) for d in v.type.dims}
        elements = prod(max(1, size(d)) for d in tiles if d.symbols <= set(sizes))
        elements *= prod(-(-size(d) // w) for d, w in widths.items() if d not in tiles)  # by tasks that differ there
        if machine.lanes is not None:
            work += elements * _by_lanes(op, products.get(op), machine, waves, width, size)
        else:
            work += elements / lanes if op.name not in ("iterate", "yield") else 0
    moved = 0
    for arg in program.args:
        if isinstance(arg.type, MemoryType):
            known = [d for d in arg.type.sizes if d is not None and d.symbols <= set(sizes)]
            moved += prod(map(size, known)) * element_bytes(arg.type.dtype)
    tasks = max(1, tasks_of(widths, size))
    share = -(-tasks // workers) / tasks
    if machine.lanes is None:
        near = moved <= workers * l2(limits)  # that cache is each core's own
        bound = moved / (limits.l2_rate if near else limits.far_rate) / workers
        moving_it = bound * workers * share
    else:  # cores have several tasks at a time, so that all of them move something to the end
        bound = moved / limits.far_rate / workers
        moving_it = moving(machine, moved) * max(1, workers / tasks)
    waited = 0.0
    if not products and machine.lanes is not None:  # the first of what is read has arrived before anything is written
        waited = limits.copy_latency
    elif machine.lanes is not None:  # nothing else runs while factors arrive
        waited = -(-tasks // workers) * limits.copy_latency * _arrivals(program.body, products, size, width, looped)
    return max(work * share, moving_it) + waited + limits.launch_cycles, bound


def _arrivals(
    block: Block, products: Mapping[Op, Microkernel | None], size: Size, width: Size, looped: Mapping[Expr, int]
) -> int:
    """How often a task waits for what it reads: for both factors in every step of every block of sums."""
    found = 0
    for op in block.ops:
        inner = sum(_arrivals(each, products, size, width, looped) for each in op.blocks)
        if op.name == "iterate" and op.attrs["axis"] in looped:
            inner *= ceil(size(op.attrs["axis"]) / max(1, looped[op.attrs["axis"]]))
        if op.name == "mma":
            inner += 2 * _steps(op, products.get(op), width)
        found += inner
    return found


def _steps(op: Op, how: Microkernel | None, width: Size) -> int:
    """Steps of a product in a task: blocks of sums, each with slabs of K where those go through shared memory."""
    axes = axes_in(op, width)
    if how is None or isinstance(axes, str):
        return 1
    rows, columns, deep = axes.sizes(width)
    slabs = ceil(deep / how.slab) if how.slab else 1
    return ceil(rows / how.rows) * ceil(columns / how.columns) * slabs


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


def _by_lanes(op: Op, how: Microkernel | None, machine: Machine, waves: int, width: Size, size: Size) -> float:
    """Cycles of a core for one element of an operation, which so many waves do; of a product, for one of its terms."""
    each = lane_cycles(op, machine)
    if op.name == "read" and is_divided(op, size):  # where it lies is worked out
        each = machine.limits.placing / machine.limits.lane_rate / neighbours_in_word(op, size, machine)
    if op.name == "mma":
        axes = axes_in(op, width)
        each = 1 / machine.limits.lane_rate
        if how is not None and not isinstance(axes, str):
            rows, columns, _ = axes.sizes(width)
            whole = ceil(rows / how.atom.shape[0]) * ceil(columns / how.atom.shape[1]) / (rows * columns)
            each = how.atom.cycles * whole / how.atom.shape[2]
    elif op.name in REDUCTIONS:
        each = 1 / machine.limits.lane_rate
    return each * (machine.costs.one_wave if waves == 1 else 1)
