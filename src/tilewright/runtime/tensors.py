"""Arguments of other libraries as numpy arrays that share their memory, and results in the form of what came in.

numpy arrays and torch tensors on the CPU are taken, and anything with DLPack. Results are torch tensors where the first
array among the arguments is one, numpy arrays otherwise, also for other libraries' arrays. torch is never imported:
an argument can only be a tensor where its program has done that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import ALL, DType, from_numpy
from tilewright.runtime.dlpack import from_dlpack
from tilewright.runtime.traced import refuse_traced

_BY_BITS = {
    "bf16": ("bfloat16", "int16"),
    "f8e4m3fn": ("float8_e4m3fn", "int8"),
    "f8e5m2": ("float8_e5m2", "int8"),
    "f8e4m3fnuz": ("float8_e4m3fnuz", "int8"),
    "f8e5m2fnuz": ("float8_e5m2fnuz", "int8"),
    "f8e8m0fnu": ("float8_e8m0fnu", "int8"),
}
"""Element types that numpy lacks: torch's name, and the integers whose bits carry them between the two."""


def as_array(argument: Any, where: str) -> Any:
    """A numpy array that shares the argument's memory; `where` names it in the error.

    >>> as_array(np.ma.masked_array([1.0, 2.0], [False, True]), "x")
    Traceback (most recent call last):
        ...
    tilewright.errors.ArgumentError: x is a masked array, whose mask would be lost; pass x.filled(value)
    """
    if type(argument) is np.ndarray:
        return argument
    masked = sys.modules.get("numpy.ma")  # an argument can only be masked where its program has loaded that
    if masked is not None and isinstance(argument, masked.MaskedArray):
        raise ArgumentError(f"{where} is a masked array, whose mask would be lost; pass {_name(where)}.filled(value)")
    if isinstance(argument, np.ndarray):
        return argument
    refuse_traced(argument, where)
    torch = torch_of(argument)
    if torch is not None:
        return from_torch(argument, torch, where)
    if hasattr(argument, "__dlpack__"):
        return from_dlpack(argument, where)
    raise ArgumentError(
        f"{where} is {type(argument).__name__}; it must be an array (numpy, torch on the CPU, or DLPack)"
    )


def _name(where: str) -> str:
    """The argument's own name, the last word of where it stands."""
    return where.rsplit(" ", 1)[-1]


def torch_of(argument: Any) -> Any:
    """torch, where the argument is one of its tensors."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)  # absent while torch is still being imported
    return torch if tensor is not None and isinstance(argument, tensor) else None


# -- from torch -------------------------------------------------------------------------------------------


def from_torch(tensor: Any, torch: Any, where: str) -> Any:
    """A numpy array that shares the memory of a tensor, which nothing traces; `where` names it."""
    place = tensor.device.type
    if place != "cpu":
        meant = "where tensors have no values" if place == "meta" else "and this target runs on the CPU"
        way_out = "a tensor with values" if place == "meta" else f"{_name(where)}.cpu()"
        raise ArgumentError(f"{where} lies on the device {tensor.device}, {meant}; pass {way_out}")
    refuse_tensor(tensor, torch, where)
    if tensor.requires_grad:
        tensor = tensor.detach()  # numpy takes no other, also while no gradients are recorded
    for ours, (name, carrier) in _BY_BITS.items():
        if tensor.dtype is getattr(torch, name, None):
            return tensor.view(getattr(torch, carrier)).numpy().view(ALL[ours].numpy)
    try:
        return tensor.numpy()
    except (TypeError, ValueError, RuntimeError) as fault:  # a kind of tensor that numpy cannot see
        raise ArgumentError(f"{where} is no plain tensor: {fault}") from None


def refuse_tensor(tensor: Any, torch: Any, where: str) -> None:
    """Raises where a tensor's memory is not its value, or where a gradient would be lost; `where` names it."""
    refuse_gradients(tensor, torch, where)
    refuse_form(tensor, torch, where)


