"""The plan of a program over boxes of positions, whose A is brought as halo tiles."""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import ArgumentError
from tilewright.passes.job import Job
from tilewright.passes.tile.digits import digits_of
from tilewright.passes.tile.patches import Patched, in_patches
from tilewright.plan.boxes import numbers_of
from tilewright.plan.fixed import tiles_of
from tilewright.plan.general import Cuts, GeneralChoice
from tilewright.plan.microkernel import axes_in, names_of
from tilewright.plan.patches import patches, plan_of, rows_of
from tilewright.plan.pinned import pinned
from tilewright.plan.plan import Plan
from tilewright.plan.rings import bound_by_memory


def planned_in_patches(job: Job, given: Plan | None = None) -> tuple[GeneralChoice, Patched] | str:
    """The choice, with all candidates, and the program over patches; or why there is none. `given` says which."""
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
    fitting = patches(over, digits, sizes, size, job.machine, given)
    if isinstance(fitting, str):
        return fitting
    (op,) = names_of(over).values()
    plans = [plan_of(x, op, over, str(axes.m), digits, sizes, size) for x in fitting]
    if given is not None:
        found = [(x, plan) for x, plan in zip(fitting, plans, strict=True) if _is(given, plan)]
        if not found:
            raise ArgumentError(f"plan: `{given.roles}` with these boxes fits none of {job.machine.name}'s")
        roles = pinned(given, found[0][0].how, job.machine)
        fitting, plans = [replace(found[0][0], roles=roles)], [replace(found[0][1], roles=roles)]
    best = fitting[0]
    rows = None if best.walk is None else (rows_of(best.walk, best.how), best.walk.pitch)
    patched = in_patches(over, sizes, str(axes.m), digits, best.box, rows)
    (product,) = names_of(patched.program).values()
    widths = dict.fromkeys(product.operands[2].type.dims, 1) | {
        patched.inner[0]: best.how.rows,
        axes.n: best.how.columns,
    }
    cuts = Cuts(widths, {}, {}, {product: best.how}, best.roles, halo=best.offsets, walk=best.walk)
    bound = bound_by_memory(over, size, job.machine)
    costs = tuple(x.cycles for x in fitting)
    choice = GeneralChoice(
        job.machine, over.name, plans[0], cuts, best.cycles, bound, (), candidates=tuple(plans), costs=costs
    )
    return choice, replace(patched, sizes={**sizes, **patched.sizes})


def _is(given: Plan, plan: Plan) -> bool:
    """Whether a plan is another, perhaps with other registers and stages."""
    said, own = given.roles, plan.roles
    assert said is not None
    assert own is not None
    waves = (said.load[0], said.multiply[0], said.pingpong) == (own.load[0], own.multiply[0], own.pingpong)
    return waves and replace(given, roles=own) == plan
