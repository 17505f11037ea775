"""Convolution over one, two or three axes as functions of JAX.

The derivatives are convolutions too. That by the image has the gradient for an image, with zeros between its elements
for a stride, and the filters flipped, their channels and features exchanged. That by the filters has the image's
channels for a batch and the gradient for filters, stride and dilation exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewright.errors import ArgumentError
from tilewright.jax.operators import OperatorOptions, array_stand_in, call_kernel, differentiable, jitted_operator
from tilewright.jax.registry import with_common_varying_axes
from tilewright.ops.arrays import dtype_of
from tilewright.ops.convolutions import Conv, Conv1d, Conv2d, Conv3d

_OPTIONS = ("stride", "padding", "dilation", "groups", "activation", "precision", "accumulate")
"""The options that a layer and a convolution here have alike."""
_ELSEWHERE = {"dynamic": "shapes are known when JAX traces", "target": "it runs where JAX does"}


def conv1d(x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
    """`tilewright.conv1d` as a function of JAX: x[n, w, c], w[f, s, c]; see `conv2d`."""
    return _convolved(Conv1d, x, w, bias, options)


def conv2d(x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
    """`tilewright.conv2d` as a function of JAX: x[n, h, w, c], w[f, r, s, c], with the options of `tilewright.Conv`.

    jit, vmap and shard_map take it, and it has derivatives by all arrays, which are convolutions too. Under vmap over
    the image it is one convolution of a larger batch.

    >>> import jax, jax.numpy as jnp
    >>> x, w = jnp.ones((1, 3, 3, 1)), jnp.ones((1, 2, 2, 1))
    >>> jax.jit(conv2d)(x, w).reshape(-1)
    Array([4., 4., 4., 4.], dtype=float32)
    >>> jax.grad(lambda x: conv2d(x, w).sum())(x)[0, :, :, 0]
    Array([[1., 2., 1.],
           [2., 4., 2.],
           [1., 2., 1.]], dtype=float32)
    """
    return _convolved(Conv2d, x, w, bias, options)


def conv3d(x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
    """`tilewright.conv3d` as a function of JAX: x[n, d, h, w, c], w[f, t, r, s, c]; see `conv2d`."""
    return _convolved(Conv3d, x, w, bias, options)


def _convolved(layer: type[Conv], x: Any, w: Any, bias: Any, options: dict[str, Any]) -> Any:
    for name, why in _ELSEWHERE.items():
        if options.get(name) is not None:
            raise ArgumentError(f"{name}={options[name]!r}: {why}; leave it out")
    rank = layer.rank
    assert rank is not None
    image, filters = (array_stand_in(a, name, (rank + 2,)) for a, name in ((x, "x"), (w, "w")))
    added = None if bias is None else array_stand_in(bias, "bias", (1,))
    described = layer(filters, added, **options)
    described.sizes(image)  # raises where they do not go together
    told = _Convolution(
        layer=layer,
        kind=dtype_of(image, "x"),
        out=described.out,
        **_options_of(described),
    )
    if bias is None:
        return jitted_operator(told)(*with_common_varying_axes((x, w)))
    return jitted_operator(told)(
        *with_common_varying_axes((x, w, jnp.asarray(bias).astype(told.kind.accumulator.numpy)))
    )


def _options_of(convolution: Conv | _Convolution) -> dict[str, Any]:
    """The options of a convolution, by name."""
    return {name: getattr(convolution, name) for name in _OPTIONS}


@dataclass(frozen=True, kw_only=True)
class _Convolution(OperatorOptions):
    """A convolution of an image by filters; `layer` is the class whose kernels compute it."""

    layer: type[Conv]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    def call(self, *arrays: Any) -> Any:
        x, w, *_ = arrays
        image, filters, *added = (np.empty(a.shape, a.dtype) for a in arrays)
        layer = self.layer(filters, *added, out_dtype=self.out, **_options_of(self))
        layer.constant = False  # XLA passes the filters at every call
        shape = (x.shape[0], *layer.sizes(image), w.shape[0])
        if 0 in shape:
            return jnp.zeros(shape, self.out.numpy)
        kernel, _ = layer.kernel(image)
        return call_kernel(kernel, dict(zip(layer.names, arrays, strict=False)), layer.names[-1], shape, self.out)

    def merged(self, run: Any, size: int, has_batch: Sequence[bool], arrays: Sequence[Any]) -> Any:
        x, *others = arrays
        if any(has_batch[1:]):  # a kernel has one set of filters
            return None
        results = run(x.reshape(-1, *x.shape[2:]), *others)
        return results.reshape(*x.shape[:2], *results.shape[1:])

    def gradients(self, first: Any, second: Any, outer: Any) -> tuple[Any, Any]:
        if 0 in outer.shape or 0 in first.shape:
            by_image, by_filters = (jnp.zeros(a.shape, self.out.numpy) for a in (first, second))
            return by_image, by_filters
        return _by_image(self, first.shape, second, outer), _by_filters(self, first, second.shape, outer)


# -- derivatives ----------------------------------------------------------------------------------------------


def _by_image(options: _Convolution, shape: tuple[int, ...], w: Any, gradient: Any) -> Any:
    taps, groups = w.shape[1:-1], options.groups
    axes = zip(shape[1:-1], gradient.shape[1:-1], taps, options.padding, options.stride, options.dilation, strict=True)
    ends = []
    for size, count, k, (before, _), step, far in axes:
        start = far * (k - 1) - before
        ends.append((start, size - ((count - 1) * step + 1) - start + far * (k - 1), step - 1))
    inner = jax.lax.pad(gradient, jnp.zeros((), gradient.dtype), [(0, 0, 0), *ends, (0, 0, 0)])
    parted = w.reshape(groups, -1, *w.shape[1:])  # group, feature, taps, channel
    turned = jnp.flip(jnp.swapaxes(parted, 1, -1), range(2, 2 + len(taps)))
    none, ones = ((0, 0),) * len(taps), (1,) * len(taps)
    return differentiable(replace(options, stride=ones, padding=none))(
        inner, turned.reshape(-1, *taps, parted.shape[1])
    )


def _by_filters(options: _Convolution, x: Any, shape: tuple[int, ...], gradient: Any) -> Any:
    groups, taps = options.groups, shape[1:-1]
    exchanged = replace(options, stride=options.dilation, dilation=options.stride, groups=1)

    def of_group(image: Any, outer: Any) -> Any:  # batch and channels change places: [c, ..., n] and [f, ..., n]
        sums = differentiable(exchanged)(jnp.swapaxes(image, 0, -1), jnp.swapaxes(outer, 0, -1))
        cut = sums[(slice(None), *(slice(0, k) for k in taps))]  # a stride may leave places that no tap reaches
        return jnp.swapaxes(cut, 0, -1)

    if groups == 1:
        return of_group(x, gradient)
    parted = (a.reshape(*a.shape[:-1], groups, -1) for a in (x, gradient))
    return jax.vmap(of_group, in_axes=-2)(*parted).reshape(shape)
