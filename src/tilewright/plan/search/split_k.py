"""Rule: split-K. Tasks share the iterations of a K loop, and a second kernel merges their partial results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from tilewright.machine import Machine
from tilewright.plan.facts import Facts, ValueFacts
from tilewright.plan.facts.masking import neutral_values
from tilewright.plan.search.axes import DEPTH
from tilewright.plan.search.cost import SAME_WAVES, kernel_time, launch_cycles
from tilewright.plan.search.counting import ResultRows, result_rows, state_bytes, task_end
from tilewright.plan.search.kernel import CROWDED, KernelSchedule, Parts, candidate_of
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.tiles import LOOP, RUN
from tilewright.plan.search.tiling import Tiling
from tilewright.plan.search.uniform_loops import loops_around
from tilewright.plan.search.work import Work

PARTS = (2, 3, 4, 6, 8, 12, 16, 32, 64)
"""Numbers of parts that split-K tries."""
UNROLLED = 16
"""The most parts that one further kernel can merge; more parts need two."""


def split_k_candidates(wholes: list[tuple[PlanCandidate, Work]], ranking: Ranking) -> Iterator[PlanCandidate]:
    """Yield split-K candidates, if the best kernel without split-K has fewer workgroups than the machine has cores.

    Split-K gives pieces of K (parts) to different workgroups. `wholes` has all candidates without split-K, at least
    one, each with its work. Nothing is yielded if an MMA starts from a constant other than zero, which is noted in
    `ranking` (the search's result). Kernels with halo tiles or ping-pong are not split. A number of parts is skipped if
    the grid would get too large: more than CROWDED (2) workgroups per core, even for the kernel with the fewest. A
    split is also skipped if its lower bound exceeds the cycles of the best candidate so far, unless `ranking` keeps
    all.
    """
    best, _ = min(wholes, key=lambda x: x[0].key)
    first = best.kernel
    assert isinstance(first, KernelSchedule)
    limits = first.tiling.machine.limits
    cores = limits.cores or 1
    if first.tiling.tasks >= cores:
        return
    if not _start_from_zero(first.tiling.facts):
        ranking.reject("parts", "a sum does not start from zero")
        return
    fewest_tasks, cycles = min(work.tasks for _, work in wholes), best.cycles
    for candidate, work in sorted(wholes, key=lambda x: x[0].cycles):
        kernel = candidate.kernel
        if (
            not isinstance(kernel, KernelSchedule)
            or kernel.pipeline.offsets is not None
            or kernel.pipeline.roles.pingpong
        ):
            continue
        for parts in _split_k_choices(kernel.tiling):
            crowded = parts.count * fewest_tasks > CROWDED * cores
            if not crowded and (ranking.keeps_all or _least_cycles(kernel, work, parts) < cycles):
                split = _split_candidate(kernel, work, parts)
                cycles = min(cycles, split.cycles)
                yield split


def _start_from_zero(facts: Facts) -> bool:
    """True if no MMA of an analysed program starts from a constant other than zero.

    True also if an MMA starts from a value that is no constant.
    """
    starts = [facts.nodes[facts.nodes[p.node].args[2]] for p in facts.products if len(facts.nodes[p.node].args) > 2]
    fills = [n.source for n in starts if n.op == "fill" and n.source is not None]
    return all(op.attrs["value"] == 0 for op in fills)


def _least_cycles(kernel: KernelSchedule, work: Work, parts: Parts) -> float:
    """Return a lower bound of the cycles of `kernel` with split-K into `parts`, the launches included.

    It is the sum of: the longest of MMAs, bulk copies and copies by lanes; the merge of the parts (pieces of K); two
    waits for memory; and the launches (fixed start cycles). `work` is the work of the kernel without split-K.
    """
    t, limits = kernel.tiling, kernel.tiling.machine.limits
    task_cycles = sum(p.trips * max(p.mma, p.copied / limits.l2_rate, p.gather) for p in work.phases)
    waves = ceil(t.tasks * parts.count / (limits.cores or 1))
    merge = _merge_cycles(t.machine, parts, state_bytes(t, _class_of(t, parts.dim)))
    return waves * task_cycles / parts.count + merge + 2 * limits.copy_latency + launch_cycles(t.machine)


def _merge_cycles(machine: Machine, parts: Parts, states: float) -> float:
    """Return the cycles of the kernels that add up the results of `parts` (pieces of K), of `states` bytes each.

    All results but one are written and read again, and the sum is written. The launch of the first merging kernel
    overlaps with a wait for memory, which is subtracted.
    """
    limits = machine.limits
    launches = 1 if parts.count <= UNROLLED else 2
    merge = Work(limits.cores or 1, (), moved=(2 * parts.count - 1) * states)
    moved = kernel_time(machine, merge, SAME_WAVES).cycles - launch_cycles(machine)
    return moved + launches * limits.following_cycles - limits.copy_latency


def _split_k_choices(t: Tiling) -> Iterator[Parts]:
    """Yield a Parts for each way to do split-K of a tiling: a K dimension, the number of parts, the elements per part.

    A loop is split only if its results over two parts (pieces of K) can be merged, such as sums. If the program itself
    has loops around MMAs, only dimensions of these loops are split. `t` (a Tiling) has the tile sizes.
    """
    for c, tile in t.pairs():
        merges = all(loop.merge for axis, loop in t.facts.loops.items() if axis in c.dims)
        looped = _loop_dims(t)
        is_summed = DEPTH in c.roles or not looped.isdisjoint(c.dims)
        if tile.level != LOOP or c.is_parallel or not c.streams or not merges or not is_summed:
            continue
        flat = flat_dim(t.facts, c.dims)
        if flat is not None and tile.fold == RUN and not looped:
            yield from _splits_of_flat(t, flat, c.dims[0], c.extent, tile.size)
            continue
        for dim in (d for d in c.dims if not looped or d in looped):
            yield from _splits_of_dim(t, dim, dict(tile.box)[dim], tile.size)


def _splits_of_dim(t: Tiling, dim: str, box: int, step: int) -> Iterator[Parts]:
    """Yield a Parts (count and width) for each way to split the K dimension `dim` into two or more parts.

    Different workgroups compute the parts, which are whole K steps. The last part may be shorter than the others in two
    cases: elements past the end of K are zeros, or the program's own loop over `dim` masks them. Otherwise all parts
    are equal. `box` is the number of elements of one K step along `dim`, `step` the number over all dimensions of K.
    `t` (a Tiling) has the tile sizes.
    """
    extent = t.facts.extents[dim]
    loop = t.facts.loops.get(dim)
    if loop is not None and loop.source is not None:
        choices = [x for x in _parts_of_steps(dim, extent, step) if _shortens_grid(t, x)]
        equal = [x for x in choices if x.count * x.width == extent]
        yield from equal
        if neutral_values(loop.source) is not None:
            yield from (x for x in choices if x not in equal and not _is_outdone(t, x, equal))
        return
    reads = [r for r in t.facts.reads if dim in r.place.dims]
    plain = (
        all(r.place.is_plain_coordinate(dim) and has_dimension(r, dim) for r in reads)
        and box == min(step, extent)
        and not _has_computed_operand(t)
    )
    plain = plain and dim in _loop_dims(t)
    if plain and len(t.o.classes[t.o.class_of[dim]].dims) == 1:
        yield from _parts_of_steps(dim, extent, step)
        return
    unit = step if box > 1 else 1
    whole, rest = divmod(extent, unit)
    for count in range(2, whole + 1) if not rest else ():
        if whole % count == 0:
            yield Parts(dim, count, extent // count)


def _parts_of_steps(dim: str, extent: int, step: int) -> Iterator[Parts]:
    """Yield a Parts for each number of parts in PARTS: pieces of `dim` in whole steps of `step` elements.

    The last piece may be shorter. Rounding to whole steps may give fewer pieces than asked for; the number is skipped
    if it leaves a single one. `extent` is the number of elements of `dim`.
    """
    for count in PARTS:
        width = ceil(extent / count / step) * step
        if ceil(extent / width) > 1:
            yield Parts(dim, ceil(extent / width), width)


def _shortens_grid(t: Tiling, parts: Parts) -> bool:
    """True if split-K into `parts` makes the grid finish earlier, counted in rounds of one workgroup per core.

    A round of the split kernel takes 1/count of the time. So the split kernel must have fewer rounds than count times
    the rounds of the kernel without split-K. `t` (a Tiling) has the number of workgroups.
    """
    cores = t.machine.limits.cores or 1
    return ceil(t.tasks * parts.count / cores) < parts.count * ceil(t.tasks / cores)


def _is_outdone(t: Tiling, parts: Parts, others: list[Parts]) -> bool:
    """True if one of `others` is at least as good as `parts`: it has more parts, and takes as many rounds of the grid.

    More parts are shorter, and so are their rounds. A round is one workgroup per core. `t` (a Tiling) has the number of
    workgroups without split-K.
    """
    cores = t.machine.limits.cores or 1
    waves = ceil(t.tasks * parts.count / cores)
    return any(x.count > parts.count and ceil(t.tasks * x.count / cores) == waves for x in others)


def _splits_of_flat(t: Tiling, dim: str, outermost: str, extent: int, step: int) -> Iterator[Parts]:
    """Yield a Parts for each way to split a flattened K dimension into parts of whole K steps of `step` elements.

    `dim` is the program dimension, of `extent` elements; `outermost` is its outermost digit (mixed-radix part). Parts
    are equal; but the last part may be shorter if reads past the end of `outermost` give zeros. `t` (a Tiling) has the
    tile sizes.
    """
    steps, rest = divmod(extent, step)
    equal = [Parts(dim, count, extent // count) for count in range(2, steps + 1) if not rest and steps % count == 0]
    yield from equal
    reads = [r.place for r in t.facts.reads if outermost in r.place.dims]
    if all(place.is_plain_coordinate(outermost) for place in reads) and not _has_computed_operand(t):
        choices = [x for x in _parts_of_steps(dim, extent, step) if _shortens_grid(t, x)]
        yield from (x for x in choices if x not in equal and not _is_outdone(t, x, equal))


def flat_dim(facts: Facts, dims: Sequence[str]) -> str | None:
    """Return the program dimension that has all of `dims` as digits (mixed-radix parts); None if there is none."""
    return next((d for d, digits in facts.digits.items() if len(digits) > 1 and set(dims) <= set(digits)), None)


def _class_of(t: Tiling, dim: str) -> int:
    """Return the index of the class of dimensions that has `dim`, or a digit of `dim`.

    A class is dimensions with the same role, such as M or K, in every MMA. Digits are mixed-radix parts of a dimension.
    `t` (a Tiling) has the classes.
    """
    name = dim if dim in t.o.class_of else next(d for d in t.facts.digits[dim] if d in t.o.class_of)
    return t.o.class_of[name]


def has_dimension(read: ValueFacts, dim: str) -> bool:
    """True if the tensor that `read` reads has a dimension named `dim`, so that reads past its end give zeros.

    True also if the read has no operation in the program, so that its tensor is not known.
    """
    return read.source is None or dim in map(str, read.source.operands[0].type.dims)


def _loop_dims(t: Tiling) -> set[str]:
    """Return the names of the dimensions that the program's own loops around MMAs iterate over; empty if none.

    `t` is a choice of tile sizes (a Tiling) for the program.
    """
    return {str(loop.attrs["axis"]) for loops in loops_around(t.facts.program).values() for loop in loops}


def _has_computed_operand(t: Tiling) -> bool:
    """True if an operand of some MMA is computed, not read: elements past the end of K may then differ from zero.

    `t` (a Tiling) has the program.
    """
    return any(not x.is_read for p in t.facts.products for x in (p.a, p.b))


def _split_candidate(kernel: KernelSchedule, work: Work, parts: Parts) -> PlanCandidate:
    """Return `kernel` with split-K as a PlanCandidate; its cycles include merging the parts.

    `parts` are the pieces of K that workgroups compute; further kernels merge their results. `work` is the work of
    `kernel` without split-K. Kernels are launched plainly if that is faster than programmatic dependent launch.
    """
    machine, kernel = kernel.tiling.machine, replace(kernel, parts=parts)
    split, merge = split_work(kernel, work, parts)
    early = candidate_of(kernel, split, merge)
    if "programmatic" not in machine.launches:
        return early
    kernel = replace(kernel, early=False)
    split, merge = split_work(kernel, work, parts)
    plain = candidate_of(kernel, split, merge + plain_launch_cycles(kernel, machine))
    return min(early, plain, key=lambda candidate: candidate.cycles)


def plain_launch_cycles(kernel: KernelSchedule, machine: Machine) -> float:
    """Return the extra cycles of a plain launch of the kernel; 0 if it is launched early (`kernel.early`).

    An early launch is programmatic dependent launch: a kernel starts while the one before it ends.
    """
    return 0.0 if kernel.early else machine.limits.launch_cycles - launch_cycles(machine)


def split_work(kernel: KernelSchedule, work: Work, parts: Parts) -> tuple[Work, float]:
    """Return (Work of the kernel with split-K, cycles of the kernels that merge the parts, including their launches).

    `parts` are the pieces of K that different workgroups compute. `work` is the work (cycles and bytes) of the kernel
    without split-K.
    """
    t, machine, mmas = kernel.tiling, kernel.tiling.machine, kernel.mmas
    number = _class_of(t, parts.dim)
    tile = t.tiles[number]
    step = dict(tile.box).get(parts.dim, tile.size)
    share = ceil(parts.width / step) / ceil(t.facts.extents.get(parts.dim, t.o.classes[number].extent) / step)
    phases = tuple(p._replace(trips=p.trips * share) if p.trips >= tile.count else p for p in work.phases)
    if kernel.early and "programmatic" in machine.launches and not t.o.by_threads:
        phases = tuple(p._replace(strewn=p.copied) for p in phases)
    states = state_bytes(t, number)
    last = mmas[-1]
    unsplit = result_rows(t, last)
    word = machine.register_file.word_bytes
    result = ResultRows(unsplit.rows, unsplit.columns, word, unsplit.pitch // unsplit.bytes * word)
    end = task_end(t, last, result, 0.0, work.end.blocks, False)
    written = sum(w.place.elements * w.place.bytes for w in t.facts.writes)
    tasks = t.tasks * parts.count
    split = work._replace(
        tasks=tasks,
        phases=phases,
        end=end,
        lengths=((1.0, 0.0, tasks),),
        l2_read=work.l2_read * share,
        moved=work.moved - written + parts.count * states,
        edges=work.edges,
    )
    return split, _merge_cycles(machine, parts, states)
