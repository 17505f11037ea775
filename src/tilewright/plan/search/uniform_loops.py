"""The loops of a kernel without a pipeline around each of its MMAs."""

from __future__ import annotations

from math import ceil, prod

from tilewright.ir.core import Block, Op, Program
from tilewright.plan.boxes import numbers_of
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule


def loops_around(program: Program) -> dict[Op, tuple[Op, ...]]:
    """Return {MMA: tuple of the loops around it, outermost first} for all MMAs of a program; () if in no loop."""
    around: dict[Op, tuple[Op, ...]] = {}

    def walk(block: Block, loops: tuple[Op, ...]) -> None:
        """Add the MMAs in a block, and in the blocks within it, to `around`; `loops` are the loops around the block."""
        for op in block.ops:
            if op.name == "mma":
                around[op] = loops
            for inner in op.blocks:
                walk(inner, (*loops, op) if op.name == "iterate" else loops)

    walk(program.body, ())
    return around


def trips_of(kernel: UniformKernelSchedule) -> dict[Op, int]:
    """Return {MMA: iterations of the loops around it within one task}, for all MMAs of the kernel's program.

    A loop that the kernel has and the program has not is around the MMAs with its dimension.
    """
    program, size = kernel.facts.program, numbers_of(kernel.facts.sizes)
    written = {op.attrs["axis"] for op in program.walk() if op.name == "iterate"}
    trips = dict[Op, int]()
    for op, loops in loops_around(program).items():
        dims = {d for v in op.operands for d in v.type.dims}
        axes = [*(loop.attrs["axis"] for loop in loops), *(d for d in kernel.loops if d in dims and d not in written)]
        trips[op] = prod(ceil(size(axis) / max(1, kernel.loops[axis])) for axis in axes if axis in kernel.loops)
    return trips
