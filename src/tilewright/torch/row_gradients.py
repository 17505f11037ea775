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
    """Raise ArgumentError unless `dy` has the shape, dtype and device of the tensor `like`.

    `name` names that tensor in the error.
    """
    require_tensor(dy, "dy")
    require_same_device({name: like, "dy": dy})
    require_same_dtype({name: like, "dy": dy})
    require_shape(dy, "dy", tuple(like.shape), f"as {name}")


def _weight_result(shape: Sequence[Any], x: Any) -> Result:
    """Return the form of a gradient of a norm's weight or bias as a `Result`: of `shape`, in the accumulator's type.

    `x` is the norm's input: f16 and bf16 have gradients in f32, so that the operator that calls rounds them.
    """
    return Result(tuple(shape), torch_dtype_of(require_float(x, "x").accumulator), x.device)


def _zeros(expected: Sequence[Result]) -> tuple[Any, ...]:
    """Return a tensor of zeros for each of `expected`: gradients of weights that nothing was multiplied with."""
    return tuple(form.empty().zero_() for form in expected)


def _loop_rule(name: str) -> VmapRule:
    """Return the vmap rule of the operator `name` that calls it for each element of the batch, and warns.

    Each element has sums over rows of its own, but a kernel sums over all of its rows.
    """
    return lambda *args: loop_rule(name, getattr(torch.ops.tilewright, name).default)(*args)


# -- layer norm and RMS norm ------------------------------------------------------------------------------


def _check_rows_gradient(x: Any, weight: Any, dy: Any, normalized_shape: Sequence[Any], eps: float) -> Result:
    """Return the shape, dtype and device of `x` as a `Result`: those of the gradient of its layer norm or RMS norm by
    it.

    `weight` has the shape `normalized_shape`, or is None; `dy` has the shape of `x`. Raise ArgumentError if the
    arguments do not fit. `eps` is not checked.
    """
    expected = check_rows(x, normalized_shape, {"weight": weight})
    _check_output_gradient(dy, x, "x")
    return expected


def _run_rows_gradient(
    make: Callable[..., Any], expected: Result, x: Any, weight: Any, dy: Any, shape: Sequence[int], eps: float
) -> Any:
    """Return the gradient of a layer norm or RMS norm by its real input `x`, by the kernel that `make` makes.

    `weight` may be None; `dy` is with respect to the norm's result; `shape` has the normalised extents. `expected` has
    the result's shape and dtype. If `x` is empty, no kernel is called.
    """
    if not x.numel():
        return expected.empty()
    n = torch.Size(shape).numel()
    kernel = norm_kernel(make, require_float(x, "x").name, eps, x.device.type)
    scale = reshaped_or_constant(weight, x, (n,), 1)
    return kernel(as_reshaped_argument(x, (-1, n)), scale, as_reshaped_argument(dy, (-1, n))).view(x.shape)


def _rows_gradient_rule(name: str) -> VmapRule:
    """Return the vmap rule of the operator `name`, the gradient of a layer norm or RMS norm by its input.

    It makes one call; only if the weight is batched, one for each element of the batch, with a warning.
    """

    def rule(info: Any, in_dims: Sequence[int | None], x: Any, weight: Any, dy: Any, *options: Any) -> tuple[Any, Any]:
        """Return (result with the vmap dimension first, 0). `in_dims` has the vmap dimension of each argument or None,
        `info` its extent."""
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
    """Return the forms of the gradients of a layer norm by its weight and by its bias: both of `normalized_shape`.

    `x` is the norm's input, and `dy` has its shape. Raise ArgumentError if the arguments do not fit. `eps` is not
    checked.
    """
    form = _check_rms_norm_weight_gradient(x, dy, normalized_shape, eps)
    return form, form


def _run_layer_norm_weight_gradient(
    expected: tuple[Result, Result], x: Any, dy: Any, shape: Sequence[int], eps: float
) -> tuple[Any, ...]:
    """Return the gradients of a layer norm by its weight and by its bias, by one kernel; zeros if `x` is empty.

    `x` is the norm's real input, `dy` is with respect to its result, `shape` has the normalised extents. `expected` has
    the forms of both gradients.
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
    """Return the form of the gradient of an RMS norm by its weight, of `normalized_shape`, as a `Result`.

    `x` is the norm's input, and `dy` has its shape. Raise ArgumentError if the arguments do not fit. `eps` is not
    checked.
    """
    check_rows(x, normalized_shape, {})
    _check_output_gradient(dy, x, "x")
    return _weight_result(normalized_shape, x)


def _run_rms_norm_weight_gradient(expected: Result, x: Any, dy: Any, shape: Sequence[int], eps: float) -> Any:
    """Return the gradient of an RMS norm by its weight, by one kernel; zeros if `x` is empty.

    `x` is the norm's real input, `dy` is with respect to its result, `shape` has the normalised extents. `expected` has
    the gradient's form.
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
    """Return the shape, dtype, device and memory format of x[n, c, ...] as a `Result`: those of the gradient of its
    group norm by it.

    `weight` [c] may be None; `dy` has the shape of `x`. Raise ArgumentError if the arguments do not fit. `eps` is not
    checked.
    """
    expected = check_group_norm(x, num_groups, weight, None, eps)
    _check_output_gradient(dy, x, "x")
    return expected


