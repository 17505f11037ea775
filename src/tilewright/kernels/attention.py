"""Attention, forward, with an online softmax over the keys: the matrix of all scores is never stored."""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir.dtypes import DTypeLike, element_type
from tilewright.kernels.softmax import lowest

B, H, M, N, D, E = tkl.sym.B, tkl.sym.H, tkl.sym.M, tkl.sym.N, tkl.sym.D, tkl.sym.E
BLOCK_N = tkl.sym.BLOCK_N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def attention(
    tile: int,
    dtype: DTypeLike = "f16",
    out_dtype: DTypeLike | None = None,
    *,
    causal: bool = False,
    first_query: int = 0,
    bias: bool = False,
    scale: float | None = None,
) -> tkw.Kernel:
    """Return a kernel that computes out[b, h, m] = sum over n of softmax over n (scale * <q[b, h, m], k[b, h, n]>) *
    v[b, h, n].

    Arguments: q[B, H, M, D], k[B, H, N, D], v[B, H, N, E] of type `dtype`; with `bias` a bias[B, H, M, N] in f32 (f64
    for f64) that is added to the scores (-inf hides a key); then out[B, H, M, E] of type `out_dtype` (None: `dtype`).
    `scale` is 1 / sqrt(D) unless given. With `causal`, query m sees the keys n <= m + `first_query`, where
    `first_query` is the position of query 0 among the keys. A query that sees no key gives NaN.

    `tile` is the tile size along the keys and need not divide N. All is computed in f32 (f64 for f64), except that the
    softmax weights are rounded to `dtype` before they are multiplied with v, as matrix units require.

    >>> import numpy as np, tilewright
    >>> kernel = attention(2, "f32", causal=True)
    >>> q, k = np.zeros((1, 1, 3, 1), np.float32), np.zeros((1, 1, 3, 1), np.float32)
    >>> v = np.array([1, 2, 6], np.float32).reshape(1, 1, 3, 1)
    >>> tilewright.compile(kernel, strict=True, target="executor")(q, k, v).ravel()
    array([1. , 1.5, 3. ], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    of_result = of_data if out_dtype is None else element_type(out_dtype)
    Queries: Any = tkl.Memory[B, H, M, D, GLOBAL, of_data]
    Keys: Any = tkl.Memory[B, H, N, D, GLOBAL, of_data]
    Values: Any = tkl.Memory[B, H, N, E, GLOBAL, of_data]
    Out: Any = tkl.Memory[B, H, M, E, GLOBAL, of_result]
    Scores: Any = tkl.Memory[B, H, M, N, GLOBAL, of_sums]

    def attend(q: Any, k: Any, v: Any, bias: Any, out: Any) -> None:
        factor = tkw.rsqrt(tkw.scalar(D, of_sums)) if scale is None else scale
        start = tkl.Register[B, H, M, of_sums](lowest(of_sums))
        nothing = tkl.Register[B, H, M, of_sums](0)

        @tkw.iterate(N, init_args=[start, nothing, tkl.Register[B, H, M, E, of_sums](0)])
        def walk(highest: Any, total: Any, mean: Any) -> Any:
            scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[B, H, M, N, of_sums](0)) * factor
            if bias is not None:
                scores = scores + tkw.cast(tkw.read(bias), of_sums)
            if causal:
                sees = tkw.self_index(N) <= tkw.self_index(M) + first_query
                scores = tkw.select(sees, scores, float("-inf"))
            higher = tkw.max(scores, highest, dim=N)
            shrink = tkw.exp(highest - higher)
            weights = tkw.exp(scores - higher)
            total = tkw.sum(weights, total * shrink, dim=N)
            return higher, total, tkw.mma(tkw.cast(weights, of_data), tkw.read(v), mean * shrink)

        _, total, mean = walk
        tkw.write(tkw.cast(mean / total, of_result), out)

    tiling = [tkw.TilingConstraint(N, BLOCK_N)]
    if bias:

        @tkw.wave(tiling)
        def attention_with_bias(q: Queries, k: Keys, v: Values, bias: Scores, out: Out) -> None:
            attend(q, k, v, bias, out)

        return attention_with_bias.bound({BLOCK_N: tile})

    @tkw.wave(tiling)
    def attention(q: Queries, k: Keys, v: Values, out: Out) -> None:
        attend(q, k, v, None, out)

    return attention.bound({BLOCK_N: tile})
