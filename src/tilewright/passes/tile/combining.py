"""Products and reductions: in the wide type, rounded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product as every
from math import prod

from tilewright.algebra.expr import Const, Expr, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ExecutionError, ProgramError
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Op, TileType, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tile import STEPS, loose
from tilewright.ir.tile_formulas import call, converted, scale_of
from tilewright.machine import Machine
from tilewright.passes.places import Size
from tilewright.passes.tile import moving
from tilewright.passes.tile.accesses import apart_along
from tilewright.passes.tile.keeping import fits, near
from tilewright.passes.tile.lanes import LaneProduct
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.products import BlockedProduct
from tilewright.passes.tile.storage import Storage
from tilewright.passes.tile.values import (
    Load,
    Part,
    Parts,
    Tile,
    common_parts,
    divided,
    load,
    loads,
    most,
    only_load,
    rewritten,
)
from tilewright.passes.tile.writer import word
from tilewright.plan.microkernel import Axes, Microkernel, axes_of
from tilewright.plan.sums import summed_in

BLOCK = 128
"""Neighbours whose vectors are written out one after another."""
AT_ONCE = 4
"""Products that are added in one step."""


def rounded(dtype: DType, dims: tuple[Expr, ...], parts: Parts, wide: DType, formula: Formula) -> Tile:
    """Return a Tile of type `dtype` with the formula rounded from `wide`; the unrounded one is kept as its
    accumulator.
    """
    if wide is dtype:
        return Tile(dtype, dims, parts, formula)
    return Tile(dtype, dims, parts, converted(formula, wide, dtype), (wide, formula))


# -- reductions -------------------------------------------------------------------------------------------


def reduce(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower a reduction (sum, max, min, prod) along a dimension, with the accumulator operand if there is one."""
    tiles = [low.storage.env[v] for v in op.operands]
    carried = tiles.pop() if op.attrs.get("acc") else None
    kind: TileType = op.results[0].type
    dim, step = op.attrs["dim"], STEPS[op.name]
    parts = common_parts(tiles)
    dtype = kind.dtype
    if dtype is dtypes.bool_:
        wide, step = dtypes.i32, {"add": "maximum", "mul": "minimum"}.get(step, step)
    else:
        wide = dtype.accumulator
    total: Formula | None = None
    inner = {d: parts[d] for d in kind.dims}
    if low.cuts.waves > 1:  # what goes along rows and is used again stays near, rather than be read again
        tiles = [near(low, v) for v in op.operands[: len(tiles)]]
    for tile in tiles:
        cut = moving.neutral(low, tile.over(tile.dims, parts), (dim,), moving.identity(op.name, tile.dtype))
        if parts[dim][1] == 0:
            if op.name in ("max", "min"):
                continue
            combined = formulas.number(0 if op.name == "sum" else 1, wide)
        elif 0 in cut.sizes:
            combined = formulas.number(0, wide)
        else:
            combined = _reduced(low, cut, dim, step, wide)
        total = combined if total is None else call(step, total, combined)
    if carried is not None:
        start = converted(carried.accumulated[1], carried.accumulated[0], wide)
        total = start if total is None else call(step, total, start)
        inner |= {d: carried.parts[d] for d in kind.dims if d not in inner}
    if total is None:
        what = f"{op.name} over {dim}: there is nothing to combine"
        if len(low.scope.masks) != 1:
            raise ExecutionError(what, op.loc)
        low.reports.report(low.scope.masks[0], what, op)  # it is a mistake only where the condition holds
        total = formulas.number(0, wide)
    return (rounded(dtype, kind.dims, inner, wide, total),)


