"""A program as two kernels, one after the other, with a value in memory between them.

The value keeps the element type that it has in the tile program.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.driver.bound_plan import ChoosePlan, Kernels, TwoKernels
from tilewright.driver.repack import NOT_COPIED
from tilewright.driver.request import CompileOptions, Request, SizedProgram
from tilewright.errors import ArgumentError
from tilewright.ir.core import Program
from tilewright.plan.choice import Choice
from tilewright.plan.general import only_adds
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import LAUNCH, Schedule
from tilewright.rewrite.rewriter import TwoPrograms
from tilewright.rewrite.split_kernel import split_after_mma, split_before_mma


def part_of(request: Request, halves: TwoPrograms, program: Program, pinned: Schedule | None = None) -> Request:
    """Return the request for `program`, one of the two kernels into which the program of `request` was split.

    `halves` has the extents of new dimensions, and the memory that the first kernel writes and the second reads.
    `pinned` is the plan of this kernel, or None. The free loops of the result (with the same result for every tile
    size) are those of `request` that `program` has, and the loops over the same axes that only add products to
    accumulators.
    """
    free = [op.attrs["axis"] for op in request.free]
    sizes, shapes = {**request.sizes, **halves.sizes}, {**request.sized.shapes, **halves.memories}
    loops = [op for op in program.walk() if op.name == "iterate" and op.attrs["axis"] in free]
    loops = [op for op in loops if op in request.free or only_adds(op)]
    sized = SizedProgram(program, sizes, shapes, loops)
    return Request(sized, request.machine, pinned=pinned, options=request.options & CompileOptions.LENIENT)


def bind_two(request: Request, plan: Schedule, choose: ChoosePlan) -> TwoKernels:
    """Split a program into two kernels as the plan says; return a TwoKernels with the plan of each, bound to it.

    `choose` plans them. The second kernel gets the best plan if `plan` has no lines for it. Raise an ArgumentError if
    the program cannot be split there, or if the plan repacks operands.
    """
    program, sizes, line = request.program, request.sizes, f"split kernel {plan.split_at}"
    after, before = plan.split_after, plan.split_before
    halves = split_after_mma(program, sizes, after) if after else split_before_mma(program, sizes, before or "")
    if isinstance(halves, str):
        raise ArgumentError(f"plan: `{line}`: {halves}")
    repack_line = next((line for line in plan.values if line.at == LAUNCH), None)
    if repack_line is not None:
        raise refused(repack_line, NOT_COPIED)
    alone = replace(plan, split_after=None, split_before=None, then=None)
    first = part_of(request, halves, halves.first, alone)
    second = part_of(request, halves, halves.second, plan.then)
    (memory,) = halves.memories
    return TwoKernels(choose((first,)), choose((second,), memory.name or ""))


def joined_plan(kernels: TwoKernels, plan: Schedule) -> Schedule:
    """Return one plan for a program that runs as two kernels: the first kernel's plan, with the second's in the field
    `then`.

    The fields of `plan` that say where the program is split, and which loop becomes one iteration, are copied to it.
    """
    first, second = kernels.first.plan, kernels.second.plan
    after, before = plan.split_after, plan.split_before
    return replace(first, split_after=after, split_before=before, then=second, whole=plan.whole)


def choices_of_parts(kernels: Kernels) -> tuple[Choice, ...]:
    """Return (choice of the first kernel, choice of the second); () if `kernels` are not two kernels.

    A choice is a plan with its predicted time.
    """
    return (kernels.first.choice, kernels.second.choice) if isinstance(kernels, TwoKernels) else ()
