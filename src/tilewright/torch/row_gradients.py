"""Gradients of the operators in `rows`: each is an operator of its own, computed by one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from tilewright.compiler.kernels import compile
from tilewright.kernels import norm_gradients as kernels
from tilewright.torch.batching import expand_batch, loop_rule
from tilewright.torch.checks import (
    require_float,
    require_same_device,
    require_same_dtype,
    require_shape,
    require_tensor,
    torch_dtype_of,
)
from tilewright.torch.learning import as_contiguous, as_reshaped_argument
from tilewright.torch.library import Definition, Result, define
from tilewright.torch.rows import check_group_norm, check_rows, check_softmax, norm_kernel, reshaped_or_constant

VmapRule = Callable[..., tuple[Any, Any]]
"""torch's rule `(info, in_dims, *args) -> (result, out_dim)` of an operator under torch.vmap."""


def _check_output_gradient(dy: Any, like: Any, name: str) -> None:
    """Raise ArgumentError unless `dy` has the shape, dtype and device of the tensor `like`, which the error calls
    `name`."""
    require_tensor(dy, "dy")
    require_same_device({name: like, "dy": dy})
    require_same_dtype({name: like, "dy": dy})
    require_shape(dy, "dy", tuple(like.shape), f"as {name}")


def _weight_result(shape: Sequence[Any], x: Any) -> Result:
    """Return the shape, dtype and device, as a `Result`, of the gradient with respect to a norm's weight or bias.

    It has the given `shape` and the device of the norm's input `x`. Its dtype is that of the accumulator: f32 for f16,
    bf16 and f32, f64 for f64. The caller rounds it to the weight's dtype.
    """
    return Result(tuple(shape), torch_dtype_of(require_float(x, "x").accumulator), x.device)


def _zeros(expected: Sequence[Result]) -> tuple[Any, ...]:
    """Return a tuple with a tensor of zeros for each `Result` in `expected`: gradients of weights if there is no input
    element."""
    return tuple(form.empty().zero_() for form in expected)


def _loop_rule(name: str) -> VmapRule:
    """Return the vmap rule of the operator `name` that calls it once for each element of the batch, with a
    BatchLoopWarning.

    These operators have no batch dimension: a kernel sums over all rows of its input, and each element of the batch
    needs sums over its rows alone.
    """
    return lambda *args: loop_rule(name, getattr(torch.ops.tilewright, name).default)(*args)


# -- layer norm and RMS norm ------------------------------------------------------------------------------


def _check_rows_gradient(x: Any, weight: Any, dy: Any, normalized_shape: Sequence[Any], eps: float) -> Result:
    """Return the shape, dtype and device, as a `Result`, of the gradient with respect to the input `x` of a layer norm
    or RMS norm.

    They are those of `x`. `weight` has the shape `normalized_shape`, or is None; `dy` has the shape of `x`. Raise
    ArgumentError if the arguments do not fit. `eps` is not used.
    """
    expected = check_rows(x, normalized_shape, {"weight": weight})
    _check_output_gradient(dy, x, "x")
    return expected


def _run_rows_gradient(
    make: Callable[..., Any], expected: Result, x: Any, weight: Any, dy: Any, shape: Sequence[int], eps: float
) -> Any:
    """Return the gradient of a layer norm or RMS norm with respect to its real input `x`, by one kernel.

    `make` is the function of `tilewright.kernels.norm_gradients` that describes the kernel. `expected` is the `Result`
    of `_check_rows_gradient`. `weight` may be None; `dy` is with respect to the norm's result; `shape` has the
    normalised extents; `eps` is that of the norm. If `x` is empty, no kernel is called.
    """
    if not x.numel():
        return expected.empty()
    n = torch.Size(shape).numel()
    kernel = norm_kernel(make, require_float(x, "x").name, eps, x.device.type)
    scale = reshaped_or_constant(weight, x, (n,), 1)
    return kernel(as_reshaped_argument(x, (-1, n)), scale, as_reshaped_argument(dy, (-1, n))).view(x.shape)


