"""Convolutions over one, two and three axes in torch's order of dimensions, [n, c, ...], with their gradients.

Results lie in memory as torch's do: channels last where the image or the filters do, contiguous otherwise. Kernels work
on channels last: a contiguous image is copied before, and a contiguous result after.
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
from tilewright.torch.activations import activated, before_activation
from tilewright.torch.batching import batch_first, expanded
from tilewright.torch.checks import (
    kind_of,
    require_bias,
    require_rank,
    require_same_dtype,
    require_shape,
    require_together,
)
from tilewright.torch.learning import as_called, packed
from tilewright.torch.library import Definition, Result, define, is_channels_last
from tilewright.torch.packed import layer_of

Numbers = Sequence[int]
"""One number for each axis; of paddings also two, before and after."""


def _pairs(padding: Numbers, rank: int) -> tuple[tuple[int, int], ...]:
    """(before, after) of each axis."""
    if len(padding) == rank:
        return tuple((n, n) for n in padding)
    return tuple(zip(padding[::2], padding[1::2], strict=True))


def _check_options(rank: int, stride: Numbers, padding: Numbers, dilation: Numbers, groups: int) -> None:
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
    image: Sequence[Any], taps: Sequence[Any], stride: Numbers, padding: Numbers, dilation: Numbers
) -> list[Any]:
    """The sizes of an output; raises where a filter does not fit into the image."""
    axes = zip(image, taps, stride, _pairs(padding, len(taps)), dilation, strict=True)
    sizes = [(size + sum(ends) - far * (r - 1) - 1) // step + 1 for size, r, step, ends, far in axes]
    if any(n < 1 for n in sizes):
        raise ArgumentError(
            f"x has the sizes {tuple(image)}: a filter of {tuple(taps)} does not fit, with this padding and dilation"
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
        """Stride, padding, dilation and groups, which gradients take too."""
        return self[:4]


def _check(rank: int, x: Any, weight: Any, bias: Any, *given: Any) -> Result:
    options = Options(*given)
    known_activation(options.activation)
    require_together({"x": x, "weight": weight, "bias": bias, "residual": options.residual})
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
    require_bias(bias, "bias", kind_of(x, "x"), (f,), "one for each filter")
    shape = (n, f, *output_sizes(image, taps, options.stride, options.padding, options.dilation))
    require_shape(options.residual, "residual", shape, "as the result")
    return Result(shape, x.dtype, x.device, is_channels_last(x) or is_channels_last(weight))


def _run(rank: int, expected: Result, x: Any, weight: Any, bias: Any, *given: Any) -> Any:
    options = Options(*given)
    residual = None if options.residual is None else options.residual.detach()
    if not x.numel() or not weight.numel():  # no sums, or sums of nothing
        result = expected.empty().zero_()
        for added in (None if bias is None else bias.detach().view(-1, *(1,) * rank), residual):
            result = result if added is None else result + added
        return expected.empty().copy_(activated(options.activation, result))
    key = _key(rank, options)
    layer = layer_of(weight, bias, key, partial(_layer, key), options.keep_packed, channels_innermost)
    image, added = (None if t is None else as_called(channels_innermost(t)) for t in (x, residual))
    return _laid_out(layer(image, added), expected.channels_last)


def _key(rank: int, options: Options) -> tuple[Any, ...]:
    """Return the options of a layer, without its weights, as a key."""
    stride, padding, dilation, groups = options.geometry
    return "conv", tuple(stride), _pairs(padding, rank), tuple(dilation), groups, options.activation


def _layer(key: tuple[Any, ...], weight: Any, bias: Any) -> Conv:
    names = ("stride", "padding", "dilation", "groups", "activation")
    return Conv(weight, bias, **dict(zip(names, key[1:], strict=True)))


def channels_innermost(tensor: Any) -> Any:
    """An image or a weight as kernels take it: [n, ..., c]."""
    return tensor.movedim(1, -1)


def _laid_out(result: Any, channels_last: bool) -> Any:
    """A kernel's result, [n, ..., c], as the operator gives it."""
    image = result.movedim(-1, 1)
    return image if channels_last else packed(image)


