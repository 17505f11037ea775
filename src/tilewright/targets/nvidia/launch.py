"""Launches: a kernel bound to arrays, which can be started any number of times, also on other arrays of the same
form."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.algebra.expr import as_expr
from tilewright.errors import TargetError
from tilewright.interpret.evaluation import evaluated
from tilewright.runtime.device_arrays import DeviceArray
from tilewright.runtime.scripts import Whole
from tilewright.targets.calls.following import LAUNCH_UNLIKE
from tilewright.targets.calls.table import CallLaunch, Extent
from tilewright.targets.gpu.again import MovableCall
from tilewright.targets.gpu.emit import Emitted
from tilewright.targets.nvidia.driver import LAUNCHES, Loaded, OwnedMemory
from tilewright.targets.nvidia.graphs import is_captured
from tilewright.targets.nvidia.memory import stream_of, torch_memory
from tilewright.targets.nvidia.passed import Passed
from tilewright.targets.nvidia.starting import Record, native_code

ELSEWHERE = (201, 400)
"""The driver's codes (invalid context, invalid handle) for a thread that works in another context, or in none."""


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
"""The driver's numbers of two launch attributes: cluster size, and programmatic dependent launch."""


class Attribute(ctypes.Structure):
    """The driver's CUlaunchAttribute: the number of an attribute, and its value."""

    _fields_ = (("what", ctypes.c_uint), ("gap", ctypes.c_uint), ("value", ctypes.c_uint * 16))


def attributes(emitted: Emitted) -> list[Attribute]:
    """Return the launch attributes for the kernel `emitted`: the cluster size if it exceeds 1, and programmatic
    dependent launch if the kernel uses it.
    """
    result = []
    if emitted.cluster > 1:
        result.append(Attribute(CLUSTER, 0, (emitted.cluster, 1, 1)))
    if emitted.programmatic:
        result.append(Attribute(PROGRAMMATIC, 0, (1,)))
    return result


