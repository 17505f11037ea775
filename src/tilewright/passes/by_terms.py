"""The plan in which lanes do a product term by term, each for results of its own or for a box of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.algebra.expr_use import Substitution
from tilewright.machine import Machine
from tilewright.passes.job import Job
from tilewright.passes.lane_rows import LaneRows
from tilewright.passes.tile.memory import is_ordered
from tilewright.passes.tile.patches import Patched, inner_of, outer_of
from tilewright.plan.bind_lane_boxes import BoxedRows
from tilewright.plan.boxes import may_overrun, numbers_of, radices
from tilewright.plan.general import GeneralChoice, plan_general
from tilewright.plan.lane_boxes import TermCost, cost_by_terms, lane_boxes
from tilewright.plan.model import cores
from tilewright.plan.planner import Refusal
from tilewright.plan.rows import smallest
from tilewright.plan.schedule import Schedule
from tilewright.plan.term_boxes import Terms, tasks_of_boxes
from tilewright.plan.terms import product_by_terms

SHOWN = 8
"""Boxes that are candidates, where there are more."""


@dataclass(frozen=True)
class PlannedTerms:
    """A choice, and the program over boxes that it is for; None: the program as it is, undivided."""

    choice: GeneralChoice
    patched: Patched | None = None


def planned_by_terms(job: Job) -> PlannedTerms | None:
    """The best such plan; None where there is none."""
    program, free = job.undivided or (job.program, job.free)
    if job.machine.lanes is None or job.opened or job.logs or is_ordered(program):
        return None
    size = numbers_of(job.sizes)
    found = product_by_terms(program, free, size, Substitution(job.sizes), job.machine)
    if isinstance(found, str):
        return None
    rows = LaneRows.of(job, found)
    plain = PlannedTerms(plan_general(program, job.sizes, size, job.machine, free, terms=found.terms))
    widths, moved = plain.choice.widths, plain.choice.bound * cores(job.machine)
    own = cost_by_terms(found.terms, widths, plain.choice.plan.waves, size, job.machine, moved)
    boxes = None if isinstance(rows, str) else _Candidates(rows, job.machine)
    ranked = [] if boxes is None else boxes.ranked(moved)
    if found.terms.along_rows:  # one by one, lanes would share nothing
        return boxes.best(ranked) if boxes is not None and ranked else None
    if boxes is None:
        return _refusing(plain, "boxes of results for lanes", str(rows))
    if not ranked or ranked[0][0] >= own:
        why = f"{ranked[0][0].cycles / own.cycles:.2f} of the time" if ranked else "none shares what it reads, or fits"
        return _refusing(plain, "boxes of results for lanes", why)
    why = f"{own.cycles / ranked[0][0].cycles:.2f} of the time"
    return _refusing(boxes.best(ranked), "results of a lane one by one", why)


def _refusing(planned: PlannedTerms, what: str, why: str) -> PlannedTerms:
    """The plan, with what it is not, and why."""
    choice = planned.choice
    return replace(planned, choice=replace(choice, refused=(*choice.refused, Refusal(what, why))))


def less_by_terms(found: GeneralChoice, terms: PlannedTerms) -> GeneralChoice:
    """Whichever of both should take less time."""
    choice = terms.choice
    if choice.cycles >= found.cycles:
        other = Refusal(str(choice.plan.products[0]), f"{choice.cycles / found.cycles:.2f} of the time")
        return replace(found, refused=(*found.refused, other))
    other = Refusal(str(found.plan.products[0]), f"{found.cycles / choice.cycles:.2f} of the time")
    return replace(choice, refused=(*choice.refused, other))


@dataclass(frozen=True)
class _Candidates:
    """Boxes that lanes of a machine may have of some rows."""

    rows: LaneRows
    machine: Machine

    def ranked(self, moved: float) -> list[tuple[TermCost, Terms]]:
        """Boxes that lanes may have, and what they should take, the best first; memory takes `moved` of one core."""
        rows, size = self.rows, numbers_of(self.rows.sizes)
        count = size(rows.terms.summed)
        lines = radices(rows.program, rows.terms.summed, size)
        tiles = sorted({count, *(n for n in lines if count % n == 0)})
        ragged = [may_overrun(d, rows.program, size) for d in rows.digits]
        found = lane_boxes(rows.terms, rows.read, rows.digits, tiles, ragged, size, self.machine)
        return sorted(((self._cost(terms, moved), terms) for terms in found), key=lambda x: x[0])

    def best(self, ranked: list[tuple[TermCost, Terms]]) -> PlannedTerms:
        """The plan of the first, with those after it as candidates."""
        plans = [self._planned(terms) for _, terms in ranked[:SHOWN]]
        candidates, costs = (p.choice.plan for p in plans), (cost.cycles for cost, _ in ranked[:SHOWN])
        choice = replace(plans[0].choice, candidates=tuple(candidates), costs=tuple(costs))
        return replace(plans[0], choice=choice)

    def _cost(self, terms: Terms, moved: float) -> TermCost:
        rows, machine, terms = self.rows, self.machine, self.rows.with_dims(terms)
        counts = [-(-rows.sizes[d] // n) for d, n in zip(rows.digits, terms.sizes, strict=True)]
        new = {outer_of(rows.name): prod(counts), **inner_of(rows.digits, terms.sizes)}
        size = numbers_of({**rows.sizes, **new})
        widths, waves = tasks_of_boxes(terms, size, smallest(rows.program), machine)
        return cost_by_terms(terms, widths, waves, size, machine, moved)

    def _planned(self, terms: Terms) -> PlannedTerms:
        """The plan for boxes."""
        patched, boxed = self.rows.over_boxes(terms)
        size, own = numbers_of(patched.sizes), self.rows.with_dims(terms)
        found = plan_general(patched.program, patched.sizes, size, self.machine, patched.free, terms=own)
        return PlannedTerms(replace(found, plan=_over_rows(boxed, found.plan)), patched)


def _over_rows(boxed: BoxedRows, plan: Schedule) -> Schedule:
    """A plan of the program over boxes, as one of the program over rows."""
    task = plan.axis(boxed.outer).split("task")
    cuts = () if task is None else (replace(task, size=task.size * prod(boxed.sizes)),)
    own = replace(boxed.axis, splits=(*cuts, *boxed.axis.splits))
    axes = [own if a.name == boxed.outer else a for a in plan.axes if a.name not in boxed.inner]
    tasks = [boxed.name if t == boxed.outer else t for t in plan.grid if t not in boxed.inner]
    return replace(plan, axes=tuple(axes), grid=tuple(tasks))
