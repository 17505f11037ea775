"""Kernels by the best plan of a kind, at sizes at which another kind is faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from every_plan import plans_from_the_best

from tilewright.compiler.native import kernel_for
from tilewright.machine import Machine
from tilewright.plan.schedule import Schedule


def first_plan(kernel: Any, sizes: dict[str, int], machine: Machine, wanted: Callable[[Schedule], Any]) -> Schedule:
    """The first plan of the search that is wanted."""
    plan = next(plans_from_the_best(kernel, sizes, machine, wanted), None)
    assert plan is not None, "the search lists no such plan"
    return plan


def planned_as(kernel: Any, sizes: dict[str, int], machine: Machine, wanted: Callable[[Schedule], Any]) -> Any:
    """A kernel by the first plan of the search that is wanted."""
    return kernel_for(kernel, sizes, machine=machine, plan=first_plan(kernel, sizes, machine, wanted))


def in_roles(plan: Schedule) -> bool:
    """Whether a plan is one kernel whose waves load and multiply in roles."""
    return plan.pipeline is not None and plan.split_after is None


def on_operands_as_they_lie(plan: Schedule) -> bool:
    """Whether a plan is one launch, in roles, that reads its operands where they lie."""
    return in_roles(plan) and plan.parts is None and not plan.values


def copied_by_waves(plan: Schedule) -> bool:
    """Whether such a plan has several waves that copy."""
    return on_operands_as_they_lie(plan) and plan.pipeline is not None and plan.pipeline.producer[0] == 4
