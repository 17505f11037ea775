"""Loads and stores of vectors that are partly out of bounds: with the machine's masks, or in pieces that touch nothing
else.

A machine without masks loads and stores lanes that are known to be in bounds in pieces of 8, 4, 2 and 1 elements. If
that is known at run time only, it goes lane by lane, with lanes out of bounds redirected to spare memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import at_start
from tilewright.codegen.text import element
from tilewright.ir.core import Value
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
    """Emit the load of the vector register `target` with a condition on its lanes, and return the LLVM value.

    `offset` is the index expression of an element of the tensor `buffer`, in terms of `lane`, the symbol of the `lanes`
    lanes. `step` is the distance between neighbouring lanes in elements (None: not constant). Lanes for which the
    condition `when` holds are loaded. The other lanes come from the LLVM vector `other`.

    The result is a masked load if `step` is 1 and the machine has masks for this element size. It is several loads of
    contiguous pieces if `step` is 1 and `when` is known for each lane. Otherwise it is one load for each lane.
    """
    kind, bytes_each = element(target.type.dtype), target.type.dtype.numpy.itemsize
    form = f"<{lanes} x {kind}>"
    if step == 1:
        if bytes_each in e.machine.masked:
            return _load_masked(e, buffer, offset, lane, lanes, when, other, kind, bytes_each)
        pieces = _known_pieces(when, lane, lanes)
        if pieces is not None:
            return load_pieces(e, buffer, offset, lane, pieces, target, other)
    total = other
    mask = e.w.lane_conditions(when, lane, lanes)
    for i in range(lanes):
        bit = e.w.value(f"extractelement <{lanes} x i1> {mask}, i64 {i}")
        pointer = e.address_of(buffer, Substitution({lane: i})(offset))
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
    """Emit an LLVM masked load of `lanes` contiguous elements of the tensor `buffer`, and return the LLVM value.
    `offset` is the index expression of an element, in terms of the lane symbol `lane`. Lanes for which `when` holds are
    loaded. The other lanes come from the LLVM vector `other`. `kind` is the LLVM element type, and `align` the
    alignment in bytes.
    """
    form = plain = f"<{lanes} x {kind}>"
    mask, pointer = e.w.lane_conditions(when, lane, lanes), e.address_of(buffer, at_start(offset, lane))
    if kind in ("bfloat", "half"):  # as integers: LLVM cannot split every vector width of these types
        kind, form = "i16", f"<{lanes} x i16>"
        other = e.w.value(f"bitcast {plain} {other} to {form}")
    name = f"@llvm.masked.load.v{lanes}{_suffix(kind)}.p0"
    e.w.declare(f"{form} {name}(ptr, i32, <{lanes} x i1>, {form})")
    loaded = e.w.value(f"call {form} {name}(ptr {pointer}, i32 {align}, <{lanes} x i1> {mask}, {form} {other})")
    return loaded if form == plain else e.w.value(f"bitcast {form} {loaded} to {plain}")


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
    """Emit one load for each piece (first lane, number of lanes) in `pieces`, insert the results into the LLVM vector
    `other`, and return the new vector. The lanes of a piece are contiguous in the tensor `buffer`. `offset` is the
    index expression of an element, in terms of the lane symbol `lane`. `target` is the register with the type of the
    vector. All pieces are loaded from spare memory if the condition `when` fails at run time.
    """
    lanes, kind = e.lanes_of(target), element(target.type.dtype)
    form, total, align = f"<{lanes} x {kind}>", other, target.type.dtype.numpy.itemsize
    for start, count in pieces:
        pointer = memory.guarded(e, e.address_of(buffer, Substitution({lane: start})(offset)), when)
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
    """Emit the store of those lanes of the vector register `source` for which `when` holds. `offset` is the index
    expression of an element of the tensor `buffer`, in terms of the lane symbol `lane`. The lanes must be contiguous in
    memory.

    The result is a masked store if the machine has masks for this element size; elements of fewer than 4 bytes must
    also fill 16, 32 or 64 bytes. Otherwise it is several stores of contiguous pieces if `when` is known for each lane,
    else one store for each lane.
    """
    lanes, kind = e.lanes_of(source), element(source.type.dtype)
    form, bytes_each = f"<{lanes} x {kind}>", source.type.dtype.numpy.itemsize
    value = e.register(source)
    if bytes_each not in e.machine.masked or (bytes_each < 4 and lanes * bytes_each not in (16, 32, 64)):
        pieces = _known_pieces(when, lane, lanes)
        if pieces is None:
            memory.store_lanes(e, source, buffer, offset, lane, when)
        else:
            store_pieces(e, buffer, offset, lane, pieces, source)
        return
    mask, pointer = e.w.lane_conditions(when, lane, lanes), e.address_of(buffer, at_start(offset, lane))
    if kind in ("bfloat", "half"):
        value = e.w.value(f"bitcast {form} {value} to <{lanes} x i16>")
        form, kind = f"<{lanes} x i16>", "i16"
    if kind in ("i8", "i16"):
        # LLVM fuses a truncation with the store, and for one lane stores the whole wide element: the asm prevents it
        value = e.w.value(f'call {form} asm "", "={e.family.register},0"({form} {value})')
    name = f"@llvm.masked.store.v{lanes}{_suffix(kind)}.p0"
    e.w.declare(f"void {name}({form}, ptr, i32, <{lanes} x i1>)")
    e.w.line(f"call void {name}({form} {value}, ptr {pointer}, i32 {bytes_each}, <{lanes} x i1> {mask})")


def store_pieces(
    e: NativeEmitter, buffer: Value, offset: Expr, lane: Symbol, pieces: list[tuple[int, int]], source: Value
) -> None:
    """Emit one store for each piece (first lane, number of lanes) in `pieces` of the vector register `source`. The
    lanes of a piece are contiguous in the tensor `buffer`. `offset` is the index expression of an element, in terms of
    the lane symbol `lane`.
    """
    form, kind, value = e.kind(source), element(source.type.dtype), e.register(source)
    align = source.type.dtype.numpy.itemsize
    for start, count in pieces:
        pointer = e.address_of(buffer, Substitution({lane: start})(offset))
        if count == 1:
            one = e.w.value(f"extractelement {form} {value}, i64 {start}")
            e.w.line(f"store {kind} {one}, ptr {pointer}, align {align}")
            continue
        chosen = ", ".join(f"i32 {start + i}" for i in range(count))
        part = e.w.value(f"shufflevector {form} {value}, {form} poison, <{count} x i32> <{chosen}>")
        e.w.line(f"store <{count} x {kind}> {part}, ptr {pointer}, align {align}")


def _known_pieces(when: Expr, lane: Symbol, lanes: int) -> list[tuple[int, int]] | None:
    """Split the lanes for which the condition `when` holds into contiguous pieces with lengths that are powers of two.
    Return [(first lane, number of lanes)] in ascending order, or None if the condition of a lane is known only at run
    time. `when` depends on `lane`, the symbol of the `lanes` lanes.

    >>> from tilewright.algebra.expr import index
    >>> l = index("l", 8)
    >>> _known_pieces(l <= 6, l, 8)
    [(0, 4), (4, 2), (6, 1)]
    """
    in_bounds: list[bool] = []
    for i in range(lanes):
        holds = Substitution({lane: i})(when)
        if not isinstance(holds, Const):
            return None
        in_bounds.append(bool(holds.value))
    pieces: list[tuple[int, int]] = []
    lane_number = 0
    while lane_number < lanes:
        run = next((n for n in range(lane_number, lanes) if not in_bounds[n]), lanes) - lane_number
        pieces += powers_of_two(lane_number, run)
        lane_number += max(1, run)
    return pieces


def powers_of_two(start: int, count: int) -> list[tuple[int, int]]:
    """Split the range of `count` numbers that begins with `start` into ranges with lengths that are powers of two.
    Return [(start, count)] in ascending order; the longest range comes first.

    >>> powers_of_two(3, 7)
    [(3, 4), (7, 2), (9, 1)]
    """
    pieces = []
    while count:
        piece = 1 << (count.bit_length() - 1)
        pieces.append((start, piece))
        start, count = start + piece, count - piece
    return pieces


def _suffix(kind: str) -> str:
    """Return the name that the LLVM element type `kind` has within names of intrinsics. Integer types keep their names.

    >>> _suffix("float"), _suffix("i16")
    ('f32', 'i16')
    """
    return {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16"}.get(kind, kind)
