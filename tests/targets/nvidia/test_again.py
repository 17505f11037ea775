"""Calls like one before, and arguments on devices: against a torch that only has tensors, and no GPU."""

from __future__ import annotations

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from exchanging import STREAM, Tensor, capsule, tensor
from test_driver import LAUNCH, Told, loaded_on

from tilewright.errors import ArgumentError, TargetError
from tilewright.runtime.device_arrays import DeviceArray, array_of, common_device
from tilewright.targets.calls.table import UNLIKE
from tilewright.targets.gpu.again import GpuLaunchCache
from tilewright.targets.gpu.emit import Emitted
from tilewright.targets.nvidia import memory
from tilewright.targets.nvidia.launch import Config, Launch


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = ModuleType("torch")
    found.Tensor = Tensor  # type: ignore[attr-defined]
    found.strided, found.is_grad_enabled = "strided", lambda: True  # type: ignore[attr-defined]
    made = lambda shape, strides, dtype, device: tensor(0xF000, shape, strides)  # noqa: E731
    found.empty_strided = made  # type: ignore[attr-defined]
    monkeypatch.setattr(Tensor, "__dlpack_c_exchange_api__", capsule(), raising=False)
    monkeypatch.setitem(sys.modules, "torch", found)
    return found


class Kernel:
    """A kernel of two inputs and one output; writes down where it was started, and on which stream."""

    def __init__(self) -> None:
        self.started: list[tuple[int, ...]] = []
        self.streams: list[int] = []
        self.answer = 0
        self.told = Told()
        self.told.parameters = 3
        self.loaded = loaded_on(self.told, "kernel")
        self.loaded.device.start = LAUNCH(self._start)

    def _start(self, config: int, function: int, table: int, extra: int) -> int:
        self.streams.append(Config.from_address(config).stream or 0)
        places = [ctypes.c_uint64.from_address(table + 8 * i).value for i in range(3)]
        self.started.append(tuple(ctypes.c_uint64.from_address(p).value for p in places))
        return self.answer

    def learnt(self, made: int = 0, tensors: tuple[Tensor, ...] = ()) -> GpuLaunchCache:
        """What is known after one call."""
        tensors = tensors or (tensor(0x1000), tensor(0x2000), tensor(0x3000))
        emitted = Emitted("", "kernel", 32, 0, 1, (), (False, False, True))
        found = GpuLaunchCache()
        launch = Launch(self.loaded, emitted, [t.array for t in tensors], None)
        found.learn(tensors[: 3 - made], tensors[3 - made :], launch)
        return found


def test_a_call_like_one_before_only_moves(torch: Any) -> None:
    kernel = Kernel()
    again = kernel.learnt()
    assert again.call(tensor(0x5000), tensor(0x6000), tensor(0x7000)) is None
    assert again.call(tensor(0x8000), tensor(0x8000), tensor(0x7080)) is None  # what is only read may be the same
    assert kernel.started == [(0x5000, 0x6000, 0x7000), (0x8000, 0x8000, 0x7080)]


def test_an_output_is_made_as_it_was(torch: Any) -> None:
    kernel = Kernel()
    again = kernel.learnt(made=1)
    found = again.call(tensor(0x5000), tensor(0x6000))
    assert (found.shape, kernel.started) == ((4, 8), [(0x5000, 0x6000, 0xF000)])
    assert again.call(tensor(0x5000), tensor(0x6000), tensor(0x7000)) is UNLIKE
    torch.empty_strided = None  # nothing is made for a call that is not like the first
    assert again.call(tensor(0x5000), tensor(0x6000, (8, 4))) is UNLIKE


@pytest.mark.parametrize(
    "other",
    [
        tensor(0x6000, (8, 4)),
        tensor(0x6000, (32,)),
        tensor(0x6000, kind="i4"),
        tensor(0x6000, device=1),
        tensor(0x6008),  # no multiple of 16
        tensor(0x6000, strides=(1, 4)),
        tensor(0x6000, grad=True),
        tensor(0x7000 + 112),  # its memory is the output's too
        tensor(0x7000 - 112),
        np.zeros((4, 8), np.float32),
        type("Further", (Tensor,), {})(tensor(0x6000).array, 0x6000),
    ],
)
def test_what_may_be_wrong_is_left_to_the_checks(torch: Any, other: Any) -> None:
    kernel = Kernel()
    again = kernel.learnt()
    assert again.call(tensor(0x5000), other, tensor(0x7000)) is UNLIKE
    assert again.call(tensor(0x5000), tensor(0x6000)) is UNLIKE
    assert kernel.started == []


def test_a_tensor_with_strides_is_like_another_with_these(torch: Any) -> None:
    kernel = Kernel()
    first = tensor(0x1000, (4, 1, 8), (16, 3, 1))
    again = kernel.learnt(tensors=(first, tensor(0x2000), tensor(0x3000)))
    # the stride of a single element says nothing
    assert again.call(tensor(0x5000, (4, 1, 8), (16, 99, 1)), tensor(0x6000), tensor(0x7000)) is None
    assert again.call(tensor(0x5000, (4, 1, 8), (8, 3, 1)), tensor(0x6000), tensor(0x7000)) is UNLIKE


