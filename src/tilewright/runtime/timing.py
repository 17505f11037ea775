"""Timing of launches: one alone, or several interleaved, by their medians.

`tilewright bench` compares with other libraries, with more care.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from time import perf_counter

from tilewright.errors import ArgumentError
from tilewright.limits import written

ROUNDS = 20
"""The default number of samples of each launch, if several are timed together."""


def benchmark(launch: Callable[[], None], seconds: float = 0.2) -> dict[str, float]:
    """Time calls of `launch` for about `seconds` seconds, after one untimed call.

    Return {"shortest": seconds of the fastest call, "median": seconds, "calls": how many were timed}. At least one call
    is timed. Raise ArgumentError unless `seconds` is a finite number of 0 or more.

    >>> times = benchmark(lambda: None, seconds=0.001)
    >>> 0 < times["shortest"] <= times["median"], times["calls"] >= 1
    (True, True)
    """
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not isfinite(seconds) or seconds < 0:
        raise ArgumentError(f"seconds={written(seconds, 80)}: a number of seconds, 0 or more; one call is always taken")
    launch()
    samples: list[float] = []
    start = perf_counter()
    while not samples or perf_counter() - start < seconds:
        before = perf_counter()
        launch()
        samples.append(perf_counter() - before)
    return {"shortest": min(samples), "median": sorted(samples)[len(samples) // 2], "calls": len(samples)}


def interleaved_medians(samplers: Sequence[Callable[[], float]], rounds: int = ROUNDS) -> list[float]:
    """Return a list with the median sample of each sampler, a function that runs something once and returns its
    seconds.

    Each of `rounds` rounds takes one sample of every sampler, in a new random order, so that none always follows the
    same one. Medians are times under load: a busy GPU lowers its clock.

    >>> samples = iter([5.0, 1.0, 2.0])
    >>> interleaved_medians([lambda: next(samples), lambda: 7.0], rounds=3)
    [2.0, 7.0]
    """
    import random
    from statistics import median  # imported here, since calls of kernels do not need it

    order, rng = list(range(len(samplers))), random.Random(0)
    samples: list[list[float]] = [[] for _ in samplers]
    for _ in range(rounds):
        rng.shuffle(order)
        for index in order:
            samples[index].append(samplers[index]())
    return [median(sample_list) for sample_list in samples]
