"""Pooling of images over one, two or three axes: the maximum or the mean of each window, the mean of each image."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DType, DTypeLike, element_type
from tilewright.kernels.conv import FILTER, IMAGE, OUTPUT, PerAxis, per_axis

N, W, C = tkl.sym.N, tkl.sym.W, tkl.sym.C
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
LAYOUTS = {1: ("NWC", "NCW"), 2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}
"""The names of both layouts, channels last and channels second, for each number of axes."""


def pooling(
    kind: str,
    window: Sequence[int],
    dtype: DTypeLike = "f32",
    *,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    layout: str | None = None,
) -> tkw.Kernel:
    """Return a kernel that pools images: y[n, p, q, c] = max or mean over r, s of x[n, h, w, c].

    This is the formula for two axes, with h = p*stride + r*dilation - padding, and w likewise of q and s. The number of
    axes is that of `window`: with one, images are [N, W, C] and outputs [N, Q, C]; with three, [N, D, H, W, C] and [N,
    Z, P, Q, C]. `kind` is "max" or "mean". `stride` (None: the window), `padding` and `dilation` are one number for all
    axes or one for each. A maximum ignores elements out of bounds; a mean counts them as 0 and divides by the window's
    full size. A maximum is NaN if an element is. x and y are of type `dtype`; means are computed in f32 (f64 for f64).
    `layout` is that of x and y: channels last, "NHWC" (None), or second, "NCHW"; for other numbers of axes "NWC" or
    "NCW", "NDHWC" or "NCDHW". The extents Z, P and Q are those of y, or bound by the caller. Raise `ArgumentError` for
    options that are not valid.

    >>> import numpy as np, tilewright
    >>> x = np.array([[1, 5, 2], [7, 3, 0]], np.float32).reshape(1, 2, 3, 1)
    >>> tilewright.compile(pooling("max", (2, 2), stride=(1, 1)), {"P": 1, "Q": 2}, strict=True)(x).ravel()
    array([7., 5.], dtype=float32)
    """
    if kind not in ("max", "mean"):
        raise ArgumentError(f"kind={kind!r}: there are max, mean")
    rank = len(window)
    if rank not in LAYOUTS:
        raise ArgumentError(f"window={window!r}: one to three integers of at least 1, one for each axis")
    taps = per_axis(window, rank, "window")
    channels_last = _is_channels_last(layout, rank)
    steps = taps if stride is None else per_axis(stride, rank, "stride")
    pads, dilations = per_axis(padding, rank, "padding", 0), per_axis(dilation, rank, "dilation")
    of_data = element_type(dtype)
    inputs, filters, outputs = IMAGE[-rank:], FILTER[-rank:], OUTPUT[-rank:]
    n, c, *places = (tkw.IndexMapping.iterator(i) for i in range(2 * rank + 2))
    pixel, tap = places[:rank], places[rank:]
    coordinates = (
        p * step + r * spread - pad for p, r, step, spread, pad in zip(pixel, tap, steps, dilations, pads, strict=True)
    )
    windows = tkw.IndexMapping(
        2 * rank + 2,
        inputs={N: n, **dict(zip(inputs, coordinates, strict=True)), C: c},
        outputs={N: n, **dict(zip(outputs, pixel, strict=True)), C: c, **dict(zip(filters, tap, strict=True))},
    )
    image, result = (((N, *axes, C) if channels_last else (N, C, *axes)) for axes in (inputs, outputs))
    Image: Any = tkl.Memory[(*image, GLOBAL, of_data)]
    Result: Any = tkl.Memory[(*result, GLOBAL, of_data)]
    least, of_comparison = _least(of_data), of_data.accumulator if of_data.is_float else of_data

    @tkw.wave()
    def max_pooling(x: Image, y: Result) -> None:
        elements = tkw.cast(tkw.read(x, mapping=windows, otherwise=least), of_comparison)
        tkw.write(tkw.cast(tkw.max(elements, dim=[*filters]), of_data), y)

    @tkw.wave()
    def mean_pooling(x: Image, y: Result) -> None:
        elements = tkw.cast(tkw.read(x, mapping=windows, otherwise=0), of_data.accumulator)
        tkw.write(tkw.cast(tkw.sum(elements, dim=[*filters]) / prod(taps), of_data), y)

    return (max_pooling if kind == "max" else mean_pooling).bound(dict(zip(filters, taps, strict=True)))


def image_mean(dtype: DTypeLike = "f32", layout: str = "NWC") -> tkw.Kernel:
    """Return a kernel that computes y[n, c], the mean over w of x[n, w, c]: the mean of each channel of each image.

    W counts the pixels of an image along all its axes. x and y are of type `dtype`; the mean is computed in its
    accumulator type: f32 for smaller floats, f64 for f64. `layout` is that of x, "NWC" or "NCW"; raise `ArgumentError`
    for another one.

    >>> import numpy as np, tilewright
    >>> x = np.array([[1, 2], [3, 5], [5, 5]], np.float32).reshape(1, 3, 2)
    >>> tilewright.compile(image_mean(), strict=True)(x)
    array([[3., 4.]], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums, channels_last = of_data.accumulator, _is_channels_last(layout, 1)
    Image: Any = tkl.Memory[(*((N, W, C) if channels_last else (N, C, W)), GLOBAL, of_data)]
    Result: Any = tkl.Memory[N, C, GLOBAL, of_data]

    @tkw.wave()
    def image_mean(x: Image, y: Result) -> None:
        total = tkw.sum(tkw.cast(tkw.read(x), of_sums), dim=W)
        tkw.write(tkw.cast(total / W, of_data), y)

    return image_mean


def _is_channels_last(layout: str | None, rank: int) -> bool:
    """Return True if `layout`, the layout of images with `rank` axes, has the channels last, or is None.

    Raise `ArgumentError` unless it is None or one of `LAYOUTS[rank]`.
    """
    if layout is not None and layout not in LAYOUTS[rank]:
        raise ArgumentError(f"layout={layout!r}: there are {', '.join(LAYOUTS[rank])}")
    return layout in (None, LAYOUTS[rank][0])


def _least(kind: DType) -> float | int:
    """Return the least value of the element type `kind`: minus infinity for floats."""
    return float("-inf") if kind.is_float else int(np.iinfo(kind.numpy).min)
