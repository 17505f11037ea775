"""Memory of a GPU: workspaces, copies to and from the host, and the stream that everything goes to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import ArgumentError, TargetError
from tilewright.machine import Machine
from tilewright.runtime.device_arrays import DeviceArray, packed_steps
from tilewright.targets.nvidia.driver import Device, device, why_not

ALIGNMENT = 16
Array = np.ndarray[Any, np.dtype[Any]]


class Allocated:
    """Memory that goes back to the driver when nobody has it any more."""

    def __init__(self, found: Device, size: int):
        self.device = found
        with found.entered():
            self.pointer = found.check(found.cu.cuMemAlloc(max(ALIGNMENT, size)), f"{size} bytes on the device")

    def wait(self) -> None:
        """Until all that was asked of the device is done."""
        with self.device.entered():
            self.device.check(self.device.cu.cuCtxSynchronize(), "the device")

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self.device.cu.cuMemFree(self.pointer)


class DeviceMemory:
    """The memory of one GPU; what is asked of it happens on the stream of launches, in order with them."""

    def __init__(self, machine: Machine, number: int):
        why, found = why_not(machine), device(number)
        if why is not None or isinstance(found, str):
            raise TargetError(f"code for {machine.name} does not run here: {why or found}")
        self.device = found

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
        """Memory of its own."""
        owner = Allocated(self.device, prod(shape) * dtype.itemsize)
        return DeviceArray(int(owner.pointer), shape, packed_steps(shape), dtype, owner, self.device.number)

    def takes(self, array: Any) -> bool:
        """Packed, on the device, at a multiple of 16 bytes."""
        return isinstance(array, DeviceArray) and array.packed and array.pointer % ALIGNMENT == 0

    def _stream(self, *arrays: Any) -> int:
        return stream_of(arrays, self.device.number)()

    def copy(self, source: Any, goal: Any) -> None:
        """To the device, or from it; from and to the host it waits."""
        cu, check, stream = self.device.cu, self.device.check, self._stream(source, goal)
        with self.device.entered():
            if isinstance(source, np.ndarray):
                given = np.ascontiguousarray(source)
                check(
                    cu.cuMemcpyHtoDAsync(goal.pointer, given.ctypes.data, given.nbytes, stream), "a copy to the device"
                )
                check(cu.cuStreamSynchronize(stream), "a copy to the device")
            elif isinstance(goal, np.ndarray):
                np.copyto(goal, self.numpy(source))
            elif not (source.packed and goal.packed):
                raise ArgumentError("an array on the device is not contiguous; pass a contiguous copy of it")
            else:
                check(cu.cuMemcpyDtoDAsync(goal.pointer, source.pointer, source.nbytes, stream), "a copy on the device")

    def numpy(self, array: DeviceArray) -> Array:
        """What it holds when all that was asked before is done."""
        cu, check, stream = self.device.cu, self.device.check, self._stream(array)
        found = np.empty(array.shape, array.dtype)
        with self.device.entered():
            check(cu.cuMemcpyDtoHAsync(found.ctypes.data, array.pointer, found.nbytes, stream), "a copy to the host")
            check(cu.cuStreamSynchronize(stream), "a copy to the host")
        return found

    def fill(self, array: DeviceArray, value: Any) -> None:
        """A number everywhere: by the driver where it is a word, otherwise by a copy."""
        pattern, size = np.full(1, value).astype(array.dtype), array.dtype.itemsize
        if size not in (1, 2, 4):
            self.copy(np.full(array.shape, value, array.dtype), array)
            return
        bits = int(pattern.view(f"u{size}")[0])
        set_ = getattr(self.device.cu, f"cuMemsetD{8 * size}Async")
        with self.device.entered():
            self.device.check(set_(array.pointer, bits, prod(array.shape), self._stream(array)), "a fill")


def stream_of(arrays: Sequence[Any], number: int) -> Callable[[], int]:
    """What tells the stream: torch's current one where a program uses it, one that an array names, or the default.

    >>> stream_of([DeviceArray(0, (1,), (1,), np.dtype("f4"), None, stream=7)], 0)()
    7
    """
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # absent while torch is still being imported
    if torch is not None and cuda is not None and cuda.is_initialized():
        quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        if quick is not None:
            return partial(quick, number)
        return lambda: int(torch.cuda.current_stream(number).cuda_stream)
    named = next((a.stream for a in arrays if isinstance(a, DeviceArray) and a.stream is not None), 0)
    return lambda: named