def _rows_gradient_rule(name: str) -> VmapRule:
    """Return the vmap rule of the operator `name`, the gradient of a layer norm or RMS norm with respect to its input.

    The rule makes one call. Only if the weight has a vmap dimension, it makes one call for each element of the batch,
    with a BatchLoopWarning.
    """

    def rule(info: Any, in_dims: Sequence[int | None], x: Any, weight: Any, dy: Any, *options: Any) -> tuple[Any, Any]:
        """Return (result with the vmap dimension first, 0).

        `in_dims` has the vmap dimension of each argument, or None; `info.batch_size` is its extent. `options` are the
        normalised extents and eps.
        """
        if in_dims[1] is not None:
            return _loop_rule(name)(info, in_dims, x, weight, dy, *options)
        rows, slopes = (expand_batch(t, d, info.batch_size) for t, d in ((x, in_dims[0]), (dy, in_dims[2])))
        return getattr(torch.ops.tilewright, name)(rows, weight, slopes, *options), 0

    return rule


ROWS_GRADIENT = {
    norm: define(
        Definition(
            f"{norm}_gradient",
            "(Tensor x, Tensor? weight, Tensor dy, SymInt[] normalized_shape, float eps) -> Tensor",
            _check_rows_gradient,
            partial(_run_rows_gradient, make),
            vmap=_rows_gradient_rule(f"{norm}_gradient"),
        )
    )
    for norm, make in (("layer_norm", kernels.layer_norm_gradient), ("rms_norm", kernels.rms_norm_gradient))
}


def _check_layer_norm_weight_gradient(
    x: Any, dy: Any, normalized_shape: Sequence[Any], eps: float
) -> tuple[Result, Result]:
    """Return the `Result`s of the gradients with respect to a layer norm's weight and bias: two equal ones of shape
    `normalized_shape`.

    Their dtype is the accumulator's. `x` is the norm's input, and `dy` has its shape. Raise ArgumentError if the
    arguments do not fit. `eps` is not used.
    """
    form = _check_rms_norm_weight_gradient(x, dy, normalized_shape, eps)
    return form, form


def _run_layer_norm_weight_gradient(
    expected: tuple[Result, Result], x: Any, dy: Any, shape: Sequence[int], eps: float
) -> tuple[Any, ...]:
    """Return the gradients with respect to a layer norm's weight and bias, a pair, by one kernel; zeros if `x` is
    empty.

    `expected` has the `Result` of each gradient. `x` is the norm's real input, `dy` is with respect to its result,
    `shape` has the normalised extents, and `eps` is that of the norm.
    """
    if not x.numel():
        return _zeros(expected)
    n = torch.Size(shape).numel()
    kernel = norm_kernel(kernels.layer_norm_weight_gradient, require_float(x, "x").name, eps, x.device.type)
    return tuple(t.view(shape) for t in kernel(*(as_reshaped_argument(t, (-1, n)) for t in (x, dy))))


LAYER_NORM_WEIGHT_GRADIENT = define(
    Definition(
        "layer_norm_weight_gradient",
        "(Tensor x, Tensor dy, SymInt[] normalized_shape, float eps) -> (Tensor, Tensor)",
        _check_layer_norm_weight_gradient,
        _run_layer_norm_weight_gradient,
        vmap=_loop_rule("layer_norm_weight_gradient"),
    )
)


def _check_rms_norm_weight_gradient(x: Any, dy: Any, normalized_shape: Sequence[Any], eps: float) -> Result:
    """Return the `Result` of the gradient with respect to an RMS norm's weight: of shape `normalized_shape`, in the
    accumulator's dtype.

    `x` is the norm's input, and `dy` has its shape. Raise ArgumentError if the arguments do not fit. `eps` is not used.
    """
    check_rows(x, normalized_shape, {})
    _check_output_gradient(dy, x, "x")
    return _weight_result(normalized_shape, x)


def _run_rms_norm_weight_gradient(expected: Result, x: Any, dy: Any, shape: Sequence[int], eps: float) -> Any:
    """Return the gradient with respect to an RMS norm's weight, by one kernel; zeros if `x` is empty.

    `expected` is the `Result` of `_check_rms_norm_weight_gradient`. `x` is the norm's real input, `dy` is with respect
    to its result, `shape` has the normalised extents, and `eps` is that of the norm.
    """
    if not x.numel():
        return expected.empty().zero_()
    n = torch.Size(shape).numel()
    kernel = norm_kernel(kernels.rms_norm_weight_gradient, require_float(x, "x").name, eps, x.device.type)
    return kernel(*(as_reshaped_argument(t, (-1, n)) for t in (x, dy))).view(shape)


