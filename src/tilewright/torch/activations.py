"""The activations that products and convolutions end with: as torch computes them, and their gradients."""

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


def activated(name: str | None, x: Any) -> Any:
    """The activation of a tensor, which no kernel computed."""
    return x if name is None else _FUNCTIONS[name](x)


def before_activation(name: str | None, gradient: Any, compute: Callable[[], Any]) -> Any:
    """The gradient of what an activation was applied to; `compute` gives that again."""
    return gradient if name is None else _GRADIENTS[name](gradient, compute())


def _silu_gradient(gradient: Any, x: Any) -> Any:
    """The gradient of silu, by functions that have gradients themselves; aten's silu_backward has none."""
    wide = x if x.dtype is torch.float64 else x.float()
    sigmoid = torch.sigmoid(wide)
    return (gradient * (sigmoid * (1 + wide * (1 - sigmoid)))).to(x.dtype)
