"""Random tile programs that can be written in several ways which mean the same: what `metamorphic.py` compares.

A program has logical dimensions, arguments with those dimensions in their memory order, and a body that is written
against a `Writing`. A writing says which dimensions are split in two (one of the parts may be 1 wide), whether sums run
in `iterate`, in which order registers name their dimensions and by which symbols, whether operands are exchanged, and
whether a convolution's dimensions are merged to rows and columns by a mapping. Every argument keeps its memory order,
so that two writings of a program take the same bytes and give the same bytes.

Data are small integers. Scores of a softmax are multiples of 256, so that each weight is exactly 1 or 0, and everything
is exact in whatever order it is summed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
from random_products import kernel_of

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels

GLOBAL, f32 = tkl.GLOBAL_ADDRESS_SPACE, tkl.f32
SCALE = 256.0
"""Of scores: two that differ give weights of exactly 1 and 0."""
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
Extents = dict[str, int]
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Writing:
    """One way of writing a program down."""

    split: Mapping[str, float] = field(default_factory=dict)
    """Dimensions that are two, and where the outer one's extent stands among all divisors: 0 is 1, 1 is all."""
    loops: bool = True
    order: int = 0
    """The seed of the order in which registers name dimensions, and of the symbols; 0: as they come."""
    exchanged: bool = False
    flat: bool = False
    """Whether a convolution's rows and columns are one dimension each, by a mapping of digits."""


@dataclass(frozen=True)
class Written:
    """A program in a writing, for some extents."""

    kernel: Any
    sizes: Extents
    """By the names of its symbols."""
    shapes: tuple[tuple[int, ...], ...]
    """Of the arguments."""


@dataclass(frozen=True)
class Program:
    """A computation, however it is written."""

    name: str
    small: Extents
    large: Extents
    arguments: Mapping[str, tuple[tuple[str, ...], str]]
    """The dimensions in memory order and the type of each; the last is the result."""
    body: Callable[[Writer, dict[str, Any]], None]
    divisible: tuple[str, ...]
    """Dimensions that may be split."""
    tiles: Mapping[str, int] = field(default_factory=dict)
    """Tile sizes of loops that do more than accumulate."""
    flat: Callable[[], Any] | None = None
    """The same convolution with its dimensions merged, where it is one."""

    def written(self, writing: Writing, large: bool) -> Written:
        """The program in a writing, for the small or the large extents."""
        extents = self.large if large else self.small
        if writing.flat:
            assert self.flat is not None
            sizes = {"N": extents["B"]} | {name: extents[name] for name in "HWCF"}
            return Written(self.flat(), sizes, tuple(self.shape(name, extents) for name in self.arguments))
        writer = Writer(self, writing, extents)
        memory = {
            name: tkl.Memory[(*writer.flattened(dims), GLOBAL, getattr(tkl, dtype))]
            for name, (dims, dtype) in self.arguments.items()
        }
        tiling = [tkw.TilingConstraint(writer.looped(d), size) for d, size in self.tiles.items() if writing.loops]
        symbols = [writer.flattened(dims) for dims, _ in self.arguments.values()]
        shapes = tuple(tuple(writer.sizes[s.name] for s in its) for its in symbols)
        return Written(kernel_of(tiling, memory, partial(self.body, writer)), writer.sizes, shapes)

    def shape(self, name: str, extents: Extents) -> tuple[int, ...]:
        """The extents of an argument's logical dimensions."""
        return tuple(extents[d] for d in self.arguments[name][0])

    def data(self) -> dict[str, Array]:
        """Arrays of small integers for the small extents, in the logical dimensions; the result's holds 77 so far."""
        rng = np.random.default_rng(0)
        data = {
            name: rng.integers(-2, 3, self.shape(name, self.small)).astype(getattr(tkl, dtype).numpy)
            for name, (_, dtype) in self.arguments.items()
        }
        data["y"][...] = 77
        return data


