"""Grouped-query attention: query heads that share keys and values, with windows, soft caps, slopes, sinks and
segments.
"""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike, element_type
from tilewright.kernels.softmax import lowest

B, KV, GQ, M, N, D, E = (getattr(tkl.sym, name) for name in ("B", "KV", "GQ", "M", "N", "D", "E"))
BLOCK_N = tkl.sym.BLOCK_N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
ROWS = (B, KV, GQ, M)
EXTRAS = ("sinks", "slopes", "segments")


def grouped_attention(
    tile: int,
    dtype: DTypeLike = "f16",
    out_dtype: DTypeLike | None = None,
    *,
    extra: str | None = None,
    causal: bool = False,
    first_query: int = 0,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
) -> tkw.Kernel:
    """Return a kernel that computes grouped-query attention: out[b, j, g, m] = sum over n of softmax over n (scale *
    <q[b, j, g, m], k[b, j, n]>) * v[b, j, n].

    Arguments: q[B, KV, GQ, M, D], k[B, KV, N, D], v[B, KV, N, E] of type `dtype`, the `extra` argument if there is one,
    then out[B, KV, GQ, M, E] of type `out_dtype` (None: `dtype`). The GQ query heads of a group share the keys and
    values of one head; a decoding step of one token has M = 1. `scale` is 1 / sqrt(D) unless given.

    - `causal`: query m sees the keys n <= m + `first_query`. `window`: only the last `window` of these keys; it needs
      `causal`.
    - `softcap`: scores s become softcap * tanh(s / softcap).
    - extra "slopes": slopes[KV, GQ], in f32 (f64 for f64); slope * (n - m - first_query) is added to each score
      (ALiBi).
    - extra "sinks": sinks[KV, GQ], in f32 (f64 for f64); exp(sink) is added to the denominator of each row's softmax.
    - extra "segments": of_query[B, M] and of_key[B, N], in i32; a query sees the keys of its own segment.

    `tile` is the tile size along the keys and need not divide N. A row that sees no key gives zeros. Raise
    `ArgumentError` for an unknown `extra`, and for a `window` without `causal`.

    >>> import numpy as np, tilewright
    >>> kernel = grouped_attention(2, "f32", causal=True, window=2)
    >>> q, k = np.zeros((1, 1, 2, 3, 1), np.float32), np.zeros((1, 1, 3, 1), np.float32)
    >>> v = np.array([1, 2, 6], np.float32).reshape(1, 1, 3, 1)
    >>> tilewright.compile(kernel, strict=True, target="executor")(q, k, v).reshape(2, 3)
    array([[1. , 1.5, 4. ],
           [1. , 1.5, 4. ]], dtype=float32)
    """
    if extra is not None and extra not in EXTRAS:
        raise ArgumentError(f"extra={extra!r}: there are {', '.join(EXTRAS)}")
    if window is not None and not causal:
        raise ArgumentError(f"window={window} without causal=True: a window ends at the last key that its query sees")
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    of_result = of_data if out_dtype is None else element_type(out_dtype)
    least = lowest(of_sums)

    def adjusted(scores: Any, slopes: Any, segments: Any) -> Any:
        """Emit the scores with soft cap, slopes and masks applied, and return them as a tile; hidden keys have the
        score -inf. `slopes` is memory or None, `segments` a pair of memory (of_query, of_key) or None.
        """
        key, last = tkw.self_index(N), tkw.self_index(M) + first_query
        if softcap is not None:
            scores = tkw.tanh(scores / softcap) * softcap
        if slopes is not None:
            scores = scores + tkw.read(slopes) * tkw.cast(key - last, of_sums)
        if causal:
            scores = tkw.select(key <= last, scores, float("-inf"))
        if window is not None:
            scores = tkw.select(key > last - window, scores, float("-inf"))
        if segments is not None:
            of_query, of_key = map(tkw.read, segments)
            scores = tkw.select(of_query == of_key, scores, float("-inf"))
        return scores

    def attend(q: Any, k: Any, v: Any, out: Any, sinks: Any = None, slopes: Any = None, segments: Any = None) -> None:
        factor = tkw.rsqrt(tkw.scalar(D, of_sums)) if scale is None else scale
        start = [tkl.Register[(*ROWS, of_sums)](x) for x in (least, 0.0)]

        @tkw.iterate(N, init_args=[*start, tkl.Register[(*ROWS, E, of_sums)](0)])
        def walk(highest: Any, total: Any, mean: Any) -> Any:
            scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[(*ROWS, N, of_sums)](0)) * factor
            scores = adjusted(scores, slopes, segments)
            higher = tkw.max(scores, highest, dim=N)
            shrink = tkw.exp(highest - higher)
            weights = tkw.exp(scores - higher)
            total = tkw.sum(weights, total * shrink, dim=N)
            return higher, total, tkw.mma(tkw.cast(weights, of_data), tkw.read(v), mean * shrink)

        highest, total, mean = walk
        if sinks is not None:
            sink = tkw.read(sinks)
            higher = tkw.maximum(highest, sink)
            shrink = tkw.exp(highest - higher)
            total, mean = total * shrink + tkw.exp(sink - higher), mean * shrink
        sees = total > 0.0
        tkw.write(tkw.cast(tkw.select(sees, mean / tkw.select(sees, total, 1.0), 0.0), of_result), out)

    Queries: Any = tkl.Memory[B, KV, GQ, M, D, GLOBAL, of_data]
    Keys: Any = tkl.Memory[B, KV, N, D, GLOBAL, of_data]
    Values: Any = tkl.Memory[B, KV, N, E, GLOBAL, of_data]
    Heads: Any = tkl.Memory[KV, GQ, GLOBAL, of_sums]
    Out: Any = tkl.Memory[B, KV, GQ, M, E, GLOBAL, of_result]
    tiling = [tkw.TilingConstraint(N, BLOCK_N)]

    @tkw.wave(tiling)
    def grouped_attention(q: Queries, k: Keys, v: Values, out: Out) -> None:
        attend(q, k, v, out)

    @tkw.wave(tiling)
    def attention_with_sinks(q: Queries, k: Keys, v: Values, sinks: Heads, out: Out) -> None:
        attend(q, k, v, out, sinks=sinks)

    @tkw.wave(tiling)
    def attention_with_slopes(q: Queries, k: Keys, v: Values, slopes: Heads, out: Out) -> None:
        attend(q, k, v, out, slopes=slopes)

    @tkw.wave(tiling)
    def attention_of_segments(
        q: Queries,
        k: Keys,
        v: Values,
        of_query: tkl.Memory[B, M, GLOBAL, tkl.i32],
        of_key: tkl.Memory[B, N, GLOBAL, tkl.i32],
        out: Out,
    ) -> None:
        attend(q, k, v, out, segments=(of_query, of_key))

    forms = {"sinks": attention_with_sinks, "slopes": attention_with_slopes, "segments": attention_of_segments}
    kernel = grouped_attention if extra is None else forms[extra]
    return kernel.bound({BLOCK_N: tile})
