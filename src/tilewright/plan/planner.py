"""The choice of a plan for a contraction: all that fit the machine are listed and ranked by a model of their time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.machine import Machine, MultiplyAtom, OpaqueOperand
from tilewright.plan.blocking import Blocking, LaneUnit, plan_of, up
from tilewright.plan.contraction import Contraction, joined, joined_depth, size
from tilewright.plan.fixed import FREE, Fixed
from tilewright.plan.lanes import lane_blockings, lane_unit, why_no_lanes
from tilewright.plan.model import Cost, Roofline, cores, microseconds, roofline, us
from tilewright.plan.schedule import Schedule, Split
from tilewright.plan.sliding import halo_of
from tilewright.plan.tiles import tile_blockings
from tilewright.plan.validate import cost_of, impossible, too_much, unfit
from tilewright.plan.vectors import vector_blockings

CLEARLY = 1.4
"""A plan that the model gives so many times the cycles of the best is refused; what lies below may be as good."""
SHOWN = 2
"""Plans of each kind that `refused` names."""
MORE = 12
"""Atoms by which blocks of sums are made larger, to see what forbids it."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A blocking, the contraction it is for (its digits perhaps joined), and what the model says of it."""

    blocking: Blocking
    contraction: Contraction
    cost: Cost

    @cached_property
    def plan(self) -> Schedule:
        """The plan that says the blocking."""
        return plan_of(self.contraction, self.blocking)


@dataclass(frozen=True)
class Refusal:
    """What was not chosen, and why; `plan` says it in full where there is one."""

    what: str
    why: str
    plan: Schedule | None = None

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True)
class Choice:
    """The plans for a contraction, best first, what was refused, and what no plan can beat."""

    machine: Machine
    candidates: tuple[Candidate, ...]
    unfit: tuple[Refusal, ...]
    bound: Roofline | None
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Candidate | None:
        """The first."""
        return self.candidates[0] if self.candidates else None

    @cached_property
    def refused(self) -> tuple[Refusal, ...]:
        """Neighbours of the best that are impossible, others that are slower, atoms that do not fit."""
        if self.best is None:
            return self.unfit
        return (*_beyond(self.best, self.machine), *_slower(self), *self.unfit)

    def explain(self) -> str:
        """The choice in words: the plan, its predicted time against the roofline, plans that may be as good, and what
        was refused."""
        best, bound, machine = self.best, self.bound, self.machine
        if best is None or bound is None:
            return "\n".join(["no plan fits", *(f"refused  {r}" for r in self.unfit)])
        cost = best.cost
        parts = ", ".join(f"{name} {us(n, machine)}" for name, n in cost.parts().items() if n >= 0.005 * cost.cycles)
        kind = "products" if bound.compute >= bound.memory else "memory"
        lines = [
            f"{best.contraction.name} on {machine.name} with {cores(machine)} workers: {len(self.candidates)} plans "
            "fit",
            *("  " + line for line in best.plan.lines()),
            f"predicted {us(cost.cycles, machine)} us ({parts})",
            f"roofline {us(bound.cycles, machine)} us, by {kind} (products {us(bound.compute, machine)} with "
            f"{bound.atom}, memory {us(bound.memory, machine)}): {100 * bound.cycles / cost.cycles:.0f} % of it",
            *self.notes,
        ]
        near = [x for x in self.candidates[1:] if x.cost.cycles <= CLEARLY * cost.cycles][:3]
        lines += [f"may be as good  {us(x.cost.cycles, machine)} us: {x.plan.differs(best.plan)}" for x in near]
        lines += [f"refused  {r}" for r in self.refused]
        return "\n".join(lines)


def choose(c: Contraction, machine: Machine, fixed: Fixed = FREE) -> Choice:
    """The plans for a contraction on a machine, ranked; what is fixed holds for all, unless nothing fits it."""
    c = joined(c)
    if len(c.columns) != 1:
        return Choice(machine, (), (Refusal("columns", f"they have {len(c.columns)} digits; one is handled"),), None)
    refused: list[Refusal] = []
    fit: list[MultiplyAtom] = []
    for atom in machine.multiply.values():
        why = unfit(variant(c, atom), atom)
        if why is None:
            fit.append(atom)
        else:
            refused.append(Refusal(f"atom {atom.name}", why))
    units: list[MultiplyAtom | LaneUnit] = [*fit]
    why = why_no_lanes(c, machine)
    if why is None:
        units.append(lane_unit(c, machine))
    else:
        refused.append(Refusal("lanes", why))
    found = list(_candidates(c, fit, machine, fixed))
    if not found and fixed != FREE and units:
        found = list(_candidates(c, fit, machine, FREE))
    found.sort(key=lambda x: x.cost.cycles)
    bound = roofline(c, machine, units) if units else None
    return Choice(machine, tuple(found), tuple(refused), bound)


def variant(c: Contraction, atom: MultiplyAtom) -> Contraction:
    """The contraction as an atom takes it: few channels would fill tiles with zeros, and are joined with their taps."""
    few = isinstance(atom.c, OpaqueOperand) and 2 * size(c.depth[-1]) <= atom.shape[2]
    return joined_depth(c) if few else c


