"""GEMM on arrays: a function, and a layer whose weights are packed once."""

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
from tilewright.kernels.sums import known_accumulate, known_precision
from tilewright.ops.arrays import (
    Learnt,
    array,
    bias_of,
    dtype_of,
    extents_text,
    is_on_gpu,
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
"""The launches remembered from calls of `matmul` without options."""


def learnt_products(
    activation: Any, out_dtype: Any = None, precision: Any = None, accumulate: Any = None, target: Any = None
) -> Learnt:
    """Return the cache of remembered launches for calls of `matmul` with these options. Equal options give the same
    cache.
    """
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
    """Return activation(a[..., m, k] * b[..., k, n] + bias[n]), a matrix product over k, as a new array.

    The result's element type is a's unless `out_dtype` is given. The dimensions before the last two are batch
    dimensions: both operands have the same, or b is one matrix for all. If k is 0, every sum is 0. The call runs on the
    GPU if one of the operands is there, or on the `target`. `activation` is relu, gelu, gelu_tanh or silu (None: none).
    `precision="tf32"` rounds f32 operands to tf32; `accumulate="f16"` accumulates f16 products in f16. Raise
    `ArgumentError` if shapes or types do not fit.

    >>> import numpy as np
    >>> matmul(np.array([[1, 2]], np.float32), np.array([[3], [4]], np.float32))
    array([[11.]], dtype=float32)
    >>> matmul(np.ones((2, 3, 4), np.float32), np.ones((2, 4, 5), np.float32)).shape
    (2, 3, 5)
    """
    arguments = (a, b) if bias is None else (a, b, bias)
    if activation is out_dtype is precision is accumulate is target is None:
        learnt = PLAIN
    else:
        learnt = learnt_products(activation, out_dtype, precision, accumulate, target)
    remembered = learnt.call(*arguments)
    if remembered is not UNLIKE:
        return remembered
    known_activation(activation), known_precision(precision), known_target(target)
    left, right = array(a, "a"), array(b, "b")
    data_type = require_fit(left, right)
    known_accumulate(accumulate, data_type)
    *batch, m, k = left.shape
    n = right.shape[-1]
    result_type, form = out_type(out_dtype, data_type), Form([a, b])
    form.require(result_type, "the result")
    bias_array = None if bias is None else bias_of(bias, data_type, n, "columns")
    where = target_for(target, {"a": left, "b": right})
    out = result(where, [left, right], (*batch, m, n), result_type)
    if not out.size:
        return returned(out, form)
    count = prod(batch)
    if right.ndim == 2 or count == 1:
        count, m = 1, m * count
    type_names = (data_type.name, result_type.name)
    options = (activation, precision, accumulate)
    kernel = product_kernel(
        "nn",
        (count, m, k, n),
        type_names,
        (bias_array is not None, False),
        options,
        where,
        False,
        environment.threads(),
    )
    arrays = {"a": left, "b": right, "c": out} | ({} if bias_array is None else {"bias": bias_array})
    launch, whole = kernel.bind_whole(arrays, passing=True)
    launch()
    result_given = returned(out, form)
    if not is_gpu(where):
        learnt.learn_on_host(arguments, out, whole, ["a", "b", *(["bias"] if bias_array is not None else []), "c"])
    elif len(batch) == (count > 1):
        learnt.on_gpu.learn(arguments, [result_given], launch)
    return result_given


class Linear(Layer):
    """activation(x[..., k] * weight[n, k] + bias[n]): a GEMM layer whose weights are packed once for each size.

    The result is of the weights' element type unless `out_dtype` is given; accumulator, bias and activation are in f32
    (i32 for integers, f64 for f64). `precision="tf32"` rounds f32 operands to tf32; `accumulate="f16"` accumulates f16
    products in f16. It runs on the device of x, or on the `target`; weights are copied there once.

    Weights and bias may be torch tensors that change in place, as by an optimizer: the next call packs them again.
    torch counts no writes to inference tensors, so each call packs those. numpy counts none at all: after a change,
    call `refresh`, which lists other writes that are not noticed. Under `torch.no_grad()` parameters that require
    gradients are accepted too.

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

    def _call_with_read_weights(self, x: Any, residual: Any = None) -> Any:
        """Return the layer's result for `x` and `residual` (or None), with the weights as they were last read.

        Without a residual, a contiguous GPU tensor of more than two dimensions is passed on as one matrix, and the
        result gets the leading dimensions of `x` again. Calls whose tensors have the same total number of rows then
        share one remembered launch.
        """
        if residual is None and is_on_gpu(x) and x.dim() > 2 and x.numel() and x.is_contiguous():
            # As one matrix, it has the form of other remembered calls.
            return super()._call_with_read_weights(x.view(-1, x.shape[-1])).view(*x.shape[:-1], self.weight.shape[0])
        return super()._call_with_read_weights(x, residual)

    def _checked_input(self, x: Any) -> Any:
        """Return the input `x` as a contiguous array; raise `ArgumentError` unless it has at least two dimensions."""
        return array(x, "x")

    def _shape(self, x: Any) -> tuple[int, ...]:
        """Return the result's shape, (..., n), for the input `x`, (..., k).

        Raise `ArgumentError` if k or the element type does not fit the weights.
        """
        n, k = self.weight.shape
        if x.shape[-1] != k:
            raise ArgumentError(f"x is {extents_text(x.shape)}, the weights {n}x{k}: they do not fit")
        if dtype_of(x, "x") is not dtype_of(self.weight, "weight"):
            raise ArgumentError(f"x holds {x.dtype}, the weights {self.weight.dtype}: convert one")
        return (*x.shape[:-1], n)

    def _kernel(self, x: Any, target: str, residual: bool) -> Compiled:
        """Return the compiled GEMM kernel for inputs of the shape and type of `x` on `target`; equal kernels are
        compiled once.

        With `residual`, the kernel takes a residual too.
        """
        n, k = self.weight.shape
        type_names = (dtype_of(x, "x").name, self.out.name)
        sizes = (1, prod(x.shape[:-1]), k, n)
        options = (self.activation, self.precision, self.accumulate)
        threads = environment.threads()
        has_added = self.bias is not None, residual
        return product_kernel("nt", sizes, type_names, has_added, options, target, self.constant, threads)


def require_fit(left: Any, right: Any) -> DType:
    """Return the common element type of the operands a (`left`) and b (`right`) of a GEMM, after checking that they
    fit.

    Raise `ArgumentError` unless a's columns are as many as b's rows, the batch dimensions are equal or b is one matrix,
    and the element types are equal.
    """
    kind, shapes = dtype_of(left, "a"), f"a is {extents_text(left.shape)}, b {extents_text(right.shape)}"
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
    """Return the compiled GEMM kernel for `sizes` (batch count, m, k, n) and `dtypes` (operands, result) on `target`.

    Results are cached by all parameters. With a batch count above 1, a, b and c are [batch, rows, columns]; with 1 they
    have no batch dimension. `transposes` has a letter for a and one for b, as in `kernels.gemm`. `added` is (has a
    bias, has a residual), `asked` is (activation, precision, accumulate). `constant` says that b does not change once
    it is bound. `threads` is only part of the cache's key: it must be `environment.threads()`, for which kernels are
    planned.
    """
    count, m, k, n = sizes
    options: dict[str, Any] = dict(zip(("activation", "precision", "accumulate"), asked, strict=True))
    kernel = gemm_kernel(transposes, *dtypes, batched=count > 1, bias=added[0], residual=added[1], **options)
    batch = {"B": count} if count > 1 else {}
    return kernel_for(kernel, {**batch, "M": m, "K": k, "N": n}, target=target, constant=["b"] if constant else [])
