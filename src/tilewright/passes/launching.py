"""The start of a program's launch: after the previous launch on its stream has ended, or early, while that one ends.

Early is the default wherever the machine has such launches. It hides the way from the end of one grid to the first copy
of the next: the launch itself, making barriers, dealing out registers. These rules hold:

- Every role waits before it touches memory, until the launch before has ended and what that wrote can be read. Before
  the wait, a workgroup touches only its own: barriers, registers, descriptions of tensors that the launch passes.
- A program that waits for memory lets the next launch in right after that wait: all launches before this one have ended
  by then, and waiting for one predecessor is enough. One with products does so when its workgroups end: they take a
  core each, and what came earlier would crowd on the few cores that have none (1000x1000x1000 lost 0.6 us so).
- All programs of one plan follow its word: those that add up parts of a sum as the one that multiplies.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import ArgumentError
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Op
from tilewright.machine import Machine
from tilewright.passes.tile.general import Lowered
from tilewright.plan.general import GeneralChoice
from tilewright.plan.schedule import LAUNCHES, Schedule

EARLY = "programmatic"
"""The launch of a block program that begins while the one before ends."""


def can_be_early(machine: Machine) -> bool:
    """True if the machine has launches that begin while the previous one ends."""
    return EARLY in machine.launches


def launching(machine: Machine, early: bool) -> float:
    """Return the cycles of a launch; an early one takes at most as long as one that follows another right away."""
    limits = machine.limits
    return min(limits.launch_cycles, limits.following_cycles) if early else limits.launch_cycles


def with_known_launch(given: Schedule, machine: Machine) -> Schedule:
    """Return the given plan; on a machine without early launches, refuse an early one, and drop the word otherwise."""
    if can_be_early(machine):
        return given
    if given.early:
        word = f"launch {LAUNCHES[True]}"
        raise ArgumentError(f"plan: `{word}`: {machine.name} has no launches that begin while another ends")
    return replace(given, early=None)


def with_launch(choice: GeneralChoice, stated: bool | None) -> GeneralChoice:
    """Return a choice whose plans say whether they launch early, with the predicted times of that.

    `stated` is what a given plan says; None: early. On machines without early launches the choice is unchanged.
    """
    machine = choice.machine
    if not can_be_early(machine):
        return choice
    early = stated is None or stated
    less = launching(machine, early=False) - launching(machine, early)
    return replace(
        choice,
        plan=replace(choice.plan, early=early),
        cycles=max(0.0, choice.cycles - less),
        candidates=tuple(replace(plan, early=early) for plan in choice.candidates),
        costs=tuple(cost - less for cost in choice.costs),
    )


def launched(lowered: Lowered, early: bool | None) -> Lowered:
    """Return a block program, and those before it, with records that say whether they launch early.

    Programs that pack an argument have no such record: they are for any machine.
    """
    program = lowered.program
    records = [record for record in program.records if record.name != "launch"]
    if early:
        records.append(Op(BLOCK.records["launch"], (), {"how": EARLY}))
    before = tuple(launched(each, early) for each in lowered.before)
    return replace(lowered, program=replace(program, records=records), before=before)
