"""Launches started from Python: slower than `starting`, but without LLVM, for exported kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.targets.calls.following import LAUNCH_UNLIKE
from tilewright.targets.nvidia.graphs import is_captured
from tilewright.targets.nvidia.memory import Stream


class PlainRecord:
    """The fields of a launch, as in `starting.Record`; `start` returns the driver's result code."""

    def __init__(self, **fields: Any):
        self._fields = fields

    def set(self, **fields: Any) -> None:
        """Set the fields of the launch that are given by name. All other fields stay."""
        self._fields |= fields

    def start(self) -> int:
        """Start the kernel on the current stream, and return the driver's code (0: success). If the kernel has counters
        and a CUDA graph is captured, start nothing and return LAUNCH_UNLIKE.
        """
        fields = self._fields
        config, block = fields["config"], fields["template"]
        config.stream = stream = Stream(fields["stream"], fields["current"], fields["device"])()
        if "counters" in fields:
            if is_captured(fields["capturing"], stream):
                return LAUNCH_UNLIKE
            self._draw(block)
        begin = block.ctypes.data
        table = (ctypes.c_void_p * fields["parameters"])(*(begin + int(offset) for offset in fields["offsets"]))
        launch_arguments = [ctypes.addressof(config), fields["function"], ctypes.addressof(table), None]
        return int(fields["launch"](*map(ctypes.c_void_p, launch_arguments)))

    def _draw(self, block: np.ndarray[Any, np.dtype[Any]]) -> None:
        """Write the address of the next set of task counters into the argument block `block`, and increment the number
        of drawn sets. Launches use the sets in turn.
        """
        fields = self._fields
        number = int(fields["counters"][0])
        fields["counters"][0] = number + 1
        address = fields["counters_base"] + number % fields["counters_most"] * fields["counters_step"]
        offset = fields["counters_at"]
        block[offset : offset + 8] = np.array([address], np.uint64).view(np.uint8)

    def run(self, keeper: Any, _: Callable[[int], None]) -> Callable[[], None]:
        """Return `keeper`, the Launch with this record, as the function that starts the kernel. The second parameter is
        not used; `starting.Record.run` calls it with error codes.
        """
        launch: Callable[[], None] = keeper
        return launch
