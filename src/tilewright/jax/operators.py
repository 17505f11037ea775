"""Common parts of the JAX operators (`matmul`, `conv2d`, ...): checks, and rules for gradients and vmap.

An operator is a function of two data arrays and an optional bias: activation(contraction of both arrays + bias).
`OperatorOptions` has its options and the methods in which operators differ; `differentiable` makes a JAX function of
it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DType, from_numpy
from tilewright.jax.entries import XlaBuffer
from tilewright.jax.platforms import PlatformKernel, call_on_platform
from tilewright.jax.registry import require_representable, xla_buffer_of

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "silu": jax.nn.silu,
}
"""{name of a kernel's activation: JAX's function for it}, from which its derivative is taken."""


def array_stand_in(value: Any, name: str, ranks: tuple[int, ...] = ()) -> Any:
    """Return an uninitialised numpy array with the shape and element type of the JAX array `value`, which may be a
    tracer.

    `ranks` are the allowed numbers of dimensions; () allows two or more. Raise ArgumentError for other ranks, for
    values that are no arrays, and for element types that JAX does not store as kernels do. `name` names the array in
    errors.
    """
    buffer = xla_buffer_of(value, name)
    require_representable(buffer, name)
    if len(buffer.shape) not in ranks if ranks else len(buffer.shape) < 2:
        wanted = " or ".join(map(str, ranks)) or "at least 2"
        raise ArgumentError(f"{name} has shape {buffer.shape}, {len(buffer.shape)} dimensions; it takes {wanted}")
    return np.empty(buffer.shape, buffer.dtype)


def activation_gradient(name: str | None, compute: Callable[[], Any], gradient: Any) -> Any:
    """Return the gradient with respect to an activation's input; `gradient` is the one with respect to its output.

    `name` is the activation ("relu", "gelu", "gelu_tanh", "silu"). If it is None, return `gradient` itself. `compute()`
    returns the activation's input, in the accumulator's type; it is not called if `name` is None. The result has the
    element type of `gradient`.
    """
    if name is None:
        return gradient
    value = compute()
    _, back = jax.vjp(ACTIVATIONS[name], value)
    return back(gradient.astype(value.dtype))[0].astype(gradient.dtype)


def gradient_operand_type(kind: DType, gradient: Any) -> DType:
    """Return the element type to which operands are converted for a contraction that computes an operator's gradients.

    `kind` is the type of the operator's data, `gradient` the gradient with respect to its result. The type is `kind` if
    `gradient` has it, else the accumulator type of `kind`: f16 data with an f32 gradient -> f32.
    """
    return kind if from_numpy(np.dtype(gradient.dtype)) is kind else kind.accumulator


# -- an operator as JAX takes it ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OperatorOptions(PlatformKernel):
    """The options of an operator, and the methods in which operators differ; its arrays are not part of it."""

    kind: DType
    """The element type of the data."""
    out: DType
    """The element type of the result."""
    activation: str | None = None
    precision: str | None = None
    accumulate: str | None = None

    @property
    @abstractmethod
    def ranks(self) -> tuple[int, int, int]:
        """Abstract: return the numbers of dimensions of the two data arrays and of the bias, without batch
        dimensions."""

    @abstractmethod
    def result_shape(self, arrays: Sequence[XlaBuffer]) -> tuple[int, ...]:
        """Abstract: return the shape of the result. `arrays` has two data arrays and perhaps a bias, without batch
        dimensions."""

    @property
    def merges_first(self) -> bool:
        """True if a batch dimension of the first data array, if no other array has one, can be merged with this array's
        first dimension."""
        return True

    def call(self, *arrays: Any) -> Any:
        """Return the operator's result for `arrays` (two data arrays and perhaps a bias), from one kernel call.

        Each array may have a batch dimension in front; if one has it, the result has it too. If the result has no
        elements, no kernel is called.
        """
        batch, members = self.members_of(arrays)
        result = XlaBuffer((*batch, *self.result_shape(members)), self.out.numpy)
        require_representable(result, "the result")
        return call_on_platform(self, arrays, result) if result.bytes else jnp.zeros(result.shape, result.dtype)

    def members_of(self, arrays: Sequence[Any]) -> tuple[tuple[int, ...], list[XlaBuffer]]:
        """Return (batch, members) of `arrays`, which are two data arrays and perhaps a bias.

        `batch` is (extent of the batch dimension,) if one of `arrays` has that dimension, else (). `members` is a list
        with the shape and type of each array without it.
        """
        batch: tuple[int, ...] = ()
        members = []
        for array, rank in zip(arrays, self.ranks, strict=False):
            first = len(array.shape) - rank
            batch = batch or tuple(array.shape[:first])
            members.append(XlaBuffer(tuple(array.shape[first:]), np.dtype(array.dtype)))
        return batch, members

    def call_batched(self, run: Any, size: int, has_batch: Sequence[bool], arrays: Sequence[Any]) -> Any:
        """Return the results for a vmap batch, with the batch as first dimension, by one larger call of the operator.

        `run` is the operator as a JAX function. `arrays` are two data arrays and perhaps a bias. `has_batch` has a bool
        for each: True if its first dimension is the vmap batch, of extent `size`. Each array may have another batch
        dimension, from an inner vmap, which is merged with the vmap batch.
        """
        ranks = self.ranks[: len(arrays)]
        has_inner = [a.ndim - has > rank for a, has, rank in zip(arrays, has_batch, ranks, strict=True)]
        if self.merges_first and not any((*has_batch[1:], *has_inner)):
            first, *others = arrays
            results = run(first.reshape(size * first.shape[1], *first.shape[2:]), *others)
            return results.reshape(size, first.shape[1], *results.shape[1:])
        inner = next(((a.shape[has],) for a, has, nests in zip(arrays, has_batch, has_inner, strict=True) if nests), ())
        batch = (size, *inner)
        merged = []
        for n, (array, has, nests, rank) in enumerate(zip(arrays, has_batch, has_inner, ranks, strict=True)):
            alone = n == 0 and not any((*has_batch[:2], *has_inner[:2]))  # a kernel needs data with the batch
            if not (has or nests or alone):
                merged.append(array)
                continue
            member = array.shape[array.ndim - rank :]
            spread = jnp.expand_dims(array, 1) if has and inner and not nests else array
            merged.append(jnp.broadcast_to(spread, (*batch, *member)).reshape(prod(batch), *member))
        results = run(*merged)
        return results.reshape(*batch, *results.shape[1:])

    @abstractmethod
    def gradients(self, first: Any, second: Any, sum_gradient: Any) -> tuple[Any, Any]:
        """Abstract: return (gradient with respect to `first`, gradient with respect to `second`), both of the element
        type `self.out`.

        `first` and `second` are the operator's data arrays. `sum_gradient` is the gradient with respect to the
        contraction's result, before the activation.
        """


@lru_cache(maxsize=256)
def jitted_operator(options: OperatorOptions) -> Any:
    """Return the operator with these options as a jitted function of its arrays. Functions are cached by options.

    The function has the rules for gradients and vmap of `differentiable`.
    """
    return jax.jit(differentiable(options))


@lru_cache(maxsize=256)
def differentiable(options: OperatorOptions) -> Any:
    """Return the operator with these options as a function of its arrays, with rules for gradients and vmap. Functions
    are cached by options."""
    run = jax.custom_vjp(_batchable(options))

    def forward(*arrays: Any) -> Any:
        """Return (the operator's result, `arrays`): JAX passes the second item to the backward."""
        return run(*arrays), arrays

    run.defvjp(forward, partial(_all_gradients, options))
    return run


@lru_cache(maxsize=256)
def _batchable(options: OperatorOptions) -> Any:
    """Return the operator with these options as a function of its arrays with a rule for vmap. Functions are cached by
    options.

    Under vmap the function makes one larger call of the operator.
    """
    run = custom_vmap(options.call)

    def batched(size: int, has_batch: list[bool], *arrays: Any) -> tuple[Any, bool]:
        """Return (results with the vmap batch as first dimension, True): the rule for vmap. True tells JAX that they
        have it.

        `size` is the batch's extent. `has_batch` has a bool for each of `arrays`: True if the vmap batch is its first
        dimension.
        """
        return options.call_batched(run, size, has_batch, arrays), True

    run.def_vmap(batched)
    return run


def _all_gradients(options: OperatorOptions, arrays: Sequence[Any], gradient: Any) -> tuple[Any, ...]:
    """Return a tuple with the gradient of each array in `arrays`: two data arrays, and the bias if there is one.

    `gradient` is the gradient with respect to the operator's result. If there is an activation, its input is computed
    again. The bias's gradient is the sum over all dimensions but the last. It has the accumulator's type; the others
    have the type of the data.
    """
    first, second, *bias = arrays
    kind = options.kind
    without_activation = replace(options, activation=None, out=kind.accumulator, accumulate=None)
    sum_gradient = activation_gradient(
        options.activation, lambda: differentiable(without_activation)(*arrays), gradient
    )
    operand_type = gradient_operand_type(kind, gradient)
    contraction = replace(
        without_activation,
        kind=operand_type,
        out=kind,
        precision=options.precision if operand_type is kind else None,
    )
    data_gradients = contraction.gradients(*(a.astype(operand_type.numpy) for a in (first, second, sum_gradient)))
    bias_gradients = [
        sum_gradient.reshape(-1, sum_gradient.shape[-1]).astype(kind.accumulator.numpy).sum(0) for _ in bias
    ]
    return (*data_gradients, *bias_gradients)
