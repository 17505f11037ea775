"""Memory of an NVIDIA GPU: workspaces, copies from and to the host, and the stream that all work goes to."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import ArgumentError, TargetError
from tilewright.machine import Machine
from tilewright.runtime.device_arrays import DeviceArray, followed_stream, packed_steps
from tilewright.runtime.exchange import exchange_of
from tilewright.targets.nvidia.driver import ALIGNMENT, Device, OwnedMemory, allocated_bytes, device, why_not
from tilewright.targets.nvidia.graphs import hold_for_graph, is_captured

Array = np.ndarray[Any, np.dtype[Any]]


class AllocatedOnStream:
    """Device memory from a stream's pool: it is allocated and freed in the order of the stream's work."""

    def __init__(self, device: Device, size: int, stream: int):
        self.device, self.stream = device, stream
        with device.entered():
            result = device.cu.cuMemAllocAsync(allocated_bytes(size), stream)
            self.pointer = device.check(result, f"{size} bytes on the device")

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self.device.cu.cuMemFreeAsync(self.pointer, self.stream)


class DeviceMemory:
    """The memory of one GPU; copies and fills go to the stream of the launches, in order with them.

    Memory for one call (`passing`) comes from torch's allocator if the program uses torch on GPUs: nothing waits when
    it is freed, the next call on the stream reuses it, and a CUDA graph keeps memory that was allocated during its
    capture. If the arrays of a call follow a `stream`, memory comes from that stream, and all work goes to it.
    """

    def __init__(self, machine: Machine, number: int, passing: bool = False, stream: int | None = None):
        why, gpu = why_not(machine), device(number)
        if why is not None or isinstance(gpu, str):
            raise TargetError(f"code for {machine.name} does not run here: {why or gpu}")
        self.device, self.passing, self.stream = gpu, passing, stream

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
        """Allocate an array with the shape `shape` and type `dtype` on the device, and return it. Its elements are not
        initialised. The memory comes from the stream's pool, from torch, or from the driver (see the class).
        """
        if self.stream is not None:
            memory = AllocatedOnStream(self.device, prod(shape) * dtype.itemsize, self.stream)
            fields = int(memory.pointer), shape, packed_steps(shape), dtype, memory, self.device.number
            return DeviceArray(*fields, stream=self.stream, follows_stream=True)
        size = prod(shape) * dtype.itemsize
        owner: Any = torch_memory(size, self.device.number) if self.passing else None
        if owner is not None:
            pointer = owner.data_ptr()
        else:
            owner = OwnedMemory(self.device, size, f"{size} bytes on the device")
            pointer = owner.pointer
        return DeviceArray(pointer, shape, packed_steps(shape), dtype, owner, self.device.number)

    def takes(self, array: Any) -> bool:
        """True if launches can use `array` without a copy: it is on the device, contiguous, and aligned to 16 bytes."""
        return isinstance(array, DeviceArray) and array.packed and array.pointer % ALIGNMENT == 0

    def _stream(self, *arrays: Any) -> int:
        """Return the handle of the stream to which work on `arrays` goes at this moment (see `stream_of`)."""
        return stream_of(arrays, self.device.number)()

    def copy(self, source: Any, goal: Any) -> None:
        """Copy the array `source` to the array `goal` in the order of the stream. At most one of them is on the host;
        if one is, wait until the copy is done. Raise ArgumentError if both are on the device and one is not contiguous.
        Raise TargetError if the driver refuses.
        """
        cu, check, stream = self.device.cu, self.device.check, self._stream(source, goal)
        with self.device.entered():
            if isinstance(source, np.ndarray):
                array = np.ascontiguousarray(source)
                check(
                    cu.cuMemcpyHtoDAsync(goal.pointer, array.ctypes.data, array.nbytes, stream),
                    "a copy to the device",
                )
                check(cu.cuStreamSynchronize(stream), "a copy to the device")
            elif isinstance(goal, np.ndarray):
                np.copyto(goal, self.numpy(source))
            elif not (source.packed and goal.packed):
                array = source if not source.packed else goal
                raise ArgumentError(
                    f"an array on the device of shape {array.shape} with strides {array.strides} is not contiguous; "
                    "pass a contiguous copy of it"
                )
            else:
                check(cu.cuMemcpyDtoDAsync(goal.pointer, source.pointer, source.nbytes, stream), "a copy on the device")

    def numpy(self, array: DeviceArray) -> Array:
        """Return a copy of `array` on the host, made after all earlier work of the stream. Wait until the
        copy is done.
        """
        cu, check, stream = self.device.cu, self.device.check, self._stream(array)
        elements = np.empty(array.shape, array.dtype)
        with self.device.entered():
            copied = cu.cuMemcpyDtoHAsync(elements.ctypes.data, array.pointer, elements.nbytes, stream)
            check(copied, "a copy to the host")
            check(cu.cuStreamSynchronize(stream), "a copy to the host")
        return elements

    def wait(self) -> None:
        """Wait until the stream has done all its work, so that other streams may read the results."""
        stream = self._stream() if self.stream is None else self.stream
        with self.device.entered():
            self.device.check(self.device.cu.cuStreamSynchronize(stream), "what is done once")

    def hold(self, arrays: Sequence[Any]) -> None:
        """Keep `arrays` alive as long as the CUDA graph that their stream is being captured into, because the graph
        reads them. Do nothing if no graph is captured, or if there are no arrays.
        """
        stream = self._stream(*arrays)
        if arrays and is_captured(self.device.capturing, stream):
            hold_for_graph(self.device, stream, arrays)

    def fill(self, array: DeviceArray, value: Any) -> None:
        """Set all elements of `array` to the number `value`, in the order of the stream. The driver fills elements of
        1, 2 or 4 bytes. Other elements are copied from the host.
        """
        pattern, size = np.full(1, value).astype(array.dtype), array.dtype.itemsize
        if size not in (1, 2, 4):
            self.copy(np.full(array.shape, value, array.dtype), array)
            return
        bits = int(pattern.view(f"u{size}")[0])
        set_ = getattr(self.device.cu, f"cuMemsetD{8 * size}Async")
        with self.device.entered():
            self.device.check(set_(array.pointer, bits, prod(array.shape), self._stream(array)), "a fill")


def torch_memory(size: int, number: int) -> Any:
    """Allocate max(ALIGNMENT, `size`) bytes on the GPU with the number `number` with torch's allocator, and return them
    as a uint8 tensor. Return None if the program does not use torch on GPUs.
    """
    torch = torch_in_use()
    if torch is None:
        return None
    return torch.empty(max(ALIGNMENT, size), dtype=torch.uint8, device=f"cuda:{number}")


def torch_in_use() -> Any:
    """Return the module torch if the program has initialised it for GPUs, else None."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # absent while torch is still being imported
    return torch if cuda is not None and cuda.is_initialized() else None


