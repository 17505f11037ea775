"""The pass that chooses a plan: given, fixed in part, or the best; for contractions, open ones, and everything else."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import inf, prod

from tilewright.algebra.expr import Expr
from tilewright.errors import ArgumentError
from tilewright.ir.core import Op, Program
from tilewright.ir.tile import REDUCTIONS
from tilewright.machine import MultiplyAtom
from tilewright.passes.binding import bind_plan
from tilewright.passes.by_terms import less_by_terms, planned_by_terms
from tilewright.passes.in_rows import forms_of, perhaps_in_rows
from tilewright.passes.job import Job
from tilewright.passes.launching import with_known_launch, with_launch
from tilewright.passes.parts import perhaps_apart
from tilewright.passes.patching import planned_in_patches
from tilewright.passes.rating import adding_up, rated, rated_on
from tilewright.passes.tile.looping import in_a_loop, summed_between
from tilewright.passes.tile.memory import is_ordered
from tilewright.passes.tile.parting import parted
from tilewright.passes.tile.splitting import halves, step_of, sum_of, ways
from tilewright.plan.blocking import LANES
from tilewright.plan.boxes import WRITES, Opened, numbers_of
from tilewright.plan.chains import plan_chained
from tilewright.plan.contraction import Contraction, closed, joined, padded_depth, recognise, size
from tilewright.plan.fixed import Fixed, fixed_by, tiles_of
from tilewright.plan.followed import not_followed
from tilewright.plan.general import GeneralChoice, only_adds, plan_general
from tilewright.plan.grids import plan_of_grid
from tilewright.plan.microkernel import names_of
from tilewright.plan.model import copying, cores, element_bytes
from tilewright.plan.pinned import Known, naming
from tilewright.plan.planner import Choice, Refusal, choose, variant
from tilewright.plan.rings import plan_with_roles
from tilewright.plan.rows import beside_rows, tasks_of
from tilewright.plan.schedule import LAUNCH, REVERSED, Schedule, Split
from tilewright.plan.sums import wider_sums
from tilewright.plan.unlowered import refuse_unlowered
from tilewright.plan.validate import validate

SPLITS = (2, 3, 4, 6, 8, 12, 16, 32, 64)
"""Parts in which a sum may be taken apart."""
CROWDED = 2
"""Tasks for each core, at most, of a sum that is taken apart."""
BETWEEN = (64, 128, 256)
"""How much of what lies between products a loop may go over at a time: whole rows of shared memory."""
SHALLOWEST = 32
"""The smallest tile of a loop that is cut because shared memory does not hold more."""
COPIED = "factors copied first"
"""A program on copies, as refusals call it."""


def choose_plan(job: Job) -> None:
    """Plans a job, as is given or as the best of what fits, and binds the plan."""
    if job.given is None:
        _choose_plan(job)
        return
    job.given = with_known_launch(job.given, job.machine)
    alone = replace(job, given=None)
    try:
        _take_given(job, job.given)
    except ArgumentError as fault:
        _choose_plan(alone)
        sizes = {s.name: n for s, n in job.sizes.items()}
        known = Known(sizes, [a.name or "" for a in job.program.args], job.machine.multiply)
        raise naming(fault, job.given, alone.plan, known) from None


def _take_given(job: Job, given: Schedule) -> None:
    """Binds the plan that is given."""
    refuse_unlowered(given)
    if given.order == REVERSED and (given.products or given.atom or job.opened):
        raise ArgumentError(f"plan: `raster {REVERSED}` is for programs without products whose sizes are numbers")
    if job.contraction is not None:
        if _planned(job, job.contraction, fixed_by(job.program, job.contraction, job.sizes)):
            return
        job.contraction = None
    if job.logs:  # what is logged may need other tasks: they are chosen
        _choose_plan(job)
        return
    opened = {str(s) for s in job.open_extents}
    if given.open and not opened:
        raise ArgumentError(f"plan: {', '.join(sorted(given.open))}: no size is open here")
    here = {digit.name for axis in given.axes for digit in axis.digits} & opened
    if opened and given.open != here:
        raise ArgumentError(f"plan: open here are {', '.join(sorted(here))}, marked as in `M 56?`")
    bind_plan(job, given, choose_plan)
    found = with_launch(rated(job, given), given.early)
    _take(job, replace(found, plan=replace(found.plan.opened(opened), products=given.products or found.plan.products)))


def _take(job: Job, choice: GeneralChoice) -> None:
    """Makes a choice the job's."""
    job.plan = choice.plan
    job.choice = replace(choice, notes=(*choice.notes, *_notes(job, choice.plan)))


