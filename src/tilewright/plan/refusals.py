"""Refusals of a plan: the lines that a rule speaks of, and what the rule says."""

from __future__ import annotations

from tilewright.errors import ArgumentError
from tilewright.plan.plan import Plan


def refused(lines: object, why: str) -> ArgumentError:
    """The refusal of a line of a plan, or of several that break a rule together.

    >>> print(refused("tasks M", "there are tasks of N"))
    plan: `tasks M`: there are tasks of N
    >>> print(refused(("axis K = (K 9): whole", "ring 4"), "they need more shared memory than there is"))
    plan: `axis K = (K 9): whole`, `ring 4`: they need more shared memory than there is
    """
    every = lines if isinstance(lines, tuple) else (lines,)
    return ArgumentError(f"plan: {', '.join(f'`{line}`' for line in every)}: {why}")


def tasks_line(plan: Plan) -> str:
    """The line that orders tasks, as the plan says it; without one, the last axis."""
    lines = plan.lines()
    return next((line for line in lines if line.startswith("tasks ")), lines[len(plan.axes) - 1])
