"""A program as two, one after the other, with a value in memory between: where that should take less time than one.

Each is planned as any other program is. What one kernel should take is compared with the sum of both, each with its
launch; the value between keeps the element type that it has in the tile program.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.errors import ArgumentError
from tilewright.ir.core import MemoryType, Program
from tilewright.passes.job import Job, Pass
from tilewright.passes.launching import can_be_early, launching
from tilewright.passes.tile.apart import apart
from tilewright.passes.tile.memory import is_ordered
from tilewright.passes.tile.rewriting import Halves
from tilewright.plan.boxes import numbers_of
from tilewright.plan.general import GeneralChoice, only_adds
from tilewright.plan.microkernel import names_of
from tilewright.plan.model import cores, element_bytes, microseconds
from tilewright.plan.planner import Refusal
from tilewright.plan.refusals import refused
from tilewright.plan.rows import tasks_of
from tilewright.plan.schedule import Schedule

SURE = 4
"""How much longer one kernel should take than two programs, for these to be done where both are modelled roughly."""

TIMES = 3
"""What lies in memory between two programs, at most, of what their arguments are: more may be more than there is."""


def parts_of(
    job: Job, halves: Halves, first: Schedule | None = None, second: Schedule | None = None
) -> tuple[Job, Job]:
    """The jobs of two programs with memory between them, to be planned as these plans say, or each by itself.

    Loops that give the same for all tiles do so in both; so does what is left of them, where that only adds products.
    """
    free = [op.attrs["axis"] for op in job.free]
    sizes, shapes = {**job.sizes, **halves.sizes}, {**job.shapes, halves.partial: halves.shape}

    def part(program: Program, given: Schedule | None, single: bool) -> Job:
        loops = [op for op in program.walk() if op.name == "iterate" and op.attrs["axis"] in free]
        loops = [op for op in loops if op in job.free or only_adds(op)]
        return Job(job.machine, program, sizes, shapes, loops, given=given, lenient=job.lenient, single=single)

    return part(halves.first, first, True), part(halves.second, second, False)


def bound_apart(job: Job, plan: Schedule, name: str, choose: Pass) -> tuple[Job, Job]:
    """The jobs of the two programs that a plan says, each bound to its lines; without lines the second is planned."""
    found = apart(job.program, job.sizes)
    if isinstance(found, str):
        raise ArgumentError(f"plan: `split kernel after {name}`: {found}")
    if (here := _last_product(found.first)) != name:
        raise refused(
            f"split kernel after {name}", f"the first kernel ends with the first product: `split kernel after {here}`"
        )
    first, second = parts_of(job, found, replace(plan, split_after=None, then=None), plan.then)
    second.between = found.partial.name or ""
    for part in (first, second):
        choose(part)
    return first, second


def perhaps_apart(job: Job, found: GeneralChoice, choose: Pass) -> GeneralChoice:
    """The plan of one program; or, where these should take less time, those of two."""
    if job.single or job.logs or is_ordered(job.program) or not names_of(job.program):
        return found
    halves = apart(job.program, job.sizes)
    if isinstance(halves, str):
        return found
    rough = job.machine.lanes is None
    if rough and tasks_of(found.widths, numbers_of(job.sizes)) >= cores(job.machine):
        return found  # two programs compute the same, and here all cores have some of it
    limits, limit = job.machine.limits, found.cycles / SURE if rough else found.cycles
    between = prod(halves.shape) * element_bytes(halves.partial.type.dtype)
    size, memory = numbers_of(job.sizes), [a.type for a in job.program.args if isinstance(a.type, MemoryType)]
    given = sum(prod(size(d) for d in kind.dims) * element_bytes(kind.dtype) for kind in memory)
    what = f"two kernels, split after {_last_product(halves.first)}"
    if between > TIMES * given:
        refused = Refusal(what, f"{between >> 20} MiB lie between them, {between / given:.0f} times their arguments")
        return replace(found, refused=(*found.refused, refused))
    moved = 2 * between
    least = moved / limits.far_rate / cores(job.machine) + 2 * launching(job.machine, can_be_early(job.machine))
    two, other = parts_of(job, halves), None
    if least < limit:
        for part in two:
            choose(part)
        other = in_parts(job, two)
        if rough and _atoms(other.plan) < _atoms(found.plan):
            return found
    if other is None or other.cycles >= limit:
        took = f"predicted {'at least ' if other is None else ''}{_us(job, least if other is None else other.cycles)}"
        return replace(found, refused=(*found.refused, Refusal(what, took)))
    return replace(other, refused=(Refusal("one program", f"predicted {_us(job, found.cycles)}"),))


def in_parts(job: Job, parts: tuple[Job, Job]) -> GeneralChoice:
    """The choice of a program that is done as two, from theirs."""
    one, two = (part.choice for part in parts)
    assert isinstance(one, GeneralChoice)
    assert isinstance(two, GeneralChoice)
    plan = replace(one.plan, split_after=_last_product(parts[0].program), then=two.plan)
    took, least = one.cycles + two.cycles, one.bound + two.bound
    return GeneralChoice(job.machine, job.program.name, plan, took, least, parts=(one, two), jobs=parts)


def _atoms(plan: Schedule | None) -> int:
    """How many products an atom does, in all programs of a plan."""
    return 0 if plan is None else sum(x.atom is not None for x in plan.products) + _atoms(plan.then)


def _last_product(first: Program) -> str:
    """The name of the product up to which the first of two programs goes."""
    return list(names_of(first))[-1]


def _us(job: Job, cycles: float) -> str:
    return f"{microseconds(cycles, job.machine):.1f} us"