RMS_NORM_WEIGHT_GRADIENT = define(
    Definition(
        "rms_norm_weight_gradient",
        "(Tensor x, Tensor dy, SymInt[] normalized_shape, float eps) -> Tensor",
        _check_rms_norm_weight_gradient,
        _run_rms_norm_weight_gradient,
        vmap=_loop_rule("rms_norm_weight_gradient"),
    )
)


# -- group norm -------------------------------------------------------------------------------------------


def _check_group_norm_gradient(x: Any, weight: Any, dy: Any, num_groups: int, eps: float) -> Result:
    """Return the shape, dtype, device and memory format, as a `Result`, of the gradient with respect to the input of a
    group norm.

    They are those of the input `x` [n, c, ...]. `weight` [c] may be None; `dy` has the shape of `x`. Raise
    ArgumentError if the arguments do not fit. `eps` is not used.
    """
    expected = check_group_norm(x, num_groups, weight, None, eps)
    _check_output_gradient(dy, x, "x")
    return expected


def _run_group_norm_gradient(expected: Result, x: Any, weight: Any, dy: Any, num_groups: int, eps: float) -> Any:
    """Return the gradient of a group norm with respect to its real input x[n, c, ...], by one kernel; no kernel if `x`
    is empty.

    `expected` is the `Result` of `_check_group_norm_gradient`. `weight` [c] may be None; `dy` is with respect to the
    norm's result; `eps` is that of the norm.
    """
    result = expected.empty()
    if not x.numel():
        return result
    shape = _grouped_shape(x, num_groups)
    kernel = norm_kernel(kernels.group_norm_gradient, require_float(x, "x").name, eps, x.device.type)
    scale = reshaped_or_constant(weight, x, shape[1:3], 1)
    kernel(as_reshaped_argument(x, shape), scale, as_reshaped_argument(dy, shape), result.view(shape))
    return result


def _grouped_shape(x: Any, num_groups: int) -> tuple[int, ...]:
    """Return (images, groups, channels of a group, pixels) of the tensor x[n, c, ...], which must not be empty."""
    n, channels = x.shape[:2]
    return n, num_groups, channels // num_groups, x.numel() // (n * channels)


def _group_norm_gradient_rule(
    info: Any, in_dims: Sequence[int | None], x: Any, weight: Any, dy: Any, *options: Any
) -> tuple[Any, Any]:
    """Return (result with the vmap dimension first, 0) of the operator group_norm_gradient under torch.vmap.

    It is one call: the vmap dimension is merged with the dimension n of images. Only if the weight has a vmap
    dimension, it is one call for each element of the batch, with a BatchLoopWarning. `in_dims` has the vmap dimension
    of each argument, or None; `info.batch_size` is its extent. `options` are num_groups and eps.
    """
    if in_dims[1] is not None:
        return _loop_rule("group_norm_gradient")(info, in_dims, x, weight, dy, *options)
    images, slopes = (expand_batch(t, d, info.batch_size) for t, d in ((x, in_dims[0]), (dy, in_dims[2])))
    gradient = torch.ops.tilewright.group_norm_gradient(images.flatten(0, 1), weight, slopes.flatten(0, 1), *options)
    return gradient.unflatten(0, images.shape[:2]), 0


GROUP_NORM_GRADIENT = define(
    Definition(
        "group_norm_gradient",
        "(Tensor x, Tensor? weight, Tensor dy, int num_groups, float eps) -> Tensor",
        _check_group_norm_gradient,
        _run_group_norm_gradient,
        vmap=_group_norm_gradient_rule,
    )
)


def _check_group_norm_weight_gradient(x: Any, dy: Any, num_groups: int, eps: float) -> tuple[Result, Result]:
    """Return the `Result`s of the gradients with respect to a group norm's weight and bias: two equal ones of shape
    [c].

    Their dtype is the accumulator's. `x` [n, c, ...] is the norm's input, and `dy` has its shape. Raise ArgumentError
    if the arguments do not fit. `eps` is not used.
    """
    _check_group_norm_gradient(x, None, dy, num_groups, eps)
    form = _weight_result((x.shape[1],), x)
    return form, form


