"""Timing of launches on a GPU: the median replay of a graph of launches, between two events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.errors import TargetError
from tilewright.runtime.timing import interleaved_medians
from tilewright.targets.nvidia.driver import device

CALLS = 10
"""Launches in a graph."""


class Stopwatch:
    """A stream of its own on which launches are timed; work on arrays that name this stream goes to it."""

    def __init__(self, number: int = 0):
        gpu = device(number)
        if isinstance(gpu, str):
            raise TargetError(f"device {number}: {gpu}")
        self.device = gpu
        self.cu, self.check = gpu.cu, gpu.check
        with gpu.entered():
            flags = int(self.cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
            self.handle: Any = self.check(self.cu.cuStreamCreate(flags), "a stream")
        self.stream = int(self.handle)

    def seconds(self, call: Callable[[], Any]) -> float:
        """Return the median time of one `call()` on the GPU in seconds, without the time of the host. `call` must
        launch its kernels on `self.stream`. They are captured into a CUDA graph, which is replayed.
        """
        with self.device.entered():
            for _ in range(2):
                call()
            self.check(self.cu.cuStreamSynchronize(self.handle), "the stream")
            graph = self._capture(call)
            events = [self.check(self.cu.cuEventCreate(0), "an event") for _ in range(2)]
            return interleaved_medians([lambda: self._time_of_replay(graph, *events)])[0]

    def _time_of_replay(self, graph: Any, begin: Any, end: Any) -> float:
        """Replay `graph`, a CUDA graph of CALLS calls, and return the seconds of one call. `begin` and `end` are events
        that are recorded before and after the replay.
        """
        self.check(self.cu.cuEventRecord(begin, self.handle), "an event")
        self.check(self.cu.cuGraphLaunch(graph, self.handle), "a graph")
        self.check(self.cu.cuEventRecord(end, self.handle), "an event")
        self.check(self.cu.cuEventSynchronize(end), "the stream")
        return float(self.check(self.cu.cuEventElapsedTime(begin, end), "an event")) * 1e-3 / CALLS

    def _capture(self, call: Callable[[], Any]) -> Any:
        """Capture CALLS calls of `call()` into a CUDA graph, and return the graph, ready to be launched."""
        mode = self.cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self.check(self.cu.cuStreamBeginCapture(self.handle, mode), "a graph")
        for _ in range(CALLS):
            call()
        graph = self.check(self.cu.cuStreamEndCapture(self.handle), "a graph")
        return self.check(self.cu.cuGraphInstantiate(graph, 0), "a graph")
