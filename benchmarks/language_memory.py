"""Rules that draw products, reads and writes through mappings, atomics, memory of a workgroup, and logs."""

from __future__ import annotations

from typing import Any

from language_draft import HELD, Draft, Full, Known
from language_rules import rule

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir import dtypes
from tilewright.wave.tracer import MemoryArgument

PRODUCTS = (
    *(("f32", "f32", "f32"), ("f32", "f32", "f32"), ("f16", "f16", "f32"), ("bf16", "bf16", "f32"), ("f16",) * 3),
    *(("i8", "i8", "i32"), ("u8", "i8", "i32"), ("i32", "i32", "i32"), ("f64", "f64", "f64"), ("i8", "u8", "i32")),
    *(("f8e4m3fn", "f8e4m3fn", "f32"), ("f8e5m2", "f8e4m3fn", "f32"), ("bf16", "bf16", "bf16"), ("i16", "i16", "i32")),
    *(("i4", "i4", "i32"), ("f16", "bf16", "f32"), ("i64", "i64", "i64"), ("u8", "u8", "i32")),
)
"""Element types of both factors and the accumulator."""


# -- products --------------------------------------------------------------------------------------------------


def product_dims(draft: Draft, summed: Any = None) -> tuple[Any, Any, Any, Any]:
    """Dimensions of a batch, of rows, of columns, and those that are summed: any but the last may be none."""
    left = list(draft.shuffled([d for d in draft.dims if d not in draft.inside and d is not summed]))
    if summed is None:
        if not left:
            raise Full
        deep = [left.pop() for _ in range(min(len(left), draft.rng.choice((1, 1, 1, 2))))]
    else:
        deep = [summed]
        if left and draft.rng.random() < 0.2:
            deep.append(left.pop())
    groups: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for d in left:
        draft.rng.choice((groups[1], groups[2], groups[1], groups[2], groups[0], [])).append(d)
    batch, rows, columns = groups
    draft.require(*batch, *rows, *columns, *deep, most=draft.work)
    for some in ((*batch, *rows, *columns), (*batch, *rows, *deep), (*batch, *columns, *deep)):
        draft.require(*some)
    return tuple(batch), tuple(rows), tuple(columns), tuple(deep)


def factor(draft: Draft, dims: Any, kind: str, large: bool) -> Known:
    """A factor of a product: a tile of the pool with these dimensions, or one that is read."""
    usable = [
        k for k in draft.pool
        if k.plain and set(k.dims) == set(dims) and k.dtype is not dtypes.bool_
    ]  # fmt: skip
    if usable and draft.rng.random() < 0.6:
        x = draft.whole(draft.rng.choice(usable))
        x = draft.within(x, 3)
    else:
        of = "f32" if kind == "i4" or draft.rng.random() < 0.05 else kind
        of = "i8" if kind == "i4" and draft.rng.random() < 0.5 else kind
        x = draft.whole(draft.fresh(dims, of))
    if x.dtype.is_float and kind[0] in "iu":
        x = draft.as_kind(x, "i8")
    if kind == "u8" and x.low < 0:
        x = draft.keep(tkw.relu(x.tile), 0, x.high)
    return draft.within(draft.as_kind(x, kind), 2 if large else 3)


@rule("mma", 6, nested=False)
def product(draft: Draft) -> Known:
    """A product without a loop: any of its dimensions but the summed ones may be missing."""
    batch, rows, columns, deep = product_dims(draft)
    kinds = draft.rng.choice(PRODUCTS)
    a, b = (
        factor(draft, draft.shuffled((*batch, *some, *deep)), kind, large=True)
        for some, kind in zip((rows, columns), kinds, strict=False)
    )
    out = draft.shuffled((*batch, *rows, *columns))
    limit = max(-a.low, a.high) * max(-b.low, b.high) * draft.count(deep)
    narrow = kinds[2] in ("f16", "bf16", "i64") and limit + 3 > HELD.get(kinds[2], 1 << 40)
    wide = "f32" if narrow else kinds[2]
    start = tkl.Register[(*out, getattr(tkl, wide))](draft.rng.choice((0, 0, 1)))
    same = [k for k in draft.pool if k.plain and set(k.dims) == set(out) and k.dtype.name == wide]
    low, high = -1.0, 1.0
    if same and draft.rng.random() < 0.3:
        acc = draft.within(draft.whole(draft.rng.choice(same)), 64)
        start, low, high = acc.tile, acc.low, acc.high
    options: dict[str, Any] = {}
    if kinds[:2] == ("f32", "f32") and draft.rng.random() < 0.2:
        options["precision"] = "tf32"
    if kinds[:2] == ("f16", "f16") and wide == "f16" and draft.rng.random() < 0.5:
        options["accumulate"] = "f16"
    found = tkw.mma(a.tile, b.tile, start, **options)
    return draft.keep(found, low - limit, high + limit)


