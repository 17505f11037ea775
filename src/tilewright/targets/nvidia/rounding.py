"""Two numbers converted to a smaller type by one instruction: f32 to bf16, f16 and on Hopper e4m3, bytes to bf16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.codegen.text import element
from tilewright.ir.dtypes import DType, bf16, f8e4m3fn, f16
from tilewright.machine import Machine

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter

WORDS = {bf16: "bf16x2", f16: "f16x2"}
BF16_128, BF16_MINUS_1 = 0x43004300, 0xBF80BF80 - 2**32
"""Two numbers of bf16 in a word: 128, and -1."""
LAST_ROUNDED = 464.0
"""Half way from the largest e4m3 to what would be the next, and the last number that is rounded to the largest."""


def rounds_pairs(machine: Machine, kind: DType) -> bool:
    """True if the machine has an instruction that rounds two f32 to the type."""
    return kind in WORDS or (kind is f8e4m3fn and "sm_90" in machine.features)


def pair(e: Emitter, low: str, high: str, kind: DType) -> str:
    """Return a vector of two elements of the type, rounded to nearest, ties to even."""
    if kind in WORDS:
        text = f'"cvt.rn.{WORDS[kind]}.f32 $0, $1, $2;", "=r,f,f"'
        bits = e.w.value(f"call i32 asm {text}(float {high}, float {low})")
        return e.w.value(f"bitcast i32 {bits} to <2 x {element(kind)}>")
    # the instruction makes the largest number of what is too large, where a cast gives no number
    low, high = (_without_too_large(e, value) for value in (low, high))
    text = '"cvt.rn.satfinite.e4m3x2.f32 $0, $1, $2;", "=h,f,f"'
    bits = e.w.value(f"call i16 asm {text}(float {high}, float {low})")
    return e.w.value(f"bitcast i16 {bits} to <2 x {element(kind)}>")


def pair_of_bytes(e: Emitter, low: str, high: str) -> str:
    """Return two i8 as a vector of two bf16: 128 + the lower seven bits, less 128, or less 256 if negative.

    Conversions of integers have a fraction of the rate of other instructions.
    """
    w, both = e.w, [e.w.value(f"zext i8 {byte} to i32") for byte in (low, high)]
    word = w.value(f"or i32 {both[0]}, {w.value(f'shl i32 {both[1]}, 16')}")
    terms = []
    for mask in (0x007F007F, 0x00800080):
        kept = w.value(f"and i32 {word}, {mask}")
        terms.append(w.value(f"or i32 {kept}, {BF16_128}"))
    operands = f"i32 {terms[0]}, i32 {terms[1]}, i32 {BF16_MINUS_1}"
    bits = w.value(f'call i32 asm "fma.rn.bf16x2 $0, $2, $3, $1;", "=r,r,r,r"({operands})')
    return w.value(f"bitcast i32 {bits} to <2 x bfloat>")


def _without_too_large(e: Emitter, value: str) -> str:
    """Return an f32, or no number (NaN) where it is beyond the range of e4m3."""
    e.w.declare("float @llvm.fabs.f32(float)")
    size = e.w.value(f"call float @llvm.fabs.f32(float {value})")
    beyond = e.w.value(f"fcmp ogt float {size}, {LAST_ROUNDED:e}")
    return e.w.value(f"select i1 {beyond}, float 0x7FF8000000000000, float {value}")
