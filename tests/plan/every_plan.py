"""Plans of a program for a GPU that the search lists, the best first, also those that are slower than others."""

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
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
    named = tuple(sorted(sizes.items()))
    return [plan for plan in _listed(_Same(kernel), named, _Same(machine), tuple(constant)) if wanted(plan)]


@dataclass(frozen=True, eq=False)
class _Same:
    """An object that a cache knows by its identity, and keeps."""

    value: Any

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


@lru_cache(maxsize=8)  # tests beside each other ask for plans of one problem
def _listed(kernel: _Same, sizes: tuple[tuple[str, int], ...], machine: _Same, constant: tuple[str, ...]) -> Any:
    """All plans that the search lists."""
    request = request_of(Problem("test", "kernel", lambda: kernel.value, dict(sizes), constant), machine.value)
    ranking = search_facts(facts_of_request(request), machine.value, keeps_all=True)
    plans = map(as_plan, ranking.candidates)
    return [plan for plan in plans if not isinstance(plan, Rejected)]
