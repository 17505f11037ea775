"""Loads and stores as LLVM IR: whole vectors, single lanes, tiles; also prefetches and atomics."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import at_start, linear_factor, linear_step
from tilewright.codegen.text import element, literal
from tilewright.ir import dtypes
from tilewright.ir.core import Op, Value
from tilewright.targets.cpu import tails
from tilewright.targets.cpu.products import WORD

if TYPE_CHECKING:
    from tilewright.targets.cpu.emit import NativeEmitter

_KNOWN = ("bool", "i8", "u8", "i16", "i32", "i64", "index", "f16", "bf16", "f32", "f64")
"""The element types that LLVM has; elements of other types are moved as bytes."""


def load(e: NativeEmitter, op: Op) -> None:
    """Emit the load `op`: its first operand is the target register (scalar, vector or tile), its second operand the
    tensor in memory. A vector is loaded with one instruction, with a mask, as a broadcast, or in several contiguous
    pieces, depending on the index expression and the condition. For a scalar or vector, `e.registers` of the target is
    set to the loaded LLVM value.
    """
    target, buffer = op.operands
    offset = op.attrs["at"][0]
    if e.is_tile(target):
        row, inner = op.attrs["over"]
        pointer = e.address_of(buffer, at_start(offset, row, inner))
        stride = _row_stride(e, offset, row, buffer)
        e.matrix_registers.load(e, op, e.tile(target), pointer, stride)
        return
    e.registers[target] = _load_register(e, op, target, buffer, offset)


def _row_stride(e: NativeEmitter, offset: Expr, row: Symbol, buffer: Value) -> str:
    """Emit the distance between rows of a tile in the tensor `buffer`, in bytes, and return it as an LLVM value.
    `offset` is the index expression of an element. It must be linear in `row`, the symbol of the row number.
    """
    factor = linear_factor(offset, row)
    assert factor is not None
    return e.w.integer(factor * buffer.type.dtype.numpy.itemsize)


def _load_register(e: NativeEmitter, op: Op, target: Value, buffer: Value, offset: Expr) -> str:
    """Emit the load of the scalar or vector register `target` from the tensor `buffer`, and return the LLVM value.
    `offset` is the index expression of an element; for a vector, it depends on the lane symbol. Lanes for which the
    condition of `op` fails get the number `otherwise` of `op` (0 if there is none).
    """
    lanes, kind = e.lanes(target), element(target.type.dtype)
    lane = op.attrs["over"][0] if op.attrs["over"] else None
    when = op.attrs.get("when")
    other = splat(e, op.attrs.get("otherwise", 0), target)
    align = target.type.dtype.numpy.itemsize
    if lane is None or lanes is None:
        pointer = guarded(e, e.address_of(buffer, offset), when)
        return _select(e, e.w.value(f"load {kind}, ptr {pointer}, align {align}"), when, other, kind)
    step = linear_step(offset, lane)
    form = f"<{lanes} x {kind}>"
    if when is not None and lane in when.symbols:
        return tails.load(e, buffer, offset, lane, lanes, step, when, other, target)
    if step == 1:
        pointer = guarded(e, e.address_of(buffer, at_start(offset, lane)), when)
        if when is None and 8 * lanes * align == WORD:  # as one integer, which can be broadcast
            e.words[target] = e.w.value(f"load i{WORD}, ptr {pointer}, align {align}")
            return e.w.value(f"bitcast i{WORD} {e.words[target]} to {form}")
        return _select(e, e.w.value(f"load {form}, ptr {pointer}, align {align}"), when, other, form)
    if step == 0:
        pointer = guarded(e, e.address_of(buffer, offset), when)
        one = e.w.value(f"load {kind}, ptr {pointer}, align {align}")
        return _select(e, e.w.splat(one, kind, lanes), when, other, form)
    total = tails.load_pieces(e, buffer, offset, lane, _contiguous_pieces(offset, lane, lanes), target, "poison", when)
    return _select(e, total, when, other, form)


def _contiguous_pieces(offset: Expr, lane: Symbol, lanes: int) -> list[tuple[int, int]]:
    """Split the `lanes` lanes of a vector into pieces that are contiguous in memory, with lengths that are powers of
    two. Return [(first lane, number of lanes)] in ascending order. `offset` is the index expression of an element, in
    terms of the lane symbol `lane`.

    >>> from tilewright.algebra.expr import index
    >>> l = index("l", 8)
    >>> _contiguous_pieces(100*(l // 4) + l % 4, l, 8)
    [(0, 4), (4, 4)]
    """
    offsets = [Substitution({lane: i})(offset) for i in range(lanes)]
    follows = [i > 0 and offsets[i] - offsets[i - 1] is as_expr(1) for i in range(lanes)]
    starts = [i for i in range(lanes) if not follows[i]]
    runs = [(start, end - start) for start, end in pairwise([*starts, lanes])]
    return [piece for start, count in runs for piece in tails.powers_of_two(start, count)]


def guarded(e: NativeEmitter, pointer: str, when: Expr | None) -> str:
    """Emit the choice of an address and return it as an LLVM value: `pointer` if the condition `when` holds, else the
    address of spare memory, where an access does no harm. If `when` is None, emit nothing and return `pointer`.
    """
    if when is None:
        return pointer
    return e.w.value(f"select i1 {e.w.condition(when)}, ptr {pointer}, ptr {e.spare}")


def _select(e: NativeEmitter, value: str, when: Expr | None, other: str, form: str) -> str:
    """Emit the choice of a value and return it as an LLVM value: `value` if the condition `when` holds, else `other`.
    `form` is the LLVM type of both. If `when` is None, emit nothing and return `value`.
    """
    if when is None:
        return value
    return e.w.value(f"select i1 {e.w.condition(when)}, {form} {value}, {form} {other}")


def splat(e: NativeEmitter, number: Any, target: Value) -> str:
    """Return the LLVM constant with `number` in all lanes, of the type of the register `target`. For element types that
    LLVM lacks, such as floats of 8 bits, the constant has the bytes of the number. Nothing is emitted.
    """
    kind, lanes = target.type.dtype, e.lanes(target)
    if kind.name not in _KNOWN:
        number = int(np.asarray(number).astype(kind.numpy).view(np.uint8))
        kind = dtypes.u8
    text = literal(number, kind)
    if lanes is None:
        return text
    return f"<{', '.join([f'{element(kind)} {text}'] * lanes)}>" if number != 0 else "zeroinitializer"


def store(e: NativeEmitter, op: Op) -> None:
    """Emit the store `op`: its first operand is the source register (scalar, vector or tile), its second operand the
    tensor in memory. A vector is stored with one instruction, with a mask, in several contiguous pieces, or lane by
    lane, depending on the index expression and the condition. A store with the attribute `stream` bypasses the caches
    if it has no condition, writes an aligned vector of 16, 32 or 64 bytes, and does not write an argument.
    """
    source, buffer = op.operands
    offset, when = op.attrs["at"][0], op.attrs.get("when")
    if e.is_tile(source):
        row, inner = op.attrs["over"]
        pointer = e.address_of(buffer, at_start(offset, row, inner))
        stride = _row_stride(e, offset, row, buffer)
        e.matrix_registers.store(e, e.tile(source), pointer, stride)
        return
    lanes, kind = e.lanes(source), element(source.type.dtype)
    lane = op.attrs["over"][0] if op.attrs["over"] else None
    align = source.type.dtype.numpy.itemsize
    value = e.register(source)
    if lane is None or lanes is None:
        e.w.line(f"store {kind} {value}, ptr {guarded(e, e.address_of(buffer, offset), when)}, align {align}")
        return
    form, step = f"<{lanes} x {kind}>", linear_step(offset, lane)
    masked = when is not None and lane in when.symbols
    if step == 1 and not masked:
        pointer = guarded(e, e.address_of(buffer, at_start(offset, lane)), when)
        full = lanes * align
        bypass = (
            op.attrs.get("stream")
            and buffer not in e.program.args  # arrays of callers are only aligned to their elements
            and when is None
            and full in (16, 32, 64)
            and _is_aligned(offset, lane, full // align)
        )
        hint = f"align {full}, !nontemporal !0" if bypass else f"align {align}"
        e.w.line(f"store {form} {value}, ptr {pointer}, {hint}")
        return
    if step == 1:
        assert when is not None
        tails.store(e, source, buffer, offset, lane, when)
        return
    store_lanes(e, source, buffer, offset, lane, when)


def store_lanes(e: NativeEmitter, source: Value, buffer: Value, offset: Expr, lane: Symbol, when: Expr | None) -> None:
    """Emit the store of the vector register `source` to the tensor `buffer`. `offset` is the index expression of an
    element, in terms of the lane symbol `lane`. If `when` is None, contiguous lanes are stored together. Otherwise each
    lane is stored by its own instruction, which writes to spare memory if the condition `when` fails for this lane.
    """
    form, kind = e.kind(source), element(source.type.dtype)
    align, value = source.type.dtype.numpy.itemsize, e.register(source)
    if when is None:
        tails.store_pieces(e, buffer, offset, lane, _contiguous_pieces(offset, lane, e.lanes_of(source)), source)
        return
    for i in range(e.lanes_of(source)):
        images = Substitution({lane: i})
        one = e.w.value(f"extractelement {form} {value}, i64 {i}")
        pointer = guarded(e, e.address_of(buffer, images(offset)), images(when))
        e.w.line(f"store {kind} {one}, ptr {pointer}, align {align}")


def prefetch(e: NativeEmitter, op: Op) -> None:
    """Emit the prefetch `op`: a hint to load the cache line of one element of the operand. If `op` has the attribute
    `write`, it is a hint that the line will be written.
    """
    e.w.declare("void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)")
    pointer = e.address_of(op.operands[0], op.attrs["at"][0])
    e.w.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(bool(op.attrs.get('write')))}, i32 3, i32 1)")


def atomic(e: NativeEmitter, op: Op) -> None:
    """Emit an atomic add, min or max (attribute `how`) of the source register (first operand) into one element of the
    tensor in memory (second operand). If the condition of `op` fails, spare memory is updated instead. Memory order is
    relaxed.
    """
    source, buffer = op.operands
    kind = source.type.dtype
    pointer = guarded(e, e.address_of(buffer, op.attrs["at"][0]), op.attrs.get("when"))
    operation = op.attrs["how"]
    if kind.is_float:
        word = {"add": "fadd", "min": "fminimum", "max": "fmaximum"}[operation]  # NaN propagates
    else:
        word = operation if operation == "add" else ("u" if kind.numpy.kind == "u" else "") + operation
    e.w.value(f"atomicrmw {word} ptr {pointer}, {element(kind)} {e.register(source)} monotonic")


def _is_aligned(offset: Expr, lane: Symbol, elements: int) -> bool:
    """True if `offset` is provably a multiple of `elements` at lane 0. `offset` is an index expression in terms of the
    lane symbol `lane`.
    """
    start = at_start(offset, lane)
    return (start % elements) is as_expr(0)
