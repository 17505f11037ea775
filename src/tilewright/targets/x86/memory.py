"""Loads and stores of x86 as LLVM IR: whole vectors, masked ones, single lanes, tiles; prefetches and atomics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.codegen.text import element, literal
from tilewright.ir import dtypes
from tilewright.ir.core import Op, Value
from tilewright.passes.places import at_start, linear_factor, linear_step
from tilewright.targets.x86 import cpu

if TYPE_CHECKING:
    from tilewright.targets.x86.emit import _Emitter

_KNOWN = ("bool", "i8", "u8", "i16", "i32", "i64", "index", "f16", "bf16", "f32", "f64")
"""The element types that LLVM has; others travel as bytes."""


def load(e: _Emitter, op: Op) -> None:
    """A load: whole, masked, or lane by lane; a tile with its rows."""
    target, buffer = op.operands
    offset = op.attrs["at"][0]
    if e.is_tile(target):
        row, inner = op.attrs["over"]
        pointer = e.where(buffer, at_start(offset, row, inner))
        stride = _row_stride(e, offset, row, buffer)
        name = "tileloaddt164" if op.attrs.get("stream") else "tileloadd64"
        e.w.declare(f"void @llvm.x86.{name}(i8 immarg, ptr, i64)")
        e.w.line(f"call void @llvm.x86.{name}(i8 {e.tile(target)}, ptr {pointer}, i64 {stride})")
        return
    e.registers[target] = _loaded(e, op, target, buffer, offset)


def _row_stride(e: _Emitter, offset: Expr, row: Symbol, buffer: Value) -> str:
    """The bytes from one row of a tile to the next."""
    factor = linear_factor(offset, row)
    assert factor is not None
    return e.w.integer(factor * buffer.type.dtype.numpy.itemsize)


def _loaded(e: _Emitter, op: Op, target: Value, buffer: Value, offset: Expr) -> str:
    lanes, kind = e.lanes(target), element(target.type.dtype)
    lane = op.attrs["over"][0] if op.attrs["over"] else None
    when = op.attrs.get("when")
    other = splat(e, op.attrs.get("otherwise", 0), target)
    align = target.type.dtype.numpy.itemsize
    if lane is None or lanes is None:
        pointer = _guarded(e, e.where(buffer, offset), when)
        return _chosen(e, e.w.value(f"load {kind}, ptr {pointer}, align {align}"), when, other, kind)
    step = linear_step(offset, lane)
    form = f"<{lanes} x {kind}>"
    if when is not None and lane in when.symbols:
        return _masked_load(e, buffer, offset, lane, lanes, step, when, other, target)
    if step == 1:
        pointer = _guarded(e, e.where(buffer, at_start(offset, lane)), when)
        return _chosen(e, e.w.value(f"load {form}, ptr {pointer}, align {align}"), when, other, form)
    if step == 0:
        pointer = _guarded(e, e.where(buffer, offset), when)
        one = e.w.value(f"load {kind}, ptr {pointer}, align {align}")
        return _chosen(e, e.w.splat(one, kind, lanes), when, other, form)
    total = "poison"
    for i in range(lanes):
        pointer = _guarded(e, e.where(buffer, Substitution({lane: i})(offset)), when)
        one = e.w.value(f"load {kind}, ptr {pointer}, align {align}")
        total = e.w.value(f"insertelement {form} {total}, {kind} {one}, i64 {i}")
    return _chosen(e, total, when, other, form)


def _masked_load(
    e: _Emitter,
    buffer: Value,
    offset: Expr,
    lane: Symbol,
    lanes: int,
    step: int | None,
    when: Expr,
    other: str,
    target: Value,
) -> str:
    kind = element(target.type.dtype)
    form, align = f"<{lanes} x {kind}>", target.type.dtype.numpy.itemsize
    mask = e.w.lane_conditions(when, lane, lanes)
    if step == 1:
        pointer = e.where(buffer, at_start(offset, lane))
        if kind in ("bfloat", "half"):  # as integers: LLVM does not take every width of these apart
            plain, kind = form, "i16"
            form = f"<{lanes} x i16>"
            other = e.w.value(f"bitcast {plain} {other} to {form}")
        else:
            plain = form
        name = f"@llvm.masked.load.v{lanes}{_suffix(kind)}.p0"
        e.w.declare(f"{form} {name}(ptr, i32, <{lanes} x i1>, {form})")
        found = e.w.value(f"call {form} {name}(ptr {pointer}, i32 {align}, <{lanes} x i1> {mask}, {form} {other})")
        return found if form == plain else e.w.value(f"bitcast {form} {found} to {plain}")
    total = other
    for i in range(lanes):
        bit = e.w.value(f"extractelement <{lanes} x i1> {mask}, i64 {i}")
        pointer = e.where(buffer, Substitution({lane: i})(offset))
        safe = e.w.value(f"select i1 {bit}, ptr {pointer}, ptr {e.spare}")
        one = e.w.value(f"load {kind}, ptr {safe}, align {align}")
        full = e.w.value(f"insertelement {form} {total}, {kind} {one}, i64 {i}")
        total = e.w.value(f"select i1 {bit}, {form} {full}, {form} {total}")
    return total


def _guarded(e: _Emitter, pointer: str, when: Expr | None) -> str:
    """The pointer, or that of spare memory where the condition does not hold."""
    if when is None:
        return pointer
    return e.w.value(f"select i1 {e.w.condition(when)}, ptr {pointer}, ptr {e.spare}")


def _chosen(e: _Emitter, value: str, when: Expr | None, other: str, form: str) -> str:
    if when is None:
        return value
    return e.w.value(f"select i1 {e.w.condition(when)}, {form} {value}, {form} {other}")


def splat(e: _Emitter, number: Any, target: Value) -> str:
    """A number in all lanes."""
    kind, lanes = target.type.dtype, e.lanes(target)
    if kind.name not in _KNOWN:
        number = int(np.asarray(number).astype(kind.numpy).view(np.uint8))
        kind = dtypes.u8
    text = literal(number, kind)
    if lanes is None:
        return text
    return f"<{', '.join([f'{element(kind)} {text}'] * lanes)}>" if number != 0 else "zeroinitializer"


def store(e: _Emitter, op: Op) -> None:
    """A store: whole, masked, or lane by lane; a tile with its rows."""
    source, buffer = op.operands
    offset, when = op.attrs["at"][0], op.attrs.get("when")
    if e.is_tile(source):
        row, inner = op.attrs["over"]
        pointer = e.where(buffer, at_start(offset, row, inner))
        stride = _row_stride(e, offset, row, buffer)
        e.w.declare("void @llvm.x86.tilestored64(i8 immarg, ptr, i64)")
        e.w.line(f"call void @llvm.x86.tilestored64(i8 {e.tile(source)}, ptr {pointer}, i64 {stride})")
        return
    lanes, kind = e.lanes(source), element(source.type.dtype)
    lane = op.attrs["over"][0] if op.attrs["over"] else None
    align = source.type.dtype.numpy.itemsize
    value = e.register(source)
    if lane is None or lanes is None:
        e.w.line(f"store {kind} {value}, ptr {_guarded(e, e.where(buffer, offset), when)}, align {align}")
        return
    form, step = f"<{lanes} x {kind}>", linear_step(offset, lane)
    masked = when is not None and lane in when.symbols
    if step == 1 and not masked:
        pointer = _guarded(e, e.where(buffer, at_start(offset, lane)), when)
        full = lanes * align
        bypass = (
            op.attrs.get("stream")
            and buffer not in e.program.args  # arrays of callers lie at multiples of their element only
            and when is None
            and full in (16, 32, 64)
            and _aligned(offset, lane, full // align)
        )
        hint = f"align {full}, !nontemporal !0" if bypass else f"align {align}"
        e.w.line(f"store {form} {value}, ptr {pointer}, {hint}")
        return
    if step == 1:
        assert when is not None
        mask = e.w.lane_conditions(when, lane, lanes)
        pointer = e.where(buffer, at_start(offset, lane))
        if kind in ("bfloat", "half"):
            value = e.w.value(f"bitcast {form} {value} to <{lanes} x i16>")
            form, kind = f"<{lanes} x i16>", "i16"
        if kind in ("i8", "i16"):
            if lanes * align not in (16, 32, 64):
                _store_lanes(e, buffer, offset, lane, lanes, when, form, kind, value, align)
                return
            if "avx512f" in cpu.features():  # others have no such store: LLVM writes lane by lane
                # It joins a truncation with the store, and with one lane stores the element whole: kept apart.
                value = e.w.value(f'call {form} asm "", "=v,0"({form} {value})')
        name = f"@llvm.masked.store.v{lanes}{_suffix(kind)}.p0"
        e.w.declare(f"void {name}({form}, ptr, i32, <{lanes} x i1>)")
        e.w.line(f"call void {name}({form} {value}, ptr {pointer}, i32 {align}, <{lanes} x i1> {mask})")
        return
    _store_lanes(e, buffer, offset, lane, lanes, when, form, kind, value, align)


def _store_lanes(
    e: _Emitter,
    buffer: Value,
    offset: Expr,
    lane: Symbol,
    lanes: int,
    when: Expr | None,
    form: str,
    kind: str,
    value: str,
    align: int,
) -> None:
    """Lane by lane."""
    for i in range(lanes):
        images = Substitution({lane: i})
        one = e.w.value(f"extractelement {form} {value}, i64 {i}")
        pointer = _guarded(e, e.where(buffer, images(offset)), None if when is None else images(when))
        e.w.line(f"store {kind} {one}, ptr {pointer}, align {align}")


def prefetch(e: _Emitter, op: Op) -> None:
    """A hint that memory will be used."""
    e.w.declare("void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)")
    pointer = e.where(op.operands[0], op.attrs["at"][0])
    e.w.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(bool(op.attrs.get('write')))}, i32 3, i32 1)")


def atomic(e: _Emitter, op: Op) -> None:
    """An update that other workers may do at the same time."""
    source, buffer = op.operands
    kind = source.type.dtype
    pointer = _guarded(e, e.where(buffer, op.attrs["at"][0]), op.attrs.get("when"))
    how = op.attrs["how"]
    if kind.is_float:
        word = {"add": "fadd", "min": "fminimum", "max": "fmaximum"}[how]  # what is no number stays
    else:
        word = how if how == "add" else ("u" if kind.numpy.kind == "u" else "") + how
    e.w.value(f"atomicrmw {word} ptr {pointer}, {element(kind)} {e.register(source)} monotonic")


def _suffix(kind: str) -> str:
    return {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16"}.get(kind, kind)


def _aligned(offset: Expr, lane: Symbol, elements: int) -> bool:
    """Whether the place of lane 0 is a multiple of so many elements."""
    start = at_start(offset, lane)
    return (start % elements) is as_expr(0)
