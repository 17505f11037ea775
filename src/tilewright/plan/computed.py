"""MMA operands that are computed element by element from reads, such as dequantised weights.

    %0 = read %w : i8[N, K]
    %1 = cast %0 dtype=bf16                       a read that varies along both dimensions is copied in K steps
    %2 = read %s over=[n, k] at=[n, k//128]       a read that varies along rows only stays in registers of lanes
    %3 = mul %1, %2 : bf16[N, K]

An atom with A in registers takes a computed operand: lanes read a K step from shared memory, and compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.algebra.expr import Expr, index, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Program, Value
from tilewright.ir.tile import ELEMENTWISE
from tilewright.machine import Machine
from tilewright.plan.epilogue import lane_cycles
from tilewright.plan.microkernel import Axes
from tilewright.plan.model import element_bytes

SIMPLE = {*ELEMENTWISE, "select", "cast", "broadcast", "permute"}
"""Operations that compute a tile element by element from others."""
GIVEN = {"fill", "scalar", "self_index"}
"""Operations that make a tile without operands."""


@dataclass(frozen=True)
class ComputedFactor:
    """An MMA operand that is computed elementwise: its operations, from the operand back, and its reads of memory."""

    ops: tuple[Op, ...]
    reads: tuple[Op, ...]

    def bytes(self, axes: Axes, step: int) -> float:
        """Return the number of bytes copied to shared memory per element of this operand; it may be a fraction.

        It is the sum over the reads that vary along both K and M. If n neighbours along K read the same element (a
        scale per n values), a read counts 1/n of its element size. `axes` are M, N and K of the MMA; a K step has
        `step` elements.
        """
        total = 0.0
        for read in self.reads:
            dims: tuple[Expr, ...] = read.results[0].type.dims
            iterators = dict(zip(dims, read.attrs.get("over", dims), strict=True))
            at = read.attrs.get("at", dims)
            repeated = equal_neighbours(at, iterators[axes.k], step) if axes.k in iterators else step
            if repeated < step and axes.m in iterators and any(iterators[axes.m] in e.symbols for e in at):
                total += element_bytes(read.results[0].type.dtype) / repeated
        return total

    def cycles(self, machine: Machine) -> float:
        """Return the cycles, usually a fraction, that one core with all lanes busy takes per element of this operand.

        It is the sum over the operations that compute the operand. A cast counts as one instruction of the machine's
        unit for functions such as exp.
        """
        casts = sum(op.name == "cast" for op in self.ops)
        return sum(lane_cycles(op, machine) for op in self.ops) + casts / machine.limits.function_rate


def computed_factor(program: Program, factor: Value) -> ComputedFactor | str | None:
    """Return the operations and reads that compute an MMA operand elementwise, as a ComputedFactor.

    `factor` is the operand. Return None if no elementwise operation computes it: it is a plain read, or a constant.
    Return text, why it cannot be computed elementwise, in these cases: an operation is not elementwise; the operand
    depends on a value that a loop carries; a read's address depends on data; a read has bounds other than its tensor's;
    or a read gives another number than 0 out of bounds.
    """
    makers = program.makers()
    pending, ops, reads = [factor], list[Op](), list[Op]()
    while pending:
        op = makers.get(pending.pop())
        if op is None:
            return "an operand depends on what a loop carries"
        if op in ops or op in reads:
            continue
        if op.name == "read":
            if op.attrs.get("lookups") or "bounds" in op.attrs or op.attrs.get("otherwise", 0) != 0:
                return "an operand is computed from a read whose address is data, or that has no plain bounds"
            reads.append(op)
        elif op.name in SIMPLE:
            ops.append(op)
            pending += op.operands
        elif op.name not in GIVEN:
            return f"an operand is computed by {op.name}, which is not done element by element"
    if not ops:
        return None
    return ComputedFactor(tuple(ops), tuple(reads))


def equal_neighbours(at: Sequence[Expr], k: Expr, step: int) -> int:
    """Return the number of neighbours along K that read the same element, such as 2 for a read at k//2; 1 if none do.

    A K step has `step` elements; it is split into groups of n neighbours, and n is the largest divisor of `step` for
    which each group reads one element. `at` are the coordinates of the read in terms of the index `k`.

    >>> from tilewright.algebra.expr import symbol
    >>> k = symbol("k", 0)
    >>> [equal_neighbours([e], k, 64) for e in (k, k // 2, k // 128, k % 3, 5 * k // 5)]
    [1, 2, 64, 1, 1]
    """
    for count in [n for n in range(step, 1, -1) if step % n == 0]:
        within = index("within", count)
        coordinate = step * symbol("steps", 0) + count * index("among", step // count) + within
        images = Substitution({k: coordinate})
        if not any(within in images(e).symbols for e in at):
            return count
    return 1
