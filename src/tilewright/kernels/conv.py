"""Convolution, forward: NHWC, any filter, stride, padding and dilation, with a bias and an activation at the end."""

# mypy: disable-error-code="valid-type, type-arg"
from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.algebra.expr import Expr
from tilewright.ir.dtypes import DType
from tilewright.kernels.element_types import element_type
from tilewright.kernels.elementwise import apply_activation

N, H, W, C, F, R, S = tkl.sym.N, tkl.sym.H, tkl.sym.W, tkl.sym.C, tkl.sym.F, tkl.sym.R, tkl.sym.S
P, Q, M, K = tkl.sym.P, tkl.sym.Q, tkl.sym.M, tkl.sym.K
G, CG, FG = tkl.sym.G, tkl.sym.CG, tkl.sym.FG
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def conv2d(
    filter_size: tuple[int, int],
    dtype: DType | str = "f32",
    out_dtype: DType | str | None = None,
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    bias: bool = False,
    activation: str | None = None,
) -> tuple[tkw.Kernel, dict[Any, Any]]:
    """y[n, p, q, f] = activation(sum over r, s, c of x[n, h, w, c] * w[f, r, s, c] + bias[f]).

    h = p*stride + r*dilation - padding, and w likewise; outside, x is 0. With groups, filters f of group g see the
    channels of that group only. Pairs are for height and width. Sums, bias and activation are in the accumulator's
    type; the output's type is the data's unless `out_dtype` says another. Sizes come with the arguments.

    >>> import numpy as np, tilewright
    >>> kernel, symbols = conv2d((1, 3), "f32", padding=(0, 1), bias=True)
    >>> x, w = np.array([5, 6, 7], np.float32).reshape(1, 1, 3, 1), np.ones((1, 1, 3, 1), np.float32)
    >>> tilewright.compile(kernel, symbols, strict=True)(x, w, np.array([1], np.float32)).reshape(-1)
    array([12., 19., 14.], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    of_result = of_data if out_dtype is None else element_type(out_dtype)
    grouped = groups > 1
    count = 3 if grouped else 2
    g, i, j = (tkw.IndexMapping.iterator(n) for n in ((0, 1, 2) if grouped else (0, 0, 1)))
    of_group: dict[Any, Any] = {G: g} if grouped else {}
    channels, filters = (g * CG, g * FG) if grouped else (0, 0)
    kept, depth, columns = ((G,), CG, FG) if grouped else ((), C, F)
    n, p, q = i // (P * Q), i // Q % P, i % Q
    r, s, c = j // (S * depth), j // depth % S, j % depth
    at_x = tkw.IndexMapping(
        num_iterators=count,
        inputs={
            N: n,
            H: p * stride[0] + r * dilation[0] - padding[0],
            W: q * stride[1] + s * dilation[1] - padding[1],
            C: channels + c,
        },
        outputs={**of_group, M: i, K: j},
    )
    at_w = tkw.IndexMapping(
        num_iterators=count, inputs={F: filters + i, R: r, S: s, depth: c}, outputs={**of_group, columns: i, K: j}
    )
    at_y = tkw.IndexMapping(
        num_iterators=count, inputs={**of_group, M: i, columns: j}, outputs={N: n, P: p, Q: q, F: filters + j}
    )
    first, second = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    at_bias = tkw.IndexMapping(num_iterators=2, inputs={F: first * FG + second}, outputs={G: first, FG: second})
    outside = 0 if any(padding) else None

    def product(x: Any, w: Any) -> Any:
        @tkw.iterate(K, init_args=[tkl.Register[(*kept, M, columns, of_sums)](0)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(x, mapping=at_x, otherwise=outside), tkw.read(w, mapping=at_w), acc)

        return total

    def finish(total: Any, y: Any) -> None:
        tkw.write(tkw.cast(apply_activation(activation, total), of_result), y, mapping=at_y)

    Image, Filters = tkl.Memory[N, H, W, C, GLOBAL, of_data], tkl.Memory[F, R, S, depth, GLOBAL, of_data]
    Out = tkl.Memory[N, P, Q, F, GLOBAL, of_result]
    if bias:

        @tkw.wave()
        def conv_with_bias(x: Image, w: Filters, bias: tkl.Memory[F, GLOBAL, of_sums], y: Out) -> None:
            finish(product(x, w) + (tkw.read(bias, mapping=at_bias) if grouped else tkw.read(bias)), y)

        kernel = conv_with_bias
    else:

        @tkw.wave()
        def conv(x: Image, w: Filters, y: Out) -> None:
            finish(product(x, w), y)

        kernel = conv

    def outputs(size: Expr, axis: int) -> Expr:
        return (size + 2 * padding[axis] - dilation[axis] * (filter_size[axis] - 1) - 1) // stride[axis] + 1

    symbols = {
        R: filter_size[0],
        S: filter_size[1],
        P: outputs(H, 0),
        Q: outputs(W, 1),
        M: N * P * Q,
        K: R * S * depth,
    }
    if grouped:
        symbols |= {G: groups, FG: F // groups, C: groups * CG}
    return kernel, symbols
