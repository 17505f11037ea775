"""Conversion of host arrays of other libraries to numpy arrays that share their memory, and of results back.

numpy arrays, torch tensors on the CPU and objects with DLPack are accepted. Results are torch tensors if the first
array among the arguments is one, else numpy arrays, also for other libraries' arrays. torch is never imported: an
argument can only be a tensor if its program has imported torch.
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
"""Element types that numpy lacks: torch's name, and the integer type that carries their bits between the two."""


def as_array(argument: Any, where: str) -> Any:
    """Return a numpy array that shares the memory of `argument`: a numpy array, a torch tensor on the CPU, or an object
    with DLPack.

    A numpy array is returned itself. Raise ArgumentError for anything else, for masked arrays, and for tensors that are
    not plain memory. Raise TracedArgument for a tensor that torch or JAX traces. `where` names the argument in the
    message.

    >>> as_array(np.ma.masked_array([1.0, 2.0], [False, True]), "x")
    Traceback (most recent call last):
        ...
    tilewright.errors.ArgumentError: x is a masked array, whose mask would be lost; pass x.filled(value)
    """
    if type(argument) is np.ndarray:
        return argument
    masked = sys.modules.get("numpy.ma")  # an argument can only be masked if its program has loaded that module
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
    """Return the last word of `where`, which is the argument's name: "gemm: argument x" -> "x"."""
    return where.rsplit(" ", 1)[-1]


def torch_of(argument: Any) -> Any:
    """Return the module torch if `argument` is one of its tensors, else None. torch is never imported here."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)  # absent while torch is still being imported
    return torch if tensor is not None and isinstance(argument, tensor) else None


# -- from torch -------------------------------------------------------------------------------------------


def from_torch(tensor: Any, torch: Any, where: str) -> Any:
    """Return a numpy array that shares the memory of the torch tensor `tensor`. `torch` is the module.

    A tensor that requires gradients is detached. Types that numpy lacks (bf16, f8) become ml_dtypes' types. Raise
    ArgumentError if the tensor is not on the CPU, if `refuse_tensor` refuses it, or if numpy cannot read it. `where`
    names the tensor in the message.
    """
    device_type = tensor.device.type
    if device_type != "cpu":
        reason = "where tensors have no values" if device_type == "meta" else "and this target runs on the CPU"
        way_out = "a tensor with values" if device_type == "meta" else f"{_name(where)}.cpu()"
        raise ArgumentError(f"{where} lies on the device {tensor.device}, {reason}; pass {way_out}")
    refuse_tensor(tensor, torch, where)
    if tensor.requires_grad:
        tensor = tensor.detach()  # numpy accepts no other, even while no gradients are recorded
    for ours, (name, carrier) in _BY_BITS.items():
        if tensor.dtype is getattr(torch, name, None):
            return tensor.view(getattr(torch, carrier)).numpy().view(ALL[ours].numpy)
    try:
        return tensor.numpy()
    except (TypeError, ValueError, RuntimeError) as fault:  # a kind of tensor that numpy cannot see
        raise ArgumentError(f"{where} is no plain tensor: {fault}") from None


def refuse_tensor(tensor: Any, torch: Any, where: str) -> None:
    """Raise ArgumentError if the torch tensor `tensor` cannot be passed to a kernel.

    It cannot if its memory does not hold its values (see `refuse_form`), or if torch records gradients for it now.
    `where` names the tensor in the message; `torch` is the module.
    """
    refuse_gradients(tensor, torch, where)
    refuse_form(tensor, torch, where)


def refuse_form(tensor: Any, torch: Any, where: str) -> None:
    """Raise ArgumentError if the memory of the torch tensor `tensor` does not hold its values.

    This is so for sparse, nested and quantised tensors, and for conjugated and negated views. `where` names the tensor
    in the message; `torch` is the module.
    """
    why = _refusal(tensor, torch)
    if why is not None:
        problem, way_out = why
        raise ArgumentError(f"{where} {problem}; pass {_name(where)}{way_out}")


def refuse_gradients(tensor: Any, torch: Any, where: str) -> None:
    """Raise ArgumentError if the torch tensor `tensor` requires gradients and torch records gradients now.

    `where` names the tensor in the message; `torch` is the module.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            f"{where} needs gradients (requires_grad), which are not computed here; pass {_name(where)}.detach(), or "
            "call this under torch.no_grad() or in the forward of a torch.autograd.Function"
        )


def _refusal(tensor: Any, torch: Any) -> tuple[str, str] | None:
    """Return (problem, remedy) if the memory of the torch tensor `tensor` does not hold its values; None if it does.

    `problem` is a text such as "is a nested tensor". `remedy` is a method call that gives a plain tensor, such as
    ".to_dense()". `torch` is the module.
    """
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
    """Return (write counter, address) of the torch tensor `tensor`; None for an inference tensor, of which torch counts
    no writes.

    The pair changes with each write that torch counts, and if the tensor gets other memory.
    """
    return None if tensor.is_inference() else (tensor._version, tensor.data_ptr())


def count_writes(written: Iterable[Any]) -> None:
    """Increment torch's write counter of each torch tensor in `written`, the arguments that a kernel wrote.

    Autograd and `version_of` notice the write then. Arrays of other libraries are skipped. Nothing is done if this
    version of torch has no function for it.
    """
    for argument in written:
        torch = torch_of(argument)
        increment = getattr(getattr(getattr(torch, "autograd", None), "graph", None), "increment_version", None)
        if increment is not None:
            increment(argument)


# -- back to what came in ---------------------------------------------------------------------------------


class Form:
    """The library that results are converted to: that of the first array among some arguments. Arrays without
    dimensions do not count.
    """

    def __init__(self, arguments: Iterable[Any]):
        arrays = (a for a in arguments if hasattr(a, "__dlpack__") and getattr(a, "ndim", None) != 0)
        first = next(arrays, None)
        self._torch = None if first is None else torch_of(first)

    def require(self, kind: DType, where: str) -> None:
        """Raise ArgumentError if results are torch tensors, and torch has no dtype for the element type `kind`.

        `where` names the result in the message.
        """
        if self._torch is not None and torch_dtype(self._torch, kind) is None:
            raise ArgumentError(f"{where} holds {kind}, for which torch has no type; pass numpy arrays")

    def of(self, array: Any) -> Any:
        """Return the result `array`, a numpy array, as an array of the library of the first array argument.

        If that is torch, this is a tensor that shares the memory. Otherwise, or if torch lacks the element type, it is
        `array` itself.
        """
        finish = self.finisher(array.dtype)
        return array if finish is None else finish(array)

    def finisher(self, dtype: np.dtype[Any]) -> Callable[[Any], Any] | None:
        """Return a function that converts a result, a numpy array of type `dtype`, to a torch tensor that shares its
        memory.

        Return None if results stay numpy arrays: the first array argument is no torch tensor, or torch lacks the
        element type.
        """
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
    """Return torch's dtype for the numpy type `dtype`, such as torch.float32; None if torch has none. `torch` is the
    module."""
    kind = from_numpy(dtype)
    return None if kind is None else torch_dtype(torch, kind)


def torch_dtype(torch: Any, kind: DType) -> Any:
    """Return torch's dtype for the element type `kind`: bf16 -> torch.bfloat16. Return None if torch has none. `torch`
    is the module."""
    if kind.name in _BY_BITS:
        return getattr(torch, _BY_BITS[kind.name][0], None)
    return getattr(torch, kind.numpy.name, None) if kind.numpy.kind in "fiub" else None
