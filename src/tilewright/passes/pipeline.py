"""From a tile program to block programs: a plain list of passes over one job, each dumped before and after.

| pass       | what it adds to the job                                                              |
|------------|--------------------------------------------------------------------------------------|
| present    | the program without what has no elements                                              |
| canonical  | the program in the one writing of those that mean the same                             |
| give_rows  | the program with a unit dimension for products without rows                           |
| normalise  | the contraction that the program is, its accesses in digits; or why it is none        |
| choose     | the plan: axes, cuts, order, where operands lie; given, fixed in part, or the best    |
| general    | the block program: operation by operation, over the plan's tasks and blocks           |
| host       | the module: a host program that launches the block programs                           |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.check.block import check, past_shared_memory
from tilewright.errors import ArgumentError, ProgramError
from tilewright.ir.core import Program, Value
from tilewright.passes.abreast import abreast
from tilewright.passes.ahead import products_ahead
from tilewright.passes.choosing import choose_plan, nearer, recognised
from tilewright.passes.host import write_host
from tilewright.passes.in_rows import ONCE, choice_in_rows, not_by_blocks
from tilewright.passes.job import InRows, Job
from tilewright.passes.lane_sums import sums_by_lanes
from tilewright.passes.launching import launched, with_launch
from tilewright.passes.outside import outside
from tilewright.passes.parts import in_parts, parts_of
from tilewright.passes.roles import with_roles
from tilewright.passes.tile.digits import in_digits
from tilewright.passes.tile.dim_order import in_dim_order
from tilewright.passes.tile.empty import without_empty
from tilewright.passes.tile.flat import in_one
from tilewright.passes.tile.general import Lowered, Lowering
from tilewright.passes.tile.memory import role_of
from tilewright.passes.tile.merging import Sized, merged
from tilewright.passes.tile.normal import over_digits
from tilewright.passes.tile.ordering import in_order
from tilewright.passes.tile.unit_rows import with_unit_rows
from tilewright.plan.blocking import blocking_of
from tilewright.plan.contraction import Contraction
from tilewright.plan.cutting import cuts_of, digits_of, in_lines
from tilewright.plan.general import Cuts, GeneralChoice, dims_of
from tilewright.plan.legality import lines_of_stages
from tilewright.plan.refusals import refused
from tilewright.plan.validate import multiplies

Dumped = Callable[[str, str, Callable[[], str]], None]
"""Takes what a pass left: the pass's name, the kind of text, and the text when it is wanted."""


def present(job: Job) -> None:
    """The program without what has no elements; workgroups are part of a grid program's meaning, and logs of others."""
    if job.workgroups is None and not job.logs:
        job.whole = job.program
        job.program, job.free = without_empty(job.program, job.extents or job.sizes, job.free)


def canonical(job: Job) -> None:
    """The program of a machine of many lanes in the one writing of those that mean the same: tiles in the order of
    results, and rows, columns and K of products as one dimension each where memory has them so.

    What is logged, and the workgroups of a grid program, are over the author's dimensions.
    """
    if job.machine.lanes is None or job.logs or job.workgroups is not None:
        return
    job.program, job.free = in_dim_order(job.program, job.free)
    if job.opened or job.longer() is not None or _names_dims(job):
        return
    shapes = {a: tuple(int(n) for n in shape) for a, shape in job.shapes.items()}
    made = merged(Sized(job.program, job.sizes, shapes, job.free))
    job.program, job.sizes, job.shapes, job.free = made.program, made.sizes, made.shapes, made.free


def _names_dims(job: Job) -> bool:
    """Whether a plan is given that names every dimension of the program: it is for these."""
    named = set() if job.given is None else {axis.name for axis in job.given.axes}
    return bool(named) and {str(d) for d in dims_of(job.program)} <= named


def give_rows(job: Job) -> None:
    """The program with a dimension of extent 1 for products that lack rows: MMAs have rows and columns."""
    rewritten = with_unit_rows(job.program, job.free)
    if rewritten is not None:
        job.program, job.free, unit = rewritten
        job.sizes = {**job.sizes, unit: 1}
        job.extents = {**job.extents, unit: 1} if job.extents else {}


