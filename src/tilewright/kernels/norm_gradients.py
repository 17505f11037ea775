"""Gradients of softmax, layer norm, RMS norm and group norm, from the arguments of the forward pass."""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir.dtypes import DTypeLike, element_type

M, N = tkl.sym.M, tkl.sym.N
G, CG, S = tkl.sym.G, tkl.sym.CG, tkl.sym.S
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def softmax_gradient(dtype: DTypeLike = "f32") -> tkw.Kernel:
    """Return a kernel that computes dx[m, n], the gradient of the loss by the argument x of `softmax`.

    dx[m, n] = y[m, n] * (dy[m, n] - sum over j of y[m, j] * dy[m, j]). Arguments: y[M, N], the result of the softmax,
    and dy[M, N], the gradient of the loss by y; then dx[M, N]; all of type `dtype`. Computed in f32 (f64 for f64),
    rounded once.

    >>> import numpy as np, tilewright
    >>> y, dy = np.array([[0.25, 0.75]], np.float32), np.array([[4, 0]], np.float32)
    >>> tilewright.compile(softmax_gradient(), strict=True)(y, dy)
    array([[ 0.75, -0.75]], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    Rows: Any = tkl.Memory[M, N, GLOBAL, of_data]

    @tkw.wave()
    def softmax_gradient(y: Rows, dy: Rows, dx: Rows) -> None:
        weights, slope = tkw.cast(tkw.read(y), of_sums), tkw.cast(tkw.read(dy), of_sums)
        tkw.write(tkw.cast(weights * (slope - tkw.sum(weights * slope, dim=N)), of_data), dx)

    return softmax_gradient


def layer_norm_gradient(dtype: DTypeLike = "f32", epsilon: float = 1e-5) -> tkw.Kernel:
    """Return a kernel that computes dx[m, n], the gradient of the loss by the argument x of `layer_norm`.

    dx = scale * (g - mean(g) - z * mean(g * z)), with g = dy * weight. Means are over each row; z is the normalised
    row, (x - mean) * scale, and scale = 1 / sqrt(variance + epsilon). Arguments: x[M, N], weight[N], dy[M, N] (the
    gradient of the loss by y), then dx[M, N], all of type `dtype`. Computed in f32 (f64 for f64), rounded once.

    >>> import numpy as np, tilewright
    >>> gradient = tilewright.compile(layer_norm_gradient(epsilon=0.0), strict=True)
    >>> gradient(np.array([[0, 0, 2, 2]], np.float32), np.ones(4, np.float32), np.array([[4, 0, 0, 0]], np.float32))
    array([[ 2., -2.,  0.,  0.]], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    Rows: Any = tkl.Memory[M, N, GLOBAL, of_data]

    @tkw.wave()
    def layer_norm_gradient(x: Rows, weight: tkl.Memory[N, GLOBAL, of_data], dy: Rows, dx: Rows) -> None:
        row, slope = tkw.cast(tkw.read(x), of_sums), tkw.cast(tkw.read(dy), of_sums)
        centred = row - tkw.sum(row, dim=N) / N
        scale = tkw.rsqrt(tkw.sum(centred * centred, dim=N) / N + epsilon)
        normal, slope = centred * scale, slope * tkw.cast(tkw.read(weight), of_sums)
        along = tkw.sum(slope * normal, dim=N) / N
        tkw.write(tkw.cast(scale * (slope - tkw.sum(slope, dim=N) / N - normal * along), of_data), dx)

    return layer_norm_gradient


def layer_norm_weight_gradient(dtype: DTypeLike = "f32", epsilon: float = 1e-5) -> tkw.Kernel:
    """Return a kernel that computes dweight[n] and dbias[n], the gradients of the loss by weight and bias of
    `layer_norm`.

    dweight[n] = sum over rows of dy * z, dbias[n] = sum over rows of dy; z is the normalised row, (x - mean) /
    sqrt(variance + epsilon). Arguments: x[M, N], dy[M, N] (the gradient of the loss by y) of type `dtype`, then
    dweight[N], dbias[N] in f32 (f64 for f64). Rows are processed one by one, so that each is read once for both its
    mean and the sums.

    >>> import numpy as np, tilewright
    >>> gradient = tilewright.compile(layer_norm_weight_gradient(epsilon=0.0), strict=True)
    >>> gradient(np.array([[0, 2], [6, 4]], np.float32), np.array([[3, 5], [1, 1]], np.float32))
    (array([-2.,  4.], dtype=float32), array([4., 6.], dtype=float32))
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    Rows: Any = tkl.Memory[M, N, GLOBAL, of_data]
    Weights: Any = tkl.Memory[N, GLOBAL, of_sums]

    @tkw.wave([tkw.TilingConstraint(M, 1)])
    def layer_norm_weight_gradient(x: Rows, dy: Rows, dweight: Weights, dbias: Weights) -> None:
        @tkw.iterate(M, init_args=[tkl.Register[N, of_sums](0), tkl.Register[N, of_sums](0)])
        def totals(of_weight: Any, of_bias: Any) -> Any:
            row, slope = tkw.cast(tkw.read(x), of_sums), tkw.cast(tkw.read(dy), of_sums)
            centred = row - tkw.sum(row, dim=N) / N
            scale = tkw.rsqrt(tkw.sum(centred * centred, dim=N) / N + epsilon)
            return tkw.sum(slope * centred * scale, of_weight, dim=M), tkw.sum(slope, of_bias, dim=M)

        of_weight, of_bias = totals
        tkw.write(of_weight, dweight)
        tkw.write(of_bias, dbias)

    return layer_norm_weight_gradient


def rms_norm_gradient(dtype: DTypeLike = "f32", epsilon: float = 1e-6) -> tkw.Kernel:
    """Return a kernel that computes dx[m, n], the gradient of the loss by the argument x of `rms_norm`.

    dx = scale * (g - z * mean(g * z)), with g = dy * weight, z = x * scale and scale = 1 / sqrt(mean(x^2) + epsilon).
    Means are over each row. Arguments: x[M, N], weight[N], dy[M, N] (the gradient of the loss by y), then dx[M, N], all
    of type `dtype`. Computed in f32 (f64 for f64), rounded once.

    >>> import numpy as np, tilewright
    >>> gradient = tilewright.compile(rms_norm_gradient(epsilon=0.0), strict=True)
    >>> gradient(np.array([[2, 2]], np.float32), np.ones(2, np.float32), np.array([[4, 0]], np.float32))
    array([[ 1., -1.]], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    Rows: Any = tkl.Memory[M, N, GLOBAL, of_data]

    @tkw.wave()
    def rms_norm_gradient(x: Rows, weight: tkl.Memory[N, GLOBAL, of_data], dy: Rows, dx: Rows) -> None:
        row, slope = tkw.cast(tkw.read(x), of_sums), tkw.cast(tkw.read(dy), of_sums)
        scale = tkw.rsqrt(tkw.sum(row * row, dim=N) / N + epsilon)
        normal, slope = row * scale, slope * tkw.cast(tkw.read(weight), of_sums)
        tkw.write(tkw.cast(scale * (slope - normal * (tkw.sum(slope * normal, dim=N) / N)), of_data), dx)

    return rms_norm_gradient


def rms_norm_weight_gradient(dtype: DTypeLike = "f32", epsilon: float = 1e-6) -> tkw.Kernel:
    """Return a kernel that computes dweight[n], the gradient of the loss by the weight of `rms_norm`.

    dweight[n] is the sum over rows of dy * x * scale, with scale = 1 / sqrt(mean over the row of x^2 + epsilon).
    Arguments: x[M, N], dy[M, N] (the gradient of the loss by y) of type `dtype`, then dweight[N] in f32 (f64 for f64).
    Rows are processed one by one, so that each is read once.

    >>> import numpy as np, tilewright
    >>> gradient = tilewright.compile(rms_norm_weight_gradient(epsilon=0.0), strict=True)
    >>> gradient(np.array([[2, 2], [3, -3]], np.float32), np.array([[4, 0], [1, 1]], np.float32))
    array([ 5., -1.], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    Rows: Any = tkl.Memory[M, N, GLOBAL, of_data]

    @tkw.wave([tkw.TilingConstraint(M, 1)])
    def rms_norm_weight_gradient(x: Rows, dy: Rows, dweight: tkl.Memory[N, GLOBAL, of_sums]) -> None:
        @tkw.iterate(M, init_args=[tkl.Register[N, of_sums](0)])
        def total(acc: Any) -> Any:
            row, slope = tkw.cast(tkw.read(x), of_sums), tkw.cast(tkw.read(dy), of_sums)
            scale = tkw.rsqrt(tkw.sum(row * row, dim=N) / N + epsilon)
            return tkw.sum(slope * row * scale, acc, dim=M)

        tkw.write(total, dweight)

    return rms_norm_weight_gradient


def group_norm_gradient(dtype: DTypeLike = "f32", epsilon: float = 1e-5) -> tkw.Kernel:
    """Return a kernel that computes dx[n, g, c, s], the gradient of the loss by the argument x of `group_norm`.

    dx = scale * (d - mean(d) - z * mean(d * z)), with d = dy * weight. Means are over the CG channels and S pixels of
    group g of image n; z is the normalised group, (x - mean) * scale, and scale = 1 / sqrt(variance + epsilon).
    Arguments: x[N, G, CG, S], weight[G, CG], dy[N, G, CG, S] (the gradient of the loss by y), then dx of x's shape, all
    of type `dtype`. Computed in f32 (f64 for f64), rounded once.

    >>> import numpy as np, tilewright
    >>> gradient = tilewright.compile(group_norm_gradient(epsilon=0.0), strict=True)
    >>> x, weight, dy = (np.array(a, np.float32) for a in ([0, 0, 2, 2], [[1, 1]], [4, 0, 0, 0]))
    >>> gradient(x.reshape(1, 1, 2, 2), weight, dy.reshape(1, 1, 2, 2)).ravel()
    array([ 2., -2.,  0.,  0.], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    Image: Any = tkl.Memory[N, G, CG, S, GLOBAL, of_data]

    def mean(values: Any) -> Any:
        return tkw.sum(tkw.sum(values, dim=S), dim=CG) / (CG * S)

    @tkw.wave()
    def group_norm_gradient(x: Image, weight: tkl.Memory[G, CG, GLOBAL, of_data], dy: Image, dx: Image) -> None:
        group, slope = tkw.cast(tkw.read(x), of_sums), tkw.cast(tkw.read(dy), of_sums)
        centred = group - mean(group)
        scale = tkw.rsqrt(mean(centred * centred) + epsilon)
        normal, slope = centred * scale, slope * tkw.cast(tkw.read(weight), of_sums)
        tkw.write(tkw.cast(scale * (slope - mean(slope) - normal * mean(slope * normal)), of_data), dx)

    return group_norm_gradient


def group_norm_weight_gradient(dtype: DTypeLike = "f32", epsilon: float = 1e-5) -> tkw.Kernel:
    """Return a kernel that computes dweight[g, c] and dbias[g, c], the gradients of the loss by weight and bias of
    `group_norm`.

    dweight[g, c] = sum over images and pixels of dy * z, dbias[g, c] = sum over images and pixels of dy; z is the
    normalised group, as in `group_norm_gradient`. Arguments: x[N, G, CG, S], dy[N, G, CG, S] (the gradient of the loss
    by y) of type `dtype`, then dweight[G, CG], dbias[G, CG] in f32 (f64 for f64). Images are processed one by one.

    >>> import numpy as np, tilewright
    >>> gradient = tilewright.compile(group_norm_weight_gradient(epsilon=0.0), strict=True)
    >>> x, dy = (np.array(a, np.float32).reshape(2, 1, 2, 1) for a in ([0, 2, 6, 4], [3, 5, 1, 1]))
    >>> gradient(x, dy)
    (array([[-2.,  4.]], dtype=float32), array([[4., 6.]], dtype=float32))
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    Image: Any = tkl.Memory[N, G, CG, S, GLOBAL, of_data]
    Channels: Any = tkl.Memory[G, CG, GLOBAL, of_sums]

    @tkw.wave([tkw.TilingConstraint(N, 1)])
    def group_norm_weight_gradient(x: Image, dy: Image, dweight: Channels, dbias: Channels) -> None:
        @tkw.iterate(N, init_args=[tkl.Register[G, CG, of_sums](0), tkl.Register[G, CG, of_sums](0)])
        def totals(of_weight: Any, of_bias: Any) -> Any:
            group, slope = tkw.cast(tkw.read(x), of_sums), tkw.cast(tkw.read(dy), of_sums)
            centred = group - tkw.sum(tkw.sum(group, dim=S), dim=CG) / (CG * S)
            variance = tkw.sum(tkw.sum(centred * centred, dim=S), dim=CG) / (CG * S)
            normal = centred * tkw.rsqrt(variance + epsilon)
            by_weight, by_bias = tkw.sum(slope * normal, dim=S), tkw.sum(slope, dim=S)
            return tkw.sum(by_weight, of_weight, dim=N), tkw.sum(by_bias, of_bias, dim=N)

        of_weight, of_bias = totals
        tkw.write(of_weight, dweight)
        tkw.write(of_bias, dbias)

    return group_norm_weight_gradient
