"""A program on factors that were copied first: to rows that the machine's own copies can read, or to diagonal blocks.

Where these refuse a factor as it lies, waves could copy it, a few bytes at a time. Or it is copied once, by a program
that is planned as any other is, and is then brought as other factors are. Where a product sums less than a row of
shared memory holds, neighbouring products may be one, with B in blocks on a diagonal. What all should take is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import prod

from tilewright.ir.core import Op, Value
from tilewright.machine import CopyAtom, MultiplyAtom
from tilewright.passes.job import InRows, Job
from tilewright.passes.launching import can_be_early, launching
from tilewright.passes.places import Size
from tilewright.passes.tile.aligning import Reading, aligned
from tilewright.passes.tile.copies import Copied
from tilewright.passes.tile.diagonal import diagonal
from tilewright.passes.tile.neighbours import neighbours
from tilewright.plan.boxes import numbers_of
from tilewright.plan.general import GeneralChoice
from tilewright.plan.model import element_bytes, microseconds
from tilewright.plan.planner import Refusal
from tilewright.plan.refusals import refused
from tilewright.plan.ring_costs import columns_of
from tilewright.plan.rings import pitch_of
from tilewright.plan.schedule import ALIGNED, DIAGONAL, LAUNCH, PADDED, PANELS, Schedule, ValuePlacement

Choose = Callable[[Job], None]
"""The pass that plans a job."""
FORMS = (ALIGNED, PANELS)
"""How a copy may lie."""
ONCE = "its factors lie in rows already"
"""Why a program on copies, or one that copies, is not asked again."""


def repacked(job: Job, plan: Schedule, choose: Choose) -> InRows:
    """The jobs of the copies that a plan names, and of the kernel on these, bound to the plan's other lines."""
    lines = sorted((p for p in plan.values if p.at == LAUNCH), key=lambda p: not p.form.startswith(DIAGONAL))
    rest = replace(plan, values=tuple(p for p in plan.values if p.at != LAUNCH))
    found = _in_rows(job, rest, lines[0].form)
    if isinstance(found, str):
        raise refused(lines[0], found)
    wrong = tuple(p for p in lines if p not in found.placed) or tuple(p for p in found.placed if p not in lines)
    if wrong:
        done = ", ".join(f"`{p}`" for p in found.placed)
        raise refused(wrong, f"the operands that are repacked, without a hint, are {done}")
    for each in (*found.copies, found.main):
        choose(each)
    return found


def forms_of(job: Job) -> tuple[str, ...]:
    """How copies of its factors may lie: in rows where the machine's copies refuse them, in padded rows where they lie
    askew, and in diagonal blocks where a product sums less than a row of shared memory holds."""
    rows = FORMS if job.gathered else (PADDED,) if _askew(job) else ()
    return (*rows, *_diagonals(job))


def _askew(job: Job) -> bool:
    """Whether rows of a factor lie no multiple of sectors apart, and all as the machine's copies read them."""
    product, loads = _product(job), _loads(job)
    if product is None or not _atoms(job, product):
        return False
    size, sector, pitch = numbers_of(job.sizes), job.machine.limits.sector_bytes, max(a.pitch for a in loads)
    apart = [pitch_of(factor, job.program, size) for factor in product.operands[:2]]
    return any(n % sector for n in apart) and not any(n % pitch for n in apart)


def _product(job: Job) -> Op | None:
    """The one product of a program whose factors may be copied first; None: they may not, or are copies already."""
    products = [op for op in job.program.walk() if op.name == "mma"]
    if len(products) != 1 or job.opened or job.no_rows == ONCE or not _loads(job):
        return None
    return products[0]


