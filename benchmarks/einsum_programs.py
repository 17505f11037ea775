"""Random einsums, pairs of products, reductions and mixtures of them as tile programs, with their exact results.

`made(kind, number, seed)` is program number so and so of a kind and a seed, the same in every run. An einsum has none,
one or two batch, row and column dimensions, and one or two that are summed; arguments and results have their dimensions
in any order, some of extent 1. Data are small integers, and values are clamped where a type has few bits: the result is
the one that numpy gives in int64. A program is written once, against `lang`: traced it is a tile program, and with
`Exact` it is its reference.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from random_products import kernel_of

import tilewright.lang as tkl
import tilewright.wave as tkw

EXTENTS = (1, 1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 33, 64, 67, 128)
WORK = 8_000
"""The product of all extents is at most this."""
FEW = 16
"""The most terms of a sum in a type of few bits."""
TILES = (1, 3, 4, 16, 32, 64)
"""Tile sizes of loops."""
TYPES = ("f32", "bf16", "f16", "i8")
LIMITS = {"f32": 1 << 24, "bf16": 1 << 8, "f16": 1 << 11, "i8": 127, "i32": 1 << 31}
"""Integers up to this are exact in a type."""
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
Array = np.ndarray[Any, np.dtype[Any]]
Dims = tuple[Any, ...]
Body = Callable[[Any, dict[str, Any]], None]


@dataclass
class Einsum:
    """A program, its arguments by name, and what it must write."""

    kernel: Any
    sizes: dict[str, int]
    arrays: dict[str, Array]
    wanted: dict[str, Array]
    words: str


def made(kind: str, number: int, seed: int = 0, work: int = WORK) -> Einsum:
    """Program number so and so of a kind and a seed; the product of its extents is at most `work`."""
    draft = Draft(random.Random(f"{kind} {seed} {number}"))
    body = KINDS[kind](draft)
    data = np.random.default_rng((seed, number, list(KINDS).index(kind)))
    return draft.finished(body, draft.extents(work), data)


def spelled(letters: str, kind: str, sizes: dict[str, int], loops: str = "") -> Einsum:
    """The einsum of these letters, plain, on data of a type: `spelled("k,nk->n", "f32", {"k": 5, "n": 7})`.

    It loops over some of the letters that it sums.
    """
    draft = Draft(random.Random(letters))
    dims = [tuple(getattr(tkl.sym, c.upper()) for c in word) for word in letters.replace("->", ",").split(",")]
    product = Product("x", "w", dims[2], kind, 0, False, "")
    for name, of, its in zip("xwy", dims, (kind, kind, product.wide), strict=True):
        draft.argument(name, of, its)
    draft.results.append("y")
    draft.words.append(f"{letters} {kind}{f', iterate {loops}' if loops else ''}")
    over = tuple(getattr(tkl.sym, c.upper()) for c in loops)
    body = partial(_einsum_body, product, over, Epilogue([], product.wide, product.wide))
    return draft.finished(body, {c.upper(): size for c, size in sizes.items()}, np.random.default_rng(0))


# -- what programs are drawn from ------------------------------------------------------------------------------


@dataclass
class Draft:
    """The dimensions, arguments and loops of a program, while it is drawn."""

    rng: random.Random
    dims: list[Any] = field(default_factory=list)
    arguments: dict[str, tuple[Dims, str]] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)
    tiles: dict[Any, int] = field(default_factory=dict)
    """Tile sizes of loops, by dimension; a loop that only accumulates needs none."""
    few: Dims = ()
    """Dimensions whose extents are small: a sum over them has few bits."""
    words: list[str] = field(default_factory=list)

    def some(self, names: str, counts: Sequence[int]) -> Dims:
        """New dimensions with the first of these names: as many as one of the counts."""
        found = tuple(getattr(tkl.sym, name) for name in names[: self.rng.choice(counts)])
        self.dims += found
        return found

    def shuffled(self, dims: Sequence[Any]) -> Dims:
        """The dimensions in any order."""
        return tuple(self.rng.sample(list(dims), len(dims)))

    def part(self, dims: Sequence[Any], least: int = 0) -> Dims:
        """Some of the dimensions, in any order."""
        return tuple(self.rng.sample(list(dims), self.rng.randint(min(least, len(dims)), len(dims))))

    def argument(self, name: str, dims: Dims, kind: str) -> str:
        """A new argument that is read."""
        self.arguments[name] = dims, kind
        return name

    def result(self, name: str, dims: Sequence[Any], kind: str) -> str:
        """A new argument that is written, its dimensions in any order."""
        self.results.append(name)
        return self.argument(name, self.shuffled(dims), kind)

    def loops(self, dims: Sequence[Any], always_tiled: bool = False) -> Dims:
        """Dimensions that the program loops over, the outermost first: none of these, or some."""
        if self.rng.random() < 0.45:
            return ()
        found = self.part(dims, 1)
        for d in found:
            if always_tiled or len(found) > 1 or self.rng.random() < 0.6:
                self.tiles[d] = self.rng.choice(TILES)
        by = [f"{d.name.lower()}{f' by {self.tiles[d]}' if d in self.tiles else ''}" for d in found]
        self.words.append(f"iterate {', '.join(by)}")
        return found

    def extents(self, work: int) -> dict[str, int]:
        """The extents of all dimensions, by name; their product is at most `work`."""
        sizes = {d.name: self.rng.choice(EXTENTS) for d in self.dims}
        for names, most in ((list(sizes), work), ([d.name for d in self.few], FEW)):
            while np.prod([sizes[name] for name in names]) > most:
                name = max(names, key=lambda n: sizes[n])
                sizes[name] = -(-sizes[name] // 2)
        return sizes

    def finished(self, body: Body, sizes: dict[str, int], data: np.random.Generator) -> Einsum:
        """The program for these extents, its arguments, and what it must write."""
        arrays = {}
        for name, (dims, kind) in self.arguments.items():
            arrays[name] = data.integers(-2, 3, [sizes[d.name] for d in dims]).astype(getattr(tkl, kind).numpy)
        exact = Exact(sizes)
        named = {name: Named(dims, arrays[name].astype(np.int64)) for name, (dims, _) in self.arguments.items()}
        body(exact, named)
        wanted = {name: named[name].array.astype(arrays[name].dtype) for name in self.results}
        for name in self.results:
            assert (wanted[name].astype(np.int64) == named[name].array).all(), f"{name} is not exact in its type"
        blocks = {d: getattr(tkl.sym, f"BLOCK_{d.name}") for d in self.tiles}
        constraints = [tkw.TilingConstraint(d, block) for d, block in blocks.items()]
        memory = {name: tkl.Memory[(*dims, GLOBAL, getattr(tkl, k))] for name, (dims, k) in self.arguments.items()}
        kernel = kernel_of(constraints, memory, partial(body, LANG))
        if blocks:
            kernel = kernel.bound({block: self.tiles[d] for d, block in blocks.items()})
        extents = " ".join(f"{name.lower()}={size}" for name, size in sizes.items())
        return Einsum(kernel, sizes, arrays, wanted, f"{'; '.join(self.words)}; {extents}")

    def letters(self, *names: str) -> str:
        """The dimensions of arguments in their order, as an einsum writes them: the last is the result."""
        told = ["".join(d.name.lower() for d in self.arguments[name][0]) for name in names]
        return f"{','.join(told[:-1])}->{told[-1]}"


def _register(dims: Dims, kind: str, value: int) -> Any:
    return tkl.Register[(*dims, getattr(tkl, kind))](value)


def _cast(tile: Any, kind: str) -> Any:
    return tkw.cast(tile, getattr(tkl, kind))


LANG = SimpleNamespace(
    **{
        name: getattr(tkw, name) for name in ("read", "write", "mma", "sum", "max", "min", "maximum", "minimum", "relu")
    },
    **{name: getattr(tkw, name) for name in ("abs", "iterate")},
    register=_register,
    cast=_cast,
    number=lambda value, kind: tkw.scalar(value, getattr(tkl, kind)),
)
"""The operations of tile programs that random ones are written with."""


# -- the reference ---------------------------------------------------------------------------------------------


@dataclass
class Named:
    """An array of integers whose dimensions have names."""

    dims: Dims
    array: Array

    def over(self, dims: Dims) -> Array:
        """The array with these dimensions; those that it lacks have extent 1."""
        own = self.array.transpose([self.dims.index(d) for d in dims if d in self.dims])
        return own.reshape([self.array.shape[self.dims.index(d)] if d in self.dims else 1 for d in dims])

    def with_(self, other: Named, function: Callable[[Any, Any], Any]) -> Named:
        """A function of the elements of both, by the names of their dimensions."""
        dims = tuple(dict.fromkeys((*self.dims, *other.dims)))
        return Named(dims, function(self.over(dims), other.over(dims)))

    def __add__(self, other: Named) -> Named:
        return self.with_(other, np.add)

    def __sub__(self, other: Named) -> Named:
        return self.with_(other, np.subtract)

    def __mul__(self, other: Named) -> Named:
        return self.with_(other, np.multiply)

    def __neg__(self) -> Named:
        return Named(self.dims, -self.array)


class Exact:
    """The operations of `LANG` on integers, whole dimensions at a time: a loop runs once."""

    def __init__(self, sizes: dict[str, int]):
        self.sizes = sizes

    def register(self, dims: Dims, kind: str, value: int) -> Named:
        """A tile of one value."""
        return Named(dims, np.full([self.sizes[d.name] for d in dims], value, np.int64))

    def number(self, value: int, kind: str) -> Named:
        """A tile without dimensions."""
        return Named((), np.array(value, np.int64))

    def read(self, memory: Named) -> Named:
        """The values in memory."""
        return memory

    def write(self, tile: Named, memory: Named) -> None:
        """Memory holds the tile."""
        assert set(tile.dims) == set(memory.dims)
        memory.array = tile.over(memory.dims)

    def mma(self, left: Named, right: Named, acc: Named) -> Named:
        """The accumulator and the sums of products."""
        every = tuple(dict.fromkeys((*left.dims, *right.dims, *acc.dims)))
        places = [[every.index(d) for d in x.dims] for x in (left, right, acc)]
        found = np.einsum(left.array, places[0], right.array, places[1], places[2])
        return Named(acc.dims, found + acc.array)

    def cast(self, tile: Named, kind: str) -> Named:
        """The same numbers, which the type must have."""
        assert (np.abs(tile.array) <= LIMITS[kind]).all(), f"not exact in {kind}"
        return tile

    def maximum(self, x: Named, y: Named) -> Named:
        """The larger of both."""
        return x.with_(y, np.maximum)

    def minimum(self, x: Named, y: Named) -> Named:
        """The smaller of both."""
        return x.with_(y, np.minimum)

    def relu(self, x: Named) -> Named:
        """The positive part."""
        return Named(x.dims, np.maximum(x.array, 0))

    def abs(self, x: Named) -> Named:
        """Without the sign."""
        return Named(x.dims, np.abs(x.array))

    def sum(self, x: Named, acc: Named | None = None, dim: Any = None) -> Named:
        """The sum over a dimension, and an accumulator."""
        return self._reduced(np.add, x, acc, dim)

    def max(self, x: Named, acc: Named | None = None, dim: Any = None) -> Named:
        """The largest over a dimension, and an accumulator."""
        return self._reduced(np.maximum, x, acc, dim)

    def min(self, x: Named, acc: Named | None = None, dim: Any = None) -> Named:
        """The smallest over a dimension, and an accumulator."""
        return self._reduced(np.minimum, x, acc, dim)

    def _reduced(self, function: Any, x: Named, acc: Named | None, dim: Any) -> Named:
        left = tuple(d for d in x.dims if d is not dim)
        found = Named(left, np.asarray(function.reduce(x.array, axis=x.dims.index(dim))))
        return found if acc is None else acc.with_(found, function)

    def iterate(self, axis: Any, init_args: list[Named]) -> Callable[[Callable[..., Any]], Any]:
        """A loop whose one tile is the whole axis."""
        return lambda body: body(*init_args)


# -- parts of programs -----------------------------------------------------------------------------------------


def _looped(lang: Any, loops: Dims, starts: list[Any], step: Callable[..., Any]) -> Any:
    """The carried values after a step, in loops, the outermost first."""
    if not loops:
        return step(*starts)

    @lang.iterate(loops[0], init_args=starts)
    def total(*carried: Any) -> Any:
        return _looped(lang, loops[1:], list(carried), step)

    return total


def _clamped(lang: Any, tile: Any, kind: str, limit: int) -> Any:
    return lang.minimum(lang.maximum(tile, lang.number(-limit, kind)), lang.number(limit, kind))


@dataclass
class Epilogue:
    """The epilogue of a sum before it is written or multiplied: steps, and the type at the end."""

    steps: list[tuple[str, str]]
    """(what is done, the argument that it takes)"""
    kind: str
    into: str

    @staticmethod
    def drawn(draft: Draft, name: str, dims: Dims, kind: str, into: str | None = None) -> Epilogue:
        """A random one of a sum of a type; `into`: the type that it must have."""
        rng, steps = draft.rng, []
        for n in range(rng.choice((0, 0, 1, 1, 2))):
            what = rng.choice(("bias", "relu", "double", "negate", "scale"))
            of = ""
            if what in ("bias", "scale"):
                of = draft.argument(f"{name}{n}", draft.part(dims), kind)
                what += f" [{''.join(d.name.lower() for d in draft.arguments[of][0])}]"
            steps.append((what, of))
        if into is None:
            into = kind if rng.random() < 0.7 else {"i32": "i8"}.get(kind) or rng.choice(("f16", "bf16"))
        draft.words += [what for what, _ in steps] + ([f"to {into}"] if into != kind else [])
        return Epilogue(steps, kind, into)

    def of(self, lang: Any, args: dict[str, Any], tile: Any, limit: int = 100) -> Any:
        """A tile through all steps; it is clamped to a limit where its type changes."""
        functions = {
            "bias": lambda t, x: t + x,
            "scale": lambda t, x: t * x,
            "relu": lambda t, x: lang.relu(t),
            "double": lambda t, x: t + t,
            "negate": lambda t, x: -t,
        }
        for what, name in self.steps:
            tile = functions[what.split()[0]](tile, lang.read(args[name]) if name else None)
        if self.into != self.kind:
            tile = lang.cast(_clamped(lang, tile, self.kind, limit), self.into)
        return tile


@dataclass
class Product:
    """A product of two factors: their names, and the dimensions of the accumulator in their order."""

    left: str
    right: str
    dims: Dims
    kind: str
    start: int
    swapped: bool
    """Whether the right factor stands first."""
    changed: str
    """The function applied to the left operand first."""

    @property
    def wide(self) -> str:
        """The type of the accumulator."""
        return "i32" if self.kind == "i8" else "f32"

    @staticmethod
    def drawn(draft: Draft, left: str, right: str, dims: Sequence[Any], kind: str) -> Product:
        """A random one of two arguments, or of a tile and an argument."""
        rng = draft.rng
        found = Product(
            left, right, draft.shuffled(dims), kind, rng.choice((0, 0, 2)), rng.random() < 0.3,
            rng.choice(("", "", "", "negated", "shifted")),
        )  # fmt: skip
        draft.words.append(f"acc[{''.join(d.name.lower() for d in found.dims)}]={found.start}")
        draft.words += (["swapped"] if found.swapped else []) + ([found.changed] if found.changed else [])
        return found

    def zero(self, lang: Any) -> Any:
        """The accumulator at the start."""
        return lang.register(self.dims, self.wide, self.start)

    def of(self, lang: Any, args: dict[str, Any], acc: Any, left: Any = None) -> Any:
        """The accumulator with the product added; `left` stands for the left argument."""
        left = lang.read(args[self.left]) if left is None else left
        if self.changed:
            left = -left if self.changed == "negated" else left + lang.number(1, self.kind)
        right = lang.read(args[self.right])
        return lang.mma(right, left, acc) if self.swapped else lang.mma(left, right, acc)


def _groups(draft: Draft) -> tuple[Dims, Dims, Dims, Dims]:
    """Batch, row, column and summed dimensions."""
    batch = draft.some("BC", (0, 0, 0, 1, 1, 2))
    rows = draft.some("ML", (0, 0, 1, 1, 1, 2))
    columns = draft.some("NP", (0, 0, 1, 1, 1, 2))
    return batch, rows, columns, draft.some("KJ", (1, 1, 1, 2))


# -- kinds -----------------------------------------------------------------------------------------------------


def einsum(draft: Draft) -> Body:
    """One product."""
    kind = draft.rng.choice(TYPES)
    batch, rows, columns, deep = _groups(draft)
    draft.argument("x", draft.shuffled(batch + rows + deep), kind)
    draft.argument("w", draft.shuffled(batch + columns + deep), kind)
    at = len(draft.words)
    product = Product.drawn(draft, "x", "w", batch + rows + columns, kind)
    loops = draft.loops(deep)
    epilogue = Epilogue.drawn(draft, "e", product.dims, product.wide)
    draft.result("y", product.dims, epilogue.into)
    draft.words.insert(at, f"{draft.letters('x', 'w', 'y')} {kind}")
    return partial(_einsum_body, product, loops, epilogue)


def _einsum_body(product: Product, loops: Dims, epilogue: Epilogue, lang: Any, args: dict[str, Any]) -> None:
    total = _looped(lang, loops, [product.zero(lang)], lambda acc: product.of(lang, args, acc))
    lang.write(epilogue.of(lang, args, total), args["y"])


def two(draft: Draft) -> Body:
    """Two products: one of the other's result, or both of one factor."""
    return draft.rng.choice((_chain, _chain, _beside))(draft)


