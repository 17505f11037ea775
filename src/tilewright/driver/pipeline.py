"""From a tile program to a module: a list of passes, each a function of the result of the one before.

| pass       | from                       | to                                                                     |
|------------|----------------------------|------------------------------------------------------------------------|
| present    | request                    | the request without operations on empty tensors                        |
| canonical  | request                    | the request in the canonical form of programs with the same meaning    |
| give_rows  | request                    | the request, with sums or a unit dimension for products without rows   |
| digits     | request                    | its forms: over digits that accesses divide, over whole dimensions     |
| choose     | forms of the request       | a bound plan: pinned, fixed in part, or the best                       |
| general    | bound plan                 | the plan that is lowered, and its block programs                       |
| host       | request and block programs | the module: a host program that launches the block programs            |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.driver.bound_plan import BoundPlan, Realised, RequestForms
from tilewright.driver.canonical_form import canonical
from tilewright.driver.choose_plan import bind_given_plan, choose_plan
from tilewright.driver.host import write_host
from tilewright.driver.kernels import lower_kernels, with_workspace
from tilewright.driver.pinned_plans import lower_pinned
from tilewright.driver.quotients import require_whole_quotients
from tilewright.driver.realise import lower_ranked
from tilewright.driver.request import Request
from tilewright.lower.block.lower import Lowered
from tilewright.plan.schedule import Schedule
from tilewright.rewrite.digits import in_digits
from tilewright.rewrite.drop_empty import without_empty
from tilewright.rewrite.flatten import in_one_dim
from tilewright.rewrite.unit_rows import with_unit_rows
from tilewright.rewrite.vector_products import streams_rows_along_k, with_sums_of_terms

Dumped = Callable[[str, str, Callable[[], str]], None]
"""A function that takes the result of a pass: the pass's name, the kind of text, and a function that returns the text.

