"""The bottleneck of a plan: the time that each resource of the machine alone would take, by the cost model.

The model predicts the same plan on a machine on which only that resource takes time. The predicted time, less that of a
machine on which nothing takes time, is the time of the resource.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, inf, prod
from typing import Any

from tilewright.machine import Machine
from tilewright.plan.model import us
from tilewright.plan.schedule import Schedule

RATES = {
    "shared memory": ("shared_rate",),
    "L2": ("l2_rate",),
    "HBM": ("far_rate",),
    "lanes": ("lane_rate", "function_rate"),
}
"""Resources of a machine, and the fields of its limits that say their rates."""
PRODUCTS = "products"
"""The resource that MMA atoms are."""
TIMES = {"outside_row": "L2", "leaving_row": "L2", "gather_cycles": "lanes", "gather_latency": "lanes"}
"""Fields of the machine's limits that are cycles, and the resource that they count for."""
Predicted = Callable[[Machine], float]
"""A function from a machine to the cycles that a plan should take on it."""


def with_only_resource(machine: Machine, resource: str | None) -> Machine:
    """Return a copy of the machine on which only `resource` takes time; if `resource` is None, nothing takes time.

    `resource` is a key of RATES (a memory, or the lanes: ALUs) or PRODUCTS (the MMAs). All other resources get infinite
    rates, and cycles of 0.
    """
    limits: dict[str, Any] = {name: inf for other, names in RATES.items() if other != resource for name in names}
    limits |= {name: 0 for name, other in TIMES.items() if other != resource}
    atoms = machine.multiply
    if resource != PRODUCTS:
        atoms = {name: replace(atom, cycles=0) for name, atom in atoms.items()}
    return replace(machine, limits=replace(machine.limits, **limits), multiply=atoms)


def cycles_alone(machine: Machine, predicted: Predicted) -> dict[str, float]:
    """Return {resource: predicted cycles of a plan if only this resource takes time}, the longest first.

    `predicted(machine)` evaluates the plan's cycles on a machine. Cycles that the plan takes even on a machine on which
    nothing takes time are subtracted.
    """
    idle = predicted(with_only_resource(machine, None))
    cycles_of = {resource: predicted(with_only_resource(machine, resource)) - idle for resource in (PRODUCTS, *RATES)}
    return dict(sorted(cycles_of.items(), key=lambda item: -item[1]))


def last_wave(machine: Machine, plan: Schedule) -> tuple[int, int, float]:
    """Return (number of tasks, number of rounds, fraction of the cores that the last round uses) of the plan's grid.

    A task is one workgroup's tile; a round gives one task to each core. With 132 cores, 200 tasks are 2 rounds, and the
    fraction is 68/132. The fraction is above 0 and at most 1.
    """
    tasks, cores = prod(plan.axis(name).tasks for name in plan.grid), machine.limits.cores or 1
    waves = ceil(tasks / cores)
    return tasks, waves, (tasks - (waves - 1) * cores) / cores


def limit_lines(machine: Machine, plan: Schedule, predicted: Predicted) -> list[str]:
    """Return two lines of text for `explain`: each resource's time alone, and how full the last round of tasks is.

    Times are in microseconds, the slowest resource (the bottleneck) first. A round has one task (workgroup's tile) on
    each core. `predicted(machine)` evaluates the cycles of `plan` on a machine.
    """
    (bottleneck, longest), *rest = cycles_alone(machine, predicted).items()
    others = ", ".join(f"{resource} {us(cycles, machine)}" for resource, cycles in rest)
    tasks, waves, fill = last_wave(machine, plan)
    wave_text = "the only wave" if waves == 1 else f"the last of {waves} waves"
    return [
        f"limited by {bottleneck}, {us(longest, machine)} us alone; {others}",
        f"{tasks} tasks on {machine.limits.cores or 1} multiprocessors: {wave_text} of the grid is {fill:.0%} full",
    ]
