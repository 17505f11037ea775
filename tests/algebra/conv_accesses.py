"""Convolution accesses for the tests: one problem, its direct loop, and the access written in several ways.

Memory: x[n, i..., g, c], y[n, o..., g, f], w[g, t..., c, f], with spatial axes i (input), o (output), t (filter taps).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.algebra import Access, Layout, View, eq, extent, index
from tilewright.algebra.expr import Expr, ExprLike, as_expr


@dataclass(frozen=True)
class Conv:
    """A convolution problem of any number of spatial axes; c and f are channels of one group."""

    n: int
    g: int
    c: int
    f: int
    image: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[int, ...]
    pad_right: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.image)

    @property
    def out(self) -> tuple[int, ...]:
        rows = zip(self.image, self.taps, self.stride, self.dilation, self.pad, self.pad_right, strict=True)
        return tuple((i + pl + pr - d * (t - 1) - 1) // s + 1 for i, t, s, d, pl, pr in rows)

    @property
    def is_padded(self) -> bool:
        return any(self.pad) or any(self.pad_right)


def random_conv(rng: random.Random, rank: int | None = None, *, padded: bool | None = None, small: bool = True) -> Conv:
    """A problem with odd mixes of stride, dilation and (asymmetric, negative, over-large) padding; output not empty."""
    while True:
        d = rank or rng.choice([1, 2, 2, 3])
        top = {1: 12, 2: 8, 3: 5}[d] if small else {1: 99, 2: 60, 3: 14}[d]
        no_pad = padded is False or (padded is None and rng.random() < 0.3)
        conv = Conv(
            n=rng.randint(1, 3 if small else 8),
            g=rng.choice([1, 1, 2, 3]),
            c=rng.choice([1, 2, 3, 5] if small else [3, 5, 20, 33, 64, 100, 127]),
            f=rng.choice([1, 2, 3]),
            image=tuple(rng.randint(1, top) for _ in range(d)),
            taps=tuple(rng.choice([1, 2, 3, 3, 5]) for _ in range(d)),
            stride=tuple(rng.choice([1, 1, 2, 3]) for _ in range(d)),
            dilation=tuple(rng.choice([1, 1, 2, 3]) for _ in range(d)),
            pad=tuple(0 if no_pad else rng.choice([0, 1, 2, 4, -1]) for _ in range(d)),
            pad_right=tuple(0 if no_pad else rng.choice([0, 1, 2, 3, -1]) for _ in range(d)),
        )
        points = prod(conv.out) * prod(conv.taps)
        if min(conv.out) >= 1 and points <= (4000 if small else 10**9) and conv.is_padded >= bool(padded):
            return conv


def unflatten(flat: Expr, extents: list[ExprLike]) -> list[Expr]:
    """The digits of a flat index with // and %, slowest first, as an author writes them."""
    digits: list[Expr] = []
    for i in range(len(extents)):
        inner = prod(as_expr(e) for e in extents[i + 1 :]) if extents[i + 1 :] else as_expr(1)
        digit = flat // inner
        digits.append(digit if i == 0 else digit % extents[i])
    return digits


@dataclass
class Sizes:
    """The sizes as numbers, or as symbols with the numbers they will be bound to."""

    c: ExprLike
    f: ExprLike
    image: list[ExprLike]
    out: list[ExprLike]
    values: dict[str, int]


