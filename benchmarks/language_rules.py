"""The grammar of the tile language as rules that draw: one function for each kind of operation on tiles.

A rule takes tiles from the pool of a draft, adds operations, and keeps what they give with the range of its elements.
`RULES` has all of them, those on memory (language_memory.py) and on loops (language_loops.py) too, each with the
operations that it draws: an operation of the tile level that no rule draws fails a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from language_draft import HELD, SMALL, Draft, Full, Known

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir import dtypes
from tilewright.ir.tile import UNARY_FLOAT
from tilewright.wave.tracer import Tile


@dataclass(frozen=True)
class Rule:
    """A rule: what it draws, how often, and whether it may stand in the body of a loop."""

    draw: Callable[[Draft], object]
    operations: tuple[str, ...]
    often: float
    nested: bool


RULES: dict[str, Rule] = {}
"""All rules by name."""


def rule(operations: str, often: float = 1.0, *, nested: bool = True) -> Callable[[Any], Any]:
    """Marks a function that draws these operations."""

    def mark(function: Any) -> Any:
        RULES[function.__name__] = Rule(function, tuple(operations.split()), often, nested)
        return function

    return mark


def _beside(draft: Draft, x: Known) -> Any:
    """A second operand for a tile, and its range: a tile of the same type, or a number."""
    if draft.rng.random() < 0.3:
        number = draft.rng.choice((1, 2, 3))
        return tkw.scalar(number, x.dtype), (number, number, 1.0)
    y = draft.pick(lambda k: k.dtype is x.dtype)
    draft.require(*x.dims, *y.dims)
    return y.tile, (y.low, y.high, y.step)


def _is_number(known: Known) -> bool:
    return known.dtype is not dtypes.bool_


# -- element by element ----------------------------------------------------------------------------------------


@rule("add sub mul maximum minimum scalar", 5)
def arithmetic(draft: Draft) -> Known:
    """A sum, a difference, a product, the larger or the smaller one."""
    x = draft.pick(_is_number)
    y, (low, high, step) = _beside(draft, x)
    name = draft.rng.choice(("add", "sub", "mul", "maximum", "minimum"))
    corners = [f(a, b) for f in [_PLAIN[name]] for a in (x.low, x.high) for b in (low, high)]
    step = x.step * step if name == "mul" else min(x.step, step)
    operands = (x.tile, y) if draft.rng.random() < 0.5 or name == "sub" else (y, x.tile)
    return draft.keep(getattr(tkw, name)(*operands), min(corners), max(corners), step)


_PLAIN: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "maximum": max, "minimum": min,
}  # fmt: skip


@rule("div floordiv mod remf")
def division(draft: Draft) -> Known:
    """Quotients and remainders that are exact."""
    x = draft.pick(lambda k: _is_number(k) and k.dtype.name not in ("f4e2m1fn",))
    of, name = x.dtype, draft.rng.choice(("div", "floordiv", "mod", "remf"))
    if name == "div" and of.is_float:
        if of.name in SMALL:
            raise Full
        divisor = draft.rng.choice((2, 4))
        return draft.keep(tkw.div(x.tile, tkw.scalar(divisor, of)), x.low / divisor, x.high / divisor, x.step / divisor)
    if name == "remf" and not of.is_float:
        name = "mod"
    x = draft.whole(x)
    divisor, most = tkw.scalar(draft.rng.choice((2, 3, 5)), of), 5.0
    if draft.rng.random() < 0.4:
        y = draft.whole(draft.pick(lambda k: k.dtype is of))
        draft.require(*x.dims, *y.dims)
        y = draft.within(y, 4)
        divisor, most = tkw.maximum(tkw.abs(y.tile), tkw.scalar(1, of)), 8.0
    if of.name == "i4":
        most = 7
    large = max(-x.low, x.high)
    if name in ("div", "floordiv"):
        return draft.keep(getattr(tkw, name)(x.tile, divisor), -large, large)
    return draft.keep(getattr(tkw, name)(x.tile, divisor), -most, most)


@rule("neg abs relu floor ceil round roundeven", 2)
def unary(draft: Draft) -> Known:
    """A sign, a magnitude, or the nearest integers."""
    x = draft.pick(_is_number)
    names = (
        ("neg", "abs", "relu", "floor", "ceil", "round", "roundeven") if x.dtype.is_float else ("neg", "abs", "relu")
    )
    name = draft.rng.choice(names)
    large, step = max(-x.low, x.high), x.step
    if name in ("floor", "ceil", "round", "roundeven"):
        large, step = np.ceil(large), max(1.0, step)
    low = 0 if name in ("abs", "relu") else -large
    return draft.keep(getattr(tkw, name)(x.tile), low, large, step)


@rule("and_ or_ xor shl shr not_")
def bits(draft: Draft) -> Known:
    """Bits of integers, and logic of conditions."""
    rng = draft.rng
    if rng.random() < 0.5:
        x, y = draft.mask(), draft.mask()
        draft.require(*x.dims, *y.dims)
        name = rng.choice(("and_", "or_", "xor", "not_"))
        tile = ~x.tile if name == "not_" else getattr(tkw, name)(x.tile, y.tile)
        return draft.keep(tile, 0, 1)
    x = draft.pick(lambda k: _is_number(k) and not k.dtype.is_float)
    least, most = x.dtype.limits
    name = rng.choice(("and_", "or_", "xor", "shl", "shr", "not_"))
    if name == "not_":
        return draft.keep(~x.tile, least, most)
    if name in ("shl", "shr"):
        return draft.keep(getattr(tkw, name)(x.tile, tkw.scalar(rng.choice((0, 1, 2)), x.dtype)), least, most)
    y, _ = _beside(draft, x)
    return draft.keep(getattr(tkw, name)(x.tile, y), least, most)


@rule("lt le gt ge eq ne select", 3)
def choice(draft: Draft) -> Known:
    """One tile where a condition holds, another one elsewhere."""
    condition, x = draft.mask(), draft.pick(_is_number)
    y, (low, high, step) = _beside(draft, x)
    draft.require(*condition.dims, *x.dims, *(y.type.dims))
    tile = tkw.select(condition.tile, x.tile, y) if draft.rng.random() < 0.5 else tkw.select(condition.tile, y, x.tile)
    return draft.keep(tile, min(x.low, low), max(x.high, high), min(x.step, step))


@rule("cast")
def conversion(draft: Draft) -> Known:
    """A tile in another type, exactly; and often back."""
    x = draft.pick()
    through = draft.rng.choice(("f32", "f16", "bf16", "f64", "i32", "i64", "i16", "i8", "u8", "i4", *SMALL))
    found = draft.as_kind(x, through)
    return draft.as_kind(found, draft.kind) if draft.rng.random() < 0.7 else found


@rule("bitcast", 0.6)
def same_bits(draft: Draft) -> Known:
    """The bits of a tile as integers, some of them; or as other numbers, half or twice as many."""
    x = draft.pick(lambda k: _is_number(k) and k.dtype.bits in (8, 16, 32, 64))
    same = {8: tkl.i8, 16: tkl.i16, 32: tkl.i32, 64: tkl.i64}
    if draft.rng.random() < 0.6 or not x.dims or draft.inside:
        whole = tkw.bitcast(x.tile, same[x.dtype.bits])
        if draft.rng.random() < 0.4:
            draft.keep(tkw.bitcast(whole, x.dtype), x.low, x.high, x.step)
        part = tkw.and_(tkw.shr(whole, tkw.scalar(draft.rng.choice((0, 3)), whole.type.dtype)), 7)
        return draft.keep(part, 0, 7)
    to = draft.rng.choice([n for n in same if n != x.dtype.bits])
    last = draft.size(x.dims[-1])
    if to > x.dtype.bits and last % (to // x.dtype.bits):
        raise Full
    if to > x.dtype.bits:
        draft.fixed |= {s.name for s in x.dims[-1].symbols}
    least, most = same[to].limits
    return draft.keep(tkw.bitcast(x.tile, same[to]), least, most)


@rule(" ".join((*UNARY_FLOAT, "powf", "atan2", "div")), 2.5)
def function(draft: Draft) -> Known:
    """A function of the mathematics, of exact arguments where it is defined."""
    rng = draft.rng
    x = draft.pick(lambda k: k.dtype.is_float and k.dtype.bits >= 16)
    x = draft.within(x, 4)
    name = rng.choice((*UNARY_FLOAT, "powf", "atan2", "div", "softsign"))
    of = x.dtype
    if name == "powf":
        base = tkw.abs(x.tile) + tkw.scalar(1, of)
        return draft.keep(tkw.powf(base, tkw.scalar(rng.choice((0.5, 1.5, -1.25)), of)), 0.01, 99, units=2)
    if name == "atan2":
        y, _ = _beside(draft, x)
        return draft.keep(tkw.atan2(x.tile + tkw.scalar(9, of), y), -4, 4, units=4)
    if name == "div":
        y = draft.within(draft.pick(lambda k: k.dtype is of), 4)
        draft.require(*x.dims, *y.dims)
        return draft.keep(tkw.div(x.tile, tkw.abs(y.tile) + tkw.scalar(1, of)), -4, 4, units=1)
    if name == "softsign":
        return draft.keep(tkw.softsign(x.tile, logit_cap=2.0), -4, 4, units=4)
    tile = x.tile
    if name in ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "log1p", "cbrt"):
        tile = tkw.abs(tile) + tkw.scalar(1, of)
    low = 0.001 if name in ("exp", "exp2", "sqrt", "rsqrt", "reciprocal", "log1p", "cosh", "sigmoid", "cbrt") else -9
    return draft.keep(getattr(tkw, name)(tile), low, 99, units=2 if name not in ("sinh", "cosh", "cbrt") else 4)


@rule("max min maximum minimum neg abs select permute broadcast sum mul div cast", 1.5)
def inexact(draft: Draft) -> Known:
    """What may be done with tiles that are not exact, so that a bound stays known."""
    rng = draft.rng
    usable = [k for k in draft.pool if k.units and k.units < 40]
    if not usable:
        raise Full
    x = rng.choice(usable)
    like = [k for k in usable if k.dtype is x.dtype]
    y, of = rng.choice(like), x.dtype
    draft.require(*x.dims, *y.dims)
    units = max(x.units, y.units)
    positive = x.low > 0 and y.low > 0
    steps: list[Callable[[], Known]] = [
        lambda: draft.keep(tkw.maximum(x.tile, y.tile), min(x.low, y.low), 99, units=units),
        lambda: draft.keep(tkw.minimum(x.tile, y.tile), min(x.low, y.low), 99, units=units),
        lambda: draft.keep(-x.tile, -99, 99, units=x.units),
        lambda: draft.keep(tkw.select(draft.mask().tile, x.tile, y.tile), min(x.low, y.low), 99, units=units),
        lambda: draft.keep(tkw.permute(x.tile, draft.shuffled(x.dims)), x.low, x.high, units=x.units),
        lambda: draft.keep(tkw.abs(x.tile), min(x.low, 0), 99, units=x.units),
    ]
    if positive and of.bits >= 32:
        steps.append(lambda: draft.keep(tkw.mul(x.tile, y.tile), 1e-6, 99, units=x.units + y.units + 1))
        steps.append(lambda: draft.keep(tkw.div(x.tile, y.tile), 1e-6, 99, units=x.units + y.units + 1))
        steps.append(lambda: draft.keep(tkw.cast(x.tile, tkl.bf16), x.low, x.high, units=2))
    if x.dims:
        d = rng.choice(x.dims)
        steps.append(lambda: draft.keep(tkw.max(x.tile, dim=d), x.low, x.high, units=x.units))
        steps.append(lambda: draft.keep(tkw.min(x.tile, dim=d), x.low, x.high, units=x.units))
        if x.low > 0 and of.bits >= 32:
            more = draft.size(d)
            steps += 2 * [lambda: draft.keep(tkw.sum(x.tile, dim=d), x.low, 99, units=x.units + more + 1)]
    return rng.choice(steps)()


@rule("max min maximum minimum neg abs select permute eq lt topk cast", 0.7)
def not_numbers(draft: Draft) -> Known:
    """What order makes of NaN and infinities."""
    rng = draft.rng
    usable = [k for k in draft.pool if k.odd]
    if not usable or rng.random() < 0.3:
        kind = draft.kind if draft.kind in ("f32", "f16", "bf16", "f64") else "f32"
        usable.append(draft.fresh(kind=kind, form="odd"))
    x = rng.choice(usable)
    y = rng.choice([k for k in usable if k.dtype is x.dtype])
    draft.require(*x.dims, *y.dims)

    def keep(tile: Any) -> Known:
        return draft.keep(tile, -99, 99, odd=True)

    steps: list[Callable[[], Known]] = [
        lambda: keep(tkw.maximum(x.tile, y.tile)), lambda: keep(tkw.minimum(x.tile, y.tile)),
        lambda: keep(-x.tile), lambda: keep(tkw.select(tkw.lt(x.tile, y.tile), x.tile, y.tile)),
        lambda: keep(tkw.relu(x.tile)), lambda: keep(tkw.cast(x.tile, tkl.f32)), lambda: keep(x.tile + y.tile),
        lambda: draft.keep(tkw.eq(x.tile, y.tile), 0, 1), lambda: draft.keep(tkw.cast(x.tile, tkl.i32), -99, 99),
        lambda: keep(tkw.maximum(tkw.minimum(x.tile, tkw.scalar(2, x.dtype)), tkw.scalar(-2, x.dtype))),
    ]  # fmt: skip
    if x.dims:
        d = rng.choice(x.dims)
        names = ("max", "min", "cummax", "cummin", "sum")
        steps += 2 * [lambda: keep(getattr(tkw, rng.choice(names))(x.tile, dim=d))]
        steps.append(lambda: draft.keep(tkw.argmax(x.tile, dim=d), 0, draft.size(d)))
        steps.append(lambda: draft.keep(tkw.argmin(x.tile, dim=d), 0, draft.size(d)))
    return rng.choice(steps)()


# -- along dimensions ------------------------------------------------------------------------------------------


@rule("sum max min prod", 3)
def reduction(draft: Draft) -> Known:
    """A reduction over one dimension or several, of one tile or several, from a start or not."""
    rng = draft.rng
    x = draft.pick(lambda k: bool(k.dims) and _is_number(k))
    if x.dtype is tkl.i4:
        x = draft.as_kind(x, "i8")
    name, dims = rng.choice(("sum", "sum", "max", "min", "prod")), list(x.dims)
    if rng.random() < 0.7:
        dims = [rng.choice(dims)]
    else:
        dims = rng.sample(dims, rng.randint(1, len(dims)))
    count = draft.count(dims)
    if name == "sum" and x.dtype.is_float:
        x = draft.within(x, max(1, HELD[x.dtype.name] // (4 * max(1, count))))
        if max(-x.low, x.high) / min(1.0, x.step) * count * 3 > HELD[x.dtype.name]:
            name = "max"
    if name == "prod":
        one = tkw.scalar(1, x.dtype)
        other = tkw.scalar(1 if x.dtype.numpy.kind == "u" else -1, x.dtype)
        x = draft.keep(tkw.select(tkw.gt(x.tile, one), other, one), -1, 1)
    low, high = {"sum": (x.low * count, x.high * count), "prod": (-1, 1)}.get(name, (x.low, x.high))
    source: Any = x.tile
    same = [k for k in draft.pool if k.tile.type == x.tile.type and k is not x and k.plain and name in ("max", "min")]
    step = x.step
    if same and rng.random() < 0.3:
        y = rng.choice(same)
        source, low, high, step = [x.tile, y.tile], min(low, y.low), max(high, y.high), min(step, y.step)
    acc = None
    if rng.random() < 0.3:
        left = [d for d in x.dims if d not in dims]
        acc = tkl.Register[(*left, x.dtype)](1)
        low, high = (low + 1, high + 1) if name == "sum" else (min(low, 1), max(high, 1))
    tile = getattr(tkw, name)(source, acc, dim=dims if len(dims) > 1 else dims[0])
    return draft.keep(tile, low, high, step)


@rule("cumsum cumprod cummax cummin", 1.5)
def scan(draft: Draft) -> Known:
    """Running sums, products, maxima and minima, from a start or not."""
    rng = draft.rng
    x = draft.pick(lambda k: bool(k.dims) and _is_number(k))
    if x.dtype is tkl.i4:
        x = draft.as_kind(x, "i8")
    name, d = rng.choice(("cumsum", "cumprod", "cummax", "cummin")), rng.choice(x.dims)
    count = draft.size(d)
    if name == "cumsum" and x.dtype.is_float:
        x = draft.within(x, max(1, HELD[x.dtype.name] // (4 * max(1, count))))
        if (max(-x.low, x.high) / min(1.0, x.step) + 1) * (count + 1) > HELD[x.dtype.name]:
            name = "cummax"
    if name == "cumprod":
        one = tkw.scalar(1, x.dtype)
        other = tkw.scalar(1 if x.dtype.numpy.kind == "u" else -1, x.dtype)
        x = draft.keep(tkw.select(tkw.gt(x.tile, one), other, one), -1, 1)
    low, high = (min(x.low * count, x.low), max(x.high * count, x.high)) if name == "cumsum" else (x.low, x.high)
    acc = None
    if rng.random() < 0.3:
        acc = tkl.Register[(*(e for e in x.dims if e is not d), x.dtype)](1)
        low, high = (low + 1, high + 1) if name == "cumsum" else (min(low, 1), max(high, 1))
    return draft.keep(getattr(tkw, name)(x.tile, acc, dim=d), low, high, x.step)


@rule("topk", 1.2, nested=False)
def largest(draft: Draft) -> Known:
    """The few largest elements and their places."""
    x = draft.pick(lambda k: bool(k.dims) and _is_number(k) and k.dtype is not tkl.i4)
    if draft.rng.random() < 0.2:
        x = draft.fresh(kind="f32", form="odd")
        if not x.dims:
            raise Full
    d = draft.rng.choice(x.dims)
    few = draft.new_dim(min(draft.size(d), draft.rng.choice((1, 2, 3, 5))))
    draft.fixed |= {s.name for s in d.symbols | few.symbols}
    values, places = tkw.topk(x.tile, few, d)
    draft.keep(places, 0, draft.size(d))
    return draft.keep(values, x.low, x.high, x.step, odd=x.odd)


@rule("max min eq self_index select", 0.7)
def place_of_extreme(draft: Draft) -> Known:
    """The place of the largest or the smallest element."""
    x = draft.pick(lambda k: bool(k.dims) and _is_number(k) and k.dtype is not tkl.i4)
    d = draft.rng.choice(x.dims)
    name = draft.rng.choice(("argmax", "argmin"))
    return draft.keep(getattr(tkw, name)(x.tile, dim=d), 0, draft.size(d))


# -- dimensions ------------------------------------------------------------------------------------------------


@rule("permute broadcast", 1.5)
def turn(draft: Draft) -> Known:
    """Dimensions in another order, or more of them."""
    x = draft.pick()
    if draft.rng.random() < 0.5 and x.dims:
        return draft.keep(tkw.permute(x.tile, draft.shuffled(x.dims)), x.low, x.high, x.step)
    more = draft.some_dims(0, 2, beside=x.dims)
    return draft.keep(tkw.broadcast(x.tile, draft.shuffled((*x.dims, *more))), x.low, x.high, x.step)


@rule("reshape repeat", 0.8, nested=False)
def reform(draft: Draft) -> Known:
    """Two dimensions as one, one as two, or each element several times."""
    rng = draft.rng
    x = draft.pick(lambda k: bool(k.dims))
    if rng.random() < 0.4:
        d, times = rng.choice(x.dims), rng.choice((2, 3))
        draft.require(*x.dims, most=MOST_REPEATED // times)
        attrs = {"dim": d, "to": d * times, "times": times}
        if attrs["to"] in x.dims:
            raise Full
        tile = Tile(draft.trace.emit("repeat", [x.tile.value], attrs).result)
        return draft.keep(tile, x.low, x.high, x.step)
    if len(x.dims) > 1:
        n = rng.randrange(len(x.dims) - 1)
        to = (*x.dims[:n], x.dims[n] * x.dims[n + 1], *x.dims[n + 2 :])
        if len(set(to)) != len(to):
            raise Full
        flat = tkw.reshape(x.tile, list(to))
        if rng.random() < 0.4:
            return draft.keep(tkw.reshape(flat, list(x.dims)), x.low, x.high, x.step)
        return draft.keep(flat, x.low, x.high, x.step)
    a, b = rng.sample(draft.dims, 2)
    draft.require(a, b)
    y = draft.read(draft.memory((a * b,), draft.kind, "small").value, "small")
    return draft.keep(tkw.reshape(y.tile, [a, b]), y.low, y.high, y.step)


MOST_REPEATED = 1600


@rule("self_index apply", 1.5)
def places(draft: Draft) -> Known:
    """Coordinates, and integer expressions of elements."""
    rng = draft.rng
    if rng.random() < 0.5:
        usable = [d for d in draft.dims if d not in draft.inside]
        d = rng.choice(draft.inside if draft.inside and rng.random() < 0.7 else usable or draft.dims)
        kind = rng.choice((tkl.i32, tkl.i32, tkl.i64))
        found = draft.keep(tkw.self_index(d, kind), 0, draft.size(d))
        if rng.random() < 0.5:
            found = draft.keep(found.tile % tkw.scalar(5, kind), 0, 4)
            return draft.as_kind(found, draft.kind)
        return found
    x = draft.pick(lambda k: k.dtype in (tkl.i32, tkl.i64) and max(-k.low, k.high) < 1 << 20, "i32")
    forms: list[Callable[[Any], Any]] = [
        lambda e: e // 3 + e % 4, lambda e: (2 * e - 1) // 2, lambda e: e % 7 * 3 - 2, lambda e: (e - 1) % 3,
    ]  # fmt: skip
    large = 4 * max(-x.low, x.high) + 30
    if rng.random() < 0.3:
        y = draft.pick(lambda k: k.dtype is x.dtype and max(-k.low, k.high) < 1 << 20, x.dtype.name)
        draft.require(*x.dims, *y.dims)
        tile = tkw.apply_expr([x.tile, y.tile], lambda a, b: a * 2 + b % 3)
        return draft.keep(tile, -large, large)
    if rng.random() < 0.25:
        return draft.keep(tkw.apply_expr(x.tile, lambda e: (e >= 1) & (e < 4)), 0, 1)
    return draft.keep(tkw.apply_expr(x.tile, rng.choice(forms)), -large, large)


@rule("fill scalar extract", 0.7, nested=False)
def numbers(draft: Draft) -> Known:
    """Tiles of one number, expressions as numbers, and one element of a tile."""
    rng = draft.rng
    if rng.random() < 0.4:
        value = rng.choice((0, 1, 2))
        shape = draft.some_dims(0, 3)
        tile = tkl.Register[(*shape, getattr(tkl, draft.kind))](value) if rng.random() < 0.5 else tkw.register(
            list(shape), draft.kind, value
        )  # fmt: skip
        return draft.keep(tile, value, value)
    if rng.random() < 0.4:
        d = rng.choice(draft.dims)
        if not any(d in a.value.type.dims for a in draft.arguments):
            raise Full
        return draft.keep(tkw.scalar(2 * d - 1, tkl.i32), -1, 4 * draft.size(d))
    x = draft.pick(lambda k: bool(k.dims))
    at = [rng.randrange(draft.size(d)) for d in x.dims]
    names = {s.name for d in x.dims for s in d.symbols}
    draft.fixed |= names
    draft.indexed |= names
    return draft.keep(x.tile[tuple(at)] if len(at) > 1 else x.tile[at[0]], x.low, x.high, x.step)
