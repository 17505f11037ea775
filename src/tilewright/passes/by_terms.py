"""The plan in which lanes do a product term by term, each for results of its own or for a box of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Program
from tilewright.passes.job import Job
from tilewright.passes.tile.digits import digits_of
from tilewright.passes.tile.memory import is_ordered
from tilewright.passes.tile.patches import Patched, in_patches, inner_of, outer_of
from tilewright.plan.boxes import cut_dims, may_overrun, numbers_of, radices
from tilewright.plan.fixed import tiles_of
from tilewright.plan.general import GeneralChoice, plan_general
from tilewright.plan.lane_boxes import TermCost, cost_by_terms, lane_boxes, with_window
from tilewright.plan.microkernel import names_of
from tilewright.plan.model import cores
from tilewright.plan.planner import Refusal
from tilewright.plan.refusals import refused
from tilewright.plan.rows import smallest
from tilewright.plan.schedule import Digit, Schedule
from tilewright.plan.term_boxes import Terms, tasks_of_boxes
from tilewright.plan.terms import BoxedRows, TermProduct, product_by_terms

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
    ranked = rows.ranked(moved) if isinstance(rows, LaneRows) else []
    if found.terms.along_rows:  # one by one, lanes would share nothing
        return rows.best(ranked) if isinstance(rows, LaneRows) and ranked else None
    if not isinstance(rows, LaneRows):
        return _refusing(plain, "boxes of results for lanes", rows or "")
    if not ranked or ranked[0][0] >= own:
        why = f"{ranked[0][0].cycles / own.cycles:.2f} of the time" if ranked else "none shares what it reads, or fits"
        return _refusing(plain, "boxes of results for lanes", why)
    why = f"{own.cycles / ranked[0][0].cycles:.2f} of the time"
    return _refusing(rows.best(ranked), "results of a lane one by one", why)


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
class LaneRows:
    """The rows of a product, counted in digits, of which lanes may have boxes."""

    job: Job
    terms: Terms
    name: str
    program: Program
    sizes: dict[Symbol, int]
    digits: tuple[Symbol, ...]
    cut: tuple[Expr, ...]
    """The dimensions that tasks may cut."""
    read: Op
    free: set[Op]

    @classmethod
    def of(cls, job: Job, found: TermProduct) -> LaneRows | str:
        """The rows of a product; or why lanes have no boxes of them."""
        program, free = job.undivided or (job.program, job.free)
        if len(found.rows) != 1:
            return "its sums have no rows, or several dimensions of them"
        if tiles_of(program, job.sizes)[0]:
            return "its tiles are stated"
        (row,) = found.rows
        counted = digits_of(program, job.sizes, free, row, alone=True)
        if counted is None:
            return f"{row} does not count in digits"
        over, sizes, digits, loops = counted
        (product,) = names_of(over).values()
        factors = [v for v in product.operands[:2] if digits[-1] in v.type.dims]
        (read,) = (op for op in over.walk() if op.name == "read" and op.result in factors)
        size = numbers_of(sizes)
        cut = cut_dims(over, size)
        if any(d not in cut for d in digits if size(d) > 1):
            return f"tasks do not cut {row}"
        return cls(job, found.terms, str(row), over, sizes, digits, cut, read, loops)

    def ranked(self, moved: float) -> list[tuple[TermCost, Terms]]:
        """Boxes that lanes may have, and what they should take, the best first; memory takes `moved` of one core."""
        size = numbers_of(self.sizes)
        count = size(self.terms.summed)
        lines = radices(self.program, self.terms.summed, size)
        tiles = sorted({count, *(n for n in lines if count % n == 0)})
        ragged = [may_overrun(d, self.program, size) for d in self.digits]
        found = lane_boxes(self.terms, self.read, self.digits, tiles, ragged, size, self.job.machine)
        return sorted(((self._cost(terms, moved), terms) for terms in found), key=lambda x: x[0])

    def best(self, ranked: list[tuple[TermCost, Terms]]) -> PlannedTerms:
        """The plan of the first, with those after it as candidates."""
        plans = [self.planned(terms) for _, terms in ranked[:SHOWN]]
        candidates, costs = (p.choice.plan for p in plans), (cost.cycles for cost, _ in ranked[:SHOWN])
        choice = replace(plans[0].choice, candidates=tuple(candidates), costs=tuple(costs))
        return replace(plans[0], choice=choice)

    def _cost(self, terms: Terms, moved: float) -> TermCost:
        machine, terms = self.job.machine, self._in_dims(terms)
        counts = [-(-self.sizes[d] // n) for d, n in zip(self.digits, terms.sizes, strict=True)]
        new = {outer_of(self.name): prod(counts), **inner_of(self.digits, terms.sizes)}
        size = numbers_of({**self.sizes, **new})
        widths, waves = tasks_of_boxes(terms, size, smallest(self.program), machine)
        return cost_by_terms(terms, widths, waves, size, machine, moved)

    def _in_dims(self, terms: Terms) -> Terms:
        """The same, with the dimensions of the program over boxes."""
        cut, inner = [d for d in self.cut if d not in self.digits], tuple(inner_of(self.digits, terms.sizes))
        first = next((n for n, d in enumerate(self.cut) if d in self.digits), len(cut))
        return replace(terms, box=inner, dims=(*cut[:first], outer_of(self.name), *inner, *cut[first:]))

    def _over_boxes(self, terms: Terms) -> tuple[Patched, BoxedRows]:
        made = in_patches(self.program, self.sizes, self.name, self.digits, terms.sizes, apart=True, free=self.free)
        digits = tuple(Digit(str(d), self.sizes[d], self.sizes[d]) for d in self.digits)
        boxed = BoxedRows(self.name, digits, terms.sizes, str(made.outer), tuple(map(str, made.inner)))
        return replace(made, sizes={**self.sizes, **made.sizes}), boxed

    def planned(self, terms: Terms) -> PlannedTerms:
        """The plan for boxes."""
        patched, boxed = self._over_boxes(terms)
        size = numbers_of(patched.sizes)
        found = plan_general(
            patched.program, patched.sizes, size, self.job.machine, patched.free, terms=self._in_dims(terms)
        )
        return PlannedTerms(replace(found, plan=boxed.said(found.plan)), patched)

    def bound(self, plan: Schedule, box: dict[str, int]) -> tuple[Terms, Patched, Schedule]:
        """Boxes of lanes as a plan says them: how lanes compute, the program over boxes, and the plan of that."""
        axis = plan.axis(self.name)
        unknown = [d for d in box if d not in map(str, self.digits)]
        sizes = tuple(box.get(str(d), 1) for d in self.digits)
        size = numbers_of(self.sizes)
        if unknown:
            raise refused(axis, f"there is no digit {unknown[0]}")
        for d, n in zip(self.digits, sizes, strict=True):
            if n > size(d):
                raise refused(axis, f"a lane's box of {n} is longer than {d}, which has {size(d)}")
            if size(d) % n and not may_overrun(d, self.program, size):
                raise refused(axis, f"{d} ends within a box, and what lies past it is not outside the result")
        loop = plan.axis(str(self.terms.summed)).split("loop")
        terms = replace(self.terms, sizes=sizes, tile=size(self.terms.summed) if loop is None else loop.size)
        terms = with_window(terms, self.read, self.digits, size)
        patched, boxed = self._over_boxes(terms)
        return self._in_dims(terms), patched, boxed.meant(plan)
