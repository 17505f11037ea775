"""Tasks on CPUs: each is done once, by any number of workers, in every schedule."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import compile_text
from tilewright.targets.cpu.pool import Pool

THREADS = 5
"""Threads of the pool, more than there are cores on some machines."""


@pytest.fixture(scope="module", autouse=True)
def threads():
    """A pool of several threads, whatever the CPU at hand has."""
    from tilewright.targets.cpu import entry

    several = Pool(THREADS)
    before, entry.pool = entry.pool, lambda: several
    yield
    entry.pool = before
    several.stop()


def counting(schedule: str) -> str:
    return f"""block counting(%counts: inout global i32 (N))
  param N in 1..100000
{{
  tasks t in 0..N schedule {schedule} {{
    %a = view %counts (i 1) -> [t + i]
    map %a = %a + 1
  }}
}}"""


@pytest.mark.parametrize("schedule", ["contiguous", "strided", "dynamic"])
def test_each_task_is_done_once(schedule: str) -> None:
    for workers in (1, 2, THREADS):
        kernel = compile_text(counting(schedule), "cpu", workers=workers)
        for tasks in (1, 2, 4, 5, 6, 9, 10, 11, 19, 20, 21, 99, 1000):
            counts = np.zeros(tasks, np.int32)
            launch = kernel.bind(counts)
            for launches in (1, 2, 3):
                launch()
                assert (counts == launches).all(), (schedule, workers, tasks)


def test_workers_share_two_loops_of_tasks_alike() -> None:
    text = """block f(%x: inout global i32 (19), %y: out global i32 (19)) {
  tasks t in 0..19 schedule contiguous {
    %a = view %x (i 1) -> [t + i]
    fill %a 7
  }
  tasks u in 0..19 schedule contiguous {
    %a = view %x (i 1) -> [u + i]
    %b = view %y (i 1) -> [u + i]
    copy %a -> %b
  }
}"""
    kernel = compile_text(text, "cpu", workers=THREADS)
    for _ in range(50):
        x, y = np.zeros(19, np.int32), np.full(19, -1, np.int32)
        kernel(x, y)
        assert (y == 7).all()
