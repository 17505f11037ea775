"""The search: rules propose candidates for an analysed program; one cost model ranks them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf, prod

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir import dtypes
from tilewright.ir.core import Op, Program
from tilewright.machine import Machine
from tilewright.plan.accumulator_type import accumulator_type
from tilewright.plan.facts import Facts, facts_of
from tilewright.plan.facts.values import UNTIMED, ValueFacts
from tilewright.plan.microkernel import atoms_for, precision_of, shared_atoms
from tilewright.plan.model import element_bytes
from tilewright.plan.search.blocked import BlockedKernelSchedule, kernels_of_blocks
from tilewright.plan.search.candidates import kernels_with_atoms
from tilewright.plan.search.core_reads import cycles_beyond_l1
from tilewright.plan.search.core_tasks import keeps_cores_busy, kernels_of_cores
from tilewright.plan.search.cost import roofline
from tilewright.plan.search.diagonal import block_diagonal
from tilewright.plan.search.fragments import kernels_of_fragments
from tilewright.plan.search.kernel import KernelSchedule
from tilewright.plan.search.lanes import kernels_of_lanes
from tilewright.plan.search.loop_splits import loops_in_parts
from tilewright.plan.search.lowered import LACKING
from tilewright.plan.search.partial_reductions import kernels_in_parts
from tilewright.plan.search.partition import FIRST, TIMES, TIMES_WHOLE, GraphCut, two_kernel_splits
from tilewright.plan.search.ranking import PlanCandidate, Ranking, Rewrite
from tilewright.plan.search.repack import repackings
from tilewright.plan.search.row_copies import Repacked, with_copies
from tilewright.plan.search.simt import simt_candidates
from tilewright.plan.search.tile_tasks import kernels_of_tile_tasks

HalfRankings = dict[tuple[str, tuple[ValueFacts, ...]], Ranking]
"""The rankings of parts of a program: first or second kernel, and its values."""

KEPT, KEPT_OF_FAMILY = 8, 16
"""The number of candidates that a ranking keeps, and the number of each family that it keeps besides.