@rule("mma repeat mul cast", 0.6, nested=False)
def scaled_product(draft: Draft) -> Known:
    """A product of factors whose neighbours share scales."""
    rng = draft.rng
    deep = draft.new_dim(32 * rng.choice((1, 2)))
    rows, columns = draft.some_dims(0, 1), ()
    if rng.random() < 0.8:
        columns = draft.some_dims(1, 1, beside=rows)
    draft.require(*rows, *columns, deep, most=draft.work)
    kind, by = rng.choice(("f4e2m1fn", "f8e4m3fn", "f6e2m3fn", "f8e5m2")), rng.choice(("f8e8m0fnu", "f32"))
    group, tiles = deep / 32, []
    for some in (rows, columns):
        tiles.append(tkw.read(draft.memory(draft.shuffled((*some, deep)), kind, "small", -2, 2)))
        tiles.append(tkw.read(draft.memory(draft.shuffled((*some, group)), by, "powers", 0, 1)))
    start = tkl.Register[(*draft.shuffled((*rows, *columns)), tkl.f32)](0.0)
    limit = 16 * draft.size(deep)
    return draft.keep(tkw.scaled_mma(*tiles, start), -limit, limit)


# -- which element is read -------------------------------------------------------------------------------------


def iterators(dims: Any) -> dict[Any, Any]:
    """An iterator for each dimension of a tile."""
    return {d: tkw.IndexMapping.iterator(n) for n, d in enumerate(dims)}


