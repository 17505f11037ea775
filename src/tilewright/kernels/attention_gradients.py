"""Gradients of attention, from the log-sum-exp of each row of scores: the matrix of all weights is never stored."""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir.dtypes import DTypeLike, element_type
from tilewright.kernels.softmax import lowest

B, H, M, N, D, E = (getattr(tkl.sym, name) for name in "BHMNDE")
BLOCK_M, BLOCK_N = tkl.sym.BLOCK_M, tkl.sym.BLOCK_N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def attention_sums(tile: int, dtype: DTypeLike = "f16", *, causal: bool = False) -> tkw.Kernel:
    """Return a kernel that computes logs[b, h, m] = log(sum over n of exp(<q[b, h, m], k[b, h, n]> / sqrt(D))).

    Arguments: q[B, H, M, D], k[B, H, N, D] of type `dtype`, then logs[B, H, M] in f32 (f64 for f64). With `causal`, the
    sum is over the keys n <= m. `tile` is the tile size along the keys.

    >>> import numpy as np, tilewright
    >>> q, k = np.zeros((1, 1, 2, 1), np.float32), np.zeros((1, 1, 2, 1), np.float32)
    >>> np.exp(tilewright.compile(attention_sums(2, "f32", causal=True), strict=True)(q, k)).round(4)
    array([[[1., 2.]]], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator

    @tkw.wave([tkw.TilingConstraint(N, BLOCK_N)])
    def attention_sums(
        q: tkl.Memory[B, H, M, D, GLOBAL, of_data],
        k: tkl.Memory[B, H, N, D, GLOBAL, of_data],
        logs: tkl.Memory[B, H, M, GLOBAL, of_sums],
    ) -> None:
        start = [tkl.Register[B, H, M, of_sums](x) for x in (lowest(of_sums), 0.0)]

        @tkw.iterate(N, init_args=start)
        def row_facts(highest: Any, total: Any) -> Any:
            scores = _scores(q, k, of_sums, causal)
            higher = tkw.max(scores, highest, dim=N)
            return higher, tkw.sum(tkw.exp(scores - higher), total * tkw.exp(highest - higher), dim=N)

        highest, total = row_facts
        tkw.write(highest + tkw.log(total), logs)

    return attention_sums.bound({BLOCK_N: tile})


def attention_query_gradient(tile: int, dtype: DTypeLike = "f16", *, causal: bool = False) -> tkw.Kernel:
    """Return a kernel that computes dq[B, H, M, D], the gradient of the loss by the argument q of `attention`, with the
    scale 1 / sqrt(D).

    Arguments: q[B, H, M, D], k[B, H, N, D], v[B, H, N, E] and dout[B, H, M, E], the gradient of the loss by attention's
    result `out`, of type `dtype`; logs[B, H, M] from `attention_sums` and along[B, H, M], the sum over e of out * dout,
    both in f32 (f64 for f64); then dq, of type `dtype`. With `causal`, query m sees the keys n <= m. `tile` is the tile
    size along the keys.
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    Rows: Any = tkl.Memory[B, H, M, GLOBAL, of_sums]

    @tkw.wave([tkw.TilingConstraint(N, BLOCK_N)])
    def attention_query_gradient(
        q: tkl.Memory[B, H, M, D, GLOBAL, of_data],
        k: tkl.Memory[B, H, N, D, GLOBAL, of_data],
        v: tkl.Memory[B, H, N, E, GLOBAL, of_data],
        dout: tkl.Memory[B, H, M, E, GLOBAL, of_data],
        logs: Rows,
        along: Rows,
        dq: tkl.Memory[B, H, M, D, GLOBAL, of_data],
    ) -> None:
        @tkw.iterate(N, init_args=[tkl.Register[B, H, M, D, of_sums](0)])
        def total(acc: Any) -> Any:
            _, slope = _weights_and_score_gradient(q, k, v, dout, logs, along, causal)
            return tkw.mma(tkw.cast(slope, of_data), tkw.read(k), acc)

        tkw.write(tkw.cast(total * tkw.rsqrt(tkw.scalar(D, of_sums)), of_data), dq)

    return attention_query_gradient.bound({BLOCK_N: tile})