@dataclass(frozen=True)
class Stream:
    """The stream that work goes to: `fixed`, or the current one by DLPack's function `current` (0: none), of device
    `number`."""

    fixed: int
    current: Any
    number: int

    def __call__(self) -> int:
        """Return the handle of the stream at this moment. Raise TargetError if the function `current` fails."""
        if not self.current:
            return self.fixed
        stream = ctypes.c_void_p()
        if _CURRENT(self.current)(_CUDA, self.number, ctypes.byref(stream)):
            raise TargetError(f"the current stream of device {self.number} could not be told")
        return stream.value or 0


_CUDA = 2
_CURRENT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)


def stream_of(arrays: Sequence[Any], number: int) -> Stream:
    """Return the stream to which work on `arrays` on the GPU with the number `number` goes. It is the first of these
    that exists: the stream that an array follows; torch's current stream, if torch is used on GPUs; the stream that an
    array names; the default stream.

    >>> stream_of([DeviceArray(0, (1,), (1,), np.dtype("f4"), None, stream=7)], 0)()
    7
    """
    followed = followed_stream(arrays)
    if followed is not None:
        return Stream(followed, 0, number)
    torch = torch_in_use()
    if torch is not None:
        exchange = exchange_of(torch.Tensor)
        return Stream(0, _asking_torch() if exchange is None else exchange.current_stream, number)
    named = next((a.stream for a in arrays if isinstance(a, DeviceArray) and a.stream is not None), 0)
    return Stream(named, 0, number)


@cache
def _asking_torch() -> Any:
    """Return a C function with the signature of DLPack's `current_stream` that calls torch's Python interface. It
    serves versions of torch without DLPack's exchange functions. The result is cached.
    """
    torch = sys.modules["torch"]

    def current(_: int, number: int, goal: int) -> int:
        """Store the handle of torch's current stream of the GPU with the number `number` at the address `goal`, and
        return 0. The first parameter is not used.
        """
        ctypes.c_void_p.from_address(goal).value = torch.cuda.current_stream(number).cuda_stream
        return 0

    return _CURRENT(current)
