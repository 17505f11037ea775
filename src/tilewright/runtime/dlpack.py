"""Exchange of arrays with other libraries through DLPack, also of bf16, which numpy's own reader rejects."""

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
"""The kinds of devices whose memory the CPU can read: host memory, and memory pinned by CUDA and ROCm."""
_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA-managed", 14: "oneAPI"}
"""Other kinds of devices, by DLPack's numbers."""
_FAULTS = (AttributeError, BufferError, RuntimeError, TypeError, ValueError)
"""The errors that libraries raise if an array cannot be exported."""


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
    """Return a numpy array that shares the memory of `argument`, an object with `__dlpack__` in host memory.

    Elements of bf16, which numpy lacks, get the type of ml_dtypes. Raise ArgumentError if `argument` is on another
    device or cannot be exported. `where` names it in the message.

    >>> from_dlpack(np.arange(3), "x")
    array([0, 1, 2])
    """
    try:
        return np.from_dlpack(argument)
    except _FAULTS as fault:
        kind, number = _device(argument, where)
        if kind not in _HOST:
            device = f"{_DEVICES.get(kind, f'of kind {kind}')} device {number}"
            raise ArgumentError(
                f"{where} lies on the {device}, and this target runs on the CPU; copy it to the host"
            ) from None
        bfloats = _bfloats(argument, where)
        if bfloats is None:
            raise ArgumentError(f"{where} cannot be read by way of DLPack: {fault}") from None
        return bfloats


def _device(argument: Any, where: str) -> tuple[int, int]:
    """Return (kind, number) of the device that `argument` is on, in DLPack's numbers: kind 1 is the CPU, 2 is CUDA.

    Raise ArgumentError if its library cannot tell. `where` names the argument in the message.
    """
    try:
        kind, number = argument.__dlpack_device__()
    except _FAULTS as fault:  # such as an array that its library has deleted
        raise ArgumentError(
            f"{where} is a {type(argument).__name__} that cannot be read by way of DLPack: {fault}"
        ) from None
    return int(kind), int(number)


def on_a_gpu(argument: Any, where: str) -> tuple[int, int, tuple[int, ...], tuple[int, ...], Any, Any] | None:
    """Return (device number, pointer, shape, strides in elements, numpy element type, capsule) of an array in CUDA
    memory.

    Return None if the array is elsewhere. The memory stays valid as long as the capsule is kept. Work on the array that
    its library has queued is done before later work on the default stream. Raise ArgumentError if it cannot be
    exported. `where` names the argument in the message.
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
    """Return the 64 bits of a DLTensor with rank and element type as an integer: the rank `ndim` in the low half, the
    element type in the high half.

    The element type is (code, bits, lanes), as `element_word` returns it. Types that DLPack lacks have the code for
    opaque elements.

    >>> hex(form_of(np.dtype("float32"), 3))
    '0x1200200000003'
    """
    word = element_word(dtype)
    return ndim | (_OPAQUE | 8 * dtype.itemsize << 8 | 1 << 16 if word is None else word) << 32


def element_word(dtype: np.dtype[Any]) -> int | None:
    """Return the 32 bits of a DLTensor with the element type (code, bits, lanes) as an integer; None if DLPack lacks
    the type.

    The code is in the lowest byte, the bits are in the next one, and the lanes, always 1, in the high half.

    >>> hex(element_word(np.dtype("float32"))), element_word(np.dtype("datetime64[s]"))
    ('0x12002', None)
    """
    import ml_dtypes

    kind = dtype.name.rstrip("0123456789")
    named = "bfloat" if dtype == ml_dtypes.bfloat16 else dtype.name if dtype.name.startswith("float8") else kind
    code = next((c for c, name in _CODES.items() if name == named), None)
    return None if code is None else code | 8 * dtype.itemsize << 8 | 1 << 16


def _element(tensor: _Tensor, where: str) -> Any:
    """Return the numpy element type of the DLTensor `tensor`. Raise ArgumentError if there is none.

    `where` names the argument in the message.
    """
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
    """Return a numpy array of bf16 that shares the memory of `argument`; None if it does not hold bf16 or is not on the
    CPU.

    The result is None too if `argument` cannot be exported through DLPack. Raise ArgumentError if its library cannot
    tell the device. `where` names the argument in the message.
    """
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
    tensor.code = _UNSIGNED  # changes only this export's own DLTensor
    return np.from_dlpack(_Export(capsule)).view(ml_dtypes.bfloat16)


class _Export:
    """An object with `__dlpack__` that returns one given capsule."""

    def __init__(self, capsule: Any):
        self.capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0


# -- export to other libraries ----------------------------------------------------------------------------


class _Managed(ctypes.Structure):
    """DLPack's DLManagedTensor; the library that took it calls `end` when it does not need it any more."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("end", ctypes.c_void_p))


_NAME = b"dltensor"
_given: dict[int, Any] = {}
"""By the address of an exported DLManagedTensor: the objects that it points to, and the owner of its memory."""
_is_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def _release(description: int) -> None:
    """Drop the owner of an array that was exported through DLPack, so that its memory may be freed.

    The library that took the array calls this when it needs the array no more. `description` is the address of the
    exported DLManagedTensor.
    """
    _given.pop(description, None)


def _release_untaken(capsule: int) -> None:
    """Drop the owner of an exported array if no library took it, so that its memory may be freed.

    This is called when the capsule at address `capsule` is deleted. A library that takes the array renames the capsule;
    a capsule with the first name was not taken.
    """
    if _is_named(capsule, _NAME):
        _release(_address(capsule, _NAME))


_END, _UNTAKEN = (ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(f) for f in (_release, _release_untaken))


def gpu_capsule(
    owner: Any, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, number: int
) -> Any:
    """Return a DLPack capsule that describes an array in the memory of GPU `number`.

    `pointer` is the array's address; `strides` are in elements. `owner` is kept alive until the library that takes the
    capsule releases it, or until the capsule is deleted untaken. Raise KeyError if DLPack lacks the element type
    `dtype`.

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
    rank = len(shape)
    extents, steps = (ctypes.c_int64 * rank)(*shape), (ctypes.c_int64 * rank)(*strides)
    managed = _Managed()
    managed.tensor = _Tensor(pointer, _CUDA, number, rank, code, np.dtype(dtype).itemsize * 8, 1, extents, steps, 0)
    managed.end = ctypes.cast(_END, ctypes.c_void_p)
    address = ctypes.addressof(managed)
    _given[address] = managed, extents, steps, owner
    return _capsule(address, _NAME, ctypes.cast(_UNTAKEN, ctypes.c_void_p))


def gpu_device(number: int) -> tuple[int, int]:
    """Return DLPack's (kind, number) of the GPU `number`, where the kind is CUDA's, 2."""
    return _CUDA, number
