"""The activations of GEMM and convolution epilogues, as torch computes them, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tilewright.kernels.elementwise import known_activation

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}
_GRADIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda gradient, x: torch.ops.aten.threshold_backward(gradient, x, 0),
    "gelu": lambda gradient, x: torch.ops.aten.gelu_backward(gradient, x, approximate="none"),
    "gelu_tanh": lambda gradient, x: torch.ops.aten.gelu_backward(gradient, x, approximate="tanh"),
    "silu": lambda gradient, x: _silu_gradient(gradient, x),
}


def apply_activation(name: str | None, x: Any) -> Any:
    """Return torch's activation `name` ("relu", "gelu", "gelu_tanh", "silu") of the tensor `x`; if `name` is None,
    return `x` itself. Raise ArgumentError for any other name."""
    known = known_activation(name)
    return x if known is None else _FUNCTIONS[known](x)


def activation_gradient(name: str | None, gradient: Any, compute: Callable[[], Any]) -> Any:
    """Return the gradient with respect to an activation's input; `gradient` is the one with respect to its output.

    `name` is the activation ("relu", "gelu", "gelu_tanh", "silu"). If it is None, return `gradient` itself. `compute()`
    returns the activation's input; it is not called if `name` is None. Raise ArgumentError for any other name.
    """
    known = known_activation(name)
    return gradient if known is None else _GRADIENTS[known](gradient, compute())


def _silu_gradient(gradient: Any, x: Any) -> Any:
    """Return the gradient with respect to the input `x` of silu; `gradient` is the one with respect to silu's output.

    The result has the dtype of `x`. It is computed in f32, or in f64 if `x` is f64. Autograd can differentiate it
    again, for second derivatives.
    """
    wide = x if x.dtype is torch.float64 else x.float()
    sigmoid = torch.sigmoid(wide)
    return (gradient * (sigmoid * (1 + wide * (1 - sigmoid)))).to(x.dtype)
