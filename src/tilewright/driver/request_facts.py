"""The facts of a request's program, from which plans are ranked, bound and rated."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.driver.repack import repacked
from tilewright.driver.request import Request
from tilewright.lower.block.memory import is_ordered
from tilewright.plan.facts import Facts, facts_of
from tilewright.plan.schedule import K_ROWS
from tilewright.rewrite.drop_loop import with_loop_run_once


def facts_of_request(request: Request, between: str = "") -> Facts:
    """Analyse a request's program; return its Facts, from which plans are searched, bound and rated.

    Sizes known only at the call have typical numbers. `between` names the argument that the preceding kernel writes, ""
    if there is none. The Facts also have functions that analyse two variants of the program: without its loop, and on
    copies of its operands with K as the last dimension.
    """
    sizes, program = {**request.sizes, **request.typical}, request.program
    facts = facts_of(
        program, sizes, request.free, request.open_extents, logs=request.logs, in_order=is_ordered(program)
    )
    return replace(
        facts,
        between=between,
        constant=frozenset(request.constant),
        on_k_rows=partial(_facts_on_k_rows, request),
        without_loop=partial(_facts_without_loop, request),
    )


def _facts_without_loop(request: Request) -> Facts | str:
    """Return the Facts (analysed program) of a request with its loop replaced by one iteration; or text: why the loop
    must stay.

    It must stay unless the values that the loop carries can be merged, as those of an online softmax.
    """
    program = with_loop_run_once(request.program)
    if isinstance(program, str):
        return program
    return facts_of_request(request.rewritten(program, ()))


def _facts_on_k_rows(request: Request) -> Facts | str:
    """Return the Facts (analysed program) of a request on copies of its operands with K as their last dimension.

    If operands cannot be copied so, return a text with the reason.
    """
    repacking = repacked(request, None, K_ROWS)
    return repacking if isinstance(repacking, str) else facts_of_request(repacking.main)
