"""Tensors of the host as numpy arrays, and back; memory is shared.

Kernels and layers know a call like one before by its numpy arrays: such a call only moves addresses. Of tensors they
would check everything again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tilewright.ir.dtypes import ALL

_BF16 = ALL["bf16"].numpy


def as_host_array(tensor: Any) -> Any:
    """A numpy array that shares the memory of a tensor on the host, of f16, bf16, f32 or f64, without gradients.

    >>> as_host_array(torch.tensor([1.5], dtype=torch.bfloat16))
    array([1.5], dtype=bfloat16)
    """
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(_BF16)
    return tensor.numpy()


def as_tensor(array: Any) -> Any:
    """The tensor that shares the memory of a numpy array.

    >>> as_tensor(np.array([1.5], _BF16))
    tensor([1.5000], dtype=torch.bfloat16)
    """
    if array.dtype == _BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def call_on_tensors(function: Any, *tensors: Any) -> Any:
    """What a kernel or a layer gives for tensors of one device: a tensor, or None where it was given its output."""
    if not tensors[0].is_cpu:
        return function(*tensors)
    array = function(*map(as_host_array, tensors))
    return None if array is None else as_tensor(array)
