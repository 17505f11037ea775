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


def attention_sums(
    tile: int, dtype: DTypeLike = "f16", *, causal: bool = False, bias: bool = False, scale: float | None = None
) -> tkw.Kernel:
    """Return a kernel that computes logs[b, h, m] = log(sum over n of exp(scale * <q[b, h, m], k[b, h, n]>)).

    Arguments: q[B, H, M, D], k[B, H, N, D] of type `dtype`; with `bias` a bias[B, H, M, N] in f32 (f64 for f64) that is
    added to the scores; then logs[B, H, M] in f32 (f64 for f64). `scale` is 1 / sqrt(D) unless given. With `causal`,
    query m sees the keys up to m. `tile` is the tile size along the keys.

    >>> import numpy as np, tilewright
    >>> q, k = np.zeros((1, 1, 2, 1), np.float32), np.zeros((1, 1, 2, 1), np.float32)
    >>> np.exp(tilewright.compile(attention_sums(2, "f32", causal=True), strict=True)(q, k)).round(4)
    array([[[1., 2.]]], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    Queries: Any = tkl.Memory[B, H, M, D, GLOBAL, of_data]
    Keys: Any = tkl.Memory[B, H, N, D, GLOBAL, of_data]
    Rows: Any = tkl.Memory[B, H, M, GLOBAL, of_sums]

    def add_up(q: Any, k: Any, bias: Any, logs: Any) -> None:
        start = [tkl.Register[B, H, M, of_sums](x) for x in (lowest(of_sums), 0.0)]

        @tkw.iterate(N, init_args=start)
        def row_facts(highest: Any, total: Any) -> Any:
            scores = _scores(q, k, bias, of_sums, causal, scale)
            higher = tkw.max(scores, highest, dim=N)
            return higher, tkw.sum(tkw.exp(scores - higher), total * tkw.exp(highest - higher), dim=N)

        highest, total = row_facts
        tkw.write(highest + tkw.log(total), logs)

    tiling = [tkw.TilingConstraint(N, BLOCK_N)]
    if bias:

        @tkw.wave(tiling)
        def attention_sums_with_bias(
            q: Queries, k: Keys, bias: tkl.Memory[B, H, M, N, GLOBAL, of_sums], logs: Rows
        ) -> None:
            add_up(q, k, bias, logs)

        return attention_sums_with_bias.bound({BLOCK_N: tile})

    @tkw.wave(tiling)
    def attention_sums(q: Queries, k: Keys, logs: Rows) -> None:
        add_up(q, k, None, logs)

    return attention_sums.bound({BLOCK_N: tile})


def attention_query_gradient(
    tile: int, dtype: DTypeLike = "f16", *, causal: bool = False, bias: bool = False, scale: float | None = None
) -> tkw.Kernel:
    """Return a kernel that computes dq[B, H, M, D], the gradient of the loss by the argument q of `attention`.

    Arguments, all but the named ones of type `dtype`: q[B, H, M, D], k[B, H, N, D], v[B, H, N, E]; dout[B, H, M, E],
    the gradient of the loss by attention's result `out`; logs[B, H, M] from `attention_sums` and along[B, H, M], the
    sum over e of out * dout, both in f32 (f64 for f64); with `bias` the bias[B, H, M, N] of the scores, in f32 (f64 for
    f64); then dq. The options are those of `attention_sums`; `tile` is the tile size along the keys.
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    Queries: Any = tkl.Memory[B, H, M, D, GLOBAL, of_data]
    Keys: Any = tkl.Memory[B, H, N, D, GLOBAL, of_data]
    Values: Any = tkl.Memory[B, H, N, E, GLOBAL, of_data]
    Out: Any = tkl.Memory[B, H, M, E, GLOBAL, of_data]
    Rows: Any = tkl.Memory[B, H, M, GLOBAL, of_sums]
    Scores: Any = tkl.Memory[B, H, M, N, GLOBAL, of_sums]

    def add_up(q: Any, k: Any, v: Any, dout: Any, logs: Any, along: Any, bias: Any, dq: Any) -> None:
        @tkw.iterate(N, init_args=[tkl.Register[B, H, M, D, of_sums](0)])
        def total(acc: Any) -> Any:
            scores = _scores(q, k, bias, of_sums, causal, scale)
            _, slope = _weights_and_score_gradient(scores, v, dout, logs, along)
            return tkw.mma(tkw.cast(slope, of_data), tkw.read(k), acc)

        tkw.write(tkw.cast(total * _factor(of_sums, scale), of_data), dq)

    tiling = [tkw.TilingConstraint(N, BLOCK_N)]
    if bias:

        @tkw.wave(tiling)
        def attention_query_gradient_with_bias(
            q: Queries, k: Keys, v: Values, dout: Out, logs: Rows, along: Rows, bias: Scores, dq: Queries
        ) -> None:
            add_up(q, k, v, dout, logs, along, bias, dq)

        return attention_query_gradient_with_bias.bound({BLOCK_N: tile})

    @tkw.wave(tiling)
    def attention_query_gradient(
        q: Queries, k: Keys, v: Values, dout: Out, logs: Rows, along: Rows, dq: Queries
    ) -> None:
        add_up(q, k, v, dout, logs, along, None, dq)

    return attention_query_gradient.bound({BLOCK_N: tile})


