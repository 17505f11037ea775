"""Operators of PyTorch on images, as a newcomer writes them: pooling, convolutions, padding, resampling, layouts."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from newcomer_form import iterators, memory, operator, zeros

import tilewright.lang as tkl
import tilewright.wave as tkw

B, C, D, F, G, H, K, L, M, N, P, Q, R, S, T, W, Z = (getattr(tkl.sym, name) for name in "BCDFGHKLMNPQRSTWZ")


def patches(x: Any, taps: Any, steps: Any, pads: Any, fill: float = 0, far: Any = None) -> Any:
    """Return the windows of the last axes of an array: [..., positions of windows, taps]."""
    rank, far = len(taps), far or [1] * len(taps)
    before = [(0, 0)] * (x.ndim - rank) + [(p, p) for p in pads]
    wide = np.pad(x, before, constant_values=fill)
    kept = wide.shape[: x.ndim - rank]
    rows = zip(wide.shape[-rank:], taps, steps, far, strict=True)
    places = [(n - (t - 1) * d - 1) // s + 1 for n, t, s, d in rows]
    found = np.empty((*kept, *places, *taps), x.dtype)
    for tap in product(*map(range, taps)):
        parts = (slice(r * d, r * d + (n - 1) * s + 1, s) for r, d, n, s in zip(tap, far, places, steps, strict=True))
        found[(..., *(slice(None),) * rank, *tap)] = wide[(..., *parts)]
    return found


# -- pooling --------------------------------------------------------------------------------------------------

POOLED = {"B": 32, "C": 64, "H": 112, "W": 112, "P": 56, "Q": 56}
FEW_POOLED = {"B": 2, "C": 3, "H": 6, "W": 8, "P": 3, "Q": 4}


def pool_window(taps: int, stride: int, padding: int, *, last: bool = False) -> Any:
    """Return (a mapping to the windows of an image, its symbols bound)."""
    b, c, p, q, r, s = iterators(6)
    inputs = {B: b, C: c, H: stride * p + r - padding, W: stride * q + s - padding}
    return tkw.IndexMapping(6, inputs=inputs, outputs={B: b, C: c, P: p, Q: q, R: r, S: s})


@operator("pooling", POOLED, FEW_POOLED, of="bf16")
def max_pool2d(t: Any) -> Any:
    window = pool_window(3, 2, 1)

    @tkw.wave()
    def max_pool2d(x: memory(B, C, H, W, t), y: memory(B, C, P, Q, t)) -> None:
        tkw.write(tkw.max(tkw.read(x, mapping=window, otherwise=float("-inf")), dim=[R, S]), y)

    return max_pool2d.bound({R: 3, S: 3}), lambda x: patches(x, (3, 3), (2, 2), (1, 1), -np.inf).max((-1, -2))


@operator("pooling", POOLED, FEW_POOLED, of="bf16")
def max_pool2d_channels_last(t: Any) -> Any:
    window = pool_window(3, 2, 1)

    @tkw.wave()
    def max_pool2d_channels_last(x: memory(B, H, W, C, t), y: memory(B, P, Q, C, t)) -> None:
        tkw.write(tkw.max(tkw.read(x, mapping=window, otherwise=float("-inf")), dim=[R, S]), y)

    def wanted(x: Any) -> Any:
        return patches(np.moveaxis(x, 3, 1), (3, 3), (2, 2), (1, 1), -np.inf).max((-1, -2)).transpose(0, 2, 3, 1)

    return max_pool2d_channels_last.bound({R: 3, S: 3}), wanted


@operator("pooling", POOLED, FEW_POOLED)
def avg_pool2d(t: Any) -> Any:
    window = pool_window(2, 2, 0)

    @tkw.wave()
    def avg_pool2d(x: memory(B, C, H, W, t), y: memory(B, C, P, Q, t)) -> None:
        tkw.write(tkw.sum(tkw.read(x, mapping=window), dim=[R, S]) * 0.25, y)

    return avg_pool2d.bound({R: 2, S: 2}), lambda x: patches(x, (2, 2), (2, 2), (0, 0)).sum((-1, -2)) / 4


@operator("pooling", {**POOLED, "P": 112, "Q": 112}, {**FEW_POOLED, "P": 6, "Q": 8}, exact=False)
def avg_pool2d_of_neighbours(t: Any) -> Any:
    window = pool_window(3, 1, 1)

    @tkw.wave()
    def avg_pool2d_of_neighbours(x: memory(B, C, H, W, t), y: memory(B, C, P, Q, t)) -> None:
        tkw.write(tkw.sum(tkw.read(x, mapping=window, otherwise=0), dim=[R, S]) / 9.0, y)

    return avg_pool2d_of_neighbours.bound({R: 3, S: 3}), lambda x: patches(x, (3, 3), (1, 1), (1, 1)).sum((-1, -2)) / 9


@operator("pooling", {"B": 64, "C": 2048, "H": 7, "W": 7}, {"B": 2, "C": 3, "H": 4, "W": 4})
def adaptive_avg_pool2d(t: Any) -> Any:
    @tkw.wave()
    def adaptive_avg_pool2d(x: memory(B, C, H, W, t), y: memory(B, C, t)) -> None:
        tkw.write(tkw.sum(tkw.read(x), dim=[H, W]) / (H * W), y)

    return adaptive_avg_pool2d, lambda x: x.sum((2, 3)) / 16


@operator("pooling", {"B": 32, "C": 512, "W": 4096, "Q": 2048}, {"B": 2, "C": 3, "W": 8, "Q": 4})
def max_pool1d(t: Any) -> Any:
    b, c, q, s = iterators(4)
    window = tkw.IndexMapping(4, inputs={B: b, C: c, W: 2 * q + s}, outputs={B: b, C: c, Q: q, S: s})

    @tkw.wave()
    def max_pool1d(x: memory(B, C, W, t), y: memory(B, C, Q, t)) -> None:
        tkw.write(tkw.max(tkw.read(x, mapping=window), dim=S), y)

    return max_pool1d.bound({S: 2}), lambda x: x.reshape(*x.shape[:2], -1, 2).max(-1)


@operator(
    "pooling",
    {"B": 4, "C": 64, "D": 32, "H": 56, "W": 56, "Z": 16, "P": 28, "Q": 28},
    {"B": 2, "C": 3, "D": 4, "H": 4, "W": 6, "Z": 2, "P": 2, "Q": 3},
)
def avg_pool3d(t: Any) -> Any:
    b, c, z, p, q, k, r, s = iterators(8)
    window = tkw.IndexMapping(
        8,
        inputs={B: b, C: c, D: 2 * z + k, H: 2 * p + r, W: 2 * q + s},
        outputs={B: b, C: c, Z: z, P: p, Q: q, T: k, R: r, S: s},
    )

    @tkw.wave()
    def avg_pool3d(x: memory(B, C, D, H, W, t), y: memory(B, C, Z, P, Q, t)) -> None:
        tkw.write(tkw.sum(tkw.read(x, mapping=window), dim=[T, R, S]) / 8.0, y)

    return avg_pool3d.bound(
        {T: 2, R: 2, S: 2}
    ), lambda x: patches(x, (2, 2, 2), (2, 2, 2), (0, 0, 0)).sum((-1, -2, -3)) / 8


# -- convolutions ---------------------------------------------------------------------------------------------


def conv2d(
    name: str, sizes: Any, taps: int, stride: int = 1, padding: int = 0, dilation: int = 1, order: str = "NCHW"
) -> None:
    """Add a convolution of images with filters [F, C, R, S]; `order` is that of images and results."""
    rows = {"P": "H", "Q": "W"}

    def placed(given: Any) -> Any:
        reach = dilation * (taps - 1)
        return {**given, **{to: (given[of] + 2 * padding - reach - 1) // stride + 1 for to, of in rows.items()}}

    @operator("convolution", placed(sizes), placed({"B": 2, "C": 3, "F": 4, "H": 18, "W": 17}), name, of="bf16")
    def make(t: Any) -> Any:
        b, c, p, q, r, s = iterators(6)
        inputs = {B: b, C: c, H: stride * p + dilation * r - padding, W: stride * q + dilation * s - padding}
        window = tkw.IndexMapping(6, inputs=inputs, outputs={B: b, P: p, Q: q, C: c, R: r, S: s})
        filters = memory(F, C, R, S, t)
        image, result = (
            (memory(B, C, H, W, t), memory(B, F, P, Q, t))
            if order == "NCHW"
            else (memory(B, H, W, C, t), memory(B, P, Q, F, t))
        )

        @tkw.wave()
        def conv2d(x: image, w: filters, y: result) -> None:
            pixels = tkw.read(x, mapping=window, otherwise=0)
            tkw.write(tkw.cast(tkw.mma(pixels, tkw.read(w), zeros(B, F, P, Q)), t), y)

        def wanted(x: Any, w: Any) -> Any:
            x = x if order == "NCHW" else x.transpose(0, 3, 1, 2)
            pixels = patches(x, (taps,) * 2, (stride,) * 2, (padding,) * 2, far=(dilation,) * 2)
            letters = "bfpq" if order == "NCHW" else "bpqf"
            return np.einsum(f"bcpqrs,fcrs->{letters}", pixels, w)

        return conv2d.bound({R: taps, S: taps}), wanted


LAYER = {"B": 32, "C": 128, "F": 128, "H": 28, "W": 28}
conv2d("conv2d_3x3", LAYER, 3, 1, 1)
conv2d("conv2d_3x3_stride_2", {**LAYER, "H": 56, "W": 56}, 3, 2, 1)
conv2d("conv2d_1x1", {"B": 32, "C": 256, "F": 64, "H": 56, "W": 56}, 1)
conv2d("conv2d_7x7_of_3_channels", {"B": 32, "C": 3, "F": 64, "H": 224, "W": 224}, 7, 2, 3)
conv2d("conv2d_dilated", LAYER, 3, 1, 2, 2)
conv2d("conv2d_of_patches", {"B": 32, "C": 3, "F": 768, "H": 224, "W": 224}, 16, 16)
conv2d("conv2d_3x3_channels_last", LAYER, 3, 1, 1, order="NHWC")
conv2d("conv2d_1x1_channels_last", {"B": 32, "C": 256, "F": 64, "H": 56, "W": 56}, 1, order="NHWC")


@operator(
    "convolution",
    {"B": 32, "C": 256, "F": 256, "W": 2048, "Q": 2048},
    {"B": 2, "C": 3, "F": 4, "W": 9, "Q": 9},
    of="bf16",
)
def conv1d(t: Any) -> Any:
    b, c, q, s = iterators(4)
    window = tkw.IndexMapping(4, inputs={B: b, C: c, W: q + s - 1}, outputs={B: b, Q: q, C: c, S: s})

    @tkw.wave()
    def conv1d(x: memory(B, C, W, t), w: memory(F, C, S, t), y: memory(B, F, Q, t)) -> None:
        sound = tkw.read(x, mapping=window, otherwise=0)
        tkw.write(tkw.cast(tkw.mma(sound, tkw.read(w), zeros(B, F, Q)), t), y)

    return conv1d.bound({S: 3}), lambda x, w: np.einsum("bcqs,fcs->bfq", patches(x, (3,), (1,), (1,)), w)


@operator(
    "convolution",
    {"B": 4, "C": 64, "F": 64, "D": 16, "H": 56, "W": 56, "Z": 16, "P": 56, "Q": 56},
    {"B": 1, "C": 3, "F": 4, "D": 4, "H": 5, "W": 6, "Z": 4, "P": 5, "Q": 6},
    of="bf16",
)
def conv3d(t: Any) -> Any:
    b, c, z, p, q, k, r, s = iterators(8)
    window = tkw.IndexMapping(
        8,
        inputs={B: b, C: c, D: z + k - 1, H: p + r - 1, W: q + s - 1},
        outputs={B: b, Z: z, P: p, Q: q, C: c, T: k, R: r, S: s},
    )

    @tkw.wave()
    def conv3d(x: memory(B, C, D, H, W, t), w: memory(F, C, T, R, S, t), y: memory(B, F, Z, P, Q, t)) -> None:
        cube = tkw.read(x, mapping=window, otherwise=0)
        tkw.write(tkw.cast(tkw.mma(cube, tkw.read(w), zeros(B, F, Z, P, Q)), t), y)

    def wanted(x: Any, w: Any) -> Any:
        return np.einsum("bczpqtrs,fctrs->bfzpq", patches(x, (3,) * 3, (1,) * 3, (1,) * 3), w)

    return conv3d.bound({T: 3, R: 3, S: 3}), wanted


WIDE, FEW_WIDE = {"B": 32, "C": 256, "H": 28, "W": 28}, {"B": 2, "C": 3, "H": 5, "W": 6}


def depthwise(name: str, order: str) -> None:
    """Add a depthwise convolution with filters [C, R, S]; `order` is that of images."""

    @operator("convolution", WIDE, FEW_WIDE, name, of="bf16")
    def make(t: Any) -> Any:
        b, c, p, q, r, s = iterators(6)
        window = tkw.IndexMapping(
            6, inputs={B: b, C: c, H: p + r - 1, W: q + s - 1}, outputs={B: b, C: c, H: p, W: q, R: r, S: s}
        )
        image = memory(B, C, H, W, t) if order == "NCHW" else memory(B, H, W, C, t)

        @tkw.wave()
        def depthwise(x: image, w: memory(C, R, S, t), y: image) -> None:
            pixels = tkw.cast(tkw.read(x, mapping=window, otherwise=0), tkl.f32)
            total = tkw.sum(pixels * tkw.cast(tkw.read(w), tkl.f32), dim=[R, S])
            tkw.write(tkw.cast(total, t), y)

        def wanted(x: Any, w: Any) -> Any:
            x = x if order == "NCHW" else x.transpose(0, 3, 1, 2)
            letters = "bcpq" if order == "NCHW" else "bpqc"
            return np.einsum(f"bcpqrs,crs->{letters}", patches(x, (3, 3), (1, 1), (1, 1)), w)

        return depthwise.bound({R: 3, S: 3}), wanted


depthwise("depthwise_conv2d", "NCHW")
depthwise("depthwise_conv2d_channels_last", "NHWC")


@operator(
    "convolution",
    {"B": 32, "G": 32, "C": 8, "F": 8, "H": 28, "W": 28},
    {"B": 2, "G": 2, "C": 3, "F": 2, "H": 4, "W": 5},
    of="bf16",
)
def grouped_conv2d(t: Any) -> Any:
    b, g, c, p, q, r, s = iterators(7)
    window = tkw.IndexMapping(
        7, inputs={B: b, G: g, C: c, H: p + r - 1, W: q + s - 1}, outputs={B: b, G: g, C: c, H: p, W: q, R: r, S: s}
    )

    @tkw.wave()
    def grouped_conv2d(x: memory(B, G, C, H, W, t), w: memory(G, F, C, R, S, t), y: memory(B, G, F, H, W, t)) -> None:
        pixels = tkw.read(x, mapping=window, otherwise=0)
        tkw.write(tkw.cast(tkw.mma(pixels, tkw.read(w), zeros(B, G, F, H, W)), t), y)

    def wanted(x: Any, w: Any) -> Any:
        return np.einsum("bgcpqrs,gfcrs->bgfpq", patches(x, (3, 3), (1, 1), (1, 1)), w)

    return grouped_conv2d.bound({R: 3, S: 3}), wanted


@operator(
    "convolution",
    {"B": 32, "C": 128, "F": 64, "P": 28, "Q": 28, "H": 56, "W": 56},
    {"B": 2, "C": 3, "F": 2, "P": 3, "Q": 4, "H": 6, "W": 8},
    of="bf16",
)
def conv_transpose2d(t: Any) -> Any:
    b, c, h, w_, r, s = iterators(6)
    sources = tkw.IndexMapping(
        6, inputs={B: b, C: c, P: (h + 1 - r) // 2, Q: (w_ + 1 - s) // 2}, outputs={B: b, H: h, W: w_, C: c, R: r, S: s}
    )

    @tkw.wave()
    def conv_transpose2d(x: memory(B, C, P, Q, t), w: memory(C, F, R, S, t), y: memory(B, F, H, W, t)) -> None:
        lands = ((tkw.self_index(H) + 1 - tkw.self_index(R)) % 2 == 0) & (
            (tkw.self_index(W) + 1 - tkw.self_index(S)) % 2 == 0
        )
        pixels = tkw.select(lands, tkw.read(x, mapping=sources, otherwise=0), 0.0)
        tkw.write(tkw.cast(tkw.mma(pixels, tkw.read(w), zeros(B, F, H, W)), t), y)

    def wanted(x: Any, w: Any) -> Any:
        images, _, rows, columns = x.shape
        wide = np.zeros((images, w.shape[1], 2 * rows + 2, 2 * columns + 2), x.dtype)
        for i, j, r, s in product(range(rows), range(columns), range(4), range(4)):
            wide[:, :, 2 * i + r, 2 * j + s] += x[:, :, i, j] @ w[:, :, r, s]
        return wide[:, :, 1:-1, 1:-1]

    return conv_transpose2d.bound({R: 4, S: 4}), wanted


@operator("convolution", {"B": 8, "N": 4096, "C": 4096}, {"B": 2, "N": 9, "C": 5}, of="bf16")
def causal_conv1d(t: Any) -> Any:
    b, n, c, s = iterators(4)
    window = tkw.IndexMapping(4, inputs={B: b, N: n + s - 3, C: c}, outputs={B: b, N: n, C: c, S: s})

    @tkw.wave()
    def causal_conv1d(x: memory(B, N, C, t), w: memory(C, S, t), y: memory(B, N, C, t)) -> None:
        steps = tkw.cast(tkw.read(x, mapping=window, otherwise=0), tkl.f32)
        tkw.write(tkw.cast(tkw.sum(steps * tkw.cast(tkw.read(w), tkl.f32), dim=S), t), y)

    def wanted(x: Any, w: Any) -> Any:
        wide = np.pad(x, ((0, 0), (3, 0), (0, 0)))
        return sum(wide[:, s : s + x.shape[1]] * w[:, s] for s in range(4))

    return causal_conv1d.bound({S: 4}), wanted


# -- resampling and layouts -----------------------------------------------------------------------------------

SCALED = {"B": 16, "C": 64, "H": 56, "W": 56, "P": 112, "Q": 112}
FEW_SCALED = {"B": 2, "C": 3, "H": 3, "W": 4, "P": 6, "Q": 8}


@operator("layout", SCALED, FEW_SCALED)
def interpolate_nearest(t: Any) -> Any:
    b, c, p, q = iterators(4)
    nearest = tkw.IndexMapping(4, inputs={B: b, C: c, H: p // 2, W: q // 2}, outputs={B: b, C: c, P: p, Q: q})

    @tkw.wave()
    def interpolate_nearest(x: memory(B, C, H, W, t), y: memory(B, C, P, Q, t)) -> None:
        tkw.write(tkw.read(x, mapping=nearest), y)

    return interpolate_nearest, lambda x: x.repeat(2, 2).repeat(2, 3)


@operator("layout", SCALED, FEW_SCALED)
def interpolate_bilinear(t: Any) -> Any:
    b, c, p, q = iterators(4)

    def neighbour(down: int, across: int) -> Any:
        at = {B: b, C: c, H: (p + 1) // 2 - 1 + down, W: (q + 1) // 2 - 1 + across}
        return tkw.IndexMapping(4, inputs=at, outputs={B: b, C: c, P: p, Q: q})

    @tkw.wave()
    def interpolate_bilinear(x: memory(B, C, H, W, t), y: memory(B, C, P, Q, t)) -> None:
        """Pixels outside count as 0."""
        down = tkw.cast(tkw.self_index(P) % 2, t) * 0.5 + 0.25
        right = tkw.cast(tkw.self_index(Q) % 2, t) * 0.5 + 0.25
        down, right = 1.0 - down, 1.0 - right
        upper = [tkw.read(x, mapping=neighbour(0, j), otherwise=0) for j in range(2)]
        lower = [tkw.read(x, mapping=neighbour(1, j), otherwise=0) for j in range(2)]
        above = upper[0] * (1.0 - right) + upper[1] * right
        below = lower[0] * (1.0 - right) + lower[1] * right
        tkw.write(above * (1.0 - down) + below * down, y)

    def wanted(x: Any) -> Any:
        wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        for axis in (2, 3):
            n = np.arange(2 * (wide.shape[axis] - 2))
            low = (n + 1) // 2
            share = np.where(n % 2 == 0, 0.75, 0.25)
            share = share[:, None] if axis == 2 else share
            wide = wide.take(low, axis) * (1 - share) + wide.take(low + 1, axis) * share
        return wide

    return interpolate_bilinear, wanted


def moved(name: str, sizes: Any, tiny: Any, dims: Any, to: Any, at: Any, wanted: Any, **others: Any) -> None:
    """Add an operator that only moves elements: each of `to` is read at `at`, coordinates of `dims` by iterators."""

    @operator("layout", sizes, tiny, name)
    def make(t: Any) -> Any:
        places = iterators(len(to))
        mapping = tkw.IndexMapping(
            len(to), inputs=dict(zip(dims, at(*places), strict=True)), outputs=dict(zip(to, places, strict=True))
        )

        @tkw.wave()
        def moved(x: memory(*dims, t), y: memory(*to, t)) -> None:
            tkw.write(tkw.read(x, mapping=mapping, **others), y)

        return moved, wanted


PADDED, FEW_PADDED = (
    {"B": 32, "C": 64, "H": 56, "W": 56, "P": 58, "Q": 58},
    {
        "B": 2,
        "C": 3,
        "H": 4,
        "W": 5,
        "P": 6,
        "Q": 7,
    },
)
BORDER = ((0, 0), (0, 0), (1, 1), (1, 1))
moved(
    "pad_with_zeros",
    PADDED,
    FEW_PADDED,
    (B, C, H, W),
    (B, C, P, Q),
    lambda b, c, p, q: (b, c, p - 1, q - 1),
    lambda x: np.pad(x, BORDER),
    otherwise=0,
)
moved(
    "pixel_shuffle",
    {"B": 16, "C": 64, "H": 64, "W": 64, "R": 2, "S": 2},
    {"B": 2, "C": 3, "H": 4, "W": 5, "R": 2, "S": 2},
    (B, C, R, S, H, W),
    (B, C, H, R, W, S),
    lambda b, c, h, r, w, s: (b, c, r, s, h, w),
    lambda x: x.transpose(0, 1, 4, 2, 5, 3),
)
moved(
    "channels_last",
    {"B": 32, "C": 128, "H": 56, "W": 56},
    {"B": 2, "C": 3, "H": 4, "W": 5},
    (B, C, H, W),
    (B, H, W, C),
    lambda b, h, w, c: (b, c, h, w),
    lambda x: x.transpose(0, 2, 3, 1),
)
moved(
    "transpose",
    {"M": 8192, "N": 4096},
    {"M": 3, "N": 5},
    (M, N),
    (N, M),
    lambda n, m: (m, n),
    lambda x: x.T,
)
moved(
    "flip",
    {"M": 8192, "N": 4096},
    {"M": 3, "N": 5},
    (M, N),
    (M, N),
    lambda m, n: (m, N - 1 - n),
    lambda x: x[:, ::-1],
)
moved(
    "roll",
    {"M": 8192, "N": 4096},
    {"M": 3, "N": 5},
    (M, N),
    (M, N),
    lambda m, n: ((m + M - 1) % M, n),
    lambda x: np.roll(x, 1, 0),
)
moved(
    "repeat_interleave_of_heads",
    {"B": 8, "H": 8, "G": 4, "M": 2048, "D": 128},
    {"B": 2, "H": 2, "G": 3, "M": 4, "D": 5},
    (B, H, M, D),
    (B, H, G, M, D),
    lambda b, h, g, m, d: (b, h, m, d),
    lambda x: np.broadcast_to(x[:, :, None], (2, 2, 3, 4, 5)),
)


@operator("layout", {"B": 8, "C": 64, "H": 56, "W": 56}, {"B": 2, "C": 3, "H": 4, "W": 5})
def unfold(t: Any) -> Any:
    b, c, r, s, h, w = iterators(6)
    window = tkw.IndexMapping(
        6, inputs={B: b, C: c, H: h + r - 1, W: w + s - 1}, outputs={B: b, C: c, R: r, S: s, H: h, W: w}
    )

    @tkw.wave()
    def unfold(x: memory(B, C, H, W, t), y: memory(B, C, R, S, H, W, t)) -> None:
        tkw.write(tkw.read(x, mapping=window, otherwise=0), y)

    def wanted(x: Any) -> Any:
        return patches(x, (3, 3), (1, 1), (1, 1)).transpose(0, 1, 4, 5, 2, 3)

    return unfold.bound({R: 3, S: 3}), wanted


@operator("layout", {"M": 8192, "N": 4096, "K": 8192}, {"M": 3, "N": 5, "K": 10})
def cat(t: Any) -> Any:
    m, n = iterators(2)
    right = tkw.IndexMapping(2, inputs={M: m, N: n}, outputs={M: m, K: n + N})
    left = tkw.IndexMapping(2, inputs={M: m, N: n}, outputs={M: m, K: n})

    @tkw.wave()
    def cat(a: memory(M, N, t), b: memory(M, N, t), y: memory(M, K, t)) -> None:
        tkw.write(tkw.read(a), y, mapping=left)
        tkw.write(tkw.read(b), y, mapping=right)

    return cat, lambda a, b: np.concatenate((a, b), 1)
