"""Rule: SIMT products, where M or N is empty and MMA atoms would be mostly idle (depthwise convolution).

Every lane accumulates its own results: one by one, or a box of neighbours, which share what they read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product as combinations
from math import ceil, prod

from tilewright.algebra.expr import Expr, symbol
from tilewright.machine import Machine
from tilewright.plan.boxes import numbers_of
from tilewright.plan.facts import AccessFacts, Facts
from tilewright.plan.model import Size, element_bytes
from tilewright.plan.rows import elements_per_line, rows_and_waves, smallest_element_bytes, tasks_of
from tilewright.plan.search.cost import SAME_WAVES, kernel_time
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.resident import start_cycles
from tilewright.plan.search.uniform import touched_bytes
from tilewright.plan.search.work import Phase, Work
from tilewright.plan.sums import summed_in
from tilewright.plan.term_boxes import Terms, max_unrolled_steps, resident_waves, tasks_of_boxes

LONGEST, SLIDING = 16, 2
"""The longest box of a lane that is tried along a digit, and the number of innermost digits with boxes."""


@dataclass(frozen=True, eq=False)
class TermProgram:
    """A product that lanes can compute without atoms (SIMT): the read of its larger operand, that operand's M, and K.

    `row` is the program dimension of M, `digits` are its sub-indices, `summed` are the dimensions of K.
    """

    facts: Facts
    machine: Machine
    terms: Terms
    access: AccessFacts
    row: Expr
    digits: tuple[str, ...]
    summed: tuple[Expr, ...]

    @property
    def count(self) -> int:
        """Return the number of multiply-adds (terms) per result: the product of the extents of all K dimensions."""
        return prod(self.facts.extents.get(str(d), 1) for d in self.summed)


@dataclass(frozen=True, eq=False)
class TermKernelSchedule:
    """A kernel with a SIMT product: task widths, waves, and the box (rectangle of neighbours) of results that a lane
    has.

    `outer` is the dimension that counts boxes, `sizes` the extent of a box by digit (sub-index of M); without boxes
    None and empty.
    """

    program: TermProgram
    terms: Terms
    widths: dict[Expr, int]
    waves: int
    outer: Expr | None = None
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """Return a name for this kind of kernel: "terms in boxes" if lanes compute boxes of results, else "terms".

        The lowering tends to refuse all candidates of one kind for the same reason.
        """
        return "terms in boxes" if self.sizes else "terms"


def kernels_by_terms(facts: Facts, machine: Machine, ranking: Ranking) -> Iterator[PlanCandidate]:
    """Yield GPU candidates in which lanes compute a program's single product by plain multiply-adds (SIMT).

    Yields nothing if `term_program` returns None: for example if both M and N have dimensions (a plain GEMM), if an
    operand is computed, or on a machine without lanes (a CPU).
    """
    program = term_program(facts, machine)
    if program is None:
        return
    for kernel in (*_single_result_kernels(program), *_box_kernels(program)):
        ranking.timed += 1
        yield term_candidate(kernel)


def term_candidate(kernel: TermKernelSchedule) -> PlanCandidate:
    """Return a SIMT kernel (lanes multiply without atoms) as a PlanCandidate with its predicted cycles and sort key."""
    time = kernel_time(kernel.program.machine, count_simt_work(kernel), SAME_WAVES)
    key = (round(time.cycles), 0, 0, 0, 0, time.unbounded, len(kernel.sizes))
    return PlanCandidate(kernel, time.cycles, key)


def term_program(facts: Facts, machine: Machine) -> TermProgram | None:
    """Return a TermProgram (a product that lanes can compute without atoms) for the program's product; else None.

    Lanes can compute it if M or N has no dimension (as in a depthwise convolution), both operands are plain reads, the
    larger one with linear addresses, one program dimension has all rows of the larger operand, and there is no batch or
    the larger operand is contiguous along the batch. None also if the program has loops or several products, for half
    of a split program, and on a machine without lanes (a CPU).
    """
    if len(facts.products) != 1 or facts.loops or facts.part or machine.lanes is None:
        return None
    (p,) = facts.products
    source = facts.nodes[p.node].source
    if (p.m and p.n) or source is None or not (p.a.is_read and p.b.is_read):
        return None
    operand = max((p.a, p.b), key=lambda x: facts.size(facts.nodes[x.value].dims))
    read = facts.nodes[operand.reads[0]]
    a, b, c = (v.type.dims for v in source.operands)
    summed = tuple(d for d in a if d in b and d not in c)
    if not read.place.linear or not summed or read.source is None or "at" not in read.source.attrs:
        return None
    rows = read.dims - p.batch - p.k
    row = next((d for d in facts.order if set(facts.digit_names(d)) & rows), None)
    if row is None or not rows <= set(facts.digit_names(row)):
        return None
    along = next((d for d in facts.order if str(d) == read.place.contiguous), None)
    if along is not None and str(along) in p.batch:
        values = machine.lane_access.vector_bytes // read.place.bytes
    elif p.batch:
        return None
    else:
        values, along = 1, row
    accumulator_size = element_bytes(summed_in(source, machine))
    word = machine.register_file.word_bytes
    terms = Terms(
        along, values, symbol("terms", 1), read.place.bytes, accumulator_size, machine.lane_access.vector_bytes, word
    )
    digits = tuple(n for n in facts.digit_names(row) if n in facts.extents)
    return TermProgram(facts, machine, terms, read.place, row, digits, summed)


def extents_in(kernel: TermKernelSchedule) -> Size:
    """Return a function that evaluates a dimension of the SIMT kernel `kernel` to its extent, an int.

    It knows the program's dimensions, the flattened K (all K dimensions as one index) and, if lanes compute boxes
    (rectangles) of results, the dimension that counts boxes and the dimensions within a box.
    """
    boxes = [] if kernel.outer is None else [d for d in kernel.terms.dims if d is not kernel.outer]
    inner: dict[Expr, int] = {d: n for d in boxes for name, n in kernel.sizes.items() if str(d) == f"{name}_box"}
    outer = {}
    if kernel.outer is not None:
        outer = {kernel.outer: prod(ceil(kernel.program.facts.extents[d] / n) for d, n in kernel.sizes.items())}
    return _extent_function(kernel.program, {**inner, **outer})


def _extent_function(program: TermProgram, more: dict[Expr, int]) -> Size:
    """Return a function that evaluates a dimension of a SIMT kernel to its extent, an int.

    It knows the program's dimensions, the flattened K (all K dimensions as one index), and the dimensions in `more`,
    which maps them to extents.
    """
    numbers = numbers_of(program.facts.sizes)
    known: dict[Expr, int] = {program.terms.summed: program.count, **more}
    return lambda d: known[d] if d in known else numbers(d)


def _single_result_kernels(program: TermProgram) -> list[TermKernelSchedule]:
    """Return a list of one SIMT kernel: its lanes lie along a batch dimension, and compute results one at a time.

    Return [] if the product has no batch, so that lanes lie along M.
    """
    facts, terms = program.facts, program.terms
    if terms.along_rows:
        return []
    size = _extent_function(program, {})
    task_extents = {
        d: elements_per_line(facts.program, size(d), program.machine) if d is terms.along else size(d)
        for d in facts.cut
    }
    one_term = dict.fromkeys(program.summed, 1)
    widths, waves = rows_and_waves(facts.program, task_extents, lambda d: one_term.get(d) or size(d), program.machine)
    return [TermKernelSchedule(program, terms, widths, waves)]


def _box_kernels(program: TermProgram) -> Iterator[TermKernelSchedule]:
    """Yield SIMT kernels whose lanes each compute a box (rectangle of neighbours) of results.

    There is one kernel for each box and K step. A box must fit a lane's registers, leave registers for enough waves per
    core, and have results that share reads. Boxes extend along the last two digits (mixed-radix parts, such as row and
    column) of M only, as a window slides along an image's lines and columns. Boxes must cover M exactly, or overhang
    only where writes drop the elements past the end. Yields nothing if M has fewer than two digits.
    """
    facts, machine = program.facts, program.machine
    file, waves, most_bytes = machine.register_file, machine.row_tasks.waves, machine.lane_access.own_bytes
    extents = [facts.extents[d] for d in program.digits]
    if len(extents) < 2:
        return
    lengths = [range(1, min(n, LONGEST) + 1) if k < SLIDING else (1,) for k, n in enumerate(reversed(extents))]
    inner = [prod(facts.extents.get(str(d), 1) for d in program.summed[n:]) for n in range(len(program.summed))]
    tiles = sorted({n for n in inner if program.count % n == 0 and n > 1} | {program.count})
    for sizes, tile in combinations(combinations(*reversed(lengths)), tiles):
        box = dict(zip(program.digits, sizes, strict=True))
        if prod(sizes) == 1 or not all(_can_cover(facts, d, n) for d, n in box.items()):
            continue
        terms = terms_of_box(program, box, tile)
        fits = (
            terms.accumulator_registers <= file.tensor_values
            and terms.accumulator_registers + terms.window_registers <= file.lane_values
        )
        fits = fits and terms.beside * terms.each <= most_bytes
        if (
            fits
            and terms.window < terms.results * tile
            and resident_waves(machine, terms.live_registers, waves) >= waves
        ):
            yield _box_kernel(program, terms, box)


def _can_cover(facts: Facts, dim: str, n: int) -> bool:
    """True if boxes of `n` elements along `dim` can cover all of `dim`, even if the last box extends past its end.

    They can if `n` divides the extent of `dim`, or if every write drops the elements past the end. `facts` is the
    analysed program.
    """
    extent = facts.extents[dim]
    forms = [zip(w.place.coords, w.place.shape, strict=False) for w in facts.writes]
    return extent % n == 0 or all(any(form == ((dim, 1),) and at == extent for form, at in each) for each in forms)


def terms_of_box(program: TermProgram, box: dict[str, int], tile: int) -> Terms:
    """Return a Terms (a SIMT product: lanes multiply, without MMA atoms) whose lanes compute a box of results each.

    A box is a rectangle; the Terms has the size of the input window that a box reads in one K step. `box` maps each
    digit (mixed-radix part of M) to the box's extent; an empty `box` means one result. `tile` is the number of K
    elements per step.
    """
    terms = replace(program.terms, tile=tile, sizes=tuple(box.values()))
    extents, remaining = dict(box), tile
    for d in reversed(program.summed):
        extents[str(d)] = min(remaining, program.facts.extents.get(str(d), 1))
        remaining = ceil(remaining / extents[str(d)])
    spans = [1 + sum(abs(c) * (extents.get(d, 1) - 1) for d, c in form) for form in program.access.coords]
    with_input = replace(terms, window=prod(spans))
    if not terms.along_rows or not box:
        return with_input
    step = program.access.steps.get(program.digits[-1], 0)
    return replace(with_input, beside=spans[-1], apart=step * terms.sizes[-1] * terms.each)


def with_boxes(program: TermProgram, terms: Terms, box: dict[str, int]) -> tuple[Terms, Expr, dict[Expr, int]]:
    """Add box dimensions to `terms`; return (new Terms, dimension that counts boxes, {dimension in a box: extent}).

    A Terms is a SIMT product: lanes multiply, without MMA atoms. A box is the rectangle of results that one lane
    computes; `box` maps each digit (mixed-radix part of M) to the box's extent.
    """
    outer = symbol("boxes", 1)
    inner: dict[Expr, int] = {symbol(f"{d}_box", 1): n for d, n in box.items() if n > 1}
    cut = [x for d in program.facts.cut for x in ((outer, *inner) if d is program.row else (d,))]
    return replace(terms, box=tuple(inner), dims=tuple(cut)), outer, inner


def _box_kernel(program: TermProgram, terms: Terms, box: dict[str, int]) -> TermKernelSchedule:
    """Return the SIMT kernel in which each lane computes one box (rectangle) of results, each a vector of the batch.

    `program` is the product, `terms` says how lanes compute it. `box` maps each digit (mixed-radix part of M) to the
    box's extent.
    """
    terms, outer, inner = with_boxes(program, terms, box)
    count = prod(ceil(program.facts.extents[d] / n) for d, n in box.items())
    size = _extent_function(program, {outer: count, **inner})
    widths, waves = tasks_of_boxes(terms, size, smallest_element_bytes(program.facts.program), program.machine)
    return TermKernelSchedule(program, terms, widths, waves, outer, box)


def count_simt_work(kernel: TermKernelSchedule) -> Work:
    """Count the work of a SIMT kernel; return a Work: cycles per workgroup, latency per core, bytes in all.

    The latency is the cycles that one core takes for all of its waves: if the K steps are unrolled, a wave waits once
    for all loads, else once per step.
    """
    terms, machine, size = kernel.terms, kernel.program.machine, extents_in(kernel)
    limits, costs, lanes, values = machine.limits, machine.costs.terms, machine.lanes or 1, terms.values
    boxes = max(1, ceil(prod(kernel.widths.values()) / (values * terms.results * lanes * kernel.waves)))
    count, widened = size(terms.summed), values if terms.each < terms.wide else 0
    rounds = ceil(count / terms.tile)
    loads = rounds * boxes * (terms.window // terms.positions_per_load)
    instructions = loads * costs.load + rounds * boxes * terms.window * widened
    instructions += count * (boxes * terms.results * values + 1 + widened)
    instructions += boxes * terms.results * (values // 2 + costs.result) + costs.task
    tasks = tasks_of(kernel.widths, size)
    core_waves = ceil(tasks / (limits.cores or 1)) * kernel.waves
    concurrent = min(core_waves, max(kernel.waves, resident_waves(machine, boxes * terms.live_registers, kernel.waves)))
    is_unrolled = rounds <= max_unrolled_steps(terms, kernel.widths, kernel.waves, machine)
    wave_cycles = instructions * costs.waiting + (1 if is_unrolled else rounds) * limits.copy_latency
    lines = min(lanes, ceil(lanes * terms.apart / machine.lane_access.line_bytes))
    phase = Phase(1, lanes=kernel.waves * instructions * lanes / limits.lane_rate, gather=kernel.waves * loads * lines)
    moved = touched_bytes(kernel.program.facts, machine)
    latency = ceil(core_waves / concurrent) * wave_cycles
    starts = start_cycles(machine, tasks, max(1, concurrent // kernel.waves))
    return Work(tasks, (phase,), moved=moved, latency=latency, starts=starts, from_memory=True)
