"""The share of the tasks along each axis of the grid that one core of a CPU runs: it says which data a core reads."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd


def shares_of_core(counts: Sequence[int], cores: int, order: str) -> list[float]:
    """Return the share (above 0, at most 1) of the values along each axis of the grid that a core's tasks have.

    `counts` are the numbers of tasks along the axes; the last axis changes fastest. With the order "contiguous" a core
    runs neighbouring tasks, with any other order every task that is a multiple of `cores` later.

    >>> shares_of_core([4, 8], 4, "contiguous"), shares_of_core([4, 8], 4, "cyclic")
    ([0.25, 1.0], [1.0, 0.25])
    """
    tasks = 1
    for count in counts:
        tasks *= count
    visited, step = ceil(tasks / cores), 1 if order == "contiguous" else min(cores, tasks)
    shares = []
    for count in reversed(counts):
        shares.append(min(visited, count // gcd(step, count)) / count)
        visited, step = (visited, max(1, step // count)) if step >= count else (ceil(visited * step / count), 1)
    return shares[::-1]
