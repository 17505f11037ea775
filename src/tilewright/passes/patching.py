"""The plan of a program over boxes of positions, whose A is brought as halo tiles."""

from __future__ import annotations

from tilewright.passes.job import Job
from tilewright.passes.tile.digits import digits_of
from tilewright.plan.boxes import numbers_of
from tilewright.plan.fixed import tiles_of
from tilewright.plan.general import GeneralChoice
from tilewright.plan.microkernel import axes_in, names_of
from tilewright.plan.patches import patches, plan_of
from tilewright.plan.rings import bound_by_memory


def planned_in_patches(job: Job) -> GeneralChoice | str:
    """The choice, with all candidates; or why there is none."""
    products = list(names_of(job.program).values())
    if job.no_patches or job.gathered or len(products) != 1 or tiles_of(job.program, job.sizes)[0]:
        return job.no_patches or job.gathered or "its tiles are stated, or it has not one product"
    axes = axes_in(products[0], numbers_of(job.sizes))
    if isinstance(axes, str):
        return axes
    counted = digits_of(job.program, job.sizes, job.free, axes.m)
    if counted is None:
        return f"{axes.m} does not count in digits"
    over, sizes, digits, _ = counted
    size = numbers_of(sizes)
    fitting = patches(over, digits, sizes, size, job.machine)
    if isinstance(fitting, str):
        return fitting
    (op,) = names_of(over).values()
    plans = tuple(plan_of(x, op, over, str(axes.m), digits, sizes, size) for x in fitting)
    bound, costs = bound_by_memory(over, size, job.machine), tuple(x.cycles for x in fitting)
    return GeneralChoice(job.machine, over.name, plans[0], costs[0], bound, candidates=plans, costs=costs)
