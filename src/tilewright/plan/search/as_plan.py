"""A candidate as a plan: today's plan type and text; or what today's lowering lacks for it."""

from __future__ import annotations

from dataclasses import replace

from tilewright.plan.schedule import Schedule, ValuePlacement
from tilewright.plan.search.kernel_plan import LACKS, KernelPlan
from tilewright.plan.search.ranking import PlanCandidate, Rejected
from tilewright.plan.search.simt import TermKernelSchedule
from tilewright.plan.search.term_plan import plan_by_terms
from tilewright.plan.search.uniform import UniformKernelSchedule, plan_of_uniform


def as_plan(candidate: PlanCandidate) -> Schedule | Rejected:
    """The plan of a candidate; or why today's lowering does not do it."""
    plans = []
    for kernel in candidate.kernels:
        plan: Schedule | Rejected
        if isinstance(kernel, TermKernelSchedule):
            plan = plan_by_terms(kernel)
        elif isinstance(kernel, UniformKernelSchedule):
            plan = plan_of_uniform(kernel)
        else:
            plan = KernelPlan(kernel).plan()
        if isinstance(plan, Rejected):
            return plan
        plans.append(plan)
    for rewrite in candidate.rewrites:
        if rewrite.lacks:
            return Rejected(rewrite.what, f"{LACKS} {rewrite.lacks}")
    first, *others = plans
    forms = tuple(
        ValuePlacement(name, "launch", form) for rewrite in candidate.rewrites for name, form in rewrite.forms
    )
    first = replace(first, values=(*forms, *first.values))
    if not others:
        return first
    if len(others) > 1:
        return Rejected("more than two kernels", f"{LACKS} plans of more than two kernels")
    after = next((rewrite.after for rewrite in candidate.rewrites if rewrite.after), "")
    if not after:
        return Rejected("two kernels", f"{LACKS} a cut at a value without a product before it")
    return replace(first, split_after=after, then=others[0])
