"""Checks of operators' tensors: fake and real tensors are checked alike and raise the same errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import ALL, DType
from tilewright.runtime.tensors import refuse_form, torch_dtype

DEVICES = ("cpu", "cuda", "meta")
"""Types of devices whose tensors are accepted. Meta tensors have no values: only shapes and dtypes are computed."""

_KINDS = {dtype: kind for kind in ALL.values() if (dtype := torch_dtype(torch, kind)) is not None}
"""Tilewright's element type of each torch dtype that has one."""


def require_tensor(tensor: Any, name: str) -> None:
    """Raise ArgumentError, which calls the argument `name`, if `tensor` is None. Any other value passes.

    torch passes None even for an argument that the operator's schema says is a tensor.
    """
    if tensor is None:
        raise ArgumentError(f"{name} is None; it must be a tensor")


def element_type_of(tensor: Any, name: str) -> DType:
    """Return Tilewright's element type for the dtype of a torch tensor: torch.float16 -> f16.

    Raise ArgumentError, which calls the tensor `name`, if it is None or if there is no such element type.
    """
    require_tensor(tensor, name)
    kind = _KINDS.get(tensor.dtype)
    if kind is None:
        raise ArgumentError(f"{name} holds {tensor.dtype}, for which there are no kernels; convert it, say to float32")
    return kind


def torch_dtype_of(kind: DType) -> torch.dtype:
    """Return torch's dtype for Tilewright's element type `kind`: f16 -> torch.float16. The result is None for a type
    that torch does not have; callers pass none."""
    dtype: torch.dtype = torch_dtype(torch, kind)
    return dtype


def require_float(tensor: Any, name: str) -> DType:
    """Return Tilewright's element type of `tensor`: f16, bf16, f32 or f64.

    Raise ArgumentError, which calls the tensor `name`, for None and for any other dtype.
    """
    kind = element_type_of(tensor, name)
    if kind.name not in ("f16", "bf16", "f32", "f64"):
        raise ArgumentError(f"{name} holds {kind}; it must hold f16, bf16, f32 or f64")
    return kind


def require_rank(tensor: Any, name: str, *ranks: int, least: int | None = None) -> None:
    """Raise ArgumentError unless the number of dimensions of `tensor` is one of `ranks`, or is at least `least`.

    `ranks` may be empty; `least` None sets no lower bound. Raise ArgumentError also if `tensor` is None. `name` names
    the tensor in the error.
    """
    require_tensor(tensor, name)
    if tensor.dim() in ranks or (least is not None and tensor.dim() >= least):
        return
    wanted = " or ".join(map(str, ranks)) if least is None else f"at least {least}"
    raise ArgumentError(f"{name} has shape {tuple(tensor.shape)}, {tensor.dim()} dimensions; it takes {wanted}")


def _present(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `tensors`, {argument name: tensor or None}, that are not None. Raise ArgumentError if all
    are None.
    """
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if not present:
        require_tensor(None, next(iter(tensors)))
    return present


def require_same_device(tensors: Mapping[str, Any]) -> None:
    """Raise ArgumentError unless all tensors are strided and on the same device, of type "cpu", "cuda" or "meta".

    `tensors` is {argument name: tensor or None}. None is skipped; ArgumentError is raised if all are None. A layout
    other than torch.strided, such as a sparse one, is refused. PyTorch's quantised tensors are strided, so they pass.
    """
    present = _present(tensors)
    first, *_ = present
    device = present[first].device
    for name, tensor in present.items():
        if tensor.layout is not torch.strided:
            refuse_form(tensor, torch, name)
        if tensor.device.type not in DEVICES:
            raise ArgumentError(
                f"{name} lies on the device {tensor.device}; kernels run on cpu and cuda: move it there"
            )
        if tensor.device != device:
            raise ArgumentError(f"{first} lies on the device {device}, {name} on {tensor.device}: move one")


def require_same_dtype(tensors: Mapping[str, Any]) -> None:
    """Raise ArgumentError unless all tensors have the same dtype.

    `tensors` is {argument name: tensor or None}. None is skipped; ArgumentError is raised if all are None.
    """
    present = _present(tensors)
    first, *others = present
    for name in others:
        if present[name].dtype is not present[first].dtype:
            raise ArgumentError(f"{first} holds {present[first].dtype}, {name} {present[name].dtype}: convert one")


def require_shape(tensor: Any, name: str, wanted: tuple[Any, ...], why: str) -> None:
    """Raise ArgumentError unless `tensor` is None or has the shape `wanted`.

    The error names the tensor `name`, and ends with `why`, the reason for this shape ("one for each channel").
    """
    if tensor is not None and tuple(tensor.shape) != tuple(wanted):
        raise ArgumentError(f"{name} has shape {tuple(tensor.shape)}; it must be {tuple(wanted)}, {why}")


def require_bias(bias: Any, name: str, kind: DType, wanted: tuple[Any, ...], why: str) -> None:
    """Raise ArgumentError unless `bias` is None, or has the shape `wanted` and an allowed element type.

    Allowed are `kind`, the element type of the data, and the type of its accumulator (f16 -> f32). The error calls the
    bias `name`. If the shape is wrong, the error ends with `why`, the reason for the shape ("one for each filter").
    """
    if bias is None:
        return
    require_shape(bias, name, wanted, why)
    allowed = (kind, kind.accumulator)
    if element_type_of(bias, name) not in allowed:
        types = " or ".join(dict.fromkeys(map(str, allowed)))
        raise ArgumentError(f"{name} holds {element_type_of(bias, name)}; it must hold {types}")
