"""The pass that chooses a plan: the one that is given, the best that the search ranks, or that of an author's grid."""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import ArgumentError
from tilewright.passes.binding import bind_plan
from tilewright.passes.given import better_refusal, bind_given, known_plan
from tilewright.passes.job import Job
from tilewright.passes.launching import with_launch
from tilewright.passes.notes import notes_on
from tilewright.passes.realising import rank_plans
from tilewright.plan.general import GeneralChoice
from tilewright.plan.grids import plan_of_grid
from tilewright.plan.planner import Choice
from tilewright.plan.schedule import Schedule


def choose_plan(job: Job) -> None:
    """Plan a job and bind the plan: the given one, or the best that fits; a refusal of a given plan names its lines."""
    if job.given is None:
        _choose_plan(job)
        return
    try:
        _take_given(job, job.given)
    except ArgumentError as fault:
        raise better_refusal(fault, job, job.given, _choose_plan) from None


def _take_given(job: Job, given: Schedule) -> None:
    """Bind the given plan. A job with logs is planned anew, as its tasks must show what is logged."""
    job.given = known_plan(given, job)
    if job.logs:  # tasks are chosen that show what is logged
        job.given = None
        _choose_plan(job)
        return
    choice = bind_given(job, job.given, choose_plan)
    _take(job, job.given if isinstance(choice, Choice) else choice.plan, choice)


def _take(job: Job, plan: Schedule, choice: Choice | GeneralChoice) -> None:
    """Set the job's plan and choice, with notes on the plan added."""
    job.plan = plan
    job.choice = replace(choice, notes=(*choice.notes, *notes_on(job, plan)))


def _choose_plan(job: Job) -> None:
    """Plan a job and bind the plan: the best plan of the search, or that of the author's grid."""
    if job.workgroups is None:
        rank_plans(job, choose_plan)
        return
    opened = job.open_extents
    choice = with_launch(plan_of_grid(job.program, job.sizes, job.machine, job.free, opened), None)
    plan = choice.plan if not opened else choice.plan.with_open({str(s) for s in opened})
    bind_plan(job, plan, choose_plan)
    _take(job, plan, replace(choice, plan=plan))
