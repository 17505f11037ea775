"""x86's multiplication atoms, and its multiplication by powers of two, written as LLVM IR."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tilewright.codegen.text import Writer
from tilewright.ir.core import Op
from tilewright.targets.cpu.family import Multiply
from tilewright.targets.cpu.products import add_after_multiply, fused_multiply_add, group_to_lanes

if TYPE_CHECKING:
    from tilewright.targets.cpu.emit import NativeEmitter


_REGISTER = 512
"""Bits of a vector register of AVX-512."""


def scale(w: Writer, p: str, n: str, lanes: int | None, bits: int) -> str | None:
    """Emit p * 2^n, rounded once, and return the LLVM value of the result.

    `p` and `n` are LLVM values of `lanes` floats (None: a scalar) of `bits` bits. p is at least 1/4 and below 4, and n
    has integer values. Emit nothing and return None unless the floats fill whole registers of 512 bits.

    The instruction vscalef takes 150 cycles if a result is subnormal, or too small even for that. So the code tests n:
    if a result may be subnormal, all registers are computed in another way (`_Scaling.subnormal`).
    """
    if lanes is None or lanes * bits % _REGISTER:
        return None
    scaling = _Scaling(w, bits)
    parts = [range(first, first + scaling.count) for first in range(0, lanes, scaling.count)]
    numbers, exponents = ([_lanes_of(w, v, scaling.kind, lanes, part) for part in parts] for v in (p, n))
    small, normal, after = (w.name(word)[1:] for word in ("small", "normal", "scaled"))
    w.line(f"br i1 {scaling.may_be_subnormal(exponents)}, label %{small}, label %{normal}")
    results = []
    for label, scaled in ((small, scaling.subnormal), (normal, scaling.normal)):
        w.label(label)
        results.append([scaled(*pair) for pair in zip(numbers, exponents, strict=True)])
        w.line(f"br label %{after}")
    w.label(after)
    joined = [
        w.value(f"phi {scaling.form} [ {a}, %{small} ], [ {b}, %{normal} ]") for a, b in zip(*results, strict=True)
    ]
    return _joined(w, joined, scaling.kind, scaling.count)


class _Scaling:
    """Emits p * 2^n for registers of 512 bits, of floats of `bits` bits: `count` lanes of the LLVM type `kind`."""

    def __init__(self, w: Writer, bits: int):
        self.w, self.bits, self.count = w, bits, _REGISTER // bits
        self.kind, letter = {32: ("float", "s"), 64: ("double", "d")}[bits]
        self.form, self.words = f"<{self.count} x {self.kind}>", f"<{self.count} x i{bits}>"
        self.least = {32: -126, 64: -1022}[bits]
        """The exponent of the least number that is not subnormal."""
        self.instruction = f"@llvm.x86.avx512.mask.scalef.p{letter}.512"
        w.declare(f"{self.form} {self.instruction}({self.form}, {self.form}, {self.form}, i{self.count}, i32 immarg)")

    def constant(self, value: float) -> str:
        """Return an LLVM vector constant with the number `value` in all lanes, whose type must hold it exactly."""
        return f"splat ({self.kind} 0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X})"

    def normal(self, p: str, n: str, other: str = "zeroinitializer", mask: str = "-1") -> str:
        """Emit the instruction for one register and return its result. Lanes without a bit in `mask` get `other`."""
        operands = f"{self.form} {p}, {self.form} {n}, {self.form} {other}"
        return self.w.value(f"call {self.form} {self.instruction}({operands}, i{self.count} {mask}, i32 4)")

    def may_be_subnormal(self, exponents: list[str]) -> str:
        """Emit the test if a result may be subnormal or smaller, and return the i1. `exponents` are all registers n."""
        total = exponents[0]
        for n in exponents[1:]:
            less = self.w.value(f"fcmp olt {self.form} {n}, {total}")
            total = self.w.value(f"select <{self.count} x i1> {less}, {self.form} {n}, {self.form} {total}")
        small = self.w.value(f"fcmp olt {self.form} {total}, {self.constant(self.least + 2)}")
        mask = self.w.value(f"bitcast <{self.count} x i1> {small} to i{self.count}")
        return self.w.value(f"icmp ne i{self.count} {mask}, 0")

    def subnormal(self, p: str, n: str) -> str:
        """Emit p * 2^n for one register in which some results may be subnormal, and return it.

        `p` and `n` are LLVM vectors of one register. Lanes with a normal result use the instruction. In the others, an
        FMA adds the least normal number: the sum is normal, and is rounded at the last bit of a subnormal number. An
        integer subtraction of that number's bits from the bits of the sum gives the subnormal result.
        """
        w, form, words = self.w, self.form, self.words
        moved = w.value(f"fadd {form} {n}, {self.constant(64.0)}")
        large = self.normal(p, moved)
        is_normal = w.value(f"fcmp uge {form} {large}, {self.constant(2.0 ** (self.least + 64))}")
        fma = f"@llvm.fma.v{self.count}f{self.bits}"
        w.declare(f"{form} {fma}({form}, {form}, {form})")
        added = f"{form} {self.constant(2.0**-64)}, {form} {self.constant(2.0**self.least)}"
        total = w.value(f"call {form} {fma}({form} {large}, {added})")
        word, least = w.value(f"bitcast {form} {total} to {words}"), 1 << {32: 23, 64: 52}[self.bits]
        subnormal = w.value(f"sub {words} {word}, splat (i{self.bits} {least})")
        other = w.value(f"bitcast {words} {subnormal} to {form}")
        mask = w.value(f"bitcast <{self.count} x i1> {is_normal} to i{self.count}")
        return self.normal(p, n, other, mask)


def _lanes_of(w: Writer, value: str, kind: str, lanes: int, chosen: range) -> str:
    """Emit a vector of the `chosen` lanes of the LLVM vector `value`, and return it. The vector has `lanes` numbers of
    the LLVM type `kind`.
    """
    if len(chosen) == lanes:
        return value
    form, indices = f"<{lanes} x {kind}>", ", ".join(f"i32 {lane}" for lane in chosen)
    return w.value(f"shufflevector {form} {value}, {form} poison, <{len(chosen)} x i32> <{indices}>")


def _joined(w: Writer, vectors: list[str], kind: str, count: int) -> str:
    """Emit one LLVM vector of the lanes of all `vectors`, in order, and return it. Each of them has `count` numbers of
    the LLVM type `kind`.
    """
    lanes = len(vectors) * count
    total, form = vectors[0], f"<{lanes} x {kind}>"
    for number, vector in enumerate(vectors):
        if lanes > count:  # both operands of a shuffle have the same number of lanes
            places = ", ".join(f"i32 {lane}" if lane < count else "i32 poison" for lane in range(lanes))
            part, empty = f"<{count} x {kind}> {vector}", f"<{count} x {kind}> poison"
            vector = w.value(f"shufflevector {part}, {empty}, <{lanes} x i32> <{places}>")
        if number == 0:
            total = vector
            continue
        first = number * count
        places = ", ".join(f"i32 {lane if lane < first else lanes + lane - first}" for lane in range(lanes))
        total = w.value(f"shufflevector {form} {total}, {form} {vector}, <{lanes} x i32> <{places}>")
    return total


def _tiles(name: str) -> Multiply:
    """Return a function (emitter, op) that emits a tile multiplication. `name` is the LLVM intrinsic without
    "llvm.x86.", such as "tdpbf16ps".
    """

    def write(e: NativeEmitter, op: Op) -> None:
        """Emit the multiplication `op` (operands: accumulator C, A, B) with the emitter `e`. The instruction adds A * B
        to C in the tile register of C.
        """
        c, a, b = op.operands
        e.w.declare(f"void @llvm.x86.{name}(i8 immarg, i8 immarg, i8 immarg)")
        e.w.line(f"call void @llvm.x86.{name}(i8 {e.tile(c)}, i8 {e.tile(a)}, i8 {e.tile(b)})")

    return write


def _dot(name: str, form: str, sums: str) -> Multiply:
    """Return a function (emitter, op) that emits a dot-product atom: each 32-bit lane of the accumulator adds the
    products of neighbours along k, two of bf16 or four of 8 bits. `name` is the LLVM intrinsic without "llvm.x86.".
    `form` and `sums` are the LLVM types of the operands and of the accumulator.
    """

    def write(e: NativeEmitter, op: Op) -> None:
        """Emit the multiplication `op` (operands: accumulator, A, B) with the emitter `e`. Set `e.registers` of the
        accumulator to the new LLVM value.
        """
        c, a, b = op.operands
        left = group_to_lanes(e, a, 32, 16, form)
        e.w.declare(f"{sums} @llvm.x86.{name}({sums}, {form}, {form})")
        e.registers[c] = e.w.value(
            f"call {sums} @llvm.x86.{name}({sums} {e.register(c)}, {form} {left}, {form} {e.register(b)})"
        )

    return write


PRODUCTS: dict[str, Multiply] = {
    "avx2.f32": fused_multiply_add,
    "avx2.f64": fused_multiply_add,
    "avx2.i32": add_after_multiply,
    "avx512.f32": fused_multiply_add,
    "avx512.f64": fused_multiply_add,
    "avx512.i32": add_after_multiply,
    "avx512.bf16": _dot("avx512bf16.dpbf16ps.512", "<32 x bfloat>", "<16 x float>"),
    "avx512.vnni": _dot("avx512.vpdpbusd.512", "<64 x i8>", "<16 x i32>"),
    "amx.bf16": _tiles("tdpbf16ps"),
    "amx.s8": _tiles("tdpbssd"),
    "amx.u8s8": _tiles("tdpbusd"),
}
