"""Kernels whose waves all run the same code, without a pipeline: elementwise, or with atoms on register fragments."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, gcd, prod

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Block, Op, Program
from tilewright.machine import Machine
from tilewright.plan.boxes import numbers_of
from tilewright.plan.facts import Facts, ValueFacts
from tilewright.plan.general import CHOSEN, DEEPEST, WHOLE, axis_of, only_adds, plan_over_dims
from tilewright.plan.microkernel import Microkernel, axes_in, waves_of
from tilewright.plan.predicting import elements_per_load, needs_division
from tilewright.plan.schedule import REVERSED, ProductUnit, Schedule, Split
from tilewright.plan.search.cost import SAME_WAVES, kernel_time
from tilewright.plan.search.kernel import Parts
from tilewright.plan.search.ranking import PlanCandidate
from tilewright.plan.search.resident import with_residence
from tilewright.plan.search.work import Phase, Work


@dataclass(frozen=True, eq=False)
class UniformKernelSchedule:
    """A kernel whose waves all run the same code: task widths, number of waves, loop tiles.

    `products` has the microkernel of every MMA, None where lanes multiply without an atom; `blocks` are loop tiles
    within a task. `backward`: tasks run in reverse, as what was written last is still in L2. `parts` are those of a
    split reduction, of which a task has `parts_of_task`.
    """

    facts: Facts
    machine: Machine
    widths: dict[Expr, int]
    waves: int
    loops: dict[Expr, int]
    products: dict[Op, Microkernel | None] = field(default_factory=dict)
    blocks: dict[Expr, int] = field(default_factory=dict)
    backward: bool = False
    parts: Parts | None = None
    parts_of_task: int = 1

    @property
    def family(self) -> str:
        """The kind of this kernel, as text; the lowering tends to refuse candidates of one kind for the same reason."""
        return "no pipeline" if self.parts is None else "parts of a reduction"

    def width(self, d: Expr) -> int:
        """Return the extent of a dimension within a task of this kernel, or within an
        iteration of a loop over it; at least 1.
        """
        return max(1, self.widths.get(d) or self.loops.get(d) or numbers_of(self.facts.sizes)(d))


def uniform_candidate(kernel: UniformKernelSchedule, *ties: float) -> PlanCandidate:
    """Return a kernel as a candidate, timed by its work; `ties` are compared in its sort key if cycles are equal."""
    cycles = kernel_time(kernel.machine, count_uniform(kernel), SAME_WAVES).cycles
    return PlanCandidate(kernel, cycles, (round(cycles), *ties))


def loop_tiles(facts: Facts) -> dict[Expr, int]:
    """Return the tile size of every loop of the program, by its axis, except loops over dimensions of the grid.

    It is the author's, if stated. Else a K loop has at most DEEPEST elements, a loop whose tile size does not matter
    all of a short axis or CHOSEN, and others all.
    """
    size, tiles = numbers_of(facts.sizes), {}
    for op in facts.program.walk():
        if op.name != "iterate" or op.attrs["axis"] in facts.cut:
            continue
        axis = op.attrs["axis"]
        extent, stated = size(axis), facts.stated_loops.get(str(axis))
        if stated is not None:
            tiles[axis] = stated
        elif str(axis) in facts.loops:
            tiles[axis] = extent
        elif only_adds(op):
            tiles[axis] = extent if axis in facts.opened else min(extent, DEEPEST)
        else:
            tiles[axis] = extent if extent <= WHOLE else CHOSEN
    return tiles


def count_uniform(kernel: UniformKernelSchedule) -> Work:
    """Return the work of a kernel without a pipeline: lanes and atoms add up, and loads are waited for.

    Without MMAs a task waits once for its reads; otherwise for A and for B in every K step of every accumulator tile.
    """
    facts, machine, size = kernel.facts, kernel.machine, numbers_of(kernel.facts.sizes)
    counts = {d: ceil(size(d) / n) for d, n in kernel.widths.items()}
    waves = max(kernel.waves, waves_of(machine, kernel.products.values()))
    slower = machine.costs.one_wave if waves == 1 else 1.0
    lanes = 0.0
    for n in facts.nodes:
        repeated = prod(count for d, count in counts.items() if not _has(facts, n, d))
        lanes += _element_cycles(kernel, n) * facts.size(n.space) * repeated
    tasks = prod(counts.values())
    waits = float(machine.limits.copy_latency)
    if kernel.products:
        waits *= ceil(tasks / (machine.limits.cores or 1)) * _arrivals(kernel)
    packed = _packed_bytes(kernel)
    waits += len(packed) * (machine.limits.following_cycles + machine.limits.copy_latency)
    copied, words = _operand_copies(kernel)
    lanes += tasks * words * machine.limits.gather_cycles / machine.limits.lane_rate
    phase = Phase(1, lanes=lanes * slower / max(1, tasks), shared=2 * copied, copied=copied)
    work = Work(max(1, tasks), (phase,), moved=argument_bytes(facts) + 2 * sum(packed), waits=waits)
    return work if kernel.products else with_residence(kernel, work)


def _packed_bytes(kernel: UniformKernelSchedule) -> list[float]:
    """Return the bytes of each operand B that another kernel packs first, so that fragments along K are contiguous."""
    facts, packed = kernel.facts, []
    for op, how in kernel.products.items():
        axes = axes_in(op, kernel.width)
        if how is None or how.slab or how.group == 1 or isinstance(axes, str):
            continue
        b = axes.factors(op)[1]
        read = next((n for n in facts.reads if n.source is not None and b in n.source.results), None)
        if read is not None and not read.place.can_leave:
            packed.append(float(prod(read.place.shape) * read.place.bytes))
    return packed


def _operand_copies(kernel: UniformKernelSchedule) -> tuple[float, float]:
    """Return (bytes, words) that one task loads for its MMAs: A for every block of columns, B for every block of rows.

    A word is what a lane loads at once. MMAs that lanes do without an atom count nothing.
    """
    facts, copied, words = kernel.facts, 0.0, 0.0
    vector = kernel.machine.lane_access.vector_bytes
    around, size = loops_around(facts.program), numbers_of(facts.sizes)
    for p in facts.products:
        op = facts.nodes[p.node].source
        assert op is not None
        how, axes = kernel.products[op], axes_in(op, kernel.width)
        if how is None or isinstance(axes, str):
            continue
        rows, columns, _ = axes.sizes(kernel.width)
        often = ceil(columns / how.columns), ceil(rows / how.rows)
        axes_around = [loop.attrs["axis"] for loop in around[op]]
        trips = prod(ceil(size(axis) / kernel.loops[axis]) for axis in axes_around if axis in kernel.loops)
        for operand, times in zip(axes.factors(op), often, strict=True):
            elements = prod(kernel.width(d) for d in operand.type.dims)
            read = next((n for n in facts.reads if n.source is not None and operand in n.source.results), None)
            if read is not None:
                place = read.place
                word = gcd(vector, place.pitch) if place.pitch and place.linear else place.bytes
                copied += trips * times * elements * place.bytes
                words += trips * times * elements * place.bytes / word
    return copied, words


def _has(facts: Facts, n: ValueFacts, dim: Expr) -> bool:
    """True if a value is computed over a dimension of the program, or the dimension has one element."""
    names = facts.digits.get(str(dim), (str(dim),))
    return any(name in n.space for name in names) or all(facts.extents.get(name, 1) == 1 for name in names)


def _element_cycles(kernel: UniformKernelSchedule, n: ValueFacts) -> float:
    """Return the cycles of a core for one element of a value: arithmetic, a multiply-add, or the
    address of a read; 0 for what costs nothing.
    """
    facts, machine, size = kernel.facts, kernel.machine, numbers_of(kernel.facts.sizes)
    if n.op == "read" and n.source is not None and needs_division(n.source, size):
        return float(machine.limits.placing / machine.limits.lane_rate / elements_per_load(n.source, size, machine))
    if n.op == "mma" and n.source is not None:
        return _term_cycles(kernel, n.source)
    return 0.0 if n.op == "cumsum" else facts.lane_cycles(n, machine)


def _term_cycles(kernel: UniformKernelSchedule, op: Op) -> float:
    """Return the cycles of a core for one multiply-add of the MMA `op`, whose tiles are padded to whole atoms."""
    how, axes = kernel.products.get(op), axes_in(op, kernel.width)
    if how is None or isinstance(axes, str):
        return 1 / kernel.machine.limits.lane_rate
    rows, columns, _ = axes.sizes(kernel.width)
    whole = ceil(rows / how.atom.shape[0]) * ceil(columns / how.atom.shape[1]) / (rows * columns)
    return how.atom.cycles * whole / how.atom.shape[2]


def _arrivals(kernel: UniformKernelSchedule) -> int:
    """Return how often a task waits for operands: in every K step of every accumulator tile of every iteration.

    It waits for A and for B to arrive, and once more for both to lie in shared memory, if an atom reads them there.
    """
    size, around = numbers_of(kernel.facts.sizes), loops_around(kernel.facts.program)
    total = 0
    for op, how in kernel.products.items():
        axes, steps = axes_in(op, kernel.width), 1
        if how is not None and not isinstance(axes, str):
            rows, columns, depth = axes.sizes(kernel.width)
            slabs = ceil(depth / how.slab) if how.slab else 1
            places = prod(kernel.width(d) for d in (*axes.deep, *axes.around))
            steps = ceil(rows / how.rows) * ceil(columns / how.columns) * slabs * places
        for axis in (loop.attrs["axis"] for loop in around[op]):
            steps *= ceil(size(axis) / max(1, kernel.loops[axis])) if axis in kernel.loops else 1
        in_shared = 1 if how is not None and how.slab else 0
        total += (2 + in_shared) * steps
    return total


def loops_around(program: Program) -> dict[Op, tuple[Op, ...]]:
    """Return {mma: the loops around it, outermost first} for every MMA of a program."""
    around: dict[Op, tuple[Op, ...]] = {}

    def walk(block: Block, loops: tuple[Op, ...]) -> None:
        """Record the loops around each MMA in a block; `loops` are those around the block."""
        for op in block.ops:
            if op.name == "mma":
                around[op] = loops
            for inner in op.blocks:
                walk(inner, (*loops, op) if op.name == "iterate" else loops)

    walk(program.body, ())
    return around


def argument_bytes(facts: Facts) -> float:
    """Return the bytes of all memory that the program reads or writes; each argument counts once, whole."""
    places = {n.place.memory: n.place for n in (*facts.reads, *facts.writes)}
    return float(sum(prod(place.shape) * place.bytes for place in places.values()))


def plan_of_uniform(kernel: UniformKernelSchedule) -> Schedule:
    """Return the plan of a kernel without a pipeline; with `parts`, that of a reduction split over tasks."""
    facts, size = kernel.facts, numbers_of(kernel.facts.sizes)
    whole = [d for d in facts.order if d not in kernel.widths]
    if kernel.parts is not None:
        return _plan_in_parts(kernel, kernel.parts, whole)
    cuts = {
        d: tuple(Split(level, of[d]) for level, of in (("task", kernel.widths), ("loop", kernel.blocks)) if d in of)
        for d in kernel.widths
    }
    cuts |= {d: (Split("loop", n),) for d, n in kernel.loops.items() if d in whole and n < size(d)}
    plan = plan_over_dims((*kernel.widths, *whole), size, cuts, kernel.widths)
    names = {facts.nodes[p.node].source: p.name for p in facts.products}
    products = tuple(
        ProductUnit(names[op], None)
        if how is None
        else ProductUnit(names[op], how.atom.name, *how.tile, how.transposed)
        for op, how in kernel.products.items()
    )
    early = True if "programmatic" in kernel.machine.launches else None
    schedule = REVERSED if kernel.backward and plan.grid else "cyclic"
    return replace(plan, products=products, waves=kernel.waves, early=early, order=schedule)


def _plan_in_parts(kernel: UniformKernelSchedule, parts: Parts, whole: list[Expr]) -> Schedule:
    """Return the plan of a kernel that reduces parts of a reduction; the part's number is the first axis of the grid.

    `whole` are the dimensions that the grid does not split.
    """
    size, split = numbers_of(kernel.facts.sizes), f"{parts.dim}_split"
    tasks = [axis_of(str(d), size(d), (Split("task", n),)) for d, n in kernel.widths.items()]
    others = [
        axis_of(f"{d}_part", parts.width, ()) if str(d) == parts.dim else axis_of(str(d), size(d), ()) for d in whole
    ]
    return Schedule(
        (axis_of(split, parts.count, (Split("task", kernel.parts_of_task),)), *tasks, *others),
        (split, *(axis.name for axis in tasks)),
        parts=(parts.dim, parts.count),
        waves=kernel.waves,
        early=True if "programmatic" in kernel.machine.launches else None,
    )
