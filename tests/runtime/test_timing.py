"""Times of several launches: interleaved, and by their medians."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.runtime.timing import ROUNDS, interleaved_medians


def test_the_shortest_sample_counted_which_a_gpu_gives_before_it_lowers_its_clock() -> None:
    boosted = iter([1.0, 1.0] + [2.0] * (ROUNDS - 2))
    assert interleaved_medians([lambda: next(boosted)]) == [2.0]


def test_a_round_samples_all_once_and_none_always_follows_the_same_one() -> None:
    said: list[str] = []

    def sampler(name: str, seconds: float) -> Any:
        return lambda: said.append(name) or seconds

    assert interleaved_medians([sampler("a", 3.0), sampler("b", 5.0), sampler("c", 1.0)], rounds=12) == [3.0, 5.0, 1.0]
    rounds = [tuple(said[at : at + 3]) for at in range(0, 36, 3)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert len(set(rounds)) > 2


class Clock:
    """A GPU whose replays take these milliseconds, one after another, the last again and again."""

    def __init__(self, *times: float):
        self.times = list(times)

    def replayed(self, *_: Any) -> None:
        self.last = self.times.pop(0) if len(self.times) > 1 else self.times[0]


def test_a_cuda_graph_of_torch_counts_by_its_median(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.cli.cuda_graphs import CALLS, graph_sampler

    clock, calls = Clock(10.0, 10.0, 30.0), []
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: clock.last)
    cuda = SimpleNamespace(
        synchronize=lambda: None,
        CUDAGraph=lambda: SimpleNamespace(replay=clock.replayed),
        graph=lambda graph: nullcontext(),
        Event=lambda enable_timing: event,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    sampler = graph_sampler(lambda: calls.append(1))
    assert len(calls) == 2 + CALLS
    assert interleaved_medians([sampler]) == [0.03 / CALLS]


def test_a_stopwatch_counts_by_its_median(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.targets.nvidia import timing

    clock = Clock(10.0, 10.0, 30.0)
    cu = SimpleNamespace(
        CUstream_flags=SimpleNamespace(CU_STREAM_NON_BLOCKING=1),
        CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2),
        cuGraphLaunch=clock.replayed,
        cuEventElapsedTime=lambda begin, end: clock.last,
        **dict.fromkeys(("cuStreamCreate", "cuEventCreate"), lambda flags: 7),
        **dict.fromkeys(("cuStreamSynchronize", "cuStreamEndCapture", "cuEventSynchronize"), lambda handle: None),
        **dict.fromkeys(("cuStreamBeginCapture", "cuGraphInstantiate", "cuEventRecord"), lambda *args: None),
    )
    monkeypatch.setattr(
        timing, "device", lambda n: SimpleNamespace(cu=cu, check=lambda found, what: found, entered=nullcontext)
    )
    calls: list[int] = []
    assert timing.Stopwatch().seconds(lambda: calls.append(1)) == 0.03 / timing.CALLS
    assert len(calls) == 2 + timing.CALLS
