"""The driver, through cuda-bindings (the extra `gpu`): context, code, tensor maps, launches. Imported where it is used.

The driver assembles PTX, and keeps what it assembled in a cache of its own. A kernel's arguments are the tensors'
pointers, then that of its counters if it has any, then tensor maps, each 128 bytes at a multiple of 64.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tilewright.errors import TargetError
from tilewright.machine import Machine
from tilewright.targets.gpu.arrays import DeviceArray
from tilewright.targets.gpu.emit import Emitted
from tilewright.targets.nvidia.im2col import Im2colMap
from tilewright.targets.nvidia.tma import TensorMap

MAP_BYTES = 128
_TYPES = {
    "bfloat16": "BFLOAT16", "float16": "FLOAT16", "float32": "FLOAT32", "float64": "FLOAT64", "int32": "INT32",
    "uint8": "UINT8", "int8": "UINT8", "float8_e4m3fn": "UINT8", "float8_e5m2": "UINT8", "int64": "INT64",
}  # fmt: skip


def _bindings() -> Any:
    from cuda.bindings import driver

    return driver


class Device:
    """The first GPU: its context is the one that other libraries of the process use too."""

    def __init__(self) -> None:
        self.cu = _bindings()
        self.check(self.cu.cuInit(0), "cuInit")
        self.number = self.check(self.cu.cuDeviceGet(0), "cuDeviceGet")
        self.context = self.check(self.cu.cuDevicePrimaryCtxRetain(self.number), "cuDevicePrimaryCtxRetain")
        self.enter()
        self.version = int(self.check(self.cu.cuDriverGetVersion(), "cuDriverGetVersion"))
        what = self.cu.CUdevice_attribute
        self.capability = (
            self._attribute(what.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._attribute(what.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self.cores = self._attribute(what.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)

    def _attribute(self, which: Any) -> int:
        return int(self.check(self.cu.cuDeviceGetAttribute(which, self.number), "cuDeviceGetAttribute"))

    def enter(self) -> None:
        """This thread works in the context."""
        self.check(self.cu.cuCtxSetCurrent(self.context), "cuCtxSetCurrent")

    def check(self, answer: Any, what: str) -> Any:
        """What the driver answered; raises with its own words where it refuses."""
        code = answer[0]
        if code != self.cu.CUresult.CUDA_SUCCESS:
            _, name = self.cu.cuGetErrorName(code)
            _, text = self.cu.cuGetErrorString(code)
            name, text = (t.decode() if isinstance(t, bytes) else str(t) for t in (name, text))
            raise TargetError(f"{what}: the driver says {name}: {text}")
        return answer[1] if len(answer) == 2 else answer[1:]


@cache
def device() -> Device | str:
    """The GPU at hand, or why there is none."""
    try:
        return Device()
    except ImportError:
        return "cuda-bindings is not installed; pip install 'tilewright[gpu]'"
    except (RuntimeError, OSError) as fault:  # no driver, or one that refuses
        return f"there is no GPU here: {str(fault).splitlines()[0]}"


def why_not(machine: Machine) -> str | None:
    """Why code for a machine does not run here; None: it does."""
    found = device()
    if isinstance(found, str):
        return found
    major, minor = found.capability
    wanted = 9 if "sm_90a" in machine.features else 8
    if major != wanted:
        return f"the GPU here has compute capability {major}.{minor}, not {wanted}.x"
    return None


LAUNCHES = 1024
"""Launches of one kernel that may be under way at a time and each have counters of their own."""


class Loaded:
    """A kernel on the device."""

    def __init__(self, assembly: str, emitted: Emitted):
        found = device()
        assert isinstance(found, Device)
        self.device, self.name = found, emitted.name
        cu, check = found.cu, found.check
        found.enter()
        code = assembly.encode() + b"\0"  # as a whole: linked, setmaxnreg would be left out, and products wait
        self.module = check(cu.cuModuleLoadData(code), f"{self.name}: cuModuleLoadData")
        self.function = check(cu.cuModuleGetFunction(self.module, self.name.encode()), f"{self.name}: its code")
        most = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(cu.cuFuncSetAttribute(self.function, most, emitted.shared_bytes), f"{self.name}: its shared memory")
        self._counters, self._launches = emitted.counters, 0
        if emitted.counters:
            room = 4 * emitted.counters * LAUNCHES
            self._counting = int(check(cu.cuMemAlloc(room), f"{self.name}: memory on the device"))
            check(cu.cuMemsetD32(self._counting, 0, room // 4), f"{self.name}: cuMemsetD32")
        self.workgroups = int(
            check(
                cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, emitted.threads, emitted.shared_bytes),
                f"{self.name}: its workgroups",
            )
        )

    def counters(self) -> int:
        """The address of counters for a launch: its own, unless very many are under way at a time."""
        self._launches += 1
        return self._counting + 4 * self._counters * (self._launches % LAUNCHES)


def tensor_map(found: Device, what: TensorMap | Im2colMap, pointer: int, dtype: np.dtype[Any]) -> bytes:
    """A tensor map for a tensor that lies at an address."""
    cu = found.cu
    kind = getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[dtype.name]}")
    spans = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
    swizzle = getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{spans[what.swizzle]}")
    plain = cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE
    near = cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B
    zeros = cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
    rank = len(what.extents)
    extents = [cu.cuuint64_t(n) for n in what.extents]
    strides = [cu.cuuint64_t(s * dtype.itemsize) for s in what.strides[1:]]
    if isinstance(what, TensorMap):
        box, steps = ([cu.cuuint32_t(n) for n in numbers] for numbers in (what.box, (1,) * rank))
        answer = cu.cuTensorMapEncodeTiled(
            kind, rank, pointer, extents, strides, box, steps, plain, swizzle, near, zeros
        )
    else:
        steps = [cu.cuuint32_t(n) for n in (1, *what.steps, 1)]
        answer = cu.cuTensorMapEncodeIm2col(
            kind, rank, pointer, extents, strides, list(what.lower), list(what.upper), what.channels, what.pixels,
            steps, plain, swizzle, near, zeros,
        )  # fmt: skip
    made = found.check(answer, "a tensor map")
    return ctypes.string_at(int(made.getPtr()), MAP_BYTES)


class Launch:
    """A kernel bound to arrays; a call starts it on the stream of whoever calls.

    Arrays of the host are copied to the device before each run, and back after it, which waits for the device.
    """

    def __init__(self, loaded: Loaded, emitted: Emitted, arrays: list[Any], workers: int | None):
        self.loaded, self.device = loaded, loaded.device
        cu, check = self.device.cu, self.device.check
        self.device.enter()
        self._moved: list[tuple[Any, np.ndarray[Any, Any], bool]] = []
        self._kept: list[Any] = [arrays]
        pointers = []
        for array, written in zip(arrays, emitted.written, strict=True):
            if isinstance(array, DeviceArray):
                pointers.append(array.pointer)
                continue
            memory = check(cu.cuMemAlloc(max(16, array.nbytes)), f"{loaded.name}: memory on the device")
            self._moved.append((memory, array, written))
            pointers.append(int(memory))
        if emitted.counters:
            pointers.append(0)
        maps = [tensor_map(self.device, p.what, pointers[p.tensor], arrays[p.tensor].dtype) for p in emitted.parameters]
        room = np.zeros(8 * len(pointers) + 64 + MAP_BYTES * len(maps), np.uint8)
        start = room.ctypes.data + (-room.ctypes.data) % 64
        places = []
        for i, data in enumerate(maps):
            ctypes.memmove(start + MAP_BYTES * i, data, MAP_BYTES)
        after = start + MAP_BYTES * len(maps)
        for i, pointer in enumerate(pointers):
            ctypes.c_uint64.from_address(after + 8 * i).value = pointer
            places.append(after + 8 * i)
        self._counters = ctypes.c_uint64.from_address(places[-1]) if emitted.counters else None
        places += [start + MAP_BYTES * i for i in range(len(maps))]
        table = np.array(places, np.uint64)
        self._kept += [room, table]
        config = cu.CUlaunchConfig()
        most = self.device.cores * max(1, loaded.workgroups)
        config.gridDimX = max(1, min(emitted.tasks, workers or most))
        config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX, config.sharedMemBytes = emitted.threads, emitted.shared_bytes
        config.attrs, config.numAttrs = [], 0
        self._config, self._table = config, table.ctypes.data
        self._torch = any(_is_tensor(a) for a in arrays)

    def __call__(self) -> None:
        """Starts the kernel."""
        cu, check, name = self.device.cu, self.device.check, self.loaded.name
        self.device.enter()
        if self._torch:
            self._config.hStream = cu.CUstream(sys.modules["torch"].cuda.current_stream().cuda_stream)
        if self._counters is not None:
            self._counters.value = self.loaded.counters()
        for memory, array, _ in self._moved:
            check(cu.cuMemcpyHtoD(memory, array.ctypes.data, array.nbytes), f"{name}: a copy to the device")
        check(cu.cuLaunchKernelEx(self._config, self.loaded.function, self._table, 0), name)
        if self._moved:
            check(cu.cuCtxSynchronize(), name)
        for memory, array, written in self._moved:
            if written:
                check(cu.cuMemcpyDtoH(array.ctypes.data, memory, array.nbytes), f"{name}: a copy from the device")

    def __del__(self) -> None:
        for memory, _, _ in getattr(self, "_moved", ()):
            self.device.cu.cuMemFree(memory)


def _is_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, DeviceArray) and isinstance(array.owner, torch.Tensor)


def bound(loaded: Loaded, emitted: Emitted, arrays: list[Any], workers: int | None) -> Callable[[], None]:
    """A launch on arrays."""
    return Launch(loaded, emitted, arrays, workers)
