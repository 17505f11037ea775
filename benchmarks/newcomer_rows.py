"""Operators of PyTorch on elements and rows, as a newcomer writes them: maps, reductions, norms, losses, scans."""

from __future__ import annotations

from typing import Any

import numpy as np
from newcomer_form import f32, i32, iterators, memory, operator

import tilewright.lang as tkl
import tilewright.wave as tkw

A, B, C, H, K, M, N, W = (getattr(tkl.sym, name) for name in "ABCHKMNW")
ONE = tkl.sym.ONE

MATRIX, SMALL = {"M": 8192, "N": 4096}, {"M": 3, "N": 5}
ROWS, SMALL_ROWS = {"M": 8192, "N": 8192}, {"M": 3, "N": 37}
WORDS, FEW_WORDS = {"M": 4096, "N": 32000}, {"M": 3, "N": 37}
IMAGE, SMALL_IMAGE = {"B": 32, "C": 256, "H": 56, "W": 56}, {"B": 2, "C": 3, "H": 4, "W": 5}
SCALAR, SMALL_SCALAR = {"M": 8192, "N": 8192, "ONE": 1}, {"M": 3, "N": 37, "ONE": 1}


def of_two(name: str, compute: Any, wanted: Any, **others: Any) -> None:
    """Add an operator on the elements of one matrix."""

    @operator("pointwise", MATRIX, SMALL, name, **others)
    def make(t: Any) -> Any:
        @tkw.wave()
        def pointwise(x: memory(M, N, t), y: memory(M, N, t)) -> None:
            tkw.write(compute(tkw.read(x)), y)

        return pointwise, wanted


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


of_two("relu", lambda x: tkw.maximum(x, 0.0), lambda x: np.maximum(x, 0))
of_two("leaky_relu", lambda x: tkw.select(x > 0.0, x, x * 0.25), lambda x: np.where(x > 0, x, x * 0.25))
of_two("hardtanh", lambda x: tkw.minimum(tkw.maximum(x, -1.0), 1.0), lambda x: np.clip(x, -1, 1))
of_two("abs", tkw.abs, np.abs, of="bf16")
of_two("sigmoid", tkw.sigmoid, sigmoid, exact=False)
of_two("silu", lambda x: x * tkw.sigmoid(x), lambda x: x * sigmoid(x), exact=False)
of_two("tanh", tkw.tanh, np.tanh, exact=False)
of_two("elu", lambda x: tkw.select(x > 0.0, x, tkw.expm1(x)), lambda x: np.where(x > 0, x, np.expm1(x)), exact=False)
of_two(
    "gelu",
    lambda x: 0.5 * x * (1.0 + tkw.tanh(0.7978845608 * (x + 0.044715 * x * x * x))),
    lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3.0))),
    exact=False,
)
of_two(
    "hardswish",
    lambda x: x * tkw.minimum(tkw.maximum(x + 3.0, 0.0), 6.0) / 8.0,
    lambda x: x * np.clip(x + 3, 0, 6) / 8,
)


@operator("pointwise", MATRIX, SMALL)
def add(t: Any) -> Any:
    @tkw.wave()
    def add(a: memory(M, N, t), b: memory(M, N, t), y: memory(M, N, t)) -> None:
        tkw.write(tkw.read(a) + tkw.read(b), y)

    return add, lambda a, b: a + b


@operator("pointwise", MATRIX, SMALL)
def addcmul(t: Any) -> Any:
    @tkw.wave()
    def addcmul(x: memory(M, N, t), a: memory(M, N, t), b: memory(M, N, t), y: memory(M, N, t)) -> None:
        tkw.write(tkw.read(x) + 0.5 * tkw.read(a) * tkw.read(b), y)

    return addcmul, lambda x, a, b: x + 0.5 * a * b


@operator("pointwise", MATRIX, SMALL)
def where(t: Any) -> Any:
    @tkw.wave()
    def where(mask: memory(M, N, i32), a: memory(M, N, t), b: memory(M, N, t), y: memory(M, N, t)) -> None:
        tkw.write(tkw.select(tkw.read(mask) == 1, tkw.read(a), tkw.read(b)), y)

    return where, lambda mask, a, b: np.where(mask == 1, a, b)


@operator("pointwise", MATRIX, SMALL)
def lerp(t: Any) -> Any:
    @tkw.wave()
    def lerp(a: memory(M, N, t), b: memory(M, N, t), y: memory(M, N, t)) -> None:
        start = tkw.read(a)
        tkw.write(start + 0.25 * (tkw.read(b) - start), y)

    return lerp, lambda a, b: a + 0.25 * (b - a)