def _candidates(c: Contraction, fit: list[MultiplyAtom], machine: Machine, fixed: Fixed) -> Iterator[Candidate]:
    """The blockings of every kind that can be done, each with the contraction as it takes it."""
    every = []
    for atom in fit:
        listed, of = tile_blockings if isinstance(atom.c, OpaqueOperand) else vector_blockings, variant(c, atom)
        every.append((listed(of, atom, machine, fixed), of))
    for blockings, of in (*every, (lane_blockings(c, machine, fixed), c)):
        for how in blockings:
            if impossible(of, how, machine) is None:
                cost = cost_of(of, how, machine)
                if too_much(cost, machine) is None:
                    yield Candidate(how, of, cost)


# -- what was refused -------------------------------------------------------------------------------------


def _beyond(best: Candidate, machine: Machine) -> Iterator[Refusal]:
    """Neighbours of the best plan that the machine's limits forbid."""
    how, c = best.blocking, best.contraction
    neighbours = [x for more in range(1, MORE) for x in _larger(how, c, more)]
    if how.in_tiles:
        neighbours += [replace(how, stage=s) for s in ("", "strip") if s != how.stage]
        neighbours.append(replace(how, steps=_all_written(how.steps)))
    seen: set[str] = set()
    for other in neighbours:
        why = impossible(c, other, machine) or too_much(cost_of(c, other, machine), machine)
        kind = re.sub(r"\d+", "", why or "")  # the nearest of each kind is enough
        if why is not None and kind not in seen:
            seen.add(kind)
            if other.stage == "strip" and halo_of(c) is None:
                yield Refusal(f"{c.a.name} strip at task", why)  # how long a line would be has no meaning
                continue
            plan = plan_of(c, other)
            yield Refusal(plan.differs(best.plan), why, plan)


def _larger(how: Blocking, c: Contraction, more: int) -> Iterator[Blocking]:
    """The blocking with larger blocks of sums: more rows, or more of what vectors and tiles run along."""
    m, n, _ = how.atom.shape
    rows, columns = how.rows + more * m, how.columns + more * n
    lines = how.strip >= size(c.rows[-1]) if how.by_lanes else len(c.rows) > 1
    yield replace(how, rows=rows, strip=how.strip if lines else up(how.strip, rows))
    yield replace(how, columns=columns, task_columns=up(how.task_columns, columns))


def _all_written(steps: tuple[Split, ...]) -> tuple[Split, ...]:
    kept = [s for n, s in enumerate(steps) if not (n == 0 and len([x for x in steps if x.digit == s.digit]) == 2)]
    return tuple(replace(s, level="unit") for s in kept)


def _slower(choice: Choice) -> Iterator[Refusal]:
    """The best plans of each other kind that the model holds to be clearly slower."""
    best = choice.best
    assert best is not None
    seen = set(_kinds(best))
    shown = dict.fromkeys(("atom", "stage", "block", "tasks"), 0)
    for other in choice.candidates[1:]:
        new = [kind for kind in _kinds(other) if kind not in seen]
        seen.update(new)
        wanted = [kind for kind, _ in new if shown[kind] < SHOWN]
        if wanted and other.cost.cycles > CLEARLY * best.cost.cycles:
            for kind in wanted:
                shown[kind] += 1
            yield Refusal(other.plan.differs(best.plan), _because(other, best, choice.machine), other.plan)


def _kinds(x: Candidate) -> list[tuple[str, object]]:
    """What tells plans apart: the atom, where rows lie, the block of sums, how many tasks there are."""
    how = x.blocking
    block = how.rows, how.columns
    kinds: list[tuple[str, object]] = [("atom", how.atom.name), ("block", block), ("tasks", x.cost.tasks)]
    return [*kinds, ("stage", how.stage)] if how.in_tiles else kinds


def _because(other: Candidate, best: Candidate, machine: Machine) -> str:
    """Why a plan is slower: the part of its time that grew most."""
    mine, theirs = best.cost.parts(), other.cost.parts()
    part = max(theirs, key=lambda name: theirs[name] - mine[name])
    times = (
        f"{microseconds(other.cost.cycles, machine):.0f} us, {other.cost.cycles / best.cost.cycles:.1f} times as long"
    )
    workers = cores(machine)
    if part == "products":
        if other.blocking.atom.name != best.blocking.atom.name:
            return f"{times}: its products take {theirs[part] / max(1.0, mine[part]):.1f} times as long"
        whole = other.cost.tasks * best.cost.busiest, best.cost.tasks * other.cost.busiest
        if other.cost.busiest * workers > 1.1 * other.cost.tasks and whole[0] < whole[1]:
            return f"{times}: of its {other.cost.tasks} tasks the busiest of {workers} workers has {other.cost.busiest}"
        return f"{times}: its blocks take {theirs[part] / max(1.0, mine[part]):.1f} times the products, loads and ends"
    if part == "memory":
        waits = microseconds(theirs[part], machine), microseconds(mine[part], machine)
        return f"{times}: products wait {waits[0]:.0f} us for factors, {waits[1]:.0f} in the chosen plan"
    if part == "staging":
        return f"{times}: it stages {_size(other.cost.staged_bytes)}, the chosen plan {_size(best.cost.staged_bytes)}"
    return f"{times}: results are stored between products"


def _size(count: float) -> str:
    return f"{count / 2**20:.1f} MB" if count >= 2**20 else f"{count / 1024:.0f} KB"
