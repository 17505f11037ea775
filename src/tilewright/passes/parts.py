"""A program as two kernels, one after the other, with a value in memory between them.

The value keeps the element type that it has in the tile program.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import ArgumentError
from tilewright.ir.core import Program
from tilewright.passes.job import Job, Pass
from tilewright.passes.tile.apart import apart, apart_before
from tilewright.passes.tile.rewriting import Halves
from tilewright.plan.general import only_adds
from tilewright.plan.microkernel import names_of
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Schedule


def parts_of(
    job: Job, halves: Halves, first: Schedule | None = None, second: Schedule | None = None
) -> tuple[Job, Job]:
    """Return the jobs of two kernels with a tensor in memory between them, each with its given plan, if any.

    A loop of `job.free` (the same result for every tile size) is free in both; so is the rest of a loop that only adds.
    """
    free = [op.attrs["axis"] for op in job.free]
    sizes, shapes = {**job.sizes, **halves.sizes}, {**job.shapes, **halves.memories}

    def part(program: Program, given: Schedule | None, single: bool) -> Job:
        loops = [op for op in program.walk() if op.name == "iterate" and op.attrs["axis"] in free]
        loops = [op for op in loops if op in job.free or only_adds(op)]
        return Job(job.machine, program, sizes, shapes, loops, given=given, lenient=job.lenient, single=single)

    return part(halves.first, first, True), part(halves.second, second, False)


def bound_apart(job: Job, plan: Schedule, choose: Pass) -> tuple[Job, Job]:
    """Return the jobs of the two kernels that a plan says, each bound to its lines; the second is planned if it has
    none.
    """
    name, line = plan.split_after, f"split kernel {plan.split_at}"
    before = plan.split_before
    halves = apart(job.program, job.sizes) if before is None else apart_before(job.program, job.sizes, before)
    if isinstance(halves, str):
        raise ArgumentError(f"plan: `{line}`: {halves}")
    if name is not None and (here := _last_product(halves.first)) != name:
        raise refused(line, f"the first kernel ends with the first product: `split kernel after {here}`")
    alone = replace(plan, split_after=None, split_before=None, then=None)
    first, second = parts_of(job, halves, alone, plan.then)
    (memory,) = halves.memories
    second.between = memory.name or ""
    for part in (first, second):
        choose(part)
    return first, second


def joined_plan(parts: tuple[Job, Job], plan: Schedule) -> Schedule:
    """Return the plan of a program that runs as two kernels where `plan` splits it, from the plans of both."""
    one, two = (part.plan for part in parts)
    assert one is not None
    return replace(one, split_after=plan.split_after, split_before=plan.split_before, then=two)


def _last_product(first: Program) -> str:
    """Return the name of the last MMA of the first kernel."""
    return list(names_of(first))[-1]
