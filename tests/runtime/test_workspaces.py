"""Workspaces of launches: shared where launches take turns, so that many kernels need no more than the largest."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tilewright
from tilewright.targets.calls.learnt import LearntCalls
from tilewright.targets.cpu import launch_cache, workspaces
from tilewright.targets.cpu.pool import pool


def test_launches_of_several_workers_share_a_workspace_of_their_size():
    first, private_bytes = workspaces.workspace(100_000_000, 4)
    second, _ = workspaces.workspace(1 << 27, 2)
    larger, _ = workspaces.workspace((1 << 27) + 1, 2)
    assert first is second
    assert first is not larger
    assert private_bytes == 0
    assert (first.address % 4096, first.lock % 64) == (0, 0)
    alone, private_bytes = workspaces.workspace(100_000, 1)
    assert alone is not first
    assert private_bytes == 100_000
    del first, second, larger
    gc.collect()
    assert 1 << 27 not in workspaces._shared


@pytest.mark.skipif(pool().workers == 1, reason="launches of one worker have workspaces of their own")
def test_calls_stay_remembered_however_many_workspaces_they_need(monkeypatch: pytest.MonkeyPatch):
    """In a network of 50 layers, each call forgot another one; it took a millisecond to learn it again."""
    monkeypatch.setattr(launch_cache, "ROOM", 1 << 16)
    learnt: list[int] = []
    remember = LearntCalls.remember
    monkeypatch.setattr(LearntCalls, "remember", lambda self, *args: (learnt.append(1), remember(self, *args))[1])
    rng = np.random.default_rng(0)
    operands = [(rng.integers(-3, 4, (70 + n, 300)), rng.integers(-3, 4, (300, 190 + 3 * n))) for n in range(8)]
    floats = [(a.astype(np.float32), b.astype(np.float32)) for a, b in operands]
    run = tilewright.compile(tilewright.kernels.gemm("nn", "f32"), dynamic=["M", "N"])
    for _ in range(3):
        for a, b in floats:
            assert (run(a, b) == a @ b).all()
    assert len(learnt) == 8


def test_threads_take_turns_in_a_workspace():
    rng = np.random.default_rng(1)
    cases = []
    for n in range(4):
        x, w = rng.integers(-3, 4, (64, 200 + n)), rng.integers(-3, 4, (300 + n, 200 + n))
        layer = tilewright.Linear(w.astype(np.float32))
        cases.append((layer, x.astype(np.float32), (x @ w.T).astype(np.float32)))

    def repeat(place: int) -> bool:
        layer, x, wanted = cases[place % 4]
        return all((layer(x) == wanted).all() for _ in range(200))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(repeat, range(8)))
