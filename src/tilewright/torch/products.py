"""The GEMM operators `linear`, `matmul` and `bmm` of `torch.ops.tilewright`, with gradients and rules for vmap."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from tilewright.errors import ArgumentError
from tilewright.kernels.elementwise import known_activation
from tilewright.ops import products as ops
from tilewright.torch.activations import activation_gradient, apply_activation
from tilewright.torch.batching import batch_first, expand_batch, loop_rule
from tilewright.torch.checks import (
    element_type_of,
    require_bias,
    require_rank,
    require_same_device,
    require_same_dtype,
    require_shape,
)
from tilewright.torch.learning import as_kernel_argument
from tilewright.torch.library import Definition, Result, define
from tilewright.torch.packed import layer_of

# -- linear -----------------------------------------------------------------------------------------------


class LinearOptions(NamedTuple):
    """The arguments of the operator `linear` after x, weight and bias."""

    activation: str | None = None
    keep_packed: bool = False
    residual: Any = None


def _check_linear(x: Any, weight: Any, bias: Any = None, *option_values: Any) -> Result:
    """Return the shape [..., n], dtype and device, as a `Result`, of the operator `linear` of x[..., k] and weight[n,
    k].

    `bias` [n] may be None; `option_values` are the fields of `LinearOptions`, in order. Raise ArgumentError if the
    arguments do not fit.
    """
    activation, _, residual = LinearOptions(*option_values)
    known_activation(activation)
    require_same_device({"x": x, "weight": weight, "bias": bias, "residual": residual})
    require_rank(x, "x", least=1)
    require_rank(weight, "weight", 2)
    require_same_dtype({"x": x, "weight": weight, "residual": residual})
    n, k = weight.shape
    if x.shape[-1] != k:
        raise ArgumentError(f"x has shape {tuple(x.shape)}, weight {tuple(weight.shape)}: they do not fit")
    require_bias(bias, "bias", element_type_of(x, "x"), (n,), "one for each row of weight")
    require_shape(residual, "residual", (*x.shape[:-1], n), "as the result")
    return Result((*x.shape[:-1], n), x.dtype, x.device)


def _run_linear(expected: Result, x: Any, weight: Any, bias: Any = None, *option_values: Any) -> Any:
    """Return activation(x * weight transposed + bias + residual) of the real tensors x[..., k] and weight[n, k].

    `expected` is the `Result` of `_check_linear`; `bias` may be None. `option_values` are the fields of
    `LinearOptions`, in order. If `x` or `weight` has no elements, no kernel is called.
    """
    activation, keep_packed, residual = LinearOptions(*option_values)
    if not weight.numel() or not x.numel():  # an empty result, or a sum over no elements
        return _empty_product(x.new_zeros(expected.shape), bias, activation, residual)
    layer = layer_of(weight, bias, ("linear", activation), partial(ops.Linear, activation=activation), keep_packed)
    rows, added = (None if t is None else as_kernel_argument(t if t.dim() > 1 else t[None]) for t in (x, residual))
    return layer(rows, added).view(expected.shape)


def _empty_product(zeros: Any, bias: Any, activation: str | None, residual: Any = None) -> Any:
    """Return activation(zeros + bias + residual), computed by torch: a GEMM's result if K or the result is empty.

    `zeros` are zeros with the shape and dtype of the result. `bias`, `residual` and `activation` may be None. Autograd
    records nothing.
    """
    with torch.no_grad():
        for added in (bias, residual):
            zeros = zeros if added is None else (zeros + added).to(zeros.dtype)
        return apply_activation(activation, zeros)


def _linear_gradients(gradient: Any, inputs: tuple[Any, ...], _: Any, needed: Sequence[bool]) -> Sequence[Any]:
    """Return (dx, dweight, dbias, None, None, dresidual): the gradients of all arguments of the operator `linear`, by
    GEMMs.

    `gradient` is with respect to the result, `inputs` are all arguments. `needed` has a bool for each argument;
    arguments that need no gradient get None. If there is an activation, its input is computed again.
    """
    x, weight, bias, activation, _keep, residual = inputs
    g = activation_gradient(
        activation, gradient, lambda: torch.ops.tilewright.linear(x, weight, bias, None, False, residual)
    )
    rows = _as_rows(g)
    dx = torch.ops.tilewright.matmul(rows, weight).reshape(x.shape) if needed[0] else None
    dw = torch.ops.tilewright.matmul(rows.mT, _as_rows(x)) if needed[1] else None
    db = rows.sum(0).to(bias.dtype) if needed[2] else None
    return dx, dw, db, None, None, g if needed[5] else None


def _as_rows(x: Any) -> Any:
    """Return the tensor x[..., k] as a matrix [rows, k]; a vector [k] becomes one row. `x` may have no elements."""
    return x[None] if x.dim() == 1 else x.flatten(0, -2)


def _linear_vmap_rule(
    info: Any, in_dims: Sequence[int | None], x: Any, weight: Any, bias: Any = None, *option_values: Any
) -> tuple[Any, Any]:
    """Return (result, its vmap dimension 0) of the operator `linear` under torch.vmap.

    One call of an operator computes the whole batch, with two exceptions: if the bias has a vmap dimension, or if the
    weight has one and there is a residual, `linear` is called once for each element of the batch, with a
    BatchLoopWarning. `in_dims` has the vmap dimension of each argument that the call passes, or None; `info.batch_size`
    is its extent. `option_values` are the fields of `LinearOptions`, in order; the last ones may be missing.
    """
    options = LinearOptions(*option_values)
    dims = [*in_dims, *[None] * (6 - len(in_dims))]
    x_dim, weight_dim, bias_dim, residual_dim = *dims[:3], dims[5]
    if weight_dim is None and bias_dim is None:
        if options.residual is None:
            return torch.ops.tilewright.linear(batch_first(x, x_dim), weight, bias, *options), 0
        rows, residuals = (
            expand_batch(x, x_dim, info.batch_size),
            expand_batch(options.residual, residual_dim, info.batch_size),
        )
        return torch.ops.tilewright.linear(rows, weight, bias, *options[:2], residuals), 0
    if bias_dim is not None or options.residual is not None:  # a GEMM has one bias for all of the batch
        return loop_rule("linear", torch.ops.tilewright.linear.default)(info, dims, x, weight, bias, *options)
    rows = expand_batch(x, x_dim, info.batch_size)
    flat = rows[:, None] if rows.dim() == 2 else rows.flatten(1, -2)
    product = torch.ops.tilewright.matmul(flat, batch_first(weight, weight_dim).mT, bias, options.activation)
    return product.reshape(*rows.shape[:-1], product.shape[-1]), 0


LINEAR = define(
    Definition(
        "linear",
        "(Tensor x, Tensor weight, Tensor? bias=None, str? activation=None, bool keep_packed=False, "
        "Tensor? residual=None) -> Tensor",
        _check_linear,
        _run_linear,
        _linear_gradients,
        vmap=_linear_vmap_rule,
        autocast="lower",
    )
)


# -- matmul -----------------------------------------------------------------------------------------------


def _check_matmul(a: Any, b: Any, bias: Any = None, activation: str | None = None) -> Result:
    """Return the shape, dtype and device, as a `Result`, of the product of a[..., m, k] and b[..., k, n] or b[k, n].

    `bias` [n] may be None. Raise ArgumentError if the arguments do not fit. Leading dimensions are not broadcast: they
    must be equal, unless `b` is one matrix.
    """
    known_activation(activation)
    require_same_device({"a": a, "b": b, "bias": bias})
    require_rank(a, "a", least=2)
    require_rank(b, "b", least=2)
    require_same_dtype({"a": a, "b": b})
    if a.shape[-1] != b.shape[-2]:
        raise ArgumentError(f"a has shape {tuple(a.shape)}, b {tuple(b.shape)}: they do not fit")
    if b.dim() > 2 and tuple(b.shape[:-2]) != tuple(a.shape[:-2]):
        raise ArgumentError(
            f"a has shape {tuple(a.shape)}, b {tuple(b.shape)}: their batches must be equal, or b one matrix: expand"
        )
    require_bias(bias, "bias", element_type_of(a, "a"), (b.shape[-1],), "one for each column of b")
    return Result((*a.shape[:-1], b.shape[-1]), a.dtype, a.device)


def _run_matmul(expected: Result, a: Any, b: Any, bias: Any = None, activation: str | None = None) -> Any:
    """Return activation(a * b + bias) of the real tensors a[..., m, k] and b[..., k, n] or b[k, n].

    `expected` is the `Result` of `_check_matmul`; `bias` may be None. If `a` or `b` has no elements, no kernel is
    called.
    """
    if not a.numel() or not b.numel():
        return _empty_product(a.new_zeros(expected.shape), bias, activation)
    tensors = [as_kernel_argument(t) for t in ((a, b) if bias is None else (a, b, bias))]
    return ops.matmul(*tensors, activation=activation)


def _matmul_gradients(gradient: Any, inputs: tuple[Any, ...], _: Any, needed: Sequence[bool]) -> Sequence[Any]:
    """Return (da, db, dbias, None): the gradients of all arguments of the operator `matmul`, by GEMMs.

    `gradient` is with respect to the result, `inputs` are (a, b, bias, activation). `needed` has a bool for each
    argument; arguments that need no gradient get None. If there is an activation, its input is computed again.
    """
    a, b, bias, activation = inputs
    g = activation_gradient(activation, gradient, lambda: torch.ops.tilewright.matmul(a, b, bias))
    da = torch.ops.tilewright.matmul(g, b.mT) if needed[0] else None
    db = None
    if needed[1]:
        left, right = (a, g) if b.dim() > 2 else (_as_rows(a), _as_rows(g))
        db = torch.ops.tilewright.matmul(left.mT, right)
    added = _as_rows(g).sum(0).to(bias.dtype) if needed[2] else None
    return da, db, added, None


def _matmul_vmap_rule(
    info: Any, in_dims: Sequence[int | None], a: Any, b: Any, bias: Any = None, activation: str | None = None
) -> tuple[Any, Any]:
    """Return (result, its vmap dimension 0) of the operator `matmul` under torch.vmap.

    One call of `matmul` computes the whole batch. If the bias has a vmap dimension, there is one call for each element
    of the batch instead, with a BatchLoopWarning. `in_dims` has the vmap dimension of each argument, or None;
    `info.batch_size` is its extent.
    """
    a_dim, b_dim, bias_dim = (*in_dims, None)[:3]
    if bias_dim is not None:
        dims = (a_dim, b_dim, bias_dim, None)
        return loop_rule("matmul", torch.ops.tilewright.matmul.default)(info, dims, a, b, bias, activation)
    if b_dim is None and b.dim() == 2:
        return torch.ops.tilewright.matmul(batch_first(a, a_dim), b, bias, activation), 0
    left, right = expand_batch(a, a_dim, info.batch_size), expand_batch(b, b_dim, info.batch_size)
    if right.dim() < left.dim():  # each element of the batch has one matrix b for all matrices of a
        right = right[(slice(None), *(None,) * (left.dim() - right.dim()))]
        right = right.expand(*left.shape[:-2], *right.shape[-2:])
    return torch.ops.tilewright.matmul(left, right, bias, activation), 0


MATMUL = define(
    Definition(
        "matmul",
        "(Tensor a, Tensor b, Tensor? bias=None, str? activation=None) -> Tensor",
        _check_matmul,
        _run_matmul,
        _matmul_gradients,
        vmap=_matmul_vmap_rule,
        autocast="lower",
    )
)


# -- bmm --------------------------------------------------------------------------------------------------


def _check_bmm(a: Any, b: Any) -> Result:
    """Return the shape, dtype and device, as a `Result`, of the batched product of a[i, m, k] and b[i, k, n].

    Raise ArgumentError if the tensors do not fit.
    """
    require_rank(a, "a", 3)
    require_rank(b, "b", 3)
    return _check_matmul(a, b)


def _bmm_gradients(gradient: Any, inputs: tuple[Any, ...], _: Any, needed: Sequence[bool]) -> Sequence[Any]:
    """Return (da, db), the gradients of both arguments of the operator `bmm`, by batched GEMMs.

    `gradient` is with respect to the result, `inputs` are (a, b). `needed` has a bool for each of them; an argument
    that needs no gradient gets None.
    """
    a, b = inputs
    da = torch.ops.tilewright.bmm(gradient, b.mT) if needed[0] else None
    return da, torch.ops.tilewright.bmm(a.mT, gradient) if needed[1] else None


def _bmm_vmap_rule(info: Any, in_dims: Sequence[int | None], a: Any, b: Any) -> tuple[Any, Any]:
    """Return (result with the vmap dimension first, 0) of the operator `bmm` under torch.vmap, by one call of `matmul`.

    `in_dims` has the vmap dimension of `a` and of `b`, or None; `info.batch_size` is its extent.
    """
    return _matmul_vmap_rule(info, in_dims, a, b)


BMM = define(
    Definition(
        "bmm",
        "(Tensor a, Tensor b) -> Tensor",
        _check_bmm,
        _run_matmul,
        _bmm_gradients,
        vmap=_bmm_vmap_rule,
        autocast="lower",
    )
)
