"""The cost against the clock: plans that were timed on a GPU, ordered by their predicted times."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import pytest

sys.path[:0] = [str(Path(__file__).parents[3] / "benchmarks")]
import random_plans as timed  # noqa: E402

FILE = Path(timed.__file__).parent / "measured" / "random_plans.json"


@pytest.fixture(scope="module")
def agreements():
    return [timed.Agreement.of(timings) for timings in timed.again(FILE)]


def test_every_timed_plan_has_a_predicted_time(agreements):
    assert sum(a.plans for a in agreements) == 360


def test_plans_that_differ_in_time_are_ordered_as_they_were_measured(agreements):
    assert sum(a.right for a in agreements) >= timed.BAR_PAIRS * sum(a.pairs for a in agreements)


def test_waves_and_rows_of_a_task_count_where_memory_bounds_a_program(agreements):
    """All plans of softmax and of layer norm had the same predicted time."""
    rows = [a for a in agreements if a.program.startswith(("softmax", "layer norm"))]
    assert all(a.share >= 0.8 for a in rows)


def test_the_best_predicted_plan_is_about_the_best_of_those_timed(agreements):
    assert median(a.distance for a in agreements) <= timed.BAR_MEDIAN
    assert max(a.distance for a in agreements) <= timed.BAR_WORST
