"""Launches: a kernel's arguments in memory, and starting it, as often as wanted.

A kernel's arguments are the tensors' pointers, that of its counters if it has any, and tensor maps, each 128 bytes at a
multiple of 64. They are written once; a launch on other tensors of the same shapes changes addresses only, in the maps
too, and every launch has counters of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from tilewright.runtime.device_arrays import DeviceArray
from tilewright.targets.gpu.emit import Emitted
from tilewright.targets.nvidia.driver import Loaded
from tilewright.targets.nvidia.maps import MAP_BYTES, tensor_map
from tilewright.targets.nvidia.memory import stream_of

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


CLUSTER, PROGRAMMATIC = 4, 6
"""The driver's numbers for the size of a cluster, and for a launch that may begin while the one before it ends."""


class Attribute(ctypes.Structure):
    """The driver's CUlaunchAttribute: what is asked for, and its value."""

    _fields_ = (("what", ctypes.c_uint), ("gap", ctypes.c_uint), ("value", ctypes.c_uint * 16))


def attributes(emitted: Emitted) -> list[Attribute]:
    """What a launch asks for beyond its sizes."""
    found = []
    if emitted.cluster > 1:
        found.append(Attribute(CLUSTER, 0, (emitted.cluster, 1, 1)))
    if emitted.programmatic:
        found.append(Attribute(PROGRAMMATIC, 0, (1,)))
    return found


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
        workgroups = max(1, min(emitted.tasks, workers or most) // emitted.cluster) * emitted.cluster
        self._config = Config((workgroups, 1, 1), (emitted.threads, 1, 1), emitted.shared_bytes)
        asked = attributes(emitted)
        self._asked = (Attribute * len(asked))(*asked)
        self._config.attributes, self._config.attribute_count = ctypes.addressof(self._asked), len(asked)
        if emitted.cluster > 1 and workers is None:
            self._config.grid[0] = min(workgroups, self._room_for_clusters() * emitted.cluster)
        given = (ctypes.addressof(self._config), int(loaded.function), self._table.ctypes.data, None)
        self._start = partial(self.device.start, *map(ctypes.c_void_p, given))
        self._stream, self._lock = stream_of(arrays, self.device.number), Lock()
        self._streaming = 0

    def _room_for_clusters(self) -> int:
        """How many clusters there is room for at a time: they leave multiprocessors over."""
        found, function = ctypes.c_int(0), ctypes.c_void_p(int(self.loaded.function))
        with self.device.entered():
            code = self.device.room_for_clusters(ctypes.byref(found), function, ctypes.byref(self._config))
        if code:
            raise self._fault(code, ": its clusters")
        return max(1, found.value)

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
        self._slots = [[ctypes.c_uint64.from_address(after + 8 * i)] for i in range(count)]
        self._maps: list[list[int]] = [[] for _ in arrays]
        for i, parameter in enumerate(maps):
            array = arrays[parameter.tensor]
            data = tensor_map(self.device, parameter.what, self._pointers[parameter.tensor], array.dtype)
            place = start + MAP_BYTES * i
            ctypes.memmove(place, data, MAP_BYTES)
            word = self._address_in(place, self._pointers[parameter.tensor])
            if word is None:
                self._maps[parameter.tensor].append(place)
            else:
                self._slots[parameter.tensor].append(word)
        for slots, pointer in zip(self._slots, self._pointers, strict=False):
            slots[0].value = pointer
        self._counters = self._slots[-1][0] if emitted.counters else None
        places = [ctypes.addressof(s) for s, *_ in self._slots] + [start + MAP_BYTES * i for i in range(len(maps))]
        self._table = np.array(places, np.uint64)

    def _address_in(self, place: int, pointer: int) -> ctypes.c_uint64 | None:
        """The word of a tensor map that is the tensor's address, where the driver changes nothing else for another one.

        Maps are the driver's own; writing a word is quicker than asking it.
        """
        before = ctypes.string_at(place, MAP_BYTES)
        for other in (pointer + 256, pointer):
            if self.device.readdress(place, other):
                return None
            words = np.frombuffer(ctypes.string_at(place, MAP_BYTES), np.uint64)
            there = np.nonzero(words == other)[0]
            if len(there) != 1 or (np.delete(words, there) != np.delete(np.frombuffer(before, np.uint64), there)).any():
                ctypes.memmove(place, before, MAP_BYTES)
                return None
        return ctypes.c_uint64.from_address(place + 8 * int(there[0]))

    def __call__(self) -> None:
        """Starts the kernel."""
        if self._moved:
            self._there_and_back()
            return
        with self._lock:
            self._begin()

    def at(self, pointers: Sequence[int | None]) -> None:
        """Starts the kernel on tensors that lie elsewhere (None: as before), and are otherwise like those it had."""
        with self._lock:
            now = self._pointers
            for i, pointer in enumerate(pointers):
                if pointer is not None and pointer != now[i]:
                    for slot in self._slots[i]:
                        slot.value = pointer
                    for place in self._maps[i]:
                        code = self.device.readdress(place, pointer)
                        if code:
                            raise self._fault(code, ": a tensor map")
                    now[i] = pointer
            self._begin()

    def forget(self) -> None:
        """The arrays may go: from now on a launch is told where they lie."""
        self._kept = []

    def _begin(self) -> None:
        """What every launch does, and no more than it must."""
        if self._counters is not None:
            self._counters.value = self.loaded.counters()
        stream = self._stream()
        if stream != self._streaming:
            self._config.stream = self._streaming = stream
        code = self._start()
        if code:
            self._once_more(code)

    def _once_more(self, code: int) -> None:
        """The driver refused: perhaps only in the context that this thread works in."""
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
