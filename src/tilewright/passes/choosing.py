"""The pass that chooses a plan: given, fixed in part, or the best; for contractions, open ones, and everything else."""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import ArgumentError
from tilewright.machine import MultiplyAtom
from tilewright.passes.binding import bind_plan
from tilewright.passes.given import better_refusal, bind_given, known_plan
from tilewright.passes.job import Job
from tilewright.passes.launching import with_launch
from tilewright.passes.notes import notes_on
from tilewright.passes.realising import rank_plans
from tilewright.plan.blocking import LANES
from tilewright.plan.contraction import Contraction, merge_rows, pad_k, recognise, size, with_known_sizes
from tilewright.plan.fixed import Fixed, fixed_by
from tilewright.plan.general import GeneralChoice
from tilewright.plan.grids import plan_of_grid
from tilewright.plan.model import copy_kernel_cycles
from tilewright.plan.planner import Choice, choose, variant
from tilewright.plan.schedule import Schedule
from tilewright.plan.validate import validate


def choose_plan(job: Job) -> None:
    """Plan a job and bind the plan: the given one, or the best that fits; a refusal of a given plan names its lines."""
    if job.given is None:
        _choose_plan(job)
        return
    try:
        _take_given(job, job.given)
    except ArgumentError as fault:
        raise better_refusal(fault, job, job.given, _choose_plan) from None


def _take_given(job: Job, given: Schedule) -> None:
    """Bind the given plan: as a contraction's plan if the program is one, else as a general plan.

    A job with logs is planned anew, as its tasks must show what is logged.
    """
    job.given = known_plan(given, job)
    if job.contraction is not None:
        if _plan_contraction(job, job.contraction, fixed_by(job.program, job.contraction, job.sizes)):
            return
        job.contraction = None
    if job.logs:  # tasks are chosen that show what is logged
        job.given = None
        _choose_plan(job)
        return
    _take(job, bind_given(job, job.given, choose_plan))


def _take(job: Job, choice: GeneralChoice) -> None:
    """Set the job's plan and choice, with notes on the plan added."""
    job.plan = choice.plan
    job.choice = replace(choice, notes=(*choice.notes, *notes_on(job, choice.plan)))


def _choose_plan(job: Job) -> None:
    """Plan a job and bind the plan: a contraction's, a grid's, or the best plan of the search."""
    if job.contraction is not None:
        if _plan_contraction(job, job.contraction, fixed_by(job.program, job.contraction, job.sizes)):
            return
        job.contraction = None
    if job.workgroups is None:
        rank_plans(job, choose_plan)
        return
    opened = job.open_extents
    choice = with_launch(plan_of_grid(job.program, job.sizes, job.machine, job.free, opened), None)
    plan = choice.plan if not opened else choice.plan.with_open({str(s) for s in opened})
    bind_plan(job, plan, choose_plan)
    _take(job, replace(choice, plan=plan))


def _plan_contraction(job: Job, c: Contraction, fixed: Fixed) -> bool:
    """Set the plan of a contraction on the job and return True; return False, with a reason in `job.why`, if no plan
    fits.

    A contraction with open rows is planned for its typical sizes. Narrow operands may be converted, and K padded,
    first.
    """
    if c.open:
        return _plan_open_contraction(job, c)
    unpadded, choice = c, choose(c, job.machine, fixed)
    if c.a.dtype.bits < c.sum_dtype.bits and (choice.best is None or choice.best.blocking.by_lanes):
        wide = replace(c, a=replace(c.a, dtype=c.sum_dtype), b=replace(c.b, dtype=c.sum_dtype))
        other = choose(wide, job.machine, fixed)
        if _should_widen(job, choice, other, copy_kernel_cycles(c.a, wide.a, job.machine)):
            c, choice = wide, other
    padded = _try_padded_k(job, unpadded, choice, fixed)
    if padded is not None:
        c, choice = padded
    if job.given is not None:
        whole = merge_rows(c)
        atom = job.machine.multiply.get(job.given.atom or "")
        job.contraction = whole if atom is None else variant(whole, atom)
        validate(job.given, job.contraction, job.machine)
        job.plan = job.given
    elif choice.best is None:
        job.why = f"no plan fits: {'; '.join(map(str, choice.refused))}"
        return False
    else:
        job.plan, job.contraction = choice.best.plan, choice.best.contraction
    job.choice = replace(choice, notes=(*choice.notes, *notes_on(job, job.plan)))
    return True


