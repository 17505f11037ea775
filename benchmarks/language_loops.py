"""Rules that draw loops and conditions, and the order in which rules draw a program."""

from __future__ import annotations

import random
from typing import Any

import language_memory
from language_draft import HELD, Draft, Drawn, Full, Known, traced
from language_memory import factor, iterators, product_dims
from language_rules import RULES, rule

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir import dtypes
from tilewright.ir.core import walk_block

BIASES = (0.02, 0.3, 1.0, 1.0, 4.0)
"""How much more often a program has a rule than others: each program is mostly of a few kinds."""
__all__ = ["RULES", "drawn", "language_memory"]


def _tiled(draft: Draft, axis: Any, always: bool) -> None:
    """A tile size for a loop over an axis, which is part of its meaning, or a hint."""
    if any(isinstance(c, tkw.TilingConstraint) and c.dim is axis for c in draft.constraints):
        return
    if always or draft.rng.random() < 0.5:
        size = draft.rng.choice((1, 3, 4, 7, 8, 16, 32))
        if size * 12 < draft.size(axis):  # not very many rounds
            size = -(-draft.size(axis) // 6)
        name = f"BLOCK_{axis}"
        draft.bound[name] = size
        draft.constraints.append(tkw.TilingConstraint(axis, getattr(tkl.sym, name)))


def _axis(draft: Draft) -> Any:
    left = [d for d in draft.dims if d not in draft.inside]
    if not left or len(draft.inside) > 1:
        raise Full
    return draft.rng.choice(left)


def _steps(draft: Draft, most: int) -> None:
    """Some further operations in a body."""
    for _ in range(draft.rng.randint(0, most)):
        step(draft, nested=True)


@rule("iterate yield mma sum max min prod", 3)
def accumulated(draft: Draft) -> None:
    """A loop whose carried values are only accumulated: products and reductions over its axis."""
    rng, axis = draft.rng, _axis(draft)
    _tiled(draft, axis, always=False)
    starts: list[Any] = []
    plans: list[Any] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        if rng.random() < 0.6:
            batch, rows, columns, deep = product_dims(draft, axis)
            kinds = rng.choice([k for k in language_memory.PRODUCTS if k[2] in ("f32", "i32", "f64")])
            out = draft.shuffled((*batch, *rows, *columns))
            starts.append(tkl.Register[(*out, getattr(tkl, kinds[2]))](rng.choice((0, 0, 2))))
            plans.append(("mma", (batch, rows, columns, deep), kinds, out, 9.0 * draft.count(deep) + 2))
        else:
            x_dims = (*draft.some_dims(0, 2, beside=(axis, *draft.inside)), axis)
            kind = draft.kind if draft.kind not in ("i4",) else "i32"
            name = rng.choice(("sum", "max", "min"))
            high = 3.0
            if name == "sum":
                high = 3.0 * draft.size(axis) + 2
                kind = kind if high <= HELD.get(kind, 1 << 30) else "f32"
            out = draft.shuffled(x_dims[:-1])
            starts.append(tkl.Register[(*out, getattr(tkl, kind))](rng.choice((0, 1))))
            plans.append((name, draft.shuffled(x_dims), kind, out, high))

    def body(*carried: Any) -> Any:
        found = []
        for acc, (name, dims, kinds, _, _) in zip(carried, plans, strict=True):
            if name == "mma":
                batch, rows, columns, deep = dims
                a, b = (
                    factor(draft, draft.shuffled((*batch, *some, *deep)), kind, large=True)
                    for some, kind in zip((rows, columns), kinds, strict=False)
                )
                found.append(tkw.mma(a.tile, b.tile, acc))
            else:
                x = draft.fresh(dims, kinds)
                if rng.random() < 0.4:
                    x = draft.within(draft.keep(tkw.abs(x.tile), 0, 3, x.step), 3)
                found.append(getattr(tkw, name)(x.tile, acc, dim=axis))
        return found if len(found) > 1 else found[0]

    with draft.body(axis):
        made = tkw.iterate(axis, init_args=starts)(body)
    for tile, (*_, high) in zip(made if isinstance(made, tuple) else (made,), plans, strict=True):
        draft.keep(
            tile, 0 if tile.type.dtype.numpy.kind == "u" else -high, high, 0.25 if tile.type.dtype.is_float else 1
        )


@rule("iterate yield write cumsum", 3)
def carried(draft: Draft) -> None:
    """A loop that carries tiles of any kind, and may write a part of its axis in each round."""
    rng, axis = draft.rng, _axis(draft)
    _tiled(draft, axis, always=True)
    kinds = [rng.choice((draft.kind, draft.kind, "i32", "bool")) for _ in range(rng.choice((1, 1, 2, 3)))]
    kinds = ["i32" if k == "i4" else k for k in kinds]
    shapes = [draft.some_dims(0, 2, beside=(axis, *draft.inside)) for _ in kinds]
    limit = 4
    starts = [
        tkl.Register[(*dims, dtypes.dtype(kind))](rng.choice((0, 1))) for dims, kind in zip(shapes, kinds, strict=True)
    ]

    def body(*given: Any) -> Any:
        found = []
        known = []
        for tile, kind in zip(given, kinds, strict=True):
            low = 0 if kind in ("bool", "u8") else -limit
            known.append(draft.keep(tile, low, 1 if kind == "bool" else limit))
        _steps(draft, 2)
        for before, kind, dims in zip(known, kinds, shapes, strict=True):
            if kind == "bool":
                x = _over(draft, draft.mask(), dims)
                if x.dtype is not dtypes.bool_:
                    x = draft.keep(tkw.ne(x.tile, 0), 0, 1)
                found.append(tkw.xor(before.tile, x.tile) if rng.random() < 0.5 else tkw.or_(before.tile, x.tile))
                continue
            x = draft.as_kind(draft.pick(lambda k: k.dtype is not dtypes.bool_ and k.step >= 1), kind)
            if axis not in x.dims and rng.random() < 0.8:
                x = draft.within(draft.fresh((*dims, axis), kind), 3)
            x = draft.whole(_over(draft, x, dims))
            name = rng.choice(("add", "maximum", "minimum", "sub"))
            total = draft.keep(getattr(tkw, name)(before.tile, x.tile), before.low - 99, before.high + 99)
            found.append(draft.within(total, limit).tile)
        if rng.random() < 0.4:
            usable = [k for k in draft.pool if k.plain and axis in k.dims and _writes(draft, k)]
            if usable:
                draft.write(rng.choice(usable))
        return [tkw.broadcast(t, list(dims)) if tuple(t.type.dims) != tuple(dims) else t
                for t, dims in zip(found, shapes, strict=True)]  # fmt: skip

    with draft.body(axis):
        made = tkw.iterate(axis, init_args=starts)(body)
    for tile, kind in zip(made if isinstance(made, tuple) else (made,), kinds, strict=True):
        draft.keep(tile, 0 if kind in ("bool", "u8") else -limit, 1 if kind == "bool" else limit)


def _writes(draft: Draft, known: Known) -> bool:
    """Whether each round writes other elements: the tile has the axes of all loops around."""
    return all(axis in known.dims for axis in draft.inside)


def _over(draft: Draft, x: Known, dims: Any) -> Known:
    """A tile brought to some of the dimensions: others are reduced away."""
    for d in x.dims:
        if d not in dims:
            if x.dtype is dtypes.bool_:
                x = draft.keep(tkw.cast(x.tile, tkl.i32), 0, 1)
            x = draft.keep(getattr(tkw, draft.rng.choice(("max", "min")))(x.tile, dim=d), x.low, x.high, x.step)
    return x


@rule("iterate yield mma max exp sum div mul", 1.2, nested=False)
def attention(draft: Draft) -> Known:
    """A softmax of scores, weighed: the loop over keys carries a maximum, a sum and rows."""
    rng = draft.rng
    batch = draft.some_dims(0, 1)
    left = [d for d in draft.dims if d not in batch]
    if len(left) < 3:
        raise Full
    keys, depth, rows, *more = draft.shuffled(left)
    columns = more[0] if more and rng.random() < 0.6 else depth
    draft.require(*batch, rows, keys, depth)
    draft.require(*batch, rows, keys, columns, most=draft.work)
    kind = rng.choice(("f32", "f16", "bf16"))
    q, k, v = (
        draft.memory(draft.shuffled((*batch, *d)), kind, "small", low, high)
        for d, low, high in (((rows, depth), -1, 1), ((keys, depth), -1, 1), ((keys, columns), 1, 3))
    )
    _tiled(draft, keys, always=True)
    query = tkw.read(q)
    masked = rng.random() < 0.4
    high_start = tkl.Register[(*batch, rows, tkl.f32)](-64.0)
    sum_start = tkl.Register[(*batch, rows, tkl.f32)](0.0)
    out_start = tkl.Register[(*draft.shuffled((*batch, rows, columns)), tkl.f32)](0.0)
    zero = (*batch, rows, keys)

    def body(high: Any, total: Any, out: Any) -> Any:
        scores = tkw.mma(query, tkw.read(k), tkl.Register[(*zero, tkl.f32)](0.0))
        scores = tkw.maximum(tkw.minimum(scores, 6.0), -6.0)
        if masked:
            seen = tkw.ge(tkw.self_index(rows), tkw.self_index(keys))
            scores = tkw.select(seen, scores, tkw.scalar(-20.0, tkl.f32))
        now = tkw.max(scores, high, dim=keys)
        scale = tkw.exp(high - now)
        weights = tkw.exp(scores - now)
        total = tkw.sum(weights, total * scale, dim=keys)
        out = tkw.mma(weights, tkw.cast(tkw.read(v), tkl.f32), out * scale)
        return now, total, out

    with draft.body(keys):
        high, total, out = tkw.iterate(keys, init_args=[high_start, sum_start, out_start])(body)
    units = 4.0 * (draft.size(keys) + 8)
    draft.keep(high, -20, 6)
    draft.keep(total, 1e-3, 99, units=units)
    return draft.keep(tkw.div(out, total), 1, 3, units=2 * units + 2)


@rule("iterate yield set_symbol read", 0.7, nested=False)
def while_loop(draft: Draft) -> Known:
    """A loop that goes its own way along a table: forward by steps, or where an element says."""
    rng = draft.rng
    dims = draft.some_dims(0, 2)
    p = draft.new_dim(rng.choice((5, 9, 12)))
    its = iterators((*dims, p)[: len(dims)])
    turn = getattr(tkl.sym, f"TURN{len(draft.trace.builder.blocks[0].ops)}")
    one = draft.new_dim(1)
    table = draft.memory(draft.shuffled((p, *dims)), "i32", "small")
    start = tkl.Register[(*dims, tkl.i32)](0)
    by = rng.choice((1, 2, 3))

    def body(total: Any) -> Any:
        if dims:
            at = {p: turn + 0 * its[dims[0]], **{d: its[d] for d in dims}}
            x = tkw.read(table, mapping=tkw.IndexMapping(len(dims), inputs=at, outputs=dict(its)))
        else:
            it = tkw.IndexMapping.iterator(0)
            x = tkw.sum(tkw.read(table, mapping=tkw.IndexMapping(1, inputs={p: turn + it}, outputs={one: it})), dim=one)
        tkw.set_symbol(turn, tkw.scalar(turn + by, tkl.i32))
        return total + x

    with draft.body(None):
        total = tkw.iterate(turn, start=tkw.scalar(0, tkl.i32), condition=turn < draft.size(p), init_args=[start])(body)
    return draft.keep(total, -40, 40)


@rule("conditional yield write", 1)
def condition(draft: Draft) -> None:
    """What happens only where a condition holds: a write, or other values."""
    rng, where = draft.rng, draft.mask()
    x = draft.pick(lambda k: set(where.dims) <= set(k.dims) and _writes(draft, k) and bool(k.dims))
    if rng.random() < 0.5:
        before = draft.pool
        draft.pool = [*before]

        def other() -> Any:
            return draft.as_kind(draft.within(draft.whole(x), 3), x.dtype.name).tile

        step_of = x.step
        made = tkw.conditional(where.tile, else_return=[x.tile])(other)
        draft.pool = before
        draft.keep(made, min(x.low, -3) if x.dtype.numpy.kind != "u" else 0, max(x.high, 3), step_of)
        return
    if any(getattr(d, "name", None) is None for d in x.dims):
        raise Full
    memory = draft.memory(draft.shuffled(x.dims), x.dtype, "begin")

    @tkw.conditional(where.tile)
    def then() -> None:
        tkw.write(x.tile, memory)


# -- programs --------------------------------------------------------------------------------------------------


def step(draft: Draft, nested: bool = False) -> None:
    """One more operation, by a rule that finds something to do."""
    names = [name for name, each in RULES.items() if each.nested or not nested]
    if nested:
        names = [n for n in names if n not in ("atomic", "scatter", "mapped_write", "some_rows")]
    for _ in range(6):
        more = {"product": 8.0, "accumulated": 6.0, "attention": 4.0} if draft.large else {}
        often = [(RULES[n].often + more.get(n, 0)) * draft.bias.setdefault(n, draft.rng.choice(BIASES)) for n in names]
        name = draft.rng.choices(names, often)[0]
        block, count, dims = draft.trace.builder.blocks[-1], len(draft.arguments), dict(draft.sizes)
        before, pool, units = len(block.ops), [*draft.pool], dict(draft.units)
        blocks = len(draft.trace.builder.blocks)
        try:
            RULES[name].draw(draft)
        except Full:
            del draft.trace.builder.blocks[blocks:]
            del block.ops[before:]
            del draft.arguments[count:]
            draft.sizes, draft.pool, draft.units = dims, pool, units
            continue
        draft.rules.append(name)
        return


def _hints(draft: Draft) -> None:
    """Constraints that say nothing of what is meant."""
    rng = draft.rng
    if rng.random() < 0.25:
        dims = [d for d in draft.dims if d.name not in draft.indexed]
        for grid, d in enumerate(rng.sample(dims, min(len(dims), rng.choice((1, 2))))):
            draft.constraints.append(tkw.WorkgroupConstraint(d, rng.choice((1, 4, 8, 32)), grid))
            if rng.random() < 0.5:
                draft.constraints.append(tkw.WaveConstraint(d, rng.choice((1, 4, 16))))
    if rng.random() < 0.15:
        draft.constraints.append(tkw.HardwareConstraint(threads_per_wave=64, waves_per_block=(2, 1, 1)))
    if rng.random() < 0.15:
        _tiled(draft, rng.choice(draft.dims), always=True)


def _draw(draft: Draft) -> None:
    for _ in range(draft.rng.choice((1, 1, 2, 3) if draft.large or draft.long else (1, 2, 3, 4, 5, 6, 8, 10))):
        step(draft)
    outputs = draft.rng.choice((1, 1, 2, 2, 3))
    taken = {value for op in walk_block(draft.trace.builder.blocks[0]) for value in op.operands}
    usable = [k for k in draft.pool if draft.count(k.dims) <= 2 * draft.most]
    ends = [k for k in usable if k.tile.value not in taken] or usable
    for known in draft.rng.sample(ends, min(len(ends), outputs)):
        try:
            draft.write(known)
        except Full:
            break
    if not any(a.written for a in draft.arguments):
        known = draft.fresh()
        draft.write(known)
    _hints(draft)


def drawn(number: int, seed: int = 0) -> Drawn:
    """Program number so and so of a seed."""
    for again in range(100):
        draft = Draft(random.Random(f"language {seed} {number} {again}"))
        try:
            traced(draft, _draw)
        except Full:
            continue
        return draft.finished(number)
    raise AssertionError("no program was drawn")