def _chain(draft: Draft) -> Body:
    """A product whose left factor is what another gives; some in a loop over what the second sums."""
    rng, kind = draft.rng, draft.rng.choice(TYPES)
    batch, rows, columns, deep = _groups(draft)
    if not batch + rows + columns:
        rows = draft.some("M", (1,))
    draft.argument("x", draft.shuffled(batch + rows + deep), kind)
    draft.argument("w", draft.shuffled(batch + columns + deep), kind)
    first = Product.drawn(draft, "x", "w", batch + rows + columns, kind)
    inside = rng.random() < 0.3
    loops = () if inside else draft.loops(deep)
    between = Epilogue.drawn(draft, "b", first.dims, first.wide, kind)
    summed = draft.shuffled(first.dims)[: rng.choice((1, 1, 1, 2))]
    left = [d for d in first.dims if d not in summed]
    kept = [d for d in left if rng.random() < 0.3]
    new = draft.some("QR", (0, 1, 1, 2))
    draft.argument("v", draft.shuffled((*summed, *kept, *new)), kind)
    second = Product.drawn(draft, "", "v", (*left, *new), kind)
    outer = draft.loops(summed, always_tiled=True) if inside else ()
    epilogue = Epilogue.drawn(draft, "e", second.dims, second.wide)
    draft.result("y", second.dims, epilogue.into)
    how = "the first inside the loop" if inside else "one after another"
    draft.words.insert(0, f"({draft.letters('x', 'w', 'v', 'y')}) {kind} chain, {how}")

    def factor(lang: Any, args: dict[str, Any]) -> Any:
        total = _looped(lang, loops, [first.zero(lang)], lambda acc: first.of(lang, args, acc))
        return between.of(lang, args, total, 3)

    def body(lang: Any, args: dict[str, Any]) -> None:
        if inside:
            total = _looped(
                lang, outer, [second.zero(lang)], lambda acc: second.of(lang, args, acc, factor(lang, args))
            )
        else:
            total = second.of(lang, args, second.zero(lang), factor(lang, args))
        lang.write(epilogue.of(lang, args, total), args["y"])

    return body


