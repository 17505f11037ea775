"""Rotary embedding: pairs of elements of each head are rotated by angles that depend on the row's position."""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir.dtypes import DTypeLike, element_type

B, M, H, D = (getattr(tkl.sym, name) for name in "BMHD")
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def rotary(dtype: DTypeLike = "f16") -> tkw.Kernel:
    """Return a kernel that computes a rotary embedding: y has each pair of elements of x rotated by an angle.

    The pair (x[b, m, h, 0, i], x[b, m, h, 1, i]) is rotated by the angle with cosine cosines[m, i] and sine sines[m,
    i]. Arguments: x[B, M, H, 2, D] of type `dtype`, cosines[M, D] and sines[M, D] in f32 (f64 for f64), then y of x's
    shape and type. A head has 2 * D elements, in two halves. Computed in f32 (f64 for f64), rounded once.

    >>> import numpy as np, tilewright
    >>> x = np.array([1, 2, 3, 4], np.float32).reshape(1, 1, 1, 2, 2)
    >>> quarter_turn, none = np.array([[0, 1]], np.float32), np.array([[1, 0]], np.float32)
    >>> tilewright.compile(rotary("f32"), strict=True)(x, quarter_turn, none).reshape(2, 2)
    array([[-3.,  2.],
           [ 1.,  4.]], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    halves = tkl.sym.HALF
    b, m, h, d = (tkw.IndexMapping.iterator(n) for n in range(4))

    def half(which: int) -> Any:
        """Return the mapping that reads one half of each head: the first if `which` is 0, the second if it is 1."""
        return tkw.IndexMapping(4, inputs={B: b, M: m, H: h, halves: which, D: d}, outputs={B: b, M: m, H: h, D: d})

    def half_of_result(which: int) -> Any:
        return tkw.IndexMapping(4, inputs={B: b, M: m, H: h, D: d}, outputs={B: b, M: m, H: h, halves: which, D: d})

    Heads: Any = tkl.Memory[B, M, H, halves, D, GLOBAL, of_data]
    Angles: Any = tkl.Memory[M, D, GLOBAL, of_sums]

    @tkw.wave()
    def rotary(x: Heads, cosines: Angles, sines: Angles, y: Heads) -> None:
        first, second = (tkw.cast(tkw.read(x, mapping=half(n)), of_sums) for n in (0, 1))
        cosine, sine = tkw.read(cosines), tkw.read(sines)
        tkw.write(tkw.cast(first * cosine - second * sine, of_data), y, mapping=half_of_result(0))
        tkw.write(tkw.cast(second * cosine + first * sine, of_data), y, mapping=half_of_result(1))

    return rotary.bound({halves: 2})
