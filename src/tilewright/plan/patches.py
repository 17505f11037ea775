"""Patches with halos: plans in which a task has a box of positions, and all that it reads around them is brought once.

Where the reads of neighbouring rows overlap, as those of sliding windows do, a run of rows is brought again for every
offset at which it is looked at. A box of positions has an image under the access, its halo tile, that is hardly larger
than itself: it is brought once for a step of K, and the product reads it where it lies, at each offset in turn. B is
brought offset by offset, or, where all of it fits, once for all tasks.

    axis M = (M_2 32, M_1 56, M_0 56): task M_2 2, task M_1 8, task M_0 8
    axis F = (F 64): task 64
    axis K_2 = (K_2 3): loop 1
    axis K_1 = (K_1 3): loop 1
    axis K_0 = (K_0 64): loop 64
    grid M, F
    loops K_0, K_2, K_1
    x halo at K_0
    w panel at start
    mma by matrix.m64n64k16.bf16, tile 128x64
    producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 1, halo stages 3, epilogue stages 2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.core import Op, Program
from tilewright.machine import BulkCopy, Machine, MultiplyAtom
from tilewright.plan.boxes import WRITES, may_overrun
from tilewright.plan.epilogue import after_product
from tilewright.plan.general import axis_of, dims_of, words_for
from tilewright.plan.halo_windows import SlidingWindow, image_rows, operand_reads, sliding_window
from tilewright.plan.microkernel import Axes, Microkernel, as_plan, axes_of
from tilewright.plan.model import Size
from tilewright.plan.pipelined import atoms_of, product_of
from tilewright.plan.ring_costs import ENOUGH, columns_of, cycles, leaving, overlapping, row_bytes, row_cycles, served
from tilewright.plan.rings import (
    ATOMS,
    GROUPS,
    MOST,
    STORED,
    bound_by_memory,
    overlaps,
    pitch_of,
    result_pitch,
    waves_of_roles,
)
from tilewright.plan.schedule import Axis, Digit, Pipeline, Schedule, Split, ValuePlacement
from tilewright.plan.tiled import Walk

HALOS = (4, 3, 2)
"""Stages of the ring of halo tiles."""
RINGS = 3
"""Rings, whose barriers lie between them: halo tiles, B, results."""


@dataclass(frozen=True)
class Patch:
    """A candidate: a task's box of digits, how many offsets a stage of B has (0: all of B stays), and what it takes."""

    how: Microkernel
    box: tuple[int, ...]
    offsets: int
    roles: Pipeline
    cycles: float


@dataclass(frozen=True)
class PatchWork:
    """What is to be done over boxes of digits of these extents, at offsets, for N columns, K and as often as the rest.

    Results have so many bits, and `end` is what lanes take for an element of them; rows of A may begin `within` the
    ones before them; `pitches` are the bytes between rows of A, B and the result.
    """

    slides: SlidingWindow
    extents: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, int, int]
    bits: int
    end: float
    within: bool
    pitches: tuple[int, ...]

    def tiles(self, how: Microkernel, box: Sequence[int]) -> int:
        """How many tasks there are."""
        columns, _, around = self.sizes
        boxes = prod(ceil(n / b) for n, b in zip(self.extents, box, strict=True))
        return around * ceil(columns / how.columns) * boxes


def patches(
    program: Program,
    digits: tuple[Symbol, ...],
    sizes: Mapping[Symbol, int],
    size: Size,
    machine: Machine,
) -> list[Patch] | str:
    """The candidates for the one product of a program over digits of M, the best first; or why there are none."""
    product_found = product_of(program, size, ())
    if isinstance(product_found, str):
        return product_found
    op, axes = product_found
    atoms = atoms_of(program, machine, op, axes)
    if isinstance(atoms, str):
        return atoms
    if not atoms[0].asynchronous:
        return "lanes multiply by themselves, which takes longer than to bring what rows share again"
    reads = operand_reads(op, axes, program)
    if reads is None:
        return "a factor is computed"
    slides = sliding_window(reads[0], axes, digits, size)
    if isinstance(slides, str):
        return slides
    extents, past = [sizes[d] for d in digits], [may_overrun(d, program, size) for d in digits]
    work = patch_work(program, op, axes, reads, slides, digits, size, machine)
    least = bound_by_memory(program, size, machine) + machine.limits.launch_cycles
    alone = work.sizes[-1] == 1 or may_overrun(axes.n, program, size)  # else the next group lies behind the last column
    made = [
        replace(each, cycles=max(each.cycles, least))
        for how in _blocks(machine.bulk_copy, atoms, work, op.attrs.get("blocks", 1))
        if alone or size(axes.n) % how.columns == 0
        for box in _boxes(machine.shared_memory.atom_rows, how, extents)
        for turns in ((False, True) if how.groups == 1 else (False,))
        if all(free or n % b == 0 for free, n, b in zip(past, extents, box, strict=True))
        for each in _rings(machine, how, work, box, turns)
    ]
    return sorted(made, key=_good) or "no halo tile fits"


