"""Normalisation and softmax: the operators `layer_norm`, `rms_norm`, `group_norm` and `softmax`, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from tilewright.compiler.kernels import compile
from tilewright.errors import ArgumentError
from tilewright.kernels import norm
from tilewright.kernels.softmax import softmax as softmax_kernel
from tilewright.torch.batching import batch_first, loop_rule
from tilewright.torch.checks import require_float, require_rank, require_same_device, require_same_dtype, require_shape
from tilewright.torch.learning import as_contiguous, as_reshaped_argument, constant
from tilewright.torch.library import Backward, Definition, Result, define, is_channels_last


@lru_cache(maxsize=512)
def norm_kernel(make: Callable[..., Any], kind: str, epsilon: float, target: str) -> Any:
    """Return the compiled kernel of a norm, or of its gradient, for the device type `target` ("cpu"), from a cache.

    `make` is a function of `tilewright.kernels.norm` or `norm_gradients`. `kind` is the element type ("f16", ...).
    `epsilon` is added to the variance or mean square.
    """
    return compile(make(kind, epsilon), strict=True, target=target)


@lru_cache(maxsize=64)
def _softmax_kernel(kind: str, target: str) -> Any:
    """Return the compiled softmax kernel, from a cache. `kind` is the element type ("f16", ...), `target` the device
    type ("cpu")."""
    return compile(softmax_kernel(kind), strict=True, target=target)


def reshaped_or_constant(tensor: Any, like: Any, shape: tuple[int, ...], value: float) -> Any:
    """Return the weight or bias `tensor` reshaped to `shape`, for a kernel.

    If it is None, return a new tensor of that shape filled with `value`, with the dtype and device of the tensor
    `like`.
    """
    return constant(like, shape, value) if tensor is None else as_reshaped_argument(tensor, shape)


# -- layer norm and RMS norm ------------------------------------------------------------------------------


def check_rows(x: Any, normalized_shape: Sequence[Any], tensors: dict[str, Any]) -> Result:
    """Return the shape, dtype and device, as a `Result`, of the layer norm or RMS norm of `x`: those of `x`.

    `x` must hold f16, bf16, f32 or f64. `normalized_shape` must be the last extents of `x`, one or more. `tensors` is
    {argument name: weight, bias or None}. Each must have the shape `normalized_shape`, and the dtype and device of `x`.
    Raise ArgumentError otherwise.
    """
    require_same_device({"x": x, **tensors})
    require_float(x, "x")
    require_same_dtype({"x": x, **tensors})
    last = tuple(normalized_shape)
    if not last or x.dim() < len(last) or tuple(x.shape[x.dim() - len(last) :]) != last:
        raise ArgumentError(f"normalized_shape={list(last)}: the last sizes of x, whose shape is {tuple(x.shape)}")
    for name, tensor in tensors.items():
        require_shape(tensor, name, last, "as normalized_shape says")
    return Result(tuple(x.shape), x.dtype, x.device)


def _check_layer_norm(x: Any, normalized_shape: Sequence[Any], weight: Any, bias: Any, eps: float) -> Result:
    """Return the shape, dtype and device, as a `Result`, of the layer norm of `x` over its last dimensions.

    `normalized_shape` has the extents of these dimensions. `weight` and `bias` have this shape, or are None. Raise
    ArgumentError if the arguments do not fit. `eps` is not used.
    """
    return check_rows(x, normalized_shape, {"weight": weight, "bias": bias})


def _run_layer_norm(
    expected: Result, x: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> Any:
    """Return the layer norm of the real tensor `x` over its last dimensions, of extents `normalized_shape`, by one
    kernel.

    `expected` is the `Result` of `_check_layer_norm`. `weight` and `bias` may be None; `eps` is added to the variance.
    If `x` is empty, no kernel is called.
    """
    if not x.numel():
        return expected.empty()
    n = torch.Size(normalized_shape).numel()
    kernel = norm_kernel(norm.layer_norm, require_float(x, "x").name, eps, x.device.type)
    scale, shift = reshaped_or_constant(weight, x, (n,), 1), reshaped_or_constant(bias, x, (n,), 0)
    return kernel(as_reshaped_argument(x, (-1, n)), scale, shift).view(x.shape)


def _layer_norm_vmap_rule(
    info: Any, in_dims: Sequence[int | None], x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Any, Any]:
    """Return (result with the vmap dimension first, 0) of the operator `layer_norm` under torch.vmap.

    It is one call. Only if `weight` or `bias` has a vmap dimension, it is one call for each element of the batch, with
    a BatchLoopWarning. `in_dims` has the vmap dimension of each argument, or None; `info.batch_size` is its extent.
    `shape` has the normalised extents.
    """
    if in_dims[2] is not None or in_dims[3] is not None:
        return loop_rule("layer_norm", torch.ops.tilewright.layer_norm.default)(
            info, in_dims, x, shape, weight, bias, eps
        )
    return torch.ops.tilewright.layer_norm(batch_first(x, in_dims[0]), shape, weight, bias, eps), 0


def _norm_gradients(name: str) -> Backward:
    """Return the backward of the operator `name`, "layer_norm" or "group_norm".

    One kernel computes the gradient of the input, and another one those of weight and bias.
    """

    def gradients(gradient: Any, inputs: tuple[Any, ...], _: Any, needed: Sequence[bool]) -> Sequence[Any]:
        """Return (dx, None, dweight, dbias, None): a gradient or None for each argument of the operator.

        `inputs` are its arguments (x, normalized_shape or num_groups, weight, bias, eps). `gradient` is with respect to
        the result. `needed` has a bool for each argument; arguments that need no gradient get None.
        """
        x, normalised, weight, bias, eps = inputs
        operators = torch.ops.tilewright
        by_x, by_weights = (getattr(operators, f"{name}_{kind}") for kind in ("gradient", "weight_gradient"))
        dx = by_x(x, weight, gradient, normalised, eps) if needed[0] else None
        if not (needed[2] or needed[3]):
            return dx, None, None, None, None
        sums = by_weights(x, gradient, normalised, eps)
        return dx, None, *_gradients_of_weights(sums, (weight, bias), needed[2:4]), None

    return gradients


def _gradients_of_weights(sums: Sequence[Any], weights: Sequence[Any], needed: Sequence[bool]) -> list[Any]:
    """Return a list with the gradient of each of `weights`, converted to the weight's dtype, or None if none is needed.

    `sums` has a gradient in the accumulator's dtype for each weight. `needed` has a bool for each weight. A weight that
    is None needs no gradient.
    """
    return [t.to(w.dtype) if is_needed else None for t, w, is_needed in zip(sums, weights, needed, strict=True)]


LAYER_NORM = define(
    Definition(
        "layer_norm",
        "(Tensor x, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> Tensor",
        _check_layer_norm,
        _run_layer_norm,
        _norm_gradients("layer_norm"),
        vmap=_layer_norm_vmap_rule,
        autocast="f32",
    )
)


def _check_rms_norm(x: Any, normalized_shape: Sequence[Any], weight: Any, eps: float) -> Result:
    """Return the shape, dtype and device, as a `Result`, of the RMS norm of `x` over its last dimensions.

    `normalized_shape` has the extents of these dimensions. `weight` has this shape, or is None. Raise ArgumentError if
    the arguments do not fit. `eps` is not used.
    """
    return check_rows(x, normalized_shape, {"weight": weight})


def _run_rms_norm(expected: Result, x: Any, normalized_shape: Sequence[int], weight: Any, eps: float) -> Any:
    """Return the RMS norm of the real tensor `x` over its last dimensions, of extents `normalized_shape`, by one
    kernel.

    `expected` is the `Result` of `_check_rms_norm`. `weight` may be None; `eps` is added to the mean square. If `x` is
    empty, no kernel is called.
    """
    if not x.numel():
        return expected.empty()
    n = torch.Size(normalized_shape).numel()
    kernel = norm_kernel(norm.rms_norm, require_float(x, "x").name, eps, x.device.type)
    return kernel(as_reshaped_argument(x, (-1, n)), reshaped_or_constant(weight, x, (n,), 1)).view(x.shape)


def _rms_norm_vmap_rule(
    info: Any, in_dims: Sequence[int | None], x: Any, shape: Sequence[int], weight: Any, eps: float
) -> tuple[Any, Any]:
    """Return (result with the vmap dimension first, 0) of the operator `rms_norm` under torch.vmap.

    It is one call. Only if `weight` has a vmap dimension, it is one call for each element of the batch, with a
    BatchLoopWarning. `in_dims` has the vmap dimension of each argument, or None; `info.batch_size` is its extent.
    `shape` has the normalised extents.
    """
    if in_dims[2] is not None:
        return loop_rule("rms_norm", torch.ops.tilewright.rms_norm.default)(info, in_dims, x, shape, weight, eps)
    return torch.ops.tilewright.rms_norm(batch_first(x, in_dims[0]), shape, weight, eps), 0


def _rms_norm_gradients(gradient: Any, inputs: tuple[Any, ...], _: Any, needed: Sequence[bool]) -> Sequence[Any]:
    """Return (dx, None, dweight, None): a gradient or None for each argument of the operator `rms_norm`, each by one
    kernel.

    `gradient` is with respect to the result, `inputs` are all arguments. `needed` has a bool for each argument;
    arguments that need no gradient get None.
    """
    x, shape, weight, eps = inputs
    operators = torch.ops.tilewright
    dx = operators.rms_norm_gradient(x, weight, gradient, shape, eps) if needed[0] else None
    dw = operators.rms_norm_weight_gradient(x, gradient, shape, eps).to(weight.dtype) if needed[2] else None
    return dx, None, dw, None


RMS_NORM = define(
    Definition(
        "rms_norm",
        "(Tensor x, SymInt[] normalized_shape, Tensor? weight, float eps) -> Tensor",
        _check_rms_norm,
        _run_rms_norm,
        _rms_norm_gradients,
        vmap=_rms_norm_vmap_rule,
        autocast="f32",
    )
)


# -- group norm -------------------------------------------------------------------------------------------


def check_group_norm(x: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Result:
    """Return the shape, dtype, device and memory format, as a `Result`, of the group norm of x[n, c, ...]: those of
    `x`.

    `num_groups` must divide the number of channels c. `weight` [c] and `bias` [c] may be None. Raise ArgumentError if
    the arguments do not fit. `eps` is not used.
    """
    require_same_device({"x": x, "weight": weight, "bias": bias})
    require_float(x, "x")
    require_rank(x, "x", least=2)
    require_same_dtype({"x": x, "weight": weight, "bias": bias})
    channels = x.shape[1]
    if num_groups < 1 or channels % num_groups:
        raise ArgumentError(f"num_groups={num_groups}: it must divide the {channels} channels of x")
    for name, tensor in (("weight", weight), ("bias", bias)):
        require_shape(tensor, name, (channels,), "one for each channel")
    return Result(tuple(x.shape), x.dtype, x.device, is_channels_last(x))


def _run_group_norm(expected: Result, x: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """Return the real tensor x[n, c, ...] normalised over each of `num_groups` groups of channels, by one kernel.

    `expected` is the `Result` of `check_group_norm`. `weight` [c] and `bias` [c] may be None; `eps` is added to the
    variance. If `x` is empty, no kernel is called.
    """
    result = expected.empty()
    if not x.numel():
        return result
    n, channels = x.shape[:2]
    channel_groups = (num_groups, channels // num_groups)
    kernel = norm_kernel(norm.group_norm, require_float(x, "x").name, eps, x.device.type)
    scale, shift = (
        reshaped_or_constant(weight, x, channel_groups, 1),
        reshaped_or_constant(bias, x, channel_groups, 0),
    )
    kernel(as_reshaped_argument(x, (n, *channel_groups, -1)), scale, shift, result.view(n, *channel_groups, -1))
    return result


def _group_norm_vmap_rule(
    info: Any, in_dims: Sequence[int | None], x: Any, num_groups: int, weight: Any, bias: Any, eps: float
) -> tuple[Any, Any]:
    """Return (result with the vmap dimension first, 0) of the operator `group_norm` under torch.vmap.

    It is one call: the vmap dimension is merged with the dimension n of images. Only if `weight` or `bias` has a vmap
    dimension, it is one call for each element of the batch, with a BatchLoopWarning. `in_dims` has the vmap dimension
    of each argument, or None; `info.batch_size` is its extent.
    """
    if in_dims[2] is not None or in_dims[3] is not None:
        return loop_rule("group_norm", torch.ops.tilewright.group_norm.default)(
            info, in_dims, x, num_groups, weight, bias, eps
        )
    images = batch_first(x, in_dims[0])
    normalised = torch.ops.tilewright.group_norm(images.flatten(0, 1), num_groups, weight, bias, eps)
    return normalised.unflatten(0, images.shape[:2]), 0


GROUP_NORM = define(
    Definition(
        "group_norm",
        "(Tensor x, int num_groups, Tensor? weight, Tensor? bias, float eps) -> Tensor",
        check_group_norm,
        _run_group_norm,
        _norm_gradients("group_norm"),
        vmap=_group_norm_vmap_rule,
        autocast="f32",
    )
)


# -- softmax ----------------------------------------------------------------------------------------------


def check_softmax(x: Any, dim: int, name: str = "x") -> Result:
    """Return the shape, dtype and device, as a `Result`, of the softmax of `x` along `dim`: those of `x`.

    Raise ArgumentError, which calls the tensor `name`, if it has no dimension `dim`, or does not hold floats.
    """
    require_same_device({name: x})
    require_float(x, name)
    require_rank(x, name, least=1)
    if not -x.dim() <= dim < x.dim():
        raise ArgumentError(f"dim={dim}: {name} has {x.dim()} dimensions, from {-x.dim()} to {x.dim() - 1}")
    return Result(tuple(x.shape), x.dtype, x.device)


def _run_softmax(expected: Result, x: Any, dim: int) -> Any:
    """Return the softmax of the real tensor `x` along the dimension `dim`, as a contiguous tensor, by one kernel.

    `expected` is the `Result` of `check_softmax`. If `x` is empty, no kernel is called.
    """
    if not x.numel():
        return expected.empty()
    rows = x.detach().movedim(dim, -1)
    kernel = _softmax_kernel(require_float(x, "x").name, x.device.type)
    result = kernel(as_reshaped_argument(rows, (-1, rows.shape[-1])))
    return as_contiguous(result.view(rows.shape).movedim(-1, dim))


def _softmax_vmap_rule(info: Any, in_dims: Sequence[int | None], x: Any, dim: int) -> tuple[Any, Any]:
    """Return (softmax with the vmap dimension first, 0) under torch.vmap, by one call.

    `in_dims[0]` is the vmap dimension of `x`. `dim` counts the dimensions without the vmap dimension. `info` is not
    used.
    """
    return torch.ops.tilewright.softmax(batch_first(x, in_dims[0]), dim if dim < 0 else dim + 1), 0


def _softmax_gradients(gradient: Any, inputs: tuple[Any, ...], output: Any, _: Sequence[bool]) -> Sequence[Any]:
    """Return (dx, None), the gradients of the arguments `inputs`, (x, dim), of the operator `softmax`, by one kernel.

    `output` is the operator's result, and `gradient` is with respect to it.
    """
    return torch.ops.tilewright.softmax_gradient(output, gradient, inputs[1]), None


SOFTMAX = define(
    Definition(
        "softmax",
        "(Tensor x, int dim) -> Tensor",
        check_softmax,
        _run_softmax,
        _softmax_gradients,
        keeps_output=True,
        vmap=_softmax_vmap_rule,
        autocast="f32",
    )
)
