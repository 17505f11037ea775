"""The predicted time of a plan that is pinned and bound."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.driver.bound_plan import Kernels, TwoKernels
from tilewright.driver.request import Request
from tilewright.driver.request_facts import facts_of_request
from tilewright.driver.two_kernels import choices_of_parts, joined_plan
from tilewright.plan.general import GeneralChoice
from tilewright.plan.planner import Choice
from tilewright.plan.schedule import Schedule
from tilewright.plan.search import BlockedKernelSchedule, cause_of, cycles_on, lower_bound, rate_plan


def rated_blocks(request: Request, plan: Schedule, between: str) -> Choice:
    """Return a Choice for a CPU plan of the author with axes `rows`, `columns` and `depth`: predicted times, ranked.

    The plan's blocking (tile sizes and loop order) comes first, then all other blockings of its MMA, fastest first. The
    plan must have been bound. `between` names the argument that the preceding kernel writes, "" if there is none.
    """
    facts = facts_of_request(request, between)
    candidate = rate_plan(facts, request.machine, plan)
    assert not isinstance(candidate, str), "binding has refused programs that are not one product"
    assert isinstance(candidate.kernel, BlockedKernelSchedule)
    find_cause = partial(cause_of, candidate, facts, request.machine)
    return replace(candidate.kernel.choice, floor=lower_bound(facts, request.machine), find_cause=find_cause)


def rated(request: Request, kernels: Kernels, plan: Schedule, between: str) -> GeneralChoice:
    """Return a GeneralChoice for a bound plan: the plan with the time that the search's cost model predicts.

    `kernels` are the plan's kernels. A plan that the model cannot time has the time 0 and a note why; a grid program
    (whose workgroups the author states) has the time 0. `between` names the argument that the preceding kernel writes,
    "" if there is none.
    """
    machine, name = request.machine, request.program.name
    if request.workgroups is not None:
        return GeneralChoice(machine, name, plan, 0.0, 0.0)
    facts = facts_of_request(request, between)
    if isinstance(kernels, TwoKernels):
        plan = joined_plan(kernels, plan)  # with a second kernel that it left out
    candidate = rate_plan(facts, machine, plan, request.constant)
    bound = lower_bound(facts, machine)
    if isinstance(candidate, str):
        note = f"no predicted time: {candidate}"
        return GeneralChoice(machine, name, plan, 0.0, bound, notes=(note,), parts=choices_of_parts(kernels))
    return GeneralChoice(
        machine,
        name,
        plan,
        candidate.cycles,
        bound,
        predicted=None if machine.lanes is None else lambda machine: cycles_on(candidate, machine),
        parts=choices_of_parts(kernels),
        find_cause=partial(cause_of, candidate, facts, machine),
    )
