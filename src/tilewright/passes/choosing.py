"""The pass that chooses a plan: the one that is pinned, the best that the search ranks, or that of an author's grid."""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import ArgumentError
from tilewright.passes.binding import bind_plan
from tilewright.passes.bound_plan import BoundPlan, Writings
from tilewright.passes.given import better_refusal, bind_given, known_plan, without_plan
from tilewright.passes.launching import with_launch
from tilewright.passes.notes import notes_on
from tilewright.passes.realising import rank_plans
from tilewright.passes.request import Request
from tilewright.plan.grids import plan_of_grid


def choose_plan(writings: Writings, between: str = "") -> BoundPlan:
    """Return the plan of a request, bound: the pinned one, or the best; a refusal of a pinned plan names its lines.

    `writings` are the request over digits and over whole dimensions; `between` is the argument that the kernel before
    it writes, if any. A request with logs is planned anew, as its tasks must show what is logged.
    """
    given = writings[0].pinned
    if given is None:
        return _best_plan(writings, between)
    try:
        given = known_plan(given, writings[0])
        if writings[0].logs:
            return _best_plan(without_plan(writings), between)
        pinned = tuple(replace(each, pinned=given) for each in writings)
        return bind_given(pinned, given, between, choose_plan)
    except ArgumentError as fault:
        raise better_refusal(fault, writings, given, between, _best_plan) from None


def _best_plan(writings: Writings, between: str = "") -> BoundPlan:
    """Return the best plan of the search, bound, or that of the author's grid."""
    request = writings[0]
    return rank_plans(writings, between, choose_plan) if request.workgroups is None else _plan_of_grid(request)


def _plan_of_grid(request: Request) -> BoundPlan:
    """Return the plan of a grid program, bound."""
    opened = request.open_extents
    choice = with_launch(plan_of_grid(request.program, request.sizes, request.machine, request.free, opened), None)
    plan = choice.plan if not opened else choice.plan.with_open({str(s) for s in opened})
    request, kernels = bind_plan((request,), plan, choose_plan)
    notes = (*choice.notes, *notes_on(request, kernels, plan))
    return BoundPlan(request, plan, replace(choice, plan=plan, notes=notes), kernels)
