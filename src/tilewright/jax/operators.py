"""Common parts of JAX's operators: checks of arrays, calls of kernels, derivatives of activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewright.compiler.compiled import Compiled
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DType, from_numpy
from tilewright.jax.registry import buffer_of, called, registered, require_held
from tilewright.jax.table import XlaBuffer, XlaCall

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "silu": jax.nn.silu,
}
"""The functions whose derivatives are those of our activations."""


def array_like(value: Any, name: str, ranks: tuple[int, ...] = ()) -> Any:
    """An array of numpy's with the shape and element type of one of JAX, and values that nobody reads.

    It has one of so many dimensions; two at least where none are said.
    """
    found = buffer_of(value, name)
    require_held(found, name)
    if len(found.shape) not in ranks if ranks else len(found.shape) < 2:
        wanted = " or ".join(map(str, ranks)) or "at least 2"
        raise ArgumentError(f"{name} has shape {found.shape}, {len(found.shape)} dimensions; it takes {wanted}")
    return np.empty(found.shape, found.dtype)


def call_kernel(kernel: Compiled, arrays: Mapping[str, Any], result: str, shape: tuple[int, ...], kind: DType) -> Any:
    """The result of a kernel for arrays by argument name; `shape` and `kind` are those of the argument `result`."""
    require_held(XlaBuffer(shape, kind.numpy), "the result")
    arguments = kernel.executor.arguments
    names = [arg.name for arg in arguments]
    taken = [n for n in names if n != result]
    shapes = {arg.name: arg.shape for arg in arguments}  # a kernel may see an array in another shape than callers do
    given = tuple(jnp.reshape(arrays[n], shapes[n] or arrays[n].shape) for n in taken)
    inputs = tuple(XlaBuffer(a.shape, np.dtype(a.dtype)) for a in given)
    outputs = (XlaBuffer(shapes[result] or shape, kind.numpy),)
    call = XlaCall(inputs, outputs, tuple(len(taken) if n == result else taken.index(n) for n in names))
    likes = [np.broadcast_to(np.zeros((), b.dtype), b.shape) for b in (call.buffers[place] for place in call.places)]
    script = kernel.executor.script(likes)
    (made,) = called(registered(kernel.name, str(kernel.module), script, call), call, {}, given)
    return jnp.reshape(made, shape)


def activation_gradient(name: str | None, sums: Callable[[], Any], gradient: Any) -> Any:
    """The derivative by what an activation was applied to, in the type of the derivative by its result.

    `sums` computes what it was applied to, in the type of sums.
    """
    if name is None:
        return gradient
    value = sums()
    _, back = jax.vjp(ACTIVATIONS[name], value)
    return back(gradient.astype(value.dtype))[0].astype(gradient.dtype)


def common_type(kind: DType, gradient: Any) -> DType:
    """The type of the factors of a derivative: that of the data where the gradient has it too, else that of sums."""
    return kind if from_numpy(np.dtype(gradient.dtype)) is kind else kind.accumulator
