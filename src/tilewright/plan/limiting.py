"""What limits a plan, in the model's eyes: how long it would take were one thing alone to take time.

The model is asked again about the same plan on machines whose other rates are without limit; what is left beyond
starting and waiting is the time of that one thing. So every term that a model has is seen, whatever it looks like.
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
"""What bytes go through, or values, and the limits of a machine that say how fast."""
PRODUCTS = "products"
TIMES = {"outside_row": "L2", "leaving_row": "L2", "gather_cycles": "lanes", "gather_latency": "lanes"}
"""Limits that are cycles, and what they are counted as: rows of a box outside its tensor as what boxes come from."""
Predicted = Callable[[Machine], float]
"""The cycles that a plan should take on a machine like the one it was made for."""


def only(machine: Machine, what: str | None) -> Machine:
    """The machine, on which one thing takes as long as it does, and all others no time."""
    rates: dict[str, Any] = {name: inf for thing, names in RATES.items() if thing != what for name in names}
    rates |= {name: 0 for name, thing in TIMES.items() if thing != what}
    atoms = machine.multiply
    if what != PRODUCTS:
        atoms = {name: replace(atom, cycles=0) for name, atom in atoms.items()}
    return replace(machine, limits=replace(machine.limits, **rates), multiply=atoms)


def alone(machine: Machine, predicted: Predicted) -> dict[str, float]:
    """The cycles that each thing takes by itself, the longest first."""
    idle = predicted(only(machine, None))
    found = {what: predicted(only(machine, what)) - idle for what in (PRODUCTS, *RATES)}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def last_wave(machine: Machine, plan: Schedule) -> tuple[int, int, float]:
    """(tasks, rounds in which all cores take one each, how full the last of them is)."""
    tasks, cores = prod(plan.axis(name).tasks for name in plan.grid), machine.limits.cores or 1
    rounds = ceil(tasks / cores)
    return tasks, rounds, (tasks - (rounds - 1) * cores) / cores


def limiting(machine: Machine, plan: Schedule, predicted: Predicted) -> list[str]:
    """What limits a plan, in words: the longest of what takes time by itself, and the rest of it; the last round."""
    (first, longest), *rest = alone(machine, predicted).items()
    others = ", ".join(f"{what} {us(cycles, machine)}" for what, cycles in rest)
    tasks, rounds, full = last_wave(machine, plan)
    one = "the only wave" if rounds == 1 else f"the last of {rounds} waves"
    return [
        f"limited by {first}, {us(longest, machine)} us alone; {others}",
        f"{tasks} tasks on {machine.limits.cores or 1} multiprocessors: {one} of the grid is {full:.0%} full",
    ]
