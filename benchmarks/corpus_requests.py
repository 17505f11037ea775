"""Requests of problems, stopped before a plan is chosen, so that a search can be looked at by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from corpus_problems import Problem

from tilewright.compiler import native
from tilewright.driver import pipeline
from tilewright.driver.request import Request
from tilewright.errors import TilewrightError
from tilewright.machine import Machine
from tilewright.plan.schedule import Schedule
from tilewright.plan.search import Ranking, Rejected, as_plan

MACHINE = "hopper/132"
FAULTS = (TilewrightError, AssertionError, ArithmeticError, LookupError, AttributeError, TypeError, ValueError)
"""Errors that lowering a plan may raise: refusals, and faults, which are reported too."""


class _Prepared(Exception):
    """A request is ready to be planned."""


@contextmanager
def _stopped_before_choosing(requests: list[Request]) -> Iterator[None]:
    """Within it a compile stops where its plan would be chosen; the request over digits is added to `requests`."""

    def run(request: Request, *_: Any) -> Any:
        requests.append(pipeline.prepared(request)[0])
        raise _Prepared

    before = pipeline.run
    pipeline.run = run
    try:
        yield
    except _Prepared:
        pass
    finally:
        pipeline.run = before


def planning_of(kernel: Any, sizes: Any, machine: Machine, **more: Any) -> Request:
    """The request of a kernel when its plan is to be chosen; `more` is what a compile takes besides."""
    requests: list[Request] = []
    with _stopped_before_choosing(requests):
        native.kernel_for(kernel, sizes, machine=machine, **more)
    return requests[-1]


def request_of(problem: Problem, machine: Machine) -> Request:
    """The request of a problem when its plan is to be chosen."""
    return planning_of(problem.make(), problem.sizes, machine, dynamic=problem.dynamic, constant=problem.constant)


def best_plan(ranking: Ranking) -> tuple[Schedule, float] | None:
    """The plan of the first candidate that the lowering does, and its cycles."""
    for candidate in ranking.candidates:
        plan = as_plan(candidate)
        if not isinstance(plan, Rejected):
            return plan, candidate.cycles
    return None


def why_not_lowered(problem: Problem, machine: Machine, plan: str) -> str:
    """Why a plan of a problem is refused, in one line; empty where its kernels are lowered."""
    try:
        native.kernel_for(
            problem.make(),
            problem.sizes,
            machine=machine,
            plan=plan,
            dynamic=problem.dynamic,
            constant=problem.constant,
        )
    except FAULTS as fault:
        return f"{type(fault).__name__}: {' '.join(str(fault).split())}"[:300]
    return ""
