"""Find the cause of a candidate's time: the count of its work that costs most, and an operation that has it.

The cost model predicts the same kernel without one of its counts: without reads of shared memory, say, or with as many
tasks as cores. The count that saves the most cycles is the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, prod

from tilewright.ir.core import Op
from tilewright.machine import Machine
from tilewright.plan.boxes import why_whole
from tilewright.plan.facts import Dims, Facts, ValueFacts
from tilewright.plan.model import bytes_text
from tilewright.plan.search.blocked import BlockedKernelSchedule
from tilewright.plan.search.core_rows import vector_cycles
from tilewright.plan.search.cost import SAME_WAVES, kernel_time
from tilewright.plan.search.kernel import KernelSchedule, time_of, work_of
from tilewright.plan.search.partial_reductions import work_in_parts
from tilewright.plan.search.ranking import CandidateKernel, PlanCandidate
from tilewright.plan.search.simt import SimtKernelSchedule, count_simt_work
from tilewright.plan.search.single_lane_scans import TOPK, single_lane_ops
from tilewright.plan.search.split_k import split_work
from tilewright.plan.search.uniform import count_uniform_work
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule
from tilewright.plan.search.unit import MmaTile
from tilewright.plan.search.work import Phase, Work
from tilewright.plan.slow import Cause

Timed = Callable[[Work], float]
"""A function from the work of a kernel to its cycles."""


def cause_of(candidate: PlanCandidate, facts: Facts, machine: Machine) -> Cause:
    """Return the Cause (text, advice, operation) that takes most of the predicted time of a candidate.

    If the candidate runs two kernels, it is the cause of the slower one. If the work of the kernel cannot be counted,
    the Cause says so. `facts` is the analysed program of the candidate.
    """
    following = candidate.then
    if following is not None and following.cycles > candidate.cycles / 2:
        return cause_of(following, facts, machine)
    kernel = candidate.kernel
    if isinstance(kernel, BlockedKernelSchedule):
        return _cause_of_blocks(kernel, facts, machine)
    timed = _work_of(kernel)
    if timed is None:
        return Cause("its work cannot be counted", "write the plan yourself")
    work, cycles = timed
    all_cycles = cycles(work)
    savings = {what: all_cycles - cycles(without) for what, without in _without(work, machine)}
    what = max(savings, key=lambda name: savings[name])
    return _described(what, kernel, work, machine)


def _work_of(kernel: CandidateKernel) -> tuple[Work, Timed] | None:
    """Return (Work of a kernel, function from any Work to the kernel's cycles); None if the work cannot be counted.

    A Work has counts of cycles and bytes. A caller can set one count to 0 and ask the function how many cycles remain.
    The kernel must not be a BlockedKernelSchedule.
    """
    if isinstance(kernel, SimtKernelSchedule):
        machine = kernel.program.machine
        return count_simt_work(kernel), lambda work: kernel_time(machine, work, SAME_WAVES).cycles
    if isinstance(kernel, UniformKernelSchedule):
        machine = kernel.machine
        parts = kernel.parts
        counted = count_uniform_work(kernel) if parts is None else work_in_parts(kernel, parts)[0]
        return counted, lambda work: kernel_time(machine, work, SAME_WAVES).cycles
    assert isinstance(kernel, KernelSchedule)
    pipelined = work_of(kernel)
    if pipelined is None:
        return None
    pipelined = pipelined if kernel.parts is None else split_work(kernel, pipelined, kernel.parts)[0]
    return pipelined, lambda work: time_of(kernel, work).cycles


def _without(work: Work, machine: Machine) -> Iterator[tuple[str, Work]]:
    """Yield (name of a cause, copy of `work` without it) for each cause that may take the time of a kernel.

    A copy has all counts of one cause set to 0: cycles of MMAs ("mma"), bytes and L2 cycles of copies ("copied") and so
    on. If there are fewer tasks than cores, a pair with the name "tasks" comes last; its copy spreads the same work
    over as many tasks as cores.
    """

    def phases(**none: float) -> tuple[Phase, ...]:
        """Return the phases (loop nests) of `work` with some counts replaced: `phases(mma=0)` sets each `mma` to 0."""
        return tuple(p._replace(**none) for p in work.phases)  # type: ignore[arg-type]

    yield "mma", work._replace(phases=phases(mma=0, first=0))
    yield "lanes", work._replace(phases=phases(lanes=0, masked=0), end=work.end._replace(lanes=0))
    yield "shared", work._replace(phases=phases(shared=0))
    copies = phases(copied=0, l2=0, alone=0, strewn=0, rewritten=0)
    yield "copied", work._replace(phases=copies, l2_read=0, resident=0, first=0, edges=0)
    yield "gather", work._replace(phases=phases(gather=0))
    yield "serial", work._replace(phases=phases(serial=0))
    yield "end", work._replace(end=work.end._replace(by_lanes=0, l2=0, narrow=0))
    yield "again", work._replace(again=0)
    yield "moved", work._replace(moved=0, again=0)
    yield "waits", work._replace(waits=0, exchange=0)
    yield "latency", work._replace(latency=0)
    yield "starts", work._replace(starts=0)
    cores = machine.limits.cores or 1
    if work.tasks < cores:
        share = work.tasks / cores
        shorter = tuple(p._replace(trips=p.trips * share) for p in work.phases)
        yield "tasks", work._replace(tasks=cores, phases=shorter, waits=work.waits * share)


def _described(what: str, kernel: CandidateKernel, work: Work, machine: Machine) -> Cause:
    """Return the Cause (text, advice, operation) to report if the count named `what` takes most of a kernel's time.

    `what` is a name that `_without` yields, such as "mma" or "copied"; `work` has the kernel's counts. The kernel must
    not be a BlockedKernelSchedule.
    """
    facts = _facts_of(kernel)
    tasks = f"{work.tasks} tasks" if work.tasks > 1 else "one task"
    products = [n for n in facts.nodes if n.op == "mma"]
    op = products[0].source if products else _result_op(facts)
    if what == "tasks":
        return _too_few_tasks(facts, work, machine)
    if what == "mma":
        return _slow_products(kernel, facts, work)
    if what in ("copied", "gather") and products:
        return _slow_operands(what, kernel, facts, work)
    if what == "gather":
        return _short_runs(kernel, facts, machine)
    if what == "waits" and products and isinstance(kernel, UniformKernelSchedule):
        return _many_steps(kernel)
    if what == "again":
        return _read_again(facts, work)
    if what == "latency" and isinstance(kernel, UniformKernelSchedule):
        return _single_lane_rows(kernel, facts)
    if what == "lanes":
        return _slow_elements(kernel, facts, machine)
    if what == "starts":
        way = "give the grid's dimensions larger tiles (WorkgroupConstraint), or leave the constraint out"
        return Cause(f"it starts {tasks}, which takes longer than their work", way, op)
    if what == "end":
        n = max(facts.writes, key=lambda n: facts.size(n.dims))
        way = f"make the rows of {n.place.memory} a multiple of 16 bytes long"
        return Cause(f"lanes store {n.place.memory} element by element, as its rows are not aligned", way, n.source)
    texts = {
        "shared": ("values go through shared memory between operations", "compute fewer values from one another"),
        "serial": ("each step waits for the one before it", "let the steps of a loop not depend on each other"),
        "latency": ("each wave of lanes waits for its terms", "make M and N longer, so that an atom multiplies"),
        "waits": ("tasks wait for memory, and nothing else runs meanwhile", "make tasks independent, and more of them"),
        "moved": (
            f"it moves {bytes_text(work.moved)} to and from memory",
            "read fewer elements, or of a narrower type",
        ),
    }
    return Cause(*texts[what], op)


def _facts_of(kernel: CandidateKernel) -> Facts:
    """Return the Facts (analysed program) that a kernel computes. The kernel must not be a BlockedKernelSchedule."""
    if isinstance(kernel, SimtKernelSchedule):
        return kernel.program.facts
    if isinstance(kernel, KernelSchedule):
        return kernel.tiling.facts
    assert isinstance(kernel, UniformKernelSchedule)
    return kernel.facts


def _result_op(facts: Facts) -> Op | None:
    """Return the operation with the largest iteration space: elements of its result times elements reduced for each.

    Of several equally large operations, the last is returned. Fills and scalars do not count, nor do values for which
    the program has no operation. None if no value counts.
    """
    sources = [n for n in facts.nodes if n.source is not None and n.op not in ("fill", "scalar")]
    return max(sources, key=lambda n: (facts.size(n.space), n.id)).source if sources else None


def _too_few_tasks(facts: Facts, work: Work, machine: Machine) -> Cause:
    """Return a Cause (text, advice, operation) for a kernel with fewer tasks (workgroups' tiles) than cores.

    It names the longest dimension that the grid cannot split, and why, with an operation that reduces or runs along it
    (None if there is none). If the grid can split all dimensions, it says that there are too few elements. `facts` is
    the analysed program, `work` has the number of tasks.
    """
    size = facts.number_of
    unsplit = [d for d in facts.order if d.symbols <= facts.sizes.keys() and d not in facts.cut and size(d) > 1]
    count = f"{work.tasks} tasks" if work.tasks > 1 else "one task"
    what = f"{count} for {machine.limits.cores} cores"
    if not unsplit:
        return Cause(f"{what}: it has too few elements", "compute more at a time, such as a larger batch")
    d = max(unsplit, key=size)
    along = [n.source for n in facts.nodes if str(d) in n.reduces and n.source is not None]
    ordered = [op for op in facts.program.walk() if op.attrs.get("dim") is d or op.attrs.get("axis") is d]
    why = why_whole(facts.program, d)
    way = f"split {d} in two dimensions, combine along one, write that, and combine the rest in a second kernel"
    return Cause(f"{what}: {d}, of {size(d)}, is whole, because {why}", way, next(iter((*along, *ordered)), None))


def _slow_products(kernel: CandidateKernel, facts: Facts, work: Work) -> Cause:
    """Return a Cause (text, advice, operation) for a kernel that spends most of its time on MMAs; it must have one.

    For a KernelSchedule, the Cause is about the MMA of most cycles: either its atom computes at least twice the
    product, because tiles are padded, or MMAs simply take the time. For other kernels it is about the largest MMA:
    either it has an atom but no pipeline, or lanes multiply without an atom. `facts` is the analysed program, `work`
    has the number of tasks.
    """
    node = max((facts.nodes[p.node] for p in facts.products), key=lambda n: facts.size(n.space))
    if not isinstance(kernel, KernelSchedule):
        dtypes = f"{facts.nodes[node.args[0]].dtype} by {facts.nodes[node.args[1]].dtype}"
        products = kernel.products if isinstance(kernel, UniformKernelSchedule) else {}
        microkernel = None if node.source is None else products.get(node.source)
        if microkernel is not None:
            what = f"{microkernel.atom.name} takes the time, with no copies beside it that bring its operands"
            return Cause(what, "what explain() refused says why there is no pipeline", node.source)
        way = "cast the operands to a type that has an atom (`tilewright targets`), or write one product a kernel"
        return Cause(f"its product of {dtypes} runs on lanes, not on atoms", way, node.source)
    m = max(kernel.mmas, key=lambda m: m.cycles)
    node = facts.nodes[m.node]
    loops = kernel.tiling.phase(node)
    computed = work.tasks * kernel.tiling.batch * kernel.tiling.trips(loops) * m.rows * m.columns * m.depth
    times = computed / facts.size(node.space)
    dim, extent, unit = _most_padded(kernel, m)
    if times < 2:
        return Cause("its products take the time", "use a narrower type", node.source)
    way = f"merge {dim} with a longer dimension, or let another one be the last of the tensors"
    return Cause(
        f"{m.atom.name} multiplies {times:.0f} times what the product has: {unit} at a time along {dim}, of {extent}",
        way,
        node.source,
    )


def _most_padded(kernel: KernelSchedule, m: MmaTile) -> tuple[str, int, int]:
    """Return (dimension, extent, padded extent) of M, N or K of the MMA `m`: of the one that is padded most.

    Tiles are padded to whole atoms; M, N or K with the largest ratio of padded to actual elements is taken. The
    dimension is the longest in the tile; for K, the one along which K steps run. The extent is that of the whole
    dimension, the padded extent that of the tile along all of M, N or K. Without a dimension, the first item is the
    text "a side without dimensions" and the extent is 1.
    """
    t, p = kernel.tiling, m.oriented

    def padding(padded: int, dims: Dims) -> float:
        """Return the ratio of `padded` to the number of elements of an unpadded tile along the dimensions `dims`."""
        return padded / max(1, prod(min(t.size[d], t.facts.extents[d]) for d in dims))

    sides = ((m.depth, p.product.k), (m.rows, p.rows), (m.columns, p.columns))
    unit, dims = max(sides, key=lambda side: padding(*side))
    inner = t.o.inner_k.get(m.node) if dims == p.product.k else None
    dim = inner or (max(dims, key=lambda d: t.size[d]) if dims else "a side without dimensions")
    return dim, t.facts.extents.get(dim, 1), unit


def _slow_operands(what: str, kernel: CandidateKernel, facts: Facts, work: Work) -> Cause:
    """Return a Cause (text, advice, operation) for a kernel that waits for operands of its MMAs.

    `what` is "gather" if lanes load operands without bulk copies, "copied" if tasks load operands repeatedly. For
    "gather" in a kernel with a pipeline, the Cause names the operand with the shortest contiguous dimension; else the
    operand of which the tensor has the most bytes. If no operand is read, it says that each task computes the operands
    again. `facts` is the analysed program, `work` has the copied bytes; 0 bytes mean that caches bring operands.
    """
    reads = [facts.nodes[i] for p in facts.products for x in (p.a, p.b) for i in x.reads]
    if not reads:
        return Cause("operands of its products are computed for each task again", "write them in a kernel of their own")
    if what == "gather" and isinstance(kernel, KernelSchedule):
        n = _least_contiguous(reads, facts)
        why = kernel.tiling.o.by_threads
        last = n.place.contiguous
        run = facts.extents.get(last or "", 1)
        way = (
            f"lay {n.place.memory} out with a longer dimension of the product last (channels last), or permute it first"
        )
        return Cause(
            f"lanes load operands themselves, {n.place.memory} in runs of {run} along {last}: {why}", way, n.source
        )
    n = max(reads, key=lambda n: prod(n.place.shape) * n.place.bytes)
    if not work.copied_bytes:  # of a CPU, whose caches bring operands
        what = f"a core's products wait for {n.place.memory}, which it reads again for each tile of the others"
        return Cause(what, "make K shorter, or split M and N in tasks (WorkgroupConstraint) that caches hold", n.source)
    times = work.copied_bytes / max(1.0, facts.moved_bytes)
    return Cause(
        f"tasks load operands {times:.0f} times: {bytes_text(work.copied_bytes)} for {bytes_text(facts.moved_bytes)}",
        "let tasks share more of them: make M and N larger, or merge dimensions of the batch into them",
        n.source,
    )


def _many_steps(kernel: UniformKernelSchedule) -> Cause:
    """Return a Cause (text, advice, operation) for a kernel whose waves wait for operands in every K step of an MMA.

    It names the MMA with the most K steps. If no MMA runs on an atom, it says that lanes multiply, and has no
    operation.
    """
    waits: dict[Op, tuple[int, str]] = {}
    for op, microkernel in kernel.products.items():
        axes = kernel.axes_of(op)
        if microkernel is not None and not isinstance(axes, str):
            _, _, depth = axes.sizes(kernel.width)
            steps = ceil(depth / microkernel.slab) if microkernel.slab else 1
            steps *= prod(kernel.width(d) for d in (*axes.deep, *axes.around)) * kernel.trips[op]
            waits[op] = steps, f"{steps} steps of {min(depth, microkernel.slab or depth)} along {axes.k}"
    if not waits:
        return Cause("its product runs on lanes, which wait for its operands", "write it as one product a kernel")
    op = max(waits, key=lambda op: waits[op][0])
    way = "make the last dimension of K longer: merge it with others, or lay tensors out with a longer one last"
    return Cause(f"waves load operands themselves and wait for each step of K: {waits[op][1]}", way, op)


def _single_lane_rows(kernel: UniformKernelSchedule, facts: Facts) -> Cause:
    """Return a Cause (text, advice, operation) for a kernel in which single lanes compute rows of a scan or topk.

    A topk is a search for the largest few. The kernel must have such an operation; the one with the most elements is
    named. `facts` is the analysed program.
    """
    n = max(single_lane_ops(kernel), key=lambda n: facts.size(n.space))
    assert n.source is not None
    dim = n.source.attrs["dim"]
    what = f"one lane walks each row of {n.op} along {dim} alone, {kernel.width(dim)} elements one after another"
    if n.op == TOPK:
        return Cause(f"{what}, once for each of the largest", "ask for fewer, or split the rows in two steps", n.source)
    way = f"let {dim} be the last dimension of the tensor, so that lanes share its rows, or scan in tiles and carry"
    return Cause(what, way, n.source)


def _least_contiguous(reads: list[ValueFacts], facts: Facts) -> ValueFacts:
    """Return the read in `reads` that has the fewest elements along its contiguous dimension in memory.

    A read without a contiguous dimension counts as one element.
    """
    return min(reads, key=lambda n: facts.extents.get(n.place.contiguous or "", 1))


def _short_runs(kernel: CandidateKernel, facts: Facts, machine: Machine) -> Cause:
    """Return a Cause (text, advice, operation) for a kernel whose accesses use a few elements of each cache line.

    It names the read or write that touches the most lines. `facts` is the analysed program.
    """
    accesses = [*facts.reads, *facts.writes]
    dims = {str(d): d for d in facts.order}

    def run(n: ValueFacts) -> int:
        """Return the number of elements of the read or write `n` that one task finds contiguous in memory.

        It is 1 if no dimension is contiguous, and for kernels other than a UniformKernelSchedule (no pipeline).
        """
        d = dims.get(str(n.place.contiguous))
        return kernel.width(d) if d is not None and isinstance(kernel, UniformKernelSchedule) else 1

    n = max(accesses, key=lambda n: facts.size(n.dims) / min(machine.lane_access.line_bytes, run(n) * n.place.bytes))
    along = n.place.contiguous
    where = f"in runs of {run(n)} along {along}" if along else "element by element"
    verb = "stores" if n.op == "write" else "loads"
    way = f"lay {n.place.memory} out with the dimension last along which results lie"
    return Cause(f"it {verb} {n.place.memory} {where}, a cache line for each", way, n.source)


def _read_again(facts: Facts, work: Work) -> Cause:
    """Return a Cause (text, advice, operation) for a kernel that reads rows of an input several times.

    It is for rows that are too long to keep in registers or shared memory. The Cause names the largest input; its
    operation is the program's first reduction, or the read if there is none. `facts` is the analysed program; `work`
    has the bytes that are read again.
    """
    reduced = [n for n in facts.nodes if n.reduces and n.source is not None and n.op != "mma"]
    read = max(facts.reads, key=lambda n: facts.size(n.dims))
    times = 1 + work.again / max(1.0, work.moved)
    what = f"{read.place.memory} is read again for each use of its rows, too long to keep: in all {times:.1f} times"
    way = "reduce in tiles with @tkw.iterate and carry what is needed, or make the rows shorter"
    return Cause(what, way, reduced[0].source if reduced else read.source)


def _slow_elements(kernel: CandidateKernel, facts: Facts, machine: Machine) -> Cause:
    """Return a Cause (text, advice, operation) for a kernel whose lanes compute for most of its time.

    It names the operation that takes the most cycles: a read or write that moves one element at a time, an operation on
    tiles shorter than a vector, or one with many elements. `facts` is the analysed program.
    """

    def cycles(n: ValueFacts) -> float:
        """Return one core's cycles for all elements of the value `n`."""
        on_cpu = machine.lanes is None and isinstance(kernel, UniformKernelSchedule)
        element_cycles = vector_cycles(kernel, n) if on_cpu else facts.lane_cycles(n, machine)  # type: ignore[arg-type]
        return facts.size(n.space) * element_cycles

    n = max(facts.nodes, key=cycles)
    elements, full_vector_cycles = facts.size(n.space), facts.lane_cycles(n, machine)
    times = cycles(n) / elements / full_vector_cycles if full_vector_cycles else 0.0
    if n.op in ("read", "write"):
        verb = "loads" if n.op == "read" else "stores"
        way = f"lay {n.place.memory} out with the dimension last that is last in the result"
        return Cause(f"it {verb} {elements} elements of {n.place.memory} one by one, not by vectors", way, n.source)
    what = f"{n.op} of {elements} elements takes most of the time"
    if times >= 2 and n.op != TOPK:
        what += f", {times:.0f} times as long as in full vectors: a tile's last dimension is short"
        return Cause(what, "let a longer dimension be the last of the result", n.source)
    return Cause(what, "compute less for each element, or write it as a product (tkw.mma), which has atoms", n.source)


def _cause_of_blocks(kernel: BlockedKernelSchedule, facts: Facts, machine: Machine) -> Cause:
    """Return a Cause (text, advice, operation) for a CPU kernel whose accumulator tiles stay in registers over K.

    It names the largest item of the kernel's cost: MMAs, memory, staging, storing or packing. If the busiest core has
    more than twice its share of the tasks, it says that there are too few tasks instead. `facts` is the analysed
    program; the operation is the first MMA of `facts`.
    """
    cost, cores = kernel.candidate.cost, machine.limits.cores or 1
    op = facts.nodes[facts.products[0].node].source
    parts = {name: cycles for name, cycles in cost.parts().items() if name != "launch"}
    name = max(parts, key=lambda part: parts[part])
    if cost.busiest * cores > 2 * cost.tasks:
        way = "compute more rows or columns at a time"
        return Cause(f"{cost.tasks} tasks for {cores} cores: of these the busiest has {cost.busiest}", way, op)
    blocking = kernel.candidate.blocking
    tile = f"tiles of {blocking.rows} x {blocking.columns} by {blocking.atom.name}"
    what = {
        "products": f"{tile} take the time",
        "memory": f"{tile} wait for operands from caches and memory",
        "staging": f"a core copies {bytes_text(cost.staged_bytes)} of operand A before it multiplies",
        "storing": "results are stored between products",
        "packing": "operand B is packed at every launch",
    }
    way = "make M, N and K longer than the tile, or give the operands a type with an atom"
    if name == "packing":
        way = f"name {kernel.candidate.contraction.b.name} in `constant=`, if it is the same at every launch"
    return Cause(what[name], way, op)
