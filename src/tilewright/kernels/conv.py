"""Convolution, forward, over one, two or three axes: channels last, any filter, stride, padding and dilation,
groups, with a bias, a residual and an activation at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any

import numpy as np

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.algebra.expr import Expr
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike, element_type
from tilewright.kernels.elementwise import apply_activation, known_activation
from tilewright.kernels.sums import known_precision, sum_type
from tilewright.limits import ELEMENTS

B, N, C, F, M, K = tkl.sym.B, tkl.sym.N, tkl.sym.C, tkl.sym.F, tkl.sym.M, tkl.sym.K
G, CG, FG = tkl.sym.G, tkl.sym.CG, tkl.sym.FG
IMAGE = (tkl.sym.D, tkl.sym.H, tkl.sym.W)
FILTER = (tkl.sym.T, tkl.sym.R, tkl.sym.S)
OUTPUT = (tkl.sym.Z, tkl.sym.P, tkl.sym.Q)
"""The symbols of depth, height and width; a convolution with fewer axes uses the last ones."""
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE

PerAxis = int | Sequence[int]
Padding = str | int | Sequence[int | Sequence[int]]


def conv(
    filter_size: Sequence[int],
    dtype: DTypeLike = "f32",
    out_dtype: DTypeLike | None = None,
    *,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    batched: Sequence[str] = (),
    bias: bool = False,
    residual: bool = False,
    activation: str | None = None,
    precision: str | None = None,
    accumulate: str | None = None,
) -> tkw.Kernel:
    """Return a kernel that computes y[n, p, q, f] = activation(sum over r, s, c of x[n, h, w, c] * w[f, r, s, c] +
    bias[f]).

    This is the formula for two axes, with h = p*stride + r*dilation - padding, and w likewise of q and s. Out of
    bounds, x is 0. The number of axes is that of `filter_size`: with one, images are [N, W, C], filters [F, S, C] and
    outputs [N, Q, F]; with three, [N, D, H, W, C], [F, T, R, S, C] and [N, Z, P, Q, F]. `stride`, `padding` and
    `dilation` are one number for all axes or one for each; padding may differ at both ends of an axis, see
    `padding_of`. With `groups`, the filters have C / groups channels: the F / groups filters of group g are applied to
    the channels of group g only. `batched` names arguments among "x", "w" and "bias" that have a further first
    dimension B, for a batch of convolutions; then the residual and y have it too, and the arguments without it are the
    same for all convolutions.

    Arguments: the images x, the filters w, then bias[F] if `bias`, then an array of y's shape and type if `residual`,
    which is added before the activation, then y. x and w are of type `dtype`, y of type `out_dtype` (None: `dtype`).
    The accumulator is f32 (f64 for f64, i32 for integers of up to 32 bits). The bias has the accumulator's type, in
    which the activation is computed too. `precision="tf32"` rounds f32 operands to tf32 first. `accumulate="f16"`
    accumulates f16 products in f16; bias and activation stay in f32. `activation` is relu, gelu, gelu_tanh, silu or
    None. Sizes come with the arguments. Raise `ArgumentError` for options that are not valid.

    >>> import numpy as np, tilewright
    >>> kernel = conv((3,), "f32", padding=((2, 0),), bias=True)
    >>> x, w = np.array([5, 6, 7], np.float32).reshape(1, 3, 1), np.array([1, 10, 100], np.float32).reshape(1, 3, 1)
    >>> tilewright.compile(kernel, strict=True)(x, w, np.array([1], np.float32)).reshape(-1)
    array([501., 651., 766.], dtype=float32)
    """
    known_activation(activation), known_precision(precision)
    taps = tuple(filter_size)
    rank = len(taps)
    if not 1 <= rank <= len(IMAGE) or not all(_is_integer(n, 1) for n in taps):
        raise ArgumentError(f"filter_size={filter_size!r}: one to three integers of at least 1, one for each axis")
    if not _is_integer(groups, 1):
        raise ArgumentError(f"groups={groups!r}: an integer of at least 1")
    if isinstance(batched, str) or not isinstance(batched, Sequence) or set(batched) - {"x", "w", "bias"}:
        raise ArgumentError(f"batched={batched!r}: a list of names among 'x', 'w' and 'bias'")
    steps, dilations = per_axis(stride, rank, "stride"), per_axis(dilation, rank, "dilation")
    pads = padding_of(padding, taps, steps, dilations)
    of_data = element_type(dtype)
    of_sums, of_bias = sum_type(of_data, accumulate), of_data.accumulator
    plain = of_sums is of_bias or not (bias or residual or activation)
    of_result = of_data if out_dtype is None else element_type(out_dtype)
    grouped, outer = groups > 1, groups > 1 or bool(batched)
    image, filters, output = IMAGE[-rank:], FILTER[-rank:], OUTPUT[-rank:]
    depth, columns = (CG, FG) if grouped else (C, F)
    group_dims = (G,) if outer else ()  # G counts the groups of all convolutions of the batch

    count = 3 if outer else 2
    g, i, j = (tkw.IndexMapping.iterator(n) for n in ((0, 1, 2) if outer else (0, 0, 1)))
    of_group: dict[Any, Any] = {G: g} if outer else {}
    group = g % groups if batched else g
    first_channel, first_filter = (group * CG, group * FG) if grouped else (0, 0)
    batches = {name: {B: g // groups} if name in batched else {} for name in ("x", "w", "bias")}
    batches["y"] = {B: g // groups} if batched else {}
    n, *pixel = _digits(i, output)
    *tap, c = _digits(j, (*filters[1:], depth))
    image_coordinates = (
        p * s + r * d - before for p, r, s, d, (before, _) in zip(pixel, tap, steps, dilations, pads, strict=True)
    )
    at_x = tkw.IndexMapping(
        num_iterators=count,
        inputs={**batches["x"], N: n, **dict(zip(image, image_coordinates, strict=True)), C: first_channel + c},
        outputs={**of_group, M: i, K: j},
    )
    at_w = tkw.IndexMapping(
        num_iterators=count,
        inputs={**batches["w"], F: first_filter + i, **dict(zip(filters, tap, strict=True)), depth: c},
        outputs={**of_group, columns: i, K: j},
    )
    at_y = tkw.IndexMapping(
        num_iterators=count,
        inputs={**of_group, M: i, columns: j},
        outputs={**batches["y"], N: n, **dict(zip(output, pixel, strict=True)), F: first_filter + j},
    )
    at_residual = tkw.IndexMapping(
        num_iterators=count,
        inputs={**batches["y"], N: n, **dict(zip(output, pixel, strict=True)), F: first_filter + j},
        outputs={**of_group, M: i, columns: j},
    )
    column = tkw.IndexMapping.iterator(1)
    at_bias = tkw.IndexMapping(
        num_iterators=2, inputs={**batches["bias"], F: first_filter + column}, outputs={**of_group, columns: column}
    )
    outside = 0 if any(n > 0 for pair in pads for n in pair) else None

    def product(x: Any, w: Any) -> Any:
        @tkw.iterate(K, init_args=[tkl.Register[(*group_dims, M, columns, of_sums)](0)])
        def total(acc: Any) -> Any:
            image = tkw.read(x, mapping=at_x, otherwise=outside)
            return tkw.mma(image, tkw.read(w, mapping=at_w), acc, precision=precision, accumulate=accumulate)

        return total if plain else tkw.cast(total, of_bias)

    def finish(total: Any, y: Any) -> None:
        tkw.write(tkw.cast(apply_activation(activation, total), of_result), y, mapping=at_y)

    def with_bias(total: Any, bias: Any) -> Any:
        return total + (tkw.read(bias, mapping=at_bias) if outer else tkw.read(bias))

    def with_residual(total: Any, residual: Any) -> Any:
        return total + tkw.cast(tkw.read(residual, mapping=at_residual), of_bias)

    Image: Any = tkl.Memory[(*batches["x"], N, *image, C, GLOBAL, of_data)]
    Filters: Any = tkl.Memory[(*batches["w"], F, *filters, depth, GLOBAL, of_data)]
    Bias: Any = tkl.Memory[(*batches["bias"], F, GLOBAL, of_bias)]
    Out: Any = tkl.Memory[(*batches["y"], N, *output, F, GLOBAL, of_result)]

    @tkw.wave()
    def conv(x: Image, w: Filters, y: Out) -> None:
        finish(product(x, w), y)

    @tkw.wave()
    def conv_with_bias(x: Image, w: Filters, bias: Bias, y: Out) -> None:
        finish(with_bias(product(x, w), bias), y)

    @tkw.wave()
    def conv_with_residual(x: Image, w: Filters, residual: Out, y: Out) -> None:
        finish(with_residual(product(x, w), residual), y)

    @tkw.wave()
    def conv_with_bias_and_residual(x: Image, w: Filters, bias: Bias, residual: Out, y: Out) -> None:
        finish(with_residual(with_bias(product(x, w), bias), residual), y)

    if residual:
        kernel = conv_with_bias_and_residual if bias else conv_with_residual
    else:
        kernel = conv_with_bias if bias else conv

    symbols: dict[Any, Any] = dict(zip(filters, taps, strict=True))
    for size, out, r, s, d, pair in zip(image, output, taps, steps, dilations, pads, strict=True):
        symbols[out] = (size + sum(pair) - d * (r - 1) - 1) // s + 1
    symbols |= {M: prod(output, start=N), K: prod(filters, start=depth)}
    if outer:
        symbols[G] = B * groups if batched else groups
    if grouped:
        symbols |= {FG: F // groups, C: groups * CG}
    return kernel.bound(symbols)


def conv2d(
    filter_size: tuple[int, int], dtype: DTypeLike = "f32", out_dtype: DTypeLike | None = None, **options: Any
) -> tkw.Kernel:
    """Return the kernel of `conv` over two axes, height and width; `options` are those of `conv`.

    Raise `ArgumentError` unless `filter_size` has two integers, and for options that `conv` refuses.

    >>> import numpy as np, tilewright
    >>> kernel = conv2d((1, 3), "f32", padding=(0, 1))
    >>> x, w = np.array([5, 6, 7], np.float32).reshape(1, 1, 3, 1), np.ones((1, 1, 3, 1), np.float32)
    >>> tilewright.compile(kernel, strict=True)(x, w).reshape(-1)
    array([11., 18., 13.], dtype=float32)
    """
    if len(filter_size) != 2:
        raise ArgumentError(f"filter_size={filter_size!r}: two integers, for height and width")
    return conv(filter_size, dtype, out_dtype, **options)


def per_axis(value: PerAxis, rank: int, name: str, least: int = 1) -> tuple[int, ...]:
    """Return `value` as a tuple of one integer for each of `rank` axes; an integer alone stands for all axes.

    Raise `ArgumentError` unless all are integers of at least `least`; `name` is the option's name in the error text.

    >>> per_axis(2, 3, "stride"), per_axis((2, 1), 2, "stride")
    ((2, 2, 2), (2, 1))
    """
    entries = (value,) * rank if _is_integer(value) else _as_tuple(value)
    if entries is None or len(entries) != rank or not all(_is_integer(n, least) for n in entries):
        raise ArgumentError(f"{name}={value!r}: an integer of at least {least}{_or_each_text(rank)}")
    return tuple(map(index, entries))


def padding_of(
    padding: Padding, taps: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """Return ((before, after), ...): for each axis the number of zeros that are added before and after the image.

    `padding` is one number for all axes, or for each axis a number or a pair (before, after). Negative numbers crop the
    image. "valid" is no padding. "same" makes the output as large as the image, and needs strides of 1; if the total
    along an axis is odd, one zero more is added after the image. `taps` are the filter's extents. Raise `ArgumentError`
    for other paddings, and for "same" with another stride.

    >>> padding_of((1, (0, 2)), (3, 3), (1, 1), (1, 1)), padding_of("same", (3, 4), (1, 1), (2, 1))
    (((1, 1), (0, 2)), ((2, 2), (1, 2)))
    """
    rank = len(taps)
    if isinstance(padding, str) and padding == "valid":
        return ((0, 0),) * rank
    if isinstance(padding, str) and padding == "same":
        if set(stride) != {1}:
            raise ArgumentError(f"padding='same' needs a stride of 1, not {stride}; give numbers or pairs instead")
        total_padding = [(r - 1) * d for r, d in zip(taps, dilation, strict=True)]
        return tuple((n // 2, n - n // 2) for n in total_padding)
    entries = (padding,) * rank if _is_integer(padding) else _as_tuple(padding)
    pairs = [(n, n) if _is_integer(n) else _as_tuple(n) for n in entries or ()]
    if len(pairs) != rank or any(p is None or len(p) != 2 or not all(map(_is_integer, p)) for p in pairs):
        pair_text = ", ".join(["(before, after)"] * rank)
        raise ArgumentError(
            f"padding={padding!r}: an integer{_or_each_text(rank)}, or ({pair_text}{',' * (rank == 1)}), "
            "'same' or 'valid'"
        )
    return tuple((index(before), index(after)) for before, after in filter(None, pairs))


def _or_each_text(rank: int) -> str:
    """Return the end of an error text that says how to give one value for each of `rank` axes (1 to 3): for 2 ", or one
    for each axis: (height, width)".
    """
    return ", or one for each axis: " + ("(width,)", "(height, width)", "(depth, height, width)")[rank - 1]


def _is_integer(value: Any, least: int | None = None) -> bool:
    """Return True if `value` is an integer, Python's or numpy's, of at least `least` (None: any), within the limit for
    tensors.
    """
    if isinstance(value, bool | Expr) or not isinstance(value, int | np.integer):
        return False
    return not ELEMENTS.refuses(abs(index(value))) and (least is None or index(value) >= least)


def _as_tuple(value: Any) -> tuple[Any, ...] | None:
    """Return the sequence `value` as a tuple; None if it is a string or no sequence."""
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else None


def _digits(flat: Any, extents: Sequence[Any]) -> list[Any]:
    """Return the row-major coordinates of the flat index `flat`, as a list of expressions, slowest first.

    The index is into a tensor whose last dimensions have the given `extents`; one more dimension, of any extent, comes
    first. Extents (3, 4) -> [flat // 12, flat // 4 % 3, flat % 4].
    """
    strides = [prod(extents[n:]) for n in range(len(extents))]
    inner = [flat // step % extent for step, extent in zip(strides[1:], extents, strict=False)]
    return [flat // strides[0], *inner, flat % extents[-1]]
