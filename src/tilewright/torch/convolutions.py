"""Convolution operators over one, two and three axes in torch's order of dimensions, [n, c, ...], with gradients.

Results have torch's memory format: channels last if the image or the filters have it, contiguous otherwise. Kernels
work on channels last: a contiguous image is copied before the kernel, and a contiguous result after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from tilewright.compiler.kernels import compile
from tilewright.errors import ArgumentError
from tilewright.kernels.conv_gradients import conv_filter_gradient, conv_image_gradient
from tilewright.kernels.elementwise import known_activation
from tilewright.ops.convolutions import Conv
from tilewright.torch.activations import activation_gradient, apply_activation
from tilewright.torch.batching import batch_first, expand_batch
from tilewright.torch.checks import (
    element_type_of,
    require_bias,
    require_rank,
    require_same_device,
    require_same_dtype,
    require_shape,
)
from tilewright.torch.learning import as_contiguous, as_kernel_argument
from tilewright.torch.library import Definition, Result, define, is_channels_last
from tilewright.torch.packed import layer_of

Numbers = Sequence[int]
"""One number for each axis; padding may also have two for each axis, before and after."""


def _padding_pairs(padding: Numbers, rank: int) -> tuple[tuple[int, int], ...]:
    """Return ((before, after), ...) with the padding of each of `rank` axes. `padding` has one or two numbers for each
    axis.

    For rank 2, (1, 2) -> ((1, 1), (2, 2)), and (1, 2, 3, 4) -> ((1, 2), (3, 4)).
    """
    if len(padding) == rank:
        return tuple((n, n) for n in padding)
    return tuple(zip(padding[::2], padding[1::2], strict=True))


def _check_options(rank: int, stride: Numbers, padding: Numbers, dilation: Numbers, groups: int) -> None:
    """Raise ArgumentError unless a convolution's options fit an image with `rank` spatial axes.

    `stride` and `dilation` must have an integer of at least 1 for each axis. `padding` must have one integer, or two
    (before, after), of at least 0 for each axis. `groups` must be at least 1.
    """
    for name, value in (("stride", stride), ("dilation", dilation)):
        if len(value) != rank or any(n < 1 for n in value):
            raise ArgumentError(f"{name}={list(value)}: {rank} integers of at least 1, one for each axis")
    if len(padding) not in (rank, 2 * rank) or any(n < 0 for n in padding):
        raise ArgumentError(
            f"padding={list(padding)}: {rank} integers of at least 0, or {2 * rank}: before and after, for each axis"
        )
    if groups < 1:
        raise ArgumentError(f"groups={groups}: an integer of at least 1")


def output_sizes(
    image: Sequence[Any],
    taps: Sequence[Any],
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    what: str = "filter",
) -> list[Any]:
    """Return the list of the spatial sizes of a convolution's output: image [5], taps [3] and stride [2] give [2]
    without padding.

    `image` and `taps` are the spatial sizes of the image and of the filter. `stride`, `padding` and `dilation` have a
    number for each axis; `padding` may have two for each axis, before and after. Raise ArgumentError if an output size
    is below 1, which means that the filter does not fit into the padded image. `what` is the word for the filter in the
    error.
    """
    axes = zip(image, taps, stride, _padding_pairs(padding, len(taps)), dilation, strict=True)
    sizes = [(size + sum(pair) - spread * (extent - 1) - 1) // step + 1 for size, extent, step, pair, spread in axes]
    if any(n < 1 for n in sizes):
        raise ArgumentError(
            f"x has the sizes {tuple(image)}: a {what} of {tuple(taps)} does not fit, with this padding and dilation"
        )
    return sizes


# -- forward ----------------------------------------------------------------------------------------------


class Options(NamedTuple):
    """The arguments of a convolution operator after x, weight and bias."""

    stride: Numbers
    padding: Numbers
    dilation: Numbers
    groups: int
    activation: str | None = None
    keep_packed: bool = False
    residual: Any = None

    @property
    def geometry(self) -> tuple[Any, ...]:
        """Return (stride, padding, dilation, groups): the options that the operators for the gradients have too."""
        return self[:4]


def _check(rank: int, x: Any, weight: Any, bias: Any, *option_values: Any) -> Result:
    """Return the shape, dtype, device and memory format of a convolution's result, as a `Result`.

    `x` [n, c, ...] and `weight` [f, c / groups, ...] have `rank` spatial axes; `bias` [f] may be None. `option_values`
    are the fields of `Options`, in order. Raise ArgumentError if the arguments do not fit.
    """
    options = Options(*option_values)
    known_activation(options.activation)
    require_same_device({"x": x, "weight": weight, "bias": bias, "residual": options.residual})
    require_rank(x, "x", rank + 2)
    require_rank(weight, "weight", rank + 2)
    require_same_dtype({"x": x, "weight": weight, "residual": options.residual})
    _check_options(rank, *options.geometry)
    f, c, *taps = weight.shape
    n, channels, *image = x.shape
    if channels != c * options.groups:
        raise ArgumentError(f"x has {channels} channels; weight takes {c} in each of {options.groups} groups")
    if f % options.groups:
        raise ArgumentError(f"groups={options.groups}: it must divide the {f} filters")
    if any(r < 1 for r in taps):
        raise ArgumentError(f"weight has shape {tuple(weight.shape)}: a filter has a tap along each axis")
    require_bias(bias, "bias", element_type_of(x, "x"), (f,), "one for each filter")
    shape = (n, f, *output_sizes(image, taps, options.stride, options.padding, options.dilation))
    require_shape(options.residual, "residual", shape, "as the result")
    return Result(shape, x.dtype, x.device, is_channels_last(x) or is_channels_last(weight))


def _run(rank: int, expected: Result, x: Any, weight: Any, bias: Any, *option_values: Any) -> Any:
    """Return activation(convolution + bias + residual) of real tensors with `rank` spatial axes, by one kernel.

    `expected` is the `Result` of `_check`. `option_values` are the fields of `Options`, in order. If `x` or `weight`
    has no elements, no kernel is called: torch computes the result, with 0 for the convolution.
    """
    options = Options(*option_values)
    residual = None if options.residual is None else options.residual.detach()
    if not x.numel() or not weight.numel():  # an empty result, or a sum over no elements
        result = expected.empty().zero_()
        for added in (None if bias is None else bias.detach().view(-1, *(1,) * rank), residual):
            result = result if added is None else result + added
        return expected.empty().copy_(apply_activation(options.activation, result))
    key = _layer_key(rank, options)
    layer = layer_of(weight, bias, key, partial(_make_layer, key), options.keep_packed, channels_innermost)
    image, added = (None if t is None else as_kernel_argument(channels_innermost(t)) for t in (x, residual))
    return as_output(layer(image, added), expected.channels_last)


def _layer_key(rank: int, options: Options) -> tuple[Any, ...]:
    """Return ("conv", stride, padding pairs, dilation, groups, activation): a hashable key of a convolution layer over
    `rank` axes.

    It has all `options` on which the layer depends; keep_packed and the residual are not among them.
    """
    stride, padding, dilation, groups = options.geometry
    return "conv", tuple(stride), _padding_pairs(padding, rank), tuple(dilation), groups, options.activation


def _make_layer(key: tuple[Any, ...], weight: Any, bias: Any) -> Conv:
    """Return a layer `tilewright.Conv` with `weight` [f, ..., c] and `bias` [f] or None.

    `key` is a result of `_layer_key`, which has the layer's options.
    """
    names = ("stride", "padding", "dilation", "groups", "activation")
    return Conv(weight, bias, **dict(zip(names, key[1:], strict=True)))


def channels_innermost(tensor: Any) -> Any:
    """Return a view of an image or weight [n, c, ...] with the channels last, as kernels take it: [n, ..., c]."""
    return tensor.movedim(1, -1)


def as_output(result: Any, channels_last: bool) -> Any:
    """Return a kernel's result [n, ..., c] in torch's order of dimensions, [n, c, ...].

    With `channels_last` the result is a view. Otherwise it is contiguous, by a copy if needed.
    """
    image = result.movedim(-1, 1)
    return image if channels_last else as_contiguous(image)


def _conv_gradients(name: str, gradient: Any, inputs: tuple[Any, ...], _: Any, needed: Sequence[bool]) -> Sequence[Any]:
    """Return a tuple with a gradient or None for each argument of a convolution operator, in the order of the
    arguments.

    `name` is the operator ("conv2d"). `gradient` is with respect to its result. `inputs` are all its arguments.
    `needed` has a bool for each argument; arguments that need no gradient, and options, get None. If there is an
    activation, its input is computed again.
    """
    x, weight, bias, *option_values = inputs
    options = Options(*option_values)
    operators, geometry = torch.ops.tilewright, options.geometry
    sum_gradient = activation_gradient(
        options.activation,
        gradient,
        lambda: getattr(operators, name)(x, weight, bias, *geometry, None, False, options.residual),
    )
    dx = operators.conv_image_gradient(sum_gradient, weight, list(x.shape[2:]), *geometry) if needed[0] else None
    dw = operators.conv_filter_gradient(x, sum_gradient, list(weight.shape[2:]), *geometry) if needed[1] else None
    db = sum_gradient.movedim(1, -1).flatten(0, -2).sum(0).to(bias.dtype) if needed[2] else None
    return dx, dw, db, *(None,) * (len(inputs) - 4), sum_gradient if needed[-1] else None


def _vmap_rule(
    name: str, info: Any, in_dims: Sequence[int | None], x: Any, weight: Any, bias: Any, *option_values: Any
) -> tuple[Any, Any]:
    """Return (result, its vmap dimension) of the convolution operator `name` under torch.vmap, by one call.

    If neither weight nor bias has a vmap dimension, it is merged with the dimension n of images, and the result's vmap
    dimension is 0. Otherwise it is merged with the channels, as more groups, and the result's vmap dimension is 1.
    `in_dims` has the vmap dimension of each argument that the call passes, or None. `info.batch_size` is the vmap
    extent. `option_values` are the fields of `Options`, in order; the last ones may be missing.
    """
    options = Options(*option_values)
    x_dim, weight_dim, bias_dim = in_dims[:3]
    added_dim = in_dims[-1] if len(option_values) == len(options) else None
    batch, operator = info.batch_size, getattr(torch.ops.tilewright, name)
    if weight_dim is None and bias_dim is None:
        images = expand_batch(x, x_dim, batch)
        residual = None if options.residual is None else expand_batch(options.residual, added_dim, batch).flatten(0, 1)
        result = operator(images.flatten(0, 1), weight, bias, *options._replace(residual=residual))
        return result.unflatten(0, images.shape[:2]), 0
    images = expand_batch(x, x_dim, batch).movedim(0, 1).flatten(1, 2)
    filters = expand_batch(weight, weight_dim, batch).flatten(0, 1)
    added = None if bias is None else expand_batch(bias, bias_dim, batch).flatten(0, 1)
    residual = None
    if options.residual is not None:
        residual = expand_batch(options.residual, added_dim, batch).movedim(0, 1).flatten(1, 2)
    merged = options._replace(groups=batch * options.groups, keep_packed=False, residual=residual)
    return operator(images, filters, added, *merged).unflatten(1, (batch, -1)), 1


_GEOMETRY = "int[] stride, int[] padding, int[] dilation, int groups"
_ENDING = "str? activation=None, bool keep_packed=False, Tensor? residual=None"
CONV = {
    rank: define(
        Definition(
            f"conv{rank}d",
            f"(Tensor x, Tensor weight, Tensor? bias, {_GEOMETRY}, {_ENDING}) -> Tensor",
            partial(_check, rank),
            partial(_run, rank),
            partial(_conv_gradients, f"conv{rank}d"),
            vmap=partial(_vmap_rule, f"conv{rank}d"),
            autocast="lower",
        )
    )
    for rank in (1, 2, 3)
}


# -- the gradient with respect to images --------------------------------------------------------------------


def _check_image_gradient(
    dy: Any, weight: Any, sizes: Sequence[Any], stride: Numbers, padding: Numbers, dilation: Numbers, groups: int
) -> Result:
    """Return the shape, dtype, device and memory format, as a `Result`, of the gradient with respect to a convolution's
    image.

    `dy` [n, f, ...] is the gradient with respect to the convolution's output, and `sizes` are the image's spatial
    sizes. The other parameters are the convolution's arguments. Raise ArgumentError if they do not fit.
    """
    rank = len(sizes)
    require_same_device({"dy": dy, "weight": weight})
    require_rank(dy, "dy", rank + 2)
    require_rank(weight, "weight", rank + 2)
    require_same_dtype({"dy": dy, "weight": weight})
    _check_options(rank, stride, padding, dilation, groups)
    f, c, *taps = weight.shape
    expected = (dy.shape[0], f, *output_sizes(sizes, taps, stride, padding, dilation))
    if tuple(dy.shape) != expected:
        raise ArgumentError(f"dy has shape {tuple(dy.shape)}; outputs of images of {tuple(sizes)} are {expected}")
    return Result((dy.shape[0], c * groups, *sizes), dy.dtype, dy.device, is_channels_last(dy))


def _run_image_gradient(expected: Result, dy: Any, weight: Any, sizes: Sequence[int], *options: Any) -> Any:
    """Return the gradient with respect to a convolution's image, by one kernel; zeros without a kernel if `dy` or
    `weight` is empty.

    `expected` is the `Result` of `_check_image_gradient`. `dy` is the gradient with respect to the convolution's
    output. `sizes`, the image's spatial sizes, is not used: `expected` has them. `options` are stride, padding,
    dilation and groups.
    """
    n, c, *image = expected.shape
    if not dy.numel() or not weight.numel():
        return expected.empty().zero_()
    dx = torch.empty((n, *image, c), dtype=dy.dtype, device=dy.device)
    kernel = _gradient_kernel(conv_image_gradient, tuple(weight.shape[2:]), _gradient_key(dy, options), dy.device.type)
    kernel(*(as_kernel_argument(channels_innermost(t)) for t in (dy, weight)), dx)
    return as_output(dx, expected.channels_last)


def _image_gradient_gradients(gradient: Any, inputs: tuple[Any, ...], _: Any, needed: Sequence[bool]) -> Sequence[Any]:
    """Return (gradient of `dy`, gradient of `weight`, None, ...): one entry for each argument of the operator
    conv_image_gradient.

    `inputs` are the operator's arguments, `gradient` is with respect to its result. `needed` has a bool for each
    argument; arguments that need no gradient get None.
    """
    dy, weight, sizes, *options = inputs
    conv = getattr(torch.ops.tilewright, f"conv{len(sizes)}d")
    taps = list(weight.shape[2:])
    ddy = conv(gradient, weight, None, *options) if needed[0] else None
    dw = torch.ops.tilewright.conv_filter_gradient(gradient, dy, taps, *options) if needed[1] else None
    return ddy, dw, *(None,) * (len(inputs) - 2)


def _image_gradient_vmap_rule(
    info: Any, in_dims: Sequence[int | None], dy: Any, weight: Any, sizes: Sequence[int], *options: Any
) -> tuple[Any, Any]:
    """Return (result, its vmap dimension) of the operator conv_image_gradient under torch.vmap, by one call.

    If only `dy` has a vmap dimension, it is merged with the dimension n of images, and the result's vmap dimension is
    0. If `weight` has one, it is merged with the channels, as more groups, and the result's vmap dimension is 1.
    `in_dims` has the vmap dimension of each argument, or None; `info.batch_size` is its extent. `sizes` are the image's
    spatial sizes, `options` are stride, padding, dilation and groups.
    """
    *geometry, groups = options
    operator = torch.ops.tilewright.conv_image_gradient
    if in_dims[1] is None:
        outputs = batch_first(dy, in_dims[0])
        return operator(outputs.flatten(0, 1), weight, sizes, *options).unflatten(0, outputs.shape[:2]), 0
    outputs = expand_batch(dy, in_dims[0], info.batch_size).movedim(0, 1).flatten(1, 2)
    filters = batch_first(weight, in_dims[1]).flatten(0, 1)
    return operator(outputs, filters, sizes, *geometry, info.batch_size * groups).unflatten(1, (info.batch_size, -1)), 1


IMAGE_GRADIENT = define(
    Definition(
        "conv_image_gradient",
        f"(Tensor dy, Tensor weight, SymInt[] sizes, {_GEOMETRY}) -> Tensor",
        _check_image_gradient,
        _run_image_gradient,
        _image_gradient_gradients,
        vmap=_image_gradient_vmap_rule,
        autocast="lower",
    )
)


# -- the gradient with respect to filters -------------------------------------------------------------------


def _check_filter_gradient(
    x: Any, dy: Any, taps: Sequence[Any], stride: Numbers, padding: Numbers, dilation: Numbers, groups: int
) -> Result:
    """Return the shape, dtype, device and memory format, as a `Result`, of the gradient with respect to a convolution's
    filters.

    `x` [n, c, ...] is the convolution's image, `dy` [n, f, ...] the gradient with respect to its output. `taps` are the
    filter's spatial sizes. Raise ArgumentError if the arguments do not fit.
    """
    rank = len(taps)
    require_same_device({"x": x, "dy": dy})
    require_rank(x, "x", rank + 2)
    require_rank(dy, "dy", rank + 2)
    require_same_dtype({"x": x, "dy": dy})
    _check_options(rank, stride, padding, dilation, groups)
    n, channels, *image = x.shape
    f = dy.shape[1]
    expected = (n, f, *output_sizes(image, taps, stride, padding, dilation))
    if tuple(dy.shape) != expected:
        raise ArgumentError(
            f"dy has shape {tuple(dy.shape)}; outputs of x with filters of {tuple(taps)} are {expected}"
        )
    if f % groups or channels % groups:
        raise ArgumentError(f"groups={groups}: it must divide the {f} filters and {channels} channels")
    return Result((f, channels // groups, *taps), x.dtype, x.device, is_channels_last(x))


def _run_filter_gradient(expected: Result, x: Any, dy: Any, taps: Sequence[int], *options: Any) -> Any:
    """Return the gradient with respect to a convolution's filters, by one kernel; zeros without a kernel if `x` or `dy`
    is empty.

    `expected` is the `Result` of `_check_filter_gradient`. `x` is the image, `dy` the gradient with respect to the
    convolution's output. `taps` are the filter's spatial sizes. `options` are stride, padding, dilation and groups.
    """
    f, c, *_ = expected.shape
    if not x.numel() or not dy.numel():
        return expected.empty().zero_()
    dw = torch.empty((f, *taps, c), dtype=x.dtype, device=x.device)
    kernel = _gradient_kernel(conv_filter_gradient, tuple(taps), _gradient_key(x, options), x.device.type)
    kernel(*(as_kernel_argument(channels_innermost(t)) for t in (x, dy)), dw)
    return as_output(dw, expected.channels_last)


def _filter_gradient_gradients(gradient: Any, inputs: tuple[Any, ...], _: Any, needed: Sequence[bool]) -> Sequence[Any]:
    """Return (gradient of `x`, gradient of `dy`, None, ...): one entry for each argument of the operator
    conv_filter_gradient.

    `inputs` are the operator's arguments, `gradient` is with respect to its result. `needed` has a bool for each
    argument; arguments that need no gradient get None.
    """
    x, dy, taps, *options = inputs
    conv = getattr(torch.ops.tilewright, f"conv{len(taps)}d")
    sizes = list(x.shape[2:])
    dx = torch.ops.tilewright.conv_image_gradient(dy, gradient, sizes, *options) if needed[0] else None
    ddy = conv(x, gradient, None, *options) if needed[1] else None
    return dx, ddy, *(None,) * (len(inputs) - 2)


def _filter_gradient_vmap_rule(
    info: Any, in_dims: Sequence[int | None], x: Any, dy: Any, taps: Sequence[int], *options: Any
) -> tuple[Any, Any]:
    """Return (result, its vmap dimension 0) of the operator conv_filter_gradient under torch.vmap, by one call.

    The vmap dimension becomes more groups of channels. A tensor, `x` or `dy`, without a vmap dimension is broadcast.
    `in_dims` has the vmap dimension of each argument, or None; `info.batch_size` is its extent. `taps` are the filter's
    spatial sizes, `options` are stride, padding, dilation and groups.
    """
    *geometry, groups = options
    images, outputs = (
        expand_batch(tensor, dim, info.batch_size).movedim(0, 1).flatten(1, 2)
        for tensor, dim in zip((x, dy), in_dims[:2], strict=True)
    )
    gradients = torch.ops.tilewright.conv_filter_gradient(images, outputs, taps, *geometry, info.batch_size * groups)
    return gradients.unflatten(0, (info.batch_size, -1)), 0


FILTER_GRADIENT = define(
    Definition(
        "conv_filter_gradient",
        f"(Tensor x, Tensor dy, SymInt[] taps, {_GEOMETRY}) -> Tensor",
        _check_filter_gradient,
        _run_filter_gradient,
        _filter_gradient_gradients,
        vmap=_filter_gradient_vmap_rule,
        autocast="lower",
    )
)


def _gradient_key(tensor: Any, options: Sequence[Any]) -> tuple[Any, ...]:
    """Return the hashable tuple (element type, stride, padding pairs, dilation, groups) of a gradient kernel.

    The element type is the name for the dtype of `tensor` ("f16"). A padding pair is (before, after). `options` are
    stride, padding, dilation and groups, as operators take them.
    """
    stride, padding, dilation, groups = options
    kind = element_type_of(tensor, "x").name
    return kind, tuple(stride), _padding_pairs(padding, len(stride)), tuple(dilation), groups


@lru_cache(maxsize=512)
def _gradient_kernel(make: Any, taps: tuple[int, ...], options: tuple[Any, ...], target: str) -> Any:
    """Return the compiled kernel for a convolution's gradient on the device type `target` ("cpu"), from a cache.

    `make` is conv_image_gradient or conv_filter_gradient of `tilewright.kernels.conv_gradients`. `taps` are the
    filter's spatial sizes. `options` is a result of `_gradient_key`.
    """
    kind, stride, padding, dilation, groups = options
    kernel = make(taps, kind, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return compile(kernel, strict=True, target=target)