def attention_key_gradient(tile: int, dtype: DTypeLike = "f16", *, causal: bool = False) -> tkw.Kernel:
    """Return a kernel that computes dk[B, H, N, D] and dv[B, H, N, E], the gradients of the loss by the arguments k and
    v of `attention`, with the scale 1 / sqrt(D).

    The arguments before dk and dv are those of `attention_query_gradient`: q, k, v, dout, logs, along. dv[n] is the sum
    over queries m of weight[m, n] * dout[m]. dk[n] is the sum over m of g[m, n] * q[m] / sqrt(D), where g is the
    gradient of the loss by the scaled scores. With `causal`, query m sees the keys n <= m. `tile` is the tile size
    along the queries.
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    Rows: Any = tkl.Memory[B, H, M, GLOBAL, of_sums]
    Keys: Any = tkl.Memory[B, H, N, D, GLOBAL, of_data]
    Values: Any = tkl.Memory[B, H, N, E, GLOBAL, of_data]

    @tkw.wave([tkw.TilingConstraint(M, BLOCK_M)])
    def attention_key_gradient(
        q: tkl.Memory[B, H, M, D, GLOBAL, of_data],
        k: Keys,
        v: Values,
        dout: tkl.Memory[B, H, M, E, GLOBAL, of_data],
        logs: Rows,
        along: Rows,
        dk: Keys,
        dv: Values,
    ) -> None:
        start = [tkl.Register[B, H, N, D, of_sums](0), tkl.Register[B, H, N, E, of_sums](0)]

        @tkw.iterate(M, init_args=start)
        def totals(of_keys: Any, of_values: Any) -> Any:
            weights, slope = _weights_and_score_gradient(q, k, v, dout, logs, along, causal)
            of_keys = tkw.mma(tkw.cast(slope, of_data), tkw.read(q), of_keys)
            return of_keys, tkw.mma(tkw.cast(weights, of_data), tkw.read(dout), of_values)

        of_keys, of_values = totals
        tkw.write(tkw.cast(of_keys * tkw.rsqrt(tkw.scalar(D, of_sums)), of_data), dk)
        tkw.write(tkw.cast(of_values, of_data), dv)

    return attention_key_gradient.bound({BLOCK_M: tile})


def _scores(q: Any, k: Any, of_sums: Any, causal: bool) -> Any:
    """Emit the scores of the current tiles and return them: q k^T / sqrt(D), in type `of_sums`. `q` and `k` are memory.
    With `causal`, scores of later keys (n > m) are -inf.
    """
    scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[B, H, M, N, of_sums](0))
    scores = scores * tkw.rsqrt(tkw.scalar(D, of_sums))
    return tkw.select(tkw.self_index(N) <= tkw.self_index(M), scores, float("-inf")) if causal else scores


def _weights_and_score_gradient(
    q: Any, k: Any, v: Any, dout: Any, logs: Any, along: Any, causal: bool
) -> tuple[Any, Any]:
    """Emit the softmax weights and the gradient of the loss by the scores, for the current tiles of queries and keys;
    return both as tiles.

    All arguments but the flag `causal` are memory: `logs` has the log-sum-exp of each row of scores, `along` the sum
    over e of out * dout. The gradient is weights * (dout v^T - along), without the factor 1 / sqrt(D).
    """
    log_sum = tkw.read(logs)
    of_sums = log_sum.type.dtype
    weights = tkw.exp(_scores(q, k, of_sums, causal) - log_sum)
    score_gradient = tkw.mma(tkw.read(dout), tkw.read(v), tkl.Register[B, H, M, N, of_sums](0))
    return weights, weights * (score_gradient - tkw.read(along))
