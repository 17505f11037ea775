"""Calls that PyTorch can capture, in a CUDA graph: replayed, and timed by the GPU's own clock."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

CALLS = 10
"""Calls in a graph."""


def graph_sampler(call: Callable[[], Any]) -> Callable[[], float]:
    """A function that replays a graph of calls once, and returns the seconds of one of them.

    The call is made twice before it is captured, so that whatever a first call does is not timed. This module imports
    nothing of tilewright: `benchmarks/old_new_worker.py` loads it beside another commit's package.
    """
    torch: Any = importlib.import_module("torch")
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()

    def sample(kept: Callable[[], Any] = call) -> float:  # the graph works on what the call holds
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / CALLS

    return sample
