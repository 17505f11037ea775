"""The activations of GEMM and convolution epilogues, as torch computes them, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

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
    """Return torch's activation `name` ("relu", "gelu", "gelu_tanh", "silu") of the tensor `x`; for None, `x`
    itself."""
    return x if name is None else _FUNCTIONS[name](x)


def activation_gradient(name: str | None, gradient: Any, compute: Callable[[], Any]) -> Any:
    """Return the gradient with respect to an activation's input, from `gradient` with respect to its output.

    `name` is the activation ("relu", "gelu", "gelu_tanh", "silu"); for None, `gradient` itself is returned. `compute()`
    returns the activation's input; it is called only if there is an activation.
    """
    return gradient if name is None else _GRADIENTS[name](gradient, compute())


def _silu_gradient(gradient: Any, x: Any) -> Any:
    """Return the gradient with respect to the input `x` of silu, from `gradient` with respect to its output.

    It is computed in f32 (f64 for f64 data) and has the dtype of `x`. Each function used has a gradient itself, so that
    second derivatives exist; aten's silu_backward has none.
    """
    wide = x if x.dtype is torch.float64 else x.float()
    sigmoid = torch.sigmoid(wide)
    return (gradient * (sigmoid * (1 + wide * (1 - sigmoid)))).to(x.dtype)
