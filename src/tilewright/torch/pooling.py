"""Pooling operators over one, two and three axes in torch's order of dimensions, [n, c, ...].

`max_pool1d` to `max_pool3d` take the largest element of each window; they have no backward. `adaptive_avg_pool1d` to
`adaptive_avg_pool3d` take the mean of each channel of an image. Results have the memory format of the image: channels
last, or contiguous. Types are those of the image, also under autocast, as torch's are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any

import torch

from tilewright.compiler.kernels import compile
from tilewright.errors import ArgumentError
from tilewright.kernels.pooling import image_mean, pooling
from tilewright.torch.batching import batch_first
from tilewright.torch.checks import require_float, require_rank, require_same_device
from tilewright.torch.convolutions import Numbers, as_output, channels_innermost, output_sizes
from tilewright.torch.learning import as_kernel_argument, as_reshaped_argument
from tilewright.torch.library import Definition, Result, define, is_channels_last


def why_no_max_pool(ceil_mode: bool, return_indices: bool) -> str | None:
    """Return the reason why there is no operator for a max pooling with these options; None if there is one."""
    if ceil_mode:
        return "ceil_mode=True: sizes are rounded down here; use torch's own max pooling"
    if return_indices:
        return "return_indices=True: only values are computed here; use torch's own max pooling"
    return None


def why_no_average_pool(output_size: Any) -> str | None:
    """Return the reason why there is no operator for an adaptive average pooling to `output_size`; None if there is
    one.

    There is one if `output_size` is 1, or a sequence of ones. The length of the sequence is not checked.
    """
    sizes = output_size if isinstance(output_size, Sequence) else (output_size,)
    if all(n == 1 for n in sizes):
        return None
    return f"output_size={output_size}: it must be 1 along each axis, the mean of the whole image; use torch's own"


# -- the largest element of each window -------------------------------------------------------------------


@lru_cache(maxsize=512)
def _max_kernel(window: Numbers, options: tuple[Numbers, ...], kind: str, target: str) -> Any:
    """Return the compiled kernel of a max pooling for the device type `target` ("cpu"), from a cache.

    `window` has the window's extents. `options` are (stride, padding, dilation), each with a number for each axis.
    `kind` is the element type ("f16", ...).
    """
    stride, padding, dilation = options
    kernel = pooling("max", window, kind, stride=stride, padding=padding, dilation=dilation)
    return compile(kernel, strict=True, target=target)


def _check_window(rank: int, kernel_size: Numbers, stride: Numbers, padding: Numbers, dilation: Numbers) -> None:
    """Raise ArgumentError unless the options of a max pooling fit an image with `rank` spatial axes.

    Each option must have an integer for each axis: of at least 1, but for `padding` from 0 to half of the window's
    extent, rounded down.
    """
    for name, value in (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation)):
        if len(value) != rank or any(n < 1 for n in value):
            raise ArgumentError(f"{name}={list(value)}: {rank} integers of at least 1, one for each axis")
    most = [extent // 2 for extent in kernel_size]
    if len(padding) != rank or any(not 0 <= n <= limit for n, limit in zip(padding, most, strict=True)):
        raise ArgumentError(f"padding={list(padding)}: {rank} integers from 0 to half of the window, here {most}")


def _check_max_pool(
    rank: int, x: Any, kernel_size: Numbers, stride: Numbers, padding: Numbers, dilation: Numbers
) -> Result:
    """Return the shape, dtype, device and memory format of a max pooling's result, as a `Result`.

    `x` [n, c, ...] has `rank` spatial axes; `kernel_size` has the window's extents. Raise ArgumentError if the
    arguments do not fit.
    """
    require_same_device({"x": x})
    require_float(x, "x")
    require_rank(x, "x", rank + 2)
    _check_window(rank, kernel_size, stride, padding, dilation)
    n, channels, *image = x.shape
    sizes = output_sizes(image, kernel_size, stride, padding, dilation, "window")
    return Result((n, channels, *sizes), x.dtype, x.device, is_channels_last(x))


def _run_max_pool(expected: Result, x: Any, kernel_size: Numbers, *options: Numbers) -> Any:
    """Return the largest element of each window of the real tensor x[n, c, ...], by one kernel.

    `expected` is the `Result` of `_check_max_pool`. `kernel_size` has the window's extents; `options` are stride,
    padding and dilation. If there is no image or no channel, return an empty tensor without a kernel.
    """
    n, channels, *sizes = expected.shape
    if not n or not channels:
        return expected.empty()
    lists = tuple(tuple(value) for value in options)
    kernel = _max_kernel(tuple(kernel_size), lists, require_float(x, "x").name, x.device.type)
    y = torch.empty((n, *sizes, channels), dtype=x.dtype, device=x.device)
    kernel(as_kernel_argument(channels_innermost(x)), y)
    return as_output(y, expected.channels_last)


def _pool_vmap_rule(name: str, info: Any, in_dims: Sequence[int | None], x: Any, *options: Any) -> tuple[Any, Any]:
    """Return (result with the vmap dimension first, 0) of the pooling operator `name` under torch.vmap, by one call.

    The vmap dimension of `x`, `in_dims[0]`, is merged with the dimension n of images. `options` are the operator's
    other arguments. `info` is not used.
    """
    images = batch_first(x, in_dims[0])
    result = getattr(torch.ops.tilewright, name)(images.flatten(0, 1), *options)
    return result.unflatten(0, images.shape[:2]), 0


MAX_POOL = {
    rank: define(
        Definition(
            f"max_pool{rank}d",
            "(Tensor x, int[] kernel_size, int[] stride, int[] padding, int[] dilation) -> Tensor",
            partial(_check_max_pool, rank),
            _run_max_pool,
            vmap=partial(_pool_vmap_rule, f"max_pool{rank}d"),
        )
    )
    for rank in (1, 2, 3)
}


# -- the mean of each image -------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _mean_kernel(kind: str, layout: str, target: str) -> Any:
    """Return the compiled kernel of the mean of images for the device type `target` ("cpu"), from a cache.

    `kind` is the element type ("f16", ...), `layout` is "NWC" or "NCW", with the pixels of an image along W.
    """
    return compile(image_mean(kind, layout), strict=True, target=target)


def _check_average_pool(rank: int, x: Any, output_size: Numbers) -> Result:
    """Return the shape [n, c, 1, ...], dtype, device and memory format of the mean of images, as a `Result`.

    `x` [n, c, ...] must have `rank` spatial axes, none of extent 0. `output_size` must have a 1 for each axis. Raise
    ArgumentError if the arguments do not fit.
    """
    require_same_device({"x": x})
    require_float(x, "x")
    require_rank(x, "x", rank + 2)
    why = why_no_average_pool(output_size)
    if why is not None or len(output_size) != rank:
        raise ArgumentError(why or f"output_size={list(output_size)}: {rank} integers, one for each axis")
    n, channels, *image = x.shape
    if any(size < 1 for size in image):
        raise ArgumentError(f"x has shape {tuple(x.shape)}: an image has a pixel along each axis")
    return Result((n, channels, *(1,) * rank), x.dtype, x.device, is_channels_last(x))


def _run_average_pool(expected: Result, x: Any, output_size: Numbers) -> Any:
    """Return the mean of each channel of each image of the real tensor x[n, c, ...], by one kernel.

    `expected` is the `Result` of `_check_average_pool`. `output_size` is not used: it has a 1 for each axis. If there
    is no image or no channel, return an empty tensor without a kernel.
    """
    result = expected.empty()
    n, channels = expected.shape[:2]
    if not n or not channels:
        return result
    layout = "NWC" if expected.channels_last else "NCW"
    images = channels_innermost(x) if expected.channels_last else x
    shape = (n, -1, channels) if expected.channels_last else (n, channels, -1)
    kernel = _mean_kernel(require_float(x, "x").name, layout, x.device.type)
    kernel(as_reshaped_argument(images, shape), result.view(n, channels))
    return result


def _average_pool_gradients(gradient: Any, inputs: tuple[Any, ...], _: Any, __: Sequence[bool]) -> Sequence[Any]:
    """Return (dx, None), the gradients of the arguments `inputs` of the mean of images. All pixels of a channel have
    the same gradient.

    `gradient` is with respect to the result. torch computes dx, so that it can be differentiated again.
    """
    x = inputs[0]
    return (gradient / prod(x.shape[2:])).expand(x.shape), None


ADAPTIVE_AVG_POOL = {
    rank: define(
        Definition(
            f"adaptive_avg_pool{rank}d",
            "(Tensor x, int[] output_size) -> Tensor",
            partial(_check_average_pool, rank),
            _run_average_pool,
            _average_pool_gradients,
            vmap=partial(_pool_vmap_rule, f"adaptive_avg_pool{rank}d"),
        )
    )
    for rank in (1, 2, 3)
}
