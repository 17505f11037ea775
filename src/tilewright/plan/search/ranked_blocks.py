"""The ranked blockings of a CPU's contraction, the best first, and why others were not chosen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.machine import Machine
from tilewright.plan.block_size import why_too_large
from tilewright.plan.blocking import Blocking, plan_of, round_up
from tilewright.plan.choice import Candidate, Comparison, Refusal
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.model import Cost, Roofline, bytes_text, cores, microseconds, us
from tilewright.plan.schedule import Schedule, Split
from tilewright.plan.sliding import halo_of
from tilewright.plan.validate import why_illegal

CLOSE = 1.002
"""Candidates with at most this many times the fewest cycles are ordered by all their activities."""
CLEARLY = 1.4
"""A plan with more than this many times the best plan's predicted cycles counts as slower; below, it may be as good."""
SHOWN = 2
"""The most slower plans that `refused` lists for each property, such as the atom."""
MORE = 12
"""The most atoms by which an accumulator tile is made larger, to show why a larger one is illegal."""


@dataclass(frozen=True, eq=False)
class CostedBlocking:
    """A blocking (tile sizes, loop order) of a product, and its predicted cost.

    `contraction` is the product's index space (M, N, K, operands) as the blocking takes it, perhaps with merged
    dimensions.
    """

    blocking: Blocking
    contraction: Contraction
    cost: Cost

    @cached_property
    def plan(self) -> Schedule:
        """The Schedule (plan) that states this blocking (tile sizes and loop order)."""
        return plan_of(self.contraction, self.blocking)

    def candidate(self) -> Candidate:
        """Return this blocking as a Candidate: its predicted cycles, and its plan, which is computed at first use."""
        return Candidate(self.cost.cycles, lambda: self.plan)


Ordering = tuple[float, float, float]
"""(cycles, cycles if nothing overlapped, predicted cycles) of a candidate: the smaller, the better."""


def ordering_of(candidates: Sequence[CostedBlocking]) -> Callable[[CostedBlocking], Ordering]:
    """Return a function that gives the Ordering (sort key) of each of the candidates.

    The key is (cycles, sum of the cycles of all activities, cycles). In the first place, candidates close to the
    fastest one (see CLOSE) all count with the fastest one's cycles. Of these, the one with the smallest sum comes
    first, although its activities overlap: real caches and memory may be slower than predicted.
    """
    fewest = min((x.cost.cycles for x in candidates), default=0.0)

    def ordering(x: CostedBlocking) -> Ordering:
        """Return the Ordering of the candidate `x`."""
        cycles, cost = x.cost.cycles, x.cost
        activities = cost.products + cost.reading + cost.storing + cost.staging
        return fewest if cycles <= CLOSE * fewest else cycles, activities, cycles

    return ordering


@dataclass(frozen=True)
class RankedBlocks:
    """The legal blockings of a contraction on a CPU, the best first by `ordering_of`.

    `unfit` has the units that cannot compute it, with reasons. `bound` is the roofline, None if no unit fits.
    """

    machine: Machine
    candidates: tuple[CostedBlocking, ...]
    unfit: tuple[Refusal, ...]
    bound: Roofline | None

    @property
    def best(self) -> CostedBlocking | None:
        """The first CostedBlocking by `ordering_of`; None if no blocking is legal."""
        return self.candidates[0] if self.candidates else None


def compare_blocks(ranked: RankedBlocks) -> Comparison:
    """Return a Comparison of the first of the ranked blockings (tile sizes) with the roofline and with other blockings.

    `ranked` must have at least one blocking and a roofline. The Comparison names up to three blockings that may be as
    fast. It has refusals, with reasons, for illegal variants of the first blocking, for clearly slower blockings, and
    for units that do not fit.
    """
    best, bound, machine = ranked.best, ranked.bound, ranked.machine
    assert best is not None
    assert bound is not None
    cost = best.cost
    parts = ", ".join(f"{name} {us(n, machine)}" for name, n in cost.parts().items() if n >= 0.005 * cost.cycles)
    bound_by = "products" if bound.compute >= bound.memory else "memory"
    close = [x for x in ranked.candidates[1:] if x.cost.cycles <= CLEARLY * cost.cycles][:3]
    return Comparison(
        f": {len(ranked.candidates)} plans fit",
        (
            f"predicted {us(cost.cycles, machine)} us ({parts})",
            f"roofline {us(bound.cycles, machine)} us, by {bound_by} (products {us(bound.compute, machine)} with "
            f"{bound.atom}, memory {us(bound.memory, machine)}): {100 * bound.cycles / cost.cycles:.0f} % of it",
        ),
        tuple(f"may be as good  {us(x.cost.cycles, machine)} us: {x.plan.difference(best.plan)}" for x in close),
        (*_illegal_variants(best, machine), *_slower_plans(ranked.candidates, machine), *ranked.unfit),
    )


# -- what was refused -------------------------------------------------------------------------------------


