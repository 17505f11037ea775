"""Delayed epilogues: the end of an iteration, interleaved with the beginning of the next one.

An iteration of a loop with `overlap defer` has a body and an end. The emitted loop does, in each iteration, the body
and between its operations the end of the iteration before; after the last iteration comes its end. In the first
iteration there is no end to do: a flag disables the stores of that end, so that the body needs no second copy.

The end reads registers before the body overwrites them: an operation of the body that writes such a register is
delayed until the end has read it.
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
from tilewright.lower.cpu.clone import cloned
from tilewright.lower.cpu.register_forms import Tiles, Vectors
from tilewright.lower.loop_lowering import LoopLowering

SHARE = 0.75
"""The fraction of the body over which the operations of the end are spread."""
ELEMENTS = 1 << 16
"""The most elements of a tensor in an end that is unrolled between other operations."""


def lower_deferred(low: LoopLowering, op: Op) -> None:
    """Lower the loop `op` with `overlap defer`: the end (second block) of each iteration is interleaved with the body
    (first block) of the next iteration. The end of the last iteration is emitted after the loop. In the first
    iteration, a flag disables the stores of the end, because no iteration precedes it.
    """
    ranges: tuple[Range, ...] = op.attrs["ranges"]
    limits = [(low.expr(r.lo), low.expr(r.hi)) for r in ranges]
    last_values = {r.symbol: low.register(i64, name=f"last_{r.symbol.name}") for r in ranges}
    has_begun = low.register(i64, name="begun")
    low.emit("fill", (has_begun,), value=0)
    for register, (lo, _) in zip(last_values.values(), limits, strict=True):
        low.emit("compute", (register,), formula=Formula.cast(i64, Formula("index", (), lo)))
    for value in _captured(low, op):
        low.emit("fill", (value,), value=0)  # the disabled end in the first iteration reads them
    last = {
        r.symbol: symbol(low.fresh(f"last_{r.symbol.name}"), int(lo.lo), int(hi.hi) - 1)
        for r, (lo, hi) in zip(ranges, limits, strict=True)
    }
    begun = symbol(low.fresh("begun"), 0, 1)
    fresh_symbols: dict[Symbol, Expr] = {s: symbol(low.fresh(s.name), s.lower, s.upper) for s in last.values()}
    last_ends: list[Block] = []

    def nest(rest: tuple[Range, ...], known: dict[Symbol, Expr]) -> None:
        if rest:
            r = rest[0]
            with low.means(known):
                lo, hi = low.expr(r.lo), low.expr(r.hi)
                with low.loop(r.symbol.name, lo, hi, r.step) as value:
                    nest(rest[1:], {**known, r.symbol: value})
            return
        for variable, register in last_values.items():
            low.emit("read", (register,), symbol=last[variable])
        low.emit("read", (has_begun,), symbol=begun)
        body, end = Block(()), Block(())
        before = low.meaning
        with low.writing(body), low.means(known):
            low.block(op.blocks[0])
            inner = low.meaning
        low.meaning = {**inner, **before}
        low.straight += 1
        with low.writing(end), low.means({r.symbol: last[r.symbol] for r in ranges}):
            low.block(op.blocks[1])
        low.straight -= 1
        low.meaning = before
        last_ends.append(Block((), cloned(low, end.ops, fresh_symbols)))
        _guard_stores(end, begun)
        woven(low.blocks[-1], body, end)
        for variable, register in last_values.items():
            low.emit("compute", (register,), formula=Formula.cast(i64, Formula("index", (), known[variable])))
        low.emit("fill", (has_begun,), value=1)

    def emit_last_end() -> None:
        for variable, register in last_values.items():
            low.emit("read", (register,), symbol=fresh_symbols[last[variable]])
        low.blocks[-1].ops += last_ends[0].ops

    nest(ranges, {})
    if all(_has_iteration(lo, hi) for lo, hi in limits):
        emit_last_end()
    else:  # there may have been no iteration
        started = symbol(low.fresh("begun"), 0, 1)
        low.emit("read", (has_begun,), symbol=started)
        with low.when(started >= 1):
            emit_last_end()


def _has_iteration(lo: Expr, hi: Expr) -> bool:
    """True if a loop from `lo` to `hi` (exclusive) is proved to have at least one iteration."""
    ends = hi.args if isinstance(hi, Min) else (hi,)
    return all(is_nonneg(end - lo - 1) for end in ends)


def can_defer(low: LoopLowering, op: Op) -> bool:
    """True if the end (second block) of the loop `op` can be interleaved with the next iteration. Tensors that the end
    uses must have at most 65536 elements. Register tensors from outside the end must be in vector or tile registers,
    not in scratch memory.
    """
    steps = [inner for inner in walk_block(op.blocks[1]) if inner.name != "view"]  # views take no instructions
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
    """Return the largest number of elements that the tensor `value` can have, with the upper bounds of open sizes
    (known only at the call); infinity if a size has no upper bound.
    """
    return prod(low.expr(e).hi for e in getattr(value.type, "shape", ()))


def _captured(low: LoopLowering, op: Op) -> list[Value]:
    """Return the vector and tile registers that the end (second block) of the loop `op` uses, and that are allocated
    outside the loop.
    """
    inside = {r for block in op.blocks for inner in walk_block(block) for r in inner.results}
    registers: dict[Value, None] = {}
    for inner in walk_block(op.blocks[1]):
        for value in inner.operands:
            handle = low.handles.get(value)
            if value not in inside and isinstance(handle, Tiles | Vectors):
                registers |= dict.fromkeys(handle.registers.values())
    return list(registers)


def _guard_stores(end: Block, begun: Symbol) -> None:
    """Add the condition `begun` >= 1 to all stores and atomics to global memory in the block `end`, in place. `begun`
    is 0 in the first iteration, which has no iteration before it.
    """
    for op in walk_block(end):
        if op.name in ("store", "atomic") and op.operands[1].type.space == "global":
            condition = begun >= 1
            op.attrs["when"] = all_of(condition, op.attrs["when"]) if "when" in op.attrs else condition


def woven(target: Block, main: Block, end: Block) -> None:
    """Append the operations of the blocks `main` and `end` to `target`, interleaved; the order within `end` is kept.
    Fills of registers in `main` move down to just before the first use of the register.

    The operations of `end` are spread over the first 75 % of `main`, and all come before the first loop or branch in
    `main`. An operation of `end` that reads a register, itself or in its blocks, comes before the operation of `main`
    that overwrites the register.
    """
    ordered = _sink_fills(main.ops)
    reads: dict[Value, int] = {}
    for place, op in enumerate(end.ops):
        for value in _registers_read(op):
            reads[value] = place
    straight_count = next((place for place, op in enumerate(ordered) if op.blocks), len(ordered))
    done = 0
    total = len(end.ops)
    span = max(1, int(straight_count * SHARE))
    for place, op in enumerate(ordered):
        due = max((reads[v] + 1 for v in _registers_written(op) if v in reads), default=0)
        if place >= straight_count:
            due = total  # a loop: what is left of the end goes before it
        else:
            due = max(due, min(total, -(-total * max(0, place - span // 12) // span)))
        while done < min(due, total):
            target.ops.append(end.ops[done])
            done += 1
        target.ops.append(op)
    target.ops += end.ops[done:]


def _registers_read(op: Op) -> list[Value]:
    """Return the registers that the loop operation `op` reads, or that operations inside its blocks read."""
    match op.name:
        case "store":
            operands = op.operands[:1]
        case "compute":
            operands = op.operands[1:]
        case "shuffle" | "load":
            operands = op.operands[1:]
        case _:
            operands = op.operands
    inside = [v for b in op.blocks for inner in walk_block(b) for v in _registers_read(inner)]
    return [*(v for v in operands if isinstance(v.type, VectorType)), *inside]


def _registers_written(op: Op) -> list[Value]:
    """Return the registers that the loop operation `op` writes, or that operations inside its blocks write."""
    if op.name in ("load", "compute", "shuffle", "atom", "fill"):
        return [op.operands[0]]
    if op.name == "transpose":
        return list(op.operands)
    return [v for b in op.blocks for inner in walk_block(b) for v in _registers_written(inner)]


def _sink_fills(ops: list[Op]) -> list[Op]:
    """Return `ops` with each `fill` of a register moved down to just before the first operation that uses the register;
    fills of unused registers come last. If a register is filled again before its first use, the earlier fill is
    dropped.
    """
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
