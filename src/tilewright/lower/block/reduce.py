"""Lowers reductions; they accumulate in a wider type, and are rounded once."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.algebra.expr import Const, Expr, as_expr
from tilewright.analysis.flat_memory import Size
from tilewright.errors import ExecutionError
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Op, TileType, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tile import STEPS
from tilewright.ir.tile_formulas import call, converted, scale_of
from tilewright.lower.block import dynamic_bounds
from tilewright.lower.block.accesses import memory_step
from tilewright.lower.block.lazy_tiles import (
    Load,
    Parts,
    Tile,
    common_parts,
    divided,
    load,
    loads,
    most,
    only_load,
    rewritten,
    rounded,
)
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.materialise import fits, near
from tilewright.lower.block.storage import Storage
from tilewright.machine import Machine

BLOCK = 128
"""Elements of a block whose vectors are unrolled."""


def reduce(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Emit a reduction (sum, max, min or prod) of the operands of `op` along a dimension; return (result tile,).

    The results of several operands are combined, and combined with the accumulator operand if there is one. The
    reduction accumulates in a wider type, and is rounded once. Along 0 elements a sum is 0, and a product 1. A max or
    min along 0 elements is the accumulator operand; without one, raise an ExecutionError. Inside exactly one
    conditional on data, emit code instead that reports this error where the condition holds.
    """
    parts = common_parts([low.storage.env[v] for v in operands(op)])
    return (result(low, op, parts, reduced_operands(low, op)),)


def accumulation(op: Op) -> tuple[DType, str]:
    """Return (element type of the accumulator, name of the combining function) of the reduction `op`: (f32, "add") for
    a sum of bf16. Bools are combined as i32, by "maximum" or "minimum".
    """
    dtype, step = op.results[0].type.dtype, STEPS[op.name]
    if dtype is dtypes.bool_:
        return dtypes.i32, {"add": "maximum", "mul": "minimum"}.get(step, step)
    return dtype.accumulator, step


def operands(op: Op) -> tuple[Value, ...]:
    """Return the operands that the reduction `op` reduces: all but the accumulator operand."""
    return op.operands[:-1] if op.attrs.get("acc") else op.operands


def reduced_operands(low: Lowering, op: Op) -> Formula | None:
    """Emit the reduction of the operands of `op` over the current part of its dimension, without the accumulator
    operand.

    Return the formula of the result, in the type of the accumulator. Return None for a max or min of no elements.
    """
    tiles = [low.storage.env[v] for v in operands(op)]
    dim, (wide, step) = op.attrs["dim"], accumulation(op)
    parts = common_parts(tiles)
    total: Formula | None = None
    if low.plan.waves > 1:  # rows that are used again stay in the workgroup's memory
        tiles = [near(low, v) for v in operands(op)]
    for tile in tiles:
        cut = dynamic_bounds.neutral(
            low, tile.over(tile.dims, parts), (dim,), dynamic_bounds.identity(op.name, tile.dtype)
        )
        if parts[dim][1] == 0:
            if op.name in ("max", "min"):
                continue
            combined = formulas.number(0 if op.name == "sum" else 1, wide)
        elif 0 in cut.sizes:
            combined = formulas.number(0, wide)
        else:
            combined = _reduced(low, cut, dim, step, wide)
        total = combined if total is None else call(step, total, combined)
    return total


def result(low: Lowering, op: Op, parts: Parts, total: Formula | None) -> Tile:
    """Return the result tile of the reduction `op`: `total` combined with the accumulator operand, if there is one, and
    rounded.

    `total` is the formula that `reduced_operands` returns; `parts` has the (first index, extent) of each dimension. If
    `total` is None (no elements) and there is no accumulator operand, raise an ExecutionError. Inside exactly one
    conditional on data, emit code instead that reports this error where the condition holds; the tile is then 0.
    """
    kind: TileType = op.results[0].type
    wide, step = accumulation(op)
    carried = low.storage.env[op.operands[-1]] if op.attrs.get("acc") else None
    if carried is not None:
        start = converted(carried.accumulated[1], carried.accumulated[0], wide)
        total = start if total is None else call(step, total, start)
    if total is None:
        message = f"{op.name} over {op.attrs['dim']}: there is nothing to combine"
        if len(low.scope.masks) != 1:
            raise ExecutionError(message, op.loc)
        low.reports.report(low.scope.masks[0], message, op)  # an error only where the condition holds
        total = formulas.number(0, wide)
    return rounded(kind.dtype, kind.dims, {d: parts[d] for d in kind.dims}, wide, total)