def perhaps_in_rows(job: Job, forms: Collection[str], choose: Choose) -> GeneralChoice | str:
    """The choice of the program on repacked operands; or why there is none."""
    if job.no_rows:
        return job.no_rows
    made: list[tuple[GeneralChoice, InRows]] = []
    why = ""
    for form in forms:
        found = job.unfit.get(form) or _in_rows(job, None, form)
        if not isinstance(found, str) and form == PANELS and too_large(job, found):
            found = "panels take more memory than twice all arguments"
        choice = found if isinstance(found, str) else _chosen(job, found, choose)
        if isinstance(choice, str) or isinstance(found, str):
            why = why or str(choice)
        else:
            made.append((choice, found))
    if not made:
        return why
    (best, _), *others = sorted(made, key=lambda x: round(microseconds(x[0].cycles, job.machine), 1))
    refused = [
        Refusal(", ".join(map(str, other.placed)), f"{x.cycles / best.cycles:.2f} of the time") for x, other in others
    ]
    refused += [Refusal(f"operands repacked: {form}", why) for form, why in job.unfit.items()]
    return replace(best, refused=(*best.refused, *refused))


def _diagonals(job: Job) -> list[str]:
    """In how many diagonal blocks B may be: powers of two, of which two rows of shared memory hold all that is summed
    of A, and the widest atom all columns. Those that fill a row stand first: of two that take as long it is taken."""
    product = _product(job)
    if product is None:
        return []
    a, b, total = (v.type for v in product.operands)
    atoms = _atoms(job, product)
    row, widest = max((x.slab or 0 for x in atoms), default=0), max((x.shape[1] for x in atoms), default=0)
    size = numbers_of(job.sizes)
    if not any(size(d) < row for d in a.dims if d in b.dims and d not in total.dims):
        return []
    found = neighbours(job.program, job.sizes, _shapes(job))
    if isinstance(found, str):
        return []
    columns, deep = found.size[0], _deep(atoms, found.size[1])
    counts = [2**n for n in range(1, row.bit_length() + 1)] if deep < row else []
    few = [n for n in counts if n * deep <= 2 * row and n * columns <= widest and found.count % n == 0]
    fitting = [n for n in few if any(columns_of(atom, n, n * columns, n * deep) for atom in atoms)]
    return [f"{DIAGONAL} {n}" for n in sorted(fitting, key=lambda n: (n * deep > row, abs(row - n * deep)))]


def _deep(atoms: Collection[MultiplyAtom], k: int) -> int:
    """How much of K a block has: whole steps of an atom, a power of two of them, behind which there are zeros."""
    step = max((x.shape[2] for x in atoms), default=1)
    deep = step
    while deep < k:
        deep *= 2
    return k if k % step == 0 else deep


def _atoms(job: Job, product: Op) -> list[MultiplyAtom]:
    """The atoms that multiply a product's factors from shared memory."""
    types = {v.type.dtype for v in product.operands[:2]}
    return [x for x in job.machine.multiply.values() if x.slab is not None and {x.a.dtype, x.b.dtype} == types]


def too_large(job: Job, found: InRows) -> bool:
    """Whether what is copied and its copies take more memory than all arguments and as much again."""

    def taken(shapes: Mapping[Value, tuple[Size, ...]]) -> int:
        return sum(prod(int(n) for n in shape) * element_bytes(a.type.dtype) for a, shape in shapes.items())

    both = sum(taken(each.shapes) for each in found.copies)  # what is copied, and what is written
    return both > 2 * taken(job.shapes)


def _loads(job: Job) -> list[CopyAtom]:
    """The machine's own copies to shared memory."""
    every = job.machine.copies_between("global", "shared")
    return [a for a in every if a.asynchronous and a.bytes_moved is None]


def _shapes(job: Job) -> dict[Value, tuple[int, ...]]:
    return {a: tuple(int(n) for n in shape) for a, shape in job.shapes.items()}