def _choose_plan(job: Job) -> None:
    if job.contraction is not None:
        if _planned(job, job.contraction, fixed_by(job.program, job.contraction, job.sizes)):
            return
        job.contraction = None
    opened = job.open_extents
    job.parts = None
    found = _one_program(job, opened)
    if job.workgroups is None and not opened:
        found = perhaps_apart(job, found, choose_plan)
    found = found if not opened else replace(found, plan=found.plan.opened({str(s) for s in opened}))
    bind_plan(job, found.plan, choose_plan, found.jobs)
    _take(job, found)


def _one_program(job: Job, opened: Opened) -> GeneralChoice:
    """The choice of a program that is not taken apart, and how it is launched."""
    if job.workgroups is not None:
        return with_launch(plan_of_grid(job.program, job.sizes, job.machine, job.free, opened), None)
    found = _in_roles(job) or _without_roles(job, opened)
    terms = planned_by_terms(job)
    return with_launch(found if terms is None else less_by_terms(found, terms), None)


def _in_roles(job: Job) -> GeneralChoice | None:
    """A plan in which one role loads what another multiplies, where the machine copies by itself; what its model says
    of it on other machines."""
    if job.no_roles or job.logs or is_ordered(job.program):
        return None
    forms = forms_of(job)
    found = _perhaps_copied(job, forms) if forms else _of_product(job)
    return None if found is None else replace(found, predicted=lambda machine: rated_on(job, found, machine))


def _perhaps_copied(job: Job, forms: Collection[str]) -> GeneralChoice | None:
    """The plan of a program on its factors as they lie, which waves copy where the machine's copies cannot read them,
    or on copies in one of some forms that are made first, whichever should take less."""
    copied = perhaps_in_rows(job, forms, choose_plan)
    found = _of_product(job)
    if isinstance(copied, str):
        if found is None:
            return None
        return replace(found, refused=(*found.refused, Refusal(COPIED, copied)))
    if found is not None and found.cycles <= copied.cycles:
        said = ", ".join(str(p) for p in copied.plan.values if p.at == LAUNCH)
        other = Refusal(f"{COPIED}, {said}", f"{copied.cycles / found.cycles:.2f} of the time")
        return replace(found, refused=(*found.refused, other))
    took = job.no_roles if found is None else f"{found.cycles / copied.cycles:.2f} of the time"
    job.no_roles = ""
    plain = Refusal("factors as they lie", took)
    if job.gathered:
        plain = Refusal("waves that copy factors as they lie", f"{took}; {job.gathered}")
    return replace(copied, refused=(*copied.refused, plain))


def _of_product(job: Job) -> GeneralChoice | None:
    """The plan in roles of a program with one product, or several that are chained."""
    found = plan_with_roles(
        job.program, job.sizes, job.size, job.machine, job.free, job.gathered, opened=job.open_extents
    )
    if isinstance(found, str):
        chained = _chained(job)
        if isinstance(chained, str):
            why = chained if len(names_of(job.program)) > 1 else f"{found}; {chained}"
            job.no_roles = f"{why}; {job.gathered}" if job.gathered else why
            return None
        return chained
    return found if job.opened else _perhaps_split(job, _in_patches(job, found))


def _chained(job: Job) -> GeneralChoice | str:
    """The plan of chained products: what lies between them all at once, or, where that should take less, tile by tile
    of a loop. Or why there is none."""
    size = numbers_of(job.sizes)

    def planned(program: Program) -> GeneralChoice | str:
        return plan_chained(program, job.sizes, size, job.machine, job.free, job.gathered, bool(job.opened))

    stated = tiles_of(job.program, job.sizes)[1]
    loops = [(d, n) for d in summed_between(job.program) for n in BETWEEN if n < size(d) and str(d) not in stated]
    found = planned(job.program)
    for d, tile in loops:
        program = in_a_loop(job.program, d, tile)
        other = program if isinstance(program, str) else planned(program)
        if not isinstance(other, str) and (isinstance(found, str) or other.cycles < found.cycles):
            found = other
    return found


