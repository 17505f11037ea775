"""From a tile program to a module: a plain row of passes, each a function of what the one before returned.

| pass       | from                       | to                                                                     |
|------------|----------------------------|------------------------------------------------------------------------|
| present    | request                    | the request, without what has no elements                              |
| canonical  | request                    | the request, in the one writing of programs that mean the same         |
| give_rows  | request                    | the request, with sums or a unit dimension for products without rows   |
| digits     | request                    | its writings: over digits that accesses divide, over whole dimensions  |
| choose     | writings                   | a bound plan: pinned, fixed in part, or the best                       |
| general    | bound plan                 | the plan that is lowered, and its block programs                       |
| host       | request and block programs | the module: a host program that launches the block programs            |
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.passes.bound_plan import BoundPlan, Realised, Writings
from tilewright.passes.canonical import canonical
from tilewright.passes.choosing import choose_plan
from tilewright.passes.given import lower_given
from tilewright.passes.host import write_host
from tilewright.passes.kernels import lower_kernels, with_workspace
from tilewright.passes.realising import lower_ranked
from tilewright.passes.request import Request
from tilewright.passes.tile.digits import in_digits
from tilewright.passes.tile.empty import without_empty
from tilewright.passes.tile.flat import in_one
from tilewright.passes.tile.general import Lowered
from tilewright.passes.tile.unit_rows import with_unit_rows
from tilewright.passes.tile.vector_products import with_sums_of_terms

Dumped = Callable[[str, str, Callable[[], str]], None]
"""Takes what a pass left: the pass's name, the kind of text, and the text when it is wanted.

Writing a program costs as much as some passes.
"""


def present(request: Request) -> Request:
    """Return the request without what has no elements; grid programs and programs with logs stay."""
    if request.workgroups is not None or request.logs:
        return request
    return request.rewritten(*without_empty(request.program, request.sized.extents, request.free))


def give_rows(request: Request) -> Request:
    """Return the request with sums for MMAs without rows or columns on a GPU, else with a dimension of extent 1.

    Atoms have rows and columns. So MMAs get a dimension too if a pinned plan names atoms, if sizes are open, and in
    programs with logs and grid programs.
    """
    names_atoms = request.pinned is not None and any(line.atom is not None for line in request.pinned.products)
    as_written = request.opened or request.logs or request.workgroups is not None
    if request.machine.lanes is not None and not names_atoms and not as_written:
        summed = with_sums_of_terms(request.program, request.free)
        if summed is not None:
            return request.rewritten(*summed)
    rewritten = with_unit_rows(request.program, request.free)
    if rewritten is None:
        return request
    program, free, unit = rewritten
    return request.rewritten(program, free, {**request.sized.extents, unit: 1})


REWRITES: tuple[tuple[str, Callable[[Request], Request]], ...] = (
    ("present", present),
    ("canonical", canonical),
    ("give_rows", give_rows),
)
"""Passes from a request to one for a program that means the same."""


def writings_of(request: Request) -> Writings:
    """Return the writings of a request: over one flat dimension if its program has no other; else over digits
    (mixed-radix parts of dimensions), and over whole dimensions.

    Programs with logs and grid programs stay as they are. Copies over lanes go along flat rows as they are, so that
    on GPUs only summed dimensions become digits.
    """
    on_lanes, program = request.machine.lanes is not None, request.program
    if request.workgroups is not None or request.logs:
        return (request,)
    flat = in_one(program, request.sizes) if on_lanes and not request.opened else None
    if flat is not None and request.longer() is None:
        return (request.rewritten(flat[0], request.free, flat[1]),)
    over_digits, extents, free = in_digits(program, request.sized.extents, request.free, summed_only=on_lanes)
    divided = request.rewritten(over_digits, free, extents)
    return divided, divided.rewritten(program, request.free)


def prepared(request: Request) -> Writings:
    """Return the writings of a request whose program is rewritten, ready to be planned."""
    for _, rewrite in REWRITES:
        request = rewrite(request)
    return writings_of(request)


def lower_plan(bound: BoundPlan) -> tuple[BoundPlan, Lowered]:
    """Return (the best plan that can be lowered, or the bound one; its block programs)."""
    if bound.further is not None:
        return lower_ranked(bound, bound.further, lower_plan)
    if bound.unpinned is not None:
        return lower_given(bound, bound.unpinned, lower_plan)
    return with_workspace(*lower_kernels(bound, lower_plan))


def realise(request: Request, bound: BoundPlan, dumped: Dumped | None = None) -> Realised:
    """Return what a request comes to by a bound plan; `dumped` gets the text after each pass."""
    dump = dumped or _nothing
    bound, lowered = lower_plan(bound)
    dump("general", "block", lowered.program.__str__)
    module = write_host(request, lowered)
    dump("host", "host", module.__str__)
    return Realised(bound.plan, bound.choice, lowered, module)


def run(request: Request, dumped: Dumped | None = None) -> Realised:
    """Run all passes in order; `dumped` gets the program's text before the first, and what each planning and lowering
    pass returned.
    """
    dump = dumped or _nothing
    dump("start", "tile", request.program.__str__)
    bound = choose_plan(prepared(request))
    dump("choose", "plan", lambda: "\n".join([*bound.plan.lines(), "", bound.choice.explain(), ""]))
    return realise(request, bound, dumped)


def _nothing(name: str, kind: str, text: Callable[[], str]) -> None:
    """Take what a pass left, and write nothing."""
