"""The cost model of CPU contractions: cycles of the busiest worker, from the machine's description alone.

A task is one tile of the grid; a worker is a core that runs tasks one after the other. The model counts MMAs at the
atom's rate (or the loads that feed them, if those take longer), operands that come from beyond the L1 cache, staged
elements, stored results, and the launch. It ranks plans; it does not promise times.
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
"""A function that evaluates an expression of sizes, such as a dimension's extent, to a number."""
L1_SHARE = 0.8
"""The share of the L1 cache that data of a kernel can use."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Predicted cycles of the busiest worker, by cause. `memory` counts only the cycles that MMAs do not hide."""

    products: float
    memory: float
    staging: float = 0.0
    storing: float = 0.0
    launch: float
    packing: float = 0.0
    """Cycles of the kernel that packs B at every launch, its launch included; 0 for a constant B."""
    tasks: int
    busiest: int
    """The number of tasks that the busiest worker runs; `tasks` is the number of all workers' tasks."""
    reading: float = 0.0
    """Cycles in which operands and results move between caches and memory, those that MMAs hide included."""
    staged_bytes: float = 0.0
    """Bytes of A that the busiest worker copies to staging buffers."""

    @property
    def cycles(self) -> float:
        """The predicted cycles of the busiest worker: the sum over all causes."""
        return self.products + self.memory + self.staging + self.storing + self.launch + self.packing

    def parts(self) -> dict[str, float]:
        """Return {cause: predicted cycles of the busiest worker (core)}; the cycles add up to `cycles`.

        The causes are products (multiply-adds), memory (cycles that multiply-adds do not hide), staging of A, storing
        of results, launch (fixed cycles to start a kernel), and packing of B by a kernel before this one.
        """
        return {f.name: getattr(self, f.name) for f in fields(self)[:6]}


@dataclass(frozen=True)
class Roofline:
    """Lower bounds of a problem's cycles on all cores: `compute` for its MMAs, `memory` for its bytes.

    `atom` is the name of the fastest atom, whose rate counts.
    """

    compute: float
    memory: float
    atom: str

    @property
    def cycles(self) -> float:
        """The lower bound of the problem's cycles on all cores: the larger of compute cycles and memory cycles."""
        return max(self.compute, self.memory)


