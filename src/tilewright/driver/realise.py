"""Realising: the search ranks the plans of a request, and the best one that can be bound and lowered is taken.

A plan that binding or the lowering refuses is noted with the reason, and the next one is tried. Plans whose tasks need
more shared memory than a workgroup has come last: their values go to a workspace in global memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from tilewright.driver.bind import bind_plan
from tilewright.driver.bound_plan import (
    BoundPlan,
    ChoosePlan,
    FurtherPlans,
    Kernels,
    LowerPlan,
    MergedParts,
    OneKernel,
    RequestForms,
)
from tilewright.driver.kernels import lower_kernels, with_workspace
from tilewright.driver.notes import notes_on
from tilewright.driver.request import CompileOptions, Request
from tilewright.driver.request_facts import facts_of_request
from tilewright.driver.two_kernels import choices_of_parts
from tilewright.errors import ProgramError
from tilewright.lower.block.lower import Lowered
from tilewright.plan.choice import Refusal
from tilewright.plan.facts import Facts
from tilewright.plan.refusals import result_or_refusal
from tilewright.plan.schedule import Schedule
from tilewright.plan.search import (
    PlanCandidate,
    Ranking,
    Rejected,
    as_plan,
    choice_of,
    search_facts,
)
from tilewright.transform.scratch_memory import shared_overflow


def rank_plans(forms: RequestForms, between: str, choose: ChoosePlan) -> BoundPlan:
    """Search for plans of a request; return the best that can be bound. Its field `further` has the plans to try next.

    `forms` is the request over digits (mixed-radix parts) of its dimensions, then over whole dimensions. `choose` plans
    further kernels. `between` names the argument that the preceding kernel writes, "" if there is none. Raise a
    ProgramError if no plan can be bound.
    """
    bound, _ = RankedPlans(forms, between, choose).bind_next()
    return bound


class RankedPlan(NamedTuple):
    """A candidate of the search with its plan, the ranking that it is from, and the facts that were searched."""

    candidate: PlanCandidate
    plan: Schedule
    ranking: Ranking
    facts: Facts

    @property
    def name(self) -> str:
        """Return the text that names the plan in a refusal: its family (rewrites and kinds of kernels) and its MMA
        lines."""
        return "; ".join((*self.candidate.family, *map(str, self.plan.products)))


class RankedPlans:
    """The plans of a request in the order of the search, each bound when it is tried, and the refusals so far."""

    def __init__(self, forms: RequestForms, between: str, choose: ChoosePlan):
        self._forms, self._choose = forms, choose
        self._refused: list[Refusal] = []
        self._left = self._candidates(between)
        self._tried: RankedPlan | None = None
        self._overflowing: RankedPlan | None = None
        """The best plan that is refused only because shared memory overflows."""

    def after(self, why: str, overflows: bool) -> tuple[BoundPlan, bool]:
        """Record that the plan tried last was refused because of `why`; return (next bound plan, True if it is the last
        one).

        `overflows` is True if the only reason is too little shared memory. The first such plan is kept: it is tried
        again as the last one, after all others are refused. Raise a ProgramError, as `bind_next` does, if no plan is
        left.
        """
        assert self._tried is not None
        if overflows:
            self._overflowing = self._overflowing or self._tried
        self._refused.append(Refusal(self._tried.name, why))
        return self.bind_next()

    def bind_next(self) -> tuple[BoundPlan, bool]:
        """Return (next plan that can be bound, False); if there is none, (the last plan, True).

        Plans that cannot be bound are recorded as refusals. The last plan is the best one that was refused only because
        shared memory overflows; True tells the caller to lower it with values in global memory. If none overflowed, and
        the only refusal is that of a plan that could be bound, that plan is the last, so that its own error is raised.
        Otherwise raise a ProgramError that lists the refusals.
        """
        for ranked in self._left:
            bound = result_or_refusal(partial(bind_plan, self._forms, ranked.plan, self._choose))
            if not isinstance(bound, str):
                return self._take(ranked, *bound), False
            self._refused.append(Refusal(ranked.name, bound))
        last = self._overflowing or (self._tried if len(self._refused) == 1 else None)
        if last is None:
            request = self._forms[0]
            every = "; ".join(map(str, self._refused)) or "the search found none"
            raise ProgramError(f"{request.program.name}: no plan for {request.machine.name} can be lowered: {every}")
        return self._take(last, *bind_plan(self._forms, last.plan, self._choose)), True

    def _candidates(self, between: str) -> Iterator[RankedPlan]:
        """Yield RankedPlans, best first within each form of the program.

        The first form is over digits (mixed-radix parts of dimensions), the next one over whole dimensions. A form is
        searched only when its first plan is asked for. Candidates that the lowering does not support are not yielded,
        but appended to the refusals. `between` names the argument that the preceding kernel writes, "" if there is
        none.
        """
        first, *others = self._forms
        for request in (first, *(each for each in others if each.program is not first.program)):
            blocks = CompileOptions.NO_BLOCKS not in request.options and request.longer() is None
            facts = facts_of_request(request, between)
            ranking = search_facts(facts, request.machine, blocks=blocks)
            for candidate in ranking.candidates:
                plan = as_plan(candidate)
                if isinstance(plan, Rejected):
                    self._refused.append(Refusal(plan.what, plan.why))
                else:
                    yield RankedPlan(candidate, plan, ranking, facts)

    def _take(self, ranked: RankedPlan, request: Request, kernels: Kernels) -> BoundPlan:
        """Return the BoundPlan of a plan that could be bound, and record the plan as the one tried last.

        `ranked` has the candidate, its plan, the search's ranking and the facts about the program. `request` has the
        program as the plan rewrote it, and `kernels` the kernels to which it is bound. In the plan of the BoundPlan,
        sizes that are known only at the call are marked as open (see `Request.with_open_marked`).

        The BoundPlan also has a Choice for `explain`, with the predicted time, what limits it, and why other plans were
        refused.
        """
        self._tried = ranked
        candidate, plan, ranking, facts = ranked
        plan = request.with_open_marked(plan)
        choice = choice_of(candidate, plan, ranking, facts, request.machine, _joined_refusals(self._refused))
        notes = (*choice.notes, *notes_on(request, kernels, plan))
        return BoundPlan(request, plan, replace(choice, notes=notes, parts=choices_of_parts(kernels)), kernels, self)


def lower_ranked(bound: BoundPlan, further: FurtherPlans, lower: LowerPlan) -> tuple[BoundPlan, Lowered]:
    """Lower the best plan that the lowering does not refuse; return (that plan, its block programs).

    `bound` is tried first, then the plans that `further` gives. The last plan is lowered with values that do not fit in
    shared memory in a workspace, and its errors are raised. `lower` lowers further kernels. Raise a ProgramError if
    every plan is refused.
    """
    while isinstance(lowered := _lowered(bound, lower), _Refused):
        bound, is_last = further.after(*lowered)
        if is_last:
            return with_workspace(*lower_kernels(bound, lower))
    return lowered


class _Refused(NamedTuple):
    """Why the lowering refuses a plan; `overflows` says that the only reason is too little shared memory."""

    why: str
    overflows: bool = False


def _lowered(bound: BoundPlan, lower: LowerPlan) -> tuple[BoundPlan, Lowered] | _Refused:
    """Lower a bound plan; return (the plan, its block programs), or a _Refused with the reason if the lowering refuses
    it.

    A plan that needs more shared memory than the machine has is refused too. `lower` lowers further kernels.
    """
    lowered = result_or_refusal(lambda: lower_kernels(bound, lower))
    if isinstance(lowered, str):
        return _Refused(lowered)
    if overflow := _over_shared_memory(*lowered):
        return _Refused(overflow, overflows=True)
    placed = result_or_refusal(lambda: with_workspace(*lowered))
    return _Refused(placed) if isinstance(placed, str) else placed


def _over_shared_memory(bound: BoundPlan, lowered: Lowered) -> str:
    """Return a text that says why a lowered plan needs more shared memory than the machine has; "" if it fits.

    It is also "", without a test, if sizes are known only at the call, and for two kernels and repacked operands.
    """
    request = bound.request
    if request.opened or not isinstance(bound.kernels, OneKernel | MergedParts):
        return ""
    return shared_overflow(lowered.program, request.machine, roles=bound.plan.pipeline is not None)


def _joined_refusals(refused: list[Refusal]) -> list[Refusal]:
    """Return a new list in which refusals of plans with the same name and similar reasons are joined into one.

    Reasons are similar if they are equal up to their first colon. The joined refusal has the text of the first of them
    in `refused` and the number of the others.
    """
    alike: dict[tuple[str, str], list[Refusal]] = {}
    for each in refused:
        alike.setdefault((each.what, each.why.partition(":")[0]), []).append(each)
    return [
        first if not others else Refusal(f"{first.what}, and {len(others)} like it", first.why)
        for first, *others in alike.values()
    ]
