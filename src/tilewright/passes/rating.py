"""The predicted time of a plan that is given and bound."""

from __future__ import annotations

from tilewright.passes.job import Job
from tilewright.passes.job_facts import facts_of_job
from tilewright.passes.parts import joined_plan
from tilewright.passes.realising import choices_of_parts
from tilewright.plan.general import GeneralChoice
from tilewright.plan.planner import Choice
from tilewright.plan.schedule import Schedule
from tilewright.plan.search import BlockedKernelSchedule, cycles_on, lower_bound, rate_plan


def rated_blocks(job: Job, plan: Schedule) -> Choice:
    """Return the choice of a plan of blocks that is bound: all blockings of its product, ranked, its own first."""
    candidate = rate_plan(facts_of_job(job), job.machine, plan)
    assert not isinstance(candidate, str), "binding has refused programs that are not one product"
    assert isinstance(candidate.kernel, BlockedKernelSchedule)
    return candidate.kernel.choice


def rated(job: Job, plan: Schedule) -> GeneralChoice:
    """Return the choice of a plan that is bound, with the cycles that the search's cost predicts for it.

    A plan that the cost cannot rate has a note instead. Plans of a grid that the author states have no predicted time.
    """
    if job.workgroups is not None:
        return GeneralChoice(job.machine, job.program.name, plan, 0.0, 0.0)
    facts = facts_of_job(job)
    plan = plan if job.parts is None else joined_plan(job.parts, plan)  # with a second kernel that it left out
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
        predicted=None if job.machine.lanes is None else lambda machine: cycles_on(candidate, machine),
        parts=choices_of_parts(job),
    )