@operator("pointwise", IMAGE, SMALL_IMAGE)
def bias_of_channels(t: Any) -> Any:
    @tkw.wave()
    def bias_of_channels(x: memory(B, C, H, W, t), b: memory(C, t), y: memory(B, C, H, W, t)) -> None:
        tkw.write(tkw.read(x) + tkw.read(b), y)

    return bias_of_channels, lambda x, b: x + b[:, None, None]


@operator("pointwise", IMAGE, SMALL_IMAGE)
def prelu(t: Any) -> Any:
    @tkw.wave()
    def prelu(x: memory(B, C, H, W, t), a: memory(C, t), y: memory(B, C, H, W, t)) -> None:
        value = tkw.read(x)
        tkw.write(tkw.select(value > 0.0, value, value * tkw.read(a)), y)

    return prelu, lambda x, a: np.where(x > 0, x, x * a[:, None, None])


@operator("pointwise", {"M": 8192, "N": 11008}, SMALL, of="bf16", exact=False)
def silu_and_mul(t: Any) -> Any:
    @tkw.wave()
    def silu_and_mul(gate: memory(M, N, t), up: memory(M, N, t), y: memory(M, N, t)) -> None:
        g = tkw.cast(tkw.read(gate), f32)
        tkw.write(tkw.cast(g * tkw.sigmoid(g) * tkw.cast(tkw.read(up), f32), t), y)

    return silu_and_mul, lambda g, u: g * sigmoid(g) * u


# -- reductions -----------------------------------------------------------------------------------------------


@operator("reduction", SCALAR, SMALL_SCALAR)
def sum_of_all(t: Any) -> Any:
    @tkw.wave()
    def sum_of_all(x: memory(M, N, t), y: memory(ONE, t)) -> None:
        tkw.write(tkw.broadcast(tkw.sum(tkw.read(x), dim=[M, N]), [ONE]), y)

    return sum_of_all, lambda x: x.sum().reshape(1)


def of_rows(name: str, compute: Any, wanted: Any, **others: Any) -> None:
    """Add a reduction of the rows of a matrix."""

    @operator("reduction", ROWS, SMALL_ROWS, name, **others)
    def make(t: Any) -> Any:
        @tkw.wave()
        def of_rows(x: memory(M, N, t), y: memory(M, t)) -> None:
            tkw.write(compute(tkw.read(x)), y)

        return of_rows, wanted


def log_of_sum(x: Any) -> Any:
    highest = tkw.max(x, dim=N)
    return highest + tkw.log(tkw.sum(tkw.exp(x - highest), dim=N))


def variance(x: Any) -> Any:
    apart = x - tkw.sum(x, dim=N) / N
    return tkw.sum(apart * apart, dim=N) / N


of_rows("sum_of_rows", lambda x: tkw.sum(x, dim=N), lambda x: x.sum(1))
of_rows("amax", lambda x: tkw.max(x, dim=N), lambda x: x.max(1))
of_rows("prod", lambda x: tkw.prod(x, dim=N), lambda x: x.prod(1))
of_rows("vector_norm", lambda x: tkw.sqrt(tkw.sum(x * x, dim=N)), lambda x: np.sqrt((x * x).sum(1)))
of_rows("var", variance, lambda x: x.var(1), exact=False)
of_rows("logsumexp", log_of_sum, lambda x: np.log(np.exp(x).sum(1)), exact=False)
of_rows(
    "count_nonzero",
    lambda x: tkw.sum(tkw.select(x != 0.0, tkw.scalar(1.0, f32), 0.0), dim=N),
    lambda x: (x != 0).sum(1),
)


@operator("reduction", ROWS, SMALL_ROWS)
def argmax(t: Any) -> Any:
    @tkw.wave()
    def argmax(x: memory(M, N, t), y: memory(M, i32)) -> None:
        tkw.write(tkw.argmax(tkw.read(x), dim=N), y)

    return argmax, lambda x: x.argmax(1)


@operator("reduction", ROWS, SMALL_ROWS)
def sum_of_columns(t: Any) -> Any:
    @tkw.wave()
    def sum_of_columns(x: memory(M, N, t), y: memory(N, t)) -> None:
        tkw.write(tkw.sum(tkw.read(x), dim=M), y)

    return sum_of_columns, lambda x: x.sum(0)


@operator("reduction", {"A": 64, "B": 512, "C": 1024}, {"A": 2, "B": 7, "C": 5})
def sum_of_middle(t: Any) -> Any:
    @tkw.wave()
    def sum_of_middle(x: memory(A, B, C, t), y: memory(A, C, t)) -> None:
        tkw.write(tkw.sum(tkw.read(x), dim=B), y)

    return sum_of_middle, lambda x: x.sum(1)