def normalise(job: Job) -> None:
    """The program as one contraction, where it is one whose reads outside memory are zeros."""
    if job.workgroups is not None:
        job.why = "a grid program: its workgroups are part of its meaning"
        return
    if job.general_only or job.logs or (job.given is not None and job.given.atom is None):
        found: Contraction | str = "it was asked for"
    elif (longer := job.longer()) is not None:
        found = f"the argument {longer} is longer than its dimensions say"
    elif job.machine.lanes is not None:
        found = "only one thread a worker does a single contraction"
    else:
        found = recognised(job)
    if isinstance(found, str):
        job.why = found
        summed = job.machine.lanes is not None  # copies over lanes go along flat rows as they are
        flat = None if job.opened or job.logs or job.machine.lanes is None else in_one(job.program, job.sizes)
        if flat is not None and job.longer() is None:
            job.program = flat[0]
            job.take(flat[1])
        elif not job.logs:
            given, job.undivided = job.extents or job.sizes, (job.program, job.free)
            job.program, every, job.free = in_digits(job.program, given, job.free, summed_only=summed)
            job.take(every)
    elif (found.a.loose and found.a.otherwise != 0) or found.b.loose or found.out.loose:
        job.why = "a factor or the result may leave its tensor, and nothing, or not zero, is read there"
    else:
        job.contraction = found


def general(job: Job) -> None:
    """The program's operations one by one, over the tasks of its plan; a contraction's over its digits."""
    if job.contraction is not None:
        job.lowered = _contracted(job)
        return
    assert isinstance(job.choice, GeneralChoice)
    while job.lowered is None:
        try:
            _lower(job, job.choice)
        except ProgramError as fault:
            roles = None if job.plan is None else job.plan.pipeline
            if roles is None:
                raise
            if job.given is not None:
                raise refused(lines_of_stages(job.given), fault.what) from None
            if job.aligned is not None:
                job.unfit[job.aligned.placed[0].form] = fault.what
            elif job.patched is not None:
                job.no_patches = fault.what
            elif job.no_rows == ONCE:  # then its factors need not be copied first
                raise
            elif job.gathered:
                job.no_roles = fault.what
            else:
                job.gathered = fault.what
            choose_plan(job)
        else:
            if job.parts is None and job.aligned is None:
                _narrow(job)
    if job.machine.lanes is not None and job.parts is None and (job.plan is None or job.plan.pipeline is None):
        job.lowered = outside(job.lowered, job.machine)


def _narrow(job: Job) -> None:
    """Has the job planned again where shared memory does not hold what a task works on: in smaller tasks, or, of sums
    that are brought whole, with less of them at a time.

    Sums over digits are always whole: they become sums over one dimension again, of which loops can take less.
    """
    assert job.lowered is not None
    over = None if job.opened else past_shared_memory(job.lowered.program, job.machine)
    if over is None or job.plan is None:
        return
    if job.given is not None:
        if _is_chosen(job):
            return
        plan = job.plan
        lines = list(
            map(str, [plan.pipeline] if plan.pipeline else [*(a for a in plan.axes if a.splits), *plan.products])
        )
        raise ArgumentError(f"plan: `{'`, `'.join(lines)}`: {over.what}")
    before, lowered, choice = job.plan, job.lowered, job.choice
    if job.machine.lanes is not None and before.pipeline is None and not job.workgroups:
        if job.undivided is not None and job.undivided[0] is not job.program:
            (job.program, job.free), job.lowered = job.undivided, None
            choose_plan(job)
            return
        job.nearer = nearer(replace(before, early=None), job.free)
    if job.nearer is None:
        job.narrowed += 1
    choose_plan(job)
    job.tried.append(before)
    job.lowered = None
    if job.plan in job.tried:  # tasks get no smaller: what shared memory does not hold goes to workspaces
        job.plan, job.choice, job.lowered = before, choice, lowered


def _is_chosen(job: Job) -> bool:
    """Whether a given plan is the one that is chosen: no other has tasks that shared memory holds more of."""
    own = replace(job, given=None, lowered=None, nearer=None, narrowed=0)
    choose_plan(own)
    general(own)
    return own.plan == job.given


def _contracted(job: Job) -> Lowered:
    """The block program of a contraction, from its program over digits and its plan."""
    c, plan = job.contraction, job.plan
    assert c is not None
    assert plan is not None
    how = blocking_of(c, plan, multiplies(plan.atom or "", c, job.machine))
    walked = in_lines(c, how)
    program, sizes, shapes = over_digits(walked, digits_of(walked, how))
    (product,) = (op for op in program.walk() if op.name == "mma")
    cuts = cuts_of(c, how, product)
    return Lowering(program, {**job.sizes, **sizes}, shapes, job.machine, cuts, opened=job.opened).run()


