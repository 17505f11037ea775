"""Times that can be trusted on a machine that others use too: the shortest of many, and only those taken while it was
free."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.cli.peak import Peak

FREE = 1.2
"""A probe that takes no longer than so many times the shortest one says that the machine was free."""
WAITED = 0.1
"""The share of a sample's duration that threads may wait for a core."""


def shortest(run: Callable[[], Any], least: float = 0.004) -> float:
    """The shortest of the calls that fit into `least` seconds, one at least.

    >>> shortest(lambda: None) < 0.004
    True
    """
    best, start = math.inf, time.perf_counter()
    while True:
        before = time.perf_counter()
        run()
        after = time.perf_counter()
        best = min(best, after - before)
        if after - start > least:
            return best


def waited() -> float:
    """The seconds that threads of this process have waited for a core so far; 0 where the system does not say."""
    total = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            total += int(task.read_text().split()[1])
    return total * 1e-9


@dataclass(frozen=True)
class Sample:
    """A measurement, the slower of the probes beside it, and the share of its duration that threads waited."""

    value: float | None
    probe: float
    waited: float


@dataclass
class Gate:
    """Samples, each taken between two probes; kept are those beside which no probe was slow and no thread waited.

    A probe is short, and may find a free moment on a machine that is busy all the time; waiting threads tell.

    >>> gate = Gate(Peak("", 1, lambda: None), pause=0, best=1.0)
    >>> gate.samples = {"ours": [Sample(5e-6, 1.0, 0.0), Sample(2e-6, 1.3, 0.0), Sample(4e-6, 1.1, 0.9)]}
    >>> gate.kept("ours"), gate.least("ours"), gate.least("peer")
    ([5e-06], 5e-06, None)
    """

    probe: Peak
    pause: float = 0.003
    best: float = math.inf
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def sample(self, side: str, measure: Callable[[], float | None]) -> None:
        """Takes one sample of a side: probe, measurement, probe."""
        first = self._probe()
        delay, start = waited(), time.perf_counter()
        value = measure()
        took = time.perf_counter() - start
        share = (waited() - delay) / took
        last = self._probe()
        self.best = min(self.best, first, last)
        self.samples.setdefault(side, []).append(Sample(value, max(first, last), share))

    def _probe(self) -> float:
        time.sleep(self.pause)  # threads of others stop looking for work
        return min(self.probe() for _ in range(3))

    def kept(self, side: str) -> list[float]:
        """The samples that count, by what the best probe is now."""
        taken = self.samples.get(side, [])
        free = (s.value for s in taken if s.probe <= FREE * self.best and s.waited <= WAITED)
        return [value for value in free if value is not None]

    def least(self, side: str) -> float | None:
        """The shortest sample that counts, if one does."""
        return min(self.kept(side), default=None)

    def shortest(self, side: str) -> float | None:
        """The shortest sample, whether or not it counts."""
        return min((s.value for s in self.samples.get(side, []) if s.value is not None), default=None)

    def take(
        self,
        sides: dict[str, Callable[[], float | None]],
        rounds: int,
        patience: float,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Rounds over all sides in turn, until each has so many samples that count, or patience (seconds) ends.

        Before a sample, the machine is given time to become free; one round is taken in any case. `waiting` hears what
        is waited for.
        """
        end = time.perf_counter() + patience
        count = 0
        while count < 1 or time.perf_counter() < end:
            for side, measure in sides.items():
                while (probe := self._probe()) > FREE * self.best and time.perf_counter() < end:
                    waiting(f"a free machine: a probe takes {probe / self.best:.1f} times as long as the fastest did")
                waiting(f"sample {count + 1} of {side}")
                self.sample(side, measure)
            count += 1
            if min(len(self.kept(side)) for side in sides) >= rounds:
                return
