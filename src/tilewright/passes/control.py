"""For, tasks, if, while; unrolling and peeling; channels where one worker is producer and consumer."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from tilewright.algebra.expr import Const, Expr, FloorDiv, Symbol, as_expr, symbol
from tilewright.algebra.expr_rules import linear, maximum
from tilewright.algebra.expr_use import has_division
from tilewright.check.inside import fails, holds
from tilewright.errors import ProgramError
from tilewright.ir.attrs import Range
from tilewright.ir.core import Block, Op
from tilewright.ir.dtypes import i64
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import numbers
from tilewright.passes.clone import cloned
from tilewright.passes.dealing import dealt
from tilewright.passes.defer import can_defer, deferred
from tilewright.passes.elementwise import in_memory, load
from tilewright.passes.loop_lowering import LoopLowering
from tilewright.passes.places import PlacedMemory

MOST = 4096
"""Rounds that `unroll` and `peel` may write out."""


def for_(low: LoopLowering, op: Op) -> None:
    """Lower a loop: kept, unrolled, peeled or deferred; nothing is emitted if it has no iterations for any open
    size.
    """
    if low.open and any((low.expr(r.hi) - low.expr(r.lo)).hi <= 0 for r in op.attrs["ranges"]):
        return
    if op.attrs.get("overlap") == "defer" and can_defer(low, op):
        deferred(low, op)
        return
    ranges = op.attrs["ranges"]
    if op.attrs.get("unroll") and all(isinstance(low.expr(e), Const) for r in ranges for e in (r.lo, r.hi)):
        _unrolled(low, op, ranges)
        return
    _nested(low, op, list(ranges), _peel_counts(low, op))


def _peel_counts(low: LoopLowering, op: Op) -> tuple[int, ...]:
    """Return (first iterations to peel, last iterations to peel) as `peel` says; () without `peel`.

    Raise a ProgramError unless these are one or two numbers from 0 to MOST.
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
    """Return the number of elements of a range; `len` fails for numbers beyond a machine word.

    >>> _range_length(range(0, 10**30, 3)) == 10**30 // 3 + 1, _range_length(range(5, 2))
    (True, 0)
    """
    return max(0, -(-(values.stop - values.start) // values.step))


def body(low: LoopLowering, op: Op) -> None:
    """Lower all blocks of an iteration, one after the other."""
    before = low.meaning
    for block in op.blocks:
        low.block(block)
    low.meaning = before


def _unrolled(low: LoopLowering, op: Op, ranges: tuple[Range, ...]) -> None:
    """Emit an unrolled loop: its body is lowered once and cloned for each iteration.

    Raise a ProgramError for more than MOST iterations.
    """
    limits = [range(int(low.expr(r.lo)), int(low.expr(r.hi)), r.step) for r in ranges]
    count = prod(map(_range_length, limits))
    if count > MOST:
        raise ProgramError(f"unroll: {count} rounds are more than {MOST}")
    rounds = list(product(*limits))
    if len(rounds) == 1:
        with low.means({r.symbol: as_expr(v) for r, v in zip(ranges, rounds[0], strict=True)}):
            body(low, op)
        return
    one, variables = Block(()), {}
    for r, numbers_of in zip(ranges, limits, strict=True):
        variables[r.symbol] = low.symbol(r.symbol.name, numbers_of[0], numbers_of[-1])
    with low.writing(one), low.means(variables):
        body(low, op)
    for point in rounds:
        meanings = {variables[r.symbol]: as_expr(v) for r, v in zip(ranges, point, strict=True)}
        low.blocks[-1].ops += cloned(low, one.ops, meanings)


def _nested(low: LoopLowering, op: Op, ranges: list[Range], peel: tuple[int, ...]) -> None:
    """Emit the loops over `ranges`, nested; iterations of the innermost one may be peeled off at both ends."""
    if not ranges:
        body(low, op)
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
            _iteration(low, op, r.symbol, as_expr(v), rest)
        if middle:
            _loop(low, op, r, as_expr(middle[0]), as_expr(middle[-1] + 1), rest, ())
        for v in tail:
            _iteration(low, op, r.symbol, as_expr(v), rest)
        return
    if peel and not rest and low.open and r.step == 1:
        _peeled(low, op, r, lo, hi, peel)
        return
    _loop(low, op, r, lo, hi, rest, peel)


def _peeled(low: LoopLowering, op: Op, r: Range, lo: Expr, hi: Expr, peel: tuple[int, ...]) -> None:
    """Emit a loop whose limits are known only at the call, with the first iterations peeled, each under a condition.

    The last iterations are a second loop, so that their code is emitted once.
    """
    first, last = peel
    if has_division(hi):  # a name, of which proofs know how far it is from what was divided
        hi = symbol(low.fresh("end"), definition=hi)
        low.emit("let", symbol=hi)
    for n in range(first):
        runs = lo + n < hi
        if isinstance(runs, Const) and runs.value:
            _iteration(low, op, r.symbol, lo + n, [])
        else:
            with low.when(runs):
                _iteration(low, op, r.symbol, lo + n, [])
    _loop(low, op, r, lo + first, hi - last, [], ())
    if last:
        _loop(low, op, r, maximum(lo + first, hi - last), hi, [], ())


def _iteration(low: LoopLowering, op: Op, variable: Symbol, value: Expr, rest: list[Range]) -> None:
    """Emit one iteration, with `variable` replaced by `value`, and the loops over `rest` inside it."""
    with low.means({variable: value}):
        _nested(low, op, rest, ())


def _loop(low: LoopLowering, op: Op, r: Range, lo: Expr, hi: Expr, rest: list[Range], peel: tuple[int, ...]) -> None:
    """Emit a loop over `r` from `lo` to `hi`, and the loops over `rest` inside it; nothing if it is empty."""
    if isinstance(lo, Const) and isinstance(hi, Const) and hi.value <= lo.value:
        return
    with low.loop(r.symbol.name, lo, hi, r.step) as value, low.means({r.symbol: value}):
        _nested(low, op, rest, peel)


def tasks(low: LoopLowering, op: Op) -> None:
    """Lower `tasks` to a loop over the tasks of a worker; the runtime says which worker runs it.

    No barrier is needed between tasks that have shared memory: each operation is done for all waves before the next one
    is.
    """
    if op.attrs.get("overlap") == "pingpong":
        raise ProgramError("overlap pingpong needs two halves of waves that run at once; this machine has one worker")
    if op.attrs.get("schedule") == "table":
        dealt(low, op, lambda: body(low, op))
        return
    ranges = tuple(
        Range.of(low.fresh(r.symbol.name), low.expr(r.lo), low.expr(r.hi), r.step) for r in op.attrs["ranges"]
    )
    inner = Block(())
    meanings = {r.symbol: n.symbol for r, n in zip(op.attrs["ranges"], ranges, strict=True)}
    with low.writing(inner), low.means(meanings):
        body(low, op)
    low.emit("tasks", ranges=ranges, schedule=op.attrs.get("schedule"), blocks=(inner,))


def if_(low: LoopLowering, op: Op) -> None:
    """Lower a branch; one whose condition is known becomes the operations of its block."""
    when = low.expr(op.attrs["when"])
    before = low.meaning
    if isinstance(when, Const):
        chosen = op.blocks[:1] if when.value else op.blocks[1:]
        for block in chosen:
            low.block(block)
        low.meaning = before
        return
    blocks = []
    for block, facts in zip(op.blocks, (holds(when), fails(when)), strict=False):
        inner = Block(())
        with low.writing(inner):
            for fact in facts if low.open else ():
                _narrow_open_size(low, fact)
            low.block(block)
        low.meaning = before
        blocks.append(inner)
    low.emit("if", when=when, blocks=tuple(blocks))


def _narrow_open_size(low: LoopLowering, fact: Expr) -> None:
    """Give an open size a name with a tighter range inside a branch, if `fact` bounds this size alone, as W//14 >= 1
    does.
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
    """Lower a loop that runs while a number in a register is not zero."""
    flag = low.handles[op.operands[0]]
    register = low.register(i64)

    def look() -> None:
        raw = low.register(flag.dtype)
        load(low, raw, (), in_memory(low, flag).at(()), 0)
        low.emit("compute", (register, raw), formula=Formula.cast(i64, Formula.operand(1)))

    look()
    inner = Block(())
    before = low.meaning
    with low.writing(inner):
        low.block(op.blocks[0])
        look()
    low.meaning = before
    low.emit("while", (register,), blocks=(inner,))


def barrier(low: LoopLowering, op: Op) -> None:
    """Emit nothing: operations are done for all threads one after another."""


def edge(low: LoopLowering, op: Op) -> None:
    """Emit nothing: CPUs order arithmetic by themselves."""


# -- channels of one role: stages taken in turn -----------------------------------------------------------------


def channel(low: LoopLowering, op: Op) -> None:
    """Emit two counters for a channel: the next fill to acquire, and the next to wait for."""
    counters = {}
    for side in ("acquire", "wait"):
        counters[side] = low.register(i64, name=side)
        low.emit("fill", (counters[side],), value=0)
    low.handles[op.results[0]] = (op, counters)


def _take_stage(low: LoopLowering, op: Op, side: str) -> None:
    """Bind the results of `acquire` or `wait` (`side`) to the next stage of the channel, and advance its counter."""
    handle: Any = low.handles[op.operands[0]]
    declared, counters = handle
    stages = numbers((declared.attrs["stages"],), "stages")[0]
    number = low.symbol("fill", 0, 1 << 40)
    low.emit("read", (counters[side],), symbol=number)
    one = Formula("add", (Formula.operand(1), Formula.number(1)))
    low.emit("compute", (counters[side], counters[side]), formula=one)
    for value, tensor in zip(op.results, declared.operands, strict=True):
        whole: PlacedMemory = low.handles[tensor]
        start = whole.start + whole.strides[0] * (number % stages)
        low.handles[value] = PlacedMemory(
            whole.buffer, whole.dtype, whole.shape[1:], whole.strides[1:], whole.swizzle, start
        )


def acquire(low: LoopLowering, op: Op) -> None:
    """Bind the results of `acquire` to the stage of the next fill."""
    _take_stage(low, op, "acquire")


def wait(low: LoopLowering, op: Op) -> None:
    """Bind the results of `wait` to the stage of the next fill."""
    _take_stage(low, op, "wait")


def handed(low: LoopLowering, op: Op) -> None:
    """Emit nothing for commit and release: one worker does everything in order."""
