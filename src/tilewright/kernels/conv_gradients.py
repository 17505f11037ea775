"""Convolution, backward: the gradients of images and of filters, over one, two or three axes, channels last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.algebra.expr import Expr
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike, element_type
from tilewright.kernels.conv import FILTER, GLOBAL, IMAGE, OUTPUT, Padding, PerAxis, padding_of, per_axis

N, C, F = tkl.sym.N, tkl.sym.C, tkl.sym.F
G, CG, FG = tkl.sym.G, tkl.sym.CG, tkl.sym.FG


def conv_image_gradient(
    filter_size: Sequence[int],
    dtype: DTypeLike = "f32",
    *,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> tkw.Kernel:
    """Return a kernel that computes the gradient of a convolution by its images.

    For two axes, dx[n, h, w, c] = sum over r, s, f of dy[n, p, q, f] * w[f, r, s, c]. Here p is the output row with h =
    p*stride + r*dilation - padding, and q likewise of w and s; taps (r, s) for which there is no such output add
    nothing. Arguments: dy[N, P, Q, F], w[F, R, S, C], then dx[N, H, W, C], all of type `dtype`; with groups, w is [F,
    R, S, C / groups]. The options are those of `conv`. With a stride above 1, several image sizes have the same output
    size: pass dx, or bind H and W. Sums are computed in f32 (f64 for f64) and rounded once. Raise `ArgumentError` for
    options that are not valid.

    >>> import numpy as np, tilewright
    >>> run = tilewright.compile(conv_image_gradient((3,), stride=2), strict=True)
    >>> dy, w = np.array([1, 2], np.float32).reshape(1, 2, 1), np.array([1, 10, 100], np.float32).reshape(1, 3, 1)
    >>> run(dy, w, out=np.empty((1, 6, 1), np.float32)).ravel()
    array([  1.,  10., 102.,  20., 200.,   0.], dtype=float32)
    """
    window = _Window(filter_size, stride, padding, dilation, groups)
    of_data = element_type(dtype)
    image, filters, output, group_dims = window.image, window.filters, window.output, window.kept
    columns, depth = window.columns, window.depth

    def outputs_of(at: dict[Any, Any]) -> dict[Any, Any]:
        output_coordinates = {}
        for axis, (step, dilation_, (before, _)) in enumerate(window.steps):
            reached = at[image[axis]] + before - at[filters[axis]] * dilation_
            # A pixel between two strides belongs to no output: its coordinate is below 0, where dy counts as 0.
            below = reached // step - reached % step * (image[axis] + before)
            output_coordinates[output[axis]] = reached if step == 1 else below
        return {N: at[N], **output_coordinates, F: window.filter_of(at)}

    at_dy = _mapping_of((N, *group_dims, *image, *filters, columns), outputs_of)
    at_w = _mapping_of(
        (*group_dims, columns, *filters, depth),
        lambda at: {F: window.filter_of(at), **{r: at[r] for r in filters}, depth: at[depth]},
    )
    at_dx = _mapping_of(
        (N, *group_dims, *image, depth),
        lambda at: {N: at[N], **{h: at[h] for h in image}, C: window.channel_of(at)},
        written=True,
    )

    Outputs: Any = tkl.Memory[(N, *output, F, GLOBAL, of_data)]
    Filters: Any = tkl.Memory[(F, *filters, depth, GLOBAL, of_data)]
    Image: Any = tkl.Memory[(N, *image, C, GLOBAL, of_data)]

    @tkw.wave()
    def conv_image_gradient(dy: Outputs, w: Filters, dx: Image) -> None:
        nothing = tkl.Register[(N, *group_dims, *image, depth, of_data.accumulator)](0)
        total = tkw.mma(tkw.read(dy, mapping=at_dy, otherwise=0), tkw.read(w, mapping=at_w), nothing)
        tkw.write(tkw.cast(total, of_data), dx, mapping=at_dx)

    return conv_image_gradient.bound(window.symbols)


def conv_filter_gradient(
    filter_size: Sequence[int],
    dtype: DTypeLike = "f32",
    *,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> tkw.Kernel:
    """Return a kernel that computes the gradient of a convolution by its filters.

    For two axes, dw[f, r, s, c] = sum over n, p, q of dy[n, p, q, f] * x[n, h, w, c], with h = p*stride + r*dilation -
    padding, and w likewise of q and s; x is 0 out of bounds. Arguments: x[N, H, W, C], dy[N, P, Q, F], then dw[F, R, S,
    C], all of type `dtype`; with groups, dw is [F, R, S, C / groups]. The options are those of `conv`. Sums are
    computed in f32 (f64 for f64) and rounded once. Raise `ArgumentError` for options that are not valid.

    >>> import numpy as np, tilewright
    >>> run = tilewright.compile(conv_filter_gradient((2,), padding=((1, 0),)), strict=True)
    >>> x, dy = np.array([1, 2, 3], np.float32).reshape(1, 3, 1), np.array([1, 10, 100], np.float32).reshape(1, 3, 1)
    >>> run(x, dy).ravel()
    array([210., 321.], dtype=float32)
    """
    window = _Window(filter_size, stride, padding, dilation, groups)
    of_data = element_type(dtype)
    image, filters, output, group_dims = window.image, window.filters, window.output, window.kept
    columns, depth = window.columns, window.depth

    def pixels_of(at: dict[Any, Any]) -> dict[Any, Any]:
        image_coordinates = {
            image[axis]: at[output[axis]] * step + at[filters[axis]] * dilation_ - before
            for axis, (step, dilation_, (before, _)) in enumerate(window.steps)
        }
        return {N: at[N], **image_coordinates, C: window.channel_of(at)}

    at_x = _mapping_of((N, *group_dims, *output, *filters, depth), pixels_of)
    at_dy = _mapping_of(
        (N, *group_dims, *output, columns),
        lambda at: {N: at[N], **{p: at[p] for p in output}, F: window.filter_of(at)},
    )
    at_dw = _mapping_of(
        (*group_dims, columns, *filters, depth),
        lambda at: {F: window.filter_of(at), **{r: at[r] for r in filters}, depth: at[depth]},
        written=True,
    )

    Image: Any = tkl.Memory[(N, *image, C, GLOBAL, of_data)]
    Outputs: Any = tkl.Memory[(N, *output, F, GLOBAL, of_data)]
    Filters: Any = tkl.Memory[(F, *filters, depth, GLOBAL, of_data)]

    @tkw.wave()
    def conv_filter_gradient(x: Image, dy: Outputs, dw: Filters) -> None:
        nothing = tkl.Register[(*group_dims, columns, *filters, depth, of_data.accumulator)](0)
        total = tkw.mma(tkw.read(dy, mapping=at_dy), tkw.read(x, mapping=at_x, otherwise=0), nothing)
        tkw.write(tkw.cast(total, of_data), dw, mapping=at_dw)

    return conv_filter_gradient.bound(window.symbols)


class _Window:
    """The axes of a convolution: their symbols, strides, dilations and padding, and its groups."""

    def __init__(
        self, filter_size: Sequence[int], stride: PerAxis, padding: Padding, dilation: PerAxis, groups: int
    ) -> None:
        taps = tuple(filter_size)
        rank = len(taps)
        if not 1 <= rank <= len(IMAGE) or min(taps) < 1:
            raise ArgumentError(f"filter_size={filter_size!r}: one to three integers of at least 1, one for each axis")
        if groups < 1:
            raise ArgumentError(f"groups={groups!r}: an integer of at least 1")
        steps, dilations = per_axis(stride, rank, "stride"), per_axis(dilation, rank, "dilation")
        self.steps = list(zip(steps, dilations, padding_of(padding, taps, steps, dilations), strict=True))
        """(stride, dilation, padding before and after) of each axis."""
        self.image, self.filters, self.output = IMAGE[-rank:], FILTER[-rank:], OUTPUT[-rank:]
        grouped = groups > 1
        self.kept: tuple[Expr, ...] = (G,) if grouped else ()
        """(G,), the dimension of groups, if there is more than one; otherwise ()."""
        self.columns, self.depth = (FG, CG) if grouped else (F, C)
        self.symbols: dict[Any, Any] = dict(zip(self.filters, taps, strict=True))
        if grouped:
            self.symbols |= {G: groups, FG: F // groups, C: groups * CG}

    def filter_of(self, at: dict[Any, Any]) -> Any:
        """Return the expression for a filter's index among the filters of all groups.

        `at` is {tile dimension: coordinate expression}; with groups, its entries G (group) and FG (filter of the group)
        are used, otherwise F.
        """
        return at[G] * FG + at[FG] if self.kept else at[F]

    def channel_of(self, at: dict[Any, Any]) -> Any:
        """Return the expression for an input channel's index among the channels of all groups.

        `at` is {tile dimension: coordinate expression}; with groups, its entries G (group) and CG (channel of the
        group) are used, otherwise C.
        """
        return at[G] * CG + at[CG] if self.kept else at[C]


def _mapping_of(
    dims: Sequence[Any], coordinates: Callable[[dict[Any, Any]], dict[Any, Any]], *, written: bool = False
) -> tkw.IndexMapping:
    """Return the index mapping between a tile with dimensions `dims` and memory: for a write if `written`, otherwise
    for a read.

    `coordinates` takes {tile dimension: iterator} and returns {memory dimension: coordinate expression}.
    """
    at = {d: tkw.IndexMapping.iterator(position) for position, d in enumerate(dims)}
    memory = coordinates(at)
    inputs, outputs = (at, memory) if written else (memory, at)
    return tkw.IndexMapping(len(at), inputs=inputs, outputs=outputs)
