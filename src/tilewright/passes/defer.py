"""The end of a round, woven into the beginning of the next.

A round of a loop with `overlap defer` has a body and an end. The loop becomes: for each round, the body, and between
its operations the end of the round before; after the last round, its end. In the first round there is no end to
do: its stores find no place (a flag says so), so that no second copy of the body is needed.

The end reads registers before the body overwrites them: each operation of the body that writes such a register is held
back until the end has read it.
"""

from __future__ import annotations

from math import prod

from tilewright.algebra.expr import Expr, Min, Symbol, symbol
from tilewright.algebra.expr_prove import is_nonneg
from tilewright.algebra.expr_rules import all_of
from tilewright.ir.attrs import Range
from tilewright.ir.core import Block, Op, Value, walk_block
from tilewright.ir.dtypes import i64
from tilewright.ir.formula import Formula
from tilewright.ir.loop_types import VectorType
from tilewright.ir.tensors import RegisterType
from tilewright.passes.clone import cloned
from tilewright.passes.loop_lowering import LoopLowering
from tilewright.passes.storage import Tiles, Vectors

SHARE = 0.75
"""The part of the body over which the end is spread."""
ELEMENTS = 1 << 16
"""Elements of the largest tensor in an end that is written out, without loops, between other operations."""


def deferred(low: LoopLowering, op: Op) -> None:
    """Lower a loop with `overlap defer`: the end (second block) of an iteration is interleaved with the body of the
    next.
    """
    ranges: tuple[Range, ...] = op.attrs["ranges"]
    limits = [(low.expr(r.lo), low.expr(r.hi)) for r in ranges]
    memory = {r.symbol: low.register(i64, name=f"last_{r.symbol.name}") for r in ranges}
    flag = low.register(i64, name="begun")
    low.emit("fill", (flag,), value=0)
    for register, (lo, _) in zip(memory.values(), limits, strict=True):
        low.emit("compute", (register,), formula=Formula.cast(i64, Formula("index", (), lo)))
    for value in _captured(low, op):
        low.emit("fill", (value,), value=0)  # the end of no round reads them once
    last = {
        r.symbol: symbol(low.fresh(f"last_{r.symbol.name}"), int(lo.lo), int(hi.hi) - 1)
        for r, (lo, hi) in zip(ranges, limits, strict=True)
    }
    begun = symbol(low.fresh("begun"), 0, 1)
    again: dict[Symbol, Expr] = {s: symbol(low.fresh(s.name), s.lower, s.upper) for s in last.values()}
    flush: list[Block] = []

    def nest(rest: tuple[Range, ...], known: dict[Symbol, Expr]) -> None:
        if rest:
            r = rest[0]
            with low.means(known):
                lo, hi = low.expr(r.lo), low.expr(r.hi)
                with low.loop(r.symbol.name, lo, hi, r.step) as value:
                    nest(rest[1:], {**known, r.symbol: value})
            return
        for variable, register in memory.items():
            low.emit("read", (register,), symbol=last[variable])
        low.emit("read", (flag,), symbol=begun)
        main, end = Block(()), Block(())
        before = low.meaning
        with low.writing(main), low.means(known):
            low.block(op.blocks[0])
            inner = low.meaning
        low.meaning = {**inner, **before}
        low.straight += 1
        with low.writing(end), low.means({r.symbol: last[r.symbol] for r in ranges}):
            low.block(op.blocks[1])
        low.straight -= 1
        low.meaning = before
        flush.append(Block((), cloned(low, end.ops, again)))
        _guard_stores(end, begun)
        woven(low.blocks[-1], main, end)
        for variable, register in memory.items():
            low.emit("compute", (register,), formula=Formula.cast(i64, Formula("index", (), known[variable])))
        low.emit("fill", (flag,), value=1)

    def last_end() -> None:
        for variable, register in memory.items():
            low.emit("read", (register,), symbol=again[last[variable]])
        low.blocks[-1].ops += flush[0].ops

    nest(ranges, {})
    if all(_has_rounds(lo, hi) for lo, hi in limits):
        last_end()
    else:  # there may have been no round at all
        started = symbol(low.fresh("begun"), 0, 1)
        low.emit("read", (flag,), symbol=started)
        with low.when(started >= 1):
            last_end()


def _has_rounds(lo: Expr, hi: Expr) -> bool:
    """True if a loop from `lo` to `hi` is proved to run at least once."""
    ends = hi.args if isinstance(hi, Min) else (hi,)
    return all(is_nonneg(end - lo - 1) for end in ends)


