"""Normalisation: layer norm and RMS norm of rows, group norm of groups of channels."""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir.dtypes import DTypeLike, element_type

M, N = tkl.sym.M, tkl.sym.N
G, CG, S = tkl.sym.G, tkl.sym.CG, tkl.sym.S
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def layer_norm(dtype: DTypeLike = "f32", epsilon: float = 1e-5) -> tkw.Kernel:
    """Return a kernel that computes y[m, n] = (x[m, n] - mean) / sqrt(variance + epsilon) * weight[n] + bias[n].

    Arguments: x[M, N], weight[N], bias[N], then y[M, N], all of type `dtype`. Mean and variance are those of row m of
    x; the variance is the mean of the squared distances from the mean. Computed in f32 (f64 for f64), rounded once.

    >>> import numpy as np, tilewright
    >>> norm = tilewright.compile(layer_norm(epsilon=0.0), strict=True)
    >>> x, weight, bias = np.array([[1, 3]], np.float32), np.array([1, 10], np.float32), np.array([0, 5], np.float32)
    >>> norm(x, weight, bias)
    array([[-1., 15.]], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator

    @tkw.wave()
    def layer_norm(
        x: tkl.Memory[M, N, GLOBAL, of_data],
        weight: tkl.Memory[N, GLOBAL, of_data],
        bias: tkl.Memory[N, GLOBAL, of_data],
        y: tkl.Memory[M, N, GLOBAL, of_data],
    ) -> None:
        row = tkw.cast(tkw.read(x), of_sums)
        centred = row - tkw.sum(row, dim=N) / N
        variance = tkw.sum(centred * centred, dim=N) / N
        scaled = centred * tkw.rsqrt(variance + epsilon) * tkw.cast(tkw.read(weight), of_sums)
        tkw.write(tkw.cast(scaled + tkw.cast(tkw.read(bias), of_sums), of_data), y)

    return layer_norm


def rms_norm(dtype: DTypeLike = "f32", epsilon: float = 1e-6) -> tkw.Kernel:
    """Return a kernel that computes y[m, n] = x[m, n] / sqrt(mean over n of x[m, n]^2 + epsilon) * weight[n].

    Arguments: x[M, N], weight[N], then y[M, N], all of type `dtype`. Computed in f32 (f64 for f64), rounded once.

    >>> import numpy as np, tilewright
    >>> norm = tilewright.compile(rms_norm(epsilon=0.0), strict=True)
    >>> norm(np.array([[1, 7]], np.float32), np.array([5, 5], np.float32))
    array([[1., 7.]], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator

    @tkw.wave()
    def rms_norm(
        x: tkl.Memory[M, N, GLOBAL, of_data],
        weight: tkl.Memory[N, GLOBAL, of_data],
        y: tkl.Memory[M, N, GLOBAL, of_data],
    ) -> None:
        row = tkw.cast(tkw.read(x), of_sums)
        scale = tkw.rsqrt(tkw.sum(row * row, dim=N) / N + epsilon)
        tkw.write(tkw.cast(row * scale * tkw.cast(tkw.read(weight), of_sums), of_data), y)

    return rms_norm


def group_norm(dtype: DTypeLike = "f32", epsilon: float = 1e-5) -> tkw.Kernel:
    """Return a kernel that computes y[n, g, c, s] = (x[n, g, c, s] - mean) / sqrt(variance + epsilon) * weight[g, c] +
    bias[g, c].

    Arguments: x[N, G, CG, S], weight[G, CG], bias[G, CG], then y of x's shape, all of type `dtype`. Mean and variance
    are over the CG channels and S pixels of group g of image n. The variance is the mean of the squared distances from
    the mean. Computed in f32 (f64 for f64), rounded once.

    >>> import numpy as np, tilewright
    >>> norm = tilewright.compile(group_norm(epsilon=0.0), strict=True)
    >>> x, weight, bias = (np.array(a, np.float32) for a in ([1, 1, 3, 3], [[1, 10]], [[0, 5]]))
    >>> norm(x.reshape(1, 1, 2, 2), weight, bias).ravel()
    array([-1., -1., 15., 15.], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    Image: Any = tkl.Memory[N, G, CG, S, GLOBAL, of_data]
    Channels: Any = tkl.Memory[G, CG, GLOBAL, of_data]

    @tkw.wave()
    def group_norm(x: Image, weight: Channels, bias: Channels, y: Image) -> None:
        group = tkw.cast(tkw.read(x), of_sums)
        centred = group - tkw.sum(tkw.sum(group, dim=S), dim=CG) / (CG * S)
        variance = tkw.sum(tkw.sum(centred * centred, dim=S), dim=CG) / (CG * S)
        scaled = centred * tkw.rsqrt(variance + epsilon) * tkw.cast(tkw.read(weight), of_sums)
        tkw.write(tkw.cast(scaled + tkw.cast(tkw.read(bias), of_sums), of_data), y)

    return group_norm