def _run_group_norm_gradient(expected: Result, x: Any, weight: Any, dy: Any, num_groups: int, eps: float) -> Any:
    """Return the gradient of a group norm by its real input x[n, c, ...], by one kernel; no kernel if `x` is empty.

    `weight` [c] may be None; `dy` is with respect to the norm's result. `expected` has the result's shape and memory
    format.
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
    """Return (images, groups, channels of a group, pixels) of the tensor x[n, c, ...], which is not empty."""
    n, channels = x.shape[:2]
    return n, num_groups, channels // num_groups, x.numel() // (n * channels)


def _group_norm_gradient_rule(
    info: Any, in_dims: Sequence[int | None], x: Any, weight: Any, dy: Any, *options: Any
) -> tuple[Any, Any]:
    """Return (result with the vmap dimension first, 0) of the operator group_norm_gradient on a batch under torch.vmap.

    It is one call with more images. Only if the weight is batched, it is one call for each element of the batch, with a
    warning. `in_dims` has the vmap dimension of each argument or None, `info` its extent.
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
    """Return the forms of the gradients of a group norm by its weight and by its bias: one number for each channel.

    x[n, c, ...] is the norm's input, and `dy` has its shape. Raise ArgumentError if the arguments do not fit. `eps` is
    not checked.
    """
    _check_group_norm_gradient(x, None, dy, num_groups, eps)
    form = _weight_result((x.shape[1],), x)
    return form, form


def _run_group_norm_weight_gradient(
    expected: tuple[Result, Result], x: Any, dy: Any, num_groups: int, eps: float
) -> tuple[Any, ...]:
    """Return the gradients of a group norm by its weight and by its bias, by one kernel; zeros if `x` is empty.

    x[n, c, ...] is the norm's real input, `dy` is with respect to its result. `expected` has the forms of both
    gradients.
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
    """Return the compiled kernel of softmax's gradient for the element type `kind` ("f16", ...) and device type
    `target`, from a cache."""
    return compile(kernels.softmax_gradient(kind), strict=True, target=target)


def _check_softmax_gradient(y: Any, dy: Any, dim: int) -> Result:
    """Return the shape, dtype and device of `y`, the result of a softmax along `dim`, as a `Result`.

    They are those of the gradient by the softmax's input; `dy` has them too. Raise ArgumentError if the arguments do
    not fit.
    """
    require_tensor(y, "y")
    _check_output_gradient(dy, y, "y")
    return check_softmax(y, dim, "y")


def _run_softmax_gradient(expected: Result, y: Any, dy: Any, dim: int) -> Any:
    """Return the gradient of a softmax along `dim` by its input, as a contiguous tensor, by one kernel.

    `y` is the softmax's result, `dy` is with respect to it. `expected` has the gradient's shape and dtype. If `y` is
    empty, no kernel is called.
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
    """Return (gradient of `y`, gradient of `dy`, None): those of all arguments of the operator softmax_gradient.

    `inputs` are its arguments, `gradient` is with respect to its result. `needed` says which arguments need a gradient;
    the others get None.
    """
    y, dy, dim = inputs
    of_y = None
    if needed[0]:
        of_y = gradient * (dy - (y * dy).sum(dim, keepdim=True)) - dy * (gradient * y).sum(dim, keepdim=True)
    return of_y, torch.ops.tilewright.softmax_gradient(y, gradient, dim) if needed[1] else None, None


def _softmax_gradient_rule(info: Any, in_dims: Sequence[int | None], y: Any, dy: Any, dim: int) -> tuple[Any, Any]:
    """Return (result with the vmap dimension first, 0) of the operator softmax_gradient on a batch under torch.vmap, by
    one call.

    `in_dims` has the vmap dimension of each argument or None, `info` its extent; `dim` is a dimension of an element.
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
