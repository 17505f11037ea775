"""From a tile program to block programs: a plain list of passes over one job, each dumped before and after.

| pass       | what it adds to the job                                                              |
|------------|--------------------------------------------------------------------------------------|
| normalise  | the contraction that the program is, its accesses in digits; or why it is none        |
| choose     | the plan: axes, cuts, order, where operands lie; given, fixed in part, or the best    |
| pack       | in tile registers, which have a strategy of their own: the program that packs B       |
| place      | tasks and loops                                                                      |
| stage      | rows where they are read                                                             |
| multiply   | products by atoms                                                                    |
| finish     | epilogue and store                                                                   |
| general    | everything else, contractions by vectors and lanes too: operation by operation        |
| host       | the module: a host program that launches the block programs                           |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tilewright.algebra.expr import Expr, Symbol
from tilewright.check.block import require_room
from tilewright.errors import ArgumentError, ProgramError
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Op, Program
from tilewright.passes.choosing import choose_plan, nearer
from tilewright.passes.contraction import tiles
from tilewright.passes.contraction.draft import Draft
from tilewright.passes.contraction.tiles import packed_for_tiles
from tilewright.passes.host import write_host
from tilewright.passes.job import Job
from tilewright.passes.roles import with_roles
from tilewright.passes.tile.digits import in_digits
from tilewright.passes.tile.general import Lowered, to_block
from tilewright.passes.tile.normal import over_digits
from tilewright.plan.boxes import numbers_of
from tilewright.plan.contraction import Contraction, recognise
from tilewright.plan.cutting import cuts_of, digits_of
from tilewright.plan.forms import LaneForm, TileForm, VectorForm
from tilewright.plan.general import Cuts, GeneralChoice, plan_general

Dumped = Callable[[str, str, Callable[[], str]], None]
"""Takes what a pass left: the pass's name, the kind of text, and the text when it is wanted."""


def normalise(job: Job) -> None:
    """The program as one contraction, where it is one whose reads outside memory are zeros."""
    if job.contraction is not None or job.program is None:
        return
    if job.workgroups is not None:
        job.why = "a grid program: its workgroups are part of its meaning"
        return
    asked = job.general_only or job.logs or bool(job.opened) or (job.given is not None and job.given.atom is None)
    if asked:
        found: Contraction | str = "it was asked for"
    elif (longer := job.longer()) is not None:
        found = f"the argument {longer} is longer than its dimensions say"
    elif job.machine.lanes is not None:
        found = "only one thread a worker does a single contraction"
    else:
        found = recognise(job.program, job.sizes)
    if isinstance(found, str):
        job.why = found
        summed = job.machine.lanes is not None  # copies over lanes go along flat rows as they are
        if not job.logs:
            given, job.undivided = job.extents or job.sizes, (job.program, job.free)
            job.program, every, job.free = in_digits(job.program, given, job.free, summed_only=summed)
            job.take(every)
    elif (found.a.loose and found.a.otherwise != 0) or found.b.loose or found.out.loose:
        job.why = "a factor or the result may leave its tensor, and nothing, or not zero, is read there"
    else:
        job.contraction = found


def _by_general(job: Job) -> bool:
    """Whether a contraction's plan is done by the lowering of all programs."""
    return job.contraction is not None and isinstance(job.form, VectorForm | LaneForm)


def pack(job: Job) -> None:
    """The columns' factor in the order in which it is read."""
    if job.contraction is not None and isinstance(job.form, TileForm):
        job.packing, job.draft = packed_for_tiles(job.contraction, job.form), None


def _part(fill: Callable[[Draft], None]) -> Callable[[Job], None]:
    """The pass that fills in one part of the draft."""

    def step(job: Job) -> None:
        if job.contraction is None or not isinstance(job.form, TileForm) or job.packing is None:
            return
        if job.draft is None:
            job.draft = Draft(job.contraction, job.form, job.machine.name, job.packing)
        fill(job.draft)

    return step


def general(job: Job) -> None:
    """What no strategy of its own does: the program's operations one by one, over the tasks of its plan."""
    if _by_general(job):
        job.lowered = _contracted(job)
    if job.contraction is not None or job.program is None or not isinstance(job.choice, GeneralChoice):
        return
    while job.lowered is None:
        try:
            _lower(job, job.choice)
        except ProgramError as fault:
            if job.choice.cuts.roles is None:
                raise
            if job.given is not None:
                raise ArgumentError(f"plan: `{job.choice.cuts.roles}`: {fault.what}") from None
            if job.gathered:
                job.no_roles = fault.what
            else:
                job.gathered = fault.what
            choose_plan(job)
        else:
            _make_nearer(job)


