"""Errors about illegal plans: they quote the statements that break a rule, and say the rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tilewright.errors import ArgumentError, ProgramError
from tilewright.plan.schedule import Schedule

T = TypeVar("T")


def refused(statements: object, why: str) -> ArgumentError:
    """Return an ArgumentError that quotes statements of a plan, and says which rule they break.

    `statements` is one statement or a tuple of them, `why` is the rule that they break together.

    >>> print(refused("grid M", "there are tasks of N"))
    plan: `grid M`: there are tasks of N
    >>> print(refused(("axis K = (K 9): whole", "stages 4"), "they need more shared memory than there is"))
    plan: `axis K = (K 9): whole`, `stages 4`: they need more shared memory than there is
    """
    quoted = statements if isinstance(statements, tuple) else (statements,)
    return ArgumentError(f"plan: {', '.join(f'`{line}`' for line in quoted)}: {why}")


def result_or_refusal(step: Callable[[], T]) -> T | str:
    """Call `step`, a function that binds or lowers a plan; return its result, or text: why the plan is illegal.

    The text comes from an ArgumentError or a ProgramError that `step` raises; any other error passes through.

    >>> def step():
    ...     raise refused("grid M", "there are tasks of N")
    >>> result_or_refusal(step)
    '`grid M`: there are tasks of N'
    """
    try:
        return step()
    except (ArgumentError, ProgramError) as fault:
        return fault.what if isinstance(fault, ProgramError) else str(fault).removeprefix("plan: ")


def tasks_line(plan: Schedule) -> str:
    """Return the plan's statement `grid` as text, for an error to quote; the statement of the last axis if none."""
    return plan.line("grid") or plan.lines()[len(plan.axes) - 1]


def raster_line(plan: Schedule) -> str:
    """Return the plan's statement `raster` (grouping and order of tasks) as text, for an error to quote.

    If the plan has no such statement, it is the statement `grid`; if it has none either, the statement of the last
    axis.
    """
    return plan.line("raster") or tasks_line(plan)
