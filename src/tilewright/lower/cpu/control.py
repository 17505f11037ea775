"""For, tasks, if and while on CPUs; unrolling and peeling; channels if one worker is producer and consumer."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from tilewright.algebra.expr import Const, Expr, FloorDiv, Symbol, as_expr, symbol
from tilewright.algebra.expr_rules import linear, maximum
from tilewright.algebra.expr_use import has_division
from tilewright.analysis.flat_memory import PlacedMemory
from tilewright.analysis.in_bounds import facts_if_false, facts_if_true
from tilewright.errors import ProgramError
from tilewright.ir.attrs import Range
from tilewright.ir.core import Block, Op
from tilewright.ir.dtypes import i64
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import numbers
from tilewright.lower.cpu.clone import cloned
from tilewright.lower.cpu.delayed_epilogue import can_defer, lower_deferred
from tilewright.lower.cpu.elementwise import in_memory, load
from tilewright.lower.dynamic_tasks import lower_task_table
from tilewright.lower.loop_lowering import LoopLowering

MOST = 4096
"""The most iterations that `unroll` or `peel` may unroll."""


def for_(low: LoopLowering, op: Op) -> None:
    """Lower a `for` loop on a CPU. With `overlap defer`, the end (second block) of an iteration is interleaved with the
    next iteration if `can_defer` allows it. With `unroll` and constant limits, the loop is unrolled. Otherwise emit
    nested loops; the iterations that `peel` counts are emitted outside of the innermost loop.

    Emit nothing if the loop has no iteration for any value of the open sizes (known only at the call). Raise a
    ProgramError for more than 4096 unrolled iterations.
    """
    if low.open and any((low.expr(r.hi) - low.expr(r.lo)).hi <= 0 for r in op.attrs["ranges"]):
        return
    if op.attrs.get("overlap") == "defer" and can_defer(low, op):
        lower_deferred(low, op)
        return
    ranges = op.attrs["ranges"]
    if op.attrs.get("unroll") and all(isinstance(low.expr(e), Const) for r in ranges for e in (r.lo, r.hi)):
        _emit_unrolled(low, op, ranges)
        return
    _emit_nest(low, op, list(ranges), _peel_counts(low, op))


def _peel_counts(low: LoopLowering, op: Op) -> tuple[int, ...]:
    """Return (first, last), the numbers of iterations to peel at the start and at the end, from the loop's attribute
    `peel`: [2] -> (2, 0), [1, 3] -> (1, 3). Return () if the loop has no such attribute. Raise a ProgramError unless
    `peel` has one or two numbers from 0 to 4096.
    """
    if "peel" not in op.attrs:
        return ()
    counts = [int(low.expr(e)) for e in op.attrs["peel"]]
    if not 1 <= len(counts) <= 2 or any(not 0 <= n <= MOST for n in counts):
        raise ProgramError(
            f"peel {counts}: one or two numbers of rounds from 0 to {MOST}, of the first and of the last"
        )
    return counts[0], counts[1] if len(counts) > 1 else 0


def _range_length(values: range) -> int:
    """Return the number of elements of the range `values`; `len` fails for numbers beyond a machine word.

    >>> _range_length(range(0, 10**30, 3)) == 10**30 // 3 + 1, _range_length(range(5, 2))
    (True, 0)
    """
    return max(0, -(-(values.stop - values.start) // values.step))


def lower_blocks(low: LoopLowering, op: Op) -> None:
    """Lower all blocks of `op`, one after the other, into the block being written. Afterwards `low.meaning` is as
    before.
    """
    before = low.meaning
    for block in op.blocks:
        low.block(block)
    low.meaning = before


def _emit_unrolled(low: LoopLowering, op: Op, ranges: tuple[Range, ...]) -> None:
    """Emit the iterations of the loop `op` one after the other, without a loop. `ranges` are the ranges of `op`; their
    limits must be constants. Raise a ProgramError for more than 4096 iterations. If there are several, the body is
    lowered once and cloned for each.
    """
    limits = [range(int(low.expr(r.lo)), int(low.expr(r.hi)), r.step) for r in ranges]
    count = prod(map(_range_length, limits))
    if count > MOST:
        raise ProgramError(f"unroll: {count} rounds are more than {MOST}")
    points = list(product(*limits))
    if not points:
        return
    if len(points) == 1:
        with low.means({r.symbol: as_expr(v) for r, v in zip(ranges, points[0], strict=True)}):
            lower_blocks(low, op)
        return
    template, variables = Block(()), {}
    for r, numbers_of in zip(ranges, limits, strict=True):
        variables[r.symbol] = low.symbol(r.symbol.name, numbers_of[0], numbers_of[-1])
    with low.writing(template), low.means(variables):
        lower_blocks(low, op)
    for point in points:
        meanings = {variables[r.symbol]: as_expr(v) for r, v in zip(ranges, point, strict=True)}
        low.blocks[-1].ops += cloned(low, template.ops, meanings)


def _emit_nest(low: LoopLowering, op: Op, ranges: list[Range], peel: tuple[int, ...]) -> None:
    """Emit nested loops over `ranges` around the body of `op`. `peel` is (first, last): the numbers of iterations at
    the start and at the end that are emitted outside of the innermost loop; () for none.

    Peeling needs constant limits, or, in a program with open sizes (known only at the call), step 1; otherwise `peel`
    is ignored.
    """
    if not ranges:
        lower_blocks(low, op)
        return
    r, rest = ranges[0], ranges[1:]
    lo, hi = low.expr(r.lo), low.expr(r.hi)
    if peel and not rest and isinstance(lo, Const) and isinstance(hi, Const):
        values = range(lo.value, hi.value, r.step)
        count = _range_length(values)
        first = min(peel[0], count)
        last = max(count - peel[1], first)
        head, middle, tail = values[:first], values[first:last], values[last:]
        for v in head:
            _emit_iteration(low, op, r.symbol, as_expr(v), rest)
        if middle:
            _emit_loop(low, op, r, as_expr(middle[0]), as_expr(middle[-1] + 1), rest, ())
        for v in tail:
            _emit_iteration(low, op, r.symbol, as_expr(v), rest)
        return
    if peel and not rest and low.open and r.step == 1:
        _emit_peeled(low, op, r, lo, hi, peel)
        return
    _emit_loop(low, op, r, lo, hi, rest, peel)


def _emit_peeled(low: LoopLowering, op: Op, r: Range, lo: Expr, hi: Expr, peel: tuple[int, ...]) -> None:
    """Emit the body of `op` over the range `r`, from `lo` to `hi`, if these limits depend on open sizes (known only at
    the call). `peel` is (first, last), the numbers of iterations to peel.

    Each of the first iterations is emitted under the condition that it exists. Then come a loop over the iterations
    between, and a second loop over the last ones.
    """
    first, last = peel
    if has_division(hi):  # a symbol with a definition: proofs know its distance from the dividend
        hi = symbol(low.fresh("end"), definition=hi)
        low.emit("let", symbol=hi)
    for n in range(first):
        runs = lo + n < hi
        if isinstance(runs, Const) and runs.value:
            _emit_iteration(low, op, r.symbol, lo + n, [])
        else:
            with low.when(runs):
                _emit_iteration(low, op, r.symbol, lo + n, [])
    _emit_loop(low, op, r, lo + first, hi - last, [], ())
    if last:
        _emit_loop(low, op, r, maximum(lo + first, hi - last), hi, [], ())


def _emit_iteration(low: LoopLowering, op: Op, variable: Symbol, value: Expr, rest: list[Range]) -> None:
    """Emit one iteration of the loop `op`: loops over the ranges in `rest`, and inside them the body of `op`, with the
    loop symbol `variable` replaced by `value`.
    """
    with low.means({variable: value}):
        _emit_nest(low, op, rest, ())


def _emit_loop(
    low: LoopLowering, op: Op, r: Range, lo: Expr, hi: Expr, rest: list[Range], peel: tuple[int, ...]
) -> None:
    """Emit a loop over the range `r`, from `lo` to `hi` (exclusive), and inside it nested loops over the ranges in
    `rest` around the body of `op`. `peel` is (first, last), the numbers of iterations to peel from the innermost of
    `rest`; () for none. Nothing is emitted if constant limits leave no iteration.
    """
    if isinstance(lo, Const) and isinstance(hi, Const) and hi.value <= lo.value:
        return
    with low.loop(r.symbol.name, lo, hi, r.step) as value, low.means({r.symbol: value}):
        _emit_nest(low, op, rest, peel)


def tasks(low: LoopLowering, op: Op) -> None:
    """Lower `tasks` on a CPU: emit a `tasks` loop, which the runtime divides among workers. With `schedule table`, the
    task numbers come from a table. Raise a ProgramError for `overlap pingpong`, which needs waves that run at once.
    """
    if op.attrs.get("overlap") == "pingpong":
        raise ProgramError("overlap pingpong needs two halves of waves that run at once; this machine has one worker")
    if op.attrs.get("schedule") == "table":
        lower_task_table(low, op, lambda: lower_blocks(low, op))
        return
    ranges = tuple(
        Range.of(low.fresh(r.symbol.name), low.expr(r.lo), low.expr(r.hi), r.step) for r in op.attrs["ranges"]
    )
    inner = Block(())
    meanings = {r.symbol: n.symbol for r, n in zip(op.attrs["ranges"], ranges, strict=True)}
    with low.writing(inner), low.means(meanings):
        lower_blocks(low, op)
    low.emit("tasks", ranges=ranges, schedule=op.attrs.get("schedule"), blocks=(inner,))


def if_(low: LoopLowering, op: Op) -> None:
    """Lower `if` on a CPU: emit an `if` with the lowered blocks. If the condition is constant, emit only the operations
    of the block that is taken, without an `if`. Inside a block, open sizes (known only at the call) get the range that
    the condition leaves them.
    """
    when = low.expr(op.attrs["when"])
    before = low.meaning
    if isinstance(when, Const):
        chosen = op.blocks[:1] if when.value else op.blocks[1:]
        for block in chosen:
            low.block(block)
        low.meaning = before
        return
    blocks = []
    for block, facts in zip(op.blocks, (facts_if_true(when), facts_if_false(when)), strict=False):
        inner = Block(())
        with low.writing(inner):
            for fact in facts if low.open else ():
                _narrow_open_size(low, fact)
            low.block(block)
        low.meaning = before
        blocks.append(inner)
    low.emit("if", when=when, blocks=tuple(blocks))


def _narrow_open_size(low: LoopLowering, fact: Expr) -> None:
    """Narrow the range of an open size (known only at the call) by `fact`, an expression that is at least 0 in the
    current branch. Example: W//14 - 1 >= 0 means that W is at least 14.

    Emit a `let` of a new symbol with the narrowed range; `low.expr` replaces the size by this symbol from here on. Do
    nothing unless `fact` bounds one open size alone, and more tightly than before.
    """
    constant, terms = linear(fact)
    if len(terms) != 1 or terms[0][1] != 1:
        return
    term, least = terms[0][0], -constant
    quotient = term
    if isinstance(quotient, FloorDiv) and isinstance(quotient.right, Const):
        term, least = quotient.left, least * quotient.right.value
    if not isinstance(term, Symbol) or least <= term.lo or all(low.expr(s) is not term for s in low.open):
        return
    named = symbol(low.fresh(term.name), least, term.upper, definition=term)
    low.emit("let", symbol=named)
    low.meaning = {**low.meaning, **{s: named for s in low.open if low.expr(s) is term}}


def while_(low: LoopLowering, op: Op) -> None:
    """Lower `while` on a CPU: emit a loop that runs as long as the operand, one number in a register or in memory, is
    not zero. The number is read before the loop and at the end of each iteration.
    """
    flag = low.handles[op.operands[0]]
    register = low.register(i64)

    def read_flag() -> None:
        raw = low.register(flag.dtype)
        load(low, raw, (), in_memory(low, flag).at(()), 0)
        low.emit("compute", (register, raw), formula=Formula.cast(i64, Formula.operand(1)))

    read_flag()
    inner = Block(())
    before = low.meaning
    with low.writing(inner):
        low.block(op.blocks[0])
        read_flag()
    low.meaning = before
    low.emit("while", (register,), blocks=(inner,))


def barrier(low: LoopLowering, op: Op) -> None:
    """Lower `barrier` to nothing: on a CPU one worker does each operation for all threads before it begins the next
    one.
    """


def edge(low: LoopLowering, op: Op) -> None:
    """Lower `edge`, which keeps an assembler from moving arithmetic, to nothing: a CPU orders arithmetic itself."""


# -- channels of one role: stages taken in turn -----------------------------------------------------------------


def channel(low: LoopLowering, op: Op) -> None:
    """Lower `channel` (a ring of stages in memory) on a CPU: emit two counters that start at 0, for the stages acquired
    and the stages waited for so far. Record them in `low.handles` as (`op`, {"acquire" or "wait": counter register}).
    """
    counters = {}
    for side in ("acquire", "wait"):
        counters[side] = low.register(i64, name=side)
        low.emit("fill", (counters[side],), value=0)
    low.handles[op.results[0]] = (op, counters)


def _take_stage(low: LoopLowering, op: Op, side: str) -> None:
    """Bind the results of `op` to the memory of the next stage of a channel, operand 0: stage number counter modulo
    number of stages. `side` is the name of `op`, "acquire" or "wait"; each has a counter. Emit the read of the counter
    and its increment.
    """
    handle: Any = low.handles[op.operands[0]]
    channel_op, counters = handle
    stages = numbers((channel_op.attrs["stages"],), "stages")[0]
    number = low.symbol("fill", 0, 1 << 40)
    low.emit("read", (counters[side],), symbol=number)
    increment = Formula("add", (Formula.operand(1), Formula.number(1)))
    low.emit("compute", (counters[side], counters[side]), formula=increment)
    for value, tensor in zip(op.results, channel_op.operands, strict=True):
        ring_memory: PlacedMemory = low.handles[tensor]
        start = ring_memory.start + ring_memory.strides[0] * (number % stages)
        low.handles[value] = PlacedMemory(
            ring_memory.buffer,
            ring_memory.dtype,
            ring_memory.shape[1:],
            ring_memory.strides[1:],
            ring_memory.swizzle,
            start,
        )


def acquire(low: LoopLowering, op: Op) -> None:
    """Lower `acquire` on a CPU: bind the results of `op` to the memory of the stage that is filled next, and emit the
    increment of the channel's counter. One worker fills and reads all stages, so nothing is waited for.
    """
    _take_stage(low, op, "acquire")


def wait(low: LoopLowering, op: Op) -> None:
    """Lower `wait` on a CPU: bind the results of `op` to the memory of the stage that is read next, and emit the
    increment of the channel's counter. One worker fills and reads all stages, so nothing is waited for.
    """
    _take_stage(low, op, "wait")


def ignore_handover(low: LoopLowering, op: Op) -> None:
    """Lower `commit` or `release` of a channel's stage to nothing: one worker fills and reads all stages in program
    order.
    """
