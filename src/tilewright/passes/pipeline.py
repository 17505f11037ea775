"""From a tile program to block programs: a plain list of passes over one job, each dumped before and after.

| pass       | what it adds to the job                                                              |
|------------|--------------------------------------------------------------------------------------|
| normalise  | the contraction that the program is, its accesses in digits; or why it is none        |
| choose     | the plan: axes, cuts, order, where operands lie; given, fixed in part, or the best    |
| pack       | the program that packs the columns' factor                                           |
| place      | tasks and loops                                                                      |
| stage      | rows where they are read                                                             |
| multiply   | products by atoms                                                                    |
| finish     | epilogue and store                                                                   |
| general    | everything else: a program that is no single contraction, operation by operation      |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from tilewright.algebra.expr import Expr, Symbol
from tilewright.errors import ArgumentError
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Op, Program, Value
from tilewright.ir.dtypes import DType
from tilewright.machine import Machine, MultiplyAtom
from tilewright.passes.contraction import lanes, tiles, vectors
from tilewright.passes.contraction.draft import Draft
from tilewright.passes.contraction.packing import Packing, packed_for_vectors
from tilewright.passes.tile.general import Lowered, to_block
from tilewright.passes.tile.memory import is_ordered
from tilewright.plan.boxes import numbers_of
from tilewright.plan.contraction import Contraction, joined, recognise
from tilewright.plan.fixed import FREE, Fixed, fixed_by, left_aside
from tilewright.plan.forms import LANES, Form, LaneForm, LaneUnit, TileForm, VectorForm
from tilewright.plan.general import GeneralChoice, plan_general, plan_of_grid
from tilewright.plan.model import converting
from tilewright.plan.plan import Plan
from tilewright.plan.planner import Candidate, Choice, choose, variant
from tilewright.plan.validate import validate

Dumped = Callable[[str, str, Callable[[], str]], None]
"""Takes what a pass left: the pass's name, the kind of text, and the text when it is wanted."""


@dataclass
class Job:
    """What is known so far of a program that becomes block programs."""

    machine: Machine
    available: Callable[[MultiplyAtom], bool]
    program: Program | None = None
    sizes: Mapping[Symbol, int] = field(default_factory=dict)
    shapes: Mapping[Value, tuple[int, ...]] = field(default_factory=dict)
    free: Collection[Op] = ()
    """Loops that give the same for every tile size."""
    logs: bool = False
    given: Plan | None = None
    general_only: bool = False
    workgroups: Mapping[Symbol, Expr] | None = None
    """For a grid program, whose workgroups are part of its meaning: symbols that depend on their ids, and how."""
    contraction: Contraction | None = None
    why: str = ""
    """Why it is no contraction that a plan fits."""
    choice: Choice | GeneralChoice | None = None
    plan: Plan | None = None
    form: Form | None = None
    widened: dict[str, DType] = field(default_factory=dict)
    """Factors that are converted to the sum's type beforehand, because no atom takes theirs, and their types."""
    packing: Packing | None = None
    draft: Draft | None = None
    lowered: Lowered | None = None

    def text(self) -> tuple[str, str]:
        """(kind, text) of what the job is now: the last thing that a pass made."""
        if self.lowered is not None:
            return "block", str(self.lowered.program)
        if self.draft is not None:
            return "block", str(self.draft)
        if self.packing is not None:
            return "pack", self.packing.text
        if self.plan is not None and self.choice is not None:
            return "plan", "\n".join([*self.plan.lines(), "", self.choice.explain(), ""])
        if self.contraction is not None:
            return "contraction", self.contraction.text()
        return "tile", f"{self.program}{self.why}\n"


def normalise(job: Job) -> None:
    """The program as one contraction, where it is one whose reads outside memory are zeros."""
    if job.contraction is not None or job.program is None:
        return
    if job.workgroups is not None:
        job.why = "a grid program: its workgroups are part of its meaning"
        return
    asked = job.general_only or job.logs or (job.given is not None and job.given.atom is None)
    found = "it was asked for" if asked else recognise(job.program, job.sizes)
    if isinstance(found, str):
        job.why = found
    elif (found.a.loose and found.a.otherwise != 0) or found.b.loose or found.out.loose:
        job.why = "a factor or the result may leave its tensor, and nothing, or not zero, is read there"
    else:
        job.contraction = found


