"""Tasks that a table assigns to workers: rows go to workers in turn; a worker does a row's tasks from left to right."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.attrs import Range
from tilewright.ir.core import Block, Op
from tilewright.ir.dtypes import i32
from tilewright.ir.tensors import numbers
from tilewright.lower.loop_lowering import LoopLowering

LEAST = -(1 << 31)


def lower_task_table(low: LoopLowering, op: Op, task: Callable[[], None]) -> None:
    """Lower a `tasks` operation that reads its task numbers from a table in memory, operand 0 of `op`. Emit a `tasks`
    loop over the rows of the table, which the runtime divides among workers, and inside it a loop over the entries of a
    row.

    Each entry is a flat task number; negative entries are skipped. `task()` is called once: it emits the body of a
    task. Meanwhile `low.expr` replaces the loop variables of `op` by expressions of the task number.
    """
    table = low.memory(op.operands[0])
    rows, columns = table.shape
    counts = numbers(tuple(-(-(low.expr(r.hi) - low.expr(r.lo)) // r.step) for r in op.attrs["ranges"]), "tasks")
    total = prod(max(0, n) for n in counts)
    row = Range.of(low.fresh("row"), 0, rows)
    inner = Block(())
    with low.writing(inner), low.loop("place", 0, columns) as place:
        entry = low.register(i32, name="entry")
        where = table.at((row.symbol, place))
        low.emit("load", (entry, where.buffer), over=(), at=(where.offset,))
        entry_number = low.symbol("entry", LEAST, -LEAST - 1)
        low.emit("read", (entry,), symbol=entry_number)
        with low.when(entry_number >= 0):
            number = low.symbol("task", 0, max(0, total - 1))
            low.emit("read", (entry,), symbol=number)
            with low.means(_task_variables(low, op.attrs["ranges"], counts, number)):
                task()
    low.emit("tasks", ranges=(row,), blocks=(inner,))


def _task_variables(
    low: LoopLowering, ranges: tuple[Range, ...], counts: tuple[int, ...], number: Expr
) -> dict[Symbol, Expr]:
    """Return {loop variable: expression of its value} for the task with the flat number `number`. `ranges` are the
    ranges of a `tasks` operation, and `counts` the number of iterations of each range. The last loop variable runs
    fastest. Example: for the ranges i in 0..2 and j in 0..3, number 4 -> i = 1, j = 1.
    """
    values: dict[Symbol, Expr] = {}
    for r, count in reversed(list(zip(ranges, counts, strict=True))):
        digit = number if r is ranges[0] else number % count
        values[r.symbol] = low.expr(r.lo) + r.step * digit
        number = number // max(1, count)
    return values