def _perhaps_split(job: Job, found: GeneralChoice) -> GeneralChoice:
    """The plan, or one that takes the sum apart, where tasks are few; candidates are those of both kinds."""
    cores, tasks = job.machine.limits.cores or 1, _tasks(found.plan)
    every = list(zip(found.costs, found.candidates, strict=True))
    least = min(tasks, *(_tasks(plan) for plan in found.candidates))
    whole = sum_of(job.program, job.free)
    step = step_of(job.program, job.machine)
    for axis, count in () if tasks >= cores or isinstance(whole, str) else ways(whole, job.sizes, SPLITS, step):
        other = _split(job, axis, count) if count * least <= CROWDED * cores else None
        if other is not None:
            every.append((other.cycles, other.plan))
        if other is not None and other.cycles < found.cycles:
            found = other
    every.sort(key=lambda x: x[0])
    return replace(found, candidates=tuple(plan for _, plan in every), costs=tuple(cost for cost, _ in every))


def _tasks(plan: Schedule) -> int:
    """How many tasks a plan has."""
    return prod(plan.axis(name).tasks for name in plan.grid)


def _in_patches(job: Job, found: GeneralChoice) -> GeneralChoice:
    """The plan over boxes of positions where it should take less than what is found; candidates are of both kinds."""
    choice = planned_in_patches(job)
    if isinstance(choice, str):
        return replace(found, refused=(*found.refused, Refusal("a halo tile", choice)))
    every = sorted(
        zip((*found.costs, *choice.costs), (*found.candidates, *choice.candidates), strict=True), key=lambda x: x[0]
    )
    costs, plans = zip(*every, strict=True)
    if choice.cycles < found.cycles:
        found, choice = choice, found
    other = Refusal(str(choice.plan.products[0]), f"{choice.cycles / found.cycles:.2f} of the time")
    return replace(found, candidates=plans, costs=costs, refused=(*found.refused, other))


def _split(job: Job, axis: Expr, count: int) -> GeneralChoice | None:
    """The plan of a program whose sum is taken apart. None: it stays whole."""
    parts = halves(job.program, job.sizes, job.free, axis, count, step_of(job.program, job.machine))
    if isinstance(parts, str):
        return None
    sizes = {**job.sizes, **parts.sizes}
    found = plan_with_roles(parts.first, sizes, numbers_of(sizes), job.machine, (), job.gathered, alone=True)
    if isinstance(found, str):
        return None
    plan = replace(found.plan, parts=(str(axis), parts.parts))
    cycles = found.cycles + adding_up(parts, job.machine)
    return replace(found, plan=plan, cycles=cycles, candidates=(), costs=())


def _without_roles(job: Job, opened: Opened) -> GeneralChoice:
    """A plan in which all waves do everything."""
    size, ordered = job.size, is_ordered(job.program)
    found = plan_general(job.program, job.sizes, size, job.machine, job.free, job.logs, ordered, opened, job.narrowed)
    if job.nearer is not None:
        found = replace(found, plan=job.nearer)
    parts = 1 if opened or ordered or job.logs or job.free else _parts(job, found)
    if isinstance(parts, Refusal):
        found = replace(found, refused=(*found.refused, parts))
    elif parts > 1:
        return _parted(job, parts)
    if job.no_roles and job.machine.lanes is not None:
        found = replace(found, refused=(*found.refused, Refusal("a role that loads", job.no_roles)))
    if job.backward and not found.plan.products and found.plan.grid:
        found = replace(found, plan=replace(found.plan, order=REVERSED))
    return found