class Writer:
    """The operations that a body is made of, as a writing has them."""

    def __init__(self, program: Program, writing: Writing, extents: Extents):
        self.writing = writing
        letters = list(LETTERS)
        if writing.order:
            random.Random(writing.order).shuffle(letters)
        used = [d for d in extents if any(d in dims for dims, _ in program.arguments.values())]
        self.parts: dict[str, tuple[Any, ...]] = {}
        self.sizes: Extents = {}
        for d, letter in zip(used, letters, strict=False):
            name = letter if writing.order else d
            widths = _cut(extents[d], writing.split[d]) if d in writing.split else (extents[d],)
            names = [name] if len(widths) == 1 else [f"{name}{n}" for n in range(len(widths))]
            self.parts[d] = tuple(getattr(tkl.sym, n) for n in names)
            self.sizes |= dict(zip(names, widths, strict=True))

    def flattened(self, dims: tuple[str, ...]) -> tuple[Any, ...]:
        """The symbols of dimensions, those of split ones beside each other."""
        return tuple(part for d in dims for part in self.parts[d])

    def looped(self, dim: str) -> Any:
        """The part of a dimension that a loop runs over: the outer one, unless it is 1 wide."""
        return next((p for p in self.parts[dim] if self.sizes[p.name] > 1), self.parts[dim][0])

    def register(self, *dims: str, value: float = 0) -> Any:
        """A tile of one value over dimensions, named in the writing's order."""
        symbols = list(self.flattened(dims))
        if self.writing.order:
            random.Random(self.writing.order).shuffle(symbols)
        return tkl.Register[(*symbols, f32)](value)

    def mma(self, left: Any, right: Any, acc: Any) -> Any:
        """The accumulator and the product of two operands, in the writing's order."""
        return tkw.mma(right, left, acc) if self.writing.exchanged else tkw.mma(left, right, acc)

    def add(self, x: Any, y: Any) -> Any:
        """The sum of two tiles, in the writing's order."""
        return y + x if self.writing.exchanged else x + y

    def times(self, x: Any, y: Any) -> Any:
        """The product of the elements of two tiles, in the writing's order."""
        return y * x if self.writing.exchanged else x * y

    def reduced(self, name: str, tile: Any, dim: str, acc: Any = None) -> Any:
        """The sum or the largest of a tile over all parts of a dimension, and of an accumulator."""
        function, last = getattr(tkw, name), self.looped(dim)
        for part in self.parts[dim]:
            if part is not last:
                tile = function(tile, dim=part)
        return function(tile, dim=last) if acc is None else function(tile, acc, dim=last)

    def accumulated(self, dim: str, step: Callable[..., Any], *starts: Any) -> Any:
        """The values after a step over a whole dimension, or after a loop of steps over it."""
        if not self.writing.loops:
            return step(*starts)

        @tkw.iterate(self.looped(dim), init_args=list(starts))
        def total(*carried: Any) -> Any:
            return step(*carried)

        return total


def _cut(extent: int, share: float) -> tuple[int, int]:
    """An extent as two factors; the outer one is the divisor at a share of all divisors: 12 at 0.6 is (4, 3)."""
    divisors = [n for n in range(1, extent + 1) if extent % n == 0]
    outer = divisors[round(share * (len(divisors) - 1))]
    return outer, extent // outer


# -- families --------------------------------------------------------------------------------------------------


