"""Arrays in device memory: conversion of arguments from torch, DLPack and CUDA's array interface; results.

A result is a torch tensor if an argument on the device is one. Otherwise it is a `DeviceArray` with memory of its own,
which other libraries can take through DLPack or CUDA's array interface.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import ALL
from tilewright.runtime import overlap
from tilewright.runtime.dlpack import gpu_capsule, gpu_device, on_a_gpu
from tilewright.runtime.tensors import as_array, from_torch, refuse_tensor, torch_of
from tilewright.runtime.traced import refuse_traced

_TORCH = {"bfloat16": "bf16", "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2", "bool": "bool"}


@dataclass(frozen=True)
class DeviceArray:
    """An array in the memory of GPU number `device`, at the address `pointer`. `owner` keeps the memory alive;
    `strides` are in elements.

    `stream` is the handle of the stream to which the owner's work on the array goes; None: the current stream. If
    `follows_stream`, kernels that use the array are launched on this stream too, and not on the current one of another
    library.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Any
    device: int = 0
    stream: int | None = None
    follows_stream: bool = False

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the number of bytes from the first element to the end of the last one, gaps included; 0 if there is no
        element.

        Strides must not be negative.
        """
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) if 0 not in self.shape else -1
        return (last + 1) * self.dtype.itemsize

    def reshape(self, shape: tuple[int, ...]) -> DeviceArray:
        """Return an array with the shape `shape` and contiguous strides on the same memory.

        This array must be contiguous, and the shapes must have equally many elements. Neither is checked.
        """
        return replace(self, shape=shape, strides=packed_steps(shape))

    def strided(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> DeviceArray:
        """Return an array with the given shape and `strides` (in elements) on the same memory. Nothing is checked."""
        return replace(self, shape=shape, strides=strides)

    @property
    def packed(self) -> bool:
        """True if the array is contiguous with the last dimension fastest, or has no elements."""
        if 0 in self.shape:
            return True
        running = 1
        for n, s in reversed(list(zip(self.shape, self.strides, strict=True))):
            if n != 1 and s != running:
                return False
            running *= n
        return True

    @property
    def given(self) -> Any:
        """Return `self.owner` if it is a torch tensor, else this object: the array as callers get it."""
        tensor = getattr(sys.modules.get("torch"), "Tensor", None)
        return self.owner if tensor is not None and isinstance(self.owner, tensor) else self

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (2, number of the GPU): DLPack's kind and number of the device."""
        return gpu_device(self.device)

    def __dlpack__(self, *, stream: Any = None, **_options: Any) -> Any:
        """Return the array as a DLPack capsule, after all work on it is done, so that any stream may read it."""
        self._wait()
        return gpu_capsule(self, self.pointer, self.shape, self.strides, self.dtype, self.device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Return the array's description in CUDA's array interface, after all work on the array is done.

        Raise AttributeError for an element type that numpy lacks.
        """
        if self.dtype.kind == "V" or self.dtype.num > 23:
            raise AttributeError(f"{self.dtype} has no name in CUDA's array interface; DLPack takes it")
        self._wait()
        steps = tuple(s * self.dtype.itemsize for s in self.strides)
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": steps,
            "version": 3,
        }

    def _wait(self) -> None:
        """Wait until pending work on the array is done; do nothing if the memory's owner has no method `wait`."""
        wait = getattr(self.owner, "wait", None)
        if wait is not None:
            wait()

    @property
    def coincides(self) -> bool:
        """True if two elements may have the same address, because a stride is too small.

        A stride must be at least the number of elements that the dimensions with smaller strides span: for a shape (3,
        4) with strides (s, 1), s must be at least 4. Dimensions of extent 1 do not count. Negative strides are not
        expected.

        >>> [DeviceArray(0, (3, 4), (s, 1), np.dtype("f4"), None).coincides for s in (3, 4, 5)]
        [True, False, False]
        """
        reach = 1
        for stride, count in sorted((s, n) for s, n in zip(self.strides, self.shape, strict=True) if n > 1):
            if stride < reach:
                return True
            reach += stride * (count - 1)
        return False


def followed_stream(arrays: Sequence[Any]) -> int | None:
    """Return the handle of the stream that all work on `arrays` must go to; None if no array demands one.

    It is the stream of the first DeviceArray that has one and of which `follows_stream` is set. Numpy arrays have none.

    >>> followed_stream([DeviceArray(0, (1,), (1,), np.dtype("f4"), None, stream=7, follows_stream=True)])
    7
    """
    streams = (a.stream for a in arrays if isinstance(a, DeviceArray) and a.follows_stream)
    return next((stream for stream in streams if stream is not None), None)


def packed_steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous array with the extents `shape`, last dimension fastest.

    >>> packed_steps((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(shape[n + 1 :]) for n in range(len(shape)))


def array_of(argument: Any, where: str) -> Any:
    """Return `argument` as a DeviceArray if it is in GPU memory, else as a numpy array; the memory is shared.

    Arguments in GPU memory are torch tensors and objects with CUDA's array interface or DLPack. A DeviceArray is
    returned itself. Raise ArgumentError for anything that is no plain array, and TracedArgument if torch or JAX traces
    it. `where` names the argument in the message.
    """
    if isinstance(argument, DeviceArray):
        return argument
    if isinstance(argument, np.ndarray):
        return as_array(argument, where)
    refuse_traced(argument, where)
    torch = torch_of(argument)
    if torch is not None:
        return _of_torch(argument, torch, where) if argument.is_cuda else from_torch(argument, torch, where)
    interface = getattr(argument, "__cuda_array_interface__", None)
    if interface is not None:
        kind, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
        byte_strides = interface.get("strides")
        steps = np.empty(shape, kind, order="C").strides if byte_strides is None and 0 not in shape else byte_strides
        strides = tuple(int(s) // kind.itemsize for s in steps or (0,) * len(shape))
        return DeviceArray(int(interface["data"][0]), shape, strides, kind, argument, stream=interface.get("stream"))
    exported = on_a_gpu(argument, where) if hasattr(argument, "__dlpack_device__") else None
    if exported is not None:
        number, pointer, shape, strides, kind, capsule = exported
        return DeviceArray(pointer, shape, strides, kind, (argument, capsule), number)
    return as_array(argument, where)


def _of_torch(tensor: Any, torch: Any, where: str) -> DeviceArray:
    """Return the torch tensor `tensor`, which is on a GPU, as a DeviceArray on the same memory. `torch` is the module.

    A tensor that requires gradients is detached. Raise ArgumentError if `refuse_tensor` refuses it, or if its element
    type is unknown here. `where` names the tensor in the message.
    """
    refuse_tensor(tensor, torch, where)
    owner = tensor.detach() if tensor.requires_grad else tensor
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        kind = ALL[_TORCH[name]].numpy if name in _TORCH else np.dtype(name)
    except TypeError:
        raise ArgumentError(f"{where} holds {tensor.dtype}, which is no element type here") from None
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return DeviceArray(tensor.data_ptr(), shape, strides, kind, owner, tensor.device.index or 0)


def share_memory(one: Any, other: Any) -> bool:
    """True if two arrays, of numpy or DeviceArrays, share memory.

    For numpy arrays, see `overlap.share_memory`. Arrays on one GPU count as sharing memory if their address ranges
    overlap. Arrays on different devices, or one on the host and one on a GPU, never share memory.

    >>> make = lambda pointer: DeviceArray(pointer, (4,), (1,), np.dtype("f4"), None)
    >>> share_memory(make(0), make(16)), share_memory(make(0), make(12))
    (False, True)
    """
    if not isinstance(one, DeviceArray) or not isinstance(other, DeviceArray):
        mixed = isinstance(one, DeviceArray) or isinstance(other, DeviceArray)
        return not mixed and overlap.share_memory(one, other)
    if one.device != other.device:
        return False
    return one.pointer < other.pointer + other.nbytes and other.pointer < one.pointer + one.nbytes


def is_same_array(one: Any, other: Any) -> bool:
    """True if two arrays have the same device, address, shape, strides and element type.

    Both are numpy arrays or DeviceArrays. Strides along extents of 1 do not count.

    >>> x = np.zeros((4, 1, 3))
    >>> is_same_array(x, x[:, ::-1]), is_same_array(x, x[::-1]), is_same_array(x[1:], x[:-1])
    (True, False, False)
    """
    if isinstance(one, DeviceArray) != isinstance(other, DeviceArray):
        return False
    if isinstance(one, DeviceArray):
        starts = [(a.device, a.pointer) for a in (one, other)]
    else:
        starts = [(0, a.__array_interface__["data"][0]) for a in (one, other)]
    steps = [[s for n, s in zip(a.shape, a.strides, strict=True) if n > 1] for a in (one, other)]
    return starts[0] == starts[1] and one.shape == other.shape and one.dtype == other.dtype and steps[0] == steps[1]


def common_device(name: str, arrays: list[Any]) -> int:
    """Return the number of the GPU that the DeviceArrays in `arrays` are on; 0 if there are none.

    Raise ArgumentError if they are on several GPUs. `name` is the program's name in the message.
    """
    numbers = sorted({a.device for a in arrays if isinstance(a, DeviceArray)})
    if len(numbers) > 1:
        raise ArgumentError(f"{name}: its arguments lie on several devices, {numbers}; move them to one")
    return numbers[0] if numbers else 0


def made_like(
    others: list[Any], shape: tuple[int, ...], kind: Any, near: Callable[[Sequence[Any]], Any] | None = None
) -> Any:
    """Allocate an array of the given shape and element type `kind`, on the GPU of the first DeviceArray in `others`.

    The result is uninitialised. It is a DeviceArray, with a torch tensor as owner if the first DeviceArray has one.
    Otherwise `near(others)`, the Memories of the GPU, allocates it. The result is a numpy array of zeros if `others`
    has no DeviceArray, or if `near` is needed and None.
    """
    torch = sys.modules.get("torch")
    first = next((a for a in others if isinstance(a, DeviceArray)), None)
    if first is None:
        return np.zeros(shape, kind.numpy)
    if torch is None or not isinstance(first.owner, torch.Tensor):
        return np.zeros(shape, kind.numpy) if near is None else near(others).empty(shape, kind.numpy)
    names = {ours: theirs for theirs, ours in _TORCH.items()}
    dtype = getattr(torch, names.get(kind.name, kind.numpy.name))
    return array_of(torch.empty(shape, dtype=dtype, device=first.owner.device), "output")
