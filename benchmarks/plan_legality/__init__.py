"""Whether a plan can be done at all: a checker that knows the text of plans, shapes and machine rows, not the planner.

`broken(text, shapes, machine)` gives the first rule that a plan breaks, with the line, or None: the plan is legal. The
rules are those of meaning (`axes`: an axis is covered once, tasks share no result; `walks`: what is taken when), of
divisibility (`blocks`: units of an atom, rows of shared memory; `loads`: operands and halo tiles) and of the resources
(`registers`: waves and registers; `shared`: shared memory); `kernels` says what each of two kernels has. `RULES` names
them all; the docstring of each rule says what it is. Of the package only `parse_plan` with the types of plans, and the
rows of machines, are used: a planner that refuses a legal plan, or does an illegal one, is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from plan_shapes import Shapes

from plan_legality import axes, blocks, loads, registers, shared, walks
from plan_legality.kernels import kernels_of
from plan_legality.reading import Broken, Reading
from plan_legality.shared import shared_bytes
from tilewright.errors import ArgumentError
from tilewright.machine import Machine
from tilewright.plan.text import parse_plan

RULES: dict[str, Callable[[Reading], Iterator[Broken]]] = {
    "sizes": axes.sizes,
    "axis": axes.axis,
    "levels": axes.levels,
    "tasks": axes.tasks,
    "stated": axes.stated,
    "products": blocks.products,
    "atom": blocks.atom,
    "parts": axes.parts,
    "divisible": blocks.divisible,
    "block": blocks.block,
    "k step": blocks.k_step,
    "loops": axes.loops,
    "order": axes.order,
    "operands": loads.operands,
    "halo": loads.halo,
    "waves": registers.waves,
    "stages": shared.stages,
    "copies": loads.copies,
    "registers": registers.registers,
    "register file": registers.register_file,
    "shared memory": shared.shared_memory,
    "schedule": walks.schedule,
    "overlap": walks.overlap,
    "launch": walks.launch,
}
"""Every rule, in the order in which they are asked; `statement` (the text can be read), `two kernels`, `tile registers`
and `vector registers` are found on the way."""


def broken(text: str, shapes: Shapes, machine: Machine) -> Broken | None:
    """The first rule that a plan breaks; None: it is legal."""
    try:
        plan = parse_plan(text)
    except ArgumentError as fault:
        return Broken("statement", text, str(fault))
    readings = kernels_of(plan, shapes, machine)
    if isinstance(readings, Broken):
        return readings
    return next((found for reading in readings if (found := _of_kernel(reading)) is not None), None)


def _of_kernel(reading: Reading) -> Broken | None:
    return next((fault for rule in RULES.values() for fault in rule(reading)), None)
