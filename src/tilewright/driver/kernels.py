"""The block programs of a bound plan: one kernel, or several that are launched one after the other."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.algebra.expr_use import Substitution
from tilewright.check.block import check
from tilewright.driver.bound_plan import BoundPlan, LowerPlan, MergedParts, OneKernel, RepackedKernels, TwoKernels
from tilewright.driver.request import Request
from tilewright.ir.core import Value
from tilewright.lower.block.argument_roles import role_of
from tilewright.lower.block.lower import Lowered, lower_tiles
from tilewright.plan.schedule import AHEAD, ORDERED
from tilewright.plan.tile_tasks import states_tile_task
from tilewright.transform.delay_row_reduction import sums_by_lanes
from tilewright.transform.fuse_horizontal import fuse_horizontally
from tilewright.transform.fuse_k_loops import with_joint_loops
from tilewright.transform.insert_barriers import in_order
from tilewright.transform.launch_order import launched
from tilewright.transform.pipeline_mma import pipeline_mmas
from tilewright.transform.skip_zero_iterations import without_empty_rounds
from tilewright.transform.spill_shared import spill_to_workspaces
from tilewright.transform.warp_specialize import with_roles


def lower_kernels(bound: BoundPlan, lower: LowerPlan) -> tuple[BoundPlan, Lowered]:
    """Lower a bound plan (a plan with its kernels) to block programs; return (the plan, perhaps with more notes, a
    Lowered).

    If there are several kernels, the Lowered is the one that runs last; its field `before` has the others, in the order
    in which they run. `lower` lowers the plans of further kernels, such as those that repack operands or merge partial
    results.
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
    """Return (`bound`, block programs): `lowered`, with shared tensors that do not fit moved to workspaces in global
    memory.

    `lowered` is changed in place. It is unchanged for a CPU, for a plan of two kernels (each was changed already), and
    for a plan with a pipeline.
    """
    machine = bound.request.machine
    if machine.lanes is None or isinstance(bound.kernels, TwoKernels) or bound.plan.pipeline is not None:
        return bound, lowered
    return bound, spill_to_workspaces(lowered, machine)


def _lower_two(kernels: TwoKernels, lower: LowerPlan) -> Lowered:
    """Lower two kernels with a value in memory between them; return the second, with the first in its field `before`.

    `lower` lowers the plan of each kernel.
    """
    (_, first), (_, second) = lower(kernels.first), lower(kernels.second)
    return replace(second, before=(*first.before, replace(first, before=()), *second.before))


def _lower_repacked(bound: BoundPlan, kernels: RepackedKernels, lower: LowerPlan) -> Lowered:
    """Lower a plan with repacked operands; return the kernel on the copies, with the kernels that copy in its field
    `before`.

    Kernels that copy at every launch are fused into one launch if possible; those that copy a constant argument of the
    request of `bound` run once and come first. `lower` lowers the plan of each kernel.
    """
    lowered = [lower(each)[1] for each in kernels.copies]
    _, last = lower(kernels.main)
    at_every_launch = kernels.runs_at_every_launch(bound.request.constant)
    repeated_copies = [each for each, repeated in zip(lowered, at_every_launch, strict=True) if repeated]
    bound_copies = [each for each, repeated in zip(lowered, at_every_launch, strict=True) if not repeated]
    fused = fuse_horizontally(f"{last.program.name}_rows", repeated_copies)
    copies = (*bound_copies, *(repeated_copies if fused is None else (fused,)))
    return replace(last, before=(*copies, *last.before))


def _lower_one(request: Request, kernel: OneKernel) -> tuple[Lowered, tuple[str, ...]]:
    """Lower one kernel; return (its block program as a Lowered, notes for `explain`).

    If M of the kernel is in boxes (rectangles of results), the block program is checked again: a ProgramError is raised
    if the atom cannot read its halo tile.
    """
    if not kernel.in_boxes:
        return _lowered(request, kernel)
    numbers, program = Substitution(request.sizes), request.program
    written = [a for a in program.args if role_of(program, a, {}, numbers) == "out"]  # boxes together write all of them
    lowered, notes = _lowered(request, kernel, written)
    check(lowered.program, request.machine)  # the atom may be unable to read a halo tile
    return lowered, notes


def _lowered(request: Request, kernel: OneKernel, written: Collection[Value] = ()) -> tuple[Lowered, tuple[str, ...]]:
    """Lower one kernel for the request's machine; return (its block program as a Lowered, notes for `explain`).

    If the plan has a pipeline, the block program is split into producer and consumer waves, and MMAs start ahead if the
    plan says so. Without one, barriers are inserted on machines with lanes. `written` has arguments of which the tasks
    together write every element.
    """
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
    lowered = replace(lowered, unpadded=kernel.unpadded)
    if plan.pipeline is None:
        if machine.lanes is not None:
            in_order(lowered.program)
        if states_tile_task(plan):
            lowered = replace(lowered, program=with_joint_loops(lowered.program, {})[0])
        return lowered, ()
    if not plan.pipeline.pingpong:  # ping-pong halves count each other's iterations
        without_empty_rounds(lowered.program)
    by_lanes = sums_by_lanes(lowered.program, machine)
    joint, loads = with_joint_loops(by_lanes, lowered.loads)
    program_in_roles, notes = with_roles(joint, loads, lowered.stores, plan.pipeline, machine)
    if plan.overlap in (AHEAD, ORDERED):
        program_in_roles = pipeline_mmas(program_in_roles, machine, turns=plan.overlap == ORDERED)
    return replace(lowered, program=program_in_roles), notes
