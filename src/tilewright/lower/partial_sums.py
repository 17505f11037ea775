"""Long sums of floats by partial sums: an accumulator adds up one block of elements; f64 adds up the blocks.

    for r in 0..40000 {              wide = 0                           # f64
      total += x[r]                  for b in 0..157 {
    }                                  part = 0                         # f32
                                       for r in 0..min(256, 40000 - 256*b) { part += x[256*b + r] }
                                       wide += part
                                     }
                                     total = wide

Each addition rounds by up to half a unit in the last place of the sum so far. With one accumulator, small terms would
be lost beside a large sum; a block loses at most its own roundings, however many blocks there are. The cost is a
conversion and an addition per block.

A scan has the same blocks: each adds the total of all earlier blocks to its own running total, at every element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tilewright.algebra.expr import Expr, as_expr
from tilewright.algebra.expr_rules import minimum
from tilewright.analysis.flat_memory import Size
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType, f32, f64
from tilewright.ir.formula import Formula
from tilewright.lower.loop_lowering import LoopLowering

BLOCK = 256
"""Elements of a block of a sum: few enough to lose little, enough that a block's end costs little."""
RUNNING_BLOCK = 64
"""Elements of a block of a scan: fewer, because every partial sum is a result."""
_SUM = Formula("add", (Formula.operand(2), Formula.operand(1)))


def accumulate(
    low: LoopLowering,
    totals: Sequence[tuple[Op, Value]],
    limits: tuple[Size, Size],
    step: Callable[[Expr, list[Value]], None],
) -> None:
    """Emit a loop over `r` from limits[0] to limits[1] (exclusive) that combines element `r` with all accumulators.

    `totals` are pairs (reduction operation, accumulator register); the caller has set the registers to start values.
    After the loop they have the totals. `step(r, accumulators)` is called once and emits the loop body; `accumulators`
    are registers in the order of `totals`.

    A sum of floats that may have more than 256 elements is computed in blocks of 256. `step` then gets an accumulator
    that starts at 0 in each block, and another register (f64 for f32, otherwise of the same type) adds up the blocks.
    """
    first, end = (as_expr(n) for n in limits)
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


def accumulate_scan(
    low: LoopLowering,
    op: Op,
    totals: list[Value],
    count: Size,
    step: Callable[[Expr, Sequence[Value | None], list[Value]], None],
) -> list[Value]:
    """Emit a loop over `r` from 0 to `count` (exclusive) for the scan `op`, and return registers with the final totals.

    `totals` are registers with the neutral element, one for each row that is scanned at once. `step(r, bases, totals)`
    is called once and emits the loop body: it scans element `r` of each row into the running total of the row.

    A running sum of floats that may have more than 64 elements is computed in blocks of 64. `step` then gets the
    running totals of the current block, and in `bases` registers with the sums of all earlier blocks. For all other
    scans, `bases` is a list of None, and the result is `totals`.
    """
    iterations = as_expr(count)
    if not _is_long_sum(op, totals[0], iterations, RUNNING_BLOCK):
        with low.loop("r", 0, iterations) as r:
            step(r, [None] * len(totals), totals)
        return totals
    kind = totals[0].type.dtype
    wide = [_converted(low, total, _wider(total)) for total in totals]
    with _blocks(low, iterations, RUNNING_BLOCK) as (start, size):
        bases, parts = [_converted(low, w, kind) for w in wide], [_zero(low, total) for total in totals]
        with low.loop("r", 0, size) as r:
            step(start + r, bases, parts)
        for sum_of_blocks, part in zip(wide, parts, strict=True):
            _add(low, sum_of_blocks, part)
    return [_converted(low, w, kind) for w in wide]


@contextmanager
def _blocks(low: LoopLowering, iterations: Expr, block: int) -> Iterator[tuple[Expr, Expr]]:
    """Emit a loop over blocks of `block` iterations around the operations written within this context. Yield (first
    iteration of the block, number of iterations in the block) as expressions.

    `iterations` is the number of iterations of all blocks: of 600 in blocks of 256, the last block has 88.
    """
    with low.loop("b", 0, (iterations + block - 1) // block) as b:
        yield block * b, minimum(block, iterations - block * b)


def _is_long_sum(op: Op, total: Value, iterations: Expr, block: int) -> bool:
    """True if the reduction `op` is a sum, its accumulator `total` has a float type, and the number of elements,
    `iterations`, may be larger than `block`.
    """
    return bool(op.attrs["with"] == "sum" and total.type.dtype.is_float and iterations.hi > block)


def _wider(total: Value) -> DType:
    """Return the element type in which the sums of blocks are added up: f64 if the accumulator `total` is f32, else the
    type of `total`.
    """
    kind: DType = total.type.dtype
    return f64 if kind is f32 else kind


def _zero(low: LoopLowering, like: Value) -> Value:
    """Emit the allocation of a register with the type of `like`, and its fill with zeros; return the register."""
    value: Value = low.emit("alloc", type=like.type).results[0]
    low.emit("fill", (value,), value=0)
    return value


def _converted(low: LoopLowering, value: Value, kind: DType) -> Value:
    """Emit the conversion of the elements of `value` to the type `kind`, into a new register; return that register."""
    result: Value = low.emit("alloc", type=type(value.type)(kind, value.type.shape)).results[0]
    low.emit("compute", (result, value), formula=Formula.cast(kind, Formula.operand(1)))
    return result


def _add(low: LoopLowering, wide: Value, part: Value) -> None:
    """Emit wide += part, for two registers of the same shape; `part` is first converted to the element type of
    `wide`.
    """
    low.emit("compute", (wide, wide, _converted(low, part, wide.type.dtype)), formula=_SUM)
