"""Launches, against a driver that only writes down what it is asked."""

from __future__ import annotations

import ctypes
import gc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.check.block import check
from tilewright.errors import TargetError
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.lower.gpu.lower import lower_waves
from tilewright.runtime.device_arrays import DeviceArray, packed_steps
from tilewright.targets.gpu.emit import Emitted
from tilewright.targets.nvidia import driver, launch, starting
from tilewright.targets.nvidia.backend import BACKEND
from tilewright.targets.nvidia.maps import tensor_map
from tilewright.targets.nvidia.plain_record import PlainRecord
from tilewright.targets.nvidia.tma import TensorMap
from tilewright.targets.registry import machine

CONTEXT = 4096
EXAMPLES = Path(__file__).parents[3] / "examples" / "block"


class Named:
    """Any attribute is its own name."""

    def __getattr__(self, name: str) -> str:
        return name


class Result(int):
    """The driver's answers."""

    CUDA_SUCCESS = 0


class Told:
    """A driver that answers success and keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.CUresult: Any = Result
        self.fail: str | None = None
        for name in ("CUtensorMapDataType", "CUtensorMapSwizzle", "CUtensorMapInterleave", "CUtensorMapL2promotion"):
            setattr(self, name, Named())
        self.CUtensorMapFloatOOBfill = self.CUdevice_attribute = self.CUfunction_attribute = Named()
        self.CUjitInputType = Named()
        self.cuuint64_t = self.cuuint32_t = int
        self.context = CONTEXT
        self.opaque, self.maps = False, 0
        self.parameters = self.mapped = 0
        self.captures = False

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.calls.append((name, args))
            if name == self.fail:
                return (700,)
            if name == "cuCtxGetCurrent":
                return 0, self.context
            if name in ("cuGetErrorName", "cuGetErrorString"):
                return 0, b"CUDA_ERROR_ILLEGAL_ADDRESS"
            if name.startswith("cuTensorMapEncode"):
                self.maps += 1
                self.bytes = ctypes.create_string_buffer(bytes([self.maps]) * 128)
                return 0, SimpleNamespace(getPtr=lambda: ctypes.addressof(self.bytes))
            return 0, {"cuDeviceGetAttribute": 132, "cuOccupancyMaxActiveBlocksPerMultiprocessor": 1}.get(name, 4096)

        return call

    def start(self, config: int, function: int, table: int, extra: int) -> int:
        """cuLaunchKernelEx, as the library has it."""
        found = launch.Config.from_address(config)
        passed = [ctypes.c_uint64.from_address(table + 8 * i).value for i in range(self.parameters)]
        words = [ctypes.c_uint64.from_address(p).value for p in passed]
        self.maps_passed = [ctypes.string_at(p, 128) for p in passed[-self.mapped :]] if self.mapped else []
        self.aligned = all(p % 64 == 0 for p in passed[len(passed) - self.mapped :])
        self.calls.append(("start", (tuple(found.grid), tuple(found.block), found.shared, found.stream, words)))
        kind = launch.Attribute * found.attribute_count
        asked = kind.from_address(found.attributes) if found.attribute_count else ()
        self.asked = [(a.what, list(a.value)[:3]) for a in asked]
        if self.fail == "context" and self.context != CONTEXT:
            return 201
        return 700 if self.fail == "start" else 0

    def room_for_clusters(self, found: Any, function: Any, config: Any) -> int:
        """cuOccupancyMaxActiveClusters."""
        found._obj.value = 60
        return 0

    def is_captured(self, stream: int, state: int) -> int:
        """cuStreamIsCapturing."""
        ctypes.c_int.from_address(state).value = int(self.captures)
        return 0

    def readdress(self, place: int, pointer: int) -> int:
        """cuTensorMapReplaceAddress; `opaque` maps hold something else of the address."""
        self.calls.append(("readdress", (place, pointer)))
        ctypes.c_uint64.from_address(place + 16).value = pointer >> 4 if self.opaque else pointer
        return 0


LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
CAPTURING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
READDRESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def loaded_on(told: Told, name: str) -> Any:
    device = driver.Device.__new__(driver.Device)
    device.cu = device.library = told
    device.context, device.cores, device.version, device.number = CONTEXT, 132, 13000, 0
    device.start, device.readdress = LAUNCH(told.start), READDRESS(told.readdress)
    device.room_for_clusters, device.capturing = told.room_for_clusters, CAPTURING(told.is_captured)
    loaded = driver.Loaded.__new__(driver.Loaded)
    loaded.device, loaded.name, loaded.function, loaded.workgroups = device, name, 33, 1
    return loaded


def emitted_of(name: str, **params: int) -> tuple[Any, Any]:
    program = bind(parse_block((EXAMPLES / f"{name}.block").read_text()), params)
    hopper = machine("hopper")
    check(program, hopper)
    return program, BACKEND.emitted(lower_waves(program, hopper), hopper)


def bound(name: str, told: Told, **params: int) -> tuple[Any, Any]:
    program, emitted = emitted_of(name, **params)
    shapes = [tuple(int(e) for e in a.type.shape) for a in program.args]
    arrays = [
        DeviceArray(1 << 20 + i, shape, packed_steps(shape), a.type.dtype.numpy, None)
        for i, (shape, a) in enumerate(zip(shapes, program.args, strict=True))
    ]
    told.parameters, told.mapped = len(arrays) + len(emitted.parameters), len(emitted.parameters)
    return launch.Launch(loaded_on(told, name), emitted, arrays, None), emitted


def test_a_product_is_launched_with_pointers_then_maps() -> None:
    told = Told()
    run, emitted = bound("gemm_hopper", told, M=4096, N=4096, K=1024)
    run()
    maps = [args for name, args in told.calls if name == "cuTensorMapEncodeTiled"]
    kind, rank, pointer, extents, strides, box, steps, *_ = maps[0]
    assert (kind, rank, pointer) == ("CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", 2, 1 << 20)
    assert (extents, strides, box, steps) == ([1024, 4096], [2048], [64, 128], [1, 1])
    (name, (grid, block, shared, stream, words)) = told.calls[-1]
    assert (name, grid, block, shared) == ("start", (132, 1, 1), (384, 1, 1), emitted.shared_bytes)
    assert stream is None
    assert words[:3] == [1 << 20, 1 << 21, 1 << 22]
    assert told.aligned
    assert [data[0] for data in told.maps_passed] == [1, 2, 3]  # the maps, in order


def test_a_map_of_one_dimension_gives_the_driver_an_address_of_strides() -> None:
    """It refuses an empty list, which the bindings hand on as no address at all."""
    told = Told()
    tensor_map(loaded_on(told, "row").device, TensorMap(0, (40,), (1,), (32,), 0), 1 << 20, np.dtype(np.float32))
    (args,) = [args for name, args in told.calls if name == "cuTensorMapEncodeTiled"]
    assert (args[1], args[3], args[4]) == (1, [40], [16])


@pytest.mark.parametrize(("elements", "bytes_at_once"), [(40, 128), (128, 128), (129, 256), (1024, 256)])
def test_long_rows_are_read_ahead(elements: int, bytes_at_once: int) -> None:
    """L2 reads beyond a short row what no stage of the pipeline asks for: decoding took up to 9 % longer."""
    told, what = Told(), TensorMap(0, (elements, 8), (1, elements), (32, 8), 0)
    tensor_map(loaded_on(told, "rows").device, what, 1 << 20, np.dtype(np.float32))
    (args,) = [args for name, args in told.calls if name == "cuTensorMapEncodeTiled"]
    assert args[-2] == f"CU_TENSOR_MAP_L2_PROMOTION_L2_{bytes_at_once}B"


def test_a_cluster_is_launched_whole_and_no_more_than_there_is_room_for() -> None:
    told = Told()
    run, emitted = bound("gemm_hopper", told, M=4096, N=4096, K=1024, CLUSTER=2)
    run()
    assert told.calls[-1][1][0] == (120, 1, 1)
    assert told.asked == [(4, [2, 1, 1])]
    launch.Launch(loaded_on(told, "gemm_hopper"), replace(emitted, programmatic=True), run._arrays, 7)()
    assert told.calls[-1][1][0] == (6, 1, 1)
    assert told.asked == [(4, [2, 1, 1]), (6, [1, 0, 0])]


def test_an_image_is_walked_as_the_filter_stands() -> None:
    told = Told()
    bound("conv_hopper", told, N=2, H=9, W=7, C=128, STRIDE=2)
    (args,) = [args for name, args in told.calls if name == "cuTensorMapEncodeIm2col"]
    _, rank, _, extents, strides, lower, upper, channels, pixels, steps, *_ = args
    assert (rank, extents, strides) == (4, [128, 7, 9, 2], [256, 1792, 16128])
    assert (lower, upper, channels, pixels, steps) == ([-1, -1], [-1, -1], 64, 128, [1, 2, 2, 1])


@pytest.mark.parametrize("opaque", [False, True])
def test_a_launch_elsewhere_changes_pointers_and_maps(opaque: bool) -> None:
    told = Told()
    told.opaque = opaque
    run, _ = bound("gemm_hopper", told)
    run.again()
    told.calls.clear()
    assert run._start(1 << 20, 1 << 30, 1 << 22) == 0
    readdressed = [args[1] for name, args in told.calls if name == "readdress"]
    assert told.calls[-1][1][-1][:3] == [1 << 20, 1 << 30, 1 << 22]
    # by the driver, where the address is no word of a map
    assert readdressed == ([1 << 20, 1 << 30, 1 << 22] if opaque else [])
    addresses = [int.from_bytes(data[16:24], "little") for data in told.maps_passed]
    assert addresses == [p >> 4 if opaque else p for p in (1 << 20, 1 << 30, 1 << 22)]
    run()  # the kernel is still bound to the first ones
    assert told.calls[-1][1][-1][:3] == [1 << 20, 1 << 21, 1 << 22]


def test_what_the_driver_refuses_is_told_with_the_kernel() -> None:
    told = Told()
    run, _ = bound("gemm_hopper", told)
    told.fail = "start"
    with pytest.raises(TargetError, match="gemm_hopper: the driver says CUDA_ERROR_ILLEGAL_ADDRESS"):
        run()


def test_a_bound_kernel_is_a_builtin_that_keeps_what_it_needs() -> None:
    told = Told()
    run = bound("gemm_hopper", told)[0].alone
    gc.collect()
    assert run() is None
    assert told.calls[-1][1][-1][:3] == [1 << 20, 1 << 21, 1 << 22]
    told.fail = "start"
    with pytest.raises(TargetError, match="gemm_hopper: the driver says CUDA_ERROR_ILLEGAL_ADDRESS"):
        run()
    told.fail = None
    run()


def test_a_thread_that_works_in_another_context_gets_it_back() -> None:
    told = Told()
    run, _ = bound("gemm_hopper", told)
    told.calls.clear()
    told.context, told.fail = 77, "context"
    with pytest.raises(TargetError):  # this driver refuses again; what matters is that it was asked within
        run()
    names = [name for name, _ in told.calls]
    assert names[:5] == ["start", "cuCtxGetCurrent", "cuCtxPushCurrent", "start", "cuCtxPopCurrent"]


def test_arrays_of_the_host_are_moved() -> None:
    told = Told()
    program, emitted = emitted_of("gemm_hopper")
    arrays = [np.zeros((256, 256), a.type.dtype.numpy) for a in program.args]
    launch.Launch(loaded_on(told, "gemm_hopper"), emitted, arrays, None)()
    names = [name for name, _ in told.calls]
    assert (names.count("cuMemcpyHtoD"), names.count("cuMemcpyDtoH"), names.count("cuCtxSynchronize")) == (3, 1, 1)


def test_every_launch_has_counters_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    found = loaded_on(told, "kernel").device
    monkeypatch.setattr(driver, "device", lambda number: found)
    emitted = Emitted("", "kernel", 384, 0, 1, (), (False,), counters=2)
    loaded = driver.Loaded("its text", emitted)
    assert ("cuModuleLoadData", (b"its text\0",)) in told.calls
    assert ("cuMemsetD32", (4096, 0, 2 * driver.LAUNCHES)) in told.calls
    told.parameters = 2
    start = launch.Launch(loaded, emitted, [DeviceArray(1 << 20, (1,), (), np.dtype("f4"), None)], None)
    seen = []
    for _ in range(3):
        start()
        seen.append(told.calls[-1][1][-1])
    assert seen == [[1 << 20, 4096 + 8 * n] for n in (1, 2, 3)]


@pytest.mark.parametrize("record", [starting.Record, PlainRecord])
def test_a_launch_in_a_graph_has_counters_that_no_other_launch_uses(
    record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replays used those of the turn in which the graph was captured, perhaps while another launch had them."""
    told, taken = Told(), []
    monkeypatch.setattr(driver, "device", lambda number: device)
    monkeypatch.setattr(launch, "torch_memory", lambda size, number: taken.append(size) or _Room())
    monkeypatch.setattr(launch.Launch, "record", record)
    device = loaded_on(told, "kernel").device
    emitted = Emitted("", "kernel", 384, 0, 1, (), (False,), counters=2)
    told.parameters = 2
    array = DeviceArray(1 << 20, (1,), (), np.dtype("f4"), None)
    start = launch.Launch(driver.Loaded("its text", emitted), emitted, [array], None)
    run = start.alone
    for told.captures, call in ((True, start), (True, run), (False, start)):
        told.calls.clear()
        call()
        address = told.calls[-1][1][-1][1]
        assert (address == _Room.ADDRESS) is told.captures
        cleared = [args for name, args in told.calls if name == "cuMemsetD32Async"]
        assert cleared == ([(_Room.ADDRESS, 0, 2, 0)] if told.captures else [])
    assert taken == [8, 8]
    monkeypatch.setattr(launch, "torch_memory", lambda size, number: None)
    told.captures = True
    with pytest.raises(TargetError, match="memory for it comes from torch, which is not in use here"):
        start()


class _Room:
    """Memory of torch's."""

    ADDRESS = 0x7700

    def data_ptr(self) -> int:
        return self.ADDRESS


def test_what_a_capture_refuses_says_what_to_do() -> None:
    told = Told()
    told.fail = "cuMemAlloc"
    refused = loaded_on(told, "kernel").device.fault(Result(900), "32 bytes on the device")
    assert "Make the same call once before the capture" in str(refused)
    assert "capture" not in str(loaded_on(told, "kernel").device.fault(Result(700), "32 bytes"))
