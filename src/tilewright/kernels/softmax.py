"""Softmax of each row: of whole rows, or online, tile by tile."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir.dtypes import DType, DTypeLike, element_type

M, N, BLOCK_N = tkl.sym.M, tkl.sym.N, tkl.sym.BLOCK_N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def lowest(of_data: DType) -> float:
    """Return the most negative finite number of the float type `of_data`, the initial value of a running maximum.

    The initial value must not be -inf, because the difference of two infinities is NaN.

    >>> lowest(tkl.f32)
    -3.4028234663852886e+38
    """
    return float(np.finfo(of_data.numpy).min)


def softmax(dtype: DTypeLike = "f32") -> tkw.Kernel:
    """Return a kernel that computes the softmax of each row: y[m, n] = exp(x[m, n]) / sum over j of exp(x[m, j]).

    Arguments: x[M, N], then y[M, N], both of type `dtype`. Computed in f32 (f64 for f64); the row's maximum is
    subtracted first, so that nothing overflows.

    >>> import numpy as np, tilewright
    >>> tilewright.compile(softmax(), strict=True)(np.log(np.array([[1, 2, 5]], np.float32))).round(4)
    array([[0.125, 0.25 , 0.625]], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator

    @tkw.wave()
    def softmax(x: tkl.Memory[M, N, GLOBAL, of_data], y: tkl.Memory[M, N, GLOBAL, of_data]) -> None:
        row = tkw.cast(tkw.read(x), of_sums)
        weights = tkw.exp(row - tkw.max(row, dim=N))
        tkw.write(tkw.cast(weights / tkw.sum(weights, dim=N), of_data), y)

    return softmax


def online_softmax(tile: int, dtype: DTypeLike = "f32") -> tkw.Kernel:
    """Return a kernel that computes the `softmax` of each row online, in tiles of `tile` columns.

    One pass over the tiles computes the row's maximum and sum, a second pass writes the result. The running sum is
    relative to the running maximum: when the maximum grows, the sum is scaled down. The tile size decides how sums are
    rounded; it need not divide the row. Arguments are those of `softmax`.

    >>> import numpy as np, tilewright
    >>> kernel = online_softmax(2)
    >>> tilewright.compile(kernel, strict=True)(np.log(np.array([[1, 2, 5]], np.float32))).round(4)
    array([[0.125, 0.25 , 0.625]], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator

    @tkw.wave([tkw.TilingConstraint(N, BLOCK_N)])
    def online_softmax(x: tkl.Memory[M, N, GLOBAL, of_data], y: tkl.Memory[M, N, GLOBAL, of_data]) -> None:
        @tkw.iterate(N, init_args=[tkl.Register[M, of_sums](lowest(of_sums)), tkl.Register[M, of_sums](0)])
        def row_facts(highest: Any, total: Any) -> Any:
            tile_values = tkw.cast(tkw.read(x), of_sums)
            higher = tkw.max(tile_values, highest, dim=N)
            total = total * tkw.exp(highest - higher)
            return higher, tkw.sum(tkw.exp(tile_values - higher), total, dim=N)

        highest, total = row_facts
        weights = tkw.exp(tkw.cast(tkw.read(x), of_sums) - highest)
        tkw.write(tkw.cast(weights / total, of_data), y)

    return online_softmax.bound({BLOCK_N: tile})
