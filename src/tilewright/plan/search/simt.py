"""Rule: SIMT products: lanes multiply without MMA atoms, if M or N has no dimension (depthwise convolution).

Every lane accumulates its own results: one at a time, or a box (rectangle of neighbouring results), whose elements
share the inputs that the lane loads. K steps over all K dimensions as one flat index.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product as combinations
from math import ceil, prod

from tilewright.algebra.expr import Expr, symbol
from tilewright.machine import Machine
from tilewright.plan.accumulator_type import accumulator_type
from tilewright.plan.facts import AccessFacts, Facts, ProductFacts
from tilewright.plan.model import Size, element_bytes
from tilewright.plan.rows import elements_per_line, smallest_element_bytes, task_widths_and_waves, tasks_of
from tilewright.plan.search.cost import SAME_WAVES, kernel_time
from tilewright.plan.search.lowered import LACKING, why_not_beside
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.resident import start_cycles
from tilewright.plan.search.uniform import touched_bytes
from tilewright.plan.search.work import Phase, Work
from tilewright.plan.simt_boxes import SimtProduct, box_tasks, max_unrolled_steps, resident_waves

LONGEST, SLIDING = 16, 2
"""The longest box of a lane that is tried along a digit (mixed-radix part) of M, and the number of innermost digits
along which boxes extend."""


@dataclass(frozen=True, eq=False)
class SimtProgram:
    """A program whose single MMA lanes can compute without atoms (SIMT).

    `terms` says how lanes compute it, so far without boxes. `access` is the read of the larger operand, `row` the
    program dimension that has all rows (M) of it, `digits` are the mixed-radix parts of `row`, `k_dims` the K
    dimensions.
    """

    facts: Facts
    machine: Machine
    terms: SimtProduct
    access: AccessFacts
    row: Expr
    digits: tuple[str, ...]
    k_dims: tuple[Expr, ...]

    @property
    def k_elements(self) -> int:
        """The number of multiply-adds per result: the product of the extents of all K dimensions."""
        return prod(self.facts.extents.get(str(d), 1) for d in self.k_dims)


@dataclass(frozen=True, eq=False)
class SimtKernelSchedule:
    """A kernel with a SIMT product: lanes multiply, without MMA atoms.

    `terms` says how lanes compute the MMA of `program`. `widths` are the elements of a workgroup's tile by dimension,
    `waves` the waves per workgroup. If each lane computes a box (rectangle of neighbouring results), `outer` is the
    dimension that counts boxes, and `sizes` is {digit (mixed-radix part) of M: extent of a box}; else None and {}.
    """

    program: SimtProgram
    terms: SimtProduct
    widths: dict[Expr, int]
    waves: int
    outer: Expr | None = None
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """A name for this kernel's design: "terms in boxes" if each lane computes a box of results, else "terms".

        The lowering tends to refuse all candidates of one name for the same reason.
        """
        return "terms in boxes" if self.sizes else "terms"


def simt_candidates(facts: Facts, machine: Machine, ranking: Ranking) -> Iterator[PlanCandidate]:
    """Yield GPU candidates in which lanes compute the program's single MMA by plain multiply-adds (SIMT).

    `facts` is the analysed program. `ranking.timed` is incremented for each candidate. Yields nothing if lanes cannot
    compute the MMA (`simt_program` returns None), for example if it has both M and N (a plain GEMM), if an operand is
    computed, or on a machine without lanes (a CPU). Yields nothing also for several MMAs; `ranking` then gets the
    reason.
    """
    program = simt_program(facts, machine)
    if program is None:
        return
    if why := why_not_beside(facts, "sums of lanes"):
        ranking.reject("lanes that multiply", f"{LACKING}: {why}")
        return
    for kernel in (*_single_result_kernels(program), *_box_kernels(program)):
        ranking.timed += 1
        yield simt_candidate(kernel)


def simt_candidate(kernel: SimtKernelSchedule) -> PlanCandidate:
    """Return a SIMT kernel (lanes multiply without atoms) as a PlanCandidate with its predicted cycles and sort key."""
    time = kernel_time(kernel.program.machine, count_simt_work(kernel), SAME_WAVES)
    key = (round(time.cycles), 0, 0, 0, 0, time.unbounded, len(kernel.sizes))
    return PlanCandidate(kernel, time.cycles, key)


def simt_program(facts: Facts, machine: Machine) -> SimtProgram | None:
    """Return a SimtProgram if lanes can compute the program's MMAs without atoms; else None.

    They can if the machine is no CPU, and the analysed program `facts` has MMAs, no loops, and is no half of a split
    program. Also, each MMA must be one that lanes can compute (see `_simt_program_of`). The result is that of the first
    MMA.
    """
    if facts.loops or facts.part or machine.lanes is None:
        return None
    programs = [_simt_program_of(facts, machine, p) for p in facts.products]
    return next(iter(programs), None) if None not in programs else None


def _simt_program_of(facts: Facts, machine: Machine, p: ProductFacts) -> SimtProgram | None:
    """Return a SimtProgram if lanes can compute the MMA `p` of the program `facts` without atoms; else None.

    All of these must hold: M or N has no dimension (as in a depthwise convolution); K has one; both operands are plain
    reads. The larger operand must be read at stated, linear coordinates, and its rows must lie along one program
    dimension; with a batch, it must be contiguous along the batch.
    """
    source = facts.nodes[p.node].source
    if (p.m and p.n) or source is None or not (p.a.is_read and p.b.is_read):
        return None
    operand = max((p.a, p.b), key=lambda x: facts.size(facts.nodes[x.value].dims))
    read = facts.nodes[operand.reads[0]]
    a, b, c = (v.type.dims for v in source.operands)
    k_dims = tuple(d for d in a if d in b and d not in c)
    if not read.place.linear or not k_dims or read.source is None or "at" not in read.source.attrs:
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
    accumulator_size = element_bytes(accumulator_type(source, machine))
    word = machine.register_file.word_bytes
    terms = SimtProduct(
        along, values, symbol("terms", 1), read.place.bytes, accumulator_size, machine.lane_access.vector_bytes, word
    )
    digits = tuple(n for n in facts.digit_names(row) if n in facts.extents)
    return SimtProgram(facts, machine, terms, read.place, row, digits, k_dims)


def extent_function_of(kernel: SimtKernelSchedule) -> Size:
    """Return a function that maps a dimension of the SIMT kernel `kernel` to its extent, an int.

    It knows the program's dimensions and the flattened K (all K dimensions as one index). If lanes compute boxes
    (rectangles) of results, it also knows the dimension that counts boxes and the dimensions within a box.
    """
    boxes = [] if kernel.outer is None else [d for d in kernel.terms.grid_dims if d is not kernel.outer]
    inner: dict[Expr, int] = {d: n for d in boxes for name, n in kernel.sizes.items() if str(d) == f"{name}_box"}
    outer = {}
    if kernel.outer is not None:
        outer = {kernel.outer: prod(ceil(kernel.program.facts.extents[d] / n) for d, n in kernel.sizes.items())}
    return _extent_function(kernel.program, {**inner, **outer})


def _extent_function(program: SimtProgram, more: dict[Expr, int]) -> Size:
    """Return a function that maps a dimension of a SIMT kernel for `program` to its extent, an int.

    It knows the program's dimensions, the flattened K (all K dimensions as one index), and the dimensions in `more`,
    which maps them to extents.
    """
    numbers = program.facts.number_of
    known: dict[Expr, int] = {program.terms.k: program.k_elements, **more}
    return lambda d: known[d] if d in known else numbers(d)


def _single_result_kernels(program: SimtProgram) -> list[SimtKernelSchedule]:
    """Return a list of one SIMT kernel, whose lanes are distributed along a batch dimension and have no boxes.

    Each lane computes its results one at a time. Return [] if the MMA has no batch, so that lanes are distributed along
    M. `program` is the MMA that lanes can compute.
    """
    facts, terms = program.facts, program.terms
    if terms.along_rows:
        return []
    size = _extent_function(program, {})
    task_extents = {
        d: elements_per_line(facts.program, size(d), program.machine) if d is terms.along else size(d)
        for d in facts.cut
    }
    one_term = dict.fromkeys(program.k_dims, 1)
    widths, waves = task_widths_and_waves(
        facts.program, task_extents, lambda d: one_term.get(d) or size(d), program.machine
    )
    return [SimtKernelSchedule(program, terms, widths, waves)]


def _box_kernels(program: SimtProgram) -> Iterator[SimtKernelSchedule]:
    """Yield SIMT kernels in which each lane computes a box (rectangle of neighbouring results).

    There is one kernel for each box and each K step that fit. A box extends along the last two digits (mixed-radix
    parts, such as line and column of an image) of M. It must fit a lane's registers and leave registers for enough
    waves per core, and its results must share inputs. Boxes cover M exactly; or they extend past its end, if writes
    drop the elements there. Yields nothing if M has fewer than two digits.
    """
    facts, machine = program.facts, program.machine
    file, waves, most_bytes = machine.register_file, machine.row_tasks.waves, machine.lane_access.own_bytes
    extents = [facts.extents[d] for d in program.digits]
    if len(extents) < 2:
        return
    lengths = [range(1, min(n, LONGEST) + 1) if k < SLIDING else (1,) for k, n in enumerate(reversed(extents))]
    inner = [prod(facts.extents.get(str(d), 1) for d in program.k_dims[n:]) for n in range(len(program.k_dims))]
    tiles = sorted({n for n in inner if program.k_elements % n == 0 and n > 1} | {program.k_elements})
    for sizes, tile in combinations(combinations(*reversed(lengths)), tiles):
        box = dict(zip(program.digits, sizes, strict=True))
        if prod(sizes) == 1 or not all(_can_cover(facts, d, n) for d, n in box.items()):
            continue
        terms = terms_of_box(program, box, tile)
        fits = (
            terms.accumulator_registers <= file.tensor_values
            and terms.accumulator_registers + terms.window_registers <= file.lane_values
        )
        fits = fits and terms.contiguous_positions * terms.element_bytes <= most_bytes
        if (
            fits
            and terms.window_positions < terms.results * tile
            and resident_waves(machine, terms.live_registers, waves) >= waves
        ):
            yield _box_kernel(program, terms, box)


def _can_cover(facts: Facts, dim: str, n: int) -> bool:
    """True if boxes of `n` elements along `dim` can cover all of `dim`, although the last may extend past its end.

    They can if `n` divides the extent of `dim`, or if every write drops the elements past the end. `facts` is the
    analysed program.
    """
    extent = facts.extents[dim]
    forms = [zip(w.place.coords, w.place.shape, strict=False) for w in facts.writes]
    return extent % n == 0 or all(any(form == ((dim, 1),) and at == extent for form, at in each) for each in forms)


def terms_of_box(program: SimtProgram, box: dict[str, int], tile: int) -> SimtProduct:
    """Return the SIMT product of `program` (lanes multiply, without MMA atoms) with a box of results per lane.

    A box is a rectangle of neighbouring results: `box` maps each digit (mixed-radix part of M) to its extent; an empty
    `box` means one result. `tile` is the number of K elements per step. The result also has the size and the strides of
    the input window that a box reads in one K step.
    """
    terms = replace(program.terms, k_step=tile, box_extents=tuple(box.values()))
    extents, remaining = dict(box), tile
    for d in reversed(program.k_dims):
        extents[str(d)] = min(remaining, program.facts.extents.get(str(d), 1))
        remaining = ceil(remaining / extents[str(d)])
    spans = [1 + sum(abs(c) * (extents.get(d, 1) - 1) for d, c in form) for form in program.access.coords]
    with_input = replace(terms, window_positions=prod(spans))
    if not terms.along_rows or not box:
        return with_input
    step = program.access.steps.get(program.digits[-1], 0)
    return replace(
        with_input, contiguous_positions=spans[-1], lane_stride_bytes=step * terms.box_extents[-1] * terms.element_bytes
    )


def with_box_dims(
    program: SimtProgram, terms: SimtProduct, box: dict[str, int]
) -> tuple[SimtProduct, Expr, dict[Expr, int]]:
    """Replace M in a SIMT product by dimensions of boxes; return (new product, dimension that counts boxes, extents).

    The extents are {dimension within a box: its extent}. A box is the rectangle of results that one lane computes;
    `box` maps each digit (mixed-radix part of M) to the box's extent. `terms` is the SIMT product (lanes multiply,
    without MMA atoms) of `program`; in its grid dimensions, the new dimensions take the place of M.
    """
    outer = symbol("boxes", 1)
    inner: dict[Expr, int] = {symbol(f"{d}_box", 1): n for d, n in box.items() if n > 1}
    cut = [x for d in program.facts.cut for x in ((outer, *inner) if d is program.row else (d,))]
    return replace(terms, box_dims=tuple(inner), grid_dims=tuple(cut)), outer, inner


def _box_kernel(program: SimtProgram, terms: SimtProduct, box: dict[str, int]) -> SimtKernelSchedule:
    """Return the schedule of a SIMT kernel in which each lane computes one box (rectangle) of output positions.

    `program` is the MMA, and `terms` says how lanes compute it. `box` maps each digit (mixed-radix part of M) to the
    box's extent along it. The numbers of boxes and batch vectors per task, and of waves, are chosen here.
    """
    terms, outer, inner = with_box_dims(program, terms, box)
    count = prod(ceil(program.facts.extents[d] / n) for d, n in box.items())
    size = _extent_function(program, {outer: count, **inner})
    widths, waves = box_tasks(terms, size, smallest_element_bytes(program.facts.program), program.machine)
    return SimtKernelSchedule(program, terms, widths, waves, outer, box)


def count_simt_work(kernel: SimtKernelSchedule) -> Work:
    """Count the work of a SIMT kernel; return a Work: cycles per workgroup, latency per core, bytes of memory traffic.

    The latency is the cycles that one core takes for all of its waves, with their waits for memory. If the K steps are
    unrolled, a wave waits once, for all of its loads. Otherwise it waits once per step.
    """
    terms, machine, size = kernel.terms, kernel.program.machine, extent_function_of(kernel)
    limits, costs, lanes, values = machine.limits, machine.costs.terms, machine.lanes or 1, terms.vector_elements
    boxes = max(1, ceil(prod(kernel.widths.values()) / (values * terms.results * lanes * kernel.waves)))
    count, widened = size(terms.k), values if terms.element_bytes < terms.accumulator_bytes else 0
    trips = ceil(count / terms.k_step)
    loads = trips * boxes * (terms.window_positions // terms.positions_per_load)
    instructions = loads * costs.load + trips * boxes * terms.window_positions * widened
    instructions += count * (boxes * terms.results * values + 1 + widened)
    instructions += boxes * terms.results * (values // 2 + costs.result) + costs.task
    tasks = tasks_of(kernel.widths, size)
    core_waves = ceil(tasks / (limits.cores or 1)) * kernel.waves
    concurrent = min(core_waves, max(kernel.waves, resident_waves(machine, boxes * terms.live_registers, kernel.waves)))
    is_unrolled = trips <= max_unrolled_steps(terms, kernel.widths, kernel.waves, machine)
    wave_cycles = instructions * costs.waiting + (1 if is_unrolled else trips) * limits.copy_latency
    lines = min(lanes, ceil(lanes * terms.lane_stride_bytes / machine.lane_access.line_bytes))
    phase = Phase(1, lanes=kernel.waves * instructions * lanes / limits.lane_rate, gather=kernel.waves * loads * lines)
    moved = touched_bytes(kernel.program.facts, machine)
    latency = ceil(core_waves / concurrent) * wave_cycles
    starts = start_cycles(machine, tasks, max(1, concurrent // kernel.waves))
    return Work(tasks, (phase,), moved=moved, latency=latency, starts=starts, from_memory=True)
