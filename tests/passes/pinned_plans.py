"""Kernels by the best plan of a kind, at sizes at which another kind is faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from every_plan import every_plan

from tilewright.compiler.native import kernel_for
from tilewright.machine import Machine
from tilewright.plan.schedule import Schedule


def planned_as(kernel: Any, sizes: dict[str, int], machine: Machine, wanted: Callable[[Schedule], Any]) -> Any:
    """A kernel by the first plan of the search that is wanted."""
    plans = every_plan(kernel, sizes, machine, lambda plan: bool(wanted(plan)))
    assert plans, "the search lists no such plan"
    return kernel_for(kernel, sizes, machine=machine, plan=plans[0])


def in_roles(plan: Schedule) -> bool:
    """Whether a plan is one kernel whose waves load and multiply in roles."""
    return plan.pipeline is not None and plan.split_after is None
