"""How long launches take: one by itself, measured in the simplest way, or several interleaved, by their medians.

`tilewright bench` measures against others, with care.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from time import perf_counter

from tilewright.errors import ArgumentError
from tilewright.limits import written

ROUNDS = 20
"""Samples of each launch, where several are timed together."""


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


def interleaved_medians(samplers: Sequence[Callable[[], float]], rounds: int = ROUNDS) -> list[float]:
    """The median sample of each sampler, which are functions that run something once and return its seconds.

    A round takes one sample of each, in another order every time, so that none always follows the same one. The median
    is the time under load: a GPU that has been busy lowers its clock, and the shortest sample of a long program is one
    taken before it did.

    >>> samples = iter([5.0, 1.0, 2.0])
    >>> interleaved_medians([lambda: next(samples), lambda: 7.0], rounds=3)
    [2.0, 7.0]
    """
    import random
    from statistics import median  # which calls of kernels need not load

    order, rng = list(range(len(samplers))), random.Random(0)
    samples: list[list[float]] = [[] for _ in samplers]
    for _ in range(rounds):
        rng.shuffle(order)
        for place in order:
            samples[place].append(samplers[place]())
    return [median(taken) for taken in samples]
