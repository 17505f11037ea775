"""Random tile programs without products: chains, reductions, scans, transposes, gathers, scatters, atomics, loops.

`made(number, seed)` is program number so and so: a kernel with arguments of one element type over one to four
dimensions of ragged sizes, and what every argument holds. Values are small integers, and what grows is clamped, so that
a result is the executor's bit for bit; rows with exponentials are given in float64 with a bound. Some programs leave
sizes open, and are then run for others too. A program's kind says what it is mostly made of; `everything` has all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from random_products import kernel_of

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw

A, B, C, D, P, T = (getattr(tkl.sym, name) for name in ("A", "B", "C", "D", "P", "T"))
DIMS = (A, B, C, D)
"""Dimensions of tiles; P is one that only memory has, T the few places of a window, or of the largest elements."""
SIZES = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 100, 127, 128, 136, 200, 257, 300, 512, 1000, 2049)
MOST = 1 << 17
"""Elements of one tile."""
TYPES = ("f32", "f32", "f16", "bf16", "i32", "i8", "f64", "i64", "u8", "i16")
SMALL = ("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f6e2m3fn", "f4e2m1fn")
LIMIT = 8
"""Values lie between minus this and this."""
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
Array = np.ndarray[Any, np.dtype[Any]]
KINDS: dict[str, tuple[str, ...]] = {
    "chain": (),
    "reductions": ("reduce", "reduce"),
    "scans": ("scan", "scan", "reduce"),
    "transposes": ("turn", "turn"),
    "gathers": ("gather", "gather", "reduce"),
    "scatters": ("reduce",),
    "atomics": ("reduce",),
    "conversions": ("convert", "convert"),
    "windows": ("window", "window", "reduce"),
    "loops": ("loop", "loop"),
    "largest": ("largest", "reduce"),
    "rows": (),
    "everything": ("reduce", "scan", "turn", "gather", "convert", "window", "loop", "place", "largest"),
}
"""What programs are made of besides arithmetic, by kind."""


@dataclass
class Tiles:
    """A program, and what its arguments hold; `outputs` are written, those that `begin` after what they hold."""

    kernel: Any
    sizes: dict[str, int]
    arrays: dict[str, Array]
    outputs: tuple[str, ...]
    words: str
    begin: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    others: list[dict[str, Array]] = field(default_factory=list)
    """Arguments of other sizes, where sizes are left open."""
    relative: float | None = None
    """How far from the exact result, of which it is a part, one may lie; None: it must be equal."""
    exact: Any = None
    """The same kernel in f64, where results are not exact."""

    def wanted(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """What must be written for these arguments."""
        given = {name: array.copy() for name, array in arrays.items()}
        kernel = self.kernel
        if self.exact is not None:
            given = {name: array.astype(np.float64) for name, array in given.items()}
            kernel = self.exact
        tilewright.compile(kernel, target="executor")(*given.values())
        return {name: given[name] for name in self.outputs}


def made(number: int, seed: int = 0) -> Tiles:
    """Program number so and so of a seed."""
    rng = random.Random(f"tiles {seed} {number}")
    kind = rng.choice(list(KINDS))
    if kind == "rows":
        return _rows(rng, number, seed)
    dtype = rng.choice(SMALL) if kind == "conversions" and rng.random() < 0.4 else rng.choice(TYPES)
    dims = tuple(rng.sample(DIMS, rng.choice((1, 2, 2, 2, 3, 3, 4))))
    sizes = _sizes(rng, dims)
    draft = Draft(kind, getattr(tkl, dtype), dims, rng)
    kernel = kernel_of(draft.constraints, draft.memory, partial(_body, draft, f"{seed} {number} body"))
    if draft.tile:
        kernel = kernel.bound({tkl.sym.BLOCK: draft.tile})
    data = np.random.default_rng((seed, number, 5))
    arrays = draft.filled(sizes, data)
    may = [d.name for d in dims if d is not draft.axis or "largest" not in draft.steps]  # it has as many as it needs
    dynamic = tuple(name for name in may if rng.random() < 0.5) if rng.random() < 0.25 else ()
    others = []
    if dynamic:
        smaller = {s: rng.choice([n for n in SIZES if n <= 2 * size]) if s in dynamic else size
                   for s, size in sizes.items()}  # fmt: skip
        others = [draft.filled(smaller, data)]
    words = f"{kind} of {dtype} over {', '.join(f'{d} {sizes[d.name]}' for d in dims)}"
    words += f", P {sizes['P']}, T {sizes['T']}" + (f", open {', '.join(dynamic)}" if dynamic else "")
    return Tiles(
        kernel, {s: n for s, n in sizes.items() if s in draft.named}, arrays, draft.outputs, words, draft.begin,
        dynamic, others,
    )  # fmt: skip


def _sizes(rng: random.Random, dims: tuple[Any, ...]) -> dict[str, int]:
    found = {d.name: rng.choice(SIZES) for d in dims}
    while np.prod(list(found.values())) > MOST:
        name = max(found, key=lambda n: found[n])
        found[name] = -(-found[name] // 2)
    return found | {"P": rng.choice(SIZES[:18]), "T": rng.choice((1, 2, 3))}


class Draft:
    """The arguments of a program, drawn at random: what its body reads and writes is known before it is traced."""

    def __init__(self, kind: str, dtype: Any, dims: tuple[Any, ...], rng: random.Random):
        self.kind, self.dtype, self.dims = kind, dtype, dims
        self.steps = KINDS[kind]
        self.inputs = {f"x{n}": self._some(rng) for n in range(rng.randint(1, 3))}
        self.inputs["x0"] = tuple(rng.sample(dims, len(dims)))
        self.table = (P, *self._some(rng)) if {"gather", "window"} & set(self.steps) else None
        self.index = self._some(rng) if "gather" in self.steps or kind in ("scatters", "atomics") else None
        if kind == "scatters":
            self.index = (rng.choice(dims),)
        self.written = {f"y{n}": self._some(rng) for n in range(rng.choice((1, 1, 2)))}
        self.written["y0"] = tuple(rng.sample(dims, len(dims))) if rng.random() < 0.6 else self._some(rng)
        self.into: tuple[Any, ...] = ()
        if kind in ("scatters", "atomics"):
            assert self.index is not None
            rest = [d for d in dims if d not in self.index]
            kept = tuple(rest) if kind == "scatters" else tuple(rng.sample(rest, rng.randint(0, len(rest))))
            self.into = (P, *kept)
        self.tile, self.constraints, self.axis = 0, [], rng.choice(dims)
        if "loop" in self.steps:
            self.tile = rng.choice((1, 3, 4, 7, 16, 32, 64, 200))
            self.constraints = [tkw.TilingConstraint(self.axis, tkl.sym.BLOCK)]
        memory = {name: (of, dtype) for name, of in self.inputs.items()}
        if self.table is not None:
            memory["table"] = self.table, dtype
        if self.index is not None:
            memory["index"] = self.index, tkl.i32
        memory |= {name: (of, dtype) for name, of in self.written.items()}
        if self.into:
            memory["into"] = self.into, dtype
        if {"largest", "window"} & set(self.steps):
            memory["few"] = (T,), dtype
        self.of = memory
        self.memory = {name: tkl.Memory[(*of, GLOBAL, of_type)] for name, (of, of_type) in memory.items()}
        self.outputs = (*self.written, *(["into"] if self.into else []))
        self.begin = ("into",) if self.into else ()
        self.named = {d.name for of, _ in memory.values() for d in of}

    def _some(self, rng: random.Random) -> tuple[Any, ...]:
        return tuple(rng.sample(self.dims, rng.randint(1, len(self.dims))))

    def filled(self, sizes: dict[str, int], data: np.random.Generator) -> dict[str, Array]:
        """Arguments of these sizes: small integers, and places some of which lie outside where that has a meaning."""
        found = {}
        for name, (of, kind) in self.of.items():
            shape = [sizes[d.name] for d in of]
            low = 0 if kind is tkl.u8 else -3
            found[name] = data.integers(low, 4, shape).astype(kind.numpy)
            if name == "index":
                found[name] = data.integers(-2, sizes["P"] + 2, shape).astype(np.int32)
                if self.kind == "scatters":  # no two at one place: which one wins is not said
                    places = np.full(shape, -1, np.int32)
                    count = min(sizes["P"], places.size)
                    places.reshape(-1)[data.permutation(places.size)[:count]] = data.permutation(sizes["P"])[:count]
                    found[name] = places
        return found


# -- bodies ----------------------------------------------------------------------------------------------------


def _body(draft: Draft, seed: str, args: dict[str, Any]) -> None:
    """The operations of a program; the same ones whenever it is traced."""
    steps = Steps(draft, random.Random(seed), args)
    for _ in range(steps.rng.randint(2, 7)):
        steps.step()
    for name, dims in draft.written.items():
        tkw.write(steps.over(dims, steps.pick()), args[name])
    if draft.into:
        steps.put()


class Steps:
    """A pool of tiles, and steps that add to it. Values stay small integers."""

    def __init__(self, draft: Draft, rng: random.Random, args: dict[str, Any]):
        self.draft, self.rng, self.args = draft, rng, args
        self.kind = draft.dtype
        self.low = 0 if self.kind is tkl.u8 else -LIMIT
        self.pool: list[Any] = []

    def number(self, value: int) -> Any:
        """A number of the program's type."""
        return tkw.scalar(value, self.kind)

    def clamped(self, tile: Any) -> Any:
        """A tile within the limits."""
        return tkw.minimum(tkw.maximum(tile, self.number(self.low)), self.number(LIMIT - 1))

    def pick(self) -> Any:
        """A tile: one that is known, or one that is read."""
        if not self.pool or self.rng.random() < 0.3:
            name = self.rng.choice(list(self.draft.inputs))
            self.pool.append(tkw.read(self.args[name]))
            return self.pool[-1]
        return self.rng.choice(self.pool)

    def over(self, dims: tuple[Any, ...], tile: Any) -> Any:
        """A tile brought to these dimensions: surplus ones reduced away, missing ones broadcast."""
        for d in tile.type.dims:
            if d not in dims:
                tile = getattr(tkw, self.rng.choice(("max", "min", "sum")))(tile, dim=d)
        tile = self.clamped(tile) if self.rng.random() < 0.5 else tile
        return tile if tile.type.dims == tuple(dims) else tkw.broadcast(tile, list(dims))

    def step(self) -> None:
        """One more tile."""
        kind = self.rng.choice(("arithmetic", "arithmetic", *self.draft.steps))
        tile = getattr(self, kind)()
        if tile is not None:
            self.pool.append(tile)

    def arithmetic(self) -> Any:
        """A function of one or two tiles."""
        x, y, rng = self.pick(), self.pick(), self.rng
        functions: list[Callable[[], Any]] = [
            lambda: x + y, lambda: x - y, lambda: x * y, lambda: tkw.maximum(x, y), lambda: tkw.minimum(x, y),
            lambda: tkw.abs(x), lambda: tkw.relu(x), lambda: tkw.select(x < y, x, y - x),
            lambda: tkw.select(tkw.eq(x, y), self.number(3), x), lambda: x % self.number(rng.choice((2, 3, 5))),
            lambda: x + self.number(rng.choice((1, 2))),
        ]  # fmt: skip
        if not self.kind.is_float:
            functions += [
                lambda: tkw.and_(x, y), lambda: tkw.or_(x, y), lambda: tkw.xor(x, self.number(3)),
                lambda: tkw.shl(tkw.relu(x), self.number(1)), lambda: tkw.shr(x, self.number(1)),
            ]  # fmt: skip
        return self.clamped(rng.choice(functions)())

    def reduce(self) -> Any:
        """A reduction over one dimension, or over several in turn."""
        tile = self.pick()
        dims = list(tile.type.dims)
        for d in self.rng.sample(dims, self.rng.randint(min(1, len(dims)), len(dims))):
            how = self.rng.choice(("sum", "max", "min", "prod"))
            if how == "prod":
                tile = tkw.select(tile > self.number(0), self.number(1), self.number(1 + self.low // LIMIT * 2))
            tile = getattr(tkw, how)(tile, dim=d)
            tile = self.clamped(tile) if how == "sum" else tile
        return tile

    def scan(self) -> Any:
        """A running sum, maximum or minimum along any dimension."""
        tile = self.pick()
        scan = getattr(tkw, self.rng.choice(("cumsum", "cummax", "cummin")))
        return self.clamped(scan(tile, dim=self.rng.choice(tile.type.dims))) if tile.type.dims else tile

    def turn(self) -> Any:
        """Dimensions in another order, or an input read backward."""
        if self.rng.random() < 0.5:
            tile = self.pick()
            return tkw.permute(tile, self.rng.sample(tile.type.dims, len(tile.type.dims)))
        name = self.rng.choice(list(self.draft.inputs))
        dims = self.draft.inputs[name]
        its = [tkw.IndexMapping.iterator(n) for n in range(len(dims))]
        order = self.rng.sample(range(len(dims)), len(dims))
        back = self.rng.randrange(len(dims))
        at = {d: dims[n] - 1 - its[n] if n == back and self.rng.random() < 0.6 else its[n] for n, d in enumerate(dims)}
        mapping = tkw.IndexMapping(len(dims), inputs=at, outputs={dims[n]: its[n] for n in order})
        return tkw.read(self.args[name], mapping=mapping)

    def gather(self) -> Any:
        """Rows of the table that an index names; what lies outside it is a number."""
        rows, index = self.draft.table[1:], self.draft.index
        dims = (*index, *(d for d in rows if d not in index))
        its = dict(zip(dims, (tkw.IndexMapping.iterator(n) for n in range(len(dims))), strict=True))
        mapping = tkw.IndexMapping(
            len(dims), inputs={P: tkw.IndexMapping.dynamic_val(0), **{d: its[d] for d in rows}}, outputs=dict(its),
            dynamic_val_mappings={d: its[d] for d in index},
        )  # fmt: skip
        places = (tkw.read(self.args["index"]),)
        return tkw.read(self.args["table"], mapping=mapping, mapping_dynamic_vals=places, otherwise=5)

    def window(self) -> Any:
        """Sums, or the largest, of some neighbours along the table's first dimension, with padding."""
        rows, along = self.draft.table[1:], self.rng.choice(self.draft.dims)
        dims = (*dict.fromkeys((along, *rows)), T)
        its = dict(zip(dims, (tkw.IndexMapping.iterator(n) for n in range(len(dims))), strict=True))
        stride, dilation, pad = (self.rng.choice(choice) for choice in ((1, 1, 2, 3), (1, 1, 2), (0, 1, 2)))
        at = {P: stride * its[along] + dilation * its[T] - pad, **{d: its[d] for d in rows}}
        mapping = tkw.IndexMapping(len(dims), inputs=at, outputs=dict(its))
        tile = tkw.read(self.args["table"], mapping=mapping, otherwise=self.rng.choice((0, 2)))
        tile = tile * tkw.read(self.args["few"])
        return self.clamped(getattr(tkw, self.rng.choice(("sum", "max")))(tile, dim=T))

    def convert(self) -> Any:
        """A tile through another type and back."""
        tile = self.pick()
        names = (*SMALL, "f16", "bf16", "f32", "f64", "i8", "i32", "i64") if self.kind.is_float else TYPES
        through = getattr(tkl, self.rng.choice(names))
        if through in (tkl.u8, tkl.i8) and self.kind.is_float:
            tile = tkw.relu(tile)
        return tkw.cast(tkw.cast(tile, through), self.kind)

    def place(self) -> Any:
        """Something of each element's place."""
        found = tkw.cast(tkw.self_index(self.rng.choice(self.draft.dims)), tkl.i32) % tkw.scalar(5, tkl.i32)
        return tkw.cast(found, self.kind)

    def largest(self) -> Any:
        """The few largest along a dimension, weighed and added up."""
        tile = self.pick()
        if self.draft.axis not in tile.type.dims:
            return None
        values, places = tkw.topk(tile, T, self.draft.axis)
        values = values + tkw.read(self.args["few"]) + tkw.cast(places % tkw.scalar(3, tkl.i32), self.kind)
        return self.clamped(tkw.sum(self.clamped(values), dim=T))

    def loop(self) -> Any:
        """A loop that carries a clamped sum, or more; the size of its tiles is part of what it means."""
        axis, rng = self.draft.axis, self.rng
        name = next((n for n, dims in self.draft.inputs.items() if axis in dims), None)
        assert name is not None
        rest = [d for d in self.draft.inputs[name] if d is not axis]
        start = tkl.Register[(*rest, self.kind)](rng.choice((0, 2)))
        how, second = rng.choice(("sum", "max", "min")), rng.random() < 0.5

        @tkw.iterate(axis, init_args=[start, start] if second else [start])
        def found(*carried: Any) -> Any:
            tile = tkw.read(self.args[name])
            total = self.clamped(getattr(tkw, how)(tile, dim=axis) + carried[0])
            if not second:
                return total
            return total, self.clamped(carried[1] + tkw.max(tkw.minimum(tile, carried[0]), dim=axis))

        return found[1] if second else found

    def put(self) -> None:
        """What goes to memory at places that data say: alone, or added to what is there."""
        into, index = self.draft.into, self.draft.index
        assert index is not None
        dims = tuple(dict.fromkeys((*index, *into[1:])))
        its = dict(zip(dims, (tkw.IndexMapping.iterator(n) for n in range(len(dims))), strict=True))
        mapping = tkw.IndexMapping(
            len(dims), inputs=dict(its), outputs={P: tkw.IndexMapping.dynamic_val(0), **{d: its[d] for d in into[1:]}},
            dynamic_val_mappings={d: its[d] for d in index},
        )  # fmt: skip
        how = tkw.write
        if self.draft.kind == "atomics":
            how = self.rng.choice((tkw.atomic_add, tkw.atomic_add, tkw.atomic_min))
        how(self.over(dims, self.pick()), self.args["into"], mapping=mapping,
            mapping_dynamic_vals=(tkw.read(self.args["index"]),))  # fmt: skip


# -- rows ------------------------------------------------------------------------------------------------------


def _rows(rng: random.Random, number: int, seed: int) -> Tiles:
    """A softmax, or weights like one, over some dimensions: positive numbers, whose relative errors add up."""
    name = rng.choice(("f32", "f16", "bf16"))
    dims = tuple(rng.sample(DIMS, rng.choice((1, 2, 2, 3))))
    sizes = _sizes(rng, dims)
    sizes = {d.name: sizes[d.name] for d in dims}
    along = rng.sample(dims, rng.choice((1, 1, 1, len(dims))))
    turned, scaled = tuple(rng.sample(dims, len(dims))), rng.random() < 0.5
    divided, summed = rng.random() < 0.7, rng.random() < 0.3

    def kernel(kind: Any, wide: Any) -> Any:
        memory = {"x": tkl.Memory[(*dims, GLOBAL, kind)], "w": tkl.Memory[(along[0], GLOBAL, kind)]}
        memory["y"] = tkl.Memory[(*turned, GLOBAL, kind)]
        memory["total"] = tkl.Memory[(*(d for d in dims if d not in along), GLOBAL, wide)]

        def body(args: dict[str, Any]) -> None:
            x = tkw.cast(tkw.read(args["x"]), wide)
            high = total = x
            for d in along:
                high = tkw.max(high, dim=d)
            total = weights = tkw.exp(x - high) if not scaled else tkw.exp2((x - high) * tkw.scalar(0.5, wide))
            for d in along:
                total = tkw.sum(total, dim=d)
            found = weights / total if divided else weights
            found = found * tkw.cast(tkw.read(args["w"]), wide) if summed else found
            tkw.write(tkw.cast(found, kind), args["y"])
            tkw.write(total, args["total"])

        return kernel_of([], memory, body)

    of, data = getattr(tkl, name), np.random.default_rng((seed, number, 6))
    arrays = {"x": data.integers(-4, 5, [sizes[d.name] for d in dims]).astype(of.numpy)}
    arrays["w"] = data.integers(1, 4, sizes[along[0].name]).astype(of.numpy)
    arrays["y"] = np.zeros([sizes[d.name] for d in turned], of.numpy)
    arrays["total"] = np.zeros([sizes[d.name] for d in dims if d not in along], np.float32)
    count = int(np.prod([sizes[d.name] for d in along]))
    # an exponential that is rounded to 16 bits is within 2^-17 of itself, otherwise 2 units: docs/gpu.md
    exponential = 2.0**-17 if name != "f32" else 2.0**-22
    relative = 2 * exponential + count * 2.0**-24 + 2 * 2.0**-23
    words = f"rows of {name} over {', '.join(f'{d} {sizes[d.name]}' for d in dims)}, along {along}"
    return Tiles(
        kernel(of, tkl.f32), sizes, arrays, ("y", "total"), words, relative=relative, exact=kernel(tkl.f64, tkl.f64)
    )
