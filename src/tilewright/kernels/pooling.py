"""Pooling of images: the maximum or the mean of each window."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike, element_type

N, H, W, C, P, Q, R, S = (getattr(tkl.sym, name) for name in "NHWCPQRS")
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
LAYOUTS = ("NHWC", "NCHW")


def pooling(
    kind: str,
    window: tuple[int, int],
    dtype: DTypeLike = "f32",
    *,
    stride: tuple[int, int] | None = None,
    padding: tuple[int, int] = (0, 0),
    layout: str = "NHWC",
) -> tkw.Kernel:
    """Return a kernel that pools images: y[n, p, q, c] = max or mean over r, s of x[n, p*stride + r - padding, q*stride
    + s - padding, c].

    `kind` is "max" or "mean"; `window`, `stride` (None: the window) and `padding` are (height, width). Padding is
    ignored in a maximum; a mean divides by the window's full size. Images are of type `dtype`; means are computed in
    f32 (f64 for f64). `layout` is "NHWC" or "NCHW", of both images. P and Q, the extents of y, are read off y, or bound
    by the caller.

    >>> import numpy as np, tilewright
    >>> x = np.array([[1, 5, 2], [7, 3, 0]], np.float32).reshape(1, 2, 3, 1)
    >>> tilewright.compile(pooling("max", (2, 2), stride=(1, 1)), {"P": 1, "Q": 2}, strict=True)(x).ravel()
    array([7., 5.], dtype=float32)
    """
    if kind not in ("max", "mean"):
        raise ArgumentError(f"kind={kind!r}: there are max, mean")
    if layout not in LAYOUTS:
        raise ArgumentError(f"layout={layout!r}: there are {', '.join(LAYOUTS)}")
    of_data = element_type(dtype)
    steps = window if stride is None else stride
    n, p, q, c, r, s = (tkw.IndexMapping.iterator(i) for i in range(6))
    windows = tkw.IndexMapping(
        6,
        inputs={N: n, H: p * steps[0] + r - padding[0], W: q * steps[1] + s - padding[1], C: c},
        outputs={N: n, P: p, Q: q, C: c, R: r, S: s},
    )
    image, result = ((N, H, W, C), (N, P, Q, C)) if layout == "NHWC" else ((N, C, H, W), (N, C, P, Q))
    Image: Any = tkl.Memory[(*image, GLOBAL, of_data)]
    Result: Any = tkl.Memory[(*result, GLOBAL, of_data)]
    least = float("-inf") if of_data.is_float else int(np.iinfo(of_data.numpy).min)

    @tkw.wave()
    def max_pooling(x: Image, y: Result) -> None:
        elements = tkw.read(x, mapping=windows, otherwise=least)
        tkw.write(tkw.max(elements, dim=[R, S]), y)

    @tkw.wave()
    def mean_pooling(x: Image, y: Result) -> None:
        elements = tkw.cast(tkw.read(x, mapping=windows, otherwise=0), of_data.accumulator)
        tkw.write(tkw.cast(tkw.sum(elements, dim=[R, S]) / (window[0] * window[1]), of_data), y)

    return (max_pooling if kind == "max" else mean_pooling).bound({R: window[0], S: window[1]})
