"""Plans that are given: bound and lowered as they say, or refused with the rule and the line."""

from __future__ import annotations

from dataclasses import replace

from tilewright.check.block import past_shared_memory
from tilewright.errors import ArgumentError, ProgramError
from tilewright.passes.binding import bind_plan
from tilewright.passes.job import Job, Pass
from tilewright.passes.kernels import lower_kernels, with_workspace
from tilewright.passes.launching import can_be_early, with_known_launch
from tilewright.passes.rating import rated, rated_blocks
from tilewright.passes.reusing import reuse_shared_memory
from tilewright.plan.general import GeneralChoice
from tilewright.plan.legality import stage_statements
from tilewright.plan.pinned import Known, quote_lines
from tilewright.plan.planner import Choice
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import REVERSED, Schedule
from tilewright.plan.unlowered import refuse_unlowered


def bind_given(job: Job, given: Schedule, choose: Pass) -> Choice | GeneralChoice:
    """Bind the plan that a job is given; return the choice, with the time that is predicted for it."""
    if given.atom is not None and given.split_at is None:
        bind_plan(job, given, choose)
        return rated_blocks(job, given)
    opened = {str(s) for s in job.open_extents}
    if given.open and not opened:
        raise ArgumentError(f"plan: {', '.join(sorted(given.open))}: no size is open here")
    here = {digit.name for axis in given.axes for digit in axis.digits} & opened
    if opened and given.open != here:
        raise ArgumentError(f"plan: open here are {', '.join(sorted(here))}, marked as in `M 56?`")
    bind_plan(job, given, choose)
    early = True if given.early is None and can_be_early(job.machine) else given.early
    choice = rated(job, replace(given, early=early))
    return replace(choice, plan=choice.plan.with_open(opened))


def known_plan(given: Schedule, job: Job) -> Schedule:
    """Return the given plan, with its launch adapted to the machine; refuse what the lowering or the machine lacks."""
    given = with_known_launch(given, job.machine)
    refuse_unlowered(given)
    if given.order == REVERSED and (given.products or given.atom or job.opened):
        raise ArgumentError(f"plan: `raster {REVERSED}` is for programs without products whose sizes are numbers")
    return given


def better_refusal(fault: ArgumentError, job: Job, given: Schedule, choose: Pass) -> ArgumentError:
    """Return the refusal `fault` of a given plan, with the lines of the plan that it concerns.

    Wrong sizes and misspelt names are found by comparison with the plan that would be chosen.
    """
    alone = replace(job, given=None, general_only=job.general_only or given.atom is None)
    choose(alone)
    sizes = {s.name: n for s, n in job.sizes.items()}
    known = Known(sizes, [a.name or "" for a in job.program.args], job.machine.multiply)
    return quote_lines(fault, given, alone.plan, known)


def lower_given(job: Job, given: Schedule, choose: Pass, lower: Pass) -> None:
    """Lower the plan that a job is given; a refusal of the lowering names the lines of its pipeline."""
    try:
        lower_kernels(job, lower)
    except ProgramError as fault:
        if job.plan is None or job.plan.pipeline is None:
            raise
        raise refused(stage_statements(given), fault.what) from None
    if job.parts is None and job.aligned is None:
        _refuse_overflow(job, given, choose, lower)
    with_workspace(job)


def _refuse_overflow(job: Job, given: Schedule, choose: Pass, lower: Pass) -> None:
    """Refuse a plan whose tasks need more shared memory than there is, also where tensors take turns there.

    The plan that is chosen is done all the same: no plan needs less.
    """
    assert job.lowered is not None
    over = None if job.opened else past_shared_memory(job.lowered.program, job.machine)
    if over is None or _is_chosen_plan(job, given, choose, lower):
        return
    if given.pipeline is None:
        reuse_shared_memory(job.lowered.program, job.machine)
        over = past_shared_memory(job.lowered.program, job.machine)
        if over is None:
            return
    lines = (
        [given.pipeline]
        if given.pipeline
        else [*(a for a in given.axes if any(d.extent > 1 for d in a.digits)), *given.products]
    )
    raise ArgumentError(f"plan: `{'`, `'.join(map(str, lines))}`: {over.what}")


def _is_chosen_plan(job: Job, given: Schedule, choose: Pass, lower: Pass) -> bool:
    """True if the given plan equals the one that is chosen without it."""
    unpinned = replace(job, given=None, lowered=None)
    choose(unpinned)
    lower(unpinned)
    return unpinned.plan == given
