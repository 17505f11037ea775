"""`matmul` as a JAX function: activation(a * b + bias), with gradients and rules for vmap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from tilewright.compiler.compiled import Compiled
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike
from tilewright.jax.entries import XlaBuffer
from tilewright.jax.operators import OperatorOptions, array_stand_in, differentiable
from tilewright.jax.registry import with_common_varying_axes
from tilewright.kernels.elementwise import known_activation
from tilewright.kernels.sums import known_accumulate
from tilewright.ops.arrays import known_precision, out_type
from tilewright.ops.products import product_kernel, require_fit
from tilewright.runtime import environment


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
    """Return activation(a[..., m, k] * b[..., k, n] + bias[n]), of a's element type unless `out_dtype` is given.

    It is `tilewright.matmul` as a JAX function, for jit, vmap, shard_map and grad. `activation` is "relu", "gelu",
    "gelu_tanh", "silu" or None. `precision="tf32"` rounds f32 operands to tf32; `accumulate="f16"` accumulates f16
    products in f16. Under vmap over a, or over a and b, it is one batched GEMM. Gradients are GEMMs too: their operands
    have the data's type if the result has it, else the accumulator's. For the gradient of an activation its input is
    recomputed. Raise ArgumentError if shapes, types or options do not fit.

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
"""{transposes of a GEMM: (GEMM for a's gradient, GEMM for b's gradient)}; each is (transposes, left operand, right
operand), where "c" is the gradient with respect to the GEMM's result."""


@dataclass(frozen=True, kw_only=True)
class _Product(OperatorOptions):
    """The options of a GEMM of two matrices a and b, or of two batches of matrices."""

    transposes: str
    """"n" or "t" (transposed) for each operand: with "nn" they are a[m, k] and b[k, n], with "nt" b is [n, k]."""

    def result_shape(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """Return the shape [..., m, n] of the result for `arrays`: a, b and perhaps a bias."""
        batch, m, _, n = self._sizes(arrays)
        return (*batch, m, n)

    def _sizes(self, arrays: Sequence[Any]) -> tuple[tuple[int, ...], int, int, int]:
        """Return (batch dimensions, m, k, n) of `arrays`: a, b and perhaps a bias.

        a and b are matrices, or batches of matrices with one batch dimension; `transposes` says which are stored
        transposed.
        """
        a, b, *_ = arrays
        m, k = a.shape[-2:] if self.transposes[0] == "n" else a.shape[:-3:-1]
        return a.shape[:-2], m, k, b.shape[-1] if self.transposes[1] == "n" else b.shape[-2]

    def compile(self, arrays: Sequence[XlaBuffer], target: str) -> tuple[Compiled, Sequence[str]]:
        """Return (the GEMM kernel compiled for `arrays` on `target`, the names of its inputs); see `PlatformKernel`."""
        batch, m, k, n = self._sizes(arrays)
        names = ("a", "b", "bias")[: len(arrays)]
        options = (self.activation, self.precision, self.accumulate)
        dtypes = (self.kind.name, self.out.name)
        added, threads = ("bias" in names, False), environment.threads()
        sizes = (prod(batch), m, k, n)
        return product_kernel(self.transposes, sizes, dtypes, added, options, target, False, threads), names

    def call_batched(self, run: Any, size: int, has_batch: Sequence[bool], arrays: Sequence[Any]) -> Any:
        """Return the GEMMs of a vmap batch by one call of `run`; None if a is the same for all members, or the bias
        differs.

        `run` is this GEMM as a JAX function. `arrays` are a, b and perhaps a bias; `has_batch` says which of them have
        the vmap batch as first dimension, of extent `size`. If only a has it, and a is not transposed, the rows of all
        members become rows of one matrix. Otherwise all matrices become one batch, for which a b without the batch is
        broadcast.
        """
        a, b, *bias = arrays
        a_has_batch, b_has_batch, *bias_has_batch = has_batch
        if any(bias_has_batch) or not a_has_batch:  # the kernel has one bias for all products
            return None
        if not b_has_batch and a.ndim == 3 and self.transposes[0] == "n":  # rows of all members are rows of one matrix
            rows = run(a.reshape(-1, a.shape[-1]), b, *bias)
            return rows.reshape(size, a.shape[1], -1)
        if not b_has_batch:
            b = jnp.broadcast_to(b, (size, *b.shape))
        products = run(*(x.reshape(-1, *x.shape[-2:]) for x in (a, b)), *bias)
        return products.reshape(*a.shape[:-2], *products.shape[-2:])

    def gradients(self, first: Any, second: Any, sum_gradient: Any) -> tuple[Any, Any]:
        """Return (gradient with respect to a, gradient with respect to b), each by a GEMM.

        `first` is a, `second` is b. `sum_gradient` is the gradient with respect to a * b + bias, before the activation.
        """
        operands = {"a": first, "b": second, "c": sum_gradient}
        da, db = (
            differentiable(replace(self, transposes=transposes))(operands[left], operands[right])
            for transposes, left, right in GRADIENTS[self.transposes]
        )
        return da, db


@lru_cache(maxsize=256)
def _compiled_product(options: _Product) -> Any:
    """Return a jitted function of a, b and perhaps a bias, which computes activation(a * b + bias) with these options.

    It is taken from a cache. Leading dimensions of a and b are batch dimensions; b may also be a single matrix.
    """
    return jax.jit(partial(_multiply_batches, options))


def _multiply_batches(options: _Product, a: Any, b: Any, *bias: Any) -> Any:
    """Return activation(a[..., m, k] * b + bias) with `options`; b is [..., k, n] or [k, n], `bias` is empty or
    (bias[n],).

    If b is a single matrix, all leading dimensions of a are merged into m, for one GEMM. Otherwise they are merged into
    one batch dimension.
    """
    *batch, m, k = a.shape
    n = b.shape[-1]
    count = prod(batch)
    if b.ndim == 2 or count == 1:
        products = differentiable(options)(a.reshape(count * m, k), b.reshape(k, n), *bias)
    else:
        products = differentiable(options)(a.reshape(count, m, k), b.reshape(count, k, n), *bias)
    return products.reshape(*batch, m, n)
