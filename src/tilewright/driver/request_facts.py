"""The facts of a request's program, from which plans are ranked, bound and rated."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.driver.repack import repacked
from tilewright.driver.request import Request
from tilewright.lower.block.memory import is_ordered
from tilewright.plan.facts import Facts, facts_of
from tilewright.plan.schedule import K_ROWS
from tilewright.rewrite.drop_loop import dissolved


def facts_of_request(request: Request, between: str = "") -> Facts:
    """Return the facts of a request's program, with typical numbers for open sizes. `between` names the argument that
    the preceding kernel writes (empty: there is none).
    """
    sizes, program = {**request.sizes, **request.typical}, request.program
    facts = facts_of(
        program, sizes, request.free, request.open_extents, logs=request.logs, in_order=is_ordered(program)
    )
    return replace(
        facts,
        between=between,
        on_k_rows=partial(_facts_on_k_rows, request),
        without_loop=partial(_facts_without_loop, request),
    )


def _facts_without_loop(request: Request) -> Facts | str:
    """Return the facts of a request's program without its loop, whose carried values can be merged; or a text that says
    why the loop must stay.
    """
    program = dissolved(request.program)
    if isinstance(program, str):
        return program
    return replace(facts_of_request(request.rewritten(program, ())), is_whole=True)


def _facts_on_k_rows(request: Request) -> Facts | str:
    """Return the facts of a request's program on copies of its operands that have K as their last dimension; or a text
    that says why operands cannot be copied so.
    """
    repacking = repacked(request, None, K_ROWS)
    return repacking if isinstance(repacking, str) else facts_of_request(repacking.main)
