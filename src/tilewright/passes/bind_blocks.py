"""Binding a plan of blocks: one product on a CPU, in accumulator tiles that stay in registers over all of K."""

from __future__ import annotations

from tilewright.errors import ArgumentError
from tilewright.passes.job import BlockedProgram, Job
from tilewright.passes.job_facts import facts_of_job
from tilewright.passes.tile.normal import over_digits
from tilewright.plan.cutting import cuts_of, digits_of, in_lines
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Schedule
from tilewright.plan.search import blocking_of_plan, product_space


def bind_blocks(job: Job, plan: Schedule) -> None:
    """Give a job its product over digits (mixed-radix parts of dimensions), and the parameters of its lowering."""
    line = f"atom {plan.atom}"
    if job.machine.lanes is not None:
        raise refused(line, "axes of rows, columns and depth are for machines with one thread per core")
    if (longer := job.longer()) is not None:
        raise refused(line, f"the argument {longer} is longer than its dimensions say")
    facts = facts_of_job(job)
    space = product_space(facts, job.machine)
    if isinstance(space, str):
        raise refused(line, f"axes of rows, columns and depth are those of one product, and {space}")
    names = {digit.name for digit in space.open}
    if plan.open and not names:
        raise ArgumentError(f"plan: {', '.join(sorted(plan.open))}: no size is open here")
    if plan.open != names:
        raise ArgumentError(f"plan: open here are {', '.join(sorted(names))}, marked as in `m_0 56?`")
    variant, blocking = blocking_of_plan(facts, space, job.machine, plan)
    walked = in_lines(variant.space, blocking)
    program, sizes, shapes = over_digits(walked, digits_of(walked, blocking))
    (product,) = (op for op in program.walk() if op.name == "mma")
    job.cuts = cuts_of(variant.space, blocking, product)
    job.blocked = BlockedProgram(program, sizes, shapes, space.dims)
