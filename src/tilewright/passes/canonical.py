"""The pass that gives programs which mean the same one writing, so that they get the same plan."""

from __future__ import annotations

from tilewright.passes.job import Job
from tilewright.passes.tile.dim_order import in_dim_order
from tilewright.passes.tile.equal_reads import with_equal_reads_once
from tilewright.passes.tile.fission import with_sums_apart
from tilewright.passes.tile.merging import Sized, merged
from tilewright.plan.general import dims_of


def canonical(job: Job) -> None:
    """Rewrite the program of a GPU job in the canonical form, so that programs that mean the same get the same plan.

    Equal reads are one; a loop has only sums that no MMA needs before the others; tiles are in the order of results;
    dimensions of MMAs and reductions are merged if they are contiguous in memory. Programs with logs and grid programs
    stay: they are over the author's dimensions.
    """
    if job.logs or job.workgroups is not None:
        return
    job.program, job.free = in_dim_order(*with_equal_reads_once(job.program, job.free))
    if job.machine.lanes is not None:
        job.program, job.free = with_sums_apart(job.program, job.free)
    if job.machine.lanes is None or job.opened or job.longer() is not None or _names_dims(job):
        return
    shapes = {a: tuple(int(n) for n in shape) for a, shape in job.shapes.items()}
    rows = min((atom.shape[0] for atom in job.machine.multiply.values() if atom.slab is not None), default=1)
    rewritten = merged(Sized(job.program, job.sizes, shapes, job.free, rows))
    job.program, job.sizes, job.shapes, job.free = rewritten.program, rewritten.sizes, rewritten.shapes, rewritten.free


def _names_dims(job: Job) -> bool:
    """True if the given plan names every dimension of the program: its axes are the author's, so none is merged."""
    named = set() if job.given is None else {axis.name for axis in job.given.axes}
    return bool(named) and {str(d) for d in dims_of(job.program)} <= named
