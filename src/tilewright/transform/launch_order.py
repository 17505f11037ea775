"""When a launch starts: after the previous launch on its stream has ended, or early, while that one ends.

Early is the default if the machine can do it. It hides the time from the end of one grid to the first copy of the
next: the launch itself, the initialisation of barriers, the allocation of registers. These rules hold:

- Every role waits until the launch before has ended, and its results can be read, before it touches memory. Before
  that wait a workgroup touches only its own barriers, registers and tensor descriptions.
- A memory-bound program lets the next launch start right after that wait: all earlier launches have ended by then, and
  waiting for one predecessor is enough. A program with MMAs does so when its workgroups end: they take a core each, and
  workgroups that came earlier would crowd on the few free cores (1000x1000x1000 lost 0.6 us that way).
- All programs of one plan do the same: the merge of split-K parts launches early if the MMA does.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import ArgumentError
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Op
from tilewright.lower.block.lower import Lowered
from tilewright.machine import Machine
from tilewright.plan.schedule import LAUNCHES, Schedule

EARLY = "programmatic"
"""The launch of a block program that begins while the one before ends."""


def can_be_early(machine: Machine) -> bool:
    """True if the machine can start a launch before the previous launch on the stream has ended."""
    return EARLY in machine.launches


def launch_cycles(machine: Machine, early: bool) -> float:
    """Return the cycles that one launch takes on the machine: `limits.launch_cycles`. If `early`, the launch begins
    before the previous one has ended; the result is then `limits.following_cycles` if that is less.
    """
    limits = machine.limits
    return min(limits.launch_cycles, limits.following_cycles) if early else limits.launch_cycles


def with_known_launch(plan: Schedule, machine: Machine) -> Schedule:
    """Return `plan` unchanged if the machine has early launches, which begin before the previous launch has ended. On
    other machines, return `plan` with `early` None (nothing said); raise an ArgumentError if `plan` asks for an early
    launch.
    """
    if can_be_early(machine):
        return plan
    if plan.early:
        word = f"launch {LAUNCHES[True]}"
        raise ArgumentError(f"plan: `{word}`: {machine.name} has no launches that begin while another ends")
    return replace(plan, early=None)


def launched(lowered: Lowered, early: bool | None) -> Lowered:
    """Return `lowered` with a `launch` record in its block program and in those that run before it, if `early` is true;
    the record says to start before the previous launch has ended. Otherwise return `lowered` without such records.
    Programs that pack an argument (`lowered.packs`) are not changed.
    """
    program = lowered.program
    records = [record for record in program.records if record.name != "launch"]
    if early:
        records.append(Op(BLOCK.records["launch"], (), {"how": EARLY}))
    before = tuple(launched(each, early) for each in lowered.before)
    return replace(lowered, program=replace(program, records=records), before=before)
