"""Pinned plans (given by the author): bound and lowered as they say, or refused with the rule and the plan's line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

from tilewright.check.block import past_shared_memory
from tilewright.driver.bind import bind_plan
from tilewright.driver.bound_plan import BoundPlan, ChoosePlan, LowerPlan, MergedParts, OneKernel, RequestForms
from tilewright.driver.kernels import lower_kernels, with_workspace
from tilewright.driver.notes import notes_on
from tilewright.driver.rating import rated
from tilewright.driver.request import CompileOptions, Request
from tilewright.errors import ArgumentError, ProgramError
from tilewright.limits import shown
from tilewright.lower.block.lower import Lowered
from tilewright.machine import Machine
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.legality import stage_statements
from tilewright.plan.pinned import FRESH, Known, quote_lines
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import REVERSED, Schedule
from tilewright.plan.text import SHOWN
from tilewright.plan.unlowered import refuse_unlowered
from tilewright.transform.launch_order import can_be_early, with_known_launch
from tilewright.transform.reuse_shared import reuse_shared_memory
from tilewright.transform.scratch_memory import shared_overflow


def bind_pinned(forms: RequestForms, pinned: Schedule, between: str, choose: ChoosePlan) -> BoundPlan:
    """Return the BoundPlan of a pinned plan (given by the author): its kernels, its predicted time, and notes.

    `forms` is the request over digits (mixed-radix parts) of its dimensions, then over whole dimensions. `choose` plans
    the kernels that the plan has no lines for. `between` names the argument that the preceding kernel writes, "" if
    there is none. Raise an ArgumentError if the plan does not fit the program, or marks other sizes as open (known only
    at the call) than the program has.
    """
    request = forms[0]

    def unpinned() -> BoundPlan:
        return choose(without_plan(forms), between)

    if not pinned.in_blocks:
        _check_open(pinned, request)
    request, kernels = bind_plan(forms, pinned, choose)
    early = True if pinned.early is None and can_be_early(request.machine) else pinned.early
    choice = rated(request, kernels, replace(pinned, early=early), between)
    plan = request.with_open_marked(choice.plan)
    notes = (*choice.notes, *notes_on(request, kernels, plan))
    return BoundPlan(request, plan, replace(choice, plan=plan, notes=notes), kernels, unpinned=unpinned)


def _check_open(pinned: Schedule, request: Request) -> None:
    """Raise an ArgumentError if `pinned`, an author's plan, marks other sizes as open (known only at the call) than the
    request has.

    A plan that marks no size is refused too if its axes name an open size.
    """
    opened = {str(s) for s in request.open_extents}
    if pinned.open and not opened:
        raise ArgumentError(f"plan: {', '.join(sorted(pinned.open))}: no size is open here")
    named = {digit.name for axis in pinned.axes for digit in axis.digits} & opened
    if opened and pinned.open != named:
        raise ArgumentError(f"plan: open here are {', '.join(sorted(named))}, marked as in `M 56?`")


def known_plan(pinned: Schedule, request: Request) -> Schedule:
    """Return an author's plan, without its statement about launches if the request's machine has no early launches.

    Raise an ArgumentError if the lowering (code generator) or the machine cannot do a line of the plan. Raise one too
    if tasks run in reverse order in a program with MMAs, or with sizes known only at the call; if the plan has no axis,
    and the program has dimensions; and if it has two axes of a dimension, which only a grid program may have.
    """
    pinned = with_known_launch(pinned, request.machine)
    refuse_unlowered(pinned)
    _check_axes(pinned, request)
    if pinned.order == REVERSED and (pinned.products or pinned.atom or request.opened):
        raise ArgumentError(f"plan: `raster {REVERSED}` is for programs without products whose sizes are numbers")
    return pinned


def _check_axes(pinned: Schedule, request: Request) -> None:
    """Raise an ArgumentError if an author's plan has no axis although the program has dimensions, or if it has two axes
    of a dimension although the program is no grid program.
    """
    in_grid = request.workgroups is not None
    kernel = KernelProgram(request.program, request.sizes, request.machine, in_grid=in_grid)
    if not pinned.axes and kernel.dims:
        raise ArgumentError(f"plan: {shown(str(pinned), SHOWN)!r}: it has no axis; {FRESH}")
    for first, second in combinations(() if in_grid else pinned.axes, 2):
        if first.name == second.name:
            raise refused((first, second), f"{first.name} is said twice")


def without_plan(forms: RequestForms) -> RequestForms:
    """Return the forms of a request without its pinned plan (the plan that the author gives)."""
    return tuple(replace(form, pinned=None) for form in forms)


def better_refusal(
    fault: ArgumentError, forms: RequestForms, pinned: Schedule, between: str, choose: ChoosePlan
) -> ArgumentError:
    """Return the error `fault` about an author's plan as an error that quotes the plan's lines that it concerns.

    Wrong sizes and misspelt names are found by comparison with the plan that `choose` makes for the request without the
    author's plan. `forms` is the request over digits (mixed-radix parts) of its dimensions, then over whole dimensions.
    `between` names the argument that the preceding kernel writes, "" if there is none.
    """
    request = forms[0]
    no_blocks = CompileOptions.NO_BLOCKS if pinned.atom is None else CompileOptions.NONE
    alike = tuple(replace(each, options=each.options | no_blocks) for each in without_plan(forms))
    sizes = {s.name: n for s, n in request.sizes.items()}
    known = Known(sizes, [a.name or "" for a in request.program.args], request.machine.multiply)
    return quote_lines(fault, pinned, choose(alike, between).plan, known)


def lower_pinned(bound: BoundPlan, unpinned: Callable[[], BoundPlan], lower: LowerPlan) -> tuple[BoundPlan, Lowered]:
    """Lower a plan that the author gives; return (the bound plan, its block programs).

    Raise an ArgumentError that quotes the plan's lines if the pipeline cannot be lowered, or if tasks need more shared
    memory than the machine has. The latter is allowed if the search chooses the same plan: `unpinned()` returns its
    choice. Raise a ProgramError if a plan without a pipeline cannot be lowered. `lower` lowers a plan.
    """
    pinned = bound.request.pinned
    assert pinned is not None
    try:
        bound, lowered = lower_kernels(bound, lower)
    except ProgramError as fault:
        if bound.plan.pipeline is None:
            raise
        raise refused(stage_statements(pinned), fault.what) from None
    request = bound.request
    may_overflow = isinstance(bound.kernels, OneKernel | MergedParts) and not request.opened
    roles = bound.plan.pipeline is not None
    overflow = shared_overflow(lowered.program, request.machine, roles=roles) if may_overflow else ""
    if overflow and not _is_chosen_plan(pinned, unpinned, lower):
        _refuse_overflow(lowered, overflow, pinned, request.machine)
    return with_workspace(bound, lowered)


def _is_chosen_plan(pinned: Schedule, unpinned: Callable[[], BoundPlan], lower: LowerPlan) -> bool:
    """True if an author's plan equals the plan that is chosen and lowered without it.

    `unpinned()` returns the choice, `lower` lowers it. An equal plan is lowered even if shared memory overflows,
    because no other plan needs less.
    """
    chosen, _ = lower(unpinned())
    return chosen.plan == pinned


def _refuse_overflow(lowered: Lowered, why: str, pinned: Schedule, machine: Machine) -> None:
    """Raise an ArgumentError: tasks of an author's plan need more shared memory than the machine has, for the reason
    `why`.

    A plan without a pipeline is not refused if its tensors fit when they reuse each other's memory. The program in
    `lowered` is changed, in place, so that they do.
    """
    if pinned.pipeline is None:
        reuse_shared_memory(lowered.program, machine)
        overflow = past_shared_memory(lowered.program, machine)
        if overflow is None:
            return
        why = overflow.what
    lines = (
        [pinned.pipeline]
        if pinned.pipeline
        else [*(a for a in pinned.axes if any(d.extent > 1 for d in a.digits)), *pinned.products]
    )
    raise ArgumentError(f"plan: `{'`, `'.join(map(str, lines))}`: {why}")
