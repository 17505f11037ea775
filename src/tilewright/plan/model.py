"""What a plan costs, in cycles of the busiest worker, from the machine's description alone.

The model is simple and says what it counts: products at the atom's rate (or the loads that feed them, if those take
longer), factors that must come from beyond the first cache, elements staged, results stored, and the launch. It ranks
plans; it does not promise times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import prod

from tilewright.algebra.expr import Expr
from tilewright.ir.dtypes import DType
from tilewright.machine import Limits, Machine, MultiplyAtom
from tilewright.plan.blocking import LaneUnit
from tilewright.plan.contraction import Contraction, Operand

Size = Callable[[Expr], int]
"""The number that an expression of sizes is."""
L1_SHARE, L2_SHARE = 0.8, 0.6
"""What of a cache can be counted on."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cycles of the busiest worker by what they are for; `memory` is only what products do not hide."""

    products: float
    memory: float
    staging: float = 0.0
    storing: float = 0.0
    launch: float
    tasks: int
    busiest: int
    """Tasks in all, and those of the busiest worker."""
    instructions: int
    """Instructions of the program, roughly."""
    scratch: int = 0
    """Bytes of memory of its own that a worker uses."""
    staged_bytes: float = 0.0

    @property
    def cycles(self) -> float:
        """All of them."""
        return self.products + self.memory + self.staging + self.storing + self.launch

    def parts(self) -> dict[str, float]:
        """The cycles by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)[:5]}


@dataclass(frozen=True)
class Roofline:
    """The least cycles that a problem takes on a machine: its products on all cores, or its bytes through memory."""

    compute: float
    memory: float
    atom: str

    @property
    def cycles(self) -> float:
        """The larger of both."""
        return max(self.compute, self.memory)


def element_bytes(dtype: DType) -> int:
    """Bytes of an element."""
    return max(1, dtype.bits // 8)


def operand_bytes(operand: Operand) -> int:
    """Bytes of a tensor."""
    return prod((element_bytes(operand.dtype), *operand.shape))


def l1(limits: Limits) -> float:
    """Bytes of the first cache that can be counted on."""
    return L1_SHARE * limits.l1_bytes


def l2(limits: Limits) -> float:
    """Bytes of the second cache that can be counted on."""
    return L2_SHARE * limits.l2_bytes


def stays_near(limits: Limits, rows: int, row: int, apart: int) -> bool:
    """Whether the first cache keeps rows of so many bytes that lie so many bytes apart.

    Lines whose addresses differ by a multiple of a large power of two share a set: rows of 64 bytes that lie 256 apart
    have a quarter of the cache, and all of a set where they are multiples of all sets apart.
    """
    line = limits.line_bytes
    lines, between = -(-row // line), max(1, apart // line)
    step = between & -between
    if limits.l1_ways is not None:
        step = min(step, limits.l1_bytes // (limits.l1_ways * line))
    return rows * lines * line <= l1(limits) * min(1.0, lines / step)


def cores(machine: Machine) -> int:
    """The cores that share the tasks."""
    return max(1, machine.limits.cores or 1)


def reading(limits: Limits, kept: float, times: float, around: float) -> float:
    """Cycles of reading `kept` bytes `times` over, with `around` bytes between.

    What is read again comes from the cache that holds it and what lies between two readings; the first time, from the
    second cache where everything fits it, else from behind.
    """
    between = kept + around
    rate = limits.l2_rate if between <= l2(limits) else limits.far_rate
    first = kept / rate
    if times <= 1:
        return first * times
    return first if between <= l1(limits) else first + (times - 1) * kept / rate


def moving(machine: Machine, count: float, *, from_memory: bool = False) -> float:
    """Cycles in which all cores together move bytes, which the L2 cache has kept where it holds them."""
    limits = machine.limits
    kept = count <= limits.l2_bytes and not from_memory
    return count / (limits.far_rate * (limits.warm if kept else 1)) / (limits.cores or 1)


def copying(given: Operand, made: Operand, machine: Machine) -> float:
    """Cycles of a launch that writes a tensor as another: of another type, or with zeros after a dimension."""
    limits, workers = machine.limits, cores(machine)
    moved = operand_bytes(given) + operand_bytes(made)
    rate = limits.copy_rate if moved <= workers * l2(limits) else min(limits.copy_rate, limits.far_rate)
    return moved / rate / workers + limits.launch_cycles


def roofline(c: Contraction, machine: Machine, atoms: Sequence[MultiplyAtom | LaneUnit]) -> Roofline:
    """What no plan can beat with these atoms."""
    best = min(atoms, key=_cycles_of_product)
    workers = cores(machine)
    compute = c.flops / 2 * _cycles_of_product(best) / workers
    moved = sum(operand_bytes(x) for x in (c.a, c.b, c.out, *c.extras))
    rate = machine.limits.l2_rate if moved <= workers * l2(machine.limits) else machine.limits.far_rate
    return Roofline(compute, moved / rate / workers, best.name)


def _cycles_of_product(atom: MultiplyAtom | LaneUnit) -> float:
    m, n, k = atom.shape
    return atom.cycles / (m * n * k)


def microseconds(cycles: float, machine: Machine) -> float:
    """Cycles as time."""
    return cycles / machine.limits.clock_ghz / 1000


def us(cycles: float, machine: Machine) -> str:
    """Cycles as time, in words of microseconds."""
    return f"{microseconds(cycles, machine):.1f}"
