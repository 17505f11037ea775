"""A program on factors that were copied first, to rows that the machine's own copies can read.

Where these refuse a factor as it lies, waves could copy it, a few bytes at a time. Or it is copied once, by a program
that is planned as any other is, and is then brought as other factors are. What both should take is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from tilewright.errors import ArgumentError
from tilewright.ir.core import Value
from tilewright.passes.job import InRows, Job
from tilewright.passes.launching import can_be_early, launching
from tilewright.passes.places import Size
from tilewright.passes.tile.aligning import aligned
from tilewright.plan.general import GeneralChoice
from tilewright.plan.model import element_bytes, microseconds
from tilewright.plan.plan import LAUNCH, PANELS, Placed, Plan
from tilewright.plan.planner import Refusal

Choose = Callable[[Job], None]
"""The pass that plans a job."""
FORMS = ("rows", PANELS)
"""How a copy may lie."""
ONCE = "its factors lie in rows already"
"""Why a program on copies, or one that copies, is not asked again."""


def given_in_rows(job: Job, given: Plan, choose: Choose) -> GeneralChoice:
    """The program on copies of factors that a plan names; the job then has it."""
    said = [p for p in given.placed if p.at == LAUNCH]
    rest = replace(given, placed=tuple(p for p in given.placed if p.at != LAUNCH))
    found = _in_rows(job, rest, said[0].form)
    if isinstance(found, str):
        raise ArgumentError(f"plan: `{said[0]}`: {found}")
    return _chosen(job, found, choose)


def perhaps_in_rows(job: Job, choose: Choose) -> GeneralChoice | str:
    """What the program on copies of its factors should take; or why there are none. The job is as it was."""
    if job.no_rows:
        return job.no_rows
    made: list[tuple[GeneralChoice, InRows]] = []
    why = ""
    for form in FORMS:
        found = _in_rows(job, None, form)
        if not isinstance(found, str) and form == PANELS and too_large(job, found):
            found = "panels take more memory than twice all arguments"
        if isinstance(found, str):
            why = why or found
        else:
            made.append((_chosen(job, found, choose), found))
    if not made:
        return why
    (best, job.aligned), *others = sorted(made, key=lambda x: x[0].cycles)
    refused = [
        Refusal(", ".join(map(str, other.placed)), f"{x.cycles / best.cycles:.2f} of the time") for x, other in others
    ]
    return replace(best, refused=(*best.refused, *refused))


def too_large(job: Job, found: InRows) -> bool:
    """Whether what is copied and its copies take more memory than all arguments and as much again."""

    def taken(shapes: Mapping[Value, tuple[Size, ...]]) -> int:
        return sum(prod(int(n) for n in shape) * element_bytes(a.type.dtype) for a, shape in shapes.items())

    both = sum(taken(each.shapes) for each in found.copies)  # what is copied, and what is written
    return both > 2 * taken(job.shapes)


def _in_rows(job: Job, given: Plan | None, form: str) -> InRows | str:
    """The jobs that copy, and the one that works on copies; or why there are none."""
    loads = [a for a in job.machine.copies_between("global", "shared") if a.asynchronous and a.bytes_moved is None]
    if not loads or job.opened or job.single or job.lenient:
        return "its factors are not copied first: sizes are open, or it is a part of another program"
    shapes = {a: tuple(int(n) for n in shape) for a, shape in job.shapes.items()}
    pitch, furthest = max(a.pitch for a in loads), max(a.furthest for a in loads)
    made = aligned(job.program, job.sizes, shapes, job.free, pitch, furthest, panels=form == PANELS)
    if isinstance(made, str):
        return made
    copies = tuple(Job(job.machine, each.program, each.sizes, each.shapes, no_rows=ONCE) for each in made.copies)
    main = Job(job.machine, made.program, made.sizes, made.shapes, made.free, given=given, single=True, no_rows=ONCE)
    placed = tuple(Placed(name, LAUNCH, form) for name in made.sources)
    return InRows(copies, main, placed, tuple(map(str, made.copies)))


def _chosen(job: Job, found: InRows, choose: Choose) -> GeneralChoice:
    """The choice of a program on copies, from that of its parts; the job then has them."""
    for each in (*found.copies, found.main):
        choose(each)
    main = found.main.choice
    assert isinstance(main, GeneralChoice)
    machine = job.machine
    plain = launching(machine, early=False) - launching(machine, can_be_early(machine))
    cycles, notes = main.cycles + plain, []  # as if launched plainly: how it is, is chosen with the whole
    often = found.often(job.constant)
    for each, words in zip(found.copies, found.notes, strict=True):
        assert isinstance(each.choice, GeneralChoice)
        took = each.choice.cycles
        if each in often and each is not often[0]:  # one launch for all of them
            took -= launching(machine, can_be_early(machine))
        cycles += took if each in often else 0
        notes.append(f"{words}: {f'{microseconds(took, machine):.1f} us' if each in often else 'when it is bound'}")
    job.aligned = found
    plans = [replace(plan, placed=(*found.placed, *plan.placed), early=None) for plan in (main.plan, *main.candidates)]
    costs = tuple(cost - main.cycles + cycles for cost in main.costs)
    return replace(
        main, plan=plans[0], cycles=cycles, candidates=tuple(plans[1:]), costs=costs, notes=(*notes, *main.notes)
    )
