"""The pass that chooses a plan: the pinned one, the best that the search ranks, or that of an author's grid."""

from __future__ import annotations

from dataclasses import replace

from tilewright.driver.bind import bind_plan
from tilewright.driver.bound_plan import BoundPlan, ChoosePlan, RequestForms
from tilewright.driver.notes import notes_on
from tilewright.driver.pinned_plans import better_refusal, bind_pinned, known_plan, without_plan
from tilewright.driver.realise import rank_plans
from tilewright.driver.request import Request
from tilewright.errors import ArgumentError
from tilewright.plan.choice import untimed_choice
from tilewright.plan.grids import NOTE, plan_of_grid
from tilewright.plan.refusals import result_or_refusal
from tilewright.transform.launch_order import can_be_early


def choose_plan(forms: RequestForms, between: str = "") -> BoundPlan:
    """Return the plan of a request, bound to its kernels: the author's plan, or the best that the search finds.

    `forms` is the request over digits (mixed-radix parts) of its dimensions, then over whole dimensions. `between`
    names the argument that the preceding kernel writes, "" if there is none. Raise an ArgumentError that quotes lines
    of the author's plan if it cannot be bound, and a ProgramError if no plan of the search can be. For a program with
    logs, the author's plan is only checked by `known_plan`, and the best plan of the search is returned.
    """
    pinned_plan = forms[0].pinned
    if pinned_plan is None:
        return _best_plan(forms, between)
    try:
        return _bind_stated(forms, between, choose_plan)
    except ArgumentError as fault:
        raise better_refusal(fault, forms, pinned_plan, between, _best_plan) from None


def bind_given_plan(forms: RequestForms) -> BoundPlan | str:
    """Return the author's plan of a request, bound to its kernels; or text: why it does not fit these forms of the
    request.

    It does the same as `choose_plan`, with the same `forms`, but it does not look for the lines at fault.
    """
    return result_or_refusal(lambda: _bind_stated(forms, "", choose_plan))


def _choose_of_candidate(forms: RequestForms, between: str = "") -> BoundPlan:
    """Return the plan of one kernel of a candidate that the search proposes, bound to its kernels.

    It has the parameters and the result of `choose_plan`. But an error about the request's plan does not quote lines:
    no author wrote them, and to find the lines at fault needs a search of its own.
    """
    if forms[0].pinned is None:
        return _best_plan(forms, between)
    return _bind_stated(forms, between, _choose_of_candidate)


def _bind_stated(forms: RequestForms, between: str, choose: ChoosePlan) -> BoundPlan:
    """Return the plan that the request states, bound to its kernels. The request must state a plan.

    For a program with logs, that plan is only checked by `known_plan`, and the best plan of the search is returned.
    `choose` plans the kernels that the stated plan has no lines for. `forms` and `between` are those of `choose_plan`.
    Raise an ArgumentError if the stated plan does not fit the program.
    """
    stated = forms[0].pinned
    assert stated is not None
    stated = known_plan(stated, forms[0])
    if forms[0].logs:
        return _best_plan(without_plan(forms), between)
    return bind_pinned(tuple(replace(form, pinned=stated) for form in forms), stated, between, choose)


def _best_plan(forms: RequestForms, between: str = "") -> BoundPlan:
    """Return the best plan that the search finds, bound to its kernels; for a grid program, the plan of its grid.

    In a grid program, the author states the workgroups. `forms` is the request over digits (mixed-radix parts) of its
    dimensions, then over whole dimensions. `between` names the argument that the preceding kernel writes, "" if there
    is none.
    """
    request = forms[0]
    return rank_plans(forms, between, _choose_of_candidate) if request.workgroups is None else _plan_of_grid(request)


def _plan_of_grid(request: Request) -> BoundPlan:
    """Return the BoundPlan of a grid program, whose workgroups the author states: the plan, its kernels, and notes for
    `explain`.

    The plan says `launch early` if the machine has early launches. It has no predicted time.
    """
    machine, name = request.machine, request.program.name
    plan = plan_of_grid(request.program, request.sizes, machine, request.free, request.open_extents)
    plan = request.with_open_marked(plan)
    plan = replace(plan, early=True) if can_be_early(machine) else plan
    request, kernels = bind_plan((request,), plan, choose_plan)
    notes = (NOTE, *notes_on(request, kernels, plan))
    return BoundPlan(request, plan, replace(untimed_choice(machine, name, plan), notes=notes), kernels)
