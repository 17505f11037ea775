"""Rule: kernels of one product on a CPU, whose accumulator tiles stay in registers over all of K.

The units are tile registers, vectors along N, and vectors along a dimension that A, B and the result share. Operands
may be widened to the accumulator's type first, or zero-padded along K, if a unit then takes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.blocking import LANES, Blocking, LaneUnit
from tilewright.plan.contracted import contraction_of
from tilewright.plan.contraction import Contraction, merge_columns, merge_rows, pad_k, size, with_known_sizes
from tilewright.plan.facts import Facts
from tilewright.plan.facts.values import UNTIMED
from tilewright.plan.fixed import FREE, StatedTiles, stated_tiles
from tilewright.plan.model import copy_kernel_cycles, cores
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Schedule
from tilewright.plan.search.block_choice import choose, variant
from tilewright.plan.search.block_work import block_cost
from tilewright.plan.search.ranked_blocks import CostedBlocking, RankedBlocks, ordering_of
from tilewright.plan.search.ranking import PlanCandidate, Ranking, Rewrite
from tilewright.plan.validate import validate

WHAT = "accumulator tiles that stay in registers over K"
"""This rule's kernels, as refusals name them."""


@dataclass(frozen=True, eq=False)
class BlockedKernelSchedule:
    """A CPU kernel of one product in accumulator tiles that stay in registers, and the ranking that it comes from.

    `opened` are the names of the digits (mixed-radix parts of M) whose extent is known only at the call; `notes` are
    lines of text for `explain`.
    """

    candidate: CostedBlocking
    ranked: RankedBlocks
    opened: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The name of the CPU unit that this kernel multiplies with: "tile registers", "vectors" or "lanes".

        "lanes" are vectors along a batch dimension, as in a depthwise convolution. `explain` shows one candidate per
        name, as the lowering (code generator) tends to refuse all of them or none.
        """
        blocking = self.candidate.blocking
        return "tile registers" if blocking.in_tiles else LANES if blocking.by_lanes else "vectors"

    @property
    def plan(self) -> Schedule:
        """The plan (a Schedule) of this kernel; it marks the extents of M that are known only at the call."""
        return self.candidate.plan.with_open(self.opened)

    def ranked_from_here(self) -> RankedBlocks:
        """Return the product's RankedBlocks with this kernel's blocking (tile sizes) moved to the front."""
        others = (x for x in self.ranked.candidates if x is not self.candidate)
        return replace(self.ranked, candidates=(self.candidate, *others))


@dataclass(frozen=True)
class Variant:
    """A product's index space `space` with operands as a unit takes them; preparing them takes `copies` cycles.

    `note` says how the operands are prepared; it is empty if they are taken as they are.
    """

    space: Contraction
    copies: float = 0.0
    note: str = ""


def product_space(facts: Facts, machine: Machine) -> Contraction | str:
    """Return the index space (a Contraction: M, N, K, operands) of a program's only product; or text: why it has none.

    `machine` is the machine for which the program is planned. All digits (mixed-radix parts) of N are merged into one,
    if they are contiguous in every tensor. Text is returned in three cases: the program is not one product with
    elementwise work after it; an access of B or of the result may be out of bounds; or out-of-bounds elements of A are
    read as another value than zero.
    """
    space = contraction_of(facts, machine)
    if isinstance(space, str):
        return space
    if (space.a.checked_dims and space.a.otherwise != 0) or space.b.checked_dims or space.out.checked_dims:
        return "an access of an operand or the result may be out of bounds, where nothing, or no zero, is read"
    return merge_columns(space)


def kernels_of_blocks(facts: Facts, machine: Machine, ranking: Ranking) -> Iterator[PlanCandidate]:
    """Yield CPU candidates for a program of one product: one per blocking (tile sizes) that fits a unit of the machine.

    A unit is the machine's tile registers or vectors. Yields nothing on a machine with lanes (a GPU), if the program
    has no product, if it logs, or if its elements must be computed in order. `ranking` (the search's result) gets the
    reason if no blocking fits, or if this rule does not cover the program. The number of candidates is added to
    `ranking.timed`, unless a size is open (known only at the call).
    """
    if machine.lanes is not None or not facts.products or facts.logs or facts.in_order:
        return
    space = product_space(facts, machine)
    if isinstance(space, str):
        ranking.reject(WHAT, space)
        return
    if facts.opened:
        yield from _open_kernels(facts, space, machine, ranking)
        return
    fixed, count = stated_tiles(facts.program, space, facts.sizes), 0
    for variant_of, ranked in _ranked_variants(space, machine, fixed):
        notes = (variant_of.note,) if variant_of.note else ()
        rewrites, ordering = tuple(map(Rewrite, notes)), ordering_of(ranked.candidates)
        for candidate in ranked.candidates:
            kernel = BlockedKernelSchedule(candidate, ranked, notes=notes)
            yield _plan_candidate(facts, kernel, variant_of.copies, (ordering(candidate)[0], count), rewrites)
            count += 1
        if not count:
            for refusal in ranked.unfit:
                ranking.reject(refusal.what, refusal.why)
    ranking.timed += count


def _plan_candidate(
    facts: Facts,
    kernel: BlockedKernelSchedule,
    copies: float,
    order: tuple[float, int],
    rewrites: tuple[Rewrite, ...] = (),
) -> PlanCandidate:
    """Return a kernel as a PlanCandidate, whose cycles are those of the kernel, of its epilogue, and `copies`.

    `copies` are the cycles to prepare operands before the kernel; `rewrites` describe this preparation. `order` is
    (cycles, rank), from which the sort key follows: (these cycles + those of the epilogue + `copies`, rank). `facts` is
    the analysed program, which has the epilogue's elementwise work.
    """
    machine = kernel.ranked.machine
    epilogue = sum(
        facts.size(n.space) * facts.lane_cycles(n, machine)
        for n in facts.nodes
        if n.op not in UNTIMED and n.op != "mma"
    )
    added, (ordering_cycles, rank) = copies + epilogue / cores(machine), order
    key = ordering_cycles + added, rank
    return PlanCandidate(kernel, kernel.candidate.cost.cycles + added, key, rewrites)


def _ranked_variants(
    space: Contraction, machine: Machine, fixed: StatedTiles
) -> Iterator[tuple[Variant, RankedBlocks]]:
    """Yield (Variant, RankedBlocks) pairs: a way to prepare a product's operands, and the ranked blockings for it.

    `space` is the product's index space; blockings follow the author's constraints `fixed`. The pairs come in this
    order:

    - the operands as they are;
    - operands widened to the accumulator's type, if A is narrower, and the best blocking of the operands as they are is
      by lanes or does not exist; atoms compute this product;
    - for each number of neighbours along K that vector atoms add: operands zero-padded to a multiple of that number,
      if K is none already; only these atoms compute the padded product.

    The atom of a plan therefore tells its variant: `space_for` finds it again.
    """
    ranked = choose(space, machine, fixed)
    yield Variant(space), ranked
    if space.a.dtype.bits < space.sum_dtype.bits and (ranked.best is None or ranked.best.blocking.by_lanes):
        wide = _widened_variant(space, machine)
        yield wide, choose(wide.space, machine, fixed, lambda unit: not isinstance(unit, LaneUnit))
    for group in sorted({atom.shape[2] for atom in machine.multiply.values() if _is_vector_atom_for(atom, space)}):
        if (padded := _padded_variant(space, group, machine)) is not None:
            yield padded, choose(padded.space, machine, fixed, partial(_adds_neighbours, space, group))


def _adds_neighbours(space: Contraction, group: int, unit: MultiplyAtom | LaneUnit) -> bool:
    """True if `unit` is a vector atom for the operands of `space` that adds exactly `group` neighbours along K."""
    return isinstance(unit, MultiplyAtom) and _is_vector_atom_for(unit, space) and unit.shape[2] == group


def _widened_variant(space: Contraction, machine: Machine) -> Variant:
    """Return a product with both operands widened to the accumulator's type as a Variant.

    `space` is the product's index space. Only the copy of A is counted in the cycles.
    """
    a, b = (replace(operand, dtype=space.sum_dtype) for operand in (space.a, space.b))
    note = f"operands are widened from {space.a.dtype} to {space.sum_dtype} first"
    return Variant(replace(space, a=a, b=b), copy_kernel_cycles(space.a, a, machine), note)


def _is_vector_atom_for(atom: MultiplyAtom, space: Contraction) -> bool:
    """True if `atom` multiplies vectors and takes exactly the operand types of a product with the index space `space`.

    An atom of vectors has one row, not a tile of rows. It may multiply and add several neighbours along K at once.
    """
    return (atom.a.dtype, atom.b.dtype) == (space.a.dtype, space.b.dtype) and atom.shape[0] == 1


def _padded_variant(space: Contraction, group: int, machine: Machine) -> Variant | None:
    """Return a product with K zero-padded to a multiple of `group` as a Variant; None if K needs no zeros, or cannot
    have them.

    `space` is the product's index space. Only the copy of A is counted in the cycles.
    """
    padded, last = pad_k(space, group), space.depth[-1]
    if padded is space:
        return None
    note = (
        f"{space.a.name} and {space.b.name} are copied with zeros after {last.name}: {size(padded.depth[-1])} instead "
        f"of {size(last)}"
    )
    return Variant(padded, copy_kernel_cycles(space.a, padded.a, machine), note)


def _open_kernels(facts: Facts, space: Contraction, machine: Machine, ranking: Ranking) -> Iterator[PlanCandidate]:
    """Yield CPU candidates for a product with extents of M known only at the call: one per blocking in tile registers.

    `space` is the product's index space. Blockings are ranked at typical sizes; the author's constraints do not count.
    Nothing is yielded, and `ranking` (the search's result) gets the reason, in these cases:

    - the machine has no tile registers;
    - no extent of M is known only at the call, or one of the two innermost extents of M is;
    - the fastest blocking at typical sizes does not use tile registers.
    """
    if not machine.limits.tile_registers or not space.open or {*space.open} & {*space.rows[-2:]}:
        ranking.reject(WHAT, "rows that are open are planned as such in tile registers only")
        return
    ranked = choose(with_known_sizes(space, facts.sizes), machine)
    if ranked.best is None or not ranked.best.blocking.in_tiles:
        ranking.reject(WHAT, "no plan in tile registers is the best")
        return
    names = ", ".join(sorted(s.name for e in facts.opened.values() for s in e.symbols))
    note = f"{names} open: every plan of one image in tile registers fits"
    fit = tuple(x for x in ranked.candidates if x.blocking.in_tiles)
    ranked = replace(ranked, candidates=fit)
    opened = frozenset(digit.name for digit in space.open)
    ordering = ordering_of(fit)
    for n, candidate in enumerate(fit):
        kernel = BlockedKernelSchedule(candidate, ranked, opened, (note,))
        yield _plan_candidate(facts, kernel, 0.0, (ordering(candidate)[0], n))


def space_for(plan: Schedule, space: Contraction, machine: Machine) -> Variant:
    """Return the Variant of a product (its index space, with operands prepared) that the atom of a given plan takes.

    Operands are widened to the accumulator's type if the plan's atom takes that type only. They are zero-padded along K
    if the atom multiplies several neighbours along K. Otherwise they stay as they are. Dimensions of M are merged where
    memory allows; few channels are merged with a filter dimension. If the plan names no atom, only M is merged.
    """
    atom = machine.multiply.get(plan.atom or "")
    if atom is None:
        return Variant(merge_rows(space))
    chosen = Variant(space)
    if (atom.a.dtype, atom.b.dtype) != (space.a.dtype, space.b.dtype) and atom.a.dtype is space.sum_dtype:
        chosen = _widened_variant(space, machine)
    elif _is_vector_atom_for(atom, space):
        chosen = _padded_variant(space, atom.shape[2], machine) or chosen
    return replace(chosen, space=variant(merge_rows(chosen.space), atom))


def blocking_of_plan(facts: Facts, space: Contraction, machine: Machine, plan: Schedule) -> tuple[Variant, Blocking]:
    """Return (Variant, Blocking) of a product and a given plan; raise ArgumentError if the plan is illegal.

    The Variant is the index space `space` with operands prepared as the plan's atom takes them. The Blocking has the
    plan's tile sizes and loop order. If extents of M are known only at the call, the Blocking is for typical sizes, and
    the plan must use tile registers. `facts` is the analysed program.
    """
    chosen = space_for(plan, space, machine)
    if not space.open:
        return chosen, validate(plan.with_open(()), chosen.space, machine)
    names = {digit.name for digit in space.open}
    typical = with_known_sizes(chosen.space, facts.sizes)
    blocking = validate(plan.with_open(()), typical, machine)
    if not blocking.in_tiles:
        raise refused(f"atom {plan.atom}", f"{', '.join(sorted(names))} are open: tile registers take such rows only")
    return chosen, blocking


def rate_blocks(facts: Facts, machine: Machine, plan: Schedule) -> PlanCandidate | str:
    """Return a given CPU plan of one product as a PlanCandidate with its predicted cycles; or text: why it has none.

    `facts` is the analysed program. The text is returned if the program is not one product that this rule covers, and
    says why. Raise ArgumentError if the plan is illegal. Open sizes (known only at the call) are replaced by typical
    ones for the prediction.
    """
    space = product_space(facts, machine)
    if isinstance(space, str):
        return space
    chosen, blocking = blocking_of_plan(facts, space, machine, plan)
    typical = with_known_sizes(chosen.space, facts.sizes) if space.open else chosen.space
    fixed = FREE if space.open else stated_tiles(facts.program, space, facts.sizes)
    ranked = choose(typical, machine, fixed)
    notes = (chosen.note,) if chosen.note else ()
    candidate = next((x for x in ranked.candidates if x.blocking == blocking), None)
    if candidate is None:
        candidate = CostedBlocking(blocking, typical, block_cost(typical, blocking, machine))
    kernel = BlockedKernelSchedule(candidate, ranked, notes=notes)
    return _plan_candidate(facts, kernel, chosen.copies, (candidate.cost.cycles, 0))
