"""Plans that are predicted far above their roofline: when a plan is one, why, and the way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir.core import Op
from tilewright.machine import Machine
from tilewright.plan.model import microseconds, us

SLOW_RATIO = 4.0
"""A plan is slow if its predicted time is more than this many times its roofline, the launch included ..."""
SLOW_MICROSECONDS = 20.0
"""... and more than this many microseconds above it."""


@dataclass(frozen=True)
class Cause:
    """The costliest part of a plan: its count, the way out, and the operation that has it, if known."""

    what: str
    way_out: str
    op: Op | None = None


FindCause = Callable[[], Cause]
"""A function that finds the cause of a plan's time; it is asked only if the plan is slow."""


@dataclass(frozen=True)
class SlowKernel:
    """A plan that is slow: its predicted cycles, its roofline with the launch, and the cause."""

    machine: Machine
    cycles: float
    floor: float
    cause: Cause

    def __str__(self) -> str:
        """Return the predicted time, the roofline, the cause and the way out, as `explain` and the warning say them."""
        return (
            f"predicted {us(self.cycles, self.machine)} us, {self.cycles / self.floor:.1f} times the roofline of "
            f"{us(self.floor, self.machine)} us: {self.cause.what}; {self.cause.way_out}"
        )


def slow_kernel(machine: Machine, cycles: float, floor: float, find_cause: FindCause | None) -> SlowKernel | None:
    """Return the SlowKernel (predicted time, roofline, cause) of a plan with the predicted `cycles`; None if not slow.

    It is slow if it takes more than SLOW_RATIO (4) times its roofline `floor`, and more than 20 us above it. Both count
    the launch. `find_cause` returns the cause; it is called only if the plan is slow. None too if `find_cause` is None,
    or if the plan has no predicted time or no roofline (0 cycles).
    """
    beyond = microseconds(cycles - floor, machine)
    if find_cause is None or floor <= 0 or cycles <= SLOW_RATIO * floor or beyond <= SLOW_MICROSECONDS:
        return None
    return SlowKernel(machine, cycles, floor, find_cause())


def slow_lines(slow: SlowKernel | None) -> list[str]:
    """Return [text] about a slow plan, one line for `explain`; [] for None.

    The line has the predicted time, the roofline, the cause and, if known, the source location of the cause's
    operation.
    """
    if slow is None:
        return []
    op = slow.cause.op
    where = "" if op is None or op.loc is None else f" ({op.loc})"
    return [f"slow{where}: {slow}"]
