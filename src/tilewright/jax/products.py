"""Matrix product as a function of JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike
from tilewright.jax.operators import OperatorOptions, array_stand_in, call_kernel, differentiable
from tilewright.jax.registry import with_common_varying_axes
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
    left, right = array_stand_in(a, "a"), array_stand_in(b, "b")
    kind = require_fit(left, right)
    known_activation(activation), known_precision(precision), known_accumulate(accumulate, kind)
    options = _Product(
        transposes="nn",
        kind=kind,
        out=out_type(out_dtype, kind),
        activation=activation,
        precision=precision,
        accumulate=accumulate,
    )
    if bias is None:
        return _compiled_product(options)(*with_common_varying_axes((a, b)))
    added = array_stand_in(bias, "bias", (1,))
    if added.size != right.shape[-1]:
        raise ArgumentError(f"bias has {added.size} elements; there are {right.shape[-1]} columns")
    return _compiled_product(options)(
        *with_common_varying_axes((a, b, jnp.asarray(bias).astype(kind.accumulator.numpy)))
    )


GRADIENTS = {
    "nn": (("nt", "c", "b"), ("tn", "a", "c")),
    "nt": (("nn", "c", "b"), ("tn", "c", "a")),
    "tn": (("nt", "b", "c"), ("nn", "a", "c")),
}
"""For factors that lie so, the products that are the derivatives by a and by b; c is the derivative by the result."""


@dataclass(frozen=True, kw_only=True)
class _Product(OperatorOptions):
    """A product of two matrices, or of two batches of them; `transposes` says how they lie ("nt": b is [n, k])."""

    transposes: str

    def call(self, *arrays: Any) -> Any:
        a, b, *bias = arrays
        m, k = a.shape[-2:] if self.transposes[0] == "n" else a.shape[:-3:-1]
        n = b.shape[-1] if self.transposes[1] == "n" else b.shape[-2]
        batch = a.shape[:-2]
        if 0 in (*batch, m, n):
            return jnp.zeros((*batch, m, n), self.out.numpy)
        asked = (self.activation, self.precision, self.accumulate)
        kinds = (self.kind.name, self.out.name)
        sizes = (prod(batch), m, k, n)
        added, threads = (bool(bias), False), environment.threads()
        kernel = product_kernel(self.transposes, sizes, kinds, added, asked, CPU, False, threads)
        given = {"a": a, "b": b} | ({"bias": bias[0]} if bias else {})
        return call_kernel(kernel, given, "c", (*batch, m, n), self.out)

    def merged(self, run: Any, size: int, has_batch: Sequence[bool], arrays: Sequence[Any]) -> Any:
        a, b, *bias = arrays
        in_a, in_b, *in_bias = has_batch
        if any(in_bias) or not in_a:  # the kernel has one bias for all products
            return None
        if not in_b and a.ndim == 3 and self.transposes[0] == "n":  # rows of all products are rows of one
            rows = run(a.reshape(-1, a.shape[-1]), b, *bias)
            return rows.reshape(size, a.shape[1], -1)
        if not in_b:
            b = jnp.broadcast_to(b, (size, *b.shape))
        products = run(*(x.reshape(-1, *x.shape[-2:]) for x in (a, b)), *bias)
        return products.reshape(*a.shape[:-2], *products.shape[-2:])

    def gradients(self, first: Any, second: Any, outer: Any) -> tuple[Any, Any]:
        factors = {"a": first, "b": second, "c": outer}
        by_a, by_b = (
            differentiable(replace(self, transposes=transposes))(factors[left], factors[right])
            for transposes, left, right in GRADIENTS[self.transposes]
        )
        return by_a, by_b


@lru_cache(maxsize=256)
def _compiled_product(options: _Product) -> Any:
    """Return the product of arrays with dimensions in front, as JAX compiles it."""
    return jax.jit(partial(_folded, options))


def _folded(options: _Product, a: Any, b: Any, *bias: Any) -> Any:
    """The product of arrays with dimensions in front: as one of matrices where b is one, else as a batch."""
    *batch, m, k = a.shape
    n = b.shape[-1]
    count = prod(batch)
    if b.ndim == 2 or count == 1:
        folded = differentiable(options)(a.reshape(count * m, k), b.reshape(k, n), *bias)
    else:
        folded = differentiable(options)(a.reshape(count, m, k), b.reshape(count, k, n), *bias)
    return folded.reshape(*batch, m, n)