def _make_nearer(job: Job) -> None:
    """Has a program planned and lowered again with less of its sums at a time, if shared memory does not hold it.

    Sums over digits are whole: first they become sums over one dimension again, of which loops can take less.
    """
    assert job.lowered is not None
    assert isinstance(job.choice, GeneralChoice)
    if job.machine.lanes is None or job.given is not None or job.choice.cuts.roles is not None or job.workgroups:
        return
    try:
        require_room(job.lowered.program, job.machine)
    except ProgramError:
        if job.undivided is not None and job.undivided[0] is not job.program:
            job.program, job.free = job.undivided
        else:
            job.nearer = nearer(job.choice.plan)
            if job.nearer is None:
                return
        job.lowered = None
        choose_plan(job)


def _contracted(job: Job) -> Lowered:
    """The block program of a contraction, from its program over digits and its plan."""
    c, form = job.contraction, job.form
    assert c is not None
    assert isinstance(form, VectorForm | LaneForm)
    normal = over_digits(c, digits_of(c, form))
    (product,) = (op for op in normal.program.walk() if op.name == "mma")
    cuts, sizes = cuts_of(c, form, product), {**job.sizes, **normal.sizes}
    opened = job.opened = normal.opened
    lowered = to_block(normal.program, sizes, normal.shapes, machine=job.machine, cuts=cuts, opened=opened)
    lowered.program.records.append(Op(BLOCK.records["machine"], (), {"name": job.machine.name}))
    return lowered


def _lower(job: Job, choice: GeneralChoice) -> None:
    """The block program of a plan, in roles where it says so; in halves, a second one that adds up parts."""
    assert job.program is not None
    if job.split is None:
        lowered, notes = _lowered(job, job.program, choice.cuts, job.extents or job.sizes)
    else:
        halves = job.split
        sizes, shapes = {**job.sizes, **halves.sizes}, {**job.shapes, halves.partial: halves.shape}
        split = replace(job, sizes=sizes, shapes=shapes, free=(), extents={})
        before, notes = _lowered(split, halves.first, choice.cuts, sizes)
        rest = plan_general(halves.second, sizes, numbers_of(sizes), job.machine, ())
        lowered, _ = _lowered(split, halves.second, rest.cuts, sizes)
        lowered = replace(lowered, before=(before,))
    job.lowered, job.choice = lowered, replace(choice, notes=(*choice.notes, *notes))


def _lowered(
    job: Job, program: Program, cuts: Cuts, sizes: Mapping[Symbol, Expr | int]
) -> tuple[Lowered, tuple[str, ...]]:
    """A program as a block program for the job's machine, and what is to be said of it."""
    lowered = to_block(
        program,
        sizes,
        job.shapes,
        job.free,
        logs=job.logs,
        workgroups=job.workgroups,
        lenient=job.lenient,
        machine=job.machine,
        cuts=cuts,
        opened=job.opened,
    )
    lowered.program.records.append(Op(BLOCK.records["machine"], (), {"name": job.machine.name}))
    if cuts.roles is None:
        return lowered, ()
    made, notes = with_roles(lowered.program, lowered.loads, lowered.stores, cuts.roles, job.machine)
    return replace(lowered, program=made), notes


PASSES: tuple[tuple[str, Callable[[Job], None]], ...] = (
    ("normalise", normalise),
    ("choose", choose_plan),
    ("pack", pack),
    ("place", _part(tiles.place)),
    ("stage", _part(tiles.stage)),
    ("multiply", _part(tiles.multiply)),
    ("finish", _part(tiles.finish)),
    ("general", general),
    ("host", write_host),
)


def run(job: Job, dumped: Dumped | None = None) -> Job:
    """All passes in order; `dumped` gets the job's text before the first and after each that changed it."""

    def dump(name: str) -> None:
        if dumped is not None:
            dumped(name, *job.shown())

    if job.program is not None:
        dump("start")
    for name, step in PASSES:
        before = (job.contraction, job.plan, job.packing, job.draft, job.lowered, job.module)
        step(job)
        after = (job.contraction, job.plan, job.packing, job.draft, job.lowered, job.module)
        filled = job.draft is not None and name not in ("general", "host")
        if filled or any(x is not y for x, y in zip(before, after, strict=True)):
            dump(name)
    return job
