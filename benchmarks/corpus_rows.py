"""Kernels of the plan corpus that multiply no matrices; grid programs, whose workgroups are part of their meaning."""

from __future__ import annotations

from typing import Any

from corpus_kernels import GQ, B, C, H, K, M, N, P, Q, R, S, W, f32, memory

import tilewright.lang as tkl
import tilewright.wave as tkw

# -- rows -----------------------------------------------------------------------------------------------------


def log_softmax(dtype: str = "bf16") -> Any:
    """Of each row, in f32."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def log_softmax(x: memory(M, N, data), y: memory(M, N, f32)) -> None:
        row = tkw.cast(tkw.read(x), f32)
        row = row - tkw.max(row, dim=N)
        tkw.write(row - tkw.log(tkw.sum(tkw.exp(row), dim=N)), y)

    return log_softmax


def causal_softmax(dtype: str = "bf16") -> Any:
    """Of the first m + 1 columns of row m; the others become 0."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def causal_softmax(x: memory(B, M, N, data), y: memory(B, M, N, data)) -> None:
        sees = tkw.self_index(N) <= tkw.self_index(M)
        row = tkw.select(sees, tkw.cast(tkw.read(x), f32), float("-inf"))
        weights = tkw.exp(row - tkw.max(row, dim=N))
        tkw.write(tkw.cast(weights / tkw.sum(weights, dim=N), data), y)

    return causal_softmax


def residual_norm(dtype: str = "bf16") -> Any:
    """y = x + r and z = the RMS norm of y, with weights: two results."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def residual_norm(
        x: memory(M, N, data), r: memory(M, N, data), g: memory(N, data), y: memory(M, N, data), z: memory(M, N, data)
    ) -> None:
        row = tkw.cast(tkw.read(x), f32) + tkw.cast(tkw.read(r), f32)
        tkw.write(tkw.cast(row, data), y)
        scaled = row * tkw.rsqrt(tkw.sum(row * row, dim=N) / N + 1e-6)
        tkw.write(tkw.cast(scaled * tkw.cast(tkw.read(g), f32), data), z)

    return residual_norm


def group_norm(dtype: str = "bf16") -> Any:
    """Over all places and the channels of a group, with silu at the end."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def group_norm(
        x: memory(B, P, GQ, C, data), g: memory(GQ, C, f32), b: memory(GQ, C, f32), y: memory(B, P, GQ, C, data)
    ) -> None:
        values, count = tkw.cast(tkw.read(x), f32), P * C
        values = values - tkw.sum(tkw.sum(values, dim=C), dim=P) / count
        variance = tkw.sum(tkw.sum(values * values, dim=C), dim=P) / count
        values = values * tkw.rsqrt(variance + 1e-5) * tkw.read(g) + tkw.read(b)
        tkw.write(tkw.cast(values * tkw.sigmoid(values), data), y)

    return group_norm


def column_moments(dtype: str = "f32") -> Any:
    """The sum of each column and that of its squares, as batch norms need them."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def column_moments(x: memory(M, N, data), s: memory(N, f32), q: memory(N, f32)) -> None:
        values = tkw.cast(tkw.read(x), f32)
        tkw.write(tkw.sum(values, dim=M), s)
        tkw.write(tkw.sum(values * values, dim=M), q)

    return column_moments


def pooled(combine: str, dtype: str = "bf16", stride: int = 2) -> Any:
    """The largest, or the sum, of 3x3 places; sizes of the output follow from those of the image, which is padded."""
    data = getattr(tkl, dtype)
    n, p, q, r, s, c = (tkw.IndexMapping.iterator(i) for i in range(6))
    window = tkw.IndexMapping(
        6,
        inputs={N: n, H: stride * p + r - 1, W: stride * q + s - 1, C: c},
        outputs={N: n, P: p, Q: q, R: r, S: s, C: c},
    )
    reduce = getattr(tkw, combine)
    outside = float("-inf") if combine == "max" else 0

    @tkw.wave()
    def pooled(x: memory(N, H, W, C, data), y: memory(N, P, Q, C, data)) -> None:
        values = tkw.cast(tkw.read(x, mapping=window, otherwise=outside), f32)
        tkw.write(tkw.cast(reduce(reduce(values, dim=R), dim=S), data), y)

    return pooled.bound({P: (H - 1) // stride + 1, Q: (W - 1) // stride + 1, R: 3, S: 3})


def pixel_shuffle(dtype: str = "bf16") -> Any:
    """y[n, 2p + r, 2q + s, c] = x[n, p, q, r, s, c]: channels become places."""
    data = getattr(tkl, dtype)
    n, h, w, c = (tkw.IndexMapping.iterator(i) for i in range(4))
    places = tkw.IndexMapping(
        4, inputs={N: n, P: h // 2, Q: w // 2, R: h % 2, S: w % 2, C: c}, outputs={N: n, H: h, W: w, C: c}
    )

    @tkw.wave()
    def pixel_shuffle(x: memory(N, P, Q, R, S, C, data), y: memory(N, H, W, C, data)) -> None:
        tkw.write(tkw.read(x, mapping=places), y)

    return pixel_shuffle.bound({R: 2, S: 2, H: 2 * P, W: 2 * Q})


# -- grid programs --------------------------------------------------------------------------------------------


def grid_product(rows: int, columns: int, depth: int, dtype: str = "bf16", *, batched: bool = False) -> Any:
    """c = a b transposed, by workgroups of so many rows and columns."""
    data, kept = getattr(tkl, dtype), (B,) if batched else ()
    total_type = tkl.i32 if dtype == "i8" else f32
    constraints = [
        tkw.WorkgroupConstraint(M, rows, 0),
        tkw.WorkgroupConstraint(N, columns, 1),
        *([tkw.WorkgroupConstraint(B, 1, 2)] if batched else []),
        tkw.TilingConstraint(K, depth),
    ]

    @tkw.wave(constraints)
    def grid_product(
        a: memory(*kept, M, K, data), b: memory(*kept, N, K, data), c: memory(*kept, M, N, total_type)
    ) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[(*kept, M, N, total_type)](0)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.write(total, c)

    return grid_product


def grid_softmax(rows: int, dtype: str = "f32") -> Any:
    """A softmax of rows, by workgroups of so many."""
    data = getattr(tkl, dtype)

    @tkw.wave([tkw.WorkgroupConstraint(M, rows, 0)])
    def grid_softmax(x: memory(M, N, data), y: memory(M, N, data)) -> None:
        row = tkw.cast(tkw.read(x), f32)
        weights = tkw.exp(row - tkw.max(row, dim=N))
        tkw.write(tkw.cast(weights / tkw.sum(weights, dim=N), data), y)

    return grid_softmax


def grid_sum(rows: int, columns: int, dtype: str = "f32") -> Any:
    """z = x + y, by workgroups of so many rows and columns."""
    data = getattr(tkl, dtype)

    @tkw.wave([tkw.WorkgroupConstraint(M, rows, 0), tkw.WorkgroupConstraint(N, columns, 1)])
    def grid_sum(x: memory(M, N, data), y: memory(M, N, data), z: memory(M, N, data)) -> None:
        tkw.write(tkw.read(x) + tkw.read(y), z)

    return grid_sum