def refuse_form(tensor: Any, torch: Any, where: str) -> None:
    """Raises where a tensor's memory is not its value (it is sparse, quantised, a negated view); `where` names it."""
    why = _refusal(tensor, torch)
    if why is not None:
        what, way_out = why
        raise ArgumentError(f"{where} {what}; pass {_name(where)}{way_out}")


def refuse_gradients(tensor: Any, torch: Any, where: str) -> None:
    """Raises where gradients of what is done with a tensor are recorded now; `where` names it."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            f"{where} needs gradients (requires_grad), which are not computed here; pass {_name(where)}.detach(), or "
            "call this under torch.no_grad() or in the forward of a torch.autograd.Function"
        )


def _refusal(tensor: Any, torch: Any) -> tuple[str, str] | None:
    """What keeps a tensor's memory from being its values, and what makes a tensor of which they are."""
    if tensor.layout is not torch.strided:
        return f"is sparse or packed (its layout is {tensor.layout})", ".to_dense()"
    if getattr(tensor, "is_nested", False):
        return "is a nested tensor", ".to_padded_tensor(0)"
    if tensor.is_quantized:
        return f"is quantised ({tensor.dtype})", ".dequantize()"
    if tensor.is_conj():
        return "is a conjugated view, whose memory holds other numbers", ".resolve_conj()"
    if tensor.is_neg():
        return "is a negated view, whose memory holds other numbers", ".resolve_neg()"
    return None


# -- what a tensor holds now ------------------------------------------------------------------------------


def version_of(tensor: Any) -> tuple[int, int] | None:
    """The version of a tensor: it changes with each write and with its memory; None: torch counts no writes."""
    return None if tensor.is_inference() else (tensor._version, tensor.data_ptr())


def count_writes(written: Iterable[Any]) -> None:
    """Tells torch of tensors that a kernel wrote to, so that autograd and `version_of` see it."""
    for argument in written:
        torch = torch_of(argument)
        increment = getattr(getattr(getattr(torch, "autograd", None), "graph", None), "increment_version", None)
        if increment is not None:
            increment(argument)


# -- back to what came in ---------------------------------------------------------------------------------


class Form:
    """The form in which results are returned: that of the first array among some arguments."""

    def __init__(self, arguments: Iterable[Any]):
        arrays = (a for a in arguments if hasattr(a, "__dlpack__") and getattr(a, "ndim", None) != 0)
        first = next(arrays, None)
        self._torch = None if first is None else torch_of(first)

    def require(self, kind: DType, where: str) -> None:
        """Raises where a result of this element type has no such form; `where` names it."""
        if self._torch is not None and torch_dtype(self._torch, kind) is None:
            raise ArgumentError(f"{where} holds {kind}, for which torch has no type; pass numpy arrays")

    def of(self, array: Any) -> Any:
        """The array in this form, where it has one; memory is shared."""
        finish = self.finisher(array.dtype)
        return array if finish is None else finish(array)

    def finisher(self, dtype: np.dtype[Any]) -> Callable[[Any], Any] | None:
        """A function that gives arrays of an element type in this form; None: as they are."""
        kind = from_numpy(dtype)
        if self._torch is None or kind is None or torch_dtype(self._torch, kind) is None:
            return None
        from_array: Callable[[Any], Any] = self._torch.from_numpy
        if kind.name not in _BY_BITS:
            return from_array
        name, carrier = _BY_BITS[kind.name]
        held = getattr(self._torch, name)
        return lambda array: from_array(array.view(carrier)).view(held)


def torch_dtype_of(torch: Any, dtype: np.dtype[Any]) -> Any:
    """torch's name of the element type of numpy arrays; None where it has none."""
    kind = from_numpy(dtype)
    return None if kind is None else torch_dtype(torch, kind)


def torch_dtype(torch: Any, kind: DType) -> Any:
    """torch's name of an element type; None where it has none."""
    if kind.name in _BY_BITS:
        return getattr(torch, _BY_BITS[kind.name][0], None)
    return getattr(torch, kind.numpy.name, None) if kind.numpy.kind in "fiub" else None
