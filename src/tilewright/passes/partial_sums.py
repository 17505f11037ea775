"""Long sums of floats by partial sums: an accumulator adds up one block of elements; f64 adds up the blocks.

    for r in 0..40000 {              wide = 0                           # f64
      total += x[r]                  for b in 0..157 {
    }                                  part = 0                         # f32
                                       for r in 0..min(256, 40000 - 256*b) { part += x[256*b + r] }
                                       wide += part
                                     }
                                     total = wide

Each addition rounds by up to half a unit of the sum so far. One accumulator for everything would lose what is small
beside the sum of everything; a block loses at most its own roundings, however many blocks there are. It costs a
conversion and an addition a block.

A scan has the same blocks: each adds the total of all before it to its own running total, at every element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tilewright.algebra.expr import Expr, as_expr
from tilewright.algebra.expr_rules import minimum
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType, f32, f64
from tilewright.ir.formula import Formula
from tilewright.passes.loop_lowering import LoopLowering
from tilewright.passes.places import Size

BLOCK = 256
"""Rounds of a block of a sum: few enough to lose little, enough that a block's end costs little."""
RUNNING_BLOCK = 64
"""Rounds of a block of a scan, whose first results have no others to hide their error behind."""
_SUM = Formula("add", (Formula.operand(2), Formula.operand(1)))


def accumulated(
    low: LoopLowering,
    totals: Sequence[tuple[Op, Value]],
    rounds: tuple[Size, Size],
    step: Callable[[Expr, list[Value]], None],
) -> None:
    """Emit a loop of `step(r, accumulators)` for r in rounds, which combines one more element with each accumulator.

    `totals` are (the operation, its accumulator); sums of floats that are long get an accumulator of their own a block.
    """
    first, end = (as_expr(n) for n in rounds)
    accumulators = [total for _, total in totals]
    sums = [total for op, total in totals if _is_long_sum(op, total, end - first, BLOCK)]
    if not sums:
        with low.loop("r", first, end) as r:
            step(r, accumulators)
        return
    wide = {total: _converted(low, total, _wider(total)) for total in sums}
    with _blocks(low, end - first, BLOCK) as (start, count):
        partial = {total: _zero(low, total) for total in sums}
        with low.loop("r", 0, count) as r:
            step(first + start + r, [partial.get(a, a) for a in accumulators])
        for total, part in partial.items():
            _add(low, wide[total], part)
    for total, sum_of_blocks in wide.items():
        low.emit("compute", (total, sum_of_blocks), formula=Formula.cast(total.type.dtype, Formula.operand(1)))


def running(
    low: LoopLowering,
    op: Op,
    totals: list[Value],
    count: Size,
    step: Callable[[Expr, Sequence[Value | None], list[Value]], None],
) -> list[Value]:
    """Emit a loop of `step(r, bases, totals)` for r below count, which combines one more element with each total.

    Totals come filled with what changes nothing. A running total is that of both: its base is the total of all blocks
    before, None where there are no blocks. Returns registers with the totals of everything.
    """
    rounds = as_expr(count)
    if not _is_long_sum(op, totals[0], rounds, RUNNING_BLOCK):
        with low.loop("r", 0, rounds) as r:
            step(r, [None] * len(totals), totals)
        return totals
    kind = totals[0].type.dtype
    wide = [_converted(low, total, _wider(total)) for total in totals]
    with _blocks(low, rounds, RUNNING_BLOCK) as (start, size):
        bases, parts = [_converted(low, w, kind) for w in wide], [_zero(low, total) for total in totals]
        with low.loop("r", 0, size) as r:
            step(start + r, bases, parts)
        for sum_of_blocks, part in zip(wide, parts, strict=True):
            _add(low, sum_of_blocks, part)
    return [_converted(low, w, kind) for w in wide]


@contextmanager
def _blocks(low: LoopLowering, rounds: Expr, block: int) -> Iterator[tuple[Expr, Expr]]:
    """Emit a loop over blocks of rounds around what is written within; yield (first round, rounds) of a block."""
    with low.loop("b", 0, (rounds + block - 1) // block) as b:
        yield block * b, minimum(block, rounds - block * b)


def _is_long_sum(op: Op, total: Value, rounds: Expr, block: int) -> bool:
    """True if an operation adds floats, in more rounds than a block has."""
    return bool(op.attrs["with"] == "sum" and total.type.dtype.is_float and rounds.hi > block)


def _wider(total: Value) -> DType:
    """Return the type in which blocks are added up: f64."""
    kind: DType = total.type.dtype
    return f64 if kind is f32 else kind


def _zero(low: LoopLowering, like: Value) -> Value:
    """Return a register of the type of another, filled with zeros."""
    value: Value = low.emit("alloc", type=like.type).results[0]
    low.emit("fill", (value,), value=0)
    return value


def _converted(low: LoopLowering, value: Value, kind: DType) -> Value:
    """Return a new register with the elements of another in the type `kind`."""
    result: Value = low.emit("alloc", type=type(value.type)(kind, value.type.shape)).results[0]
    low.emit("compute", (result, value), formula=Formula.cast(kind, Formula.operand(1)))
    return result


def _add(low: LoopLowering, wide: Value, part: Value) -> None:
    """Emit wide += part, converted."""
    low.emit("compute", (wide, wide, _converted(low, part, wide.type.dtype)), formula=_SUM)
