"""Elementwise functions: activations for use inside other kernels, and kernels that apply one to a matrix."""

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
    """Emit x * Phi(x) for a tile `x` inside a kernel and return the result tile. Phi is the normal distribution
    function, computed with erf.
    """
    return x * (0.5 + 0.5 * tkw.erf(x * sqrt(0.5)))


def gelu_tanh(x: Any) -> Any:
    """Emit gelu of a tile `x` inside a kernel, by the usual approximation with tanh, and return the result tile."""
    return x * (0.5 + 0.5 * tkw.tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))


def silu(x: Any) -> Any:
    """Emit x * sigmoid(x) for a tile `x` inside a kernel and return the result tile."""
    return x * tkw.sigmoid(x)


ACTIVATIONS = {"relu": tkw.relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}


def apply_activation(name: str | None, x: Any) -> Any:
    """Emit the activation called `name` of a tile `x` inside a kernel and return the result tile.

    If `name` is None, return `x` unchanged. Raise `ArgumentError` for an unknown name.
    """
    activation_name = known_activation(name)
    return x if activation_name is None else ACTIVATIONS[activation_name](x)


def known_activation(name: Any) -> str | None:
    """Return `name` unchanged if it is None or the name of an activation (relu, gelu, gelu_tanh, silu).

    Raise `ArgumentError` for any other value.
    """
    if name is not None and (not isinstance(name, str) or name not in ACTIVATIONS):
        raise ArgumentError(f"activation={name!r}: there are {', '.join(ACTIVATIONS)}, and None")
    return name


def activation(name: str, dtype: DTypeLike = "f32") -> tkw.Kernel:
    """Return a kernel that computes y[m, n] = f(x[m, n]). `name` is the function f: relu, gelu, gelu_tanh or silu.

    x and y are of type `dtype`; f is computed in f32 (f64 for f64) and rounded once. Raise `ArgumentError` for another
    name.

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
    """Return a kernel that computes y[m, n] = silu(gate[m, n]) * x[m, n].

    Arguments: gate[M, N], x[M, N], then y[M, N], all of type `dtype`. Computed in f32 (f64 for f64), rounded once.

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
