"""Numbers that describe a machine stand in its row: not in the planner, and not as what a row is without saying so."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from planner_constants import machine_constants, stale

import tilewright
from tilewright.machine import Costs, Limits, costs, resources
from tilewright.targets.registry import MACHINES, machine

PACKAGE = Path(tilewright.__file__).parent
NEUTRAL = (0, 1, None, (0.0, 0.0))
"""Defaults that are no machine's: nothing, one for each, or that the row does not say."""
BUDGETS = {"Limits.instructions": 3000, "RegisterFile.word_bytes": 4}
"""Defaults that are no machine's either: what compiling may take, and the unit of registers."""
GROUPS = [c for m in (costs, resources) for c in vars(m).values() if is_dataclass(c) and c.__module__ == m.__name__]
OF_WAVES = ("lane_access", "row_tasks", "register_file", "shared_memory")


def test_no_number_of_the_planner_describes_a_machine() -> None:
    assert machine_constants(PACKAGE) == [], "a machine's belong to its row; others are listed with a reason"


def test_numbers_that_are_gone_are_not_listed() -> None:
    assert stale(PACKAGE) == []


@pytest.mark.parametrize("group", [Limits, *GROUPS], ids=lambda c: c.__name__)
def test_a_default_is_no_machines(group: Any) -> None:
    """Ampere, CDNA3 and Xe took the rates and costs of a machine that was measured, since those were defaults."""
    for field in fields(group):
        if isinstance(field.default, int | float | tuple):
            name = f"{group.__name__}.{field.name}"
            assert field.default in NEUTRAL or BUDGETS.get(name) == field.default, name


@pytest.mark.parametrize("group", [c for c in GROUPS if c is not Costs], ids=lambda c: c.__name__)
def test_a_group_has_few_fields(group: Any) -> None:
    assert len(fields(group)) <= 9


@pytest.mark.parametrize("name", MACHINES)
def test_a_row_says_what_it_is_planned_by(name: str) -> None:
    row, plain = machine(name), Limits(registers=1)
    rates = ["clock_ghz", "l2_rate", "far_rate", "l1_bytes", "l2_bytes", "cores", "launch_cycles", "line_bytes"]
    if row.lanes is not None:
        rates += ["shared_rate", "copy_latency", "lane_rate", "function_rate", "working_registers", "start_cycles"]
        rates += [
            "far_alone",
            "warm",
            "sector_bytes",
            "misaligned_row",
            "misaligned_row_tail",
            "leaving_row",
            "placing",
        ]
        for group in OF_WAVES:
            assert getattr(row, group) != type(getattr(row, group))(), group
    assert [r for r in rates if getattr(row.limits, r) == getattr(plain, r)] == []
