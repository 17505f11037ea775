"""Reliable times on a shared machine: the shortest of many samples, of which only those taken while it was free
count.
"""

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
"""The machine counts as free if a probe takes at most this many times as long as the shortest probe."""
WAITED = 0.1
"""The largest share of a sample's duration for which threads may have waited for a core."""


def shortest(run: Callable[[], Any], least: float = 0.004) -> float:
    """Call `run` repeatedly until `least` seconds have passed, at least once, and return the duration in seconds of the
    shortest call.

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
    """Return the total seconds for which this process's threads have waited for a core since they started; 0 if the
    system does not report it.
    """
    total = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            total += int(task.read_text().split()[1])
    return total * 1e-9


@dataclass(frozen=True)
class Sample:
    """A sample of a `Gate`: the measured `value` (None: the measurement gave none), the seconds of the slower of the
    two probes around it, and the seconds that threads waited for a core, divided by the sample's duration.
    """

    value: float | None
    probe: float
    waited: float


@dataclass
class Gate:
    """Samples of several sides, each taken between two probes (short runs of a loop at the machine's peak). A sample
    counts if neither probe was slow and threads hardly waited for a core.

    A short probe may find a free moment on a machine that is busy otherwise; the waiting times of threads show that.

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
        """Take one sample of `side`, such as "ours": run a probe (a short loop at the machine's peak), call `measure`,
        run a probe again. Append a `Sample` to `self.samples[side]`, and update `self.best`, the time of the fastest
        probe.
        """
        probe_before = self._probe()
        waited_before, start = waited(), time.perf_counter()
        value = measure()
        took = time.perf_counter() - start
        share = (waited() - waited_before) / took
        probe_after = self._probe()
        self.best = min(self.best, probe_before, probe_after)
        self.samples.setdefault(side, []).append(Sample(value, max(probe_before, probe_after), share))

    def _probe(self) -> float:
        """Pause briefly, then return the shortest of three runs of the probe (a loop at the machine's peak), in
        seconds.
        """
        time.sleep(self.pause)  # idle threads of other libraries stop spinning meanwhile
        return min(self.probe() for _ in range(3))

    def kept(self, side: str) -> list[float]:
        """Return the values of the valid samples of `side`, in order. A sample is valid if the probes around it took at
        most 1.2 times as long as the fastest probe so far, and threads waited for a core for at most 10 % of its
        duration.
        """
        samples = self.samples.get(side, [])
        free = (s.value for s in samples if s.probe <= FREE * self.best and s.waited <= WAITED)
        return [value for value in free if value is not None]

    def least(self, side: str) -> float | None:
        """Return the smallest value of the valid samples (`kept`) of `side`; None if there are none."""
        return min(self.kept(side), default=None)

    def shortest(self, side: str) -> float | None:
        """Return the smallest value of all samples of `side`, such as "ours", valid or not (see `kept`). Samples whose
        value is None do not count; None if there are no others.
        """
        return min((s.value for s in self.samples.get(side, []) if s.value is not None), default=None)

    def take(
        self,
        sides: dict[str, Callable[[], float | None]],
        rounds: int,
        patience: float,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Take samples of all `sides` in turn, until each has `rounds` valid samples or `patience` seconds have passed;
        at least one sample of each is taken.

        `sides` is {name: function that measures and returns a value}. Before each sample, wait until a probe is as fast
        as on a free machine, at most until `patience` seconds have passed. `waiting` is called with a text that says
        what is being waited for.
        """
        deadline = time.perf_counter() + patience
        count = 0
        while count < 1 or time.perf_counter() < deadline:
            for side, measure in sides.items():
                while (probe := self._probe()) > FREE * self.best and time.perf_counter() < deadline:
                    waiting(f"a free machine: a probe takes {probe / self.best:.1f} times as long as the fastest did")
                waiting(f"sample {count + 1} of {side}")
                self.sample(side, measure)
            count += 1
            if min(len(self.kept(side)) for side in sides) >= rounds:
                return