def _beside(draft: Draft) -> Body:
    """Two products of one factor, added, multiplied, the larger of both, or summed in one accumulator."""
    rng, kind = draft.rng, draft.rng.choice(TYPES)
    batch, rows, columns, deep = _groups(draft)
    draft.argument("x", draft.shuffled(batch + rows + deep), kind)
    for name in ("w", "v"):
        draft.argument(name, draft.shuffled(batch + columns + deep), kind)
    first, second = (Product.drawn(draft, "x", name, batch + rows + columns, kind) for name in ("w", "v"))
    how = rng.choice(("add", "multiply", "larger", "one accumulator"))
    loops = draft.loops(deep)
    epilogue = Epilogue.drawn(draft, "e", first.dims, first.wide)
    draft.result("y", first.dims, epilogue.into)
    draft.words.insert(0, f"{draft.letters('x', 'w', 'y')} and {draft.letters('x', 'v', 'y')} {kind} {how}")

    def body(lang: Any, args: dict[str, Any]) -> None:
        if how == "one accumulator":
            found = _looped(
                lang, loops, [first.zero(lang)], lambda acc: second.of(lang, args, first.of(lang, args, acc))
            )
        else:
            one, other = _looped(
                lang, loops, [first.zero(lang), second.zero(lang)],
                lambda *acc: (first.of(lang, args, acc[0]), second.of(lang, args, acc[1])),
            )  # fmt: skip
            if how == "multiply":
                other = _clamped(lang, other, second.wide, 3)
            found = {"add": lambda: one + other, "multiply": lambda: one * other}.get(
                how, lambda: lang.maximum(one, other)
            )()
        lang.write(epilogue.of(lang, args, found), args["y"])

    return body


