"""Checks of operators' tensors; fake tensors and real ones are asked alike, and refused in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import ALL, DType
from tilewright.runtime.tensors import refuse_form, torch_dtype

DEVICES = ("cpu", "cuda", "meta")
"""The devices on which tensors may lie; on meta they have no values, and only forms of results follow."""

_KINDS = {held: kind for kind in ALL.values() if (held := torch_dtype(torch, kind)) is not None}


def require_tensor(tensor: Any, name: str) -> None:
    """Raises for None, which torch passes where an operator's schema says that there is a tensor."""
    if tensor is None:
        raise ArgumentError(f"{name} is None; it must be a tensor")


def kind_of(tensor: Any, name: str) -> DType:
    """The element type of a tensor."""
    require_tensor(tensor, name)
    kind = _KINDS.get(tensor.dtype)
    if kind is None:
        raise ArgumentError(f"{name} holds {tensor.dtype}, for which there are no kernels; convert it, say to float32")
    return kind


def dtype_named(kind: DType) -> torch.dtype:
    """torch's name of an element type."""
    held: torch.dtype = torch_dtype(torch, kind)
    return held


def require_float(tensor: Any, name: str) -> DType:
    """The element type of a tensor, which must hold f16, bf16, f32 or f64."""
    kind = kind_of(tensor, name)
    if kind.name not in ("f16", "bf16", "f32", "f64"):
        raise ArgumentError(f"{name} holds {kind}; it must hold f16, bf16, f32 or f64")
    return kind


def require_rank(tensor: Any, name: str, *ranks: int, least: int | None = None) -> None:
    """Raises unless a tensor has one of these numbers of dimensions, or at least so many."""
    require_tensor(tensor, name)
    if tensor.dim() in ranks or (least is not None and tensor.dim() >= least):
        return
    wanted = " or ".join(map(str, ranks)) if least is None else f"at least {least}"
    raise ArgumentError(f"{name} has shape {tuple(tensor.shape)}, {tensor.dim()} dimensions; it takes {wanted}")


def require_together(tensors: Mapping[str, Any]) -> None:
    """Raises unless tensors lie on one device that runs kernels, as plain memory; None: a tensor is left out."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if not given:
        require_tensor(None, next(iter(tensors)))
    first, *_ = given
    place = given[first].device
    for name, tensor in given.items():
        if tensor.layout is not torch.strided:
            refuse_form(tensor, torch, name)
        if tensor.device.type not in DEVICES:
            raise ArgumentError(
                f"{name} lies on the device {tensor.device}; kernels run on cpu and cuda: move it there"
            )
        if tensor.device != place:
            raise ArgumentError(f"{first} lies on the device {place}, {name} on {tensor.device}: move one")


def require_same_dtype(tensors: Mapping[str, Any]) -> None:
    """Raises unless tensors hold the same type; None stands for one that is left out."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first, *others = given
    for name in others:
        if given[name].dtype is not given[first].dtype:
            raise ArgumentError(f"{first} holds {given[first].dtype}, {name} {given[name].dtype}: convert one")


def require_shape(tensor: Any, name: str, wanted: tuple[Any, ...], why: str) -> None:
    """Raises unless a tensor has a shape; `why` says what it follows from."""
    if tensor is not None and tuple(tensor.shape) != tuple(wanted):
        raise ArgumentError(f"{name} has shape {tuple(tensor.shape)}; it must be {tuple(wanted)}, {why}")


def require_bias(bias: Any, name: str, kind: DType, wanted: tuple[Any, ...], why: str) -> None:
    """Raises unless a bias has a shape, and the data's element type or that of their sums."""
    if bias is None:
        return
    require_shape(bias, name, wanted, why)
    allowed = (kind, kind.accumulator)
    if kind_of(bias, name) not in allowed:
        types = " or ".join(dict.fromkeys(map(str, allowed)))
        raise ArgumentError(f"{name} holds {kind_of(bias, name)}; it must hold {types}")
