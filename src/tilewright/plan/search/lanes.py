"""Rule: kernels of lanes alone, without atoms."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.plan.plan import Plan
from tilewright.plan.search.ranking import Rejected


@dataclass(frozen=True, eq=False)
class LaneKernelSchedule:
    """A kernel of lanes."""

    plan: Plan


def plan_of_lanes(kernel: LaneKernelSchedule) -> Plan | Rejected:
    """Its plan."""
    return kernel.plan
