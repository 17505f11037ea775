"""Convert candidates of the search to plans, or name the feature that the lowering lacks for a candidate."""

from __future__ import annotations

from dataclasses import replace

from tilewright.plan.schedule import Schedule, ValuePlacement
from tilewright.plan.search.blocked import BlockedKernelSchedule
from tilewright.plan.search.kernel import KernelSchedule
from tilewright.plan.search.kernel_plan import LACKS, KernelPlan
from tilewright.plan.search.ranking import PlanCandidate, Rejected
from tilewright.plan.search.simt import SimtKernelSchedule
from tilewright.plan.search.simt_plan import plan_of_simt
from tilewright.plan.search.uniform import plan_of_uniform
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule


def as_plan(candidate: PlanCandidate) -> Schedule | Rejected:
    """Return the plan of a candidate of the search: a Schedule, from which the lowering (code generator) makes code.

    The plan has one `repack` statement per operand that is copied to another layout before the kernel. If the candidate
    runs two kernels, the plan of the second is in the field `then`. If the lowering does not support one of the
    kernels, a copy, or the value at which the program is split, return a Rejected instead, which names the missing
    feature.
    """
    kernel = candidate.kernel
    plan: Schedule | Rejected
    if isinstance(kernel, BlockedKernelSchedule):
        plan = kernel.plan
    elif isinstance(kernel, SimtKernelSchedule):
        plan = plan_of_simt(kernel)
    elif isinstance(kernel, UniformKernelSchedule):
        plan = plan_of_uniform(kernel)
    else:
        assert isinstance(kernel, KernelSchedule)
        plan = KernelPlan(kernel).plan()
    if isinstance(plan, Rejected):
        return plan
    for rewrite in candidate.rewrites:
        if rewrite.lacks:
            return Rejected(rewrite.what, f"{LACKS} {rewrite.lacks}")
    forms = tuple(
        ValuePlacement(name, "launch", form) for rewrite in candidate.rewrites for name, form in rewrite.forms
    )
    plan = replace(plan, values=(*forms, *plan.values))
    if candidate.then is None:
        return plan
    cut = next((rewrite for rewrite in candidate.rewrites if rewrite.after or rewrite.before), None)
    whole = next((rewrite.whole for rewrite in candidate.rewrites if rewrite.whole), None)
    then = as_plan(candidate.then)
    if isinstance(then, Rejected):
        return then
    if cut is None:
        return Rejected("two kernels", f"{LACKS} a cut at a value without a product before or after it")
    return replace(plan, split_after=cut.after or None, split_before=cut.before or None, then=then, whole=whole)
