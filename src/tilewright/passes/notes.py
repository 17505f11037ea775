"""The notes of `explain` on a job's plan."""

from __future__ import annotations

from tilewright.passes.job import Job
from tilewright.plan.boxes import WRITES
from tilewright.plan.followed import not_followed
from tilewright.plan.schedule import Schedule
from tilewright.plan.sums import wider_sums


def notes_on(job: Job, plan: Schedule) -> tuple[str, ...]:
    """Return the notes on a plan: constraints that it does not follow, and accumulator types."""
    nothing = (
        () if any(op.name in WRITES for op in job.program.walk()) else ("nothing is written: nothing is launched",)
    )
    is_grid = job.workgroups is not None
    aside = not_followed(job.program, plan, job.machine, job.sizes, job.contraction, is_grid)
    return (*nothing, *aside, *wider_sums(job.program, job.machine))
