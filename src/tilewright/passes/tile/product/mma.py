"""The product of tiles: which parts its lowering is made of."""

from __future__ import annotations

from itertools import product as every

from tilewright.algebra.expr import Expr, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ExecutionError, ProgramError
from tilewright.ir import dtypes
from tilewright.ir.core import Op, TileType, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tile import loose
from tilewright.ir.tile_formulas import call, converted
from tilewright.passes.tile import moving
from tilewright.passes.tile.accesses import apart_along
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.product.accumulator import carried_accumulator, reused_accumulator, room_for_sums
from tilewright.passes.tile.product.atoms import BlockedProduct
from tilewright.passes.tile.product.lanes import LaneProduct
from tilewright.passes.tile.storage import Storage
from tilewright.passes.tile.values import (
    Part,
    Parts,
    Tile,
    common_parts,
    divided,
    most,
    only_load,
    rewritten,
    rounded,
)
from tilewright.passes.tile.writer import word
from tilewright.plan.microkernel import Axes, Microkernel, axes_of
from tilewright.plan.sums import summed_in

AT_ONCE = 4
"""Products that are added in one step."""


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
    total = carried_accumulator(low, op, acc, start, inner, along) or reused_accumulator(
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
