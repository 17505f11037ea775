"""Functions of one element: activations as parts of other kernels, and kernels that apply them to a matrix."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike, element_type

M, N = tkl.sym.M, tkl.sym.N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def gelu(x: Any) -> Any:
    """Inside a kernel: x times the probability that a normal variable lies below x, by the error function."""
    return x * (0.5 + 0.5 * tkw.erf(x * sqrt(0.5)))


def gelu_tanh(x: Any) -> Any:
    """Inside a kernel: gelu by the usual approximation with a hyperbolic tangent."""
    return x * (0.5 + 0.5 * tkw.tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))


def silu(x: Any) -> Any:
    """Inside a kernel: x times its sigmoid."""
    return x * tkw.sigmoid(x)


ACTIVATIONS = {"relu": tkw.relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}


def apply_activation(name: str | None, x: Any) -> Any:
    """Inside a kernel: the activation of that name; None leaves x as it is."""
    known = known_activation(name)
    return x if known is None else ACTIVATIONS[known](x)


def known_activation(name: Any) -> str | None:
    """The name of an activation; an error that lists them otherwise."""
    if name is not None and (not isinstance(name, str) or name not in ACTIVATIONS):
        raise ArgumentError(f"activation={name!r}: there are {', '.join(ACTIVATIONS)}, and None")
    return name


def activation(name: str, dtype: DTypeLike = "f32") -> tkw.Kernel:
    """y[m, n] = f(x[m, n]) for f one of relu, gelu, gelu_tanh, silu; computed in f32 (f64 for f64) and rounded once.

    >>> import numpy as np, tilewright
    >>> gelu_of = tilewright.compile(activation("gelu"), strict=True)
    >>> gelu_of(np.array([[-1.0, 0.0, 1.0]], np.float32)).round(4)
    array([[-0.1587,  0.    ,  0.8413]], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    if known_activation(name) is None:
        raise ArgumentError(f"activation={name!r}: there are {', '.join(ACTIVATIONS)}")

    @tkw.wave()
    def activate(x: tkl.Memory[M, N, GLOBAL, of_data], y: tkl.Memory[M, N, GLOBAL, of_data]) -> None:
        value = apply_activation(name, tkw.cast(tkw.read(x), of_sums))
        tkw.write(tkw.cast(value, of_data), y)

    return activate


def gated_silu(dtype: DTypeLike = "f32") -> tkw.Kernel:
    """y[m, n] = silu(gate[m, n]) * x[m, n], computed in f32 (f64 for f64) and rounded once.

    >>> import numpy as np, tilewright
    >>> gated = tilewright.compile(gated_silu(), strict=True)
    >>> gated(np.array([[1.0, -0.5]], np.float32), np.array([[1.0, 2.0]], np.float32)).round(4)
    array([[ 0.7311, -0.3775]], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator

    @tkw.wave()
    def gate_and_multiply(
        gate: tkl.Memory[M, N, GLOBAL, of_data],
        x: tkl.Memory[M, N, GLOBAL, of_data],
        y: tkl.Memory[M, N, GLOBAL, of_data],
    ) -> None:
        value = silu(tkw.cast(tkw.read(gate), of_sums)) * tkw.cast(tkw.read(x), of_sums)
        tkw.write(tkw.cast(value, of_data), y)

    return gate_and_multiply