def choose_plan(job: Job) -> None:
    """The plan that is given, or the best of those that fit the machine and the author's constraints."""
    if job.contraction is not None:
        fixed = fixed_by(job.program, job.contraction, job.sizes) if job.program is not None else FREE
        if _planned(job, job.contraction, fixed):
            return
        job.contraction = None
    if job.program is None:
        raise ArgumentError(job.why)
    given = None if job.logs else job.given
    if job.workgroups is not None:
        found = plan_of_grid(job.program, job.sizes, job.machine, given)
    else:
        size, ordered = numbers_of(job.sizes), is_ordered(job.program)
        found = plan_general(job.program, job.sizes, size, job.machine, job.free, given, job.logs, ordered)
    job.choice, job.plan = replace(found, notes=(*found.notes, *_notes(job))), found.plan


def _planned(job: Job, c: Contraction, fixed: Fixed) -> bool:
    """Whether a contraction has a plan; the job then has it. One with open rows is planned for its typical sizes."""
    if c.typical is not None:
        return _planned_open(job, c, c.typical)
    found = choose(c, job.machine, job.available, fixed)
    if c.a.dtype.bits < c.sum_dtype.bits and (found.best is None or isinstance(found.best.form, LaneForm)):
        wide = replace(c, a=replace(c.a, dtype=c.sum_dtype), b=replace(c.b, dtype=c.sum_dtype))
        other = choose(wide, job.machine, job.available, fixed)
        if _widened(job, found, other, converting(c.a, c.sum_dtype, job.machine)):
            job.widened = {x.name: x.dtype for x in (c.a, c.b)}
            c, found = wide, other
    job.choice = replace(found, notes=(*found.notes, *_notes(job)))
    if job.given is not None:
        whole = joined(c)
        atom = job.machine.multiply.get(job.given.atom or "")
        job.contraction = whole if atom is None else variant(whole, atom)
        job.plan, job.form = job.given, validate(job.given, job.contraction, job.machine)
        if not isinstance(job.form.atom, LaneUnit) and not job.available(job.form.atom):
            raise ArgumentError(f"plan: atom {job.form.atom.name}: this CPU lacks it")
        return True
    if found.best is None:
        job.why = f"no plan fits: {'; '.join(map(str, found.refused))}"
        return False
    job.plan, job.form, job.contraction = found.best.plan, found.best.form, found.best.contraction
    return True


def _notes(job: Job) -> tuple[str, ...]:
    return () if job.program is None else left_aside(job.program, job.machine)


def _planned_open(job: Job, c: Contraction, typical: Contraction) -> bool:
    """The plan of a contraction with open rows: where the image is open, by vectors, line by line."""
    whole = not any(digit in c.rows[-2:] for digit, _ in c.open)
    found, fit = _of_lines(job, typical, whole)
    if not fit and c.a.dtype.bits < c.sum_dtype.bits:
        wide = c.sum_dtype
        job.widened = {x.name: x.dtype for x in (c.a, c.b)}
        c, typical = (replace(x, a=replace(x.a, dtype=wide), b=replace(x.b, dtype=wide)) for x in (c, typical))
        found, fit = _of_lines(job, typical, whole)
    how = "every plan of one image fits" if whole else "rows are read in place, line by line, by vectors"
    note = f"{', '.join(s.name for s in c.parameters)} open: {how}"
    job.choice = replace(found, candidates=tuple(fit), notes=(*found.notes, note))
    names = {digit.name for digit, _ in c.open}
    if job.given is not None:
        if job.given.open != names:
            raise ArgumentError(f"plan: open here are {', '.join(sorted(names))}, marked as in `m_0 56?`")
        job.form = validate(job.given.opened(()), typical, job.machine)
        if job.form not in [x.form for x in fit]:
            raise ArgumentError(f"plan: {note}")
    elif fit:
        job.form = fit[0].form
    else:
        job.why = f"no plan fits open sizes: {'; '.join(map(str, found.unfit))}"
        return False
    job.plan = job.given or fit[0].plan.opened(names)
    job.contraction = c if isinstance(job.form, LaneForm) else variant(c, job.form.atom)
    return True


