"""The pass that gives programs which mean the same one writing, so that they get the same plan."""

from __future__ import annotations

from tilewright.passes.job import Job
from tilewright.passes.tile.dim_order import in_dim_order
from tilewright.passes.tile.equal_reads import with_equal_reads_once
from tilewright.passes.tile.merging import Sized, merged
from tilewright.passes.tile.phases import in_phases
from tilewright.plan.general import dims_of


def canonical(job: Job) -> None:
    """Rewrite the program of a job in the canonical form, so that programs that mean the same get the same plan.

    Equal reads are one; products with zeros by a congruence are taken apart into phases; tiles are in the order of
    results; on GPUs, dimensions of MMAs and reductions are merged if they are contiguous in memory. Programs with logs
    and grid programs stay: they are over the author's dimensions.
    """
    if job.logs or job.workgroups is not None:
        return
    job.program, job.free = with_equal_reads_once(job.program, job.free)
    is_sized = not job.opened and job.longer() is None
    if is_sized:
        # A CPU's task packs an operand that may leave memory by itself: taps that are no taps cost more than they save.
        on_cpu, named = job.machine.lanes is None, _named(job)
        job.program, job.sizes, job.free = in_phases(job.program, job.sizes, job.free, named=named, only_even=on_cpu)
    job.program, job.free = in_dim_order(job.program, job.free)
    if job.machine.lanes is None or not is_sized or _names_dims(job):
        return
    shapes = {a: tuple(int(n) for n in shape) for a, shape in job.shapes.items()}
    rewritten = merged(Sized(job.program, job.sizes, shapes, job.free))
    job.program, job.sizes, job.shapes, job.free = rewritten.program, rewritten.sizes, rewritten.shapes, rewritten.free


def _named(job: Job) -> set[str]:
    """Return the names of the axes of the given plan; none if there is no plan."""
    return set() if job.given is None else {axis.name for axis in job.given.axes}


def _names_dims(job: Job) -> bool:
    """True if the given plan names every dimension of the program: its axes are the author's, so none is merged."""
    named = _named(job)
    return bool(named) and {str(d) for d in dims_of(job.program)} <= named
