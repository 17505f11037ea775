"""Conversions of two numbers by one instruction: f32 to bf16, f16 and (on Hopper) e4m3; bytes to bf16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.codegen.text import element
from tilewright.ir.dtypes import DType, bf16, f8e4m3fn, f16
from tilewright.machine import Machine

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter

WORDS = {bf16: "bf16x2", f16: "f16x2"}
BYTES_OF_128, LOWER_BITS, HIGHER_BITS, MINUS_1 = 0x43434343, ~0x00800080, ~0x007F007F, 0xBF80BF80 - 2**32
"""The first byte of the bf16 number 128, four times; masks of two bf16 numbers; and -1 twice."""
LAST_ROUNDED = 464.0
"""The largest f32 that is rounded to the largest e4m3: half way to the number that would follow it."""


def rounds_pairs(machine: Machine, kind: DType) -> bool:
    """True if `machine` has an instruction that rounds two f32 to floats of the type `kind`: bf16, f16, and e4m3 on
    Hopper.
    """
    return kind in WORDS or (kind is f8e4m3fn and "sm_90" in machine.features)


def pair(e: Emitter, low: str, high: str, kind: DType) -> str:
    """Emit the rounding of the f32 values `low` and `high` to the type `kind` (to nearest, ties to even) by one
    conversion. Return both as an LLVM vector of two elements, `low` first. For e4m3, values out of range become NaN.
    """
    if kind in WORDS:
        text = f'"cvt.rn.{WORDS[kind]}.f32 $0, $1, $2;", "=r,f,f"'
        bits = e.w.value(f"call i32 asm {text}(float {high}, float {low})")
        return e.w.value(f"bitcast i32 {bits} to <2 x {element(kind)}>")
    # for values out of range the instruction returns the largest number, but a cast returns NaN
    low, high = (_nan_if_too_large(e, value) for value in (low, high))
    text = '"cvt.rn.satfinite.e4m3x2.f32 $0, $1, $2;", "=h,f,f"'
    bits = e.w.value(f"call i16 asm {text}(float {high}, float {low})")
    return e.w.value(f"bitcast i16 {bits} to <2 x {element(kind)}>")


def pair_of_bytes(e: Emitter, low: str, high: str) -> str:
    """Emit the conversion of the i8 values `low` and `high` to bf16. Return both as an LLVM vector of two elements,
    `low` first.

    Each number is computed as 128 plus its low seven bits, minus 128 (minus 256 if it is negative). If the byte follows
    the first byte of the bf16 number 128, one mask gives each term. Integer conversions have a fraction of the rate of
    other instructions.
    """
    w, (first, second) = e.w, (e.w.value(f"zext i8 {byte} to i32") for byte in (low, high))
    bytes_together = w.value(f"or i32 {first}, {w.value(f'shl i32 {second}, 8')}")  # as two neighbours are loaded
    text = (
        "{ .reg .b32 pair, low, high; prmt.b32 pair, $1, $2, 16704; "
        "and.b32 low, pair, $3; and.b32 high, pair, $4; fma.rn.bf16x2 $0, high, $5, low; }"
    )
    operands = f"i32 {bytes_together}, i32 {BYTES_OF_128}, i32 {LOWER_BITS}, i32 {HIGHER_BITS}, i32 {MINUS_1}"
    bits = w.value(f'call i32 asm "{text}", "=r,r,n,n,n,r"({operands})')
    return w.value(f"bitcast i32 {bits} to <2 x bfloat>")


def _nan_if_too_large(e: Emitter, value: str) -> str:
    """Emit the choice of a value, and return it: NaN if the rounding of the f32 `value` to e4m3 is out of range, else
    `value`.
    """
    e.w.declare("float @llvm.fabs.f32(float)")
    size = e.w.value(f"call float @llvm.fabs.f32(float {value})")
    beyond = e.w.value(f"fcmp ogt float {size}, {LAST_ROUNDED:e}")
    return e.w.value(f"select i1 {beyond}, float 0x7FF8000000000000, float {value}")
