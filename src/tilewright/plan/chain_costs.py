"""What plans with several products, or with a product whose rows are reduced, should take.

Where a loop goes over them, each round costs products, the arithmetic between them, and what of one hides no other.
Where none does, a task has one round: each product as long as its steps of K take, then the arithmetic that follows it,
which other waves hide only by chance, and the way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op, Program, TileType
from tilewright.machine import Machine
from tilewright.plan.computed import ComputedFactor
from tilewright.plan.epilogue import lane_cycles
from tilewright.plan.hiding import hiding, rounds_of_tasks, uneven
from tilewright.plan.microkernel import Axes, Microkernel
from tilewright.plan.model import Size, element_bytes
from tilewright.plan.ring_costs import ENOUGH
from tilewright.plan.schedule import Pipeline


@dataclass(frozen=True)
class ChainedProducts:
    """The products of a program for a machine, by what their dimensions are, and how wide those are that tasks and
    loops cut."""

    program: Program
    machine: Machine
    size: Size
    axes: dict[Op, Axes]
    held: dict[Op, bool]
    """Whether A is computed, so that it is in registers."""
    made: dict[Op, ComputedFactor]
    """How A is computed, where that is from arguments alone: step by step, from what is brought of these."""
    looped: dict[Expr, int]
    """The axes that loops go over, and their tiles; without those of loops that only add products."""
    row: Expr
    cut: tuple[Expr, ...]
    """The dimensions that tasks may cut."""

    @property
    def across(self) -> set[Expr]:
        """Dimensions that are the columns of a sum."""
        return {x.n for x in self.axes.values()}

    def blocks(self, op: Op, how: Microkernel) -> int:
        """Blocks of columns that a task goes over, one after the other: more than one of what tasks may cut."""
        n = self.axes[op].n
        return ceil(self.size(n) / how.columns) if n in self.cut and n not in self.looped else 1

    def rows(self, op: Op, how: Microkernel) -> float:
        """Rows that are brought for A, as many as have the bytes of what it is computed from."""
        if not self.held[op]:
            return how.rows
        if how.at_once or op not in self.made:
            return 0
        return how.rows * self.made[op].bytes(self.axes[op], how.slab or 1) / element_bytes(how.atom.a.dtype)

    def depth(self, op: Op) -> int:
        """How far K of a product goes in one round."""
        k = self.axes[op].k
        return self.looped.get(k) or self.size(k)

    def steps(self, op: Op, how: Microkernel) -> int:
        """The tiles of K that a product has in one round, all of it where that is brought at once."""
        deep = self.depth(op)
        return prod(self.size(d) for d in self.axes[op].deep) * ceil(deep / how.deep(deep))


def chain_cycles(found: ChainedProducts, products: Mapping[Op, Microkernel], roles: Pipeline, overlap: str) -> float:
    """Cycles of all tasks."""
    how = next(iter(products.values()))
    limits, size = found.machine.limits, found.size
    around = prod(size(d) for d in found.cut if d is not found.row and d not in found.across)
    fixed, cores = limits.copy_latency + limits.launch_cycles, limits.cores or 1
    if not found.looped:
        tasks = around * ceil(size(found.row) / how.rows)
        task, before = _once(found, products, roles)
        return ceil(tasks / cores) * task + before + fixed
    rows, groups = how.rows, how.groups
    columns = sum(tile for tile in found.looped.values())
    deep = {op: found.steps(op, x) * x.deep(found.depth(op)) for op, x in products.items()}
    each = [deep[op] / x.atom.shape[2] * x.atom.cycles for op, x in products.items()]  # of one group
    multiplied = groups * sum(each)
    brought = {op: x.columns + (0 if x.at_once else found.rows(op, x)) for op, x in products.items()}
    filled = sum(brought[op] * deep[op] * x.atom.b.dtype.bits / 8 for op, x in products.items())
    filled /= limits.l2_rate
    between, masking = (rows * columns * x for x in _between(found))
    step = max(multiplied, between, filled) + limits.round_latency / groups**2
    step += 0.0 if overlap != "none" else min(multiplied, between) / groups
    step += limits.copy_shown * filled + (limits.turn_latency if overlap == "ordered" else 0)
    rest = limits.copy_latency + rows * columns * 4 / limits.shared_rate
    rounds = _rounds(found, rows)
    if uneven(found.program, found.row):  # whoever is done takes the next task, and the last ones are the shortest
        lengths = [n * step + m * masking + rest for n, m in rounds]
        return around * sum(lengths) / cores + min(lengths) + fixed
    if overlap != "ordered":  # groups begin a task at the same time, and wait for one another's first products
        rest += (groups - 1) / 2 * each[0]
    return ceil(around * len(rounds) / cores) * (rounds[0][0] * step + rest) + fixed


def _once(found: ChainedProducts, products: Mapping[Op, Microkernel], roles: Pipeline) -> tuple[float, float]:
    """Cycles of a task that has one round: its products, what follows them element by element, and the way out; and
    those until the first tile of the first product is there."""
    limits, total, before = found.machine.limits, 0.0, 0.0
    turning = not all(how.at_once for how in products.values())
    lone = limits.lone_group if next(iter(products.values())).groups == 1 else 1
    for op, how in products.items():
        deep = found.steps(op, how) * how.deep(found.depth(op))
        atoms, bits = how.rows // how.atom.shape[0] * how.waves[1], how.atom.b.dtype.bits
        lines = atoms * (how.atom.shape[1] + (0 if how.held_a else how.atom.shape[0]))
        rows = how.columns + found.rows(op, how)
        multiplied = deep / how.atom.shape[2] * atoms * how.atom.cycles * lone
        blocks = found.blocks(op, how)
        multiplied, row = blocks * multiplied, blocks * deep * bits / 8
        read, brought = lines * row / limits.shared_rate, rows * row / limits.l2_rate
        took = max(multiplied, read, brought) + limits.copy_shown * brought
        if not how.at_once:  # a stage is multiplied, and filled again, while the others of its ring are multiplied
            filled = brought + blocks * found.steps(op, how) * limits.copy_latency
            took = max(took, (max(multiplied, read) + filled) / roles.stages)
        if (
            how.at_once and blocks == 1 and (roles.resident_stages if turning else roles.stages) == 1
        ):  # it comes all before
            took = max(multiplied, read) + brought
        total += took * (limits.shallow_ring if roles.stages < ENOUGH and not how.at_once else 1)
        before = before or brought / found.steps(op, how)
    end, last = list(products.items())[-1]
    for op in found.program.walk():
        wide = [d for v in op.results if isinstance(v.type, TileType) for d in v.type.dims if d is not found.row]
        mine = any(isinstance(v.type, TileType) and found.row in v.type.dims for v in op.results)
        if mine and found.across & set(wide):
            total += last.rows * max(map(found.size, found.across & set(wide))) * lane_cycles(op, found.machine)
    rounds = found.blocks(end, last)  # products of the next block wait for the end of this one
    total += (rounds - 1) * limits.round_latency / last.groups**2
    return total + rounds * last.rows * last.columns * 4 / limits.shared_rate + limits.copy_latency, before


def _between(found: ChainedProducts) -> tuple[float, float]:
    """Cycles of a core for an element of a round's scores, between products, and of those tiles that are masked."""
    limits, masking = found.machine.limits, hiding(found.program, found.row)
    every = masked = 0.0
    for op in found.program.walk():
        along = any(isinstance(v.type, TileType) and set(found.looped) & set(v.type.dims) for v in op.results)
        if along and op.name not in ("read", "fill", "self_index", "scalar"):
            each = max(lane_cycles(op, found.machine), 1 / limits.lane_rate)
            every, masked = (every, masked + each) if op in masking else (every + each, masked)
    return every, masked


def _rounds(found: ChainedProducts, rows: int) -> list[tuple[int, int]]:
    """(rounds of its loops, those of them that are masked) of each task of so many rows."""
    counts = [(1, 0)] * ceil(found.size(found.row) / rows)
    for op in found.program.walk():
        if op.name == "iterate" and op.attrs["axis"] in found.looped:
            each = rounds_of_tasks(found.program, op, found.row, rows, found.looped[op.attrs["axis"]], found.size)
            counts = [(m * n, masked + some) for (m, masked), (n, some) in zip(counts, each, strict=True)]
    return counts
