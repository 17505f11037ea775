"""NVIDIA's driver, through cuda-bindings (the extra `gpu`): devices, and kernels loaded on them; imported on first use.

The driver assembles PTX, and keeps the result in a cache of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from tilewright.errors import TargetError
from tilewright.machine import Machine
from tilewright.targets.gpu.emit import Emitted

LIBRARY = "libcuda.so.1"
ALIGNMENT = 16
"""The most bytes that one load reads: allocations begin and end at multiples of it."""
CAPTURES = range(900, 908)
"""The driver's error codes for calls that are not allowed while a CUDA graph is captured."""
RELAXED = 2
"""The driver's number of the capture mode in which a thread's calls do not end captures."""
_IN_GRAPH = (
    ". A CUDA graph is captured: only launches can be in it. Make the same call once before the capture, which loads "
    "code and packs weights; a kernel that checks indices cannot be captured"
)


def _bindings() -> Any:
    """Import the package cuda-bindings, and return its module of CUDA's driver API. Raise ImportError if it is not
    installed.
    """
    from cuda.bindings import driver

    return driver


class Device:
    """A GPU by its number, in its primary context, which other libraries of the process share.

    Functions that every launch calls are called in the driver's library directly (`starting`): a call through bindings
    takes as long as the launch.
    """

    def __init__(self, number: int = 0) -> None:
        self.cu = _bindings()
        self.number = number
        self.check(self.cu.cuInit(0), "cuInit")
        self.handle = self.check(self.cu.cuDeviceGet(number), "cuDeviceGet")
        self.context = self.check(self.cu.cuDevicePrimaryCtxRetain(self.handle), "cuDevicePrimaryCtxRetain")
        self.version = int(self.check(self.cu.cuDriverGetVersion(), "cuDriverGetVersion"))
        attribute = self.cu.CUdevice_attribute
        self.capability = (
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self.cores = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.library = library = ctypes.CDLL(LIBRARY)
        self.start: Any = library.cuLaunchKernelEx
        self.room_for_clusters: Any = library.cuOccupancyMaxActiveClusters
        self.capturing: Any = library.cuStreamIsCapturing
        self.readdress: Any = library.cuTensorMapReplaceAddress
        self.readdress.argtypes, self.readdress.restype = [ctypes.c_void_p] * 2, ctypes.c_int

    def _attribute(self, attribute: Any) -> int:
        """Return the value of a device attribute of the driver. `attribute` is a member of CUdevice_attribute."""
        return int(self.check(self.cu.cuDeviceGetAttribute(attribute, self.handle), "cuDeviceGetAttribute"))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Return a context manager. Within it, the device's context is the current context of this thread. Afterwards
        the thread's previous context is current again. A thread that had none keeps the device's context.
        """
        before, mine = int(self.check(self.cu.cuCtxGetCurrent(), "cuCtxGetCurrent")), int(self.context)
        if before not in (0, mine):
            self.check(self.cu.cuCtxPushCurrent(self.context), "cuCtxPushCurrent")
            try:
                yield
            finally:
                self.check(self.cu.cuCtxPopCurrent(), "cuCtxPopCurrent")
            return
        if before == 0:
            self.check(self.cu.cuCtxSetCurrent(self.context), "cuCtxSetCurrent")
        yield

    def check(self, answer: Any, what: str) -> Any:
        """Return the results of a driver call. `answer` is the tuple (code, results...) that the call returned. One
        result is returned by itself; several results, or none, are returned as a tuple. Raise TargetError with the
        driver's message if the code is an error. `what` names the call in the message.
        """
        code = answer[0]
        if code != self.cu.CUresult.CUDA_SUCCESS:
            raise self.fault(code, what)
        return answer[1] if len(answer) == 2 else answer[1:]

    def free(self, pointer: Any) -> None:
        """Free the device memory at `pointer`. Errors are ignored.

        A CUDA graph may be captured at this time. The thread therefore switches to the relaxed capture mode for the
        call; in other modes, the call would end the capture.
        """
        exchange, mode = self.library.cuThreadExchangeStreamCaptureMode, ctypes.c_int(RELAXED)
        exchange(ctypes.byref(mode))
        self.cu.cuMemFree(pointer)
        exchange(ctypes.byref(mode))

    def fault(self, code: Any, what: str) -> TargetError:
        """Return (not raise) a TargetError for `code`, an error code of the driver. The message has the error's name
        and text. `what` names the call in the message.
        """
        _, name = self.cu.cuGetErrorName(code)
        _, text = self.cu.cuGetErrorString(code)
        name, text = (t.decode() if isinstance(t, bytes) else str(t) for t in (name, text))
        return TargetError(f"{what}: the driver says {name}: {text}{_IN_GRAPH if int(code) in CAPTURES else ''}")


@cache
def device(number: int = 0) -> Device | str:
    """Return the GPU with the number `number`. If it cannot be used, return a text with the reason. The result for each
    number is cached.
    """
    try:
        return Device(number)
    except ImportError:
        return "cuda-bindings is not installed; pip install 'tilewright[gpu]'"
    except (RuntimeError, OSError) as fault:  # no driver, or one that refuses
        return f"there is no GPU here: {str(fault).splitlines()[0]}"


def why_not(machine: Machine) -> str | None:
    """Return the reason why code for `machine` does not run on GPU 0, as a sentence; None if it runs."""
    gpu = device()
    if isinstance(gpu, str):
        return gpu
    major, minor = gpu.capability
    if "sm_90a" in machine.features and major != 9:
        return f"the GPU here has compute capability {major}.{minor}, not 9.x"
    if major < 8:
        return f"the GPU here has compute capability {major}.{minor}, not 8.0 or more"
    return None


LAUNCHES = 1024
"""Launches of one kernel that may be in flight at a time, each with counters of its own."""


def allocated_bytes(size: int) -> int:
    """Return the number of bytes to allocate for `size` bytes: `size` rounded up to a multiple of 16, and at least 16.
    A load may read the whole aligned 16 bytes around an element.

    >>> allocated_bytes(0), allocated_bytes(17)
    (16, 32)
    """
    return max(1, -(-size // ALIGNMENT)) * ALIGNMENT


class OwnedMemory:
    """Device memory of at least `size` bytes that is freed with the object."""

    def __init__(self, device: Device, size: int, what: str):
        self.device = device
        with device.entered():
            self.pointer = int(device.check(device.cu.cuMemAlloc(allocated_bytes(size)), what))

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self.device.free(self.pointer)


class Loaded:
    """A kernel on a device. `drawn` counts its launches that have taken counters."""

    def __init__(self, assembly: str | bytes, emitted: Emitted, number: int = 0):
        """Load the kernel `emitted` on the GPU with the number `number`. `assembly` is its PTX (str) or its cubin
        (bytes). Raise TargetError if there is no such GPU, or if the driver refuses the code.
        """
        gpu = device(number)
        if isinstance(gpu, str):
            raise TargetError(f"{emitted.name}: device {number}: {gpu}")
        self.device, self.name = gpu, emitted.name
        with gpu.entered():
            self._load(assembly, emitted)

    def _load(self, assembly: str | bytes, emitted: Emitted) -> None:
        """Load the code `assembly` (PTX or cubin) of the kernel `emitted` on the device. Set `module`, `function` and
        `workgroups`, the number of workgroups that fit on a multiprocessor. Allow the kernel its dynamic shared memory.
        If the kernel has task counters, allocate them, filled with zeros, and set `counters` and `drawn`. Raise
        TargetError if the driver refuses a step.
        """
        cu, check = self.device.cu, self.device.check
        # loaded as one module: by the linker, setmaxnreg would be dropped and wgmma serialised
        code = assembly if isinstance(assembly, bytes) else assembly.encode() + b"\0"
        self.module = check(cu.cuModuleLoadData(code), f"{self.name}: cuModuleLoadData")
        self.function = check(cu.cuModuleGetFunction(self.module, self.name.encode()), f"{self.name}: its code")
        most = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(cu.cuFuncSetAttribute(self.function, most, emitted.shared_bytes), f"{self.name}: its shared memory")
        if emitted.counters:
            count = emitted.counters * LAUNCHES
            self.counters = OwnedMemory(self.device, 4 * count, f"{self.name}: its counters")
            check(cu.cuMemsetD32(self.counters.pointer, 0, count), f"{self.name}: cuMemsetD32")
            self.drawn = np.zeros(1, np.uint64)
        self.workgroups = int(
            check(
                cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, emitted.threads, emitted.shared_bytes),
                f"{self.name}: its workgroups",
            )
        )
