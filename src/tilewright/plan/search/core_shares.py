"""The share of the tasks along each axis of the grid that one core of a CPU runs: it says which data a core reads."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, gcd


@lru_cache
def shares_of_core(counts: tuple[int, ...], cores: int, order: str) -> tuple[float, ...]:
    """Return, for each axis of the grid, the share (above 0, at most 1) of its tiles that the tasks of one core have.

    `counts` are the numbers of tiles along the axes; a task is one tile along each axis, and the last axis changes
    fastest. With the order "contiguous" a core runs neighbouring tasks. With any other order it runs every `cores`-th
    task.

    >>> shares_of_core((4, 8), 4, "contiguous"), shares_of_core((4, 8), 4, "cyclic")
    ((0.25, 1.0), (1.0, 0.25))
    """
    tasks = 1
    for count in counts:
        tasks *= count
    visited, step = ceil(tasks / cores), 1 if order == "contiguous" else min(cores, tasks)
    shares = []
    for count in reversed(counts):
        shares.append(min(visited, count // gcd(step, count)) / count)
        visited, step = (visited, max(1, step // count)) if step >= count else (ceil(visited * step / count), 1)
    return tuple(shares[::-1])