Printing a program costs as much as some passes, so the text is made only if it is wanted.
"""


def present(request: Request) -> Request:
    """Return the request with operations on empty tensors removed from its program.

    Grid programs (whose workgroups the author states) and programs with logs are returned unchanged.
    """
    if request.workgroups is not None or request.logs:
        return request
    return request.rewritten(*without_empty(request.program, request.sized.extents, request.free))


def give_rows(request: Request) -> Request:
    """Return the request with MMAs rewritten that have no M or no N, such as matrix-vector products.

    There are two rewrites. The first replaces the MMAs by an elementwise product and a sum. It is chosen if every MMA
    of the program lacks M or N; on a CPU, where a dimension of extent 1 counts as lacking, each of them must also read
    its matrix along K, and the matrix must not be constant. The second gives the MMAs a dimension of extent 1 as their
    M or N, so that an atom fits.

    The second is used where the first is not chosen, and always in these cases: the author's plan names atoms; sizes
    are known only at the call; an MMA is in a loop that does more than add MMAs; the program logs, has constraints, or
    is a grid program. A program without such MMAs is returned unchanged.
    """
    as_written = request.opened or request.logs or request.workgroups is not None
    if not _names_atoms(request.pinned) and not as_written:
        on_lanes = request.machine.lanes is not None
        units = () if on_lanes else [d for d, n in request.sized.extents.items() if n == 1]
        if on_lanes or streams_rows_along_k(request.program, request.constant, units):
            summed = with_sums_of_terms(request.program, request.free, units)
            if summed is not None:
                return request.rewritten(*summed)
    rewritten = with_unit_rows(request.program, request.free)
    if rewritten is None:
        return request
    program, free, unit = rewritten
    return request.rewritten(program, free, {**request.sized.extents, unit: 1})


def _names_atoms(plan: Schedule | None) -> bool:
    """True if `plan` is not None and names the atom of an MMA."""
    return plan is not None and (plan.atom is not None or any(line.atom is not None for line in plan.products))


REWRITES: tuple[tuple[str, Callable[[Request], Request]], ...] = (
    ("present", present),
    ("canonical", canonical),
    ("give_rows", give_rows),
)
"""Passes from a request to a request for a program with the same meaning, in order."""


def request_forms(request: Request) -> RequestForms:
    """Return the forms of a request to be planned: over digits of its dimensions, then over whole dimensions.

    Digits are mixed-radix parts, such as i//56 and i%56. On a GPU only reduced dimensions become digits, because copies
    by lanes need flat rows. There is only one form in three cases: a GPU program can be over a single flat dimension,
    and is rewritten so; a grid program (whose workgroups the author states); and a program with logs.
    """
    on_lanes, program = request.machine.lanes is not None, request.program
    if request.workgroups is not None or request.logs:
        return (request,)
    flat = in_one_dim(program, request.sizes) if on_lanes and not request.opened else None
    if flat is not None and request.longer() is None:
        return (request.rewritten(flat[0], request.free, flat[1]),)
    over_digits, extents, free = in_digits(program, request.sized.extents, request.free, summed_only=on_lanes)
    digit_form = request.rewritten(over_digits, free, extents)
    return digit_form, digit_form.rewritten(program, request.free)


def prepared(request: Request) -> RequestForms:
    """Return the forms of a request, after all passes in REWRITES: the input of the search.

    The forms are the request over digits (mixed-radix parts) of its dimensions, then over whole dimensions. Raise a
    ProgramError if a quotient of known sizes is no integer.
    """
    require_whole_quotients(request)
    for _, rewrite in REWRITES:
        request = rewrite(request)
    return request_forms(request)


def plan_request(request: Request) -> BoundPlan:
    """Return the plan of a request, bound to its kernels: the author's plan, or the best that the search finds.

    An author's plan is bound to the forms that the search plans, so that a printed plan makes the kernels that it was
    printed for. If it does not fit these, it is bound to forms that keep the loops and dimensions that it names. Raises
    an ArgumentError that quotes its lines if it does not fit these either.
    """
    if request.pinned is not None:
        forms = prepared(replace(request, pinned=None))
        bound = bind_given_plan(tuple(replace(form, pinned=request.pinned) for form in forms))
        if not isinstance(bound, str):
            return bound
    return choose_plan(prepared(request))


def lower_plan(bound: BoundPlan) -> tuple[BoundPlan, Lowered]:
    """Lower a bound plan (a plan with its kernels); return (the plan that was lowered, its block programs).

    If the search ranked several plans, it is the best one that can be lowered, which may be another than `bound`. A
    plan that the author gives is lowered itself, or refused with an ArgumentError. Raise a ProgramError if no plan can
    be lowered.
    """
    if bound.further is not None:
        return lower_ranked(bound, bound.further, lower_plan)
    if bound.unpinned is not None:
        return lower_pinned(bound, bound.unpinned, lower_plan)
    return with_workspace(*lower_kernels(bound, lower_plan))


def realise(request: Request, bound: BoundPlan, dumped: Dumped | None = None) -> Realised:
    """Lower a bound plan (a plan with its kernels) and write the host program; return a Realised with the plan, its
    explanation, the block programs and the Module.

    `dumped` is called with the text after each pass; None: there are no dumps.
    """
    dump = dumped or _no_dump
    bound, lowered = lower_plan(bound)
    dump("general", "block", lowered.program.__str__)
    module = write_host(request, lowered, bound.choice)
    dump("host", "host", module.__str__)
    return Realised(bound.plan, bound.choice, lowered, module)


def run(request: Request, dumped: Dumped | None = None) -> Realised:
    """Compile a request: run all passes in order; return a Realised with the plan, its explanation, the block programs
    and the Module.

    `dumped` is called with the program's text at the start, the plan, and the text after each lowering pass; None:
    there are no dumps. Raise an ArgumentError if the author's plan does not fit, and a ProgramError if no plan can be
    lowered.
    """
    dump = dumped or _no_dump
    dump("start", "tile", request.program.__str__)
    bound = plan_request(request)
    dump("choose", "plan", lambda: "\n".join([*bound.plan.lines(), "", bound.choice.explain(), ""]))
    return realise(request, bound, dumped)


def _no_dump(name: str, kind: str, text: Callable[[], str]) -> None:
    """Do nothing: this function takes the dumps if none are wanted.

    `name` is the pass, `kind` is the level of the text ("tile", "plan"), and `text()` would return the text.
    """
