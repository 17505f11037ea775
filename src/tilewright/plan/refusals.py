"""Refusals of a plan: the lines that a rule speaks of, and what the rule says."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.errors import ArgumentError, ProgramError
from tilewright.plan.schedule import Schedule


def refused(lines: object, why: str) -> ArgumentError:
    """The refusal of a line of a plan, or of several that break a rule together.

    >>> print(refused("grid M", "there are tasks of N"))
    plan: `grid M`: there are tasks of N
    >>> print(refused(("axis K = (K 9): whole", "stages 4"), "they need more shared memory than there is"))
    plan: `axis K = (K 9): whole`, `stages 4`: they need more shared memory than there is
    """
    every = lines if isinstance(lines, tuple) else (lines,)
    return ArgumentError(f"plan: {', '.join(f'`{line}`' for line in every)}: {why}")


def refusal_of(step: Callable[[], None]) -> str:
    """Bind or lower a plan; return why it is refused, or nothing where it is done.

    >>> def step():
    ...     raise refused("grid M", "there are tasks of N")
    >>> refusal_of(step)
    '`grid M`: there are tasks of N'
    """
    try:
        step()
    except (ArgumentError, ProgramError) as fault:
        return fault.what if isinstance(fault, ProgramError) else str(fault).removeprefix("plan: ")
    return ""


def tasks_line(plan: Schedule) -> str:
    """The line that orders tasks, as the plan says it; without one, the last axis."""
    return plan.line("grid") or plan.lines()[len(plan.axes) - 1]


def raster_line(plan: Schedule) -> str:
    """The line that groups tasks, or says in which order workers take them; without one, that of the grid."""
    return plan.line("raster") or tasks_line(plan)
