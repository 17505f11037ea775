"""The block programs of a plan that is bound: one kernel, or several, one after the other."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.algebra.expr_use import Substitution
from tilewright.check.block import check
from tilewright.ir.core import Value
from tilewright.passes.abreast import abreast
from tilewright.passes.ahead import products_ahead
from tilewright.passes.bound_plan import BoundPlan, Lower, MergedParts, OneKernel, RepackedKernels, TwoKernels
from tilewright.passes.empty_rounds import without_empty_rounds
from tilewright.passes.lane_sums import sums_by_lanes
from tilewright.passes.launching import launched
from tilewright.passes.loop_fusion import with_joint_loops
from tilewright.passes.outside import outside
from tilewright.passes.request import Request
from tilewright.passes.roles import with_roles
from tilewright.passes.tile.general import Lowered, lower_tiles
from tilewright.passes.tile.ordering import in_order
from tilewright.passes.tile.roles import role_of
from tilewright.plan.schedule import AHEAD, ORDERED


def lower_kernels(bound: BoundPlan, lower: Lower) -> tuple[BoundPlan, Lowered]:
    """Return (a bound plan with notes of its lowering, its block programs); `lower` lowers the plans of further
    kernels.
    """
    kernels, request = bound.kernels, bound.request
    if isinstance(kernels, TwoKernels):
        return bound, _lower_two(kernels, lower)
    if isinstance(kernels, RepackedKernels):
        return bound, launched(_lower_repacked(bound, kernels, lower), bound.plan.early)
    lowered, notes = _lower_one(request, kernels.first if isinstance(kernels, MergedParts) else kernels)
    if isinstance(kernels, MergedParts):
        _, merged = lower(kernels.merge)
        lowered = replace(merged, before=(lowered, *merged.before))
    choice = replace(bound.choice, notes=(*bound.choice.notes, *notes))
    return replace(bound, choice=choice), launched(lowered, bound.plan.early)


def with_workspace(bound: BoundPlan, lowered: Lowered) -> tuple[BoundPlan, Lowered]:
    """Return the plan and its block programs, with shared tensors that do not fit in a workspace in global memory.

    So it is for GPU programs without a pipeline, but for those of two kernels, whose parts have workspaces already.
    """
    machine = bound.request.machine
    if machine.lanes is None or isinstance(bound.kernels, TwoKernels) or bound.plan.pipeline is not None:
        return bound, lowered
    return bound, outside(lowered, machine)


def _lower_two(kernels: TwoKernels, lower: Lower) -> Lowered:
    """Return the block programs of two kernels, with a value in memory between them."""
    (_, first), (_, second) = lower(kernels.first), lower(kernels.second)
    return replace(second, before=(*first.before, replace(first, before=()), *second.before))


def _lower_repacked(bound: BoundPlan, kernels: RepackedKernels, lower: Lower) -> Lowered:
    """Return the block programs of a plan with repacked operands: kernels that copy, then the kernel on the copies.

    Copies that run at every launch become one launch if they can. There are none if operands are only viewed with other
    strides.
    """
    lowered = [lower(each)[1] for each in kernels.copies]
    _, last = lower(kernels.main)
    at_every_launch = kernels.often(bound.request.constant)
    often = [each for each, repeated in zip(lowered, at_every_launch, strict=True) if repeated]
    once = [each for each, repeated in zip(lowered, at_every_launch, strict=True) if not repeated]
    together = abreast(f"{last.program.name}_rows", often)
    copies = (*once, *(often if together is None else (together,)))
    return replace(last, before=(*copies, *last.before))


def _lower_one(request: Request, kernel: OneKernel) -> tuple[Lowered, tuple[str, ...]]:
    """Return (the block program of one kernel, notes for `explain`)."""
    if not kernel.in_boxes:
        return _lowered(request, kernel)
    numbers, program = Substitution(request.sizes), request.program
    written = [a for a in program.args if role_of(program, a, {}, numbers) == "out"]  # by some box, too
    lowered, notes = _lowered(request, kernel, written)
    check(lowered.program, request.machine)  # an atom may not read a halo tile so
    return lowered, notes


def _lowered(request: Request, kernel: OneKernel, written: Collection[Value] = ()) -> tuple[Lowered, tuple[str, ...]]:
    """Return (the block program of a kernel for the machine of a request, notes for `explain`)."""
    sized, plan, machine = kernel.sized, kernel.bound.plan, request.machine
    lowered = lower_tiles(
        sized.program,
        sized.extents,
        sized.shapes,
        machine,
        kernel.bound,
        sized.free,
        logs=request.logs,
        workgroups=request.workgroups,
        lenient=request.lenient,
        opened=request.opened,
        written=written,
    )
    if plan.pipeline is None:
        if machine.lanes is not None:
            in_order(lowered.program)
        return lowered, ()
    if not plan.pipeline.pingpong:  # halves that take tasks in turn count the rounds of each other's
        without_empty_rounds(lowered.program)
    by_lanes = sums_by_lanes(lowered.program, machine)
    joint, loads = with_joint_loops(by_lanes, lowered.loads)
    program_in_roles, notes = with_roles(joint, loads, lowered.stores, plan.pipeline, machine)
    if plan.overlap in (AHEAD, ORDERED):
        program_in_roles = products_ahead(program_in_roles, machine, turns=plan.overlap == ORDERED)
    return replace(lowered, program=program_in_roles), notes
