"""The predicted time of a plan that is pinned and bound."""

from __future__ import annotations

from dataclasses import replace

from tilewright.driver.bound_plan import Kernels, TwoKernels
from tilewright.driver.request import Request
from tilewright.driver.request_facts import facts_of_request
from tilewright.driver.two_kernels import choices_of_parts, joined_plan
from tilewright.plan.choice import Choice, untimed_choice
from tilewright.plan.schedule import Schedule
from tilewright.plan.search import Ranking, choice_of, lower_bound, rate_plan


def rated(request: Request, kernels: Kernels, plan: Schedule, between: str) -> Choice:
    """Return the Choice of a bound plan: the plan with the time that the search's cost model predicts.

    `kernels` are the plan's kernels. A plan that the model cannot time has the time 0 and a note with the reason. A
    grid program (whose workgroups the author states) has the time 0. `between` names the argument that the preceding
    kernel writes, "" if there is none.
    """
    machine, name = request.machine, request.program.name
    if request.workgroups is not None:
        return untimed_choice(machine, name, plan)
    facts = facts_of_request(request, between)
    if isinstance(kernels, TwoKernels):
        plan = joined_plan(kernels, plan)  # with a second kernel that it left out
    candidate = rate_plan(facts, machine, plan)
    bound = lower_bound(facts, machine)
    if isinstance(candidate, str):
        choice = replace(untimed_choice(machine, name, plan, bound), notes=(f"no predicted time: {candidate}",))
    else:
        choice = choice_of(candidate, plan, Ranking(roofline=bound), facts, machine)
    return replace(choice, parts=choices_of_parts(kernels))