@operator("reduction", IMAGE, SMALL_IMAGE)
def sum_of_channels(t: Any) -> Any:
    @tkw.wave()
    def sum_of_channels(x: memory(B, C, H, W, t), y: memory(C, t)) -> None:
        tkw.write(tkw.sum(tkw.read(x), dim=[B, H, W]), y)

    return sum_of_channels, lambda x: x.sum((0, 2, 3))


# -- norms ----------------------------------------------------------------------------------------------------


def rows_to_rows(name: str, sizes: Any, tiny: Any, compute: Any, wanted: Any, of: str = "f32") -> None:
    """Add an operator from the rows of a matrix to rows, computed in f32."""

    @operator("norm", sizes, tiny, name, of=of, exact=False)
    def make(t: Any) -> Any:
        @tkw.wave()
        def rows_to_rows(x: memory(M, N, t), y: memory(M, N, t)) -> None:
            tkw.write(tkw.cast(compute(tkw.cast(tkw.read(x), f32)), t), y)

        return rows_to_rows, wanted


def softmax_of(x: Any) -> Any:
    weights = tkw.exp(x - tkw.max(x, dim=N))
    return weights / tkw.sum(weights, dim=N)


def exps(x: Any, axis: int = 1) -> Any:
    weights = np.exp(x.astype(np.float64))
    return weights / weights.sum(axis, keepdims=True)


rows_to_rows("softmax", ROWS, SMALL_ROWS, softmax_of, exps)
rows_to_rows("softmax_of_long_rows", {"M": 512, "N": 131072}, SMALL_ROWS, softmax_of, exps)
rows_to_rows("log_softmax", WORDS, FEW_WORDS, lambda x: x - log_of_sum(x), lambda x: np.log(exps(x)), "bf16")
rows_to_rows(
    "normalize",
    ROWS,
    SMALL_ROWS,
    lambda x: x / tkw.maximum(tkw.sqrt(tkw.sum(x * x, dim=N)), 1e-12),
    lambda x: x / np.sqrt((x * x).sum(1, keepdims=True)),
)


@operator("norm", IMAGE, SMALL_IMAGE, exact=False)
def softmax_of_channels(t: Any) -> Any:
    @tkw.wave()
    def softmax_of_channels(x: memory(B, C, H, W, t), y: memory(B, C, H, W, t)) -> None:
        row = tkw.read(x)
        weights = tkw.exp(row - tkw.max(row, dim=C))
        tkw.write(weights / tkw.sum(weights, dim=C), y)

    return softmax_of_channels, exps


@operator("norm", {"M": 8192, "N": 4096}, SMALL_ROWS, of="bf16", exact=False)
def layer_norm(t: Any) -> Any:
    @tkw.wave()
    def layer_norm(x: memory(M, N, t), w: memory(N, t), b: memory(N, t), y: memory(M, N, t)) -> None:
        row = tkw.cast(tkw.read(x), f32)
        centred = row - tkw.sum(row, dim=N) / N
        normal = centred * tkw.rsqrt(tkw.sum(centred * centred, dim=N) / N + 1e-5)
        tkw.write(tkw.cast(normal * tkw.cast(tkw.read(w), f32) + tkw.cast(tkw.read(b), f32), t), y)

    return layer_norm, lambda x, w, b: (x - x.mean(1)[:, None]) / np.sqrt(x.var(1)[:, None] + 1e-5) * w + b


@operator("norm", {"M": 8192, "N": 4096}, SMALL_ROWS, of="bf16", exact=False)
def rms_norm(t: Any) -> Any:
    @tkw.wave()
    def rms_norm(x: memory(M, N, t), w: memory(N, t), y: memory(M, N, t)) -> None:
        row = tkw.cast(tkw.read(x), f32)
        scale = tkw.rsqrt(tkw.sum(row * row, dim=N) / N + 1e-6)
        tkw.write(tkw.cast(row * scale * tkw.cast(tkw.read(w), f32), t), y)

    return rms_norm, lambda x, w: x / np.sqrt((x * x).mean(1)[:, None] + 1e-6) * w


