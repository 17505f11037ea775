"""Plans that are pinned: bound and lowered as they say, or refused with the rule and the line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.check.block import past_shared_memory
from tilewright.errors import ArgumentError, ProgramError
from tilewright.machine import Machine
from tilewright.passes.binding import bind_plan
from tilewright.passes.bound_plan import BoundPlan, Choose, Lower, MergedParts, OneKernel, Writings
from tilewright.passes.kernels import lower_kernels, with_workspace
from tilewright.passes.launching import can_be_early, with_known_launch
from tilewright.passes.notes import notes_on
from tilewright.passes.rating import rated, rated_blocks
from tilewright.passes.request import CompileOptions, Request
from tilewright.passes.reusing import reuse_shared_memory
from tilewright.passes.tile.general import Lowered
from tilewright.plan.legality import stage_statements
from tilewright.plan.pinned import Known, quote_lines
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import REVERSED, Schedule
from tilewright.plan.unlowered import refuse_unlowered


def bind_given(writings: Writings, given: Schedule, between: str, choose: Choose) -> BoundPlan:
    """Return the given plan of a request, bound, with the time that is predicted for it."""
    request = writings[0]

    def unpinned() -> BoundPlan:
        return choose(without_plan(writings), between)

    if given.atom is not None and given.split_at is None:
        request, kernels = bind_plan(writings, given, choose)
        blocks = rated_blocks(request, given, between)
        notes = (*blocks.notes, *notes_on(request, kernels, given))
        return BoundPlan(request, given, replace(blocks, notes=notes), kernels, unpinned=unpinned)
    opened = {str(s) for s in request.open_extents}
    if given.open and not opened:
        raise ArgumentError(f"plan: {', '.join(sorted(given.open))}: no size is open here")
    here = {digit.name for axis in given.axes for digit in axis.digits} & opened
    if opened and given.open != here:
        raise ArgumentError(f"plan: open here are {', '.join(sorted(here))}, marked as in `M 56?`")
    request, kernels = bind_plan(writings, given, choose)
    early = True if given.early is None and can_be_early(request.machine) else given.early
    choice = rated(request, kernels, replace(given, early=early), between)
    plan = choice.plan.with_open(opened)
    notes = (*choice.notes, *notes_on(request, kernels, plan))
    return BoundPlan(request, plan, replace(choice, plan=plan, notes=notes), kernels, unpinned=unpinned)


def known_plan(given: Schedule, request: Request) -> Schedule:
    """Return the given plan, with its launch adapted to the machine; refuse what the lowering or the machine lacks."""
    given = with_known_launch(given, request.machine)
    refuse_unlowered(given)
    if given.order == REVERSED and (given.products or given.atom or request.opened):
        raise ArgumentError(f"plan: `raster {REVERSED}` is for programs without products whose sizes are numbers")
    return given


def without_plan(writings: Writings) -> Writings:
    """Return the request without its pinned plan, in all its writings."""
    return tuple(replace(each, pinned=None) for each in writings)


def better_refusal(
    fault: ArgumentError, writings: Writings, given: Schedule, between: str, choose: Choose
) -> ArgumentError:
    """Return the refusal `fault` of a given plan, with the lines of the plan that it concerns.

    Wrong sizes and misspelt names are found by comparison with the plan that would be chosen.
    """
    request = writings[0]
    no_blocks = CompileOptions.NO_BLOCKS if given.atom is None else CompileOptions.NONE
    alike = tuple(replace(each, options=each.options | no_blocks) for each in without_plan(writings))
    sizes = {s.name: n for s, n in request.sizes.items()}
    known = Known(sizes, [a.name or "" for a in request.program.args], request.machine.multiply)
    return quote_lines(fault, given, choose(alike, between).plan, known)


def lower_given(bound: BoundPlan, unpinned: Callable[[], BoundPlan], lower: Lower) -> tuple[BoundPlan, Lowered]:
    """Return a pinned plan and its block programs; a refusal of the lowering names the lines of its pipeline.

    `unpinned` returns the plan that is chosen without it.
    """
    given = bound.request.pinned
    assert given is not None
    try:
        bound, lowered = lower_kernels(bound, lower)
    except ProgramError as fault:
        if bound.plan.pipeline is None:
            raise
        raise refused(stage_statements(given), fault.what) from None
    request = bound.request
    may_overflow = isinstance(bound.kernels, OneKernel | MergedParts) and not request.opened
    over = past_shared_memory(lowered.program, request.machine) if may_overflow else None
    if over is not None and not _is_chosen_plan(given, unpinned, lower):
        _refuse_overflow(lowered, over.what, given, request.machine)
    return with_workspace(bound, lowered)


def _is_chosen_plan(given: Schedule, unpinned: Callable[[], BoundPlan], lower: Lower) -> bool:
    """True if the given plan equals the one that is chosen without it: then it is done all the same, as none needs
    less memory.
    """
    chosen, _ = lower(unpinned())
    return chosen.plan == given


def _refuse_overflow(lowered: Lowered, why: str, given: Schedule, machine: Machine) -> None:
    """Refuse a plan whose tasks need more shared memory than there is, also where tensors take turns there."""
    if given.pipeline is None:
        reuse_shared_memory(lowered.program, machine)
        over = past_shared_memory(lowered.program, machine)
        if over is None:
            return
        why = over.what
    lines = (
        [given.pipeline]
        if given.pipeline
        else [*(a for a in given.axes if any(d.extent > 1 for d in a.digits)), *given.products]
    )
    raise ArgumentError(f"plan: `{'`, `'.join(map(str, lines))}`: {why}")