def _of_lines(job: Job, c: Contraction, whole: bool) -> tuple[Choice, list[Candidate]]:
    """The choice, and those of its plans that go line by line; all of them, where images are whole."""
    found = choose(c, job.machine, job.available)
    return found, [
        x
        for x in found.candidates
        if (whole and not isinstance(x.form, LaneForm))
        or (isinstance(x.form, VectorForm) and (len(c.rows) == 1 or x.form.strip == 1))
    ]


def _widened(job: Job, narrow: Choice, wide: Choice, converting: float) -> bool:
    """Whether factors are converted first: no plan takes them as they are, or not the one given, or it is slower."""
    if narrow.best is None:
        return True
    if job.given is not None:
        atom = job.given.atom or ""
        return not atom.startswith(f"{LANES}.") and all(x.form.atom.name != atom for x in narrow.candidates)
    if wide.best is None or isinstance(wide.best.form, LaneForm):  # lanes convert what they load
        return False
    return wide.best.cost.cycles + converting < narrow.best.cost.cycles


def pack(job: Job) -> None:
    """The columns' factor in the order in which it is read."""
    if job.contraction is None or job.form is None:
        return
    if isinstance(job.form, TileForm):
        job.packing = tiles.packed_for_tiles(job.contraction, job.form)
    elif isinstance(job.form, LaneForm):
        job.packing = lanes.packed_for_lanes(job.contraction, job.form.width)
    else:
        job.packing = packed_for_vectors(job.contraction, job.form.columns, job.form.group)
    job.draft = None


STRATEGIES = {TileForm: tiles, VectorForm: vectors, LaneForm: lanes}


def _part(name: str) -> Callable[[Job], None]:
    """The pass of a strategy that fills in one part of the draft."""

    def fill(job: Job) -> None:
        if job.contraction is None or job.form is None or job.packing is None:
            return
        if job.draft is None:
            job.draft = Draft(job.contraction, job.form, job.machine.name, job.packing)
        strategy = STRATEGIES[type(job.form)]
        getattr(strategy, name)(job.draft)

    return fill


def general(job: Job) -> None:
    """A program that is no single contraction: its operations one by one, over the tasks of its plan."""
    if job.contraction is not None or job.program is None or not isinstance(job.choice, GeneralChoice):
        return
    job.lowered = to_block(
        job.program,
        job.sizes,
        job.shapes,
        job.free,
        logs=job.logs,
        workgroups=job.workgroups,
        widths=job.choice.widths,
        tiles=job.choice.tiles,
    )
    job.lowered.program.records.append(Op(BLOCK.records["machine"], (), {"name": job.machine.name}))


PASSES: tuple[tuple[str, Callable[[Job], None]], ...] = (
    ("normalise", normalise),
    ("choose", choose_plan),
    ("pack", pack),
    ("place", _part("place")),
    ("stage", _part("stage")),
    ("multiply", _part("multiply")),
    ("finish", _part("finish")),
    ("general", general),
)


def run(job: Job, dumped: Dumped | None = None) -> Job:
    """All passes in order; `dumped` gets the job's text before the first and after each that changed it."""

    def dump(name: str, kind: str) -> None:
        if dumped is not None:
            dumped(name, kind, lambda: job.text()[1])

    if dumped is not None and job.program is not None:
        dump("start", "tile")
    for name, step in PASSES:
        before = (job.contraction, job.plan, job.packing, job.draft, job.lowered)
        step(job)
        after = (job.contraction, job.plan, job.packing, job.draft, job.lowered)
        filled = job.draft is not None and name != "general"
        if filled or any(x is not y for x, y in zip(before, after, strict=True)):
            dump(name, job.text()[0])
    return job
