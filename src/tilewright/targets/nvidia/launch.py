"""Launches: a kernel's arguments in memory, and starting it, as often as wanted.

A kernel's arguments are the tensors' pointers, that of its counters if it has any, and tensor maps, each 128 bytes at a
multiple of 64. They are written once; a launch on other tensors of the same shapes changes addresses only, in the maps
too, and every launch has counters of its own.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from tilewright.runtime.device_arrays import DeviceArray
from tilewright.targets.gpu.emit import Emitted
from tilewright.targets.nvidia.driver import Loaded
from tilewright.targets.nvidia.maps import MAP_BYTES, tensor_map

ELSEWHERE = (201, 400)
"""The driver's answers, invalid context and handle, to a thread that works in another context, or in none."""


class Config(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class Launch:
    """A kernel bound to arrays; a call starts it on the stream of whoever calls.

    Arrays of the host are copied to the device before each run, and back after it, which waits for the device.
    """

    def __init__(self, loaded: Loaded, emitted: Emitted, arrays: list[Any], workers: int | None):
        self.loaded, self.device = loaded, loaded.device
        self._moved: list[tuple[Any, np.ndarray[Any, Any], bool]] = []
        self._kept = arrays
        with self.device.entered():
            self._pointers = [self._place(a, w) for a, w in zip(arrays, emitted.written, strict=True)]
            self._write(emitted, arrays)
        most = self.device.cores * max(1, loaded.workgroups)
        workgroups = max(1, min(emitted.tasks, workers or most))
        self._config = Config((workgroups, 1, 1), (emitted.threads, 1, 1), emitted.shared_bytes)
        given = (ctypes.addressof(self._config), int(loaded.function), self._table.ctypes.data, None)
        self._start = partial(self.device.start, *map(ctypes.c_void_p, given))
        self._stream, self._lock = _stream_of(arrays, self.device.number), Lock()

    def _place(self, array: Any, written: bool) -> int:
        if isinstance(array, DeviceArray):
            return array.pointer
        cu, check = self.device.cu, self.device.check
        memory = check(cu.cuMemAlloc(max(16, array.nbytes)), f"{self.loaded.name}: memory on the device")
        self._moved.append((memory, array, written))
        return int(memory)

    def _write(self, emitted: Emitted, arrays: list[Any]) -> None:
        """The arguments, and a table of where each lies."""
        maps, count = emitted.parameters, len(arrays) + (1 if emitted.counters else 0)
        self._room = np.zeros(64 + MAP_BYTES * len(maps) + 8 * count, np.uint8)
        start = self._room.ctypes.data + (-self._room.ctypes.data) % 64
        after = start + MAP_BYTES * len(maps)
        self._slots = [ctypes.c_uint64.from_address(after + 8 * i) for i in range(count)]
        self._maps: list[list[int]] = [[] for _ in arrays]
        for i, parameter in enumerate(maps):
            array = arrays[parameter.tensor]
            data = tensor_map(self.device, parameter.what, self._pointers[parameter.tensor], array.dtype)
            ctypes.memmove(start + MAP_BYTES * i, data, MAP_BYTES)
            self._maps[parameter.tensor].append(start + MAP_BYTES * i)
        for slot, pointer in zip(self._slots, self._pointers, strict=False):
            slot.value = pointer
        self._counters = self._slots[-1] if emitted.counters else None
        places = [ctypes.addressof(slot) for slot in self._slots] + [start + MAP_BYTES * i for i in range(len(maps))]
        self._table = np.array(places, np.uint64)

    def __call__(self) -> None:
        """Starts the kernel."""
        if self._moved:
            self._there_and_back()
            return
        with self._lock:
            self._begin()

    def at(self, pointers: Sequence[int]) -> None:
        """Starts the kernel on tensors that lie elsewhere, and are otherwise like those it was bound to."""
        with self._lock:
            for i, pointer in enumerate(pointers):
                if pointer != self._pointers[i]:
                    self._slots[i].value = self._pointers[i] = pointer
                    for place in self._maps[i]:
                        code = self.device.readdress(place, pointer)
                        if code:
                            raise self._fault(code, ": a tensor map")
            self._begin()

    def forget(self) -> None:
        """The arrays may go: from now on a launch is told where they lie."""
        self._kept = []

    def _begin(self) -> None:
        if self._counters is not None:
            self._counters.value = self.loaded.counters()
        self._config.stream = self._stream()
        code = self._start()
        if code in ELSEWHERE:
            with self.device.entered():
                code = self._start()
        if code:
            raise self._fault(code)

    def _fault(self, code: int, what: str = "") -> Exception:
        return self.device.fault(self.device.cu.CUresult(code), f"{self.loaded.name}{what}")

    def _there_and_back(self) -> None:
        cu, check, name = self.device.cu, self.device.check, self.loaded.name
        with self.device.entered(), self._lock:
            for memory, array, _ in self._moved:
                check(cu.cuMemcpyHtoD(memory, array.ctypes.data, array.nbytes), f"{name}: a copy to the device")
            self._begin()
            check(cu.cuCtxSynchronize(), name)
            for memory, array, written in self._moved:
                if written:
                    check(cu.cuMemcpyDtoH(array.ctypes.data, memory, array.nbytes), f"{name}: a copy from the device")

    def __del__(self) -> None:
        for memory, _, _ in getattr(self, "_moved", ()):
            self.device.cu.cuMemFree(memory)


def _stream_of(arrays: list[Any], number: int) -> Callable[[], int]:
    """What tells the stream of a launch: torch's current one for its tensors, one that an array names, or the default.

    >>> _stream_of([DeviceArray(0, (1,), (1,), np.dtype("f4"), None, stream=7)], 0)()
    7
    """
    there = [a for a in arrays if isinstance(a, DeviceArray)]
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(a.owner, torch.Tensor) for a in there):
        quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        if quick is not None:
            return partial(quick, number)
        return lambda: int(torch.cuda.current_stream(number).cuda_stream)
    named = next((a.stream for a in there if a.stream is not None), 0)
    return lambda: named
