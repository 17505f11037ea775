"""Arrays of other libraries by way of DLPack, also of bf16, which numpy's own reader does not know."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import ArgumentError

_CPU, _CUDA, _UNSIGNED, _BFLOAT = 1, 2, 1, 4
_OPAQUE = 3
_DEFAULT_STREAM = 1
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool", 10: "float8_e4m3fn", 12: "float8_e5m2"}
_HOST = (1, 3, 11)
"""The kinds of devices whose memory the CPU reads: its own, and that which CUDA and ROCm pin."""
_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA-managed", 14: "oneAPI"}
"""Other kinds of devices, by DLPack's numbers."""
_FAULTS = (AttributeError, BufferError, RuntimeError, TypeError, ValueError)
"""The errors that libraries raise where an array cannot be exported."""


class _Tensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def from_dlpack(argument: Any, where: str) -> Any:
    """A numpy array that shares the memory of an argument with `__dlpack__`; `where` names it in the error.

    >>> from_dlpack(np.arange(3), "x")
    array([0, 1, 2])
    """
    try:
        return np.from_dlpack(argument)
    except _FAULTS as fault:
        kind, number = _device(argument, where)
        if kind not in _HOST:
            place = f"{_DEVICES.get(kind, f'of kind {kind}')} device {number}"
            raise ArgumentError(
                f"{where} lies on the {place}, and this target runs on the CPU; copy it to the host"
            ) from None
        bfloats = _bfloats(argument, where)
        if bfloats is None:
            raise ArgumentError(f"{where} cannot be read by way of DLPack: {fault}") from None
        return bfloats


def _device(argument: Any, where: str) -> tuple[int, int]:
    """(kind, number) of the device that an argument lies on."""
    try:
        kind, number = argument.__dlpack_device__()
    except _FAULTS as fault:  # an array that its library has let go of, say
        raise ArgumentError(
            f"{where} is a {type(argument).__name__} that cannot be read by way of DLPack: {fault}"
        ) from None
    return int(kind), int(number)


def on_a_gpu(argument: Any, where: str) -> tuple[int, int, tuple[int, ...], tuple[int, ...], Any, Any] | None:
    """(device, pointer, shape, strides in elements, type, capsule) of an argument on a GPU; None: it is elsewhere.

    Its memory is the argument's as long as the capsule is kept; what its library does to it is done before what is
    asked of the default stream afterwards.
    """
    kind, number = _device(argument, where)
    if kind != _CUDA:
        return None
    try:
        capsule = argument.__dlpack__(stream=_DEFAULT_STREAM)
    except _FAULTS as fault:
        raise ArgumentError(f"{where}, on a GPU, cannot be read by way of DLPack: {fault}") from None
    tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[d] for d in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[d] for d in range(tensor.ndim))
    else:
        strides = tuple(prod(shape[d + 1 :]) for d in range(tensor.ndim))
    return number, (tensor.data or 0) + tensor.byte_offset, shape, strides, _element(tensor, where), capsule


def form_of(dtype: np.dtype[Any], ndim: int) -> int:
    """The word of a DLTensor that has its dimensions and its element type: how many, code, bits, lanes.

    >>> hex(form_of(np.dtype("float32"), 3))
    '0x1200200000003'
    """
    word = element_word(dtype)
    return ndim | (_OPAQUE | 8 * dtype.itemsize << 8 | 1 << 16 if word is None else word) << 32


def element_word(dtype: np.dtype[Any]) -> int | None:
    """Return the word of a DLTensor that has its element type (code, bits, lanes); None if DLPack has no such type.

    >>> hex(element_word(np.dtype("float32"))), element_word(np.dtype("datetime64[s]"))
    ('0x12002', None)
    """
    import ml_dtypes

    kind = dtype.name.rstrip("0123456789")
    named = "bfloat" if dtype == ml_dtypes.bfloat16 else dtype.name if dtype.name.startswith("float8") else kind
    code = next((c for c, name in _CODES.items() if name == named), None)
    return None if code is None else code | 8 * dtype.itemsize << 8 | 1 << 16


def _element(tensor: _Tensor, where: str) -> Any:
    import ml_dtypes

    if (tensor.code, tensor.bits, tensor.lanes) == (_BFLOAT, 16, 1):
        return np.dtype(ml_dtypes.bfloat16)
    name = _CODES.get(tensor.code)
    if name is None or name == "bfloat" or tensor.lanes != 1:
        raise ArgumentError(f"{where} holds elements that DLPack calls ({tensor.code}, {tensor.bits}, {tensor.lanes})")
    if name.startswith("float8"):
        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name if name == "bool" else f"{name}{tensor.bits}")


def _bfloats(argument: Any, where: str) -> Any:
    """The argument where it holds bf16 on the CPU: read as 16-bit integers, whose bits are then taken as bf16."""
    import ml_dtypes

    if _device(argument, where)[0] != _CPU:
        return None
    try:
        capsule = argument.__dlpack__()
    except (BufferError, RuntimeError, TypeError):
        return None
    tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    if (tensor.code, tensor.bits, tensor.lanes) != (_BFLOAT, 16, 1):
        return None
    tensor.code = _UNSIGNED  # of this export alone: each has a description of its own
    return np.from_dlpack(_Export(capsule)).view(ml_dtypes.bfloat16)


class _Export:
    """A capsule that is given away once."""

    def __init__(self, capsule: Any):
        self.capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0


# -- what is given to others ------------------------------------------------------------------------------


class _Managed(ctypes.Structure):
    """DLPack's DLManagedTensor; `end` is called by who took it, when it is done with it."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("end", ctypes.c_void_p))


_NAME = b"dltensor"
_given: dict[int, Any] = {}
"""By the address of a description that others hold: what it is made of, and whose memory it describes."""
_is_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def _let_go(description: int) -> None:
    _given.pop(description, None)


def _untaken(capsule: int) -> None:
    """A capsule goes; one that nobody took still has its first name."""
    if _is_named(capsule, _NAME):
        _let_go(_address(capsule, _NAME))


_END, _UNTAKEN = (ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(f) for f in (_let_go, _untaken))


def gpu_capsule(
    owner: Any, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, number: int
) -> Any:
    """DLPack's capsule of an array on a GPU, for another library to take; the owner is kept until that lets go.

    >>> capsule = gpu_capsule("somebody", 4096, (2, 3), (3, 1), np.dtype("f2"), 1)
    >>> taken = _Tensor.from_address(_pointer(capsule, _NAME))
    >>> taken.data, taken.device_id, taken.shape[1], (taken.code, taken.bits), len(_given)
    (4096, 1, 3, (2, 16), 1)
    >>> del capsule
    >>> len(_given)
    0
    """
    codes = {name: code for code, name in _CODES.items()}
    name = np.dtype(dtype).name
    code = codes.get(name) or codes[name.rstrip("0123456789")]
    count = len(shape)
    extents, steps = (ctypes.c_int64 * count)(*shape), (ctypes.c_int64 * count)(*strides)
    made = _Managed()
    made.tensor = _Tensor(pointer, _CUDA, number, count, code, np.dtype(dtype).itemsize * 8, 1, extents, steps, 0)
    made.end = ctypes.cast(_END, ctypes.c_void_p)
    where = ctypes.addressof(made)
    _given[where] = made, extents, steps, owner
    return _capsule(where, _NAME, ctypes.cast(_UNTAKEN, ctypes.c_void_p))


def gpu_device(number: int) -> tuple[int, int]:
    """What DLPack calls a GPU."""
    return _CUDA, number