def _in_rows(job: Job, given: Schedule | None, form: str) -> InRows | str:
    """The jobs that copy, and the one that works on copies; or why there are none."""
    loads = _loads(job)
    if not loads or job.opened or job.single or job.lenient:
        return "its factors are not copied first: sizes are open, or it is a part of another program"
    pitch = max(a.pitch for a in loads)
    if form.startswith(DIAGONAL):
        made = _in_blocks(job, int(form.split()[1]), pitch)
    else:
        line = max((x.slab or 0) * x.a.dtype.bits // 8 for x in job.machine.multiply.values())
        reading = Reading(pitch, max(a.furthest for a in loads), job.machine.limits.sector_bytes, line)
        made = aligned(job.program, job.sizes, _shapes(job), job.free, form, reading)
    if isinstance(made, str):
        return made
    copies = tuple(Job(job.machine, each.program, each.sizes, each.shapes) for each in made.copies)
    main = Job(job.machine, made.program, made.sizes, made.shapes, made.free, given=given, single=True)
    forms = (form, *(PADDED if form.startswith(DIAGONAL) else form for _ in made.sources[1:]))
    placed = tuple(ValuePlacement(name, LAUNCH, own) for name, own in zip(made.sources, forms, strict=True))
    return InRows(copies, main, placed, tuple(map(str, made.copies)))


def _in_blocks(job: Job, count: int, pitch: int) -> Copied | str:
    """The program in which so many neighbouring products are one, each of which an atom multiplies by itself."""
    found = neighbours(job.program, job.sizes, _shapes(job))
    if isinstance(found, str):
        return found
    atoms, (n, k) = _atoms(job, found.product), found.size
    deep = _deep(atoms, k)
    if not any(columns_of(atom, count, count * n, count * deep) for atom in atoms):
        return f"no atom multiplies blocks of {n}x{k} by themselves, and an infinite element would reach its neighbours"
    return diagonal(job.program, job.sizes, _shapes(job), job.free, count, deep, pitch)


def _chosen(job: Job, found: InRows, choose: Choose) -> GeneralChoice | str:
    """The choice of a program on copies, from that of its parts, which are planned; or why there is none."""
    for each in (*found.copies, found.main):
        choose(each)
    return not_by_blocks(found) or choice_in_rows(job, found)


def not_by_blocks(found: InRows) -> str:
    """Why blocks on a diagonal are not multiplied by themselves, where that is so."""
    plan = found.main.plan
    if plan is None or plan.pipeline is not None or not any(p.form.startswith(DIAGONAL) for p in found.placed):
        return ""
    return f"no plan multiplies blocks by themselves: {found.main.no_roles}"


def choice_in_rows(job: Job, found: InRows) -> GeneralChoice:
    """The choice of a program on copies, whose parts are planned."""
    main = found.main.choice
    assert isinstance(main, GeneralChoice)
    machine = job.machine
    launch = launching(machine, can_be_early(machine))
    often, copied, notes = found.often(job.constant), 0.0, []
    for each, words in zip(found.copies, found.notes, strict=True):
        assert isinstance(each.choice, GeneralChoice)
        took = each.choice.cycles - launch
        if each in often and each is not often[0]:
            took -= machine.limits.copy_latency  # they wait together
        copied += took if each in often else 0
        notes.append(f"{words}: {f'{microseconds(took, machine):.1f} us' if each in often else 'when it is bound'}")
    if often:  # one launch for all of them, which what follows need not wait for, where it may begin early
        copied = max(copied, launch) if can_be_early(machine) else copied + launch
    # as if launched plainly: how it is, is chosen with the whole
    cycles = main.cycles + copied + launching(machine, early=False) - launch
    plans = [replace(plan, values=(*found.placed, *plan.values), early=None) for plan in (main.plan, *main.candidates)]
    costs = tuple(cost - main.cycles + cycles for cost in main.costs)
    return replace(
        main,
        plan=plans[0],
        cycles=cycles,
        candidates=tuple(plans[1:]),
        costs=costs,
        notes=(*notes, *main.notes),
        jobs=found,
    )