@operator("norm", IMAGE, SMALL_IMAGE, exact=False)
def layer_norm_of_channels(t: Any) -> Any:
    @tkw.wave()
    def layer_norm_of_channels(x: memory(B, C, H, W, t), w: memory(C, t), y: memory(B, C, H, W, t)) -> None:
        image = tkw.read(x)
        centred = image - tkw.sum(image, dim=C) / C
        tkw.write(centred * tkw.rsqrt(tkw.sum(centred * centred, dim=C) / C + 1e-5) * tkw.read(w), y)

    def wanted(x: Any, w: Any) -> Any:
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w[:, None, None]

    return layer_norm_of_channels, wanted


@operator("norm", IMAGE, SMALL_IMAGE, exact=False)
def batch_norm_of_inference(t: Any) -> Any:
    @tkw.wave()
    def batch_norm_of_inference(
        x: memory(B, C, H, W, t), mean: memory(C, t), var_mask: memory(C, t), w: memory(C, t), y: memory(B, C, H, W, t)
    ) -> None:
        scale = tkw.rsqrt(tkw.read(var_mask) + 1e-5) * tkw.read(w)
        tkw.write((tkw.read(x) - tkw.read(mean)) * scale, y)

    def wanted(x: Any, mean: Any, var: Any, w: Any) -> Any:
        mean, var, w = (a[:, None, None].astype(np.float64) for a in (mean, var, w))
        return (x - mean) / np.sqrt(var + 1e-5) * w

    return batch_norm_of_inference, wanted


@operator("norm", IMAGE, SMALL_IMAGE, exact=False)
def batch_norm_of_training(t: Any) -> Any:
    @tkw.wave()
    def batch_norm_of_training(x: memory(B, C, H, W, t), w: memory(C, t), y: memory(B, C, H, W, t)) -> None:
        image = tkw.read(x)
        centred = image - tkw.sum(image, dim=[B, H, W]) / (B * H * W)
        var = tkw.sum(centred * centred, dim=[B, H, W]) / (B * H * W)
        tkw.write(centred * tkw.rsqrt(var + 1e-5) * tkw.read(w), y)

    def wanted(x: Any, w: Any) -> Any:
        mean, var = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
        return (x - mean) / np.sqrt(var + 1e-5) * w[:, None, None]

    return batch_norm_of_training, wanted


@operator("norm", IMAGE, SMALL_IMAGE, exact=False)
def instance_norm(t: Any) -> Any:
    @tkw.wave()
    def instance_norm(x: memory(B, C, H, W, t), y: memory(B, C, H, W, t)) -> None:
        image = tkw.read(x)
        centred = image - tkw.sum(image, dim=[H, W]) / (H * W)
        tkw.write(centred * tkw.rsqrt(tkw.sum(centred * centred, dim=[H, W]) / (H * W) + 1e-5), y)

    def wanted(x: Any) -> Any:
        return (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5)

    return instance_norm, wanted


@operator("norm", {"B": 32, "A": 32, "C": 8, "M": 3136}, {"B": 2, "A": 2, "C": 3, "M": 7}, exact=False)
def group_norm(t: Any) -> Any:
    @tkw.wave()
    def group_norm(x: memory(B, A, C, M, t), w: memory(A, C, t), b: memory(A, C, t), y: memory(B, A, C, M, t)) -> None:
        group = tkw.read(x)
        centred = group - tkw.sum(group, dim=[C, M]) / (C * M)
        var = tkw.sum(centred * centred, dim=[C, M]) / (C * M)
        tkw.write(centred * tkw.rsqrt(var + 1e-5) * tkw.read(w) + tkw.read(b), y)

    def wanted(x: Any, w: Any, b: Any) -> Any:
        mean, var = x.mean((2, 3), keepdims=True), x.var((2, 3), keepdims=True)
        return (x - mean) / np.sqrt(var + 1e-5) * w[..., None] + b[..., None]

    return group_norm, wanted


# -- losses ---------------------------------------------------------------------------------------------------


def loss_of_two(name: str, compute: Any, wanted: Any, **others: Any) -> None:
    """Add the mean of a function of the elements of two matrices."""

    @operator("loss", SCALAR, SMALL_SCALAR, name, exact=False, **others)
    def make(t: Any) -> Any:
        @tkw.wave()
        def loss(a: memory(M, N, t), b_mask: memory(M, N, t), y: memory(ONE, t)) -> None:
            each = compute(tkw.read(a), tkw.read(b_mask))
            tkw.write(tkw.broadcast(tkw.sum(each, dim=[M, N]) / (M * N), [ONE]), y)

        return loss, lambda a, b: wanted(a.astype(np.float64), b).mean().reshape(1)


def huber(a: Any, b: Any) -> Any:
    apart = tkw.abs(a - b)
    return tkw.select(apart < 1.0, 0.5 * apart * apart, apart - 0.5)


