"""The predicted time of a plan that is given and bound."""

from __future__ import annotations

from tilewright.passes.job import Job
from tilewright.passes.parts import in_parts
from tilewright.passes.realising import choices_of_parts, facts_of_job
from tilewright.plan.general import GeneralChoice
from tilewright.plan.predicting import predict_cycles
from tilewright.plan.schedule import Schedule
from tilewright.plan.search import cycles_on, lower_bound, rate_plan


def rated(job: Job, plan: Schedule) -> GeneralChoice:
    """The choice of a plan that is bound, with the cycles that are predicted for it."""
    if job.workgroups is not None:
        return GeneralChoice(job.machine, job.program.name, plan, 0.0, 0.0)
    if job.machine.lanes is not None:
        return _rated_on_gpu(job, plan)
    if job.parts is not None:
        return in_parts(job, job.parts)
    assert job.cuts is not None
    cycles, bound = predict_cycles(job.program, job.sizes, job.size, job.machine, job.cuts.widths)
    return GeneralChoice(job.machine, job.program.name, plan, cycles, bound)


def _rated_on_gpu(job: Job, plan: Schedule) -> GeneralChoice:
    """The choice by the cost of the search; a plan that it cannot rate has a note."""
    facts = facts_of_job(job)
    plan = plan if job.parts is None else in_parts(job, job.parts).plan  # with a second kernel that it left out
    candidate = rate_plan(facts, job.machine, plan, job.constant)
    bound = lower_bound(facts, job.machine)
    if isinstance(candidate, str):
        note = f"no predicted time: {candidate}"
        return GeneralChoice(
            job.machine, job.program.name, plan, 0.0, bound, notes=(note,), parts=choices_of_parts(job)
        )
    return GeneralChoice(
        job.machine,
        job.program.name,
        plan,
        candidate.cycles,
        bound,
        predicted=lambda machine: cycles_on(candidate, machine),
        parts=choices_of_parts(job),
    )