def attention_key_gradient(
    tile: int, dtype: DTypeLike = "f16", *, causal: bool = False, bias: bool = False, scale: float | None = None
) -> tkw.Kernel:
    """Return a kernel that computes dk[B, H, N, D] and dv[B, H, N, E], the gradients of the loss by k and v of
    `attention`.

    Arguments are those of `attention_query_gradient` without dq: q, k, v, dout, logs, along, with `bias` the bias; then
    dk and dv, of type `dtype`. dv[n] is the sum over queries m of weight[m, n] * dout[m]. dk[n] is the sum over m of
    scale * g[m, n] * q[m], where g is the gradient of the loss by the scores. The options are those of
    `attention_sums`, but `tile` is the tile size along the queries.
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    Queries: Any = tkl.Memory[B, H, M, D, GLOBAL, of_data]
    Keys: Any = tkl.Memory[B, H, N, D, GLOBAL, of_data]
    Values: Any = tkl.Memory[B, H, N, E, GLOBAL, of_data]
    Out: Any = tkl.Memory[B, H, M, E, GLOBAL, of_data]
    Rows: Any = tkl.Memory[B, H, M, GLOBAL, of_sums]
    Scores: Any = tkl.Memory[B, H, M, N, GLOBAL, of_sums]

    def add_up(q: Any, k: Any, v: Any, dout: Any, logs: Any, along: Any, bias: Any, dk: Any, dv: Any) -> None:
        start = [tkl.Register[B, H, N, D, of_sums](0), tkl.Register[B, H, N, E, of_sums](0)]

        @tkw.iterate(M, init_args=start)
        def totals(of_keys: Any, of_values: Any) -> Any:
            scores = _scores(q, k, bias, of_sums, causal, scale)
            weights, slope = _weights_and_score_gradient(scores, v, dout, logs, along)
            of_keys = tkw.mma(tkw.cast(slope, of_data), tkw.read(q), of_keys)
            return of_keys, tkw.mma(tkw.cast(weights, of_data), tkw.read(dout), of_values)

        of_keys, of_values = totals
        tkw.write(tkw.cast(of_keys * _factor(of_sums, scale), of_data), dk)
        tkw.write(tkw.cast(of_values, of_data), dv)

    tiling = [tkw.TilingConstraint(M, BLOCK_M)]
    if bias:

        @tkw.wave(tiling)
        def attention_key_gradient_with_bias(
            q: Queries, k: Keys, v: Values, dout: Out, logs: Rows, along: Rows, bias: Scores, dk: Keys, dv: Values
        ) -> None:
            add_up(q, k, v, dout, logs, along, bias, dk, dv)

        return attention_key_gradient_with_bias.bound({BLOCK_M: tile})

    @tkw.wave(tiling)
    def attention_key_gradient(
        q: Queries, k: Keys, v: Values, dout: Out, logs: Rows, along: Rows, dk: Keys, dv: Values
    ) -> None:
        add_up(q, k, v, dout, logs, along, None, dk, dv)

    return attention_key_gradient.bound({BLOCK_M: tile})


def _factor(of_sums: Any, scale: float | None) -> Any:
    """Return the factor of the scores: `scale`, or, if it is None, 1 / sqrt(D), emitted as a scalar of
    type `of_sums`.
    """
    return tkw.rsqrt(tkw.scalar(D, of_sums)) if scale is None else scale


def _scores(q: Any, k: Any, bias: Any, of_sums: Any, causal: bool, scale: float | None) -> Any:
    """Emit the scores of the current tiles and return them: q k^T times the factor, plus the bias, in type `of_sums`.

    `q`, `k` and `bias` are memory; `bias` may be None. With `causal`, scores of later keys (n > m) are -inf.
    """
    scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[B, H, M, N, of_sums](0)) * _factor(of_sums, scale)
    if bias is not None:
        scores = scores + tkw.read(bias)
    return tkw.select(tkw.self_index(N) <= tkw.self_index(M), scores, float("-inf")) if causal else scores


def _weights_and_score_gradient(scores: Any, v: Any, dout: Any, logs: Any, along: Any) -> tuple[Any, Any]:
    """Emit the softmax weights and the gradient of the loss by the scores for the current tiles of queries and keys;
    return both tiles.

    `scores` is a tile; `v`, `dout`, `logs` and `along` are memory. `logs` has the log-sum-exp of each row of scores,
    `along` the sum over e of out * dout. The gradient is weights * (dout v^T - along); the factor of the scores is not
    included.
    """
    log_sum = tkw.read(logs)
    weights = tkw.exp(scores - log_sum)
    score_gradient = tkw.mma(tkw.read(dout), tkw.read(v), tkl.Register[B, H, M, N, log_sum.type.dtype](0))
    return weights, weights * (score_gradient - tkw.read(along))
