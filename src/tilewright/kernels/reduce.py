"""Reductions of a matrix along its rows or columns."""

from __future__ import annotations

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike, element_type

M, N = tkl.sym.M, tkl.sym.N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
COMBINE = {"sum": tkw.sum, "prod": tkw.prod, "max": tkw.max, "min": tkw.min}


def reduction(
    combine: str, over: str = "columns", dtype: DTypeLike = "f32", out_dtype: DTypeLike | None = None
) -> tkw.Kernel:
    """Return a kernel that reduces the matrix x[M, N] along its columns or its rows to a vector y.

    With `over` "columns", y has an element for each of the M rows; with "rows", one for each of the N columns.
    `combine` is sum, prod, max or min. x is of type `dtype`. The accumulator is f32 or i32 (f64, i64 for f64, i64) and
    is rounded once to the type of y, `out_dtype` (None: `dtype`). Raise `ArgumentError` for other values of `combine`
    and `over`.

    >>> import numpy as np, tilewright
    >>> x = np.array([[1, 7, 3], [4, 5, 6]], np.float32)
    >>> tilewright.compile(reduction("max"), strict=True)(x)
    array([7., 6.], dtype=float32)
    >>> tilewright.compile(reduction("prod", over="rows"), strict=True)(x)
    array([ 4., 35., 18.], dtype=float32)
    """
    if combine not in COMBINE:
        raise ArgumentError(f"combine={combine!r}: there are {', '.join(COMBINE)}")
    if over not in ("columns", "rows"):
        raise ArgumentError(f"over={over!r}: there are columns, rows")
    of_data = element_type(dtype)
    of_result = of_data if out_dtype is None else element_type(out_dtype)
    reduced_dim, kept_dim = (N, M) if over == "columns" else (M, N)

    @tkw.wave()
    def reduction(x: tkl.Memory[M, N, GLOBAL, of_data], y: tkl.Memory[kept_dim, GLOBAL, of_result]) -> None:
        values = tkw.cast(tkw.read(x), of_data.accumulator)
        tkw.write(tkw.cast(COMBINE[combine](values, dim=reduced_dim), of_result), y)

    return reduction
