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
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike
from tilewright.jax.entries import XlaBuffer
from tilewright.jax.operators import OperatorOptions, array_stand_in, differentiable
from tilewright.jax.registry import with_common_varying_axes
from tilewright.kernels.elementwise import known_activation
from tilewright.kernels.gemm import gemm
from tilewright.kernels.sums import known_accumulate, known_precision
from tilewright.ops.arrays import out_type
from tilewright.ops.products import require_fit


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
    """Return activation(a[..., m, k] * b[..., k, n] + bias[n]), an array [..., m, n].

    It is `tilewright.matmul` as a JAX function, for jit, vmap, shard_map and grad. `bias` may be None, and `b` may be
    one matrix. `activation` is "relu", "gelu", "gelu_tanh", "silu" or None. `out_dtype` is the element type of the
    result; None: that of `a`. `precision="tf32"` rounds f32 operands to tf32; `accumulate="f16"` accumulates f16
    products in f16. Under vmap it is one GEMM or one batched GEMM. Gradients are GEMMs too: their operands have the
    data's type if the result has it, else the accumulator's. For the gradient of an activation its input is recomputed.
    Raise ArgumentError if shapes, types or options do not fit.

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

    @property
    def ranks(self) -> tuple[int, int, int]:
        """Return (2, 2, 1): the numbers of dimensions of a, b and the bias, without batch dimensions."""
        return 2, 2, 1

    @property
    def merges_first(self) -> bool:
        """True if a is not transposed: the rows of a batch of matrices a are then rows of one matrix, with one b for
        all."""
        return self.transposes[0] == "n"

    def result_shape(self, arrays: Sequence[XlaBuffer]) -> tuple[int, ...]:
        """Return the shape (m, n) of the result. `arrays` has a, b and perhaps a bias, without batch dimensions."""
        a, b, *_ = arrays
        return a.shape[self.transposes[0] == "t"], b.shape[self.transposes[1] == "n"]

    def compile(self, arrays: Sequence[XlaBuffer], target: str) -> tuple[Compiled, Sequence[str]]:
        """Return (the GEMM kernel compiled for the shapes and types in `arrays` on `target`, the names of its inputs).

        `arrays` has a, b and perhaps a bias, each perhaps with a batch dimension in front. `target` is one of
        `platforms.TARGETS`. The names are in the order of `arrays`.
        """
        batch, members = self.members_of(arrays)
        (m, n), k = self.result_shape(members), members[0].shape[self.transposes[0] == "n"]
        sizes, names = {"M": m, "N": n, "K": k}, ("a", "b", "bias")[: len(arrays)]
        batched: bool | tuple[str, ...] = False
        if prod(batch) > 1:  # otherwise the batch dimension is left out
            operands = "".join(name for name, a in zip("ab", arrays, strict=False) if len(a.shape) > 2)
            batched = True if operands == "ab" else (operands,)
            sizes["B" if operands == "ab" else "B0"] = batch[0]
        kernel = gemm(
            self.transposes,
            self.kind.name,
            self.out.name,
            batched=batched,
            bias="batched" if len(arrays) > 2 and len(arrays[2].shape) > 1 else len(arrays) > 2,
            activation=self.activation,
            precision=self.precision,
            accumulate=self.accumulate,
        )
        return kernel_for(kernel, sizes, target=target), names

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

    Leading dimensions of a and b are batch dimensions; b may also be a single matrix. Functions are cached by options.
    """
    return jax.jit(partial(_multiply_batches, options))


def _multiply_batches(options: _Product, a: Any, b: Any, *bias: Any) -> Any:
    """Return activation(a[..., m, k] * b + bias) with the options `options`, an array [..., m, n].

    `b` is [..., k, n] or [k, n]; `bias` is () or (an array [n],). If `b` is a single matrix, all leading dimensions of
    `a` are merged into m, for one GEMM. Otherwise they are merged into one batch dimension.
    """
    *batch, m, k = a.shape
    n = b.shape[-1]
    count = prod(batch)
    if b.ndim == 2 or count == 1:
        products = differentiable(options)(a.reshape(count * m, k), b.reshape(k, n), *bias)
    else:
        products = differentiable(options)(a.reshape(count, m, k), b.reshape(count, k, n), *bias)
    return products.reshape(*batch, m, n)
