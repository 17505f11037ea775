"""Convolution over one, two or three axes as functions of JAX.

The derivatives are convolutions too. That by the image has the gradient for an image, with zeros between its elements
for a stride, and the filters flipped, their channels and features exchanged. That by the filters has the image's
channels for a batch and the gradient for filters, stride and dilation exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DType
from tilewright.jax.operators import activation_gradient, array_like, call_kernel, common_type
from tilewright.jax.registry import alike
from tilewright.ops.arrays import dtype_of
from tilewright.ops.convolutions import Conv, Conv1d, Conv2d, Conv3d

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
    image, filters = (array_like(a, name, (rank + 2,)) for a, name in ((x, "x"), (w, "w")))
    added = None if bias is None else array_like(bias, "bias", (1,))
    made = layer(filters, added, **options)
    made.sizes(image)  # raises where they do not go together
    told = _Options(
        layer,
        dtype_of(image, "x"),
        made.out,
        made.stride,
        made.padding,
        made.dilation,
        made.groups,
        made.activation,
        made.precision,
        made.accumulate,
    )
    if bias is None:
        return _convolution(told)(*alike((x, w)))
    return _convolution(told)(*alike((x, w, jnp.asarray(bias).astype(told.kind.accumulator.numpy))))


@dataclass(frozen=True)
class _Options:
    """A convolution, apart from its arrays."""

    layer: type[Conv]
    kind: DType
    out: DType
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    activation: str | None
    precision: str | None
    accumulate: str | None


@lru_cache(maxsize=256)
def _convolution(options: _Options) -> Any:
    """The convolution as JAX compiles it."""
    return jax.jit(_derivable(options))


@lru_cache(maxsize=256)
def _derivable(options: _Options) -> Any:
    """The convolution with its derivatives."""
    run = jax.custom_vjp(_batchable(options))

    def forward(*arrays: Any) -> Any:
        return run(*arrays), arrays

    run.defvjp(forward, partial(_gradients, options))
    return run


@lru_cache(maxsize=256)
def _batchable(options: _Options) -> Any:
    """The convolution, which vmap over the image makes one of a larger batch."""
    single = partial(_called, options)
    run = custom_vmap(single)

    def batched(size: int, has_batch: list[bool], x: Any, *others: Any) -> tuple[Any, bool]:
        if any(has_batch[1:]):  # a kernel has one set of filters: the handler goes through the batch
            return jax.vmap(single, [0 if has else None for has in has_batch])(x, *others), True
        found = run(x.reshape(-1, *x.shape[2:]), *others)
        return found.reshape(*x.shape[:2], *found.shape[1:]), True

    run.def_vmap(batched)
    return run


def _called(options: _Options, x: Any, w: Any, *bias: Any) -> Any:
    image, filters, *added = (np.empty(a.shape, a.dtype) for a in (x, w, *bias))
    layer = options.layer(
        filters,
        *added,
        stride=options.stride,
        padding=options.padding,
        dilation=options.dilation,
        groups=options.groups,
        activation=options.activation,
        out_dtype=options.out,
        precision=options.precision,
        accumulate=options.accumulate,
    )
    layer.constant = False  # XLA passes the filters at every call
    shape = (x.shape[0], *layer.sizes(image), w.shape[0])
    if 0 in shape:
        return jnp.zeros(shape, options.out.numpy)
    kernel, _ = layer.kernel(image)
    return call_kernel(kernel, dict(zip(layer.names, (x, w, *bias), strict=False)), layer.names[-1], shape, options.out)


# -- derivatives ----------------------------------------------------------------------------------------------


def _gradients(options: _Options, kept: Any, gradient: Any) -> tuple[Any, ...]:
    x, w, *bias = kept
    kind = options.kind
    sums = replace(options, activation=None, out=kind.accumulator, accumulate=None)
    inner = activation_gradient(options.activation, lambda: _derivable(sums)(x, w, *bias), gradient)
    common = common_type(kind, gradient)
    plain = replace(sums, kind=common, out=kind, precision=options.precision if common is kind else None)
    image, filters, outer = (a.astype(common.numpy) for a in (x, w, inner))
    if 0 in inner.shape or 0 in x.shape:
        by_arrays = [jnp.zeros(a.shape, a.dtype) for a in (x, w)]
    else:
        by_arrays = [_by_image(plain, x.shape, filters, outer), _by_filters(plain, image, w.shape, outer)]
    added = [inner.reshape(-1, w.shape[0]).astype(kind.accumulator.numpy).sum(0) for _ in bias]
    return (*by_arrays, *added)


def _by_image(options: _Options, shape: tuple[int, ...], w: Any, gradient: Any) -> Any:
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
    return _derivable(replace(options, stride=ones, padding=none))(inner, turned.reshape(-1, *taps, parted.shape[1]))


def _by_filters(options: _Options, x: Any, shape: tuple[int, ...], gradient: Any) -> Any:
    groups, taps = options.groups, shape[1:-1]
    exchanged = replace(options, stride=options.dilation, dilation=options.stride, groups=1)

    def of_group(image: Any, outer: Any) -> Any:  # batch and channels change places: [c, ..., n] and [f, ..., n]
        found = _derivable(exchanged)(jnp.swapaxes(image, 0, -1), jnp.swapaxes(outer, 0, -1))
        cut = found[(slice(None), *(slice(0, k) for k in taps))]  # a stride may leave places that no tap reaches
        return jnp.swapaxes(cut, 0, -1)

    if groups == 1:
        return of_group(x, gradient)
    parted = (a.reshape(*a.shape[:-1], groups, -1) for a in (x, gradient))
    return jax.vmap(of_group, in_axes=-2)(*parted).reshape(shape)