def _reduced(low: Lowering, tile: Tile, dim: Expr, step: str, wide: DType) -> Formula:
    """Return a load of the combination of a tile along `dim` by the function `step`, in the type `wide`."""
    storage, w = low.storage, low.writer
    inner, scale = scale_of(tile.formula)
    if w.home is not None and step in ("maximum", "minimum") and 0 < scale != 1 and tile.dtype is wide:
        # rounding keeps the order: the largest product is that of the largest
        largest = _reduced(low, Tile(wide, tile.dims, tile.parts, inner), dim, step, wide)
        return call("mul", largest, formulas.number(scale, wide))
    source = Tile(wide, tile.dims, tile.parts, converted(tile.formula, tile.dtype, wide))
    outer = tuple(d for d in source.dims if d is not dim)
    sizes = [source.parts[d][1] for d in outer]
    name = next(n for n, s in STEPS.items() if s == step)
    if only_load(source.formula) is None and not fits(low, source.sizes, low.machine.row_tasks.values):
        return storage.held(_in_parts(low, source, dim, outer, name), outer, source.parts).formula
    source, source_load = storage.load_of(source)
    home = w.home
    if home is not None and storage.sums.get(source_load.tensor) == (home.row, dim):
        total = storage.room(wide, outer, source.parts, "total")
        w.combine("reduce", source_load.tensor, total, 1, name)
        return storage.held(total, outer, source.parts).formula
    total = w.alloc(wide, sizes, "total")
    if apart_along(low.scope, source_load, dim) == 1:
        view = storage.viewed(source_load, source.dims, source.parts)
        w.combine("reduce", view, w.part(total, sizes), source.dims.index(dim), name)
    else:
        _blocks(low, source, source_load, dim, total, name)
    return storage.held(total, outer, source.parts).formula


