"""Factors that are computed element by element from what is read, such as weights that are widened and scaled.

    %0 = read %w : i8[N, K]
    %1 = cast %0 dtype=bf16                       what lies along both dimensions of the factor is brought step by step
    %2 = read %s over=[n, k] at=[n, k//128]       what lies along its rows alone stays with those who have the row
    %3 = mul %1, %2 : bf16[N, K]

An atom that has A in registers takes them from there: lanes read a step of what is brought, and compute.
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
"""Operations that make a tile of nothing."""


@dataclass(frozen=True)
class ComputedFactor:
    """A factor that is computed: the operations, and what they read."""

    ops: tuple[Op, ...]
    reads: tuple[Op, ...]

    def bytes(self, axes: Axes, step: int) -> float:
        """The bytes that an element of the factor is brought as, in steps of K: those of reads that differ along it and
        along its rows; some neighbours may be one element there."""
        total = 0.0
        for x in self.reads:
            dims: tuple[Expr, ...] = x.results[0].type.dims
            own = dict(zip(dims, x.attrs.get("over", dims), strict=True))
            at = x.attrs.get("at", dims)
            alike = neighbours(at, own[axes.k], step) if axes.k in own else step
            if alike < step and axes.m in own and any(own[axes.m] in e.symbols for e in at):
                total += element_bytes(x.results[0].type.dtype) / alike
        return total

    def cycles(self, machine: Machine) -> float:
        """Cycles of a core's lanes for one element: each operation, and a conversion as a function."""
        casts = sum(op.name == "cast" for op in self.ops)
        return sum(lane_cycles(op, machine) for op in self.ops) + casts / machine.limits.function_rate


def computed_factor(program: Program, factor: Value) -> ComputedFactor | str | None:
    """How a factor is computed; None where it is read as it is; or why it is not computed element by element."""
    made = program.makers()
    wanted, ops, reads = [factor], list[Op](), list[Op]()
    while wanted:
        op = made.get(wanted.pop())
        if op is None:
            return "a factor depends on what a loop carries"
        if op in ops or op in reads:
            continue
        if op.name == "read":
            if op.attrs.get("lookups") or "bounds" in op.attrs or op.attrs.get("otherwise", 0) != 0:
                return "a factor is computed from what is read where data say, or with something around it"
            reads.append(op)
        elif op.name in SIMPLE:
            ops.append(op)
            wanted += op.operands
        elif op.name not in GIVEN:
            return f"a factor is computed by {op.name}, which is not done element by element"
    if not ops:
        return None
    return ComputedFactor(tuple(ops), tuple(reads))


def neighbours(at: Sequence[Expr], k: Expr, step: int) -> int:
    """How many neighbours along K are one element, within steps of it: all of them, or so many as divide a step.

    >>> from tilewright.algebra.expr import symbol
    >>> k = symbol("k", 0)
    >>> [neighbours([e], k, 64) for e in (k, k // 2, k // 128, k % 3, 5 * k // 5)]
    [1, 2, 64, 1, 1]
    """
    for alike in [n for n in range(step, 1, -1) if step % n == 0]:
        within = index("within", alike)
        place = step * symbol("steps", 0) + alike * index("among", step // alike) + within
        images = Substitution({k: place})
        if not any(within in images(e).symbols for e in at):
            return alike
    return 1
