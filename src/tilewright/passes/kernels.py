"""The block programs of a job whose plan is bound: one kernel, or several, one after the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.check.block import check
from tilewright.ir.core import Program, Value
from tilewright.passes.abreast import abreast
from tilewright.passes.ahead import products_ahead
from tilewright.passes.empty_rounds import without_empty_rounds
from tilewright.passes.job import InRows, Job, Pass
from tilewright.passes.lane_sums import sums_by_lanes
from tilewright.passes.launching import launched
from tilewright.passes.outside import outside
from tilewright.passes.roles import with_roles
from tilewright.passes.tile.general import Lowered, lower_tiles
from tilewright.passes.tile.ordering import in_order
from tilewright.passes.tile.roles import role_of
from tilewright.plan.general import Cuts, GeneralChoice


def lower_kernels(job: Job, lower: Pass) -> None:
    """Set the block programs of a job's bound plan; `lower` is the pass for the jobs of further kernels."""
    if job.parts is not None:
        _lower_two(job, job.parts, lower)
    elif job.aligned is not None:
        _lower_repacked(job, job.aligned, lower)
    else:
        _lower_one(job, lower)


def with_workspace(job: Job) -> None:
    """Move shared tensors that do not fit to a workspace in global memory, for a GPU job of one kernel without a
    pipeline.
    """
    assert job.lowered is not None
    if job.machine.lanes is not None and job.parts is None and (job.plan is None or job.plan.pipeline is None):
        job.lowered = outside(job.lowered, job.machine)


def _lower_two(job: Job, parts: tuple[Job, Job], lower: Pass) -> None:
    """Set the block programs of a job that runs as two kernels, with a value in memory between them."""
    for part in parts:
        lower(part)
    first, second = (part.lowered for part in parts)
    assert first is not None
    assert second is not None
    job.lowered = replace(second, before=(*first.before, replace(first, before=()), *second.before))


def _lower_repacked(job: Job, repacked: InRows, lower: Pass) -> None:
    """Set the block programs of a job with repacked operands: kernels that copy, then the kernel on the copies.

    Copies that run at every launch become one launch if they can. There are none if operands are only viewed with other
    strides.
    """
    for each in (*repacked.copies, repacked.main):
        lower(each)
    last, plan = repacked.main.lowered, job.plan
    assert last is not None
    assert plan is not None
    often = [each.lowered for each in repacked.often(job.constant) if each.lowered is not None]
    once = [each.lowered for each in repacked.copies if each.lowered is not None and each.lowered not in often]
    together = abreast(f"{last.program.name}_rows", often)
    copies = (*once, *(often if together is None else (together,)))
    job.lowered = launched(replace(last, before=(*copies, *last.before)), plan.early)


def _lower_one(job: Job, lower: Pass) -> None:
    """Set the block program of one kernel; for a reduction in parts, also the kernel that adds them."""
    assert job.cuts is not None
    if job.blocked is not None:
        of_product = replace(job, shapes=job.blocked.shapes, free=())
        job.lowered, _ = _lowered(of_product, job.blocked.program, job.cuts, {**job.sizes, **job.blocked.sizes})
        return
    assert isinstance(job.choice, GeneralChoice)
    if job.patched is not None:
        sizes = {**job.sizes, **job.patched.sizes}
        patched = replace(job, sizes=sizes, free=job.patched.free, extents={})
        numbers = Substitution(job.sizes)
        written = [a for a in job.program.args if role_of(job.program, a, {}, numbers) == "out"]  # by some patch, too
        lowered, notes = _lowered(patched, job.patched.program, job.cuts, sizes, written)
        check(lowered.program, job.machine)  # an atom may not read a halo tile so
    elif job.split is None:
        lowered, notes = _lowered(job, job.looped or job.program, job.cuts, job.extents or job.sizes)
    else:
        halves, rest = job.split, job.merge
        assert rest is not None
        sizes, shapes = {**job.sizes, **halves.sizes}, {**job.shapes, halves.partial: halves.shape}
        split = replace(job, sizes=sizes, shapes=shapes, free=(), extents={})
        before, notes = _lowered(split, halves.first, job.cuts, sizes)
        lower(rest)
        assert rest.lowered is not None
        lowered = replace(rest.lowered, before=(before, *rest.lowered.before))
    job.lowered = launched(lowered, job.choice.plan.early)
    job.choice = replace(job.choice, notes=(*job.choice.notes, *notes))


def _lowered(
    job: Job, program: Program, cuts: Cuts, sizes: Mapping[Symbol, Expr | int], written: Collection[Value] = ()
) -> tuple[Lowered, tuple[str, ...]]:
    """Return (the block program of `program` for the job's machine, notes for `explain`)."""
    lowered = lower_tiles(
        program,
        sizes,
        job.shapes,
        job.machine,
        cuts,
        job.free,
        logs=job.logs,
        workgroups=job.workgroups,
        lenient=job.lenient,
        opened=job.opened,
        written=written,
    )
    if cuts.roles is None:
        if job.machine.lanes is not None:
            in_order(lowered.program)
        return lowered, ()
    if not cuts.roles.pingpong:  # halves that take tasks in turn count the rounds of each other's
        without_empty_rounds(lowered.program)
    by_lanes = sums_by_lanes(lowered.program, job.machine)
    program_in_roles, notes = with_roles(by_lanes, lowered.loads, lowered.stores, cuts.roles, job.machine)
    if cuts.overlap in ("mma ahead", "ordered"):
        program_in_roles = products_ahead(program_in_roles, job.machine, turns=cuts.overlap == "ordered")
    return replace(lowered, program=program_in_roles), notes
