"""Causal linear attention by chunks: a state k^T v is carried between chunks, scores are computed within a chunk."""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir.dtypes import DTypeLike, element_type

B, H, CHUNKS, C, U, D, E = (getattr(tkl.sym, name) for name in ("B", "H", "CHUNKS", "C", "U", "D", "E"))
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def linear_attention(chunk: int, dtype: DTypeLike = "bf16") -> tkw.Kernel:
    """Return a kernel that computes out[m] = sum over n <= m of <q[m], k[n]> * v[n] for each batch and head.

    This is causal attention without softmax. Arguments: q[B, H, CHUNKS, C, D], k of q's shape, v[B, H, CHUNKS, C, E],
    then out of v's shape, all of type `dtype`. C is `chunk`, and position m is stored at [m // C, m % C]. The kernel
    carries a D x E matrix from chunk to chunk: the sum over earlier positions n of the outer products of k[n] and v[n].
    All is computed in f32 (f64 for f64), except that this matrix and the scores within a chunk are rounded to `dtype`
    before they are multiplied.

    >>> import numpy as np, tilewright
    >>> q = np.ones((1, 1, 2, 2, 1), np.float32)
    >>> v = np.array([1, 2, 3, 4], np.float32).reshape(1, 1, 2, 2, 1)
    >>> tilewright.compile(linear_attention(2, "f32"), strict=True)(q, q, v).ravel()
    array([ 1.,  3.,  6., 10.], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    b, h, j, c, d = (tkw.IndexMapping.iterator(n) for n in range(5))

    def as_key(last: Any) -> Any:
        """Return the mapping that reads a chunk of keys or values as a tile with the dimension U in place of C. `last`
        is the last dimension: D for keys, E for values.
        """
        return tkw.IndexMapping(
            5, inputs={B: b, H: h, CHUNKS: j, C: c, last: d}, outputs={B: b, H: h, CHUNKS: j, U: c, last: d}
        )

    Rows: Any = tkl.Memory[B, H, CHUNKS, C, D, GLOBAL, of_data]
    Values: Any = tkl.Memory[B, H, CHUNKS, C, E, GLOBAL, of_data]

    @tkw.wave([tkw.TilingConstraint(CHUNKS, 1)])
    def linear_attention(q: Rows, k: Rows, v: Values, out: Values) -> None:
        @tkw.iterate(CHUNKS, init_args=[tkl.Register[B, H, D, E, of_sums](0)])
        def state(before: Any) -> Any:
            queries, keys, values = tkw.read(q), tkw.read(k, mapping=as_key(D)), tkw.read(v, mapping=as_key(E))
            scores = tkw.mma(queries, keys, tkl.Register[B, H, CHUNKS, C, U, of_sums](0))
            scores = tkw.select(tkw.self_index(U) <= tkw.self_index(C), scores, 0.0)
            result = tkl.Register[B, H, CHUNKS, C, E, of_sums](0)
            result = tkw.mma(queries, tkw.cast(before, of_data), result)
            result = tkw.mma(tkw.cast(scores, of_data), values, result)
            tkw.write(tkw.cast(result, of_data), out)
            return tkw.mma(keys, values, before)

    return linear_attention.bound({C: chunk, U: chunk})