loss_of_two("mse_loss", lambda a, b: (a - b) * (a - b), lambda a, b: (a - b) ** 2)
loss_of_two("l1_loss", lambda a, b: tkw.abs(a - b), lambda a, b: abs(a - b))
loss_of_two("huber_loss", huber, lambda a, b: np.where(abs(a - b) < 1, 0.5 * (a - b) ** 2, abs(a - b) - 0.5))
loss_of_two(
    "binary_cross_entropy_with_logits",
    lambda a, b: tkw.maximum(a, 0.0) - a * b + tkw.log1p(tkw.exp(-tkw.abs(a))),
    lambda a, b: np.maximum(a, 0) - a * b + np.log1p(np.exp(-abs(a))),
)
loss_of_two("kl_div_of_logarithms", lambda a, b: tkw.exp(b) * (b - a), lambda a, b: np.exp(b) * (b - a))


@operator("loss", WORDS, FEW_WORDS, below={"target": "N"}, exact=False)
def cross_entropy(t: Any) -> Any:
    @tkw.wave()
    def cross_entropy(x: memory(M, N, t), target: memory(M, i32), y: memory(M, t)) -> None:
        row = tkw.read(x)
        hit = tkw.self_index(N) == tkw.read(target)
        tkw.write(log_of_sum(row) - tkw.sum(tkw.select(hit, row, 0.0), dim=N), y)

    return cross_entropy, lambda x, target: -np.log(exps(x))[np.arange(len(x)), target]


@operator("loss", WORDS, FEW_WORDS, below={"target": "N"})
def nll_loss(t: Any) -> Any:
    (m,) = iterators(1)
    hit = tkw.IndexMapping(
        1, inputs={M: m, N: tkw.IndexMapping.dynamic_val(0)}, outputs={M: m}, dynamic_val_mappings={M: m}
    )

    @tkw.wave()
    def nll_loss(x: memory(M, N, t), target: memory(M, i32), y: memory(M, t)) -> None:
        tkw.write(-tkw.read(x, mapping=hit, mapping_dynamic_vals=(tkw.read(target),)), y)

    return nll_loss, lambda x, target: -x[np.arange(len(x)), target]


@operator("loss", {"M": 65536, "N": 512}, SMALL_ROWS, exact=False)
def cosine_similarity(t: Any) -> Any:
    @tkw.wave()
    def cosine_similarity(a: memory(M, N, t), b: memory(M, N, t), y: memory(M, t)) -> None:
        left, right = tkw.read(a), tkw.read(b)
        lengths = tkw.sum(left * left, dim=N) * tkw.sum(right * right, dim=N)
        tkw.write(tkw.sum(left * right, dim=N) * tkw.rsqrt(lengths), y)

    def wanted(a: Any, b: Any) -> Any:
        return (a * b).sum(1) / np.sqrt((a * a).sum(1).astype(np.float64) * (b * b).sum(1))

    return cosine_similarity, wanted


# -- scans ----------------------------------------------------------------------------------------------------


def scan(name: str, compute: Any, wanted: Any, sizes: Any = ROWS) -> None:
    """Add an operator that goes along rows, or down columns, in order."""

    @operator("scan", sizes, SMALL_ROWS, name)
    def make(t: Any) -> Any:
        @tkw.wave()
        def scan(x: memory(M, N, t), y: memory(M, N, t)) -> None:
            tkw.write(compute(tkw.read(x)), y)

        return scan, wanted


scan("cumsum", lambda x: tkw.cumsum(x, dim=N), lambda x: x.cumsum(1))
scan("cumsum_of_columns", lambda x: tkw.cumsum(x, dim=M), lambda x: x.cumsum(0))
scan("cumprod", lambda x: tkw.cumprod(x, dim=N), lambda x: x.cumprod(1))
scan("cummax", lambda x: tkw.cummax(x, dim=N), lambda x: np.maximum.accumulate(x, 1))


@operator("scan", {"M": 16384, "N": 64, "K": 8}, {"M": 3, "N": 9, "K": 4})
def topk_of_experts(t: Any) -> Any:
    @tkw.wave()
    def topk_of_experts(x: memory(M, N, t), y: memory(M, K, t), places: memory(M, K, i32)) -> None:
        values, where = tkw.topk(tkw.read(x), K, N)
        tkw.write(values, y)
        tkw.write(where, places)

    def wanted(x: Any) -> Any:
        order = np.argsort(-x, axis=1, kind="stable")[:, :4]
        return np.take_along_axis(x, order, 1), order

    return topk_of_experts, wanted