def element_bytes(dtype: DType) -> int:
    """Return the number of bytes of one element of a type; an element of less than a byte counts as one byte."""
    return max(1, dtype.bits // 8)


def operand_bytes(operand: Operand) -> int:
    """Return the number of bytes of the whole tensor that an operand is read from, or that a result is written to."""
    return prod((element_bytes(operand.dtype), *operand.shape))


def l1(limits: Limits) -> float:
    """Return the number of bytes of the L1 cache that data of a kernel can use: 0.8 (L1_SHARE) of its capacity."""
    return L1_SHARE * limits.l1_bytes


def l2(limits: Limits) -> float:
    """Return the number of bytes of the L2 cache that data of a kernel can use: the machine's share of its capacity."""
    return limits.l2_share * limits.l2_bytes


def missing_share(needed: float, room: float) -> float:
    """Return the fraction (0 to 1) of accesses that miss a cache of `room` bytes.

    The accesses read the same `needed` bytes again and again. None misses while `needed` is up to half of `room`. All
    miss from one and a half times `room` on, and if there is no cache (`room` is 0). In between, the fraction grows
    linearly.

    >>> missing_share(10, 100), missing_share(100, 100), missing_share(1000, 100)
    (0.0, 0.5, 1.0)
    """
    return min(1.0, max(0.0, needed / room - 0.5)) if room else 1.0


def stays_in_l1(limits: Limits, rows: int, row_bytes: int, stride_bytes: int) -> bool:
    """True if the L1 cache can hold `rows` rows of `row_bytes` bytes at once, which begin every `stride_bytes` bytes.

    Rows count as whole cache lines, and only 0.8 (L1_SHARE) of the cache counts. Rows may compete for the same sets of
    the cache: see `share_of_sets`.
    """
    line = limits.line_bytes
    return rows * -(-row_bytes // line) * line <= l1(limits) * share_of_sets(limits, row_bytes, stride_bytes)


def share_of_sets(limits: Limits, row_bytes: int, stride_bytes: int) -> float:
    """Return the fraction (above 0, at most 1) of L1's sets that rows of `row_bytes` bytes use.

    A row begins every `stride_bytes` bytes. The fraction is less than 1 if the stride has a large power of two as a
    factor. With lines of 64 bytes, rows of 64 bytes with a stride of 256 use a quarter of the sets. If the stride is a
    multiple of the bytes of one way (a line of each set), all rows start in the same set.
    """
    line = limits.line_bytes
    lines_per_row, lines_between = -(-row_bytes // line), max(1, stride_bytes // line)
    step = lines_between & -lines_between
    if limits.l1_ways is not None:
        step = min(step, limits.l1_bytes // (limits.l1_ways * line))
    return min(1.0, lines_per_row / step)


def cores(machine: Machine) -> int:
    """Return the number of cores of a machine, over which tasks are spread; 1 if its description gives none."""
    return max(1, machine.limits.cores or 1)


def read_cycles(limits: Limits, read_bytes: float, passes: float, bytes_between: float) -> float:
    """Return the cycles of one core to read the same `read_bytes` bytes `passes` times.

    Between two passes the core reads `bytes_between` other bytes. If L2 holds the sum of both, every pass reads from
    L2, otherwise from memory. If L1 holds the sum of both, only the first pass takes time.
    """
    reuse_bytes = read_bytes + bytes_between
    rate = limits.l2_rate if reuse_bytes <= l2(limits) else limits.far_rate
    first = read_bytes / rate
    if passes <= 1:
        return first * passes
    return first if reuse_bytes <= l1(limits) else first + (passes - 1) * read_bytes / rate


def line_bytes(machine: Machine) -> int:
    """Return the number of bytes of a cache line; on a GPU, of a line as the lanes of a wave access memory."""
    return machine.limits.line_bytes if machine.lanes is None else machine.lane_access.line_bytes


def piece_of_row(machine: Machine, element_bytes: int) -> int:
    """Return the number of elements of a row that a CPU core reads before it goes on to the next row.

    The core reduces over rows. An element has `element_bytes` bytes. Longer pieces are not clearly faster, and leave L1
    room for fewer rows.
    """
    return machine.costs.vectors.piece * machine.limits.line_bytes // element_bytes


def moving_cycles(machine: Machine, moved_bytes: float, *, from_memory: bool = False) -> float:
    """Return the cycles that all cores together take to move `moved_bytes` between memory and cores.

    Bytes move at the rate of DRAM. If L2 (on a CPU: the L2 caches of all cores together) could hold them all and
    `from_memory` is False, they move at the higher rate of L2.
    """
    limits = machine.limits
    caches = 1 if machine.lanes is not None else limits.cores or 1  # cores of a CPU have an L2 cache each
    in_l2 = moved_bytes <= caches * limits.l2_bytes and not from_memory
    return moved_bytes / (limits.far_rate * (limits.warm if in_l2 else 1)) / (limits.cores or 1)


def copy_kernel_cycles(source: Operand, target: Operand, machine: Machine) -> float:
    """Return the cycles of a kernel on all cores that copies the tensor `source` to `target`, its launch included.

    The launch is the fixed cycles to start a kernel. The two tensors may differ in type and padding. See
    `cycles_to_copy`.
    """
    return cycles_to_copy(machine, operand_bytes(source), operand_bytes(target))


def cycles_to_copy(machine: Machine, read: float, written: float) -> float:
    """Return the cycles of a kernel on all cores that reads `read` bytes and writes `written` bytes, with its launch.

    The copy runs at the core's copy rate. If the L2 caches of all cores cannot hold all these bytes, it runs at most at
    the rate of memory, and reads each written line before it writes the line.
    """
    limits, workers = machine.limits, cores(machine)
    if read + written <= workers * l2(limits):
        return (read + written) / limits.copy_rate / workers + limits.launch_cycles
    return (read + 2 * written) / min(limits.copy_rate, limits.far_rate) / workers + limits.launch_cycles


def roofline(contraction: Contraction, machine: Machine, atoms: Sequence[MultiplyAtom | LaneUnit]) -> Roofline:
    """Return a Roofline: lower bounds of a contraction's cycles on all cores, one for multiply-adds and one for bytes.

    Multiply-adds count at the rate of the fastest of `atoms` (MMA atoms, or the SIMD unit as a LaneUnit). Bytes count
    at the rate of L2 if the L2 caches of all cores hold all tensors, otherwise at the rate of memory. `atoms` must have
    at least one.
    """
    fastest_atom = min(atoms, key=_cycles_of_product)
    workers = cores(machine)
    compute = contraction.flops / 2 * _cycles_of_product(fastest_atom) / workers
    tensor_bytes = sum(operand_bytes(x) for x in (contraction.a, contraction.b, contraction.out, *contraction.extras))
    rate = machine.limits.l2_rate if tensor_bytes <= workers * l2(machine.limits) else machine.limits.far_rate
    return Roofline(compute, tensor_bytes / rate / workers, fastest_atom.name)


def _cycles_of_product(atom: MultiplyAtom | LaneUnit) -> float:
    """Return the cycles of one core per multiply-add, if the core issues the atom without a pause."""
    m, n, k = atom.shape
    return atom.cycles / (m * n * k)


def microseconds(cycles: float, machine: Machine) -> float:
    """Return the number of microseconds that `cycles` take at the machine's clock."""
    return cycles / machine.limits.clock_ghz / 1000


def us(cycles: float, machine: Machine) -> str:
    """Return `cycles` as text in microseconds at the machine's clock, with one decimal and no unit, such as "12.3"."""
    return f"{microseconds(cycles, machine):.1f}"


def bytes_text(count: float) -> str:
    """Return `count`, a number of bytes, as text: in MB with one decimal from 1 MB (2**20 bytes) on, else in KB."""
    return f"{count / 2**20:.1f} MB" if count >= 2**20 else f"{count / 1024:.0f} KB"
