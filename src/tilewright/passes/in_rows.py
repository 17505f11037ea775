"""A program on factors that were copied first: to rows that the machine's own copies can read, or to diagonal blocks.

Where these refuse a factor as it lies, waves could copy it, a few bytes at a time. Or it is copied once, by a program
that is planned as any other is, and is then brought as other factors are. Where a product sums less than a row of
shared memory holds, neighbouring products may be one, with B in blocks on a diagonal. What all should take is compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

from tilewright.ir.core import Op, Value
from tilewright.passes.job import InRows, Job
from tilewright.passes.launching import can_be_early, launching
from tilewright.passes.places import Size
from tilewright.passes.repacking import (
    ONCE,
    Choose,
    atoms_from_shared,
    block_depth,
    bulk_loads,
    not_by_blocks,
    repack,
    shapes_of,
)
from tilewright.passes.tile.neighbours import neighbours
from tilewright.plan.boxes import numbers_of
from tilewright.plan.general import GeneralChoice
from tilewright.plan.microkernel import can_multiply_blocks
from tilewright.plan.model import element_bytes, microseconds
from tilewright.plan.planner import Refusal
from tilewright.plan.rings import pitch_of
from tilewright.plan.schedule import ALIGNED, DIAGONAL, PADDED, PANELS

FORMS = (ALIGNED, PANELS)
"""How a copy may lie."""


def forms_of(job: Job) -> tuple[str, ...]:
    """How copies of its factors may lie: in rows where the machine's copies refuse them, in padded rows where they lie
    askew, and in diagonal blocks where a product sums less than a row of shared memory holds."""
    rows = FORMS if job.gathered else (PADDED,) if _askew(job) else ()
    return (*rows, *_diagonals(job))


def _askew(job: Job) -> bool:
    """Whether rows of a factor lie no multiple of sectors apart, and all as the machine's copies read them."""
    product, loads = _product(job), bulk_loads(job.machine)
    if product is None or not atoms_from_shared(job.machine, product):
        return False
    size, sector, pitch = numbers_of(job.sizes), job.machine.limits.sector_bytes, max(a.pitch for a in loads)
    apart = [pitch_of(factor, job.program, size) for factor in product.operands[:2]]
    return any(n % sector for n in apart) and not any(n % pitch for n in apart)


def _product(job: Job) -> Op | None:
    """The one product of a program whose factors may be copied first; None: they may not, or are copies already."""
    products = [op for op in job.program.walk() if op.name == "mma"]
    if len(products) != 1 or job.opened or job.no_rows == ONCE or not bulk_loads(job.machine):
        return None
    return products[0]


def perhaps_in_rows(job: Job, forms: Collection[str], choose: Choose) -> GeneralChoice | str:
    """The choice of the program on repacked operands; or why there is none."""
    if job.no_rows:
        return job.no_rows
    made: list[tuple[GeneralChoice, InRows]] = []
    why = ""
    for form in forms:
        found = job.unfit.get(form) or repack(job, None, form)
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
    atoms = atoms_from_shared(job.machine, product)
    row, widest = max((x.slab or 0 for x in atoms), default=0), max((x.shape[1] for x in atoms), default=0)
    size = numbers_of(job.sizes)
    if not any(size(d) < row for d in a.dims if d in b.dims and d not in total.dims):
        return []
    found = neighbours(job.program, job.sizes, shapes_of(job))
    if isinstance(found, str):
        return []
    columns, deep = found.size[0], block_depth(atoms, found.size[1])
    counts = [2**n for n in range(1, row.bit_length() + 1)] if deep < row else []
    few = [n for n in counts if n * deep <= 2 * row and n * columns <= widest and found.count % n == 0]
    fitting = [n for n in few if any(can_multiply_blocks(atom, n, n * columns, n * deep) for atom in atoms)]
    return [f"{DIAGONAL} {n}" for n in sorted(fitting, key=lambda n: (n * deep > row, abs(row - n * deep)))]


def too_large(job: Job, found: InRows) -> bool:
    """Whether what is copied and its copies take more memory than all arguments and as much again."""

    def taken(shapes: Mapping[Value, tuple[Size, ...]]) -> int:
        return sum(prod(int(n) for n in shape) * element_bytes(a.type.dtype) for a, shape in shapes.items())

    both = sum(taken(each.shapes) for each in found.copies)  # what is copied, and what is written
    return both > 2 * taken(job.shapes)


def _chosen(job: Job, found: InRows, choose: Choose) -> GeneralChoice | str:
    """The choice of a program on copies, from that of its parts, which are planned; or why there is none."""
    for each in (*found.copies, found.main):
        choose(each)
    return not_by_blocks(found) or choice_in_rows(job, found)


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
