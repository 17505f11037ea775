"""Arrays on a device: taken as they are where they lie there, moved where they lie on the host."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import ALL
from tilewright.runtime.tensors import as_array

_TORCH = {"bfloat16": "bf16", "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2", "bool": "bool"}


@dataclass(frozen=True)
class DeviceArray:
    """Memory of a device that somebody else owns; `strides` are in elements."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Any

    @property
    def nbytes(self) -> int:
        """From its first byte to its last."""
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) if 0 not in self.shape else -1
        return (last + 1) * self.dtype.itemsize

    @property
    def packed(self) -> bool:
        """Whether it has no gaps, last dimension fastest."""
        running = 1
        for n, s in reversed(list(zip(self.shape, self.strides, strict=True))):
            if n != 1 and s != running:
                return False
            running *= n
        return True


def array_of(argument: Any, where: str) -> Any:
    """A DeviceArray where the argument lies on a device, otherwise a numpy array that shares its memory."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    if tensor is not None and isinstance(argument, tensor) and argument.device.type == "cuda":
        if argument.requires_grad:
            raise ArgumentError(f"{where} needs gradients (requires_grad), which are not computed here; .detach() it")
        name = str(argument.dtype).removeprefix("torch.")
        kind = ALL[_TORCH[name]].numpy if name in _TORCH else np.dtype(name)
        return DeviceArray(argument.data_ptr(), tuple(argument.shape), tuple(argument.stride()), kind, argument)
    told = getattr(argument, "__cuda_array_interface__", None)
    if told is not None:
        kind, shape = np.dtype(told["typestr"]), tuple(told["shape"])
        given = told.get("strides")
        packed = np.empty(shape, kind, order="C").strides if given is None and 0 not in shape else given
        strides = tuple(int(s) // kind.itemsize for s in packed or (0,) * len(shape))
        return DeviceArray(int(told["data"][0]), shape, strides, kind, argument)
    return as_array(argument, where)


def made_like(others: list[Any], shape: tuple[int, ...], kind: Any) -> Any:
    """A fresh array where the others lie: on the device of the first tensor, otherwise on the host."""
    torch = sys.modules.get("torch")
    first = next((a.owner for a in others if isinstance(a, DeviceArray)), None)
    if first is None or torch is None or not isinstance(first, torch.Tensor):
        return np.zeros(shape, kind.numpy)
    names = {ours: theirs for theirs, ours in _TORCH.items()}
    dtype = getattr(torch, names.get(kind.name, kind.numpy.name))
    return array_of(torch.empty(shape, dtype=dtype, device=first.device), "output")