def sizes_of(conv: Conv, *, symbolic: bool) -> Sizes:
    if not symbolic:
        return Sizes(conv.c, conv.f, list(conv.image), list(conv.out), {})
    values = {"C": conv.c, "F": conv.f}
    image: list[ExprLike] = []
    out: list[ExprLike] = []
    for j in range(conv.rank):
        least = conv.dilation[j] * (conv.taps[j] - 1) + 1 - conv.pad[j] - conv.pad_right[j]
        size = extent(f"I{j}", max(1, least))
        values[f"I{j}"] = conv.image[j]
        image.append(size)
        spare = size + conv.pad[j] + conv.pad_right[j] - conv.dilation[j] * (conv.taps[j] - 1) - 1
        out.append(extent(f"O{j}", definition=spare // conv.stride[j] + 1))
    return Sizes(extent("C"), extent("F"), image, out, values)


# -- the direct loop: (offset, valid) for every point, by plain arithmetic on numpy indices ---------------------


def forward_loop(conv: Conv) -> tuple[np.ndarray, np.ndarray]:
    """x as read by y[n, o, g] += x[n, o*s + t*d - pad, g, c] * w: arrays indexed [g, m, k]."""
    shape = (conv.g, conv.n, *conv.out, *conv.taps, conv.c)
    grid = np.indices(shape)
    g, n, c = grid[0], grid[1], grid[-1]
    o, t = grid[2 : 2 + conv.rank], grid[2 + conv.rank : -1]
    offset, valid = n, np.ones(shape, bool)
    for j in range(conv.rank):
        i = o[j] * conv.stride[j] + t[j] * conv.dilation[j] - conv.pad[j]
        valid &= (i >= 0) & (i < conv.image[j])
        offset = offset * conv.image[j] + i
    offset = (offset * conv.g + g) * conv.c + c
    flat = (conv.g, conv.n * prod(conv.out), prod(conv.taps) * conv.c)
    return offset.reshape(flat), valid.reshape(flat)


def dgrad_loop(conv: Conv) -> tuple[np.ndarray, np.ndarray]:
    """dy as read by dx[n, i, g, c] += dy[n, (i + pad - t*d) / s, g, f] * w: arrays indexed [g, m, k]."""
    shape = (conv.g, conv.n, *conv.image, *conv.taps, conv.f)
    grid = np.indices(shape)
    g, n, f = grid[0], grid[1], grid[-1]
    i, t = grid[2 : 2 + conv.rank], grid[2 + conv.rank : -1]
    offset, valid = n, np.ones(shape, bool)
    for j in range(conv.rank):
        scaled = i[j] + conv.pad[j] - t[j] * conv.dilation[j]
        o = scaled // conv.stride[j]
        valid &= (scaled % conv.stride[j] == 0) & (o >= 0) & (o < conv.out[j])
        offset = offset * conv.out[j] + o
    offset = (offset * conv.g + g) * conv.f + f
    flat = (conv.g, conv.n * prod(conv.image), prod(conv.taps) * conv.f)
    return offset.reshape(flat), valid.reshape(flat)


# -- the accesses ------------------------------------------------------------------------------------------------


def forward_flat(conv: Conv, sizes: Sizes) -> Access:
    """x with flat m = (n, o...) and k = (t..., c), by // and %."""
    g = index("g", conv.g)
    m = index("m", prod(sizes.out, start=as_expr(conv.n)))
    k = index("k", prod(conv.taps) * as_expr(sizes.c))
    n, *o = unflatten(m, [conv.n, *sizes.out])
    *t, c = unflatten(k, [*conv.taps, sizes.c])
    i = [o[j] * conv.stride[j] + t[j] * conv.dilation[j] - conv.pad[j] for j in range(conv.rank)]
    return Access.of((n, *i, g, c), axes=(g, m, k), shape=(conv.n, *sizes.image, conv.g, sizes.c))


def forward_view(conv: Conv, sizes: Sizes) -> View:
    """x as an unmerged chain: pad, then embed, for every spatial axis."""
    view = View.tensor({"n": conv.n, **{f"i{j}": sizes.image[j] for j in range(conv.rank)}, "g": conv.g, "c": sizes.c})
    for j in range(conv.rank):
        parts = {f"o{j}": (sizes.out[j], conv.stride[j]), f"t{j}": (conv.taps[j], conv.dilation[j])}
        view = view.pad(f"i{j}", conv.pad[j], conv.pad_right[j]).embed(f"i{j}", parts)
    return view


def forward_chain(conv: Conv, sizes: Sizes) -> Access:
    view = forward_view(conv, sizes)
    view = view.merge("m", ("n", *(f"o{j}" for j in range(conv.rank))))
    view = view.merge("k", (*(f"t{j}" for j in range(conv.rank)), "c"))
    return view.permute("g", "m", "k").access()


def forward_layout(conv: Conv) -> Access:
    """x as one nested strided layout, where there is no padding."""
    steps = [conv.g * conv.c * prod(conv.image[j + 1 :]) for j in range(conv.rank)]
    backwards = range(conv.rank - 1, -1, -1)
    m = Layout(
        (*(conv.out[j] for j in backwards), conv.n),
        (*(conv.stride[j] * steps[j] for j in backwards), conv.g * conv.c * prod(conv.image)),
    )
    k = Layout((conv.c, *(conv.taps[j] for j in backwards)), (1, *(conv.dilation[j] * steps[j] for j in backwards)))
    layout = Layout((conv.g, m.shape, k.shape), (conv.c, m.stride, k.stride))
    return Access.from_layout(layout, [index("g", conv.g), index("m", m.size()), index("k", k.size())])


def dgrad_flat(conv: Conv, sizes: Sizes) -> Access:
    """dy with flat m = (n, i...) and k = (t..., f); a stride makes congruences."""
    g = index("g", conv.g)
    m = index("m", prod(sizes.image, start=as_expr(conv.n)))
    k = index("k", prod(conv.taps) * as_expr(sizes.f))
    n, *i = unflatten(m, [conv.n, *sizes.image])
    *t, f = unflatten(k, [*conv.taps, sizes.f])
    scaled = [i[j] + conv.pad[j] - t[j] * conv.dilation[j] for j in range(conv.rank)]
    o = [scaled[j] // conv.stride[j] for j in range(conv.rank)]
    congruences = [eq(scaled[j] % conv.stride[j], 0) for j in range(conv.rank)]
    shape = (conv.n, *sizes.out, conv.g, sizes.f)
    return Access.of((n, *o, g, f), axes=(g, m, k), shape=shape, conditions=congruences)


def wgrad_flat(conv: Conv, sizes: Sizes) -> Access:
    """x as wgrad reads it: rows (t..., c), reduction (n, o...)."""
    forward = forward_flat(conv, sizes)
    g, m, k = forward.axes
    return Access.of(forward.coordinates, (g, k, m), forward.shape)
