"""The plan that is chosen for a kernel: its predicted time, what limits it, and what it was compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.machine import Machine
from tilewright.plan.model import cores, us
from tilewright.plan.schedule import Schedule
from tilewright.plan.slow import FindCause, SlowKernel, slow_kernel, slow_lines


@dataclass(frozen=True)
class Refusal:
    """An alternative that was not chosen, and why; `plan` is its full plan if it has one."""

    what: str
    why: str
    plan: Schedule | None = None

    def __str__(self) -> str:
        """Return the alternative and why it was not chosen, as one line of text."""
        return f"{self.what}: {self.why}"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A legal plan that was compared with others, and its predicted cycles.

    `write` is a function that returns the plan. It is called only if someone asks for the plan, because there may be
    thousands of candidates.
    """

    cycles: float
    write: Callable[[], Schedule] = field(repr=False)

    @cached_property
    def plan(self) -> Schedule:
        """The plan of this candidate, a Schedule; `write` makes it at the first use."""
        return self.write()


@dataclass(frozen=True)
class Comparison:
    """A chosen plan beside its limits and beside other plans, as `explain` says it: texts and refusals.

    `summary` ends the first line. `times` are the lines of the predicted time, the roofline and what limits the plan;
    `close` are the lines of plans that may be as good.
    """

    summary: str
    times: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()


Compare = Callable[[], Comparison]
"""A function that compares a chosen plan with its limits and with others; it is called only if someone asks."""


@dataclass(frozen=True)
class Choice:
    """The plan that was chosen for a kernel `name` on a machine.

    `cycles` is its predicted time (0 if it has none), `bound` the roofline, `notes` are lines of text for `explain`.
    """

    machine: Machine
    name: str
    plan: Schedule
    cycles: float
    bound: float
    compare: Compare = field(compare=False, repr=False)
    candidates: tuple[Candidate, ...] = ()
    """The legal plans, the one that is predicted fastest first; () if there was nothing to choose from."""
    notes: tuple[str, ...] = ()
    parts: tuple[Choice, ...] = ()
    """The choices for its kernels, in order, if the program becomes more than one kernel."""
    find_cause: FindCause | None = field(default=None, compare=False, repr=False)
    """A function that finds the costliest part of the plan, if there is one."""

    @property
    def slow(self) -> SlowKernel | None:
        """A SlowKernel (predicted time, roofline, cause) if this plan is predicted far above its roofline; else None.

        None too if the plan has no predicted time.
        """
        return slow_kernel(self.machine, self.cycles, self.bound, self.find_cause)

    @cached_property
    def comparison(self) -> Comparison:
        """The Comparison of this plan with its limits and with other plans; `compare` makes it at the first use."""
        return self.compare()

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """A Refusal (alternative, and why not) for each alternative that `explain` shows: illegal or slower plans."""
        return self.comparison.refused

    def explain(self) -> str:
        """Return text that explains this choice to a user: plan, predicted time, roofline, limits, notes, other plans.

        Times are in microseconds. A time that was not predicted is left out, and so are the limits if the model cannot
        tell them. If the program becomes two kernels, the text gives the sum of their times, and then the explanation
        of each kernel.
        """
        compared = self.comparison
        about = self._split_text() if self.parts else f"with {cores(self.machine)} workers{compared.summary}"
        lines = () if self.parts else ("  " + line for line in self.plan.lines())
        return "\n".join(
            [
                f"{self.name} on {self.machine.name} {about}",
                *lines,
                *(() if self.parts else compared.times),
                *slow_lines(self.slow),
                *self.notes,
                *compared.close,
                *(f"refused  {r}" for r in compared.refused),
                *(part.explain() for part in self.parts),
            ]
        )

    def _split_text(self) -> str:
        """Return text for the first line of `explain` about two kernels: the split and the predicted times.

        The times are the sum and the time of each kernel, in microseconds; the roofline follows.
        """
        parts_us = " + ".join(us(part.cycles, self.machine) for part in self.parts)
        return (
            f"as two kernels, split {self.plan.split_at}: predicted {us(self.cycles, self.machine)} us, {parts_us}; "
            f"roofline {us(self.bound, self.machine)} us"
        )


def untimed_choice(machine: Machine, name: str, plan: Schedule, bound: float = 0.0) -> Choice:
    """Return the Choice of a plan without a predicted time, which was compared with no other plan.

    `name` is the kernel's name. `bound` is its roofline in cycles; 0 if it is not known.
    """
    return Choice(machine, name, plan, 0.0, bound, lambda: Comparison(pipeline_text(plan)))


def pipeline_text(plan: Schedule) -> str:
    """Return ", with a pipeline" or ", without a pipeline".

    This text ends the first line of `explain` for a plan without a predicted time.
    """
    return f", {'without' if plan.pipeline is None else 'with'} a pipeline"
