"""From a tile program to block programs: a plain list of passes over one job, each dumped before and after.

| pass       | what it adds to the job                                                              |
|------------|--------------------------------------------------------------------------------------|
| present    | the program without what has no elements                                              |
| canonical  | the program in the one writing of those that mean the same                             |
| give_rows  | the program with sums, or a unit dimension, for products without rows                 |
| digits     | the program over the digits of dimensions that its accesses divide                   |
| choose     | the plan: axes, cuts, order, where operands lie; given, fixed in part, or the best    |
| general    | the block program: operation by operation, over the plan's tasks and blocks           |
| host       | the module: a host program that launches the block programs                           |
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.passes.canonical import canonical
from tilewright.passes.choosing import choose_plan
from tilewright.passes.given import lower_given
from tilewright.passes.host import write_host
from tilewright.passes.job import Job
from tilewright.passes.kernels import lower_kernels, with_workspace
from tilewright.passes.realising import lower_ranked
from tilewright.passes.tile.digits import in_digits
from tilewright.passes.tile.empty import without_empty
from tilewright.passes.tile.flat import in_one
from tilewright.passes.tile.unit_rows import with_unit_rows
from tilewright.passes.tile.vector_products import with_sums_of_terms

Dumped = Callable[[str, str, Callable[[], str]], None]
"""Takes what a pass left: the pass's name, the kind of text, and the text when it is wanted."""


def present(job: Job) -> None:
    """Delete from the program what has no elements; grid programs and programs with logs stay."""
    if job.workgroups is None and not job.logs:
        job.whole = job.program
        job.program, job.free = without_empty(job.program, job.extents or job.sizes, job.free)


def give_rows(job: Job) -> None:
    """Rewrite MMAs without rows or without columns: as sums on a GPU, else with a dimension of extent 1.

    Atoms have rows and columns. A given plan that names atoms, and programs with logs and grid programs, get rows too.
    """
    names_atoms = job.given is not None and any(line.atom is not None for line in job.given.products)
    if job.machine.lanes is not None and not (names_atoms or job.opened or job.logs or job.workgroups is not None):
        summed = with_sums_of_terms(job.program, job.free)
        if summed is not None:
            job.program, job.free = summed, ()
            return
    rewritten = with_unit_rows(job.program, job.free)
    if rewritten is not None:
        job.program, job.free, unit = rewritten
        job.sizes = {**job.sizes, unit: 1}
        job.extents = {**job.extents, unit: 1} if job.extents else {}


def in_digits_of_accesses(job: Job) -> None:
    """Rewrite the job's program over one flat dimension if it has no other; else over digits (mixed-radix parts).

    Programs with logs and grid programs stay as they are. Copies over lanes go along flat rows as they are, so that
    on GPUs only summed dimensions become digits.
    """
    if job.workgroups is not None:
        return
    flat = None if job.opened or job.logs or job.machine.lanes is None else in_one(job.program, job.sizes)
    if flat is not None and job.longer() is None:
        job.program = flat[0]
        job.take(flat[1])
    elif not job.logs:
        extents, job.undivided = job.extents or job.sizes, (job.program, job.free)
        summed = job.machine.lanes is not None
        job.program, every, job.free = in_digits(job.program, extents, job.free, summed_only=summed)
        job.take(every)


def general(job: Job) -> None:
    """Set the block programs of a job: of the best plan that can be lowered, or of the bound plan."""
    if job.ranked is not None:
        lower_ranked(job, job.ranked, general)
    elif job.given is not None:
        lower_given(job, job.given, choose_plan, general)
    else:
        lower_kernels(job, general)
        with_workspace(job)


PASSES: tuple[tuple[str, Callable[[Job], None]], ...] = (
    ("present", present),
    ("canonical", canonical),
    ("give_rows", give_rows),
    ("digits", in_digits_of_accesses),
    ("choose", choose_plan),
    ("general", general),
    ("host", write_host),
)


def run(job: Job, dumped: Dumped | None = None) -> Job:
    """Run all passes in order; `dumped` gets the job's text before the first and after each pass that changed it."""

    def dump(name: str) -> None:
        if dumped is not None:
            dumped(name, *job.shown())

    dump("start")
    for name, step in PASSES:
        before = (job.plan, job.lowered, job.module)
        step(job)
        after = (job.plan, job.lowered, job.module)
        if any(x is not y for x, y in zip(before, after, strict=True)):
            dump(name)
    return job
