"""The words of a launch, started from Python: slower than by `starting`, but without LLVM, which makes its code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.targets.calls.following import LAUNCH_UNLIKE
from tilewright.targets.nvidia.graphs import is_captured
from tilewright.targets.nvidia.memory import Stream


class PlainRecord:
    """The fields of a launch that `starting.Record` has; `start` gives the driver's answer."""

    def __init__(self, **fields: Any):
        self._fields = fields

    def set(self, **fields: Any) -> None:
        """Changes fields."""
        self._fields |= fields

    def start(self) -> int:
        """Starts the kernel on the stream that is the current one now."""
        fields = self._fields
        config, block = fields["config"], fields["template"]
        config.stream = stream = Stream(fields["stream"], fields["current"], fields["device"])()
        if "counters" in fields:
            if is_captured(fields["capturing"], stream):
                return LAUNCH_UNLIKE
            self._draw(block)
        begin = block.ctypes.data
        table = (ctypes.c_void_p * fields["parameters"])(*(begin + int(offset) for offset in fields["offsets"]))
        where = [ctypes.addressof(config), fields["function"], ctypes.addressof(table), None]
        return int(fields["launch"](*map(ctypes.c_void_p, where)))

    def _draw(self, block: np.ndarray[Any, np.dtype[Any]]) -> None:
        """Gives the launch counters of its own: those of a launch that has ended long ago."""
        fields = self._fields
        number = int(fields["counters"][0])
        fields["counters"][0] = number + 1
        address = fields["counters_base"] + number % fields["counters_most"] * fields["counters_step"]
        at = fields["counters_at"]
        block[at : at + 8] = np.array([address], np.uint64).view(np.uint8)

    def run(self, keeper: Any, _: Callable[[int], None]) -> Callable[[], None]:
        """The function that starts the launch this is a part of."""
        launch: Callable[[], None] = keeper
        return launch
