"""The plan of a program over boxes of positions, whose A is brought as halo tiles."""

from __future__ import annotations

from tilewright.machine import Machine
from tilewright.passes.halo_tiles import HaloKernel
from tilewright.passes.job import Job
from tilewright.passes.tile.digits import digits_of
from tilewright.plan.boxes import numbers_of
from tilewright.plan.fixed import tiles_of
from tilewright.plan.general import Cuts, GeneralChoice
from tilewright.plan.halo_windows import operand_reads
from tilewright.plan.microkernel import axes_in, names_of
from tilewright.plan.patches import patch_cycles, patch_work, patches, plan_of
from tilewright.plan.rings import bound_by_memory
from tilewright.plan.schedule import Schedule


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


def halo_cycles(job: Job, plan: Schedule, cuts: Cuts, machine: Machine) -> tuple[float, float]:
    """(cycles that a bound kernel with halo tiles should take, those that memory alone takes)."""
    tile = HaloKernel.of(job, plan)
    size, slides = numbers_of(tile.sizes), tile.window()
    reads = operand_reads(tile.op, tile.axes, tile.program)
    assert reads is not None
    assert cuts.roles is not None
    assert cuts.halo is not None
    (how,) = (how for how in cuts.products.values() if how is not None)
    work = patch_work(tile.program, tile.op, tile.axes, reads, slides, tile.digits, size, machine)
    box, walk = tile.box(slides, how)
    bound = bound_by_memory(tile.program, size, machine)
    cycles = patch_cycles(machine, work, how, cuts.roles, box, cuts.halo, walk)
    return max(cycles, bound + machine.limits.launch_cycles), bound