def mixed(draft: Draft) -> Body:
    """A product of a computed factor, added to zero or to what memory holds; its sum is written, reduced, or both."""
    rng, kind = draft.rng, draft.rng.choice(TYPES)
    batch, rows, columns, deep = _groups(draft)
    dims = batch + rows + deep
    draft.argument("x", draft.part(dims), kind)
    rest = [d for d in dims if d not in draft.arguments["x"][0]]
    draft.argument("z", draft.shuffled((*rest, *(d for d in dims if d not in rest and rng.random() < 0.3))), kind)
    draft.argument("w", draft.shuffled(batch + columns + deep), kind)
    how = rng.choice(("times", "plus", "larger"))
    product = Product.drawn(draft, "", "w", batch + rows + columns, kind)
    added = rng.random() < 0.5
    if added:
        draft.argument("c", product.dims, product.wide)
    loops = draft.loops(deep)
    outputs = rng.choice((("y",), ("y",), ("y", "r"), ("r",))) if product.dims else ("y",)
    along, reduced = (rng.choice(product.dims) if product.dims else None), rng.choice(("sum", "max", "min"))
    epilogue = Epilogue.drawn(draft, "e", product.dims, product.wide)
    if "y" in outputs:
        draft.result("y", product.dims, epilogue.into)
    if "r" in outputs:
        draft.result("r", [d for d in product.dims if d is not along], product.wide)
        draft.words.append(f"{reduced} over {along.name.lower()} to r[{draft.letters('r')[2:]}]")
    draft.words.insert(0, f"{draft.letters('x', 'z', 'w', outputs[0])} {kind} x {how} z{', acc is read' * added}")

    def body(lang: Any, args: dict[str, Any]) -> None:
        def step(acc: Any) -> Any:
            x, z = lang.read(args["x"]), lang.read(args["z"])
            left = {"times": lambda: x * z, "plus": lambda: x + z}.get(how, lambda: lang.maximum(x, z))()
            return product.of(lang, args, acc, left)

        total = _looped(lang, loops, [lang.read(args["c"]) if added else product.zero(lang)], step)
        if "y" in outputs:
            lang.write(epilogue.of(lang, args, total), args["y"])
        if "r" in outputs:
            lang.write(getattr(lang, reduced)(total, dim=along), args["r"])

    return body


