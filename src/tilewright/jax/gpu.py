"""Kernels on a GPU that XLA calls: our launcher runs the host program on XLA's buffers, on the stream of the call.

The handler calls Python, which binds the program to the buffers and launches: all of it is asked of the stream, and
workspaces come from the stream and go back to it, so that nothing waits. A check of the program does: the host looks at
it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.jax.entries import XlaBuffer, XlaCall
from tilewright.jax.frames import INVALID_ARGUMENT, CallFrame, FrameBuffer
from tilewright.jax.handler import CALLBACK
from tilewright.runtime.device_arrays import DeviceArray, packed_steps
from tilewright.runtime.host import HostExecutor


@dataclass(frozen=True)
class GpuSteps:
    """A host program for a GPU, ready to be bound to arrays; `params` gives sizes that no shape tells."""

    executor: HostExecutor
    params: Mapping[str, int] | None


class GpuCalls:
    """The calls that XLA makes of a kernel: `callback` is what a handler calls with a frame."""

    def __init__(self, name: str, steps: GpuSteps, call: XlaCall):
        self.name, self._steps, self._call = name, steps, call
        self.callback = CALLBACK(self._called)

    def _called(self, address: int, ended: int) -> int:
        """Runs the kernel on the buffers of a frame; return the address of an error, or 0."""
        frame, error = CallFrame(address), 0
        try:
            self.run(frame)
        except TilewrightError as fault:
            error = frame.error(f"{self.name}: {fault}".removeprefix(f"{self.name}: {self.name}: "), INVALID_ARGUMENT)
        ctypes.c_uint64.from_address(ended).value = 1
        return error

    def run(self, frame: CallFrame) -> None:
        """Asks the stream of a frame for all launches, for each member of a batch."""
        arguments, results = frame.buffers()
        stream, device = frame.stream(), frame.device()
        executor, call = self._steps.executor, self._call
        for pointers in _members([*arguments, *results], len(arguments), call.buffers):
            arrays: list[Any] = [
                DeviceArray(pointer, b.shape, packed_steps(b.shape), b.dtype, None, device, stream, True)
                for pointer, b in zip(pointers, call.buffers, strict=True)
            ]
            given = [arrays[place] for place in call.places]
            memory = executor.near(given, passing=True)
            for result in call.zeroed:
                memory.fill(arrays[len(arguments) + result], 0)
            executor.bind(given, self._steps.params, passing=True)()


def _members(buffers: Sequence[FrameBuffer], arguments: int, plain: Sequence[XlaBuffer]) -> Iterator[tuple[int, ...]]:
    """Yield the addresses of all buffers for each member of a batch.

    Under vmap every buffer has as many further dimensions in front, each of the batch's extent or 1; those of the first
    result are the batch's. `plain` has the buffers without them.
    """
    further = len(buffers[arguments].shape) - len(plain[arguments].shape)
    batch = buffers[arguments].shape[:further]
    for member in range(prod(batch)):
        pointers = []
        for buffer, b in zip(buffers, plain, strict=True):
            offset, step, left = 0, b.bytes, member
            for extent, whole in zip(reversed(buffer.shape[:further]), reversed(batch), strict=True):
                offset += 0 if extent == 1 else left % whole * step
                left, step = left // whole, step * extent
            pointers.append(buffer.pointer + offset)
        yield tuple(pointers)