def _gradients(name: str, gradient: Any, inputs: tuple[Any, ...], _: Any, needed: Sequence[bool]) -> Sequence[Any]:
    x, weight, bias, *given = inputs
    options = Options(*given)
    ours, geometry = torch.ops.tilewright, options.geometry
    g = before_activation(
        options.activation,
        gradient,
        lambda: getattr(ours, name)(x, weight, bias, *geometry, None, False, options.residual),
    )
    dx = ours.conv_image_gradient(g, weight, list(x.shape[2:]), *geometry) if needed[0] else None
    dw = ours.conv_filter_gradient(x, g, list(weight.shape[2:]), *geometry) if needed[1] else None
    db = g.movedim(1, -1).flatten(0, -2).sum(0).to(bias.dtype) if needed[2] else None
    return dx, dw, db, *(None,) * (len(inputs) - 4), g if needed[-1] else None


def _batches(
    name: str, info: Any, in_dims: Sequence[int | None], x: Any, weight: Any, bias: Any, *given: Any
) -> tuple[Any, Any]:
    """Batched images are more images; batched filters are more groups."""
    options = Options(*given)
    of_x, of_weight, of_bias = in_dims[:3]
    of_residual = in_dims[-1] if len(given) == len(options) else None
    size, call = info.batch_size, getattr(torch.ops.tilewright, name)
    if of_weight is None and of_bias is None:
        images = expanded(x, of_x, size)
        residual = None if options.residual is None else expanded(options.residual, of_residual, size).flatten(0, 1)
        result = call(images.flatten(0, 1), weight, bias, *options._replace(residual=residual))
        return result.unflatten(0, images.shape[:2]), 0
    images = expanded(x, of_x, size).movedim(0, 1).flatten(1, 2)
    filters = expanded(weight, of_weight, size).flatten(0, 1)
    added = None if bias is None else expanded(bias, of_bias, size).flatten(0, 1)
    residual = None
    if options.residual is not None:
        residual = expanded(options.residual, of_residual, size).movedim(0, 1).flatten(1, 2)
    more = options._replace(groups=size * options.groups, keep_packed=False, residual=residual)
    return call(images, filters, added, *more).unflatten(1, (size, -1)), 1


_GEOMETRY = "int[] stride, int[] padding, int[] dilation, int groups"
_ENDING = "str? activation=None, bool keep_packed=False, Tensor? residual=None"
CONV = {
    rank: define(
        Definition(
            f"conv{rank}d",
            f"(Tensor x, Tensor weight, Tensor? bias, {_GEOMETRY}, {_ENDING}) -> Tensor",
            partial(_check, rank),
            partial(_run, rank),
            partial(_gradients, f"conv{rank}d"),
            vmap=partial(_batches, f"conv{rank}d"),
            autocast="lower",
        )
    )
    for rank in (1, 2, 3)
}


# -- the gradient of images -------------------------------------------------------------------------------


def _check_image_gradient(
    dy: Any, weight: Any, sizes: Sequence[Any], stride: Numbers, padding: Numbers, dilation: Numbers, groups: int
) -> Result:
    rank = len(sizes)
    require_together({"dy": dy, "weight": weight})
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
    n, c, *image = expected.shape
    if not dy.numel() or not weight.numel():
        return expected.empty().zero_()
    goal = torch.empty((n, *image, c), dtype=dy.dtype, device=dy.device)
    kernel = _gradient_kernel(conv_image_gradient, tuple(weight.shape[2:]), _named(dy, options), dy.device.type)
    kernel(*(as_called(channels_innermost(t)) for t in (dy, weight)), goal)
    return _laid_out(goal, expected.channels_last)


def _image_gradient_gradients(gradient: Any, inputs: tuple[Any, ...], _: Any, needed: Sequence[bool]) -> Sequence[Any]:
    dy, weight, sizes, *options = inputs
    forward = getattr(torch.ops.tilewright, f"conv{len(sizes)}d")
    taps = list(weight.shape[2:])
    of_dy = forward(gradient, weight, None, *options) if needed[0] else None
    of_weight = torch.ops.tilewright.conv_filter_gradient(gradient, dy, taps, *options) if needed[1] else None
    return of_dy, of_weight, *(None,) * (len(inputs) - 2)


