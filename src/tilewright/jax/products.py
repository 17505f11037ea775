"""Matrix product as a function of JAX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DType, DTypeLike
from tilewright.jax.operators import activation_gradient, array_like, call_kernel, common_type
from tilewright.jax.registry import alike
from tilewright.kernels.elementwise import known_activation
from tilewright.kernels.sums import known_accumulate
from tilewright.ops.arrays import known_precision, out_type
from tilewright.ops.products import product_kernel, require_fit
from tilewright.runtime import environment
from tilewright.targets.names import CPU


def matmul(
    a: Any,
    b: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    out_dtype: DTypeLike | None = None,
    precision: str | None = None,
    accumulate: str | None = None,
) -> Any:
    """activation(a[..., m, k] * b[..., k, n] + bias[n]), of a's element type unless `out_dtype` says another.

    It is `tilewright.matmul` as a function of JAX: jit, vmap and shard_map take it, and it has derivatives by all
    arrays. Under vmap over a, or over a and b, it is one batched product. The derivatives are products of the factors'
    type where the result has it too, of the type of sums otherwise; they sum in the type of sums. Before an activation
    the sums are computed again.

    >>> import jax, jax.numpy as jnp
    >>> a, b = jnp.array([[1.0, 2.0]]), jnp.array([[3.0], [4.0]])
    >>> jax.jit(matmul)(a, b)
    Array([[11.]], dtype=float32)
    >>> jax.grad(lambda a: matmul(a, b).sum())(a)
    Array([[3., 4.]], dtype=float32)
    """
    left, right = array_like(a, "a"), array_like(b, "b")
    kind = require_fit(left, right)
    known_activation(activation), known_precision(precision), known_accumulate(accumulate, kind)
    options = _Options("nn", kind, out_type(out_dtype, kind), activation, precision, accumulate)
    if bias is None:
        return _product(options)(*alike((a, b)))
    added = array_like(bias, "bias", (1,))
    if added.size != right.shape[-1]:
        raise ArgumentError(f"bias has {added.size} elements; there are {right.shape[-1]} columns")
    return _product(options)(*alike((a, b, jnp.asarray(bias).astype(kind.accumulator.numpy))))


@dataclass(frozen=True)
class _Options:
    """A product: how factors lie ("nt": b is [n, k]), the types of factors and result, and what ends it."""

    transposes: str
    kind: DType
    out: DType
    activation: str | None = None
    precision: str | None = None
    accumulate: str | None = None


@lru_cache(maxsize=256)
def _product(options: _Options) -> Any:
    """The product as JAX compiles it."""
    return jax.jit(partial(_folded, options))


def _folded(options: _Options, a: Any, b: Any, *bias: Any) -> Any:
    """The product of arrays with dimensions in front: as one of matrices where b is one, else as a batch."""
    *batch, m, k = a.shape
    n = b.shape[-1]
    count = prod(batch)
    if b.ndim == 2 or count == 1:
        folded = _derivable(options)(a.reshape(count * m, k), b.reshape(k, n), *bias)
    else:
        folded = _derivable(options)(a.reshape(count, m, k), b.reshape(count, k, n), *bias)
    return folded.reshape(*batch, m, n)


@lru_cache(maxsize=256)
def _derivable(options: _Options) -> Any:
    """The product of two matrices, or of two batches of them, with its derivatives."""
    run = jax.custom_vjp(_batchable(options))

    def forward(*arrays: Any) -> Any:
        return run(*arrays), arrays

    run.defvjp(forward, partial(_gradients, options))
    return run


GRADIENTS = {
    "nn": (("nt", "c", "b"), ("tn", "a", "c")),
    "nt": (("nn", "c", "b"), ("tn", "c", "a")),
    "tn": (("nt", "b", "c"), ("nn", "a", "c")),
}
"""For factors that lie so, the products that are the derivatives by a and by b; c is the derivative by the result."""


def _gradients(options: _Options, kept: Any, gradient: Any) -> tuple[Any, ...]:
    a, b, *bias = kept
    kind = options.kind
    sums = replace(options, activation=None, out=kind.accumulator, accumulate=None)
    inner = activation_gradient(options.activation, lambda: _derivable(sums)(a, b, *bias), gradient)
    common = common_type(kind, gradient)
    plain = replace(sums, kind=common, out=kind, precision=options.precision if common is kind else None)
    factors = {name: x.astype(common.numpy) for name, x in zip("abc", (a, b, inner), strict=True)}
    found = [
        _derivable(replace(plain, transposes=transposes))(factors[left], factors[right])
        for transposes, left, right in GRADIENTS[options.transposes]
    ]
    added = [inner.reshape(-1, inner.shape[-1]).astype(kind.accumulator.numpy).sum(0) for _ in bias]
    return (*found, *added)


@lru_cache(maxsize=256)
def _batchable(options: _Options) -> Any:
    """The product of two matrices, or of two batches of them, which vmap makes one of larger ones where it can."""
    single = partial(_called, options)
    run = custom_vmap(single)

    def batched(size: int, has_batch: list[bool], a: Any, b: Any, *bias: Any) -> tuple[Any, bool]:
        in_a, in_b, *in_bias = has_batch
        if any(in_bias) or not in_a:  # the kernel has one bias for all products: the handler goes through the batch
            return jax.vmap(single, [0 if has else None for has in has_batch])(a, b, *bias), True
        if not in_b and a.ndim == 3 and options.transposes[0] == "n":  # rows of all products are rows of one
            rows = run(a.reshape(-1, a.shape[-1]), b, *bias)
            return rows.reshape(size, a.shape[1], -1), True
        if not in_b:
            b = jnp.broadcast_to(b, (size, *b.shape))
        found = run(*(x.reshape(-1, *x.shape[-2:]) for x in (a, b)), *bias)
        return found.reshape(*a.shape[:-2], *found.shape[-2:]), True

    run.def_vmap(batched)
    return run


def _called(options: _Options, a: Any, b: Any, *bias: Any) -> Any:
    m, k = a.shape[-2:] if options.transposes[0] == "n" else a.shape[:-3:-1]
    n = b.shape[-1] if options.transposes[1] == "n" else b.shape[-2]
    batch, out = a.shape[:-2], options.out
    if 0 in (*batch, m, n):
        return jnp.zeros((*batch, m, n), out.numpy)
    asked = (options.activation, options.precision, options.accumulate)
    kinds = (options.kind.name, out.name)
    kernel = product_kernel(
        options.transposes, (prod(batch), m, k, n), kinds, (bool(bias), False), asked, CPU, False, environment.threads()
    )
    arrays = {"a": a, "b": b} | ({"bias": bias[0]} if bias else {})
    return call_kernel(kernel, arrays, "c", (*batch, m, n), out)
