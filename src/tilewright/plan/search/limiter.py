"""Find the resource that limits a candidate: the time of its kernels on machines where all other rates are infinite."""

from __future__ import annotations

from dataclasses import replace

from tilewright.machine import Machine
from tilewright.plan.limiting import cycles_alone
from tilewright.plan.search.cost import SAME_WAVES, kernel_time
from tilewright.plan.search.kernel import KernelSchedule, time_of, work_of
from tilewright.plan.search.partial_reductions import work_in_parts
from tilewright.plan.search.ranking import CandidateKernel, PlanCandidate
from tilewright.plan.search.simt import SimtKernelSchedule, count_simt_work
from tilewright.plan.search.split_k import plain_launch_cycles, split_work
from tilewright.plan.search.tiling import Tiling
from tilewright.plan.search.uniform import count_uniform_work
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule


def limits_of(candidate: PlanCandidate, machine: Machine) -> dict[str, float]:
    """Return {resource: cycles of the candidate if only this resource takes time}, the longest first.

    The first resource limits the candidate. Resources are MMAs and the machine's rates, such as lanes and memory. Fixed
    cycles, which remain if no resource takes time, are subtracted from each number. No kernel of the candidate may be a
    BlockedKernelSchedule.
    """
    return cycles_alone(machine, lambda other: cycles_on(candidate, other))


def cycles_on(candidate: PlanCandidate, machine: Machine) -> float:
    """Predict the cycles of a candidate on another machine: the sum over its kernels. Copies of operands do not count.

    The machine must have atoms of the same names as the candidate's; its rates may differ. No kernel may be a
    BlockedKernelSchedule.
    """
    following = 0.0 if candidate.then is None else cycles_on(candidate.then, machine)
    return _kernel_cycles(candidate.kernel, machine) + following


def _kernel_cycles(kernel: CandidateKernel, machine: Machine) -> float:
    """Predict the cycles of one kernel on another machine, with the merge of partial results if it splits a reduction.

    The machine must have atoms of the same names as the kernel's; its rates may differ. Return 0 if the work of the
    kernel cannot be counted. The kernel must not be a BlockedKernelSchedule.
    """
    if isinstance(kernel, SimtKernelSchedule):
        on_other = replace(kernel, program=replace(kernel.program, machine=machine))
        return kernel_time(machine, count_simt_work(on_other), SAME_WAVES).cycles
    if isinstance(kernel, UniformKernelSchedule):
        products = {
            op: None if microkernel is None else replace(microkernel, atom=machine.multiply[microkernel.atom.name])
            for op, microkernel in kernel.products.items()
        }
        uniform = replace(kernel, machine=machine, products=products)
        uniform_work, merge = count_uniform_work(uniform), 0.0
        if kernel.parts is not None:
            uniform_work, merge = work_in_parts(uniform, kernel.parts)
        return kernel_time(machine, uniform_work, SAME_WAVES).cycles + merge
    assert isinstance(kernel, KernelSchedule)
    on_machine = _with_machine(kernel, machine)
    work = work_of(on_machine)
    if work is None:
        return 0.0
    work, merge = (work, 0.0) if kernel.parts is None else split_work(on_machine, work, kernel.parts)
    return time_of(on_machine, work).cycles + merge + plain_launch_cycles(kernel, machine)


def _with_machine(kernel: KernelSchedule, machine: Machine) -> KernelSchedule:
    """Return a copy of `kernel` for the machine `machine`, with that machine's atoms of the same names."""
    t = kernel.tiling
    products = tuple(
        replace(
            p,
            atoms=tuple(machine.multiply[x.name] for x in p.atoms),
            kept_atoms=tuple(machine.multiply[x.name] for x in p.kept_atoms),
        )
        for p in t.o.products
    )
    tiling = Tiling(replace(t.o, machine=machine, products=products), t.tiles, (t.down, t.across))
    pairs = zip(kernel.mmas, products, strict=True)
    mmas = tuple(replace(m, oriented=p, atom=machine.multiply[m.atom.name]) for m, p in pairs)
    return replace(kernel, tiling=tiling, mmas=mmas)
