"""Convolutions over one, two or three axes as JAX functions.

Their gradients are convolutions too. For the gradient with respect to the image, the output's gradient is convolved
(with zeros between its elements if there is a stride) by the flipped filters, whose channels and features are swapped.
For that with respect to the filters, the image is convolved by the output's gradient, with the image's channels as
batch, and with stride and dilation swapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewright.compiler.compiled import Compiled
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.jax.entries import XlaBuffer
from tilewright.jax.operators import OperatorOptions, array_stand_in, differentiable, jitted_operator
from tilewright.jax.registry import with_common_varying_axes
from tilewright.kernels.conv import conv
from tilewright.ops.arrays import dtype_of
from tilewright.ops.convolutions import Conv, Conv1d, Conv2d, Conv3d, kernel_sizes

_OPTIONS = ("stride", "padding", "dilation", "groups", "activation", "precision", "accumulate")
"""The options that `tilewright.Conv` and `_Convolution` both have, under the same names."""
_REFUSED_OPTIONS = {"dynamic": "shapes are known when JAX traces", "target": "it runs where JAX does"}
"""{option of `tilewright.Conv` that JAX functions do not take: why}."""


def conv1d(x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
    """Return activation(convolution of x[n, w, c] by the filters w[f, s, c / groups] + bias[f]), an array [n, output
    width, f].

    It is `tilewright.conv1d` as a JAX function. `bias` may be None; `options` are those of `conv2d`. Raise
    ArgumentError if arrays or options do not fit.
    """
    return _convolve(Conv1d, x, w, bias, options)


def conv2d(x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
    """Return activation(convolution of x[n, h, w, c] by the filters w[f, r, s, c / groups] + bias[f]).

    The result is [n, output height, output width, f]. It is `tilewright.conv2d` as a JAX function, for jit, vmap,
    shard_map and grad; its gradients are convolutions too. `bias` may be None. `options` are those of `tilewright.Conv`
    (stride, padding, dilation, groups, activation, ...), except `dynamic` and `target`. Under vmap it is one
    convolution of more images, or one call for a batch of convolutions. Raise ArgumentError if arrays or options do not
    fit.

    >>> import jax, jax.numpy as jnp
    >>> x, w = jnp.ones((1, 3, 3, 1)), jnp.ones((1, 2, 2, 1))
    >>> jax.jit(conv2d)(x, w).reshape(-1)
    Array([4., 4., 4., 4.], dtype=float32)
    >>> jax.grad(lambda x: conv2d(x, w).sum())(x)[0, :, :, 0]
    Array([[1., 2., 1.],
           [2., 4., 2.],
           [1., 2., 1.]], dtype=float32)
    """
    return _convolve(Conv2d, x, w, bias, options)


def conv3d(x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
    """Return activation(convolution of x[n, d, h, w, c] by the filters w[f, t, r, s, c / groups] + bias[f]).

    The result is [n, output depth, output height, output width, f]. It is `tilewright.conv3d` as a JAX function. `bias`
    may be None; `options` are those of `conv2d`. Raise ArgumentError if arrays or options do not fit.
    """
    return _convolve(Conv3d, x, w, bias, options)


def _convolve(layer: type[Conv], x: Any, w: Any, bias: Any, options: dict[str, Any]) -> Any:
    """Return activation(convolution of the JAX array `x` by the filters `w` + `bias`), computed by kernels of the class
    `layer`.

    `layer` is Conv1d, Conv2d or Conv3d. `bias` may be None; it is converted to the accumulator's type. `options` are
    keyword arguments of the class. Raise ArgumentError for the options `dynamic` and `target`, and if shapes or options
    do not fit.
    """
    for name, why in _REFUSED_OPTIONS.items():
        if options.get(name) is not None:
            raise ArgumentError(f"{name}={options[name]!r}: {why}; leave it out")
    rank = layer.rank
    assert rank is not None
    image, filters = (array_stand_in(a, name, (rank + 2,)) for a, name in ((x, "x"), (w, "w")))
    added = None if bias is None else array_stand_in(bias, "bias", (1,))
    checked_layer = layer(filters, added, **options)
    checked_layer.sizes(image)  # raises if image and filters do not fit
    convolution = _Convolution(
        layer=layer,
        kind=dtype_of(image, "x"),
        out=checked_layer.out,
        **_options_of(checked_layer),
    )
    if bias is None:
        return jitted_operator(convolution)(*with_common_varying_axes((x, w)))
    return jitted_operator(convolution)(
        *with_common_varying_axes((x, w, jnp.asarray(bias).astype(convolution.kind.accumulator.numpy)))
    )


def _options_of(convolution: Conv | _Convolution) -> dict[str, Any]:
    """Return {name: value} of a convolution's stride, padding, dilation, groups, activation, precision and
    accumulate."""
    return {name: getattr(convolution, name) for name in _OPTIONS}


@dataclass(frozen=True, kw_only=True)
class _Convolution(OperatorOptions):
    """The options of a convolution of an image by filters."""

    layer: type[Conv]
    """The class (Conv1d, Conv2d or Conv3d) whose kernels compute it."""
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def ranks(self) -> tuple[int, int, int]:
        """Return (rank of images, rank of filters, 1), without batch dimensions. The 1 is the rank of the bias."""
        return len(self.stride) + 2, len(self.stride) + 2, 1

    def result_shape(self, arrays: Sequence[XlaBuffer]) -> tuple[int, ...]:
        """Return the shape (n, ..., f) of the result. `arrays` has images, filters and perhaps a bias, without batch
        dimensions.

        Raise ArgumentError if they do not fit.
        """
        x, w, *bias = (np.empty(a.shape, a.dtype) for a in arrays)
        layer = self.layer(w, *bias, out_dtype=self.out, **_options_of(self))
        return (x.shape[0], *layer.sizes(x), w.shape[0])

    def compile(self, arrays: Sequence[XlaBuffer], target: str) -> tuple[Compiled, Sequence[str]]:
        """Return (the kernel compiled for the shapes and types in `arrays` on `target`, the names of its inputs).

        `arrays` has images, filters and perhaps a bias, each perhaps with a batch dimension in front. `target` is one
        of `platforms.TARGETS`. The names are in the order of `arrays`.
        """
        batch, (x, w, *bias) = self.members_of(arrays)
        names = self.layer.names[: len(arrays)]
        sizes, batched = kernel_sizes(x.shape[:-1], w.shape, self.groups), []
        if prod(batch) > 1:  # otherwise the batch dimension is left out
            sizes["B"] = batch[0]
            batched = [name for name, a, r in zip(names, arrays, self.ranks, strict=False) if len(a.shape) > r]
        kernel = conv(
            w.shape[1:-1], self.kind.name, self.out.name, batched=batched, bias=bool(bias), **_options_of(self)
        )
        return kernel_for(kernel, sizes, target=target), names

    def gradients(self, first: Any, second: Any, sum_gradient: Any) -> tuple[Any, Any]:
        """Return (gradient with respect to the image, gradient with respect to the filters), each by a convolution.

        `first` is the image, `second` the filters. `sum_gradient` is the gradient with respect to the convolution's
        result before the activation. If the image or `sum_gradient` has no elements, both gradients are zeros and
        nothing is called.
        """
        if 0 in sum_gradient.shape or 0 in first.shape:
            dx, dw = (jnp.zeros(a.shape, self.out.numpy) for a in (first, second))
            return dx, dw
        return (
            _image_gradient(self, first.shape, second, sum_gradient),
            _filter_gradient(self, first, second.shape, sum_gradient),
        )


# -- derivatives ----------------------------------------------------------------------------------------------


def _image_gradient(options: _Convolution, shape: tuple[int, ...], w: Any, gradient: Any) -> Any:
    """Return the gradient with respect to the image, an array of shape `shape`, by a convolution with stride 1.

    `options` and the filters `w` are those of the forward convolution; `gradient` is the gradient with respect to its
    result. `gradient` gets stride - 1 zeros between its elements and zeros around them, and is convolved by the
    filters. For this, the taps are flipped along each axis, and channels and features are swapped.
    """
    taps, groups = w.shape[1:-1], options.groups
    axes = zip(shape[1:-1], gradient.shape[1:-1], taps, options.padding, options.stride, options.dilation, strict=True)
    padding = []
    for size, count, k, (before, _), stride, dilation in axes:
        start = dilation * (k - 1) - before
        padding.append((start, size - ((count - 1) * stride + 1) - start + dilation * (k - 1), stride - 1))
    padded = jax.lax.pad(gradient, jnp.zeros((), gradient.dtype), [(0, 0, 0), *padding, (0, 0, 0)])
    grouped = w.reshape(groups, -1, *w.shape[1:])  # group, feature, taps, channel
    flipped = jnp.flip(jnp.swapaxes(grouped, 1, -1), range(2, 2 + len(taps)))
    none, ones = ((0, 0),) * len(taps), (1,) * len(taps)
    return differentiable(replace(options, stride=ones, padding=none))(
        padded, flipped.reshape(-1, *taps, grouped.shape[1])
    )


def _filter_gradient(options: _Convolution, x: Any, shape: tuple[int, ...], gradient: Any) -> Any:
    """Return the gradient with respect to the filters, an array of shape `shape`, by convolutions of the image `x`.

    `options` are those of the forward convolution. `gradient` is the gradient with respect to its result. The image is
    convolved by `gradient`, with stride and dilation swapped. Each group is a separate convolution, under vmap.
    """
    groups, taps = options.groups, shape[1:-1]
    swapped = replace(options, stride=options.dilation, dilation=options.stride, groups=1)

    def gradient_of_group(image: Any, output_gradient: Any) -> Any:
        """Return the gradient [f, ..., c] with respect to the filters of one group.

        `image` [n, ..., c] has the group's channels, `output_gradient` [n, ..., f] the gradient of its output features.
        The convolution takes them as an image [c, ..., n] and filters [f, ..., n]. Its result is cropped to the
        filter's taps.
        """
        sums = differentiable(swapped)(jnp.swapaxes(image, 0, -1), jnp.swapaxes(output_gradient, 0, -1))
        cropped = sums[(slice(None), *(slice(0, k) for k in taps))]  # with a stride there may be more than the taps
        return jnp.swapaxes(cropped, 0, -1)

    if groups == 1:
        return gradient_of_group(x, gradient)
    grouped = (a.reshape(*a.shape[:-1], groups, -1) for a in (x, gradient))
    return jax.vmap(gradient_of_group, in_axes=-2)(*grouped).reshape(shape)
