"""Plans of a program for a GPU that the search lists, the best first, also those that are slower than others."""

import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from tilewright.driver.request_facts import facts_of_request
from tilewright.machine import Machine
from tilewright.plan.schedule import Schedule
from tilewright.plan.search import Rejected, as_plan, search_facts

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]
from corpus_problems import Problem  # noqa: E402
from corpus_requests import request_of  # noqa: E402


def every_plan(
    kernel: Any,
    sizes: Mapping[str, int],
    machine: Machine,
    wanted: Callable[[Schedule], bool] = lambda plan: True,
    constant: Collection[str] = (),
) -> list[Schedule]:
    """Return the plans that are wanted of all that the search lists."""
    request = request_of(Problem("test", "kernel", lambda: kernel, dict(sizes), tuple(constant)), machine)
    ranking = search_facts(facts_of_request(request), machine, constant=constant, keeps_all=True)
    plans = (as_plan(candidate) for candidate in ranking.candidates)
    return [plan for plan in plans if not isinstance(plan, Rejected) and wanted(plan)]