def _image_gradient_batches(
    info: Any, in_dims: Sequence[int | None], dy: Any, weight: Any, sizes: Sequence[int], *options: Any
) -> tuple[Any, Any]:
    *ends, groups = options
    call = torch.ops.tilewright.conv_image_gradient
    if in_dims[1] is None:
        outputs = batch_first(dy, in_dims[0])
        return call(outputs.flatten(0, 1), weight, sizes, *options).unflatten(0, outputs.shape[:2]), 0
    outputs = expanded(dy, in_dims[0], info.batch_size).movedim(0, 1).flatten(1, 2)
    filters = batch_first(weight, in_dims[1]).flatten(0, 1)
    return call(outputs, filters, sizes, *ends, info.batch_size * groups).unflatten(1, (info.batch_size, -1)), 1


IMAGE_GRADIENT = define(
    Definition(
        "conv_image_gradient",
        f"(Tensor dy, Tensor weight, SymInt[] sizes, {_GEOMETRY}) -> Tensor",
        _check_image_gradient,
        _run_image_gradient,
        _image_gradient_gradients,
        vmap=_image_gradient_batches,
        autocast="lower",
    )
)


# -- the gradient of filters ------------------------------------------------------------------------------


def _check_filter_gradient(
    x: Any, dy: Any, taps: Sequence[Any], stride: Numbers, padding: Numbers, dilation: Numbers, groups: int
) -> Result:
    rank = len(taps)
    require_together({"x": x, "dy": dy})
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
    f, c, *_ = expected.shape
    if not x.numel() or not dy.numel():
        return expected.empty().zero_()
    goal = torch.empty((f, *taps, c), dtype=x.dtype, device=x.device)
    kernel = _gradient_kernel(conv_filter_gradient, tuple(taps), _named(x, options), x.device.type)
    kernel(*(as_called(channels_innermost(t)) for t in (x, dy)), goal)
    return _laid_out(goal, expected.channels_last)


def _filter_gradient_gradients(gradient: Any, inputs: tuple[Any, ...], _: Any, needed: Sequence[bool]) -> Sequence[Any]:
    x, dy, taps, *options = inputs
    forward = getattr(torch.ops.tilewright, f"conv{len(taps)}d")
    sizes = list(x.shape[2:])
    of_x = torch.ops.tilewright.conv_image_gradient(dy, gradient, sizes, *options) if needed[0] else None
    of_dy = forward(x, gradient, None, *options) if needed[1] else None
    return of_x, of_dy, *(None,) * (len(inputs) - 2)


def _filter_gradient_batches(
    info: Any, in_dims: Sequence[int | None], x: Any, dy: Any, taps: Sequence[int], *options: Any
) -> tuple[Any, Any]:
    *ends, groups = options
    images, outputs = (
        expanded(t, d, info.batch_size).movedim(0, 1).flatten(1, 2) for t, d in zip((x, dy), in_dims[:2], strict=True)
    )
    gradients = torch.ops.tilewright.conv_filter_gradient(images, outputs, taps, *ends, info.batch_size * groups)
    return gradients.unflatten(0, (info.batch_size, -1)), 0


FILTER_GRADIENT = define(
    Definition(
        "conv_filter_gradient",
        f"(Tensor x, Tensor dy, SymInt[] taps, {_GEOMETRY}) -> Tensor",
        _check_filter_gradient,
        _run_filter_gradient,
        _filter_gradient_gradients,
        vmap=_filter_gradient_batches,
        autocast="lower",
    )
)


def _named(tensor: Any, options: Sequence[Any]) -> tuple[Any, ...]:
    """Options of a gradient's kernel, as a key: element type, stride, padding, dilation, groups."""
    stride, padding, dilation, groups = options
    kind = kind_of(tensor, "x").name
    return kind, tuple(stride), _pairs(padding, len(stride)), tuple(dilation), groups


@lru_cache(maxsize=512)
def _gradient_kernel(make: Any, taps: tuple[int, ...], options: tuple[Any, ...], target: str) -> Any:
    kind, stride, padding, dilation, groups = options
    kernel = make(taps, kind, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return compile(kernel, strict=True, target=target)
