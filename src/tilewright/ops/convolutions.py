"""Convolution over one, two or three axes, on arrays: layers whose weights are packed once, and functions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from tilewright.compiler.compiled import Compiled
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike, plain_number
from tilewright.kernels.conv import IMAGE, Padding, PerAxis, padding_of, per_axis
from tilewright.kernels.conv import conv as conv_kernel
from tilewright.kernels.elementwise import known_activation
from tilewright.kernels.sums import known_accumulate, known_precision
from tilewright.ops.arrays import (
    array,
    dtype_of,
    extents_text,
    learnt_of,
)
from tilewright.ops.layers import Layer, call_once
from tilewright.runtime import environment
from tilewright.runtime.eager import eager


class Conv(Layer):
    """A convolution whose weights are packed once for each image size, over as many axes as the weights have.

    Images are [n, ..., c], weights [f, ..., c of a group], outputs [n, ..., f], where ... is width, height and width,
    or depth, height and width. Stride and dilation are a number for all axes or one for each. Padding is "valid"
    (none), "same" (outputs as large as the image; for a stride of 1), a number for all axes, or for each axis a number
    or a pair (before, after). Accumulator, bias and activation are in f32 (i32 for integers, f64 for f64); the result
    is of the weights' element type unless `out_dtype` is given. `dynamic="batch"` compiles one kernel for all batches,
    `dynamic="image"` one for all batches and image sizes, planned for the first image. `precision="tf32"` rounds f32
    operands to tf32; `accumulate="f16"` accumulates f16 products in f16.

    It runs on the device of the image, the host or a GPU, or on the `target`, such as "cuda", to which images on the
    host are then copied for each call; weights are copied there once, and packed there once for each image size.

    Weights and bias may be torch tensors that change in place, as by an optimizer: the next call packs them again.
    torch counts no writes to inference tensors, so each call packs those. numpy counts none at all: after a change,
    call `refresh`, which lists other writes that are not noticed. Under `torch.no_grad()` parameters that require
    gradients are accepted too.

    >>> import numpy as np
    >>> layer = Conv(np.ones((2, 2, 3), np.float32), np.array([0, 1], np.float32), padding=((1, 0),))
    >>> layer
    Conv(weight f32[2, 2, 3], bias, padding=((1, 0),))
    >>> layer(np.ones((1, 2, 3), np.float32))
    array([[[3., 4.],
            [6., 7.]]], dtype=float32)
    """

    rank: ClassVar[int | None] = None
    """The number of axes that the class is for; None: one to three."""
    rows = "filters"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the allowed numbers of dimensions of the weights: two more than the number of axes."""
        return (3, 4, 5) if self.rank is None else (self.rank + 2,)

    @eager
    def __init__(
        self,
        weight: Any,
        bias: Any = None,
        *,
        stride: PerAxis = 1,
        padding: Padding = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
        activation: str | None = None,
        out_dtype: DTypeLike | None = None,
        dynamic: str | None = None,
        precision: str | None = None,
        accumulate: str | None = None,
        target: str | None = None,
    ):
        if dynamic is not None and (not isinstance(dynamic, str) or dynamic not in ("batch", "image")):
            raise ArgumentError(f"dynamic={dynamic!r}: None, 'batch', or 'image', which is both batch and image size")
        super().__init__(weight, bias, out_dtype, target)
        filters, *taps, _ = self.weight.shape
        if 0 in taps:
            raise ArgumentError(f"weight has the shape {self.weight.shape}: a filter has a tap along each axis")
        self.stride, self.dilation = (
            per_axis(v, len(taps), n) for v, n in ((stride, "stride"), (dilation, "dilation"))
        )
        self.padding = padding_of(padding, tuple(taps), self.stride, self.dilation)
        if any(n < 0 for axis_padding in self.padding for n in axis_padding):
            raise ArgumentError(f"padding={padding!r}: no number is below 0")
        count = plain_number(groups)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1 or filters % count:
            raise ArgumentError(f"groups={groups!r}: it must divide the {filters} filters")
        self.activation, self.groups, self.dynamic = known_activation(activation), count, dynamic
        self.precision = known_precision(precision)
        self.accumulate = known_accumulate(accumulate, dtype_of(self.weight, "weight"))
        self._typical: tuple[int, ...] = ()

    def __repr__(self) -> str:
        kinds = {"stride": 1, "dilation": 1, "padding": (0, 0)}
        options = {n: getattr(self, n) for n, usual in kinds.items() if any(x != usual for x in getattr(self, n))}
        options |= {} if self.groups == 1 else {"groups": self.groups}
        words = ("activation", "dynamic", "precision", "accumulate", "target")
        options |= {n: v for n in words if (v := getattr(self, n)) is not None}
        kind = dtype_of(self.weight, "weight")
        options |= {} if self.out is kind else {"out_dtype": self.out}
        parts = [f"weight {kind}{list(self.weight.shape)}", *([] if self.bias is None else ["bias"])]
        return f"{type(self).__name__}({', '.join([*parts, *(f'{n}={v!r}' for n, v in options.items())])})"

    def _checked_input(self, x: Any) -> Any:
        """Return the image `x` as a contiguous array; raise `ArgumentError` unless it has the same number of dimensions
        as the weights.
        """
        return array(x, "x", (self.weight.ndim,))

    def sizes(self, image: Any) -> list[int]:
        """Return the output's extent along each axis (such as [height, width]) for an array of images, [n, ..., c].

        Raise `ArgumentError` if the number of channels or the element type does not fit the weights, or if an extent
        would be negative; an extent may be 0. `image` must have as many dimensions as the weights: `_checked_input`
        checks that.
        """
        _, *taps, c = self.weight.shape
        _, *extents, channels = image.shape
        if channels != c * self.groups:
            raise ArgumentError(f"x has {channels} channels; the weights take {c} in each of {self.groups} groups")
        if dtype_of(image, "x") is not dtype_of(self.weight, "weight"):
            raise ArgumentError(f"x holds {image.dtype}, the weights {self.weight.dtype}: convert one")
        axes = zip(extents, taps, self.padding, self.dilation, self.stride, strict=True)
        sizes = [
            (size + sum(padding) - dilation * (k - 1) - 1) // stride + 1 for size, k, padding, dilation, stride in axes
        ]
        if min(sizes) < 0:
            raise ArgumentError(
                f"x is {extents_text(extents)}: a filter of {extents_text(taps)} does not fit, with this padding and "
                "dilation"
            )
        return sizes

    def _shape(self, x: Any) -> tuple[int, ...]:
        """Return the output's shape, (n, ..., f), for the images `x`; raise `ArgumentError` unless the images fit the
        weights.
        """
        return (x.shape[0], *self.sizes(x), self.weight.shape[0])

    def _kernel(self, x: Any, target: str, residual: bool) -> Compiled:
        """Return the compiled kernel for images of the shape and type of `x` on `target`; equal kernels are compiled
        once.

        With `residual`, the kernel takes a residual too. If the layer has dynamic sizes, one kernel serves all sizes:
        it is planned for the images of the layer's first call. The first call records their sizes in `self._typical`.
        """
        shape: tuple[int | None, ...] = x.shape[:-1]
        if self.dynamic is not None:
            shape = (None, *shape[1:]) if self.dynamic == "batch" else (None,) * len(shape)
            self._typical = self._typical or x.shape[:-1]
        return _conv_kernel(
            shape,
            self._typical if self.dynamic else (),
            self.weight.shape,
            (dtype_of(x, "x").name, self.out.name),
            self.groups,
            self.stride,
            self.padding,
            self.dilation,
            (self.bias is not None, residual),
            self.activation,
            self.precision,
            self.accumulate,
            target,
            self.constant,
            environment.threads(),
        )