def _lower(job: Job, choice: GeneralChoice) -> None:
    """The block program of a plan, in roles where it says so; in halves, a second one that adds up parts."""
    if job.parts is not None:
        for part in job.parts:
            general(part)
        first, second = (part.lowered for part in job.parts)
        assert first is not None
        assert second is not None
        job.lowered = replace(second, before=(*first.before, replace(first, before=()), *second.before))
        job.choice = replace(in_parts(job, job.parts), refused=choice.refused, notes=choice.notes)
        job.plan = job.choice.plan
        return
    if job.aligned is not None:
        _lower_in_rows(job, job.aligned, choice)
        return
    assert job.cuts is not None
    if job.patched is not None:
        sizes = {**job.sizes, **job.patched.sizes}
        patched = replace(job, sizes=sizes, free=job.patched.free, extents={})
        numbers = Substitution(job.sizes)
        written = [a for a in job.program.args if role_of(job.program, a, {}, numbers) == "out"]  # by some patch, too
        lowered, notes = _lowered(patched, job.patched.program, job.cuts, sizes, written)
        check(lowered.program, job.machine)  # an atom may not read a halo tile so, and a plan that is chosen is done
    elif job.split is None:
        lowered, notes = _lowered(job, job.looped or job.program, job.cuts, job.extents or job.sizes)
    else:
        halves = job.split
        sizes, shapes = {**job.sizes, **halves.sizes}, {**job.shapes, halves.partial: halves.shape}
        split = replace(job, sizes=sizes, shapes=shapes, free=(), extents={})
        before, notes = _lowered(split, halves.first, job.cuts, sizes)
        _, rest = parts_of(job, halves)
        choose_plan(rest)
        general(rest)
        assert rest.lowered is not None
        lowered = replace(rest.lowered, before=(before, *rest.lowered.before))
    job.lowered, job.choice = launched(lowered, choice.plan.early), replace(choice, notes=(*choice.notes, *notes))


def _lower_in_rows(job: Job, found: InRows, choice: GeneralChoice) -> None:
    """The block programs that copy factors, at every launch together, and the one that works on copies; that alone,
    where factors are only seen in other rows."""
    before = found.main.choice
    for each in (*found.copies, found.main):
        general(each)
    if why := not_by_blocks(found):
        raise ProgramError(why)
    if (
        isinstance(before, GeneralChoice) and found.main.plan != before.plan
    ):  # it could not be done: there is another now
        again = with_launch(choice_in_rows(job, found), choice.plan.early)
        others = (r for r in choice.refused if r not in before.refused)
        choice = replace(again, refused=(*again.refused, *others), predicted=choice.predicted)
        job.plan = choice.plan
    last, main = found.main.lowered, found.main.choice
    assert last is not None
    assert isinstance(main, GeneralChoice)
    often = [each.lowered for each in found.often(job.constant) if each.lowered is not None]
    once = [each.lowered for each in found.copies if each.lowered is not None and each.lowered not in often]
    together = abreast(f"{last.program.name}_rows", often)
    copies = (*once, *(often if together is None else (together,)))
    job.lowered = launched(replace(last, before=(*copies, *last.before)), choice.plan.early)
    job.choice = replace(choice, notes=(*choice.notes, *(n for n in main.notes if n not in choice.notes)))


def _lowered(
    job: Job, program: Program, cuts: Cuts, sizes: Mapping[Symbol, Expr | int], written: Collection[Value] = ()
) -> tuple[Lowered, tuple[str, ...]]:
    """A program as a block program for the job's machine, and what is to be said of it."""
    lowered = Lowering(
        program,
        sizes,
        job.shapes,
        job.machine,
        cuts,
        job.free,
        logs=job.logs,
        workgroups=job.workgroups,
        lenient=job.lenient,
        opened=job.opened,
        written=written,
    ).run()
    if cuts.roles is None:
        if job.machine.lanes is not None:
            in_order(lowered.program)
        return lowered, ()
    by_lanes = sums_by_lanes(lowered.program, job.machine)
    made, notes = with_roles(by_lanes, lowered.loads, lowered.stores, cuts.roles, job.machine)
    if cuts.overlap in ("mma ahead", "ordered"):
        made = products_ahead(made, job.machine, turns=cuts.overlap == "ordered")
    return replace(lowered, program=made), notes


PASSES: tuple[tuple[str, Callable[[Job], None]], ...] = (
    ("present", present),
    ("canonical", canonical),
    ("give_rows", give_rows),
    ("normalise", normalise),
    ("choose", choose_plan),
    ("general", general),
    ("host", write_host),
)


def run(job: Job, dumped: Dumped | None = None) -> Job:
    """All passes in order; `dumped` gets the job's text before the first and after each that changed it."""

    def dump(name: str) -> None:
        if dumped is not None:
            dumped(name, *job.shown())

    dump("start")
    for name, step in PASSES:
        before = (job.contraction, job.plan, job.lowered, job.module)
        step(job)
        after = (job.contraction, job.plan, job.lowered, job.module)
        if any(x is not y for x, y in zip(before, after, strict=True)):
            dump(name)
    return job