def _run_group_norm_weight_gradient(
    expected: tuple[Result, Result], x: Any, dy: Any, num_groups: int, eps: float
) -> tuple[Any, ...]:
    """Return the gradients with respect to a group norm's weight and bias, a pair, by one kernel; zeros if `x` is
    empty.

    `expected` has the `Result` of each gradient. `x` [n, c, ...] is the norm's real input, `dy` is with respect to its
    result, and `eps` is that of the norm.
    """
    if not x.numel():
        return _zeros(expected)
    shape = _grouped_shape(x, num_groups)
    kernel = norm_kernel(kernels.group_norm_weight_gradient, require_float(x, "x").name, eps, x.device.type)
    return tuple(t.view(-1) for t in kernel(*(as_reshaped_argument(t, shape) for t in (x, dy))))


GROUP_NORM_WEIGHT_GRADIENT = define(
    Definition(
        "group_norm_weight_gradient",
        "(Tensor x, Tensor dy, int num_groups, float eps) -> (Tensor, Tensor)",
        _check_group_norm_weight_gradient,
        _run_group_norm_weight_gradient,
        vmap=_loop_rule("group_norm_weight_gradient"),
    )
)


# -- softmax ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _softmax_gradient_kernel(kind: str, target: str) -> Any:
    """Return the compiled kernel of softmax's gradient, from a cache. `kind` is the element type ("f16", ...), `target`
    the device type ("cpu")."""
    return compile(kernels.softmax_gradient(kind), strict=True, target=target)


def _check_softmax_gradient(y: Any, dy: Any, dim: int) -> Result:
    """Return the shape, dtype and device, as a `Result`, of the gradient with respect to the input of a softmax along
    `dim`.

    They are those of the softmax's result `y`; `dy` must have them too. Raise ArgumentError if the arguments do not
    fit.
    """
    require_tensor(y, "y")
    _check_output_gradient(dy, y, "y")
    return check_softmax(y, dim, "y")


def _run_softmax_gradient(expected: Result, y: Any, dy: Any, dim: int) -> Any:
    """Return the gradient of a softmax along `dim` with respect to its input, as a contiguous tensor, by one kernel.

    `expected` is the `Result` of `_check_softmax_gradient`. `y` is the softmax's result, `dy` is with respect to `y`.
    If `y` is empty, no kernel is called.
    """
    if not y.numel():
        return expected.empty()
    rows, slopes = (t.detach().movedim(dim, -1) for t in (y, dy))
    kernel = _softmax_gradient_kernel(require_float(y, "y").name, y.device.type)
    result = kernel(*(as_reshaped_argument(t, (-1, rows.shape[-1])) for t in (rows, slopes)))
    return as_contiguous(result.view(rows.shape).movedim(-1, dim))


def _softmax_gradient_gradients(
    gradient: Any, inputs: tuple[Any, ...], _: Any, needed: Sequence[bool]
) -> Sequence[Any]:
    """Return (gradient of `y`, gradient of `dy`, None): one entry for each argument of the operator softmax_gradient.

    `inputs` are its arguments, `gradient` is with respect to its result. `needed` has a bool for each argument;
    arguments that need no gradient get None.
    """
    y, dy, dim = inputs
    of_y = None
    if needed[0]:
        of_y = gradient * (dy - (y * dy).sum(dim, keepdim=True)) - dy * (gradient * y).sum(dim, keepdim=True)
    return of_y, torch.ops.tilewright.softmax_gradient(y, gradient, dim) if needed[1] else None, None


def _softmax_gradient_rule(info: Any, in_dims: Sequence[int | None], y: Any, dy: Any, dim: int) -> tuple[Any, Any]:
    """Return (result with the vmap dimension first, 0) of the operator softmax_gradient under torch.vmap, by one call.

    `in_dims` has the vmap dimension of each argument, or None; `info.batch_size` is its extent. `dim` counts the
    dimensions without the vmap dimension.
    """
    rows, slopes = (expand_batch(t, d, info.batch_size) for t, d in ((y, in_dims[0]), (dy, in_dims[1])))
    return torch.ops.tilewright.softmax_gradient(rows, slopes, dim if dim < 0 else dim + 1), 0


SOFTMAX_GRADIENT = define(
    Definition(
        "softmax_gradient",
        "(Tensor y, Tensor dy, int dim) -> Tensor",
        _check_softmax_gradient,
        _run_softmax_gradient,
        _softmax_gradient_gradients,
        vmap=_softmax_gradient_rule,
    )
)
