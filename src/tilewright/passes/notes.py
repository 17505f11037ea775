"""The notes of `explain` on a job's plan."""

from __future__ import annotations

from tilewright.passes.job import Job
from tilewright.passes.launching import can_be_early, launching
from tilewright.plan.boxes import WRITES
from tilewright.plan.followed import not_followed
from tilewright.plan.general import GeneralChoice
from tilewright.plan.model import microseconds
from tilewright.plan.schedule import Schedule
from tilewright.plan.sums import f16_accumulator_note


def notes_on(job: Job, plan: Schedule) -> tuple[str, ...]:
    """Return the notes on a plan: repacked operands, constraints that it does not follow, and accumulator types."""
    nothing = (
        () if any(op.name in WRITES for op in job.program.walk()) else ("nothing is written: nothing is launched",)
    )
    is_grid = job.workgroups is not None
    dims = None if job.blocked is None else job.blocked.dims
    aside = not_followed(job.program, plan, job.machine, job.sizes, dims, is_grid)
    return (*nothing, *_copies(job), *aside, *f16_accumulator_note(job.program, job.machine))


def _copies(job: Job) -> tuple[str, ...]:
    """Return notes on operands that are repacked: their layout, and the time that takes."""
    if job.aligned is None:
        return ()
    often, notes = job.aligned.often(job.constant), []
    for each, words in zip(job.aligned.copies, job.aligned.notes, strict=True):
        assert isinstance(each.choice, GeneralChoice)
        alone = max(0.0, each.choice.cycles - launching(job.machine, can_be_early(job.machine)))  # one launch for all
        took = f"{microseconds(alone, job.machine):.1f} us"
        notes.append(f"{words}: {took if each in often else 'when it is bound'}")
    return tuple(notes)
