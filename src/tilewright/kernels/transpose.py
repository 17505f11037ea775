"""Transposition: a tile is written to memory whose dimensions are in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.algebra.expr import symbol
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike, element_type

GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def transpose(axes: Sequence[int] = (1, 0), dtype: DTypeLike = "f32") -> tkw.Kernel:
    """Return a kernel that computes y = numpy.transpose(x, axes): dimension d of y is dimension axes[d] of x.

    x and y are of type `dtype`. Raise `ArgumentError` unless `axes` has each of 0, 1, ... once.

    >>> import numpy as np, tilewright
    >>> tilewright.compile(transpose(dtype="i8"), strict=True)(np.array([[1, 2, 3], [4, 5, 6]], np.int8))
    array([[1, 4],
           [2, 5],
           [3, 6]], dtype=int8)
    """
    if not axes or sorted(axes) != list(range(len(axes))):
        raise ArgumentError(f"axes={axes!r}: give each of 0, 1, ... once")
    of_data = element_type(dtype)
    dims = tuple(symbol(f"D{i}", 0) for i in range(len(axes)))
    X: Any = tkl.Memory[(*dims, GLOBAL, of_data)]
    Y: Any = tkl.Memory[(*(dims[i] for i in axes), GLOBAL, of_data)]

    @tkw.wave()
    def transpose(x: X, y: Y) -> None:
        tkw.write(tkw.read(x), y)

    return transpose
