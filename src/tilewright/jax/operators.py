"""Common parts of JAX's operators: checks of arrays, calls of kernels, rules of derivatives and batches.

An operator is a function of two arrays of data and a bias that may be left out: sums of products, then the bias, then
an activation. `OperatorOptions` says what is special about one; `derivable` gives it to JAX.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from tilewright.compiler.compiled import Compiled
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DType, from_numpy
from tilewright.jax.entries import XlaBuffer, XlaCall
from tilewright.jax.members import steps_of
from tilewright.jax.registry import call_registered, register_program, require_representable, xla_buffer_of

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "silu": jax.nn.silu,
}
"""The functions whose derivatives are those of our activations."""


def array_stand_in(value: Any, name: str, ranks: tuple[int, ...] = ()) -> Any:
    """An array of numpy's with the shape and element type of one of JAX, and values that nobody reads.

    It has one of so many dimensions; two at least where none are said.
    """
    buffer = xla_buffer_of(value, name)
    require_representable(buffer, name)
    if len(buffer.shape) not in ranks if ranks else len(buffer.shape) < 2:
        wanted = " or ".join(map(str, ranks)) or "at least 2"
        raise ArgumentError(f"{name} has shape {buffer.shape}, {len(buffer.shape)} dimensions; it takes {wanted}")
    return np.empty(buffer.shape, buffer.dtype)


def call_kernel(kernel: Compiled, arrays: Mapping[str, Any], result: str, shape: tuple[int, ...], kind: DType) -> Any:
    """The result of a kernel for arrays by argument name; `shape` and `kind` are those of the argument `result`."""
    require_representable(XlaBuffer(shape, kind.numpy), "the result")
    arguments = kernel.running.arguments
    names = [arg.name for arg in arguments]
    taken = [n for n in names if n != result]
    shapes = {arg.name: arg.shape for arg in arguments}  # a kernel may see an array in another shape than callers do
    given = tuple(jnp.reshape(arrays[n], shapes[n] or arrays[n].shape) for n in taken)
    inputs = tuple(XlaBuffer(a.shape, np.dtype(a.dtype)) for a in given)
    outputs = (XlaBuffer(shapes[result] or shape, kind.numpy),)
    call = XlaCall(inputs, outputs, tuple(len(taken) if n == result else taken.index(n) for n in names))
    steps, text = steps_of(kernel, [call.buffers[place] for place in call.places], None, kernel.name)
    (output,) = call_registered(register_program(kernel.name, text, steps, call), call, {}, given)
    return jnp.reshape(output, shape)


def activation_gradient(name: str | None, sums: Callable[[], Any], gradient: Any) -> Any:
    """The derivative by what an activation was applied to, in the type of the derivative by its result.

    `sums` computes what it was applied to, in the type of sums.
    """
    if name is None:
        return gradient
    value = sums()
    _, back = jax.vjp(ACTIVATIONS[name], value)
    return back(gradient.astype(value.dtype))[0].astype(gradient.dtype)


def gradient_operand_type(kind: DType, gradient: Any) -> DType:
    """The type of the factors of a derivative: that of the data where the gradient has it too, else that of sums."""
    return kind if from_numpy(np.dtype(gradient.dtype)) is kind else kind.accumulator


# -- an operator as JAX takes it ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OperatorOptions(ABC):
    """An operator, apart from its arrays: `kind` is the element type of its data, `out` that of its result."""

    kind: DType
    out: DType
    activation: str | None = None
    precision: str | None = None
    accumulate: str | None = None

    @abstractmethod
    def call(self, *arrays: Any) -> Any:
        """Return the result of one call of a kernel."""

    @abstractmethod
    def merged(self, run: Any, size: int, has_batch: Sequence[bool], arrays: Sequence[Any]) -> Any:
        """Return the results for a batch as one larger call of `run`; None if the kernel has no such form.

        `size` is the extent of the batch, the first dimension of the arrays for which `has_batch` holds.
        """

    @abstractmethod
    def gradients(self, first: Any, second: Any, outer: Any) -> tuple[Any, Any]:
        """Return the derivatives by both arrays of data, of type `out`; `outer` is the derivative by the sums."""


@lru_cache(maxsize=256)
def jitted_operator(options: OperatorOptions) -> Any:
    """Return the operator as JAX compiles it: a function of its arrays."""
    return jax.jit(differentiable(options))


@lru_cache(maxsize=256)
def differentiable(options: OperatorOptions) -> Any:
    """Return the operator as a function of its arrays that has derivatives, and rules for batches."""
    run = jax.custom_vjp(_batchable(options))

    def forward(*arrays: Any) -> Any:
        return run(*arrays), arrays

    run.defvjp(forward, partial(_all_gradients, options))
    return run


@lru_cache(maxsize=256)
def _batchable(options: OperatorOptions) -> Any:
    """Return the operator as a function of its arrays that vmap makes one larger call where it can."""
    run = custom_vmap(options.call)

    def batched(size: int, has_batch: list[bool], *arrays: Any) -> tuple[Any, bool]:
        results = options.merged(run, size, has_batch, arrays)
        if results is None:  # the handler goes through the batch
            results = jax.vmap(options.call, [0 if has else None for has in has_batch])(*arrays)
        return results, True

    run.def_vmap(batched)
    return run


def _all_gradients(options: OperatorOptions, arrays: Sequence[Any], gradient: Any) -> tuple[Any, ...]:
    """Return the derivatives by all arrays; `gradient` is the derivative by the result."""
    first, second, *bias = arrays
    kind = options.kind
    sums = replace(options, activation=None, out=kind.accumulator, accumulate=None)
    outer = activation_gradient(options.activation, lambda: differentiable(sums)(*arrays), gradient)
    common = gradient_operand_type(kind, gradient)
    plain = replace(sums, kind=common, out=kind, precision=options.precision if common is kind else None)
    by_data = plain.gradients(*(a.astype(common.numpy) for a in (first, second, outer)))
    by_bias = [outer.reshape(-1, outer.shape[-1]).astype(kind.accumulator.numpy).sum(0) for _ in bias]
    return (*by_data, *by_bias)
