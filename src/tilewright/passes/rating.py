"""The predicted time of a bound plan: that of its kernels, one after the other."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.machine import Machine
from tilewright.passes.in_rows import choice_in_rows
from tilewright.passes.job import Job
from tilewright.passes.parts import in_parts
from tilewright.passes.patching import halo_cycles
from tilewright.passes.tile.rewriting import Halves
from tilewright.passes.tile.splitting import WRITTEN_OUT
from tilewright.plan.boxes import numbers_of
from tilewright.plan.general import Cuts, GeneralChoice
from tilewright.plan.model import element_bytes, moving
from tilewright.plan.rating import kernel_cycles
from tilewright.plan.schedule import Schedule


def rated(job: Job, plan: Schedule) -> GeneralChoice:
    """The choice of a plan that is bound, with what it should take."""
    if job.parts is not None:
        return in_parts(job, job.parts)
    if job.aligned is not None:
        return choice_in_rows(job, job.aligned)
    cycles, bound = _cycles(job, plan, job.machine)
    choice = GeneralChoice(job.machine, job.program.name, plan, cycles, bound)
    if plan.pipeline is None:
        return choice
    return replace(choice, predicted=lambda machine: _cycles(job, plan, machine)[0])


def rated_on(job: Job, choice: GeneralChoice, machine: Machine) -> float:
    """Predicted cycles of a bound choice with a pipeline, on a machine with other rates."""
    if job.aligned is not None:
        main = job.aligned.main
        if main.plan is None or main.cuts is None:
            return choice.cycles
        return _cycles(main, main.plan, machine)[0]
    return _cycles(job, choice.plan, machine)[0]


def adding_up(parts: Halves, machine: Machine) -> float:
    """Cycles for the parts of a sum beside the kernel that computes them: memory, and what adds them up."""
    moved = (prod(parts.shape) + prod(parts.shape[1:])) * element_bytes(parts.partial.type.dtype)
    launches = 1 if parts.parts <= WRITTEN_OUT else 2  # many parts are added up in parts themselves
    return moving(machine, moved) + launches * machine.limits.following_cycles


def _cycles(job: Job, plan: Schedule, machine: Machine) -> tuple[float, float]:
    """(cycles of a job's one kernel, those that memory alone takes), on a machine like its own."""
    cuts = job.cuts
    assert cuts is not None
    cuts = _on(cuts, machine)
    if cuts.halo is not None:
        return halo_cycles(job, plan, cuts, machine)
    if job.workgroups is not None:
        return 0.0, 0.0
    if job.split is not None:
        sizes = {**job.sizes, **job.split.sizes}
        cycles, bound = kernel_cycles(job.split.first, sizes, numbers_of(sizes), (), cuts, machine)
        return cycles + (adding_up(job.split, machine) if cuts.roles else 0), bound
    if job.patched is not None:
        sizes = job.patched.sizes
        return kernel_cycles(job.patched.program, sizes, numbers_of(sizes), job.patched.free, cuts, machine)
    return kernel_cycles(job.looped or job.program, job.sizes, job.size, job.free, cuts, machine)


def _on(cuts: Cuts, machine: Machine) -> Cuts:
    """The parameters with the atoms of a machine that has the same ones at other rates."""
    products = {
        op: None if how is None else replace(how, atom=machine.multiply[how.atom.name])
        for op, how in cuts.products.items()
    }
    return replace(cuts, products=products)