def _reduced(low: Lowering, tile: Tile, dim: Expr, step: str, wide: DType) -> Formula:
    """Emit the reduction of a tile along `dim` by the function `step` ("add", "maximum", ...), in the type `wide`.

    Return the formula of the result: a load of it, or that load times a number, if a maximum or minimum of a scaled
    tile is scaled afterwards. A tile that does not fit the registers of the lanes is reduced in chunks along `dim`.
    """
    storage, w = low.storage, low.writer
    inner, scale = scale_of(tile.formula)
    if w.fragment_layout is not None and step in ("maximum", "minimum") and 0 < scale != 1 and tile.dtype is wide:
        # a positive factor keeps the order, also after rounding: scale the largest element only
        largest = _reduced(low, Tile(wide, tile.dims, tile.parts, inner), dim, step, wide)
        return call("mul", largest, formulas.number(scale, wide))
    source = Tile(wide, tile.dims, tile.parts, converted(tile.formula, tile.dtype, wide))
    outer = tuple(d for d in source.dims if d is not dim)
    sizes = [source.parts[d][1] for d in outer]
    name = next(n for n, s in STEPS.items() if s == step)
    if only_load(source.formula) is None and not fits(low, source.sizes, low.machine.row_tasks.values):
        return storage.held(_in_parts(low, source, dim, outer, name), outer, source.parts).formula
    source, source_load = storage.load_of(source)
    layout = w.fragment_layout
    if layout is not None and storage.sums.get(source_load.tensor) == (layout.row, dim):
        total = storage.room(wide, outer, source.parts, "total")
        w.combine("reduce", source_load.tensor, total, 1, name)
        return storage.held(total, outer, source.parts).formula
    total = w.alloc(wide, sizes, "total")
    if memory_step(low.scope, source_load, dim) == 1:
        view = storage.viewed(source_load, source.dims, source.parts)
        w.combine("reduce", view, w.part(total, sizes), source.dims.index(dim), name)
    else:
        combine_by_blocks(low, source, source_load, dim, (total, outer), name)
    return storage.held(total, outer, source.parts).formula


