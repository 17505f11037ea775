"""Plans that are given: what of them is taken as it is said, and which line a refusal means."""

from __future__ import annotations

import re
from dataclasses import replace

from tilewright.errors import ArgumentError
from tilewright.machine import Machine
from tilewright.plan.general import GeneralChoice
from tilewright.plan.microkernel import Microkernel
from tilewright.plan.plan import Plan, Roles

UNIT = 8
"""Registers of a lane are dealt out to roles in such units."""  # why: the assembler's rule
LEAST = 24
"""Registers that a lane of a role keeps at least."""  # why: the assembler's rule


def pinned(given: Plan, how: Microkernel, machine: Machine) -> Roles:
    """The roles that a plan says for a block: as many waves as the planner's own, other registers and stages.

    What shared memory holds shows when the program is written.
    """
    said = given.roles
    assert said is not None
    registers, lanes = machine.spaces["register"].bytes, how.atom.c.lanes
    assert registers is not None
    each = registers // how.atom.c.dtype.numpy.itemsize // lanes
    groups = 2 * how.groups if said.pingpong else how.groups
    used = said.load[1] + groups * said.multiply[1]
    why = None
    if any(n % UNIT or n < LEAST for _, n in (said.load, said.multiply)):
        why = f"registers are given in multiples of {UNIT}, at least {LEAST}"
    elif said.multiply[1] <= how.sums:
        why = f"a lane's sums alone take {how.sums} registers"
    elif used > each:
        why = f"lanes of {groups} groups and one that loads take {used} registers of {each}"
    elif said.stages < 1 or said.stored < 1:
        why = "a ring has at least one stage"
    if why is not None:
        raise ArgumentError(f"plan: `{said}`: {why}")
    return said


def as_given(found: GeneralChoice, given: Plan) -> GeneralChoice:
    """A choice in roles, with the group and the schedule of a plan; raises where another of its lines is not done."""
    plan = replace(found.plan, group=given.group, schedule=given.schedule)
    given.require_same(plan)
    return replace(found, plan=plan, cuts=replace(found.cuts, group=given.group, schedule=given.schedule))


def naming(fault: ArgumentError, given: Plan, chosen: Plan | None) -> ArgumentError:
    """A refusal of a plan that names the line: the axis it speaks of, and where that is as it would be chosen, what
    differs from the plan that is chosen.

    >>> from tilewright.plan.plan import parse_plan
    >>> plan = parse_plan("axis m = (m 8): task 3; axis n = (n 9): whole; tasks m")
    >>> print(naming(ArgumentError("plan: axis n: no task"), plan, None))
    plan: axis n: no task; in `axis n = (n 9): whole`
    """
    text, known = str(fault), chosen.lines() if chosen is not None else []
    changed = [line for line in given.lines() if line not in known]
    if any(line in text for line in changed or given.lines()):
        return fault
    spoken = [str(a) for a in given.axes if re.search(rf"axis {a.name}\b", text) and str(a) in changed]
    named = spoken or changed
    return ArgumentError(f"{text}; in `{'`, `'.join(named)}`") if named else fault