class Conv1d(Conv):
    """`Conv` over width: images [n, w, c], weights [f, s, c].

    >>> import numpy as np
    >>> Conv1d(np.ones((1, 3, 1), np.float32), padding="same")(np.ones((1, 4, 1), np.float32)).reshape(-1)
    array([2., 3., 3., 2.], dtype=float32)
    """

    rank = 1


class Conv2d(Conv):
    """`Conv` over height and width: images [n, h, w, c], weights [f, r, s, c].

    >>> import numpy as np
    >>> layer = Conv2d(np.ones((2, 1, 1, 3), np.float32), np.array([0, 1], np.float32))
    >>> layer(np.ones((1, 1, 2, 3), np.float32)).reshape(2, 2)
    array([[3., 4.],
           [3., 4.]], dtype=float32)
    """

    rank = 2


class Conv3d(Conv):
    """`Conv` over depth, height and width: images [n, d, h, w, c], weights [f, t, r, s, c].

    >>> import numpy as np
    >>> Conv3d(np.ones((1, 2, 1, 1, 3), np.float32))(np.ones((1, 3, 1, 1, 3), np.float32)).reshape(-1)
    array([6., 6.], dtype=float32)
    """

    rank = 3


@eager
def conv1d(x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
    """Return the convolution over width of `x` [n, width, c] with the filters `w` [f, s, c], as a new array y [n, q,
    f].

    y[n, q, f] = activation(sum over s, c of x[n, q*stride + s*dilation - padding, c] * w[f, s, c] + bias[f]); x is 0
    out of bounds. `options` are those of `Conv`. Weights are packed on every call; `Conv1d` packs them once.

    >>> import numpy as np
    >>> conv1d(np.ones((1, 5, 2), np.float32), np.ones((1, 3, 2), np.float32), stride=2).reshape(-1)
    array([6., 6.], dtype=float32)
    """
    return _convolve_once(Conv1d, x, w, bias, options)


@eager
def conv2d(x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
    """Return the convolution of `x` [n, height, width, c] with the filters `w` [f, r, s, c], as a new array y [n, p, q,
    f].

    y[n, p, q, f] = activation(sum over r, s, c of x[n, i, j, c] * w[f, r, s, c] + bias[f]), with i = p*stride +
    r*dilation - padding, and j likewise of q and s; x is 0 out of bounds. `options` are those of `Conv`. Weights are
    packed on every call; `Conv2d` packs them once.

    >>> import numpy as np
    >>> conv2d(np.ones((1, 2, 2, 1), np.float32), np.ones((1, 2, 2, 1), np.float32), padding=((1, 0), 0)).reshape(-1)
    array([2., 4.], dtype=float32)
    """
    return _convolve_once(Conv2d, x, w, bias, options)


@eager
def conv3d(x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
    """Return the convolution of `x` [n, depth, height, width, c] with the filters `w` [f, t, r, s, c], as a new array.

    y[n, z, p, q, f] = activation(sum over t, r, s, c of x[n, h, i, j, c] * w[f, t, r, s, c] + bias[f]), with h =
    z*stride + t*dilation - padding, and i, j likewise of (p, r) and (q, s); x is 0 out of bounds. `options` are those
    of `Conv`. Weights are packed on every call; `Conv3d` packs them once.

    >>> import numpy as np
    >>> conv3d(np.ones((1, 2, 2, 2, 1), np.float32), np.ones((1, 2, 2, 2, 1), np.float32)).reshape(-1)
    array([8.], dtype=float32)
    """
    return _convolve_once(Conv3d, x, w, bias, options)


def _convolve_once(kind: type[Conv], x: Any, w: Any, bias: Any, options: dict[str, Any]) -> Any:
    """Return the convolution of the images `x` by weights `w` and `bias` (or None), as a layer of class `kind` with
    these `options` computes it.

    If an earlier call had the same options, shapes and types, its launch is repeated. Otherwise a layer is made for
    this call alone.
    """
    learnt = learnt_of(kind.__name__, f"{sorted(options.items())}")
    return call_once(learnt, lambda: kind(w, bias, **options), x, w, bias)


def kernel_sizes(image: Sequence[int | None], weight: Sequence[int], groups: int) -> dict[str, int]:
    """Return {symbol's name: number} of the sizes that bind `kernels.conv` for images and weights of these shapes.

    `image` is (n, extent of each axis); entries that are None are left out. `weight` is the shape (filters, filter
    extents..., channels of a group).

    >>> kernel_sizes((2, None, 9), (8, 3, 3, 4), groups=2)
    {'N': 2, 'W': 9, 'F': 8, 'CG': 4}
    """
    f, *taps, c = weight
    names = ["N", *(s.name for s in IMAGE[-len(taps) :])]
    sizes = {name: size for name, size in zip(names, image, strict=False) if size is not None}
    return sizes | {"F": f, "CG" if groups > 1 else "C": c}


@lru_cache(maxsize=512)
def _conv_kernel(
    image: tuple[int | None, ...],
    typical: tuple[int, ...],
    weight: tuple[int, ...],
    dtypes: tuple[str, str],
    groups: int,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    added: tuple[bool, bool],
    activation: str | None,
    precision: str | None,
    accumulate: str | None,
    target: str,
    constant: bool,
    threads: int,
) -> Compiled:
    """Return the compiled convolution kernel for these sizes and options on `target`. Results are cached by all
    parameters.

    `image` is (n, extent of each axis). Entries that are None stay dynamic; the plan is made for the same entries of
    `typical` in their place. `weight` is the weights' shape, `dtypes` are (data, output), `added` is (has a bias, has a
    residual). `constant` says that the weights are packed once, when they are bound. `threads` is only part of the
    cache's key: it must be `environment.threads()`, for which kernels are planned.
    """
    _, *taps, _ = weight
    bias, residual = added
    kernel = conv_kernel(
        taps,
        *dtypes,
        groups=groups,
        stride=stride,
        padding=padding,
        dilation=dilation,
        bias=bias,
        residual=residual,
        activation=activation,
        precision=precision,
        accumulate=accumulate,
    )
    sizes = kernel_sizes(image, weight, groups)
    typical_sizes = {name: n for name, n in kernel_sizes(typical, weight, groups).items() if name not in sizes}
    sizes |= typical_sizes
    return kernel_for(kernel, sizes, target=target, dynamic=list(typical_sizes), constant=["w"] if constant else [])