def _in_parts(low: Lowering, tile: Tile, dim: Expr, outer: tuple[Expr, ...], name: str) -> Value:
    """Return a tensor with the reduction along a dimension that is too long for registers.

    Parts of it are combined element by element, then the elements of the last part. Two parts are loaded at a time, so
    that one is in flight while the other is added; one part of half the width if rows are not aligned to registers. A
    ragged part is added element by element if elements past its end can be masked, else reduced separately.
    """
    storage = low.storage
    first, length = tile.parts[dim]
    assert low.writer.lanes is not None
    assert isinstance(length, int)
    others = prod(most(tile.parts[d][1]) for d in outer)
    values, at_once = low.machine.row_tasks.values, 2
    if _is_unaligned(tile, low.machine):
        values, at_once = values // 2, 1
    width = min(length, 1 << (max(1, values * low.writer.lanes // others).bit_length() - 1))
    if width < length < 2 * width and width > 1:  # one part and a rest take as many registers as two
        width //= 2
    rounds, rest = divmod(length, width)

    def part(place: Expr) -> Parts:
        return {**tile.parts, dim: (first + place * width, width)}

    _, held = storage.load_of(storage.stored(replace(tile, parts=part(as_expr(0))), name="some"))

    def add(now: Parts, more: Formula) -> None:
        so_far = storage.held(held.tensor, tile.dims, now).formula
        storage.put(held.tensor, tile.dims, now, call(STEPS[name], so_far, more))

    times, single = divmod(rounds - 1, at_once)
    if times:
        with low.writer.loop("p", times) as p:
            for n in range(at_once):
                add(part(at_once * p + n + 1), tile.formula)
    if single:
        add(part(as_expr(rounds - 1)), tile.formula)
    total = low.writer.alloc(tile.dtype, [tile.parts[d][1] for d in outer], "total")
    left, sources = {**tile.parts, dim: (first + rounds * width, rest)}, [held]
    coordinate = low.scope.coordinate(dim)
    if rest and any(each.at and coordinate in each.at[-1].symbols for each in loads(tile.formula)):
        _, last_part = storage.load_of(storage.stored(replace(tile, parts=left), name="rest"))
        sources.append(last_part)  # vectors end anywhere
    elif rest:
        last = part(as_expr(rounds))
        add(last, _masked_tail(storage, replace(tile, parts=last), dim, rest, moving.identity(name, tile.dtype)))
    for source in sources:
        low.writer.combine("reduce", source.tensor, total, tile.dims.index(dim), name, accumulate=source is not held)
    return total


def _is_unaligned(tile: Tile, machine: Machine) -> bool:
    """True if rows of an argument that the tile reads are no multiple of registers, so that they are not aligned."""
    rows = [each.tensor.type for each in loads(tile.formula) if each.is_given and each.at]
    word = machine.register_file.word_bits
    return any(not isinstance(x.shape[-1], Const) or x.shape[-1].value * x.dtype.bits % word for x in rows)


def _masked_tail(storage: Storage, tile: Tile, dim: Expr, count: int, number: float) -> Formula:
    """Return the tile's formula with `number` past the first `count` elements along `dim`, for which nothing is
    loaded.
    """
    coordinate, first = storage.scope.coordinate(dim), tile.parts[dim][0]
    over, _ = storage.axes(tile.dims, tile.parts)

    def brought(each: Load) -> Formula:
        if not any(coordinate in e.symbols for e in each.at):
            return load(each.tensor, *each.at)
        view = storage.viewed(each, tile.dims, {**tile.parts, dim: (first, count)})
        room = storage.writer.alloc(each.tensor.type.dtype, tile.sizes, "last")
        at = [(axis, d is dim) for d, axis in zip(tile.dims, over, strict=True)]
        storage.writer.copy(view, over, at, room, 0)
        return storage.held(room, tile.dims, tile.parts).formula

    elements = rewritten(tile.formula, lambda e: e, brought)
    inside = call("lt", moving.place(storage.scope, dim), formulas.index(first + count, dtypes.i64))
    return call("select", inside, elements, formulas.number(number, tile.dtype))


def _blocks(low: Lowering, tile: Tile, source: Load, dim: Expr, target: Value, name: str) -> None:
    """Emit the reduction `name` along `dim`, one block of the last other dimension at a time."""
    outer = [d for d in tile.dims if d is not dim]

    def one(place: Expr, width: Size) -> None:
        parts = dict(tile.parts)
        if outer:
            parts[outer[-1]] = (parts[outer[-1]][0] + place, width)
        view = low.storage.viewed(source, tile.dims, parts)
        _, to = low.storage.load_of(low.storage.held(target, tuple(outer), tile.parts))
        low.writer.combine("reduce", view, low.storage.viewed(to, tuple(outer), parts), tile.dims.index(dim), name)

    size = tile.parts[outer[-1]][1] if outer else 1
    rounds, rest = divided(size, BLOCK) if most(size) > 2 * BLOCK else (0, size)
    if rounds != 0:
        with low.writer.loop("b", rounds) as b:
            one(b * BLOCK, BLOCK)
    if rest != 0:
        with low.branch(as_expr(rest) >= 1):
            one(as_expr(rounds * BLOCK), rest)


# -- products ---------------------------------------------------------------------------------------------


def mma(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower `mma`: the accumulator plus the sum of products over dimensions of both operands that it lacks."""
    a, b, acc = (low.storage.env[v] for v in op.operands)
    parts = common_parts([a, b, acc])
    single = (loose(op) or (set(),))[0]
    for d in single:
        if parts[d][1] != 1:
            raise ExecutionError(f"mma: {d} is in one factor only, but is {parts[d][1]} wide here", op.loc)
    a, b = (low.scope.conform(t.over(t.dims, parts), tuple(d for d in t.dims if d not in single), op) for t in (a, b))
    kind: TileType = op.results[0].type
    wide = summed_in(op, low.machine)
    inner = {d: parts[d] for d in acc.dims}
    of_acc, formula = acc.accumulated
    start = converted(formula, of_acc, wide)
    summed = tuple(d for d in a.dims if d in b.dims and d not in acc.dims)
    if any(parts[d][1] == 0 for d in (*acc.dims, *summed)):
        return (rounded(kind.dtype, acc.dims, inner, wide, start),)
    kernel, blocks = low.cuts.products.get(op), op.attrs.get("blocks", 1)
    if blocks != (1 if kernel is None else kernel.blocks):
        raise ProgramError(f"mma in {blocks} blocks: nothing here multiplies them by themselves", op.loc)
    rounds = kernel is not None and kernel.atom.rounds == "tf32"  # the machine's products do it
    tf32 = op.attrs.get("precision") == "tf32" and wide is dtypes.f32 and not rounds
    a, b = (moving.neutral(low, t.over(t.dims, parts), summed, 0) for t in (a, b))
    if tf32:
        a, b = (_as_tf32(low.storage, t) for t in (a, b))
    if op in low.cuts.lanes:
        sums = LaneProduct(low, low.cuts.lanes[op], parts, wide).write(a, b, acc.dims, start)
    elif low.planned is not None:
        sums = low.planned.multiply(a, b, acc.dims, parts)
    else:
        sums = _summed(low, op, a, b, acc, parts, start, wide)
    return (rounded(kind.dtype, acc.dims, inner, wide, low.storage.held(sums, acc.dims, inner).formula),)


def _summed(low: Lowering, op: Op, a: Tile, b: Tile, acc: Tile, parts: Parts, start: Formula, wide: DType) -> Value:
    """Emit an MMA over these parts, by an atom or by loops; return the tensor of its accumulator."""
    storage = low.storage
    inner = {d: parts[d] for d in acc.dims}
    microkernel = _by_atom(low, op, a, b, acc.dims)
    along = None if microkernel is None else (microkernel[1].m, microkernel[1].n)
    total = _carried_accumulator(low, op, acc, start, inner, along) or _reused_accumulator(
        low, op, acc, start, inner, along
    )
    empty = False
    if total is None and microkernel is not None:
        held, empty = room_for_sums(storage, microkernel[0], microkernel[1], acc.dims, inner, wide, start)
        _, total = storage.load_of(storage.held(held, acc.dims, inner))
    elif total is None:
        _, total = storage.load_of(storage.stored(acc.over(acc.dims, parts), as_type=(wide, start), name="acc"))
    storage.going_on[op.results[0]] = total.tensor
    if microkernel is not None:
        kernel, axes, left, right = microkernel
        BlockedProduct(low, kernel, axes, parts, total.tensor, acc.dims, empty).write(left, right)
    elif low.cuts.lane_box:
        _terms(storage, total.tensor, acc.dims, inner, a, b)
    else:
        last, summed = acc.dims[-1] if acc.dims else None, [d for d in a.dims if d in b.dims and d not in acc.dims]
        factors = (_factor(storage, t, wide, last) for t in (a, b))
        _products(low, total.tensor, acc.dims, inner, [(d, parts[d]) for d in summed], *factors)
    return total.tensor


def room_for_sums(
    storage: Storage, how: Microkernel, axes: Axes, c: tuple[Expr, ...], parts: Parts, wide: DType, start: Formula
) -> tuple[Value, bool]:
    """Return (tensor for an accumulator, True if it is still empty).

    It is in registers if one block of the microkernel covers it and registers hold the accumulator tiles of all
    products at once, else in memory. `start` is stored in it, but zeros in memory are not: then it is empty.
    """
    rows, columns = (parts[d][1] for d in (axes.m, axes.n))
    zero, single = start == formulas.number(0, wide), all(parts[d][1] == 1 for d in axes.around)
    known = isinstance(rows, int) and isinstance(columns, int)
    m, n, _ = how.atom.shape
    one = rows <= how.rows and columns <= how.columns and rows % m == columns % n == 0 if known else False
    if single and one and storage.holds_sums:
        held = storage.writer.registers(wide, (int(rows), int(columns)), f"{how.atom.name}.c", "sums", how.waves)
        storage.sums[held] = axes.m, axes.n
        if zero:
            storage.writer.emit("fill", (held,), value=0)
        else:
            storage.put(held, c, parts, start)
        return held, False
    m, n, _ = how.atom.shape
    units = {axes.m: m, axes.n: n} if how.whole and how.slab is None and known else {}
    sizes = [parts[d][1] for d in c]
    room = [-(-size // units[d]) * units[d] if d in units else size for size, d in zip(sizes, c, strict=True)]
    held = storage.writer.alloc(wide, room, "acc")
    if room != sizes:  # atoms read and write all of their rows and columns
        storage.padded[held] = tuple(map(storage.writer.room, sizes))
        if not zero:
            storage.writer.emit("fill", (held,), value=0)
    if not zero:
        storage.put(held, c, parts, start)
    return held, zero


def _by_atom(
    low: Lowering, op: Op, a: Tile, b: Tile, c: tuple[Expr, ...]
) -> tuple[Microkernel, Axes, Tile, Tile] | None:
    """Return (microkernel, its axes, operand A, operand B) of an MMA; None, with a reason in `low.lost`, if it has
    none.
    """
    known = {**a.parts, **b.parts}
    axes = axes_of(a.dims, b.dims, c, lambda d: most(known[d][1]))
    if isinstance(axes, str):
        low.lost[op] = axes
        return None
    kernel = low.cuts.products.get(op)
    if kernel is None:
        if low.cuts.terms is None:
            low.lost[op] = "its plan says loops"
        return None
    axes = kernel.oriented(axes)
    return kernel, axes, *((b, a) if axes.swapped else (a, b))


def _carried_accumulator(
    low: Lowering, op: Op, acc: Tile, start: Formula, parts: Parts, along: tuple[Expr | None, ...] | None
) -> Load | None:
    """Return the tensor of a loop-carried accumulator if the MMA may accumulate in place: nothing else uses its old
    value.

    Registers must have the layout of the MMA's accumulator, rows and columns `along` the same dimensions.
    """
    carried = only_load(start)
    before = op.operands[2]
    if carried is None or low.storage.going_on.get(before) is not carried.tensor or len(low.users[before]) != 1:
        return None
    same = only_load(low.storage.held(carried.tensor, acc.dims, parts).formula)
    if carried.tensor in low.storage.sums:
        return carried if carried == same and along in (None, low.storage.sums[carried.tensor]) else None
    sizes = tuple(low.writer.room(parts[d][1]) for d in acc.dims)
    return carried if carried == same and low.storage.room_of(carried.tensor) == sizes else None


def _reused_accumulator(
    low: Lowering, op: Op, acc: Tile, start: Formula, parts: Parts, along: tuple[Expr | None, ...] | None
) -> Load | None:
    """Return the loop-carried accumulator registers, with `start` stored in them, if the MMA may accumulate there.

    That is so if `start` is computed from these registers element by element, and nothing else uses their old value.
    """
    storage = low.storage
    for each in loads(start):
        carried = [v for v, tensor in storage.going_on.items() if tensor is each.tensor and v is not op.results[0]]
        is_accumulator = each.tensor in storage.sums and each == only_load(
            storage.held(each.tensor, acc.dims, parts).formula
        )
        is_accumulator = is_accumulator and along in (None, storage.sums[each.tensor])
        if is_accumulator and len(storage.sums[each.tensor]) > 1 and any(_leads_to(low.users, v, op) for v in carried):
            storage.put(each.tensor, acc.dims, parts, start)
            return each
    return None


def _leads_to(users_of: Mapping[Value, Sequence[Op]], value: Value, op: Op) -> bool:
    """True if a value has one user, whose result has one user, and so on, up to the accumulator operand of `op`."""
    while True:
        users = users_of.get(value, ())
        if len(users) != 1:
            return False
        if users[0] is op:
            return op.operands[2] is value
        if users[0].blocks or len(users[0].results) != 1:
            return False
        (value,) = users[0].results


def _factor(storage: Storage, tile: Tile, wide: DType, last: Expr | None) -> Formula:
    """Return the formula of an MMA operand in the type `wide`, contiguous along `last` (the vectorised dimension)."""
    source = only_load(tile.formula)
    fits = source is not None and (
        last is None or last not in tile.dims or apart_along(storage.scope, source, last) == 1
    )
    if fits and tile.dtype is wide:
        return tile.formula
    dims = tuple(d for d in tile.dims if d is not last) + ((last,) if last in tile.dims else ())
    return storage.stored(tile, dims, (wide, converted(tile.formula, tile.dtype, wide)), "factor").formula


def _as_tf32(storage: Storage, tile: Tile) -> Tile:
    """Return an f32 tile stored with its elements rounded to tf32 (ten bits of fraction); any other tile as it is."""
    if tile.dtype is not dtypes.f32:
        return tile
    tile = storage.stored(tile, name="factor")
    stored = only_load(tile.formula)
    if stored is None:  # nothing to look at
        return tile
    bits = storage.writer.emit("bitcast", (stored.tensor,), dtype=dtypes.i32).result
    bits.name = storage.writer.fresh("bits")
    word = storage.held(bits, tile.dims, tile.parts).formula
    odd = Formula("and_", (Formula("shr", (word, Formula.number(13))), Formula.number(1)))
    near = Formula("add", (Formula("add", (word, Formula.number(0xFFF))), odd))
    cut = Formula("and_", (near, Formula.number(-0x2000)))
    finite = Formula("lt", (Formula("abs", (tile.formula,)), Formula.number(float("inf"))))
    storage.put(bits, tile.dims, tile.parts, Formula("select", (finite, cut, word)))
    return tile


def _terms(storage: Storage, total: Value, dims: tuple[Expr, ...], parts: Parts, a: Tile, b: Tile) -> None:
    """Emit total += a * b as one map for each term of K, all unrolled, so that a lane's reads from its window are
    constant.

    Operands are widened where they are multiplied: they are narrow in registers.
    """
    wide, summed = total.type.dtype, [d for d in a.dims if d in b.dims and d not in dims]
    before = storage.held(total, dims, parts).formula
    factors = [converted(t.formula, t.dtype, wide) for t in (a, b)]
    for term in every(*(range(most(a.parts[d][1])) for d in summed)):
        images = Substitution(
            {storage.scope.coordinate(d): a.parts[d][0] + n for d, n in zip(summed, term, strict=True)}
        )
        now = tuple(rewritten(f, images) for f in factors)
        fused = wide.is_float  # there is an instruction
        storage.put(
            total, dims, parts, Formula("fma", (*now, before)) if fused else call("add", before, Formula("mul", now))
        )


def _products(
    low: Lowering,
    total: Value,
    dims: tuple[Expr, ...],
    parts: Parts,
    summed: list[tuple[Expr, Part]],
    left: Formula,
    right: Formula,
) -> None:
    """Emit total += left * right over all summed dimensions, as maps with AT_ONCE terms of the last dimension each."""
    *outer, (dim, (first, length)) = summed
    if outer:
        (d, (start, width)), *rest = outer
        with low.writer.loop(f"k_{word(d)}", width) as k:
            images = Substitution({low.scope.coordinate(d): start + k})
            inner = (rewritten(left, images), rewritten(right, images))
            _products(low, total, dims, parts, [*rest, summed[-1]], *inner)
        return
    before = low.storage.held(total, dims, parts).formula
    fused = low.cuts.terms is not None and total.type.dtype.is_float  # where lanes do it, there is an instruction

    def step(k: Expr, count: int) -> None:
        formula = before
        for n in range(count):
            images = Substitution({low.scope.coordinate(dim): first + k + n})
            factors = (rewritten(left, images), rewritten(right, images))
            formula = Formula("fma", (*factors, formula)) if fused else call("add", formula, Formula("mul", factors))
        low.storage.put(total, dims, parts, formula)

    rounds, rest_of = divided(length, AT_ONCE)
    if rounds != 0:
        with low.writer.loop(f"k_{word(dim)}", rounds) as k:
            step(k * AT_ONCE, AT_ONCE)
    if isinstance(rest_of, Expr):
        with low.writer.loop(f"k_{word(dim)}", rest_of) as k:
            step(rounds * AT_ONCE + k, 1)
    elif rest_of:
        step(as_expr(rounds * AT_ONCE), rest_of)
