"""The facts of a job's program, on which plans are ranked, bound and rated."""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.job import Job
from tilewright.passes.tile.memory import is_ordered
from tilewright.plan.facts import Facts, facts_of


def facts_of_job(job: Job) -> Facts:
    """Return the facts of a job's program, with typical numbers for sizes that are known only at the call."""
    sizes = {**job.sizes, **job.typical}
    opened = job.open_extents
    facts = facts_of(job.program, sizes, job.free, opened, logs=job.logs, in_order=is_ordered(job.program))
    return replace(facts, between=job.between)