def _illegal_variants(best: CostedBlocking, machine: Machine) -> Iterator[Refusal]:
    """Yield a Refusal (alternative, and why not) for each kind of illegal variant of the best plan.

    The reasons show what limits the plan. The variants have a larger accumulator tile; for tile registers, also another
    way to stage A, or all of K unrolled. Of variants with the same reason but other numbers, only the first is yielded.
    """
    blocking, contraction = best.blocking, best.contraction
    neighbours = [x for more in range(1, MORE) for x in _larger_tiles(blocking, contraction, more)]
    if blocking.in_tiles:
        neighbours += [replace(blocking, stage=s) for s in ("", "strip") if s != blocking.stage]
        neighbours.append(replace(blocking, steps=_all_unrolled(blocking.steps)))
    seen_kinds: set[str] = set()
    for other in neighbours:
        why = why_illegal(contraction, other, machine) or why_too_large(contraction, other, machine)
        kind = re.sub(r"\d+", "", why or "")  # the nearest of each kind is enough
        if why is not None and kind not in seen_kinds:
            seen_kinds.add(kind)
            if other.stage == "strip" and halo_of(contraction) is None:
                yield Refusal(f"{contraction.a.name} strip at task", why)  # how long a line would be has no meaning
                continue
            plan = plan_of(contraction, other)
            yield Refusal(plan.difference(best.plan), why, plan)


def _larger_tiles(blocking: Blocking, contraction: Contraction, extra: int) -> Iterator[Blocking]:
    """Yield two copies of `blocking` with a larger accumulator tile: by `extra` atoms along M, then along N.

    A blocking is a choice of tile sizes and loop order for `contraction`. The extent of a task (one core's tile) is
    rounded up to whole accumulator tiles. Along M it stays as it is if a task is made of whole image lines.
    """
    m, n, _ = blocking.atom.shape
    rows, columns = blocking.rows + extra * m, blocking.columns + extra * n
    in_lines = blocking.strip >= size(contraction.rows[-1]) if blocking.by_lanes else len(contraction.rows) > 1
    yield replace(blocking, rows=rows, strip=blocking.strip if in_lines else round_up(blocking.strip, rows))
    yield replace(blocking, columns=columns, task_columns=round_up(blocking.task_columns, columns))


def _all_unrolled(steps: tuple[Split, ...]) -> tuple[Split, ...]:
    """Return `steps`, the splits of K, with every loop unrolled.

    If the first split and a later one are of the same digit (mixed-radix part of K), the first is deleted: the later
    one alone then covers the digit.
    """
    inner = [s for n, s in enumerate(steps) if not (n == 0 and len([x for x in steps if x.digit == s.digit]) == 2)]
    return tuple(replace(s, level="unit") for s in inner)


def _slower_plans(ranked: Sequence[CostedBlocking], machine: Machine) -> Iterator[Refusal]:
    """Yield a Refusal (alternative, and why not) for plans that are predicted clearly slower than the best plan.

    `ranked` are the blockings, the best first. Clearly slower is above CLEARLY (1.4) times its cycles. A plan is
    yielded only if it has a property that no faster plan has: its atom, its accumulator tile, its number of tasks, or
    its staging of A. At most SHOWN (2) plans are yielded for each of these four.
    """
    best, *others = ranked
    seen = set(_properties(best))
    shown = dict.fromkeys(("atom", "stage", "block", "tasks"), 0)
    for other in others:
        new_kinds = [kind for kind in _properties(other) if kind not in seen]
        seen.update(new_kinds)
        shown_kinds = [kind for kind, _ in new_kinds if shown[kind] < SHOWN]
        if shown_kinds and other.cost.cycles > CLEARLY * best.cost.cycles:
            for kind in shown_kinds:
                shown[kind] += 1
            yield Refusal(other.plan.difference(best.plan), _why_slower(other, best, machine), other.plan)


def _properties(candidate: CostedBlocking) -> list[tuple[str, object]]:
    """Return [(name, value)] of the properties by which plans are told apart.

    They are the atom, the accumulator tile, the number of tasks (a task is one core's tile) and, with tile registers,
    the staging of A.
    """
    blocking = candidate.blocking
    block = blocking.rows, blocking.columns
    kinds: list[tuple[str, object]] = [("atom", blocking.atom.name), ("block", block), ("tasks", candidate.cost.tasks)]
    return [*kinds, ("stage", blocking.stage)] if blocking.in_tiles else kinds


def _why_slower(other: CostedBlocking, best: CostedBlocking, machine: Machine) -> str:
    """Return text: the microseconds of the plan `other`, and why it takes longer than the plan `best`.

    The reason is the entry of Cost that grew by the most cycles: products (multiply-adds), memory or staging of A. Any
    other entry is said to be the storing of results.
    """
    best_parts, other_parts = best.cost.parts(), other.cost.parts()
    cause = max(other_parts, key=lambda name: other_parts[name] - best_parts[name])
    times = (
        f"{microseconds(other.cost.cycles, machine):.0f} us, {other.cost.cycles / best.cost.cycles:.1f} times as long"
    )
    workers = cores(machine)
    if cause == "products":
        if other.blocking.atom.name != best.blocking.atom.name:
            return f"{times}: its products take {other_parts[cause] / max(1.0, best_parts[cause]):.1f} times as long"
        shares = other.cost.tasks * best.cost.busiest, best.cost.tasks * other.cost.busiest
        if other.cost.busiest * workers > 1.1 * other.cost.tasks and shares[0] < shares[1]:
            return f"{times}: of its {other.cost.tasks} tasks the busiest of {workers} workers has {other.cost.busiest}"
        ratio = other_parts[cause] / max(1.0, best_parts[cause])
        return f"{times}: its blocks take {ratio:.1f} times the products, loads and ends"
    if cause == "memory":
        waits = microseconds(other_parts[cause], machine), microseconds(best_parts[cause], machine)
        return f"{times}: products wait {waits[0]:.0f} us for operands, {waits[1]:.0f} in the chosen plan"
    if cause == "staging":
        staged, best_staged = bytes_text(other.cost.staged_bytes), bytes_text(best.cost.staged_bytes)
        return f"{times}: it stages {staged}, the chosen plan {best_staged}"
    return f"{times}: results are stored between products"
