"""The pass that gives programs which mean the same one writing, so that they get the same plan."""

from __future__ import annotations

from tilewright.ir.core import Program
from tilewright.passes.job import Job
from tilewright.passes.tile.dim_order import in_dim_order
from tilewright.passes.tile.equal_reads import with_equal_reads_once
from tilewright.passes.tile.merging import Sized, merged
from tilewright.plan.general import dims_of
from tilewright.plan.schedule import Schedule


def canonical(job: Job) -> None:
    """Rewrite the program of a job in the canonical form, so that programs that mean the same get the same plan.

    Equal reads are one; tiles are in the order of results; dimensions of MMAs and reductions are merged if they are
    contiguous in memory. Programs with logs and grid programs stay: they are over the author's dimensions.
    """
    if job.logs or job.workgroups is not None:
        return
    job.program, job.free = in_dim_order(*with_equal_reads_once(job.program, job.free))
    if job.opened or job.longer() is not None:
        return
    shapes = {a: tuple(int(n) for n in shape) for a, shape in job.shapes.items()}
    divides = job.machine.lanes is not None  # on CPUs what accesses divide is split into digits again
    rewritten = merged(Sized(job.program, job.sizes, shapes, job.free), divides=divides)
    if job.given is not None and _names_dims(job.given, job.program, rewritten.program):
        return
    job.program, job.sizes, job.shapes, job.free = rewritten.program, rewritten.sizes, rewritten.shapes, rewritten.free


def _names_dims(plan: Schedule, program: Program, rewritten: Program) -> bool:
    """True if the axes of a given plan are dimensions of the author's program, so that none is merged.

    Such a plan names every dimension of `program`. A plan of blocks (with axes of rows, columns and depth) names
    digits (mixed-radix parts) of dimensions: it names none that only the `rewritten` program has, where that has some.
    """
    if plan.atom is None:
        named = {axis.name for axis in plan.axes}
        return bool(named) and {str(d) for d in dims_of(program)} <= named
    made = [f"{d}_".lower() for d in dims_of(rewritten) if d not in dims_of(program)]
    digits = [digit.name for axis in plan.axes for digit in axis.digits]
    return bool(made) and not any(digit.startswith(tuple(made)) for digit in digits)
