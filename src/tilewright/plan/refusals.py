"""Refusals of a plan: the lines that a rule speaks of, and what the rule says."""

from __future__ import annotations

from tilewright.errors import ArgumentError
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


def tasks_line(plan: Schedule) -> str:
    """The line that orders tasks, as the plan says it; without one, the last axis."""
    return plan.line("grid") or plan.lines()[len(plan.axes) - 1]


def raster_line(plan: Schedule) -> str:
    """The line that groups tasks, or says in which order workers take them; without one, that of the grid."""
    return plan.line("raster") or tasks_line(plan)