@rule("read", 2.5)
def mapped_read(draft: Draft) -> Known:
    """A read that is turned, strided, shifted past the end, or by digits of a coordinate."""
    rng = draft.rng
    dims = draft.shuffled(draft.some_dims(1, 3))
    its, form = iterators(dims), rng.choice(("backward", "strided", "window", "digits", "joined", "diagonal"))
    d = rng.choice(dims)
    size = draft.size(d)
    rest = {e: its[e] for e in dims if e is not d}
    otherwise: Any = None
    if form == "backward":
        at, extra = {d: d - 1 - its[d], **rest}, ()
    elif form == "strided":
        stride, first = rng.choice((2, 3)), rng.choice((0, 1))
        p = draft.new_dim(stride * size + first)
        draft.fixed.add(d.name)
        at, extra = {p: stride * its[d] + first, **rest}, ()
    elif form == "window":
        few = draft.new_dim(rng.choice((1, 2, 3)))
        stride, dilation, pad = rng.choice((1, 1, 2)), rng.choice((1, 1, 2)), rng.choice((0, 1, 2))
        length = max(1, stride * (size - 1) + 1 + rng.choice((-1, 0, 2)))
        p, otherwise = draft.new_dim(length), rng.choice((0, 2))
        draft.require(*dims, few)
        its = iterators((*dims, few))
        rest = {e: its[e] for e in dims if e is not d}
        at, extra = {p: stride * its[d] + dilation * its[few] - pad, **rest}, (few,)
    elif form == "digits":
        base = rng.choice((2, 3, 4))
        p, q = draft.new_dim(-(-size // base)), draft.new_dim(base)
        draft.fixed.add(d.name)
        at, extra = {p: its[d] // base, q: its[d] % base, **rest}, ()
    elif form == "joined":
        if len(dims) < 2:
            raise Full
        e = rng.choice([x for x in dims if x is not d])
        draft.fixed |= {d.name, e.name}
        p = draft.new_dim(size * draft.size(e))
        at, extra = {p: its[d] * draft.size(e) + its[e], **{x: its[x] for x in dims if x is not d and x is not e}}, ()
    else:
        if len(dims) < 2:
            raise Full
        e = rng.choice([x for x in dims if x is not d])
        p, otherwise = draft.new_dim(max(1, size)), rng.choice((0, 1))
        at, extra = (
            {p: its[d] + its[e] - draft.size(e) // 2, **{x: its[x] for x in dims if x is not d and x is not e}},
            (),
        )
    memory = draft.memory(draft.shuffled(tuple(at)), draft.kind, "small")
    mapping = tkw.IndexMapping(len(its), inputs=at, outputs={e: its[e] for e in draft.shuffled((*dims, *extra))})
    tile = tkw.read(memory, mapping=mapping, otherwise=otherwise)
    if form == "window" and rng.random() < 0.7:
        tile = getattr(tkw, rng.choice(("sum", "max")))(tile, dim=extra[0])
    high = 9 if form == "window" else 3
    return draft.keep(tile, 0 if tile.type.dtype.numpy.kind == "u" else -high, high)


def looked_up(draft: Draft, dims: Any, low: int, high: int, form: str) -> Known:
    """Places as a tile over dimensions."""
    memory = draft.memory(draft.shuffled(dims), "i32", form, low, high)
    return draft.keep(tkw.read(memory), low, high)


@rule("read", 1.5)
def gather(draft: Draft) -> Known:
    """Rows of a table that a tile of places names, some of which lie outside."""
    rng = draft.rng
    index = draft.some_dims(1, 2)
    rows = draft.some_dims(0, 1, beside=index) if rng.random() < 0.7 else ()
    p = draft.new_dim(rng.choice((1, 3, 7, 16)))
    outside = rng.choice((0, 2))
    places = looked_up(draft, index, -outside, draft.size(p) + outside, "places")
    dims = draft.shuffled((*index, *rows))
    its = iterators(dims)
    table = draft.memory(draft.shuffled((p, *rows)), draft.kind, "small")
    mapping = tkw.IndexMapping(
        len(dims), inputs={p: tkw.IndexMapping.dynamic_val(0), **{d: its[d] for d in rows}}, outputs=its,
        dynamic_val_mappings={d: its[d] for d in index},
    )  # fmt: skip
    otherwise = 1 if outside or rng.random() < 0.3 else None
    tile = tkw.read(table, mapping=mapping, mapping_dynamic_vals=(places.tile,), otherwise=otherwise)
    return draft.keep(tile, 0 if tile.type.dtype.numpy.kind == "u" else -3, 3)


# -- where it is written ---------------------------------------------------------------------------------------


def _writable(draft: Draft) -> Known:
    return draft.pick(lambda k: bool(k.dims) and k.dtype is not dtypes.i4 and len(k.dims) < 5)


@rule("write", 1)
def mapped_write(draft: Draft) -> None:
    """A write that is turned, strided, or shifted so that some of it lies outside."""
    rng, x = draft.rng, _writable(draft)
    its, form = iterators(x.dims), rng.choice(("backward", "strided", "shifted", "joined"))
    d = rng.choice(x.dims)
    draft.fixed |= {s.name for s in d.symbols}
    size = draft.size(d)
    rest = {e: its[e] for e in x.dims if e is not d}
    if any(getattr(e, "name", None) is None for e in x.dims):
        raise Full
    if form == "backward":
        at = {d: d - 1 - its[d], **rest}
    elif form == "strided":
        stride, first = rng.choice((2, 3)), rng.choice((0, 1))
        at = {draft.new_dim(stride * size + first): stride * its[d] + first, **rest}
    elif form == "shifted":
        at = {draft.new_dim(size): its[d] + rng.choice((-2, -1, 1)), **rest}
    else:
        if len(x.dims) < 2:
            raise Full
        e = rng.choice([y for y in x.dims if y is not d])
        draft.fixed.add(e.name)
        at = {draft.new_dim(size * draft.size(e)): its[d] * draft.size(e) + its[e],
              **{y: its[y] for y in x.dims if y is not d and y is not e}}  # fmt: skip
    memory = draft.memory(draft.shuffled(tuple(at)), x.dtype, "begin")
    tkw.write(x.tile, memory, mapping=tkw.IndexMapping(len(x.dims), inputs=its, outputs=at))


@rule("write", 0.7)
def scatter(draft: Draft) -> None:
    """Rows of a tile at places that a tile names, no two of which are one."""
    x = _writable(draft)
    if draft.inside or any(getattr(e, "name", None) is None for e in x.dims):
        raise Full
    d = draft.rng.choice(x.dims)
    its, p = iterators(x.dims), draft.new_dim(draft.rng.choice((1, 5, 16, 33)))
    places = looked_up(draft, (d,), 0, draft.size(p), "apart")
    draft.fixed.add(d.name)
    rest = {e: its[e] for e in x.dims if e is not d}
    mapping = tkw.IndexMapping(
        len(x.dims), inputs=its, outputs={p: tkw.IndexMapping.dynamic_val(0), **rest},
        dynamic_val_mappings={d: its[d]},
    )  # fmt: skip
    memory = draft.memory(draft.shuffled((p, *rest)), x.dtype, "begin")
    tkw.write(x.tile, memory, mapping=mapping, mapping_dynamic_vals=(places.tile,))


@rule("atomic_add atomic_min atomic_max", 1)
def atomic(draft: Draft) -> None:
    """Elements that are combined with what memory holds; several may meet at one place."""
    rng = draft.rng
    x = _writable(draft)
    if x.dtype.bits < 16 or x.dtype is dtypes.bool_ or any(getattr(e, "name", None) is None for e in x.dims):
        raise Full
    count = draft.count(x.dims)
    name = rng.choice(("atomic_add", "atomic_add", "atomic_min", "atomic_max", "scatter_add"))
    if name in ("atomic_add", "scatter_add") and x.dtype.is_float:
        x = draft.within(draft.whole(x), max(1, HELD[x.dtype.name] // max(1, 2 * count)))
        if count * max(-x.low, x.high) + 3 > HELD[x.dtype.name]:
            name = "atomic_min"
    d = rng.choice(x.dims)
    its, p = iterators(x.dims), draft.new_dim(rng.choice((1, 2, 7, 16)))
    places = looked_up(draft, (d,), -1, draft.size(p) + 1, "places")
    rest = {e: its[e] for e in x.dims if e is not d and rng.random() < 0.7}
    memory = draft.memory((p, *rest), x.dtype, "begin")
    if name == "scatter_add":
        tkw.scatter_add(x.tile, places.tile, p, memory)
        return
    mapping = tkw.IndexMapping(
        len(x.dims), inputs=its, outputs={p: tkw.IndexMapping.dynamic_val(0), **rest},
        dynamic_val_mappings={d: its[d]},
    )  # fmt: skip
    if name == "atomic_max":  # a text may hold it; the language has no function for it
        tkw.atomic_min(x.tile, memory, mapping=mapping, mapping_dynamic_vals=(places.tile,))
        before = draft.trace.builder.blocks[-1].ops.pop()
        draft.trace.emit("atomic_max", before.operands, before.attrs)
    else:
        getattr(tkw, name)(x.tile, memory, mapping=mapping, mapping_dynamic_vals=(places.tile,))


@rule("read write", 0.8, nested=False)
def updated(draft: Draft) -> None:
    """An argument that is read, and written over where it was read."""
    dims = draft.some_dims(1, 3)
    memory = draft.memory(dims, draft.kind, "begin")
    x = draft.keep(tkw.read(memory), -3, 3)
    y = draft.pick(lambda k: k.dtype is x.dtype and set(k.dims) <= set(dims))
    tkw.write(tkw.maximum(x.tile, y.tile) if draft.rng.random() < 0.5 else tkw.minimum(x.tile, y.tile), memory)
    draft.pool.remove(x)


@rule("read write", 0.8, nested=False)
def read_again(draft: Draft) -> Known:
    """What was written, read again: as it lies, backward, or after an atomic or a second write changed some of it."""
    rng, x = draft.rng, draft.whole(_writable(draft))
    if any(getattr(d, "name", None) is None for d in x.dims) or x.dtype is dtypes.bool_:
        raise Full
    memory = draft.memory(draft.shuffled(x.dims), x.dtype, "out")
    tkw.write(x.tile, memory)
    low, high, d = x.low, x.high, rng.choice(x.dims)
    its = iterators(x.dims)
    back = tkw.IndexMapping(len(x.dims), inputs={**its, d: d - 1 - its[d]}, outputs=its)
    form = rng.choice(("plain", "backward", "second", "atomic"))
    if form == "second":
        y = draft.pick(lambda k: k.dtype is x.dtype and k.step >= 1 and set(k.dims) <= set(x.dims))
        at = {**its, d: its[d] + rng.choice((1, 2))}
        tkw.write(
            tkw.broadcast(y.tile, list(x.dims)), memory, mapping=tkw.IndexMapping(len(x.dims), inputs=its, outputs=at)
        )
        low, high = min(low, y.low), max(high, y.high)
    elif form == "atomic" and x.dtype.bits >= 16:
        tkw.atomic_min(tkw.minimum(x.tile, tkw.scalar(1, x.dtype)), memory, mapping=tkw.IndexMapping(
            len(x.dims), inputs=its, outputs={**its, d: d - 1 - its[d]}
        ))  # fmt: skip
    plain = form != "backward" and rng.random() < 0.7
    return draft.keep(tkw.read(memory) if plain else tkw.read(memory, mapping=back), min(low, 1), max(high, 1))


@rule("write", 0.5)
def some_rows(draft: Draft) -> None:
    """A tile that lacks a dimension of the memory, written at every coordinate of that."""
    x = _writable(draft)
    more = draft.some_dims(1, 1, beside=x.dims)
    if draft.inside:
        raise Full
    tkw.write(x.tile, draft.memory(draft.shuffled((*x.dims, *more)), x.dtype, "out"))


@rule("allocate barrier", 0.3, nested=False)
def shared(draft: Draft) -> Known:
    """A tile by way of memory that a workgroup shares."""
    x = draft.pick(lambda k: bool(k.dims) and k.dtype.bits >= 16 and all(getattr(d, "name", None) for d in k.dims))
    memory: MemoryArgument = tkw.allocate(list(x.dims), list(x.dims), x.dtype, tkl.SHARED_ADDRESS_SPACE)
    tkw.write(x.tile, memory)
    tkw.shared_memory_barrier()
    return draft.keep(tkw.read(memory), x.low, x.high, x.step)


@rule("debug_log", 0.3, nested=False)
def logged(draft: Draft) -> None:
    """A log, which changes nothing."""
    tkw.debug_log(draft.pick().tile, label=f"log{len(draft.trace.hooks)}")
