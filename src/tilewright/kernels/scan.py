"""Running sums of each row: of whole rows, or tile by tile with a carried sum."""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir.dtypes import DTypeLike, element_type

M, N, BLOCK_N = tkl.sym.M, tkl.sym.N, tkl.sym.BLOCK_N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def running_sum(dtype: DTypeLike = "f32", out_dtype: DTypeLike | None = None) -> tkw.Kernel:
    """Return a kernel that computes the running sum of each row: y[m, n] = sum of x[m, j] over j <= n.

    x[M, N] is of type `dtype`, y[M, N] of type `out_dtype` (None: `dtype`). The accumulator is f32 or i32 (f64, i64 for
    f64, i64) and is rounded once, to y's type.

    >>> import numpy as np, tilewright
    >>> tilewright.compile(running_sum("i8", "i32"), strict=True)(np.array([[100, 100, -1]], np.int8))
    array([[100, 200, 199]], dtype=int32)
    """
    of_data = element_type(dtype)
    of_result = of_data if out_dtype is None else element_type(out_dtype)

    @tkw.wave()
    def running_sum(x: tkl.Memory[M, N, GLOBAL, of_data], y: tkl.Memory[M, N, GLOBAL, of_result]) -> None:
        values = tkw.cast(tkw.read(x), of_data.accumulator)
        tkw.write(tkw.cast(tkw.cumsum(values, dim=N), of_result), y)

    return running_sum


def tiled_running_sum(tile: int, dtype: DTypeLike = "f32", out_dtype: DTypeLike | None = None) -> tkw.Kernel:
    """Return a kernel that computes y[m, n] = sum of x[m, j] over j <= n, as `running_sum`, in tiles of `tile` columns.

    The sum of all earlier tiles is carried from one tile to the next, and each tile is written as soon as it is known.
    The tile size need not divide the row. Types are those of `running_sum`.

    >>> import numpy as np, tilewright
    >>> kernel = tiled_running_sum(2, "i8", "i32")
    >>> tilewright.compile(kernel, strict=True)(np.array([[100, 100, -1]], np.int8))
    array([[100, 200, 199]], dtype=int32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    of_result = of_data if out_dtype is None else element_type(out_dtype)

    @tkw.wave([tkw.TilingConstraint(N, BLOCK_N)])
    def tiled_running_sum(x: tkl.Memory[M, N, GLOBAL, of_data], y: tkl.Memory[M, N, GLOBAL, of_result]) -> None:
        @tkw.iterate(N, init_args=[tkl.Register[M, of_sums](0)])
        def walk(before: Any) -> Any:
            values = tkw.cast(tkw.read(x), of_sums)
            tkw.write(tkw.cast(tkw.cumsum(values, before, dim=N), of_result), y)
            return tkw.sum(values, before, dim=N)

    return tiled_running_sum.bound({BLOCK_N: tile})