def can_defer(low: LoopLowering, op: Op) -> bool:
    """True if the end of the loop is small enough to be unrolled, and all register tensors it reads are in registers.

    A register tensor that was placed in memory would need a copy.
    """
    steps = [inner for inner in walk_block(op.blocks[1]) if inner.name != "view"]  # looking takes no instructions
    if any(_elements(low, value) > ELEMENTS for inner in steps for value in inner.operands):
        return False
    defined = {r for inner in walk_block(op.blocks[1]) for r in inner.results}
    for inner in walk_block(op.blocks[1]):
        for value in inner.operands:
            root = low.chain.root(value)
            if root in defined or not isinstance(root.type, RegisterType):
                continue
            storage = low.handles.get(root)
            if storage is None or not isinstance(storage, Tiles | Vectors):
                return False
    return True


def _elements(low: LoopLowering, value: Value) -> float:
    """Return the number of elements of a tensor, at most: open sizes count with their upper bound."""
    return prod(low.expr(e).hi for e in getattr(value.type, "shape", ()))


def _captured(low: LoopLowering, op: Op) -> list[Value]:
    """Return the registers defined outside the loop that the end of an iteration uses."""
    inside = {r for block in op.blocks for inner in walk_block(block) for r in inner.results}
    registers: dict[Value, None] = {}
    for inner in walk_block(op.blocks[1]):
        for value in inner.operands:
            handle = low.handles.get(value)
            if value not in inside and isinstance(handle, Tiles | Vectors):
                registers |= dict.fromkeys(handle.registers.values())
    return list(registers)


def _guard_stores(end: Block, begun: Symbol) -> None:
    """Add a condition to the global stores of the end: they happen only if there was an iteration before."""
    for op in walk_block(end):
        if op.name in ("store", "atomic") and op.operands[1].type.space == "global":
            condition = begun >= 1
            op.attrs["when"] = all_of(condition, op.attrs["when"]) if "when" in op.attrs else condition


def woven(target: Block, main: Block, end: Block) -> None:
    """Append the operations of `main` to `target` with those of `end` between them, spread over the first part of
    `main`.

    An operation that overwrites a register comes after the operations of `end` that read it.
    """
    sunk = _sink_fills(main.ops)
    reads: dict[Value, int] = {}
    for place, op in enumerate(end.ops):
        for value in _registers_read(op):
            reads[value] = place
    straight = next((place for place, op in enumerate(sunk) if op.blocks), len(sunk))
    done = 0
    total = len(end.ops)
    span = max(1, int(straight * SHARE))
    for place, op in enumerate(sunk):
        wanted = max((reads[v] + 1 for v in _registers_written(op) if v in reads), default=0)
        if place >= straight:
            wanted = total  # a loop: what is left of the end goes before it
        else:
            wanted = max(wanted, min(total, -(-total * max(0, place - span // 12) // span)))
        while done < min(wanted, total):
            target.ops.append(end.ops[done])
            done += 1
        target.ops.append(op)
    target.ops += end.ops[done:]


def _registers_read(op: Op) -> list[Value]:
    """Return the registers that a loop operation reads."""
    match op.name:
        case "store":
            operands = op.operands[:1]
        case "compute":
            operands = op.operands[1:]
        case "shuffle" | "load":
            operands = op.operands[1:]
        case _:
            operands = op.operands
    return [v for v in operands if isinstance(v.type, VectorType)]


def _registers_written(op: Op) -> list[Value]:
    """Return the registers that a loop operation, or one inside it, writes."""
    if op.name in ("load", "compute", "shuffle", "atom", "fill"):
        return [op.operands[0]]
    if op.name == "transpose":
        return list(op.operands)
    return [v for b in op.blocks for inner in walk_block(b) for v in _registers_written(inner)]


def _sink_fills(ops: list[Op]) -> list[Op]:
    """Return `ops` with each fill moved to right before the first operation that uses the filled register."""
    waiting: dict[Value, Op] = {}
    ordered: list[Op] = []
    for op in ops:
        if op.name == "fill":
            waiting[op.operands[0]] = op
            continue
        touched = [*op.operands, *(v for b in op.blocks for inner in walk_block(b) for v in inner.operands)]
        for value in dict.fromkeys(touched):
            if value in waiting:
                ordered.append(waiting.pop(value))
        ordered.append(op)
    return [*ordered, *waiting.values()]
