"""Matrix product on arrays: a function, and a layer whose weights are packed once."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from tilewright.compiler.compiled import Compiled
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DType, DTypeLike
from tilewright.kernels.elementwise import known_activation
from tilewright.kernels.gemm import gemm as gemm_kernel
from tilewright.kernels.sums import known_accumulate
from tilewright.ops.arrays import (
    Learnt,
    array,
    bias_of,
    by,
    dtype_of,
    is_on_gpu,
    known_precision,
    known_target,
    learnt_of,
    option,
    out_type,
    result,
    returned,
    target_for,
)
from tilewright.ops.layers import Layer
from tilewright.runtime import environment
from tilewright.runtime.eager import eager
from tilewright.runtime.tensors import Form
from tilewright.targets.calls.table import UNLIKE
from tilewright.targets.names import is_gpu

PLAIN = Learnt()
"""The launches learnt from products without options."""


def learnt_products(
    activation: Any, out_dtype: Any = None, precision: Any = None, accumulate: Any = None, target: Any = None
) -> Learnt:
    """The launches learnt from calls of `matmul` with these options."""
    return learnt_of("matmul", *map(option, (activation, out_dtype, precision, accumulate, target)))


@eager
def matmul(
    a: Any,
    b: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    out_dtype: DTypeLike | None = None,
    precision: str | None = None,
    accumulate: str | None = None,
    target: str | None = None,
) -> Any:
    """activation(a[..., m, k] * b[..., k, n] + bias[n]), of a's element type unless `out_dtype` says another.

    The dimensions before the last two count products: both factors have the same, or b is one matrix for all. Where k
    is 0, every sum is 0. It runs on the GPU where one of the factors lies there, or on the `target`. With
    `precision="tf32"` factors of f32 are rounded to tf32; with `accumulate="f16"` factors of f16 are summed in f16.

    >>> import numpy as np
    >>> matmul(np.array([[1, 2]], np.float32), np.array([[3], [4]], np.float32))
    array([[11.]], dtype=float32)
    >>> matmul(np.ones((2, 3, 4), np.float32), np.ones((2, 4, 5), np.float32)).shape
    (2, 3, 5)
    """
    given = (a, b) if bias is None else (a, b, bias)
    if activation is out_dtype is precision is accumulate is target is None:
        learnt = PLAIN
    else:
        learnt = learnt_products(activation, out_dtype, precision, accumulate, target)
    like_before = learnt.call(*given)
    if like_before is not UNLIKE:
        return like_before
    known_activation(activation), known_precision(precision), known_target(target)
    left, right = array(a, "a"), array(b, "b")
    kind = require_fit(left, right)
    known_accumulate(accumulate, kind)
    *batch, m, k = left.shape
    n = right.shape[-1]
    kind_of_result, form = out_type(out_dtype, kind), Form([a, b])
    form.require(kind_of_result, "the result")
    added = None if bias is None else bias_of(bias, kind, n, "columns")
    where = target_for(target, {"a": left, "b": right})
    out = result(where, [left, right], (*batch, m, n), kind_of_result)
    if not out.size:
        return returned(out, form)
    count = prod(batch)
    if right.ndim == 2 or count == 1:
        count, m = 1, m * count
    kinds = (kind.name, kind_of_result.name)
    asked = (activation, precision, accumulate)
    kernel = product_kernel(
        "nn", (count, m, k, n), kinds, (added is not None, False), asked, where, False, environment.threads()
    )
    arrays = {"a": left, "b": right, "c": out} | ({} if added is None else {"bias": added})
    launch, whole = kernel.bind_whole(arrays, passing=True)
    launch()
    result_given = returned(out, form)
    if not is_gpu(where):
        learnt.learn_on_host(given, out, whole, ["a", "b", *(["bias"] if added is not None else []), "c"])
    elif len(batch) == (count > 1):
        learnt.on_gpu.learn(given, [result_given], launch)
    return result_given


class Linear(Layer):
    """activation(x[..., k] * weight[n, k] + bias[n]): a matrix product whose weights are packed once for each size.

    The result is of the weights' element type unless `out_dtype` says another; sums, bias and activation are in f32
    (i32 for integers, f64 for f64). With `precision="tf32"` factors of f32 are rounded to tf32; with `accumulate="f16"`
    factors of f16 are summed in f16. It runs where x lies, or on the `target`; weights are brought there once.

    Weights and bias may be torch tensors that change in place, as by an optimizer: the next call packs them anew. Of
    inference tensors torch counts no changes; each call packs those. numpy counts none: after a change, call `refresh`,
    which says what else is not seen. Under `torch.no_grad()` parameters are taken too, which need gradients.

    >>> import numpy as np
    >>> layer = Linear(np.array([[1, 2], [3, 4], [5, 6]], np.float32), activation="relu")
    >>> layer
    Linear(weight f32[3, 2], activation='relu')
    >>> layer(np.array([[1, 1], [-1, 0]], np.float32))
    array([[ 3.,  7., 11.],
           [ 0.,  0.,  0.]], dtype=float32)
    """

    names = ("a", "b", "bias", "residual", "c")
    rows = "rows of weights"
    ranks = (2,)

    @eager
    def __init__(
        self,
        weight: Any,
        bias: Any = None,
        *,
        activation: str | None = None,
        out_dtype: DTypeLike | None = None,
        precision: str | None = None,
        accumulate: str | None = None,
        target: str | None = None,
    ):
        super().__init__(weight, bias, out_dtype, target)
        self.activation, self.precision = known_activation(activation), known_precision(precision)
        self.accumulate = known_accumulate(accumulate, dtype_of(self.weight, "weight"))

    def __repr__(self) -> str:
        kind = dtype_of(self.weight, "weight")
        words = ("activation", "precision", "accumulate", "target")
        options = {n: v for n in words if (v := getattr(self, n)) is not None}
        options |= {} if self.out is kind else {"out_dtype": self.out}
        parts = [f"weight {kind}{list(self.weight.shape)}", *([] if self.bias is None else ["bias"])]
        return f"Linear({', '.join([*parts, *(f'{n}={v!r}' for n, v in options.items())])})"

    def _called(self, x: Any, residual: Any = None) -> Any:
        if residual is None and is_on_gpu(x) and x.dim() > 2 and x.numel() and x.is_contiguous():
            # As one matrix it is like other calls.
            return super()._called(x.view(-1, x.shape[-1])).view(*x.shape[:-1], self.weight.shape[0])
        return super()._called(x, residual)

    def _taken(self, x: Any) -> Any:
        return array(x, "x")

    def _shape(self, x: Any) -> tuple[int, ...]:
        n, k = self.weight.shape
        if x.shape[-1] != k:
            raise ArgumentError(f"x is {by(x.shape)}, the weights {n}x{k}: they do not fit")
        if dtype_of(x, "x") is not dtype_of(self.weight, "weight"):
            raise ArgumentError(f"x holds {x.dtype}, the weights {self.weight.dtype}: convert one")
        return (*x.shape[:-1], n)

    def _kernel(self, x: Any, target: str, residual: bool) -> Compiled:
        n, k = self.weight.shape
        kinds = (dtype_of(x, "x").name, self.out.name)
        sizes = (1, prod(x.shape[:-1]), k, n)
        asked = (self.activation, self.precision, self.accumulate)
        threads = environment.threads()
        added = self.bias is not None, residual
        return product_kernel("nt", sizes, kinds, added, asked, target, self.constant, threads)


def require_fit(left: Any, right: Any) -> DType:
    """The element type of the factors a and b of a product; raises where they do not go together."""
    kind, shapes = dtype_of(left, "a"), f"a is {by(left.shape)}, b {by(right.shape)}"
    if right.shape[-2] != left.shape[-1]:
        raise ArgumentError(f"{shapes}: they do not fit")
    if right.ndim > 2 and right.shape[:-2] != left.shape[:-2]:
        raise ArgumentError(f"{shapes}: their batches must be equal, or b one matrix")
    if dtype_of(right, "b") is not kind:
        raise ArgumentError(f"a holds {left.dtype}, b {right.dtype}: convert one")
    return kind


@lru_cache(maxsize=512)
def product_kernel(
    transposes: str,
    sizes: tuple[int, ...],
    dtypes: tuple[str, str],
    added: tuple[bool, bool],
    asked: tuple[str | None, str | None, str | None],
    target: str,
    constant: bool,
    threads: int,
) -> Compiled:
    """The kernel of products of `sizes` (how many, m, k, n), of the types of factors and result.

    `added` says whether there is a bias, and a residual; `asked` is activation, precision and accumulate; `constant`
    says that b does not change once it is bound. It is planned for a machine with so many `threads`.
    """
    count, m, k, n = sizes
    options: dict[str, Any] = dict(zip(("activation", "precision", "accumulate"), asked, strict=True))
    kernel = gemm_kernel(transposes, *dtypes, batched=count > 1, bias=added[0], residual=added[1], **options)
    batch = {"B": count} if count > 1 else {}
    return kernel_for(kernel, {**batch, "M": m, "K": k, "N": n}, target=target, constant=["b"] if constant else [])
