"""Plans of a program for a GPU that the search lists, the best first, also those that are slower than others."""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

from tilewright.driver.request_facts import facts_of_request
from tilewright.machine import Machine
from tilewright.plan.schedule import Schedule
from tilewright.plan.search import PlanCandidate, Rejected, as_plan, search_facts

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]
from corpus_problems import Problem  # noqa: E402
from corpus_requests import request_of  # noqa: E402


def every_plan(
    kernel: Any,
    sizes: Mapping[str, int],
    machine: Machine,
    wanted: Callable[[Schedule], Any] = lambda plan: True,
    constant: Collection[str] = (),
) -> list[Schedule]:
    """Return the plans that are wanted of all that the search lists."""
    return list(plans_from_the_best(kernel, sizes, machine, wanted, constant))


def plans_from_the_best(
    kernel: Any,
    sizes: Mapping[str, int],
    machine: Machine,
    wanted: Callable[[Schedule], Any] = lambda plan: True,
    constant: Collection[str] = (),
) -> Iterator[Schedule]:
    """Yield the plans that are wanted; whoever takes the first one spares the search to write down all others."""
    named = tuple(sorted(sizes.items()))
    return filter(wanted, _listed(_Same(kernel), named, _Same(machine), tuple(constant)))


@dataclass(frozen=True, eq=False)
class _Same:
    """An object that a cache knows by its identity, and keeps."""

    value: Any

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


class _Plans:
    """The plans of candidates of the search, each made when it is first asked for."""

    def __init__(self, candidates: Iterable[PlanCandidate]):
        self._plans: list[Schedule] = []
        self._left = (plan for plan in map(as_plan, candidates) if not isinstance(plan, Rejected))

    def __iter__(self) -> Iterator[Schedule]:
        for number in count():
            if number == len(self._plans):
                plan = next(self._left, None)
                if plan is None:
                    return
                self._plans.append(plan)
            yield self._plans[number]


@lru_cache(maxsize=8)  # tests beside each other ask for plans of one problem
def _listed(kernel: _Same, sizes: tuple[tuple[str, int], ...], machine: _Same, constant: tuple[str, ...]) -> _Plans:
    """All plans that the search lists."""
    request = request_of(Problem("test", "kernel", lambda: kernel.value, dict(sizes), constant), machine.value)
    return _Plans(search_facts(facts_of_request(request), machine.value, keeps_all=True).candidates)
