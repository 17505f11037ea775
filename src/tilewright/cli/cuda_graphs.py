"""CUDA graphs of calls that PyTorch can capture, replayed and timed by CUDA events."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

CALLS = 10
"""The number of calls captured in one graph."""


def graph_sampler(call: Callable[[], Any]) -> Callable[[], float]:
    """Capture `call` in a CUDA graph and return a function that replays the graph and returns the seconds of one call.

    `call` launches GPU work by PyTorch; the graph holds `CALLS` (10) calls. Two uncaptured calls come first, so that
    one-time work is not timed. This module imports nothing of tilewright: `benchmarks/old_new_worker.py` loads it
    beside the package of another commit.
    """
    torch: Any = importlib.import_module("torch")
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()

    def sample(kept: Callable[[], Any] = call) -> float:  # keeps the arrays of the captured call alive
        """Replay the graph and return the seconds of one call. The default of `kept` keeps the arrays of the captured
        call alive.
        """
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / CALLS

    return sample
