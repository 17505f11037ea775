"""Times that can be trusted on a machine that others use too: the shortest of many, and only those taken while it was
free."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilewright.cli.peak import Peak

FREE = 1.2
"""A probe that takes no longer than so many times the shortest one says that the machine was free."""


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


@dataclass
class Gate:
    """Samples, each taken between two probes; kept are those beside which no probe was slow.

    >>> gate = Gate(Peak("", 1, lambda: None), pause=0)
    >>> gate.samples = {"ours": [(1.0, 5e-6), (1.3, 2e-6), (1.1, 4e-6)]}
    >>> gate.best = 1.0
    >>> gate.kept("ours"), gate.least("ours")
    ([5e-06, 4e-06], 4e-06)
    """

    probe: Peak
    pause: float = 0.003
    best: float = math.inf
    samples: dict[str, list[tuple[float, float | None]]] = field(default_factory=dict)

    def sample(self, side: str, measure: Callable[[], float | None]) -> None:
        """Takes one sample of a side: probe, measurement, probe."""
        probes = []
        value = None
        for after in (False, True):
            if after:
                value = measure()
            time.sleep(self.pause)  # threads of others stop looking for work
            probes.append(min(self.probe() for _ in range(3)))
        self.best = min(self.best, *probes)
        self.samples.setdefault(side, []).append((max(probes), value))

    def kept(self, side: str) -> list[float]:
        """The samples that count, by what the best probe is now."""
        taken = self.samples.get(side, [])
        return [value for probe, value in taken if value is not None and probe <= FREE * self.best]

    def least(self, side: str) -> float | None:
        """The shortest sample that counts; where none does, the one beside the fastest probes; None without any."""
        kept = self.kept(side)
        if kept:
            return min(kept)
        taken = [(probe, value) for probe, value in self.samples.get(side, []) if value is not None]
        return min(taken)[1] if taken else None

    def take(self, sides: dict[str, Callable[[], float | None]], rounds: int) -> None:
        """Rounds over all sides in turn, until each has so many samples that count, or four times as many are taken."""
        for _ in range(4 * rounds):
            for side, measure in sides.items():
                self.sample(side, measure)
            if min(len(self.kept(side)) for side in sides) >= rounds:
                return
