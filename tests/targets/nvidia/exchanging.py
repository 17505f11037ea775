"""Tensors of a library that only has DLPack's exchange functions, and no device."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tilewright.runtime.device_arrays import DeviceArray, packed_steps
from tilewright.runtime.dlpack import form_of
from tilewright.runtime.exchange import Exchange, _Table


class Tensor:
    """A tensor: what it is like, and where it lies."""

    is_cuda, is_quantized, layout = True, False, "strided"

    def __init__(self, array: DeviceArray, pointer: int, grad: Any = False):
        self.array, self.requires_grad = array, grad
        self.shape, self.dtype, self.device = array.shape, array.dtype, array.device
        self.extents = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(*array.strides)
        shape, strides = ctypes.addressof(self.extents), ctypes.addressof(self.strides)
        self.is_conj = self.is_neg = lambda: False
        self.words = [pointer, 2 | array.device << 32, form_of(array.dtype, array.ndim), shape, strides, 0]


def tensor(pointer: int, shape: tuple[int, ...] = (4, 8), strides: Any = None, kind: str = "f4", **more: Any) -> Tensor:
    """A tensor of f32, or of another kind; packed, unless strides are given."""
    grad = more.pop("grad", False)
    return Tensor(
        DeviceArray(pointer, shape, strides or packed_steps(shape), np.dtype(kind), None, **more), pointer, grad
    )


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
def _look(given: Any, goal: int) -> int:
    if not isinstance(given, Tensor):
        return -1
    (ctypes.c_uint64 * 6).from_address(goal)[:] = given.words
    return 0


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
def _current(kind: int, number: int, goal: int) -> int:
    ctypes.c_uint64.from_address(goal).value = STREAM[0]
    return 0


STREAM = {0: 0}
"""The stream that the library says is its current one."""
_LOOK, _CURRENT = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (_look, _current))
EXCHANGE = Exchange(_LOOK, _CURRENT)
_older = _Table(0, 9, None, None, None, None, 1, 1)
_table = _Table(1, 3, None, None, None, None, _LOOK, _CURRENT)
_newer = _Table(2, 0, ctypes.addressof(_table), None, None, None, 1, 1)


def capsule(table: Any = _newer) -> Any:
    """What a type has as `__dlpack_c_exchange_api__`."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(ctypes.addressof(table), b"dlpack_exchange_api", None)