def test_a_launch_on_a_copy_is_not_started_at_the_tensor_it_was_copied_from(torch: Any) -> None:
    """A layer copies a tensor with gaps: the second call read the tensor itself as if it were contiguous."""
    kernel = Kernel()
    gaps = tensor(0x1000, (4, 8), (16, 1))
    copied = Launch(
        kernel.loaded,
        Emitted("", "kernel", 32, 0, 1, (), (False, False, True)),
        [tensor(pointer).array for pointer in (0x4000, 0x2000, 0x3000)],
        None,
    )
    again = GpuLaunchCache()
    again.learn([gaps, tensor(0x2000)], [tensor(0x3000)], copied)
    assert again.call(gaps, tensor(0x2000)) is UNLIKE
    assert kernel.started == []


def test_a_library_without_exchange_functions_is_always_checked(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Tensor, "__dlpack_c_exchange_api__")
    assert Kernel().learnt().call(tensor(0x5000), tensor(0x6000), tensor(0x7000)) is UNLIKE


def test_every_launch_asks_for_the_current_stream(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.cuda = SimpleNamespace(is_initialized=lambda: True)
    kernel = Kernel()
    again = kernel.learnt()
    for stream in (7, 9):
        monkeypatch.setitem(STREAM, 0, stream)
        again.call(tensor(0x5000), tensor(0x6000), tensor(0x7000))
    assert kernel.streams == [7, 9]


def test_a_torch_that_does_not_tell_streams_by_exchange_is_asked_in_python(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Tensor, "__dlpack_c_exchange_api__")
    asked = lambda number: SimpleNamespace(cuda_stream=40 + number)  # noqa: E731
    torch.cuda = SimpleNamespace(is_initialized=lambda: True, current_stream=asked)
    memory._asking_torch.cache_clear()
    kernel = Kernel()
    emitted = Emitted("", "kernel", 32, 0, 1, (), (False, False, True))
    Launch(kernel.loaded, emitted, [tensor(n << 12).array for n in (1, 2, 3)], None)()
    assert kernel.streams == [40]


def test_what_the_driver_answers_to_a_call_like_one_before_is_told(torch: Any) -> None:
    kernel = Kernel()
    again, kernel.answer = kernel.learnt(), 700
    with pytest.raises(TargetError, match="kernel: the driver says CUDA_ERROR_ILLEGAL_ADDRESS"):
        again.call(tensor(0x5000), tensor(0x6000), tensor(0x7000))


def test_threads_start_one_launch_at_a_time_each_with_its_own_tensors(torch: Any) -> None:
    kernel = Kernel()
    again = kernel.learnt()
    calls = [tuple(tensor(0x10000 * n + 0x1000 * i) for i in range(3)) for n in range(1, 65)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda tensors: again.call(*tensors), calls))
    assert sorted(kernel.started) == [tuple(0x10000 * n + 0x1000 * i for i in range(3)) for n in range(1, 65)]


def test_arguments_on_two_devices_are_refused() -> None:
    one, two = (DeviceArray(0, (1,), (1,), np.dtype("f4"), None, device=n) for n in (0, 1))
    assert common_device("f", [two, np.zeros(1)]) == 1
    with pytest.raises(ArgumentError, match=r"f: its arguments lie on several devices, \[0, 1\]"):
        common_device("f", [one, two])


class Exported:
    """An array of another library that lies on a GPU, as DLPack describes it."""

    def __init__(self, code: int, bits: int):
        self.shape, self.strides = (ctypes.c_int64 * 2)(3, 5), (ctypes.c_int64 * 2)(8, 1)
        fields = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32)]
        fields += [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]
        fields += [("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64)]
        kind = type("DLTensor", (ctypes.Structure,), {"_fields_": fields})
        self.tensor = kind(0x4000, (2, 1), 2, code, bits, 1)
        self.tensor.shape, self.tensor.strides = ctypes.addressof(self.shape), ctypes.addressof(self.strides)
        self.tensor.offset, self.streams = 64, []  # type: ignore[var-annotated]

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1

    def __dlpack__(self, stream: int) -> Any:
        self.streams.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


@pytest.mark.parametrize(
    ("code", "bits", "name"), [(2, 32, "float32"), (4, 16, "bfloat16"), (0, 8, "int8"), (10, 8, "float8_e4m3fn")]
)
def test_dlpack_of_a_gpu_is_taken_where_it_lies(code: int, bits: int, name: str) -> None:
    given = Exported(code, bits)
    found = array_of(given, "x")
    assert isinstance(found, DeviceArray)
    assert (found.pointer, found.shape, found.strides, found.device) == (0x4040, (3, 5), (8, 1), 1)
    assert (found.dtype.name, given.streams, found.packed) == (name, [1], False)


def test_what_dlpack_has_and_we_do_not_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"x holds elements that DLPack calls \(5, 64, 1\)"):
        array_of(Exported(5, 64), "x")


def test_a_stream_that_an_array_names_is_kept() -> None:
    told = {"typestr": "<f4", "shape": (2, 3), "data": (0x100, False), "stream": 7}
    found = array_of(SimpleNamespace(__cuda_array_interface__=told), "x")
    assert (found.stream, found.strides, found.nbytes) == (7, (3, 1), 24)
