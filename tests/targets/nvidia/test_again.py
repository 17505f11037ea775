"""Calls like one before, and arguments on devices: against a torch that only has tensors, and no GPU."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.errors import ArgumentError
from tilewright.runtime.device_arrays import DeviceArray, array_of, common_device
from tilewright.targets.gpu.again import Again


class Tensor:
    """What is asked of a tensor on a device."""

    def __init__(self, pointer: int, shape: tuple[int, ...] = (4, 8), contiguous: bool = True, grad: bool = False):
        self.pointer, self.shape, self.contiguous, self.requires_grad = pointer, shape, contiguous, grad
        self.dtype, self.device, self.is_cuda, self.nbytes = "f32", "cuda:0", True, 4 * int(np.prod(shape))

    def data_ptr(self) -> int:
        return self.pointer

    def is_contiguous(self) -> bool:
        return self.contiguous


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = ModuleType("torch")
    found.Tensor = Tensor  # type: ignore[attr-defined]
    found.empty = lambda shape, dtype, device: Tensor(0xF000, shape)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", found)
    return found


class Launch:
    """Writes down where it was started."""

    def __init__(self) -> None:
        self.started: list[list[int]] = []

    def at(self, pointers: list[int]) -> None:
        self.started.append(list(pointers))

    def forget(self) -> None:
        """Nothing is kept."""


def learnt(made: int = 0) -> tuple[Again, Launch]:
    """A kernel with two inputs and one output, called once."""
    again, launch = Again(), Launch()
    tensors = (Tensor(0x1000), Tensor(0x2000), Tensor(0x3000))
    again.learn(tensors[: 3 - made], tensors[3 - made :], [False, False, True], launch)
    return again, launch


def test_a_call_like_one_before_only_moves(torch: Any) -> None:
    again, launch = learnt()
    assert again((Tensor(0x5000), Tensor(0x6000), Tensor(0x7000))) == ()
    assert launch.started == [[0x5000, 0x6000, 0x7000]]


def test_an_output_is_made_as_it_was(torch: Any) -> None:
    again, launch = learnt(made=1)
    (found,) = again((Tensor(0x5000), Tensor(0x6000))) or ()
    assert (found.shape, launch.started) == ((4, 8), [[0x5000, 0x6000, 0xF000]])
    assert again((Tensor(0x5000), Tensor(0x6000), Tensor(0x7000))) is None


@pytest.mark.parametrize(
    "other",
    [
        Tensor(0x6000, (8, 4)),
        Tensor(0x6008),  # no multiple of 16
        Tensor(0x6000, contiguous=False),
        Tensor(0x6000, grad=True),
        Tensor(0x7000 + 112),  # its memory is the output's too
        np.zeros((4, 8), np.float32),
    ],
)
def test_what_may_be_wrong_is_left_to_the_checks(torch: Any, other: Any) -> None:
    again, launch = learnt()
    assert again((Tensor(0x5000), other, Tensor(0x7000))) is None
    assert launch.started == []


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
