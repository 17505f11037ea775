"""Tile programs of `every_program.py` that neither `tilewright.kernels` nor the plan corpus has, plainly written."""

from __future__ import annotations

from typing import Any

from corpus_kernels import B, C, D, E, F, H, K, M, N, P, Q, R, S, W, bf16, f32, memory

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.kernels.elementwise import gelu

ONE = tkl.sym.ONE

# -- products -------------------------------------------------------------------------------------------------


def gelu_and_residual() -> Any:
    """y = gelu(x w + b) + r."""

    @tkw.wave()
    def gelu_and_residual(
        x: memory(M, K, bf16), w: memory(N, K, bf16), b: memory(N, bf16), r: memory(M, N, bf16), y: memory(M, N, bf16)
    ) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(x), tkw.read(w), acc)

        value = gelu(total + tkw.cast(tkw.read(b), f32)) + tkw.cast(tkw.read(r), f32)
        tkw.write(tkw.cast(value, bf16), y)

    return gelu_and_residual


def norm_and_product() -> Any:
    """y = rms_norm(x) w: rows of an operand are normalised, rounded, then multiplied."""

    @tkw.wave()
    def norm_and_product(
        x: memory(M, K, bf16), g: memory(K, bf16), w: memory(N, K, bf16), y: memory(M, N, bf16)
    ) -> None:
        row = tkw.cast(tkw.read(x), f32)
        scale = tkw.rsqrt(tkw.sum(row * row, dim=K) / K + 1e-6)
        normal = tkw.cast(row * scale * tkw.cast(tkw.read(g), f32), bf16)
        tkw.write(tkw.cast(tkw.mma(normal, tkw.read(w), tkl.Register[M, N, f32](0)), bf16), y)

    return norm_and_product


def value_gradient(scale: float = 0.125) -> Any:
    """dv[n] = the sum over m of exp(scale * <q[m], k[n]> - l[m]) * do[m]: attention's weights, transposed."""

    @tkw.wave()
    def value_gradient(
        q: memory(B, H, M, D, bf16),
        k: memory(B, H, N, D, bf16),
        l: memory(B, H, M, f32),  # noqa: E741 - as papers call the logarithm of a row's sum
        do: memory(B, H, M, E, bf16),
        dv: memory(B, H, N, E, bf16),
    ) -> None:
        @tkw.iterate(M, init_args=[tkl.Register[B, H, N, E, f32](0)])
        def total(acc: Any) -> Any:
            scores = tkw.mma(tkw.read(k), tkw.read(q), tkl.Register[B, H, N, M, f32](0)) * scale
            weights = tkw.exp(scores - tkw.read(l))
            return tkw.mma(tkw.cast(weights, bf16), tkw.read(do), acc)

        tkw.write(tkw.cast(total, bf16), dv)

    return value_gradient


def triangular(side: str) -> Any:
    """y = a b where a is lower triangular, or the lower triangle of a b: the others are 0."""

    @tkw.wave()
    def triangular(a: memory(M, K, bf16), b: memory(N, K, bf16), y: memory(M, N, bf16)) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0)])
        def total(acc: Any) -> Any:
            left = tkw.read(a)
            if side == "operand":
                left = tkw.select(tkw.self_index(K) <= tkw.self_index(M), left, 0)
            return tkw.mma(left, tkw.read(b), acc)

        value = total
        if side == "result":
            value = tkw.select(tkw.self_index(N) <= tkw.self_index(M), total, 0)
        tkw.write(tkw.cast(value, bf16), y)

    return triangular


# -- images ---------------------------------------------------------------------------------------------------


def conv_nchw(taps: int, stride: int, padding: int) -> Any:
    """y[n, f, p, q] = the sum over c, r, s of x[n, c, h, w] * w[f, c, r, s], as PyTorch lays them out."""
    n, p, q, c, r, s = (tkw.IndexMapping.iterator(i) for i in range(6))
    window = tkw.IndexMapping(
        6,
        inputs={N: n, C: c, H: stride * p + r - padding, W: stride * q + s - padding},
        outputs={N: n, P: p, Q: q, C: c, R: r, S: s},
    )

    @tkw.wave()
    def conv_nchw(x: memory(N, C, H, W, bf16), w: memory(F, C, R, S, bf16), y: memory(N, F, P, Q, bf16)) -> None:
        image = tkw.read(x, mapping=window, otherwise=0)
        total = tkw.mma(tkw.read(w), image, tkl.Register[N, F, P, Q, f32](0))
        tkw.write(tkw.cast(total, bf16), y)

    sizes = {out: (size + 2 * padding - taps) // stride + 1 for out, size in ((P, H), (Q, W))}
    return conv_nchw.bound({R: taps, S: taps, **sizes})


def depthwise_nchw() -> Any:
    """y[n, c, p, q] = the sum over r, s of x[n, c, p+r-1, q+s-1] * w[c, r, s], a product with channels as its batch."""
    n, c, p, q, r, s = (tkw.IndexMapping.iterator(i) for i in range(6))
    window = tkw.IndexMapping(
        6,
        inputs={N: n, C: c, H: p + r - 1, W: q + s - 1},
        outputs={N: n, C: c, P: p, Q: q, R: r, S: s},
    )

    @tkw.wave()
    def depthwise_nchw(x: memory(N, C, H, W, bf16), w: memory(C, R, S, bf16), y: memory(N, C, P, Q, bf16)) -> None:
        image = tkw.read(x, mapping=window, otherwise=0)
        total = tkw.mma(image, tkw.read(w), tkl.Register[N, C, P, Q, f32](0))
        tkw.write(tkw.cast(total, bf16), y)

    return depthwise_nchw.bound({P: H, Q: W, R: 3, S: 3})


# -- rows -----------------------------------------------------------------------------------------------------


def quantised_rows() -> Any:
    """y = x / s as e4m3, and s, the largest magnitude of each row by 448, the largest number of e4m3."""

    @tkw.wave()
    def quantised_rows(x: memory(M, N, bf16), y: memory(M, N, tkl.f8e4m3fn), s: memory(M, f32)) -> None:
        row = tkw.cast(tkw.read(x), f32)
        scale = tkw.max(tkw.abs(row), dim=N) / 448.0
        tkw.write(scale, s)
        tkw.write(tkw.cast(row / scale, tkl.f8e4m3fn), y)

    return quantised_rows


def sum_of_doubled() -> Any:
    """y = the sum of 2 x."""

    @tkw.wave()
    def sum_of_doubled(x: memory(N, f32), y: memory(ONE, f32)) -> None:
        tkw.write(tkw.broadcast(tkw.sum(tkw.read(x) * 2.0, dim=N), [ONE]), y)

    return sum_of_doubled.bound({ONE: 1})


def sum_of_sums() -> Any:
    """y = the sum of the sums of rows."""

    @tkw.wave()
    def sum_of_sums(x: memory(M, N, f32), y: memory(ONE, f32)) -> None:
        tkw.write(tkw.broadcast(tkw.sum(tkw.sum(tkw.read(x), dim=N), dim=M), [ONE]), y)

    return sum_of_sums.bound({ONE: 1})


def mean_loss() -> Any:
    """y = the mean of (a - b)^2."""

    @tkw.wave()
    def mean_loss(a: memory(M, N, f32), b: memory(M, N, f32), y: memory(ONE, f32)) -> None:
        apart = tkw.read(a) - tkw.read(b)
        total = tkw.sum(tkw.sum(apart * apart, dim=N), dim=M)
        tkw.write(tkw.broadcast(total / (M * N), [ONE]), y)

    return mean_loss.bound({ONE: 1})