def _in_parts(low: Lowering, tile: Tile, dim: Expr, outer: tuple[Expr, ...], name: str) -> Value:
    """Emit the reduction of a tile along `dim` in chunks that fit the lanes' registers; return the tensor of the
    result.

    `outer` are the other dimensions, and `name` is the reduction ("sum", ...). Chunks are combined element by element
    in one register tensor, which is reduced last. A loop iteration loads two chunks, so that loads overlap; or one
    chunk of half the width if rows are not whole register words. A ragged last chunk is masked, or reduced separately
    if its elements are contiguous in memory.
    """
    storage = low.storage
    first, length = tile.parts[dim]
    assert low.writer.lanes is not None
    assert isinstance(length, int)
    others = prod(most(tile.parts[d][1]) for d in outer)
    values, parts_at_once = low.machine.row_tasks.values, 2
    if _is_unaligned(tile, low.machine):
        values, parts_at_once = values // 2, 1
    width = min(length, 1 << (max(1, values * low.writer.lanes // others).bit_length() - 1))
    if width < length < 2 * width and width > 1:  # one part and a rest take as many registers as two
        width //= 2
    full_parts, rest = divmod(length, width)

    def part(place: Expr) -> Parts:
        """Return {dimension: (first index, extent)} of chunk number `place` along `dim`."""
        return {**tile.parts, dim: (first + place * width, width)}

    _, held = storage.load_of(storage.stored(replace(tile, parts=part(as_expr(0))), name="some"))

    def add(now: Parts, more: Formula) -> None:
        """Emit code that combines the elements `more` with the register tensor; `now` is {dimension: (first index,
        extent)}.
        """
        so_far = storage.held(held.tensor, tile.dims, now).formula
        storage.put(held.tensor, tile.dims, now, call(STEPS[name], so_far, more))

    times, single = divmod(full_parts - 1, parts_at_once)
    if times:
        with low.writer.loop("p", times) as p:
            for n in range(parts_at_once):
                add(part(parts_at_once * p + n + 1), tile.formula)
    if single:
        add(part(as_expr(full_parts - 1)), tile.formula)
    total = low.writer.alloc(tile.dtype, [tile.parts[d][1] for d in outer], "total")
    remaining, sources = {**tile.parts, dim: (first + full_parts * width, rest)}, [held]
    coordinate = low.scope.coordinate(dim)
    if rest and any(each.at and coordinate in each.at[-1].symbols for each in loads(tile.formula)):
        _, last_part = storage.load_of(storage.stored(replace(tile, parts=remaining), name="rest"))
        sources.append(last_part)  # contiguous elements: a ragged vector is reduced by itself
    elif rest:
        last = part(as_expr(full_parts))
        add(
            last, _masked_tail(storage, replace(tile, parts=last), dim, rest, dynamic_bounds.identity(name, tile.dtype))
        )
    for source in sources:
        low.writer.combine("reduce", source.tensor, total, tile.dims.index(dim), name, accumulate=source is not held)
    return total


def _is_unaligned(tile: Tile, machine: Machine) -> bool:
    """True if a tile reads an argument of which the rows (last dimension) are not a whole number of register words
    long.

    Also True if that length is known only at the call. Arguments that the program writes do not count.
    """
    rows = [each.tensor.type for each in loads(tile.formula) if each.is_given and each.at]
    word = machine.register_file.word_bits
    return any(not isinstance(x.shape[-1], Const) or x.shape[-1].value * x.dtype.bits % word for x in rows)


def _masked_tail(storage: Storage, tile: Tile, dim: Expr, count: int, number: float) -> Formula:
    """Return the formula of `tile` with `number` in place of all but its first `count` elements along `dim`.

    Code is emitted that copies the first `count` elements of each load to a new tensor, from which the formula loads:
    no element behind them is read.
    """
    coordinate, first = storage.scope.coordinate(dim), tile.parts[dim][0]
    over, _ = storage.axes(tile.dims, tile.parts)

    def from_copy(each: Load) -> Formula:
        """Return the formula of the load `each` from a copy of its first elements; the load itself if it does not
        depend on `dim`.
        """
        if not any(coordinate in e.symbols for e in each.at):
            return load(each.tensor, *each.at)
        view = storage.viewed(each, tile.dims, {**tile.parts, dim: (first, count)})
        room = storage.writer.alloc(each.tensor.type.dtype, tile.sizes, "last")
        at = [(axis, d is dim) for d, axis in zip(tile.dims, over, strict=True)]
        storage.writer.copy(view, over, at, room, 0)
        return storage.held(room, tile.dims, tile.parts).formula

    elements = rewritten(tile.formula, lambda e: e, from_copy)
    inside = call("lt", dynamic_bounds.place(storage.scope, dim), formulas.index(first + count, dtypes.i64))
    return call("select", inside, elements, formulas.number(number, tile.dtype))


def combine_by_blocks(
    low: Lowering, tile: Tile, source: Load, dim: Expr, target: tuple[Value, tuple[Expr, ...]], name: str
) -> None:
    """Emit the reduction or scan `name` ("sum", ...) of a tile along `dim`, into a tensor that exists already.

    `source` loads the tile's elements. `target` is (tensor of the result, its dimensions); the operation is a scan if
    these include `dim`. If the last of the other dimensions has more than 256 elements, the code is a loop over blocks
    of 128 of them.
    """
    result, dims = target
    kind, outer = "scan" if dim in dims else "reduce", [d for d in tile.dims if d is not dim]

    def emit_block(place: Expr, width: Size) -> None:
        """Emit the reduction or scan for `width` indices of the last outer dimension, from index `place` of the tile's
        part on.
        """
        parts = dict(tile.parts)
        if outer:
            parts[outer[-1]] = (parts[outer[-1]][0] + place, width)
        view = low.storage.viewed(source, tile.dims, parts)
        _, to = low.storage.load_of(low.storage.held(result, dims, tile.parts))
        low.writer.combine(kind, view, low.storage.viewed(to, dims, parts), tile.dims.index(dim), name)

    size = tile.parts[outer[-1]][1] if outer else 1
    full_parts, rest = divided(size, BLOCK) if most(size) > 2 * BLOCK else (0, size)
    if full_parts != 0:
        with low.writer.loop("b", full_parts) as b:
            emit_block(b * BLOCK, BLOCK)
    if rest != 0:
        with low.branch(as_expr(rest) >= 1):
            emit_block(as_expr(full_parts * BLOCK), rest)
