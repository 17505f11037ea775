"""How long a launch takes, measured in the simplest way; `tilewright bench` measures against others, with care."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from time import perf_counter

from tilewright.errors import ArgumentError
from tilewright.limits import written


def benchmark(launch: Callable[[], None], seconds: float = 0.2) -> dict[str, float]:
    """Seconds of a call: the shortest, the median, and how many were taken within the time.

    >>> found = benchmark(lambda: None, seconds=0.001)
    >>> 0 < found["shortest"] <= found["median"], found["calls"] >= 1
    (True, True)
    """
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not isfinite(seconds) or seconds < 0:
        raise ArgumentError(f"seconds={written(seconds, 80)}: a number of seconds, 0 or more; one call is always taken")
    launch()
    taken: list[float] = []
    start = perf_counter()
    while not taken or perf_counter() - start < seconds:
        before = perf_counter()
        launch()
        taken.append(perf_counter() - before)
    return {"shortest": min(taken), "median": sorted(taken)[len(taken) // 2], "calls": len(taken)}