def nearer(plan: Schedule, free: Collection[Op]) -> Schedule | None:
    """The plan with less of its sums brought at a time by loops that only add products; None: there is no such."""
    summed = {str(op.attrs["axis"]) for op in free if only_adds(op)}
    for axis in plan.axes:
        loop = axis.split("loop")
        tile = axis.walked if loop is None else loop.size
        if axis.name in summed and axis.name not in plan.grid and tile > SHALLOWEST:
            cut = replace(axis, splits=(Split("loop", max(SHALLOWEST, tile // 2 // SHALLOWEST * SHALLOWEST)),))
            return replace(plan, axes=tuple(cut if a is axis else a for a in plan.axes))
    return None


def _parts(job: Job, found: GeneralChoice) -> int | Refusal:
    """In how many parts a reduction should be done, so that all cores have tasks: 1 where there are enough; refused
    where one launch with few of them takes no longer than two with many.
    """
    size, widths, limits = numbers_of(job.sizes), found.widths, job.machine.limits
    workers, tasks = cores(job.machine), tasks_of(widths, size)
    sources = [op.operands[0].type for op in job.program.walk() if op.name in REDUCTIONS]
    if job.machine.lanes is None or CROWDED * tasks > workers or len(sources) != 1:
        return 1
    elements = prod(max(1, size(d)) for d in sources[0].dims)
    moved = elements * element_bytes(sources[0].dtype)
    whole, apart = moved / limits.l2_rate / tasks, moved / limits.far_rate / workers + limits.launch_cycles
    if whole <= apart:
        return Refusal("a reduction in parts", f"two launches take {apart / whole:.1f} of the time")
    fewest = tasks_of(beside_rows(job.program, widths, size, job.machine, least=inf) or widths, size)
    latency = limits.copy_latency / (moved / limits.far_rate / workers)
    extent = size(next(op.attrs["dim"] for op in job.program.walk() if op.name in REDUCTIONS))

    def cost(parts: int) -> tuple[float, int]:
        """(how long it takes, the time that memory takes being 1; what is left over)."""
        rounds = -(-parts * fewest // workers)
        return max(1, rounds * workers / (parts * fewest) / limits.far_alone) + rounds * latency, extent % parts

    most = min(2 * CROWDED * workers // fewest, elements // job.machine.row_tasks.part_elements)
    count = min(range(1, max(2, most + 1)), key=cost)
    halves = parted(job.program, job.sizes, count, job.machine) if count > 1 else None
    return Refusal("a reduction in parts", halves) if isinstance(halves, str) else count


def _parted(job: Job, count: int) -> GeneralChoice:
    """The plan of a reduction that is done in parts."""
    halves = parted(job.program, job.sizes, count, job.machine)
    assert not isinstance(halves, str)
    sizes = {**job.sizes, **halves.sizes}
    found = plan_general(halves.first, sizes, numbers_of(sizes), job.machine, ())
    (axis,) = (str(op.attrs["dim"]) for op in job.program.walk() if op.name in REDUCTIONS)
    return replace(found, plan=replace(found.plan, parts=(axis, count)))


def _planned(job: Job, c: Contraction, fixed: Fixed) -> bool:
    """Whether a contraction has a plan; the job then has it. One with open rows is planned for its typical sizes."""
    if c.open:
        return _planned_open(job, c)
    unpadded, found = c, choose(c, job.machine, fixed)
    if c.a.dtype.bits < c.sum_dtype.bits and (found.best is None or found.best.blocking.by_lanes):
        wide = replace(c, a=replace(c.a, dtype=c.sum_dtype), b=replace(c.b, dtype=c.sum_dtype))
        other = choose(wide, job.machine, fixed)
        if _widened(job, found, other, copying(c.a, wide.a, job.machine)):
            c, found = wide, other
    padded = _perhaps_padded(job, unpadded, found, fixed)
    if padded is not None:
        c, found = padded
    if job.given is not None:
        whole = joined(c)
        atom = job.machine.multiply.get(job.given.atom or "")
        job.contraction = whole if atom is None else variant(whole, atom)
        validate(job.given, job.contraction, job.machine)
        job.plan = job.given
    elif found.best is None:
        job.why = f"no plan fits: {'; '.join(map(str, found.refused))}"
        return False
    else:
        job.plan, job.contraction = found.best.plan, found.best.contraction
    job.choice = replace(found, notes=(*found.notes, *_notes(job, job.plan)))
    return True


def _perhaps_padded(job: Job, c: Contraction, found: Choice, fixed: Fixed) -> tuple[Contraction, Choice] | None:
    """The contraction with zeros after its depth, for an atom that adds more neighbours at once than divide it.

    None, where no atom is worth that, or the plan given is not of one.
    """
    groups = set()
    for atom in job.machine.multiply.values():
        vectors = (atom.a.dtype, atom.b.dtype) == (c.a.dtype, c.b.dtype) and atom.shape[0] == 1
        if vectors and (job.given is None or job.given.atom == atom.name):
            groups.add(atom.shape[2])
    for group in sorted(groups):
        padded = padded_depth(c, group)
        if padded is c:
            continue
        other = choose(padded, job.machine, fixed)
        if other.best is None:
            continue
        cycles = other.best.cost.cycles + copying(c.a, padded.a, job.machine)
        if job.given is None and found.best is not None and found.best.cost.cycles <= cycles:
            continue
        last, wide = c.depth[-1], padded.depth[-1]
        note = (
            f"{c.a.name} and {c.b.name} are copied with zeros after {last.name}: {size(wide)} instead of {size(last)}"
        )
        return padded, replace(other, notes=(*other.notes, note))
    return None


def _notes(job: Job, plan: Schedule) -> tuple[str, ...]:
    """The notes of `explain` on a job's plan: constraints that it does not follow, and accumulator types."""
    nothing = (
        () if any(op.name in WRITES for op in job.program.walk()) else ("nothing is written: nothing is launched",)
    )
    is_grid = job.workgroups is not None
    aside = not_followed(job.program, plan, job.machine, job.sizes, job.contraction, is_grid)
    return (*nothing, *aside, *wider_sums(job.program, job.machine))


def recognised(job: Job) -> Contraction | str:
    """The contraction that a job's program is; or why it is planned as any other program.

    With open sizes it is one in tile registers, where only batches are open, so images are whole.
    """
    if not job.opened:
        return recognise(job.program, job.sizes, job.machine)
    if not job.machine.limits.tile_registers:
        return "rows that are open are planned as such in tile registers only"
    found = recognise(job.program, job.extents, job.machine)
    if isinstance(found, str):
        return found
    best = None if {*found.open} & {*found.rows[-2:]} else choose(_typical(job, found), job.machine).best
    return found if best is not None and best.blocking.in_tiles else "no plan in tile registers is the best"


def _typical(job: Job, c: Contraction) -> Contraction:
    """What a contraction with open rows is planned for."""
    return closed(c, job.typical)


def _planned_open(job: Job, c: Contraction) -> bool:
    """The plan of a contraction with open batches, in tile registers: every plan of one image fits."""
    typical = _typical(job, c)
    found = choose(typical, job.machine)
    fit = [x for x in found.candidates if x.blocking.in_tiles]
    note = f"{', '.join(s.name for s in job.opened.parameters)} open: every plan of one image in tile registers fits"
    job.choice = replace(found, candidates=tuple(fit), notes=(*found.notes, note))
    names = {digit.name for digit in c.open}
    if job.given is not None:
        if job.given.open != names:
            raise ArgumentError(f"plan: open here are {', '.join(sorted(names))}, marked as in `m_0 56?`")
        how = validate(job.given.opened(()), typical, job.machine)
        if how not in [x.blocking for x in fit]:
            raise ArgumentError(f"plan: {note}")
        job.plan = job.given
    elif fit:
        job.plan, how = fit[0].plan.opened(names), fit[0].blocking
    else:
        job.why = f"no plan fits open sizes: {'; '.join(map(str, found.unfit))}"
        return False
    assert isinstance(how.atom, MultiplyAtom)
    job.contraction = variant(c, how.atom)
    return True


def _widened(job: Job, narrow: Choice, wide: Choice, converting: float) -> bool:
    """Whether factors are converted first: no plan takes them as they are, or not the one given, or it is slower."""
    if narrow.best is None:
        return True
    if job.given is not None:
        atom = job.given.atom or ""
        return not atom.startswith(f"{LANES}.") and all(x.blocking.atom.name != atom for x in narrow.candidates)
    if wide.best is None or wide.best.blocking.by_lanes:  # lanes convert what they load
        return False
    return wide.best.cost.cycles + converting < narrow.best.cost.cycles
