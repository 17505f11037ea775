"""The choice of a program on repacked operands."""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.job import InRows, Job
from tilewright.passes.launching import can_be_early, launching
from tilewright.plan.general import GeneralChoice
from tilewright.plan.model import microseconds


def choice_in_rows(job: Job, found: InRows) -> GeneralChoice:
    """The choice of a program on copies, whose parts are planned."""
    main = found.main.choice
    assert isinstance(main, GeneralChoice)
    machine = job.machine
    launch = launching(machine, can_be_early(machine))
    often, copied, notes = found.often(job.constant), 0.0, []
    for each, words in zip(found.copies, found.notes, strict=True):
        assert isinstance(each.choice, GeneralChoice)
        took = each.choice.cycles - launch
        if each in often and each is not often[0]:
            took -= machine.limits.copy_latency  # they wait together
        copied += took if each in often else 0
        notes.append(f"{words}: {f'{microseconds(took, machine):.1f} us' if each in often else 'when it is bound'}")
    if often:  # one launch for all of them, which what follows need not wait for, where it may begin early
        copied = max(copied, launch) if can_be_early(machine) else copied + launch
    # as if launched plainly: how it is, is chosen with the whole
    cycles = main.cycles + copied + launching(machine, early=False) - launch
    plans = [replace(plan, values=(*found.placed, *plan.values), early=None) for plan in (main.plan, *main.candidates)]
    costs = tuple(cost - main.cycles + cycles for cost in main.costs)
    return replace(
        main,
        plan=plans[0],
        cycles=cycles,
        candidates=tuple(plans[1:]),
        costs=costs,
        notes=(*notes, *main.notes),
        jobs=found,
    )