def _try_padded_k(job: Job, c: Contraction, found: Choice, fixed: Fixed) -> tuple[Contraction, Choice] | None:
    """Return (the contraction with K padded by zeros, its Choice) for an atom that adds more neighbours of K than
    divide K.

    None if no atom is worth the copy, or if the given plan's atom is another one. `found` is the Choice without
    padding.
    """
    groups = set()
    for atom in job.machine.multiply.values():
        vectors = (atom.a.dtype, atom.b.dtype) == (c.a.dtype, c.b.dtype) and atom.shape[0] == 1
        if vectors and (job.given is None or job.given.atom == atom.name):
            groups.add(atom.shape[2])
    for group in sorted(groups):
        padded = pad_k(c, group)
        if padded is c:
            continue
        other = choose(padded, job.machine, fixed)
        if other.best is None:
            continue
        cycles = other.best.cost.cycles + copy_kernel_cycles(c.a, padded.a, job.machine)
        if job.given is None and found.best is not None and found.best.cost.cycles <= cycles:
            continue
        last, wide = c.depth[-1], padded.depth[-1]
        note = (
            f"{c.a.name} and {c.b.name} are copied with zeros after {last.name}: {size(wide)} instead of {size(last)}"
        )
        return padded, replace(other, notes=(*other.notes, note))
    return None


def recognised(job: Job) -> Contraction | str:
    """Return the Contraction that a job's program is; or text: why it is planned as any other program.

    With open sizes it must be one in tile registers of which only batch sizes are open, so that images are whole.
    """
    if not job.opened:
        return recognise(job.program, job.sizes, job.machine)
    if not job.machine.limits.tile_registers:
        return "rows that are open are planned as such in tile registers only"
    contraction = recognise(job.program, job.extents, job.machine)
    if isinstance(contraction, str):
        return contraction
    best = (
        None
        if {*contraction.open} & {*contraction.rows[-2:]}
        else choose(_with_typical_sizes(job, contraction), job.machine).best
    )
    return contraction if best is not None and best.blocking.in_tiles else "no plan in tile registers is the best"


def _with_typical_sizes(job: Job, c: Contraction) -> Contraction:
    """Return the contraction with the typical sizes of the call in place of open ones."""
    return with_known_sizes(c, job.typical)


def _plan_open_contraction(job: Job, c: Contraction) -> bool:
    """Plan a contraction with open batch sizes in tile registers; return False, with a reason in `job.why`, if no plan
    fits.
    """
    typical = _with_typical_sizes(job, c)
    choice = choose(typical, job.machine)
    fit = [x for x in choice.candidates if x.blocking.in_tiles]
    note = f"{', '.join(s.name for s in job.opened.parameters)} open: every plan of one image in tile registers fits"
    job.choice = replace(choice, candidates=tuple(fit), notes=(*choice.notes, note))
    names = {digit.name for digit in c.open}
    if job.given is not None:
        if job.given.open != names:
            raise ArgumentError(f"plan: open here are {', '.join(sorted(names))}, marked as in `m_0 56?`")
        blocking = validate(job.given.with_open(()), typical, job.machine)
        if blocking not in [x.blocking for x in fit]:
            raise ArgumentError(f"plan: {note}")
        job.plan = job.given
    elif fit:
        job.plan, blocking = fit[0].plan.with_open(names), fit[0].blocking
    else:
        job.why = f"no plan fits open sizes: {'; '.join(map(str, choice.unfit))}"
        return False
    assert isinstance(blocking.atom, MultiplyAtom)
    job.contraction = variant(c, blocking.atom)
    return True


def _should_widen(job: Job, narrow: Choice, wide: Choice, converting: float) -> bool:
    """True if operands are converted to the accumulator's type first, by a kernel of `converting` cycles.

    That is so if no plan takes them as they are, if the given plan's atom does not, or if conversion is predicted
    faster.
    """
    if narrow.best is None:
        return True
    if job.given is not None:
        atom = job.given.atom or ""
        return not atom.startswith(f"{LANES}.") and all(x.blocking.atom.name != atom for x in narrow.candidates)
    if wide.best is None or wide.best.blocking.by_lanes:  # lanes convert what they load
        return False
    return wide.best.cost.cycles + converting < narrow.best.cost.cycles
