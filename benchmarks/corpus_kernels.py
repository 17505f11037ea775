"""Kernels of the plan corpus that `tilewright.kernels` does not have: forms that planners have missed, or may miss.

Each function gives a kernel; the sizes are those of `corpus_problems.py`.
"""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw

B, C, D, E, F, H, K, L, M, N, P, Q, R, S, W = (getattr(tkl.sym, name) for name in "BCDEFHKLMNPQRSW")
KV, GQ = tkl.sym.KV, tkl.sym.GQ
GLOBAL, f32, bf16, i8 = tkl.GLOBAL_ADDRESS_SPACE, tkl.f32, tkl.bf16, tkl.i8


def memory(*dims_and_type: Any) -> Any:
    """The type of an argument: its dimensions, then the type of its elements."""
    *dims, dtype = dims_and_type
    return tkl.Memory[(*dims, GLOBAL, dtype)]


# -- attention ------------------------------------------------------------------------------------------------


def grouped_query(
    tile: int, dtype: str = "bf16", *, causal: bool = False, window: int | None = None, first_query: int = 0
) -> Any:
    """Attention in which the GQ heads of a group share keys and values; with a window, a query sees that many keys.

    Causal, query m sees the keys up to m + first_query.
    """
    data = getattr(tkl, dtype)

    @tkw.wave([tkw.TilingConstraint(N, tile)])
    def grouped_query(
        q: memory(B, KV, GQ, M, D, data),
        k: memory(B, KV, N, D, data),
        v: memory(B, KV, N, E, data),
        o: memory(B, KV, GQ, M, E, data),
    ) -> None:
        rows = (B, KV, GQ, M)
        start = [tkl.Register[(*rows, f32)](-1e30), tkl.Register[(*rows, f32)](0), tkl.Register[(*rows, E, f32)](0)]

        @tkw.iterate(N, init_args=start)
        def walk(highest: Any, total: Any, mean: Any) -> Any:
            scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[(*rows, N, f32)](0)) * 0.125
            if causal:
                last = tkw.self_index(M) + first_query if first_query else tkw.self_index(M)
                scores = tkw.select(tkw.self_index(N) <= last, scores, float("-inf"))
            if window is not None:
                scores = tkw.select(tkw.self_index(N) > tkw.self_index(M) - window, scores, float("-inf"))
            higher = tkw.max(scores, highest, dim=N)
            weights, shrink = tkw.exp(scores - higher), tkw.exp(highest - higher)
            total = tkw.sum(weights, total * shrink, dim=N)
            return higher, total, tkw.mma(tkw.cast(weights, data), tkw.read(v), mean * shrink)

        _, total, mean = walk
        tkw.write(tkw.cast(mean / total, data), o)

    return grouped_query


def scores_only(dtype: str = "bf16") -> Any:
    """The weights of attention, written out: softmax over keys of q k."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def scores(q: memory(B, H, M, D, data), k: memory(B, H, N, D, data), y: memory(B, H, M, N, data)) -> None:
        found = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[B, H, M, N, f32](0))
        weights = tkw.exp(found - tkw.max(found, dim=N))
        tkw.write(tkw.cast(weights / tkw.sum(weights, dim=N), data), y)

    return scores


# -- products -------------------------------------------------------------------------------------------------


def matrix_vector(dtype: str = "bf16") -> Any:
    """y = w x."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def matrix_vector(w: memory(N, K, data), x: memory(K, data), y: memory(N, data)) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[N, f32](0)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(w), tkw.read(x), acc)

        tkw.write(tkw.cast(total, data), y)

    return matrix_vector


def batched_vectors(dtype: str = "bf16") -> Any:
    """y[b] = x[b] w[b], a vector by a matrix for each b."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def batched_vectors(x: memory(B, K, data), w: memory(B, K, N, data), y: memory(B, N, data)) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[B, N, f32](0)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(x), tkw.read(w), acc)

        tkw.write(tkw.cast(total, data), y)

    return batched_vectors


def gated_unit(dtype: str = "bf16") -> Any:
    """y = silu(x w) * (x u): two products that share an operand."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def gated_unit(x: memory(M, K, data), w: memory(N, K, data), u: memory(N, K, data), y: memory(M, N, data)) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0), tkl.Register[M, N, f32](0)])
        def both(gate: Any, up: Any) -> Any:
            return tkw.mma(tkw.read(x), tkw.read(w), gate), tkw.mma(tkw.read(x), tkw.read(u), up)

        gate, up = both
        tkw.write(tkw.cast(gate * tkw.sigmoid(gate) * up, data), y)

    return gated_unit