def patch_work(
    program: Program,
    op: Op,
    axes: Axes,
    reads: tuple[Op, Op],
    slides: SlidingWindow,
    digits: Sequence[Symbol],
    size: Size,
    machine: Machine,
) -> PatchWork:
    """The work of a product over boxes of digits."""
    return PatchWork(
        slides,
        tuple(size(d) for d in digits),
        tuple(size(d) for d in axes.deep),
        (size(axes.n), size(axes.k), prod(size(d) for d in axes.around if d not in digits)),
        max(w.operands[1].type.dtype.bits for w in program.walk() if w.name in WRITES),
        after_product(program, op, machine),
        overlaps(reads[0].result, program, size),
        (*(pitch_of(x.result, program, size) for x in reads), result_pitch(program, size)),
    )


def _good(patch: Patch) -> tuple[float, ...]:
    """Of those that take the same time one in which nobody takes turns, the largest tile, and the most waves."""
    return round(patch.cycles), patch.roles.pingpong, -patch.how.rows * patch.how.columns, -patch.how.groups


def _blocks(bulk: BulkCopy, atoms: Sequence[MultiplyAtom], work: PatchWork, blocks: int) -> Iterator[Microkernel]:
    """Blocks of sums by groups of waves, with as many rows as one copy brings at most."""
    for atom, groups, each in product(atoms, GROUPS, ATOMS):
        columns = columns_of(atom, blocks, *work.sizes[:2])
        if columns is None or atom.slab is None or (columns * work.bits // 8) % bulk.row_bytes:
            continue
        made = Microkernel(atom, groups * each * atom.shape[0], columns, groups, blocks=blocks)
        if made.rows <= bulk.box_extent:
            yield made


def _boxes(run: int, how: Microkernel, extents: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Boxes with as many elements as the block has rows, which an atom reads: its runs of rows lie equally far apart.

    None is twice as long as a digit, or longer.
    """
    rows, unit = how.rows, how.atom.shape[0]
    if len(extents) < 2:
        return
    for last in (run, *range(unit, rows + 1, unit)):
        if rows % last:
            continue
        for lines in range(1, rows // last + 1):
            rest = rows // last // lines
            if rows % (last * lines) or (last == run and lines % (unit // last)):
                continue
            if rest > 1 and len(extents) < 3:
                continue
            box = (*(1 for _ in extents[3:]), rest, lines, last)[-len(extents) :]
            if all(b < 2 * n for b, n in zip(box, extents, strict=True)):
                yield box


def _image(slides: SlidingWindow, box: Sequence[int]) -> tuple[int, ...]:
    """The size of the halo tile of a box, without K."""
    return tuple(1 + r + sum(box[d] - 1 for d in ds) for ds, r in zip(slides.digits, slides.reach, strict=True))


def _halo(slides: SlidingWindow, box: tuple[int, ...], walk: Walk | None, how: Microkernel, run: int) -> int:
    """The rows of a halo tile, in whole runs of so many."""
    if walk is None:
        return prod(_image(slides, box))
    each = image_rows(walk, how) + slides.reach[-2] * walk.pitch + slides.reach[-1]
    return prod(_image(slides, box)[:-2]) * -(-each // run) * run


def _rings(machine: Machine, how: Microkernel, work: PatchWork, box: tuple[int, ...], turns: bool) -> Iterator[Patch]:
    """The candidates for a box: B streamed, or all of it in shared memory."""
    slides, offsets, (columns, k, around) = work.slides, work.offsets, work.sizes
    shared = machine.spaces["shared"]
    regs, halves = waves_of_roles(machine, how, gathered=False, turns=turns), 1 + turns
    idle = turns and work.tiles(how, box) <= (machine.limits.cores or 1)
    if max(_image(slides, box)) > machine.bulk_copy.box_extent or regs is None or shared.bytes is None or idle:
        return
    row = row_bytes(how)
    halo = (
        ceil(_halo(slides, box, None, how, machine.shared_memory.atom_rows) * row / shared.alignment) * shared.alignment
    )
    room = shared.bytes - (RINGS + turns) * shared.alignment
    tap, chunks = how.columns * row, ceil(k / (how.slab or 1))
    every = chunks * prod(offsets) * tap
    once = offsets[-1] if tap * offsets[-1] <= machine.bulk_copy.taps_bytes else 1
    for stored in STORED:
        left = room - halves * stored * how.rows * row
        ring = max(0, left - HALOS[-1] * halo) // (once * tap)
        if ring * once >= ENOUGH and ring > 1:
            stages = min(MOST, ring)
            halos = next(n for n in HALOS if n * halo + stages * once * tap <= left)
            roles = Pipeline(*regs, stages, stored, halos, turns)
            yield Patch(how, box, once, roles, patch_cycles(machine, work, how, roles, box, once))
            break
    for stored in STORED:
        left = room - halves * stored * how.rows * row - every
        if ceil(columns / how.columns) == 1 and around == 1 and left >= HALOS[-1] * halo:
            roles = Pipeline(*regs, 1, stored, min(HALOS[0], left // halo), turns)
            yield Patch(how, box, 0, roles, patch_cycles(machine, work, how, roles, box, 0))
            break


def patch_cycles(
    machine: Machine,
    work: PatchWork,
    how: Microkernel,
    roles: Pipeline,
    box: tuple[int, ...],
    offsets: int,
    walk: Walk | None = None,
) -> float:
    """The cycles of some work over boxes; a stage of B has so many offsets, 0: all of B stays in shared memory."""
    (_, k, _), row, shared = work.sizes, row_bytes(how), machine.spaces["shared"]
    lines = _halo(work.slides, box, walk, how, machine.shared_memory.atom_rows)
    halo = ceil(lines * row / shared.alignment) * shared.alignment
    taken = lines * overlapping(machine, how, boxed=True) if work.within else halo
    tap, chunks = how.columns * row, ceil(k / (how.slab or 1))
    steps, tiles = chunks * prod(work.offsets), work.tiles(how, box)
    of_a, of_b = (row_cycles(machine, how, k, pitch) for pitch in work.pitches[:2])
    read, streamed = 0.0 if work.within else lines * of_a, prod(work.offsets) * how.columns * of_b
    away = leaving(machine, how, work.bits, work.pitches[2])
    if offsets:
        filled, first = chunks * (taken + prod(work.offsets) * tap), 0.0
        all_served = served(machine, tiles, read + streamed, away)
    else:
        filled, first = chunks * taken, max(steps * tap, streamed * machine.limits.l2_rate)
        all_served = served(machine, tiles, read, away)
    return cycles(machine, how, roles, tiles, steps, filled, first, work.end, served=all_served)


def plan_of(
    patch: Patch, op: Op, program: Program, m: str, digits: tuple[Symbol, ...], sizes: Mapping[Symbol, int], size: Size
) -> Schedule:
    """The plan of a candidate; M is called `m`."""
    left, right, total = (v.type.dims for v in op.operands)
    axes = axes_of(left, right, total, size)
    assert not isinstance(axes, str)
    reads = operand_reads(op, axes, program)
    assert reads is not None
    a, b = reads
    tasks = [d for d in op.operands[2].type.dims if d not in digits]
    whole = [d for d in dims_of(program) if d not in (*tasks, *digits) and d in sizes]
    words = words_for([m, *map(str, [*tasks, *whole])])
    word = words[m]
    box = [Digit(str(d), sizes[d], sizes[d]) for d in digits]
    cuts = [Split("task", n, str(d)) for d, n in zip(digits, patch.box, strict=True)]
    own = Axis(word, tuple(box), tuple(cuts))
    cut: dict[Expr, Split] = {d: Split("task", patch.how.columns if d is axes.n else 1) for d in tasks}
    cut |= {d: Split("loop", 1) for d in axes.deep} | {axes.k: Split("loop", patch.how.slab or 1)}
    around = [d for d in tasks if d is not axes.n]
    order = [axes.k, *axes.deep]
    at = "start" if patch.offsets == 0 else words[str(order[-1] if patch.offsets == 1 else order[-2])]
    if patch.offsets > 1:
        cut[order[-1]] = Split("loop", patch.offsets)
    every = [*(axis_of(words[str(d)], size(d), (cut[d],)) for d in around), own]
    every += [axis_of(words[str(d)], size(d), (cut[d],) if d in cut else ()) for d in (axes.n, *whole)]
    return Schedule(
        tuple(every),
        (*(words[str(d)] for d in around), word, words[str(axes.n)]),
        tuple(words[str(d)] for d in order),
        (
            ValuePlacement(a.operands[0].name or "a", words[str(axes.k)], "halo"),
            ValuePlacement(b.operands[0].name or "b", at, "panel"),
        ),
        products=as_plan({op: patch.how}, program),
        pipeline=patch.roles,
    )