class Launch:
    """A kernel bound to arrays; a call starts it on the caller's current stream.

    Arrays of the host are copied to the device before each run, and back after it; then the call waits for the device.
    """

    record: Callable[..., Any] = Record
    """The class that holds the fields of a launch and starts it."""

    def __init__(
        self,
        loaded: Loaded,
        emitted: Emitted,
        arrays: list[Any],
        workers: int | None,
        sizes: Mapping[str, int] | None = None,
    ):
        self.loaded, self.device, self._emitted = loaded, loaded.device, emitted
        self._moved: list[tuple[OwnedMemory, np.ndarray[Any, Any], bool]] = []
        self._arrays = arrays
        self._following: Launch | None = None  # kept, as long as this is
        with self.device.entered():
            pointers = [self._place(a, w) for a, w in zip(arrays, emitted.written, strict=True)]
            self._passed = Passed(self.device, emitted, arrays, pointers, sizes or {})
        self._config = self._configuration(emitted, workers, sizes or {})
        self._stream = stream = stream_of(arrays, self.device.number)
        self._fields: dict[str, Any] = {
            "launch": self.device.start,
            "function": int(loaded.function),
            "config": self._config,
            "template": self._passed.block,
            "bytes": self._passed.block.nbytes,
            "offsets": self._passed.offsets,
            "parameters": len(self._passed.offsets),
            "current": stream.current,
            "device": self.device.number,
            "stream": stream.fixed,
        }
        self._record = self.record(**self._fields)
        if emitted.counters:
            self._record.set(
                capturing=self.device.capturing,
                counters=loaded.drawn,
                counters_at=self._passed.counters,
                counters_base=loaded.counters.pointer,
                counters_step=4 * emitted.counters,
                counters_most=LAUNCHES,
            )
        self._start: Callable[..., int] = self._record.start

    def _configuration(self, emitted: Emitted, workers: int | None, sizes: Mapping[str, int]) -> Config:
        """Return the launch configuration: number of workgroups, threads of a workgroup, bytes of shared memory,
        attributes.

        There are at most `workers` workgroups. If it is None, there are at most as many as the device runs at a time,
        or one for each task if `emitted.alone`. There are never more workgroups than tasks, except that their number is
        a multiple of the cluster size, and at least one cluster. `sizes` is {name of an open size: value}. Set
        `self._asked`, which keeps the attributes alive.
        """
        tasks = int(evaluated(as_expr(emitted.tasks), sizes))
        capacity = tasks if emitted.alone else self.device.cores * max(1, self.loaded.workgroups)
        workgroups = max(1, min(tasks, workers or capacity) // emitted.cluster) * emitted.cluster
        config = Config((workgroups, 1, 1), (emitted.threads, 1, 1), emitted.shared_bytes)
        needed = attributes(emitted)
        self._asked = (Attribute * len(needed))(*needed)
        config.attributes, config.attribute_count = ctypes.addressof(self._asked), len(needed)
        if emitted.cluster > 1 and workers is None:
            config.grid[0] = min(workgroups, self._room_for_clusters(config) * emitted.cluster)
        return config

    def _room_for_clusters(self, config: Config) -> int:
        """Return the number of clusters of `config` that the device can run at a time, at least 1. Raise TargetError if
        the driver refuses.
        """
        clusters, function = ctypes.c_int(0), ctypes.c_void_p(int(self.loaded.function))
        with self.device.entered():
            code = self.device.room_for_clusters(ctypes.byref(clusters), function, ctypes.byref(config))
        if code:
            raise self._fault(code, ": its clusters")
        return max(1, clusters.value)

    def _place(self, array: Any, written: bool) -> int:
        """Return the device address of `array`. For an array of the host, memory is allocated on the device, and the
        array is appended to `self._moved`: each run copies it to the device, and back if `written`.
        """
        if isinstance(array, DeviceArray):
            return array.pointer
        memory = OwnedMemory(self.device, array.nbytes, f"{self.loaded.name}: memory on the device")
        self._moved.append((memory, array, written))
        return memory.pointer

    # -- starting -------------------------------------------------------------------------------------------------

    def __call__(self) -> None:
        """Start the kernel on the current stream. If arrays of the host are bound, copy them to the device, run the
        kernel, wait for it, and copy written arrays back. Raise TargetError if the driver refuses.
        """
        if self._moved:
            self._run_on_copies()
            return
        code = self._start()
        if code:
            self.start_again(code)

    @property
    def alone(self) -> Callable[[], None]:
        """A function without parameters that starts the kernel. It is a native function, or this launch itself if
        arrays of the host must be copied.
        """
        return self if self._moved else self._record.run(self, self.start_again)

    def start_again(self, code: int, tensors: Sequence[Any] = ()) -> None:
        """Handle `code`, an error code of a start, by a second start: in the device's context if another context was
        current, or with new counters if a CUDA graph is captured. `tensors` are the tensors of the call (empty: the
        bound ones). Raise TargetError for other codes, or if the second start fails too.
        """
        if code == LAUNCH_UNLIKE and self._emitted.counters and is_captured(self.device.capturing, self._stream()):
            code = self._start_in_graph()
        elif code in ELSEWHERE:
            with self.device.entered():
                code = self._start(*(t.data_ptr() for t in tensors))
        if code:
            raise self._fault(code)

    def _start_in_graph(self) -> int:
        """Start the kernel while a CUDA graph is captured, and return the driver's code. The kernel gets counters that
        the graph owns and clears at each replay. Raise TargetError if torch is not in use, because the memory comes
        from torch.

        The counters of ordinary launches are used in turn. A replay and another launch might use the same counters at
        the same time.
        """
        stream, count = self._stream(), self._emitted.counters
        memory = torch_memory(4 * count, self.device.number)
        if memory is None:
            raise TargetError(
                f"{self.loaded.name}: a CUDA graph is captured, and memory for it comes from torch, which is not in "
                "use here: capture it by torch.cuda.graph"
            )
        with self.device.entered():
            answer = self.device.cu.cuMemsetD32Async(memory.data_ptr(), 0, count, stream)
        self.device.check(answer, f"{self.loaded.name}: its counters")
        block = self._passed.block_with_counters(memory.data_ptr())
        return int(self.record(**{**self._fields, "template": block}).start())

    def again(self, whole: Whole | None = None) -> MovableCall:
        """Return a MovableCall, which can start the kernel on other tensors with the same shapes, strides and types. If
        `whole` is given, it starts all launches of this host program; this launch must be the first of them. The
        launches drop their references to arrays that later calls replace.
        """
        arrays: Sequence[Any] = self._arrays if whole is None else whole.arrays
        written = self._emitted.written if whole is None else whole.written
        launches = ((self, tuple(range(len(arrays)))),) if whole is None else whole.launches
        workspaces = {} if whole is None else whole.workspaces
        extents = [Extent(0, a.nbytes) for a in arrays]
        addresses = [a.pointer if isinstance(a, DeviceArray) else 0 for a in arrays]
        number_of = {slot: place for place, slot in enumerate((*range(len(arrays)), *workspaces))}
        previous: Launch | None = None
        for launch, slots in launches:
            launch._follow(previous, [number_of.get(slot) for slot in slots])
            previous = launch
        if any(launch._emitted.counters for launch, _ in launches):
            self._record.set(capturing=self.device.capturing)
        code = native_code()
        launch_all = CallLaunch(code.address("all"), self._record.address, (code, self), self.start_again)
        sizes = tuple(array.nbytes for array in workspaces.values())
        return MovableCall(code, launch_all, tuple(written), tuple(extents), tuple(addresses), sizes)

    def _follow(self, before: Launch | None, places: Sequence[int | None]) -> None:
        """Prepare this launch for other arrays, to be started after the launch `before` (None: it is the first one).
        `places` has one entry for each array of the launch: its number among arguments and workspaces of the call, or
        None if every call uses the same array. References to arrays with a number are dropped.
        """
        passed = self._passed
        patches, maps = (
            np.array([(places[i], at) for i, at in offsets if places[i] is not None], np.uint64).reshape(-1, 2)
            for offsets in (passed.words, passed.maps)
        )
        self._record.set(
            patches=len(patches), patched=patches, maps=len(maps), mapped=maps, readdress=self.device.readdress
        )
        if before is not None:
            self._record.set(capturing=0)  # the first launch asks for all, before anything is started
            before._record.set(next=self._record)
            before._following = self
        self._arrays = [a for a, place in zip(self._arrays, places, strict=True) if place is None]

    def _fault(self, code: int, what: str = "") -> Exception:
        """Return (not raise) a TargetError for `code`, an error code of a start. `what` follows the kernel's name in
        the message.
        """
        if code == LAUNCH_UNLIKE:
            return TargetError(f"{self.loaded.name}{what}: its stream could not be told")
        return self.device.fault(self.device.cu.CUresult(code), f"{self.loaded.name}{what}")

    def _run_on_copies(self) -> None:
        """Copy the host's arrays to the device, run the kernel, wait for it, and copy the written arrays back. Raise
        TargetError if a step fails.
        """
        cu, check, name = self.device.cu, self.device.check, self.loaded.name
        with self.device.entered():
            for memory, array, _ in self._moved:
                check(cu.cuMemcpyHtoD(memory.pointer, array.ctypes.data, array.nbytes), f"{name}: a copy to the device")
            code = self._start()
            if code:
                raise self._fault(code)
            check(cu.cuCtxSynchronize(), name)
            for memory, array, written in self._moved:
                if written:
                    copied = cu.cuMemcpyDtoH(array.ctypes.data, memory.pointer, array.nbytes)
                    check(copied, f"{name}: a copy from the device")