A family has the same kinds of kernels and rewrites; the lowering tends to refuse all of a family."""

CLEARLY_FASTER = 0.15
"""On CPUs, two kernels are used only if their predicted time is shorter than that of one kernel by this share, times
the share of the values between them that a core reads from others: it is uncertain which of these stay in caches."""

FASTER_BY_K_TILES = 0.75
"""On CPUs, a kernel that stores accumulators between K tiles is used only if its predicted time is at most this share
of the time of the best kernel that keeps them in registers."""


def search(
    program: Program,
    sizes: Mapping[Symbol, int],
    machine: Machine,
    free: Collection[Op] = (),
    *,
    only_lowered: bool = True,
    opened: Mapping[Expr, Expr] | None = None,
) -> Ranking:
    """Find the fastest ways to run a program; return a Ranking: candidates, fastest first, and rejected choices.

    `program` is a tile program. `sizes` maps symbols to numbers; for sizes that are `opened` (known only at the call)
    these are typical numbers. `free` are the loops whose tile size does not change the result. With `only_lowered`,
    candidates that the lowering (code generator) cannot do are rejected. All arguments count as changing from call to
    call, none as constant.
    """
    return search_facts(facts_of(program, sizes, free, opened), machine, only_lowered=only_lowered)


def search_facts(
    facts: Facts,
    machine: Machine,
    *,
    only_lowered: bool = True,
    keeps_all: bool = False,
    blocks: bool = True,
    halves: HalfRankings | None = None,
) -> Ranking:
    """Find the fastest ways to run an analysed program; return a Ranking: candidates, fastest first, and rejections.

    `facts` is the program. `only_lowered` rejects candidates that the lowering (code generator) cannot do. `keeps_all`
    keeps candidates that lower bounds show to be slower. Without `blocks`, the rules for CPU kernels in blocks
    (`kernels_of_blocks`, `kernels_of_tile_tasks`) are left out; the rule for any program may still keep accumulators in
    registers. `halves` has the rankings of parts of a larger program that are searched already; those of further parts
    are added to it.

    A program that logs, or computes elements in order, gets only kernels without a pipeline. A program with sizes known
    only at the call gets no SIMT products, repacked operands, split reductions or second kernel.
    """
    halves = {} if halves is None else halves
    ranking = Ranking(roofline=lower_bound(facts, machine), keeps_all=keeps_all)
    blocked = list(kernels_of_blocks(facts, machine, ranking)) if blocks else []
    limit = min((FASTER_BY_K_TILES * c.cycles for c in blocked), default=inf)
    in_cores = [c for c in kernels_of_cores(facts, machine, ranking, in_registers=not blocked) if c.cycles <= limit]
    in_cores += kernels_of_tile_tasks(facts, machine, ranking) if blocks else ()
    _add_candidates(ranking, [*blocked, *in_cores])
    whole = [*(in_cores if not facts.products else ()), *kernels_of_lanes(facts, machine, ranking)]
    can_split = not (facts.opened or facts.logs or facts.in_order)
    splits = (kernels_in_parts, loops_in_parts) if can_split else ()
    in_parts = [split for kernel in whole for rule in splits for split in rule(kernel, ranking)]
    _add_candidates(ranking, [*(whole if machine.lanes is not None else ()), *in_parts])
    _add_candidates(ranking, list(kernels_of_fragments(facts, machine, ranking)))
    if facts.logs or facts.in_order:
        why = "what is logged is shown in order" if facts.logs else "elements are computed in order"
        ranking.reject("a pipeline, terms, repacked operands, parts, two kernels", why)
        return ranking
    atoms = kernels_with_atoms(facts, machine, ranking, inf, only_lowered)
    _add_candidates(ranking, [block_diagonal(c, machine) for c in atoms])
    if facts.opened:
        ranking.reject("terms, repacked operands, parts, two kernels", "these are for sizes that are numbers")
        return ranking
    _add_candidates(ranking, list(simt_candidates(facts, machine, ranking)))
    for repacked in repackings(facts, machine, ranking):
        _add_repacked(repacked, machine, ranking, only_lowered)
    if ranking.best is not None and isinstance(ranking.best.kernel, BlockedKernelSchedule):
        ranking.reject("two kernels", "one kernel computes the product and what follows it, tile by tile")
    elif facts.part != FIRST:
        _add_two_kernels(facts, machine, ranking, only_lowered, halves)
        _add_without_loop(facts, machine, ranking, only_lowered, halves)
    return ranking


def _add_without_loop(
    facts: Facts, machine: Machine, ranking: Ranking, only_lowered: bool, halves: HalfRankings
) -> None:
    """Add candidates to `ranking` that run the program as two kernels, with its loop turned into one iteration.

    Values between the loop's MMAs may then go through memory, such as the scores of attention. Nothing is added on
    machines without lanes (CPUs), or unless exactly one loop has partial results that can be merged. If the loop cannot
    become one iteration, `ranking` gets the reason. `only_lowered` drops candidates that the lowering (code generator)
    cannot do. `halves` has the rankings of parts of the program that are searched already; further ones are added to
    it.
    """
    merging = [axis for axis, loop in facts.loops.items() if loop.source is not None and loop.merge is not None]
    if machine.lanes is None or facts.without_loop is None or len(merging) != 1:
        return
    (axis,) = merging
    what, whole = f"all of {axis} in one iteration", facts.without_loop()
    if isinstance(whole, str):
        ranking.reject(what, whole)
        return
    _add_two_kernels(whole, machine, ranking, only_lowered, halves, (Rewrite(what, whole=axis),))


def _add_repacked(repacked: Repacked, machine: Machine, ranking: Ranking, only_lowered: bool) -> None:
    """Add to `ranking` the candidates that run a program on repacked operands (copied to another layout first).

    `repacked` has the rewritten program and the cycles of the copies. If a lower bound shows that all of these
    candidates are slower than the best, note a rejection instead. If `repacked.only_blocks` is set, only kernels whose
    tiles have several GEMMs of a batch are added. `only_lowered` drops candidates that the lowering (code generator)
    cannot do.
    """
    best = ranking.limit
    least = lower_bound(repacked.facts, machine) + repacked.cycles
    if least >= best:
        ranking.reject(repacked.rewrite.what, f"at least {least / best:.2f} of the time")
        return
    kernels = kernels_with_atoms(repacked.facts, machine, ranking, best - repacked.cycles, only_lowered)
    candidates = []
    for c in kernels:
        if repacked.only_blocks and (not isinstance(c.kernel, KernelSchedule) or c.kernel.tiling.batch == 1):
            continue
        candidates.append(block_diagonal(with_copies(c, repacked), machine))
    _add_candidates(ranking, candidates)


def _add_two_kernels(
    facts: Facts,
    machine: Machine,
    ranking: Ranking,
    only_lowered: bool,
    halves: HalfRankings,
    before: tuple[Rewrite, ...] = (),
) -> None:
    """For each possible split of the program into two kernels, add the fastest candidate to `ranking`.

    `before` are rewrites that led to this program (`facts`); `halves` has the rankings of parts that are searched
    already, and gets those of further parts. A split is noted as rejected in four cases: a lower bound shows that it is
    slower than the best candidate; on a CPU, it is not clearly faster; on a CPU, its second kernel has no MMA, and the
    best candidate keeps all cores busy; or, with `only_lowered`, the lowering (code generator) cannot do it. A split is
    skipped if the search has no kernel for one of the halves.
    """
    share = 1 - CLEARLY_FASTER * _share_from_others(machine) if machine.lanes is None else 1.0
    for cut in two_kernel_splits(facts, ranking, TIMES_WHOLE if before else TIMES):
        best, what = share * ranking.limit, ", ".join((*(rewrite.what for rewrite in before), cut.what))
        if not cut.second.products and keeps_cores_busy(ranking.best, machine):
            ranking.reject(what, "a kernel without products follows, for which caches hold the values")
            continue
        least = lower_bound(cut.first, machine) + lower_bound(cut.second, machine)
        if least >= best:
            ranking.reject(what, f"at least {least / best:.2f} of the time")
            continue
        if only_lowered and not (cut.after or cut.before):
            ranking.reject(what, f"{LACKING}: no product makes that value, or nothing but a map follows from it")
            continue
        one = _searched_half(cut.first, machine, ranking, only_lowered, halves)
        two = _searched_half(cut.second, machine, ranking, only_lowered, halves) if one.best is not None else Ranking()
        if one.best is None or two.best is None:
            continue
        both = two_kernels(cut, one.best, two.best, machine)
        both = replace(both, rewrites=(*before, *both.rewrites))
        if machine.lanes is None and both.cycles > best:
            ranking.reject(what, f"{both.cycles / ranking.limit:.2f} of the time, and values go through memory")
            continue
        _add_candidates(ranking, [both])


def _searched_half(
    half: Facts, machine: Machine, ranking: Ranking, only_lowered: bool, halves: HalfRankings
) -> Ranking:
    """Return the Ranking of `half`, the analysed program of one of two kernels.

    A program with many cuts leads to the same half in many ways, so that each half is searched once. `halves` maps
    (first or second, values of the half) to Rankings. A new half is searched and added to `halves`; its counts and
    rejections are added to `ranking`. `only_lowered` is that of `search_facts`.
    """
    key = half.part, half.nodes
    if key not in halves:
        halves[key] = search_facts(half, machine, only_lowered=only_lowered, halves=halves)
        ranking.add_counts(halves[key])
    return halves[key]


def two_kernels(cut: GraphCut, one: PlanCandidate, two: PlanCandidate, machine: Machine) -> PlanCandidate:
    """Return one candidate that runs the kernel of `one` and then the kernel of `two`; its cycles are the sum of both.

    `cut` (a GraphCut) has the two programs into which the program was split. The split comes first among the
    candidate's rewrites, before those of `one`; `two` becomes its `then`.

    On a CPU, the cycles to write the values between the kernels and to read them again are added. Each of n cores has
    its own L2 cache, and reads one of n values that it wrote itself: from this cache, if it holds them. The other
    values go through memory.
    """
    cycles = one.cycles + two.cycles
    if machine.lanes is None:
        limits, others = machine.limits, _share_from_others(machine)
        of_core = sum(prod(n.place.shape) * n.place.bytes for n in cut.first.writes) / (limits.cores or 1)
        cycles += (1 - others) * cycles_beyond_l1(limits, 2 * of_core, of_core) + others * 2 * of_core / limits.far_rate
    rewrites = (Rewrite(cut.what, after=cut.after, before=cut.before), *one.rewrites)
    return replace(one, cycles=cycles, key=(round(cycles), *one.key[1:]), rewrites=rewrites, then=two)


def _share_from_others(machine: Machine) -> float:
    """Return the share of the values between two kernels on a CPU that a core reads, and other cores wrote."""
    return 1 - 1 / (machine.limits.cores or 1)


def _add_candidates(ranking: Ranking, candidates: list[PlanCandidate]) -> None:
    """Add candidates to a ranking, sort it by key (smaller is better), and drop slow candidates.

    The ranking keeps the KEPT (8) best of all, and the KEPT_OF_FAMILY (16) best of each family (same designs of
    kernels, same rewrites of the program). If `ranking.keeps_all` is set, no candidate is dropped. `ranking.states` is
    incremented.
    """
    ranking.states += 1
    every = sorted([*ranking.candidates, *candidates], key=lambda c: c.key)
    counts = Counter[tuple[str, ...]]()
    kept: list[PlanCandidate] = []
    for candidate in every:
        counts[candidate.family] += 1
        if ranking.keeps_all or len(kept) < KEPT or counts[candidate.family] <= KEPT_OF_FAMILY:
            kept.append(candidate)
    ranking.candidates = kept


def lower_bound(facts: Facts, machine: Machine) -> float:
    """Return a lower bound of the cycles of any schedule: the longest of MMA, ALU and memory cycles, plus a launch.

    MMA and ALU (lane) cycles are with all cores at work, and without the work that masks skip. MMAs count at the rate
    of the fastest atom that takes their types, or of multiply-adds by lanes if that is higher. A launch is the fixed
    cycles to start a kernel. `facts` is the analysed program.
    """
    mma = lanes = 0.0
    for p in facts.products:
        n = facts.nodes[p.node]
        assert n.source is not None
        types = (facts.nodes[p.a.value].dtype, facts.nodes[p.b.value].dtype, accumulator_type(n.source, machine))
        every = [
            *(atoms_for(machine, *types, precision_of(n.source)) if machine.lanes is None else ()),
            *(
                x
                for along in ((True, True), (True, False), (False, True), (False, False))
                for x in shared_atoms(machine, types, along, precision_of(n.source))
            ),
        ]
        of_lanes = max(1.0, n.bytes / element_bytes(dtypes.f32)) / machine.limits.lane_rate
        rate = min((of_lanes, *(x.cycles / prod(x.shape) for x in every)))
        share = 1.0 if facts.masked_product is None else facts.masked_product.least_share
        mma += facts.size(n.space) * facts.unmasked_share(n.space) * share * rate
    for n in facts.nodes:
        if n.op not in UNTIMED:
            lanes += facts.size(n.space) * facts.unmasked_share(n.space) * facts.lane_cycles(n, machine)
    return roofline(machine, mma, lanes, facts.moved_bytes)
