"""Vectors of which only a part is there: by the machine's masks, or in pieces that touch nothing else.

A machine without masks loads and stores what is known to be there in pieces of 8, 4, 2 and 1 elements; where only a run
knows, lane by lane, what is not there from and to spare memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.codegen.text import element
from tilewright.ir.core import Value
from tilewright.passes.places import at_start
from tilewright.targets.cpu import memory

if TYPE_CHECKING:
    from tilewright.targets.cpu.emit import NativeEmitter


def load(
    e: NativeEmitter,
    buffer: Value,
    offset: Expr,
    lane: Symbol,
    lanes: int,
    step: int | None,
    when: Expr,
    other: str,
    target: Value,
) -> str:
    """The lanes for which the condition holds; the others are what `other` has there."""
    kind, bytes_each = element(target.type.dtype), target.type.dtype.numpy.itemsize
    form = f"<{lanes} x {kind}>"
    if step == 1:
        if bytes_each in e.machine.masked:
            return _load_masked(e, buffer, offset, lane, lanes, when, other, kind, bytes_each)
        pieces = _pieces(when, lane, lanes)
        if pieces is not None:
            return load_pieces(e, buffer, offset, lane, pieces, target, other)
    total = other
    mask = e.w.lane_conditions(when, lane, lanes)
    for i in range(lanes):
        bit = e.w.value(f"extractelement <{lanes} x i1> {mask}, i64 {i}")
        pointer = e.where(buffer, Substitution({lane: i})(offset))
        safe = e.w.value(f"select i1 {bit}, ptr {pointer}, ptr {e.spare}")
        one = e.w.value(f"load {kind}, ptr {safe}, align {bytes_each}")
        full = e.w.value(f"insertelement {form} {total}, {kind} {one}, i64 {i}")
        total = e.w.value(f"select i1 {bit}, {form} {full}, {form} {total}")
    return total


def _load_masked(
    e: NativeEmitter,
    buffer: Value,
    offset: Expr,
    lane: Symbol,
    lanes: int,
    when: Expr,
    other: str,
    kind: str,
    align: int,
) -> str:
    form = plain = f"<{lanes} x {kind}>"
    mask, pointer = e.w.lane_conditions(when, lane, lanes), e.where(buffer, at_start(offset, lane))
    if kind in ("bfloat", "half"):  # as integers: LLVM does not take every width of these apart
        kind, form = "i16", f"<{lanes} x i16>"
        other = e.w.value(f"bitcast {plain} {other} to {form}")
    name = f"@llvm.masked.load.v{lanes}{_suffix(kind)}.p0"
    e.w.declare(f"{form} {name}(ptr, i32, <{lanes} x i1>, {form})")
    found = e.w.value(f"call {form} {name}(ptr {pointer}, i32 {align}, <{lanes} x i1> {mask}, {form} {other})")
    return found if form == plain else e.w.value(f"bitcast {form} {found} to {plain}")


def load_pieces(
    e: NativeEmitter,
    buffer: Value,
    offset: Expr,
    lane: Symbol,
    pieces: list[tuple[int, int]],
    target: Value,
    other: str,
    when: Expr | None = None,
) -> str:
    """Each piece by a load of its own, put where it belongs among the others; from spare memory where `when` fails."""
    lanes, kind = e.lanes_of(target), element(target.type.dtype)
    form, total, align = f"<{lanes} x {kind}>", other, target.type.dtype.numpy.itemsize
    for start, count in pieces:
        pointer = memory.guarded(e, e.where(buffer, Substitution({lane: start})(offset)), when)
        if count == 1:
            one = e.w.value(f"load {kind}, ptr {pointer}, align {align}")
            total = e.w.value(f"insertelement {form} {total}, {kind} {one}, i64 {start}")
            continue
        part = e.w.value(f"load <{count} x {kind}>, ptr {pointer}, align {align}")
        widen = ", ".join(f"i32 {i}" if i < count else "i32 poison" for i in range(lanes))
        wide = e.w.value(
            f"shufflevector <{count} x {kind}> {part}, <{count} x {kind}> poison, <{lanes} x i32> <{widen}>"
        )
        put = ", ".join(f"i32 {lanes + i - start if start <= i < start + count else i}" for i in range(lanes))
        total = e.w.value(f"shufflevector {form} {total}, {form} {wide}, <{lanes} x i32> <{put}>")
    return total


def store(e: NativeEmitter, source: Value, buffer: Value, offset: Expr, lane: Symbol, when: Expr) -> None:
    """Neighbours in memory, of which only those are written for which the condition holds."""
    lanes, kind = e.lanes_of(source), element(source.type.dtype)
    form, bytes_each = f"<{lanes} x {kind}>", source.type.dtype.numpy.itemsize
    value = e.register(source)
    if bytes_each not in e.machine.masked or (bytes_each < 4 and lanes * bytes_each not in (16, 32, 64)):
        pieces = _pieces(when, lane, lanes)
        if pieces is None:
            memory.store_lanes(e, source, buffer, offset, lane, when)
        else:
            store_pieces(e, buffer, offset, lane, pieces, source)
        return
    mask, pointer = e.w.lane_conditions(when, lane, lanes), e.where(buffer, at_start(offset, lane))
    if kind in ("bfloat", "half"):
        value = e.w.value(f"bitcast {form} {value} to <{lanes} x i16>")
        form, kind = f"<{lanes} x i16>", "i16"
    if kind in ("i8", "i16"):
        # LLVM joins a truncation with the store, and with one lane stores the wide element whole: kept apart.
        value = e.w.value(f'call {form} asm "", "={e.family.register},0"({form} {value})')
    name = f"@llvm.masked.store.v{lanes}{_suffix(kind)}.p0"
    e.w.declare(f"void {name}({form}, ptr, i32, <{lanes} x i1>)")
    e.w.line(f"call void {name}({form} {value}, ptr {pointer}, i32 {bytes_each}, <{lanes} x i1> {mask})")


def store_pieces(
    e: NativeEmitter, buffer: Value, offset: Expr, lane: Symbol, pieces: list[tuple[int, int]], source: Value
) -> None:
    """Each piece by a store of its own."""
    form, kind, value = e.kind(source), element(source.type.dtype), e.register(source)
    align = source.type.dtype.numpy.itemsize
    for start, count in pieces:
        pointer = e.where(buffer, Substitution({lane: start})(offset))
        if count == 1:
            one = e.w.value(f"extractelement {form} {value}, i64 {start}")
            e.w.line(f"store {kind} {one}, ptr {pointer}, align {align}")
            continue
        chosen = ", ".join(f"i32 {start + i}" for i in range(count))
        part = e.w.value(f"shufflevector {form} {value}, {form} poison, <{count} x i32> <{chosen}>")
        e.w.line(f"store <{count} x {kind}> {part}, ptr {pointer}, align {align}")


def _pieces(when: Expr, lane: Symbol, lanes: int) -> list[tuple[int, int]] | None:
    """(first lane, lanes) of the pieces that are there, each a power of two long; None where only a run knows.

    >>> from tilewright.algebra.expr import index
    >>> l = index("l", 8)
    >>> _pieces(l <= 6, l, 8)
    [(0, 4), (4, 2), (6, 1)]
    """
    there: list[bool] = []
    for i in range(lanes):
        holds = Substitution({lane: i})(when)
        if not isinstance(holds, Const):
            return None
        there.append(bool(holds.value))
    pieces: list[tuple[int, int]] = []
    at = 0
    while at < lanes:
        run = next((n for n in range(at, lanes) if not there[n]), lanes) - at
        pieces += powers_of_two(at, run)
        at += max(1, run)
    return pieces


def powers_of_two(start: int, count: int) -> list[tuple[int, int]]:
    """(start, count) of pieces, the largest first.

    >>> powers_of_two(3, 7)
    [(3, 4), (7, 2), (9, 1)]
    """
    found = []
    while count:
        piece = 1 << (count.bit_length() - 1)
        found.append((start, piece))
        start, count = start + piece, count - piece
    return found


def _suffix(kind: str) -> str:
    return {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16"}.get(kind, kind)
