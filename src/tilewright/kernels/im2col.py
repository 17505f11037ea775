"""im2col: the matrix whose product with the filters is a convolution."""

from __future__ import annotations

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.algebra.expr import Expr
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike, element_type

N, H, W, C, P, Q = tkl.sym.N, tkl.sym.H, tkl.sym.W, tkl.sym.C, tkl.sym.P, tkl.sym.Q
R, S, M, K = tkl.sym.R, tkl.sym.S, tkl.sym.M, tkl.sym.K
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
LAYOUTS = {"nhwc": (N, H, W, C), "nchw": (N, C, H, W)}


def im2col(
    filter_size: tuple[int, int],
    dtype: DTypeLike = "f16",
    layout: str = "nhwc",
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> tkw.Kernel:
    """Return a kernel that writes the im2col matrix of images: columns[(n, p, q), (r, s, c)] = x[n, h, w, c].

    Here h = p*stride + r*dilation - padding, and w likewise of q and s; out of bounds, x is 0. The matrix has a row for
    each output pixel (n, p, q) and a column for each filter tap and channel (r, s, c), both numbered in row-major
    order. `filter_size`, `stride`, `padding` and `dilation` are pairs (height, width); only padding may be below 1. x
    is [N, H, W, C] for `layout` "nhwc", [N, C, H, W] for "nchw"; raise `ArgumentError` for another layout. x and the
    matrix are of type `dtype`. Sizes come with the argument.

    >>> import numpy as np, tilewright
    >>> kernel = im2col((1, 3), "i8", padding=(0, 1))
    >>> x = np.array([5, 6, 7], np.int8).reshape(1, 1, 3, 1)
    >>> tilewright.compile(kernel, strict=True)(x)
    array([[0, 5, 6],
           [5, 6, 7],
           [6, 7, 0]], dtype=int8)
    """
    if layout not in LAYOUTS:
        raise ArgumentError(f"layout={layout!r}: there are {', '.join(LAYOUTS)}")
    of_data = element_type(dtype)
    row, column = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    n, p, q = row // (P * Q), row // Q % P, row % Q
    r, s, c = column // (S * C), column // C % S, column % C
    at = tkw.IndexMapping(
        num_iterators=2,
        inputs={
            N: n,
            H: p * stride[0] + r * dilation[0] - padding[0],
            W: q * stride[1] + s * dilation[1] - padding[1],
            C: c,
        },
        outputs={M: row, K: column},
    )

    @tkw.wave()
    def im2col(
        x: tkl.Memory[(*LAYOUTS[layout], GLOBAL, of_data)],
        columns: tkl.Memory[M, K, GLOBAL, of_data],
    ) -> None:
        tkw.write(tkw.read(x, mapping=at, otherwise=0), columns)

    def outputs(size: Expr, axis: int) -> Expr:
        return (size + 2 * padding[axis] - dilation[axis] * (filter_size[axis] - 1) - 1) // stride[axis] + 1

    symbols = {
        R: filter_size[0],
        S: filter_size[1],
        P: outputs(H, 0),
        Q: outputs(W, 1),
        M: N * P * Q,
        K: R * S * C,
    }
    return im2col.bound(symbols)
