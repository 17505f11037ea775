"""Predict the time of a given plan from its lines, with the kernels and the cost model of the search.

It is the inverse of `as_plan`. Nothing is enumerated, so that plans that the search does not list have a time too.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.machine import Machine
from tilewright.plan.facts import Facts
from tilewright.plan.schedule import DIAGONAL, LAUNCH, Schedule
from tilewright.plan.search.blocked import rate_blocks
from tilewright.plan.search.diagonal import block_diagonal
from tilewright.plan.search.partition import TIMES, TIMES_WHOLE, GraphCut, two_kernel_splits
from tilewright.plan.search.plan_axes import plan_axes
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.rate_kernel import rate_pipeline
from tilewright.plan.search.rate_lanes import is_simt_plan, rate_simt, rate_uniform
from tilewright.plan.search.repack import repackings
from tilewright.plan.search.row_copies import with_copies
from tilewright.plan.search.search import search_facts, two_kernels
from tilewright.plan.search.simt import simt_program


def rate_plan(facts: Facts, machine: Machine, plan: Schedule) -> PlanCandidate | str:
    """Predict the time of a given plan; return it as a PlanCandidate with cycles, or text: why it cannot be timed.

    `facts` is the whole analysed program, even if the plan splits it into two kernels. Text is returned in four cases:
    the loop of the plan's line `whole` cannot be removed; the program cannot be split where the plan says; the search
    knows no layout with the forms of the plan's `repack` lines; or a kernel itself cannot be timed. Raise ArgumentError
    if the plan states an atom for a CPU kernel of one product and is illegal.
    """
    if plan.whole is not None:
        one_iteration = "nobody can tell" if facts.without_loop is None else facts.without_loop()
        if isinstance(one_iteration, str):
            return f"`whole {plan.whole}`: {one_iteration}"
        facts = one_iteration
    if plan.split_at is not None:
        return _rate_two_kernels(facts, machine, plan)
    if plan.early is False:  # as on a machine that launches no kernel while another ends
        machine = replace(machine, launches=machine.launches - {"programmatic"})
    forms = {line.name: line.form for line in plan.values if line.at == LAUNCH}
    if not forms:
        return _rate_kernel(facts, machine, plan, 1)
    batch, copied = 1, dict[str, str]()
    for name, form in forms.items():
        if form.startswith(DIAGONAL):
            batch = int(form.removeprefix(DIAGONAL))
        else:
            copied[name] = form
    kernel_lines = replace(plan, values=tuple(line for line in plan.values if line.at != LAUNCH))
    choices = list(repackings(facts, machine, Ranking()))
    if not copied:  # blocks of a batch, or of rows
        facts = next((x.facts for x in choices if x.only_blocks and not x.rewrite.forms), facts)
        return _with_diagonal_b(_rate_kernel(facts, machine, kernel_lines, batch), machine)
    repacked = next((x for x in choices if dict(x.rewrite.forms) == copied), None)
    if repacked is None:
        return f"no copies are {', '.join(f'`repack {name}: {form}`' for name, form in copied.items())}"
    kernel = _rate_kernel(repacked.facts, machine, kernel_lines, batch)
    return kernel if isinstance(kernel, str) else _with_diagonal_b(with_copies(kernel, repacked), machine)


def _with_diagonal_b(kernel: PlanCandidate | str, machine: Machine) -> PlanCandidate | str:
    """Return the candidate `kernel` with operand B repacked to block-diagonal form, if its tiles have several GEMMs.

    A candidate with one GEMM per tile is returned unchanged. So is a text (why there is no candidate).
    """
    return kernel if isinstance(kernel, str) else block_diagonal(kernel, machine)


def _rate_two_kernels(facts: Facts, machine: Machine, plan: Schedule) -> PlanCandidate | str:
    """Predict the time of a plan of two kernels; return a PlanCandidate with cycles, or text: why it cannot be timed.

    `facts` is the whole analysed program, which is split after or before the MMA that the plan names. If the plan does
    not describe the second kernel, the search's best second kernel is used. Raise ArgumentError as `rate_plan` does.
    """
    names = (plan.split_after or "", plan.split_before or "")
    times = TIMES if plan.whole is None else TIMES_WHOLE
    cut = next((c for c in two_kernel_splits(facts, Ranking(), times) if (c.after, c.before) == names), None)
    if cut is None:
        return f"`split kernel {plan.split_at}`: no value there goes alone from one kernel to another"
    one = rate_plan(cut.first, machine, replace(plan, split_after=None, split_before=None, then=None, whole=None))
    two = _rate_second_kernel(cut, machine, plan.then)
    if isinstance(one, str) or isinstance(two, str):
        return one if isinstance(one, str) else str(two)
    return two_kernels(cut, one, two, machine)


def _rate_second_kernel(cut: GraphCut, machine: Machine, plan: Schedule | None) -> PlanCandidate | str:
    """Return the second kernel of a split program as a PlanCandidate: from `plan`, or the search's best if it is None.

    `cut` (a GraphCut) has the analysed programs of both kernels. Return text if there is no candidate: why `plan`
    cannot be timed, or that the search has no plan.
    """
    if plan is not None:
        return rate_plan(cut.second, machine, plan)
    return search_facts(cut.second, machine).best or "the second kernel has no plan"


def _rate_kernel(facts: Facts, machine: Machine, plan: Schedule, batch: int) -> PlanCandidate | str:
    """Predict the time of a plan of one kernel; return a PlanCandidate with cycles, or text: why it cannot be timed.

    `batch` is the number of GEMMs per tile, the blocks of a block-diagonal B; 1 if B is not block-diagonal. `facts` is
    the analysed program. Raise ArgumentError if the plan states an atom for a CPU kernel of one product and is illegal.
    """
    if plan.atom is not None:
        return rate_blocks(facts, machine, plan)
    program = simt_program(facts, machine) if plan.pipeline is None and plan.products else None
    if program is not None and is_simt_plan(program, plan):
        return rate_simt(program, plan)
    axes = plan_axes(facts, plan)
    if isinstance(axes, str):
        return axes
    if plan.pipeline is None:
        return rate_uniform(facts, machine, plan, axes)
    return rate_pipeline(facts, machine, plan, plan.pipeline, axes, batch)
