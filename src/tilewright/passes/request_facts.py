"""The facts of a request's program, on which plans are ranked, bound and rated."""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.request import Request
from tilewright.passes.tile.memory import is_ordered
from tilewright.plan.facts import Facts, facts_of


def facts_of_request(request: Request, between: str = "") -> Facts:
    """Return the facts of a request's program, with typical numbers for sizes that are known only at the call.

    `between` is the argument that the kernel before it writes, where the program is the second of two.
    """
    sizes, program = {**request.sizes, **request.typical}, request.program
    facts = facts_of(
        program, sizes, request.free, request.open_extents, logs=request.logs, in_order=is_ordered(program)
    )
    return replace(facts, between=between)