def _sizes(rng: random.Random, **choices: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[Extents, Extents]:
    """Small and large extents of dimensions, drawn from choices of each."""
    small = {d: rng.choice(few) for d, (few, _) in choices.items()}
    return small, {d: rng.choice(many) for d, (_, many) in choices.items()}


WIDE = (6, 12, 20), (1024, 2048, 3000, 4096, 8192)
BATCHED = (6, 12, 20), (512, 1000, 1024, 2048)
DEEP = (8, 12, 18), (512, 1024, 2048, 4096)
NARROW = (4, 8, 12), (64, 128, 256)
MANY = (2, 4, 6), (4, 8, 12, 16)


def _turned(rng: random.Random, batch: tuple[str, ...], *dims: str) -> tuple[str, ...]:
    """Batch dimensions, and two others in either order."""
    return (*batch, *rng.choice((dims, dims, dims[::-1])))


def product(rng: random.Random) -> Program:
    """One product, or two of one operand, with an epilogue."""
    batch = rng.choice(((), (), ("B",), ("B", "H")))
    shared = bool(batch) and rng.random() < 0.3
    kind, into = rng.choice((("bf16", "bf16"), ("bf16", "bf16"), ("f16", "f16"), ("bf16", "f32")))
    end = rng.choice(("none", "none", "bias", "bias and relu", "residual", "gated", "squares"))
    wide = BATCHED if batch else WIDE
    small, large = _sizes(rng, B=MANY, H=MANY, M=wide, N=NARROW if end == "squares" else wide, K=DEEP)
    weights = _turned(rng, () if shared else batch, "N", "K")
    arguments = {"x": (_turned(rng, batch, "M", "K"), kind), "w": (weights, kind)}
    result = _turned(rng, batch, "M", "N")
    if end == "gated":
        arguments["v"] = weights, kind
    if end.startswith("bias"):
        arguments["bias"] = ("N",), "f32"
    if end == "residual":
        arguments["r"] = result, kind
    arguments["y"] = ((*batch, "M"), "f32") if end == "squares" else (result, into)
    names = ["w", "v"] if end == "gated" else ["w"]

    def body(to: Writer, args: dict[str, Any]) -> None:
        def step(*carried: Any) -> Any:
            sums = [to.mma(tkw.read(args["x"]), tkw.read(args[n]), acc) for n, acc in zip(names, carried, strict=True)]
            return sums[0] if len(sums) == 1 else tuple(sums)

        total = to.accumulated("K", step, *(to.register(*batch, "M", "N") for _ in names))
        if end == "gated":
            total = to.times(tkw.relu(total[0]), total[1])
        if end.startswith("bias"):
            total = to.add(total, tkw.read(args["bias"]))
        if end == "bias and relu":
            total = tkw.relu(total)
        if end == "residual":
            total = to.add(total, tkw.cast(tkw.read(args["r"]), f32))
        if end == "squares":
            tkw.write(to.reduced("sum", to.times(total, total), "N"), args["y"])
        else:
            tkw.write(tkw.cast(total, getattr(tkl, into)), args["y"])

    said = ",".join("".join(dims).lower() for dims, _ in list(arguments.values())[:2])
    name = f"product {said}->{''.join(arguments['y'][0]).lower()} {kind} to {into}, {end}"
    return Program(name, small, large, arguments, body, (*batch, "M", "N", "K"))


def chain(rng: random.Random) -> Program:
    """Two products, the second of the first one's result."""
    batch = rng.choice(((), (), ("B",)))
    small, large = _sizes(rng, B=MANY, M=WIDE, K=DEEP, F=NARROW, N=NARROW)
    between = rng.choice(("none", "relu", "bias"))
    arguments = {"x": ((*batch, "M", "K"), "bf16"), "w": (_turned(rng, batch, "F", "K"), "bf16")}
    arguments["v"] = _turned(rng, batch, "N", "F"), "bf16"
    if between == "bias":
        arguments["bias"] = ("F",), "f32"
    arguments["y"] = (*batch, "M", "N"), "bf16"

    def body(to: Writer, args: dict[str, Any]) -> None:
        def step(acc: Any) -> Any:
            return to.mma(tkw.read(args["x"]), tkw.read(args["w"]), acc)

        first = to.accumulated("K", step, to.register(*batch, "M", "F"))
        if between == "relu":
            first = tkw.relu(first)
        if between == "bias":
            first = to.add(first, tkw.read(args["bias"]))
        second = to.mma(tkw.cast(first, tkl.bf16), tkw.read(args["v"]), to.register(*batch, "M", "N"))
        tkw.write(tkw.cast(second, tkl.bf16), args["y"])

    return Program(f"chain, {between}{', batched' * bool(batch)}", small, large, arguments, body, (*batch, "M", "N"))


def convolution(rng: random.Random) -> Program:
    """A convolution, channels last, with any epilogue that its merged form has too."""
    taps, stride = rng.choice((1, 3, 3, 5)), rng.choice((1, 1, 2))
    padding, bias = taps // 2, rng.random() < 0.4
    small, large = _sizes(rng, B=MANY, C=NARROW, F=NARROW, H=((5, 6, 9), (14, 28, 56)), W=((4, 7, 8), (14, 28, 56)))
    large["B"] = rng.choice((8, 16, 32, 64))
    for extents in (small, large):
        out = {o: (extents[i] + 2 * padding - taps) // stride + 1 for o, i in (("P", "H"), ("Q", "W"))}
        extents |= out | {"R": taps, "S": taps}
    arguments = {"x": (("B", "H", "W", "C"), "bf16"), "w": (("F", "R", "S", "C"), "bf16")}
    if bias:
        arguments["bias"] = ("F",), "f32"
    arguments["y"] = ("B", "P", "Q", "F"), "bf16"

    def body(to: Writer, args: dict[str, Any]) -> None:
        rows, columns, channels = to.parts["B"], (*to.parts["P"], *to.parts["Q"]), to.parts["C"]
        window = (*to.parts["R"], *to.parts["S"])
        of = {s: tkw.IndexMapping.iterator(n) for n, s in enumerate((*rows, *columns, *window, *channels))}
        (p, q), (r, s) = (of[c] for c in columns), (of[c] for c in window)
        met = {to.parts["H"][0]: p * stride + r - padding, to.parts["W"][0]: q * stride + s - padding}
        inputs = {**{b: of[b] for b in rows}, **met, **{c: of[c] for c in channels}}
        mapping = tkw.IndexMapping(len(of), inputs=inputs, outputs=of)
        outside = 0 if padding else None

        def step(acc: Any) -> Any:
            return to.mma(tkw.read(args["x"], mapping=mapping, otherwise=outside), tkw.read(args["w"]), acc)

        total = to.accumulated("C", step, to.register("B", "P", "Q", "F"))
        if bias:
            total = to.add(total, tkw.read(args["bias"]))
        tkw.write(tkw.cast(total, tkl.bf16), args["y"])

    flat = partial(kernels.conv, (taps, taps), "bf16", stride=stride, padding=padding, bias=bias)
    name = f"convolution {taps}x{taps} by {stride}{', bias' * bias}"
    return Program(name, small, large, arguments, body, ("B", "F", "C"), flat=flat)


def attention(rng: random.Random) -> Program:
    """Attention with an online softmax over tiles of keys, or with whole rows of scores."""
    batch = rng.choice((("B", "H"), ("B", "H"), ("B",)))
    head, tile = rng.choice((64, 128)), rng.choice((64, 128))
    small, large = _sizes(rng, B=MANY, H=MANY, M=((6, 8, 12), (1024, 4096, 4200)), N=((8, 12), (1024, 4096)))
    small, large = small | {"D": 4, "E": 6}, large | {"D": head, "E": head}
    rows = (*batch, "M")
    arguments = {"q": ((*rows, "D"), "bf16"), "k": ((*batch, "N", "D"), "bf16"), "v": ((*batch, "N", "E"), "bf16")}
    arguments["y"] = (*rows, "E"), "bf16"

    def body(to: Writer, args: dict[str, Any]) -> None:
        def scores() -> Any:
            return to.mma(tkw.read(args["q"]), tkw.read(args["k"]), to.register(*rows, "N")) * SCALE

        def weighted(weights: Any, acc: Any) -> Any:
            return to.mma(tkw.cast(weights, tkl.bf16), tkw.read(args["v"]), acc)

        def online(highest: Any, total: Any, mean: Any) -> Any:
            tile_scores = scores()
            higher = to.reduced("max", tile_scores, "N", highest)
            shrink, weights = tkw.exp(highest - higher), tkw.exp(tile_scores - higher)
            total = to.reduced("sum", weights, "N", to.times(total, shrink))
            return higher, total, weighted(weights, to.times(mean, shrink))

        if to.writing.loops:
            starts = to.register(*rows, value=-1e30), to.register(*rows), to.register(*rows, "E")
            _, total, mean = to.accumulated("N", online, *starts)
        else:
            all_scores = scores()
            weights = tkw.exp(all_scores - to.reduced("max", all_scores, "N"))
            total, mean = to.reduced("sum", weights, "N"), weighted(weights, to.register(*rows, "E"))
        tkw.write(tkw.cast(mean / total, tkl.bf16), args["y"])

    name = f"attention {''.join(batch).lower()}, head {head}, {tile} keys"
    return Program(name, small, large, arguments, body, rows, {"N": tile})


def row(rng: random.Random) -> Program:
    """A program that memory bounds: a norm, a softmax, a sum, or arithmetic, of rows."""
    batch = rng.choice(((), (), ("B",)))
    how = rng.choice(("softmax", "rms norm", "layer norm", "sum", "column sum", "residual and relu", "transpose"))
    kind = rng.choice(("bf16", "f32"))
    small, large = _sizes(rng, B=MANY, M=WIDE, N=((8, 16, 32), (256, 1024, 4096, 8192)))
    dims = (*batch, "M", "N")
    arguments = {"x": (dims, kind)}
    if how in ("rms norm", "layer norm"):
        arguments["gain"] = ("N",), kind
    if how == "residual and relu":
        arguments["r"] = dims, kind
    results = {"sum": dims[:-1], "column sum": (*batch, "N"), "transpose": (*batch, "N", "M")}
    arguments["y"] = results.get(how, dims), kind

    def body(to: Writer, args: dict[str, Any]) -> None:
        x = tkw.cast(tkw.read(args["x"]), f32) if kind != "f32" else tkw.read(args["x"])

        def summed(dim: str, of: Callable[[], Any]) -> Any:
            left = [d for d in dims if d != dim]
            return to.accumulated(dim, lambda acc: to.reduced("sum", of(), dim, acc), to.register(*left))

        def again() -> Any:
            return tkw.cast(tkw.read(args["x"]), f32) if kind != "f32" else tkw.read(args["x"])

        width = prod(to.sizes[part.name] for part in to.parts["N"])
        if how == "softmax":
            weights = tkw.exp((x - to.reduced("max", x, "N")) * SCALE)
            x = weights / to.reduced("sum", weights, "N")
        elif how == "rms norm":
            squares = summed("N", lambda: to.times(again(), again()))
            x = to.times(to.times(x, tkw.rsqrt(squares * (1 / width) + 1.0)), tkw.cast(tkw.read(args["gain"]), f32))
        elif how == "layer norm":
            off = x - to.reduced("sum", x, "N") * (1 / width)
            spread = to.reduced("sum", to.times(off, off), "N") * (1 / width)
            x = to.times(to.times(off, tkw.rsqrt(spread + 1.0)), tkw.cast(tkw.read(args["gain"]), f32))
        elif how in ("sum", "column sum"):
            x = summed("N" if how == "sum" else "M", again)
        elif how == "residual and relu":
            x = tkw.relu(to.add(x, tkw.cast(tkw.read(args["r"]), f32) if kind != "f32" else tkw.read(args["r"])))
        tkw.write(tkw.cast(x, getattr(tkl, kind)) if kind != "f32" else x, args["y"])

    return Program(f"{how}{', batched' * bool(batch)} {kind}", small, large, arguments, body, dims)


FAMILIES: dict[str, Callable[[random.Random], Program]] = {
    "product": product, "chain": chain, "convolution": convolution, "attention": attention, "row": row,
}  # fmt: skip
SHARES = {"product": 9, "chain": 2, "convolution": 4, "attention": 3, "row": 4}
"""How often each family is drawn."""
