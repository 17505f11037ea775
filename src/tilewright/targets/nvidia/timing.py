"""How long launches take on a GPU: the median replay of a graph of launches, between two events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.errors import TargetError
from tilewright.runtime.timing import interleaved_medians
from tilewright.targets.nvidia.driver import device

CALLS = 10
"""Launches in a graph."""


class Stopwatch:
    """A stream of its own, on which launches are timed; arrays that name it are worked on there."""

    def __init__(self, number: int = 0):
        found = device(number)
        if isinstance(found, str):
            raise TargetError(f"device {number}: {found}")
        self.device = found
        self.cu, self.check = found.cu, found.check
        with found.entered():
            flags = int(self.cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
            self.handle: Any = self.check(self.cu.cuStreamCreate(flags), "a stream")
        self.stream = int(self.handle)

    def seconds(self, call: Callable[[], Any]) -> float:
        """The median time of a call, which launches on this stream, without what the host does before."""
        with self.device.entered():
            for _ in range(2):
                call()
            self.check(self.cu.cuStreamSynchronize(self.handle), "the stream")
            graph = self._captured(call)
            events = [self.check(self.cu.cuEventCreate(0), "an event") for _ in range(2)]
            return interleaved_medians([lambda: self._replayed(graph, *events)])[0]

    def _replayed(self, graph: Any, begin: Any, end: Any) -> float:
        """Seconds of a call in one replay of a graph of them."""
        self.check(self.cu.cuEventRecord(begin, self.handle), "an event")
        self.check(self.cu.cuGraphLaunch(graph, self.handle), "a graph")
        self.check(self.cu.cuEventRecord(end, self.handle), "an event")
        self.check(self.cu.cuEventSynchronize(end), "the stream")
        return float(self.check(self.cu.cuEventElapsedTime(begin, end), "an event")) * 1e-3 / CALLS

    def _captured(self, call: Callable[[], Any]) -> Any:
        mode = self.cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self.check(self.cu.cuStreamBeginCapture(self.handle, mode), "a graph")
        for _ in range(CALLS):
            call()
        graph = self.check(self.cu.cuStreamEndCapture(self.handle), "a graph")
        return self.check(self.cu.cuGraphInstantiate(graph, 0), "a graph")