def reduction(draft: Draft) -> Body:
    """A sum, the largest or the smallest over some dimensions of an expression of one or two arguments."""
    rng, kind = draft.rng, draft.rng.choice((*TYPES, "i32"))
    dims = draft.some("MNKJ", (1, 2, 2, 3, 3, 4))
    gone = draft.part(dims, 1)
    left = tuple(d for d in dims if d not in gone)
    wide = {"i8": "i32", "i32": "i32"}.get(kind, "f32")
    how = rng.choice(("sum", "sum", "max", "min"))
    used = wide if rng.random() < 0.5 else kind
    if used != wide and how == "sum":
        draft.few = gone
    draft.argument("x", draft.shuffled(dims), kind)
    what = rng.choice(("x", "abs", "negated", "times", "plus", "minus", "larger"))
    if what in ("times", "plus", "minus", "larger"):
        draft.argument("z", draft.part(dims), kind)
    loops = draft.loops(gone)
    first, last = [d for d in gone if d not in loops], loops
    start, carried = {"sum": rng.choice((0, 0, 2)), "max": -9, "min": 9}[how], draft.shuffled(left)
    back = rng.random() < 0.2
    epilogue = Epilogue.drawn(draft, "e", dims if back else left, used, None if used == wide else used)
    draft.result("y", dims if back else left, epilogue.into)
    over = "".join(d.name.lower() for d in gone)
    named = ("x", "z", "y") if "z" in draft.arguments else ("x", "y")
    draft.words.insert(0, f"{draft.letters(*named)} {kind} {how} over {over} of {what} in {used}")
    draft.words += ["and back"] if back else []

    def element(lang: Any, args: dict[str, Any]) -> Any:
        x = lang.read(args["x"])
        z = lang.read(args["z"]) if "z" in args else None
        functions: dict[str, Callable[[], Any]] = {
            "x": lambda: x, "abs": lambda: lang.abs(x), "negated": lambda: -x, "times": lambda: x * z,
            "plus": lambda: x + z, "minus": lambda: x - z, "larger": lambda: lang.maximum(x, z),
        }  # fmt: skip
        return lang.cast(functions[what](), used) if used != kind else functions[what]()

    def reduced(lang: Any, args: dict[str, Any], acc: Any = None) -> Any:
        tile, reduce = element(lang, args), getattr(lang, how)
        for d in (*first, *last[1:]):
            tile = reduce(tile, dim=d)
        return reduce(tile, acc, dim=last[0]) if last else tile

    def body(lang: Any, args: dict[str, Any]) -> None:
        if loops:
            total = _looped(lang, loops, [lang.register(carried, used, start)], lambda acc: reduced(lang, args, acc))
        else:
            total = reduced(lang, args)
        if back:
            x = lang.read(args["x"])
            total = (lang.cast(x, used) if used != kind else x) - _clamped(lang, total, used, 50)
        lang.write(epilogue.of(lang, args, total), args["y"])

    return body


KINDS: dict[str, Callable[[Draft], Body]] = {"einsum": einsum, "two": two, "reduction": reduction, "mixed": mixed}
"""The functions that draw a program, by kind."""