def low_rank(dtype: str = "bf16") -> Any:
    """y = x w + (x a) b; the rank L of the second term is small."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def low_rank(
        x: memory(M, K, data),
        w: memory(N, K, data),
        a: memory(L, K, data),
        b: memory(N, L, data),
        y: memory(M, N, data),
    ) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0), tkl.Register[M, L, f32](0)])
        def both(acc: Any, low: Any) -> Any:
            return tkw.mma(tkw.read(x), tkw.read(w), acc), tkw.mma(tkw.read(x), tkw.read(a), low)

        acc, low = both
        tkw.write(tkw.cast(tkw.mma(tkw.cast(low, data), tkw.read(b), acc), data), y)

    return low_rank


def byte_weights() -> Any:
    """y = (x w) * s: weights of i8 that are widened to bf16, a scale for each column."""

    @tkw.wave()
    def byte_weights(x: memory(M, K, bf16), w: memory(N, K, i8), s: memory(N, f32), y: memory(M, N, bf16)) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(x), tkw.cast(tkw.read(w), bf16), acc)

        tkw.write(tkw.cast(total * tkw.read(s), bf16), y)

    return byte_weights


def with_residual(dtype: str = "bf16") -> Any:
    """y = x w + r."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def with_residual(
        x: memory(M, K, data), w: memory(N, K, data), r: memory(M, N, data), y: memory(M, N, data)
    ) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(x), tkw.read(w), acc)

        tkw.write(tkw.cast(total + tkw.cast(tkw.read(r), f32), data), y)

    return with_residual


def row_energy(dtype: str = "bf16") -> Any:
    """y[m] = the sum over n of the squares of (x w)[m, n]: nothing of the product itself is written."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def row_energy(x: memory(M, K, data), w: memory(N, K, data), y: memory(M, f32)) -> None:
        found = tkw.mma(tkw.read(x), tkw.read(w), tkl.Register[M, N, f32](0))
        tkw.write(tkw.sum(found * found, dim=N), y)

    return row_energy


def filter_gradient(dtype: str = "bf16") -> Any:
    """dw[f, r, s, c] = the sum over n, p, q of dy[n, p, q, f] * x[n, p+r-1, q+s-1, c], of a 3x3 convolution."""
    data = getattr(tkl, dtype)
    n, p, q, r, s, c = (tkw.IndexMapping.iterator(i) for i in range(6))
    window = tkw.IndexMapping(
        6, inputs={B: n, H: p + r - 1, W: q + s - 1, C: c}, outputs={B: n, P: p, Q: q, R: r, S: s, C: c}
    )

    @tkw.wave()
    def filter_gradient(x: memory(B, H, W, C, data), dy: memory(B, P, Q, F, data), dw: memory(F, R, S, C, f32)) -> None:
        image = tkw.read(x, mapping=window, otherwise=0)
        tkw.write(tkw.mma(tkw.read(dy), image, tkl.Register[F, R, S, C, f32](0)), dw)

    return filter_gradient


def image_gradient(dtype: str = "bf16") -> Any:
    """dx[n, h, w, c] = the sum over r, s, f of dy[n, h-r+1, w-s+1, f] * w[f, r, s, c], of a 3x3 convolution."""
    data = getattr(tkl, dtype)
    n, h, w, r, s, f = (tkw.IndexMapping.iterator(i) for i in range(6))
    window = tkw.IndexMapping(
        6, inputs={B: n, P: h - r + 1, Q: w - s + 1, F: f}, outputs={B: n, H: h, W: w, R: r, S: s, F: f}
    )

    @tkw.wave()
    def image_gradient(dy: memory(B, P, Q, F, data), w: memory(F, R, S, C, data), dx: memory(B, H, W, C, data)) -> None:
        read = tkw.read(dy, mapping=window, otherwise=0)
        found = tkw.mma(read, tkw.read(w), tkl.Register[B, H, W, C, f32](0))
        tkw.write(tkw.cast(found, data), dx)

    return image_gradient
