"""Arithmetic on vectors in Python notation: each operator emits an LLVM instruction when Python evaluates it.

>>> from tilewright.codegen.text import Writer
>>> w = Writer()
>>> m = Lanes(w, 8, 32)
>>> x = m.number("%x")
>>> str(m.fused(x, x, 1.0) * 0.5)
'%v2'
>>> print(w.text())
  %v1 = call <8 x float> @llvm.fma.v8f32(<8 x float> %x, <8 x float> %x, <8 x float> splat (float 0x3FF0000000000000))
  %v2 = fmul <8 x float> %v1, splat (float 0x3FE0000000000000)

Only instructions that every machine has are used: arithmetic, comparisons, selects and bit operations. On machines
without fused multiply-add (`Writer.fused` is unset), `fused` rounds the product, and `product_of` splits its operands.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.codegen.text import Writer


@dataclass(frozen=True, eq=False)
class Number:
    """An LLVM value with as many lanes as `m`: a float, an integer of the same width, or an i1.

    `text` is its LLVM operand, `kind` the LLVM type of a lane. Operators emit instructions. Comparisons of floats are
    false where one side is NaN.
    """

    m: Lanes
    text: str
    kind: str

    def __str__(self) -> str:
        return self.text

    @property
    def is_float(self) -> bool:
        """True if the lanes are floats."""
        return self.kind in ("float", "double")

    def _step(self, word: str, a: Number | float, b: Number | float, kind: str = "") -> Number:
        """Emit the instruction `word` on `a` and `b` and return its result.

        `kind` is the LLVM type of the result's lanes; empty: that of this number.
        """
        form = self.m.form(self.kind)
        left, right = self.m.like(a, self.kind), self.m.like(b, self.kind)
        return Number(self.m, self.m.w.value(f"{word} {form} {left}, {right}"), kind or self.kind)

    def _arithmetic(self, word: str, a: Number | float, b: Number | float) -> Number:
        """Emit `add`, `sub` or `mul` (by `word`), for floats or integers as this number is, and return the result."""
        return self._step(f"f{word}" if self.is_float else word, a, b)

    def __add__(self, other: Number | float) -> Number:
        return self._arithmetic("add", self, other)

    def __radd__(self, other: float) -> Number:
        return self._arithmetic("add", other, self)

    def __sub__(self, other: Number | float) -> Number:
        return self._arithmetic("sub", self, other)

    def __rsub__(self, other: float) -> Number:
        return self._arithmetic("sub", other, self)

    def __mul__(self, other: Number | float) -> Number:
        return self._arithmetic("mul", self, other)

    def __rmul__(self, other: float) -> Number:
        return self._arithmetic("mul", other, self)

    def __truediv__(self, other: Number | float) -> Number:
        return self._quotient(self, other)

    def __rtruediv__(self, other: float) -> Number:
        return self._quotient(other, self)

    def _quotient(self, a: Number | float, b: Number | float) -> Number:
        """Emit the division of floats and return it, by the machine's own instruction if it has one."""
        by_instruction = self.m.own("div", a, b) if self.kind == self.m.float else None
        return self._step("fdiv", a, b) if by_instruction is None else by_instruction

    def __neg__(self) -> Number:
        return Number(self.m, self.m.w.value(f"fneg {self.m.form(self.kind)} {self.text}"), self.kind)

    def __and__(self, other: Number | int) -> Number:
        return self._step("and", self, other)

    def __or__(self, other: Number | int) -> Number:
        return self._step("or", self, other)

    def __xor__(self, other: Number | int) -> Number:
        return self._step("xor", self, other)

    def __lshift__(self, count: int) -> Number:
        return self._step("shl", self, count)

    def __rshift__(self, count: int) -> Number:
        """Emit a logical right shift by `count` bits and return it."""
        return self._step("lshr", self, count)

    def signed_shift(self, count: int) -> Number:
        """Emit an arithmetic right shift by `count` bits and return it."""
        return self._step("ashr", self, count)

    def _compared(self, word: str, other: Number | float) -> Number:
        """Emit a comparison with `other` by the LLVM predicate `word` and return the i1."""
        return self._step(f"fcmp o{word}" if self.is_float else f"icmp {word}", self, other, "i1")

    def __lt__(self, other: Number | float) -> Number:
        return self._compared("lt" if self.is_float else "slt", other)

    def __gt__(self, other: Number | float) -> Number:
        return self._compared("gt" if self.is_float else "sgt", other)

    def __ge__(self, other: Number | float) -> Number:
        return self._compared("ge" if self.is_float else "sge", other)

    def equals(self, other: Number | float) -> Number:
        """Emit the comparison for equality and return the i1; 0 and -0 are equal."""
        return self._compared("eq", other)

    def unordered(self, other: Number) -> Number:
        """Emit the test if either of two floats is NaN and return the i1."""
        return self._step("fcmp uno", self, other, "i1")

    def inverted(self) -> Number:
        """Emit the negation of an i1 and return it."""
        return self._step("xor", self, 1)


class Lanes:
    """Emits arithmetic on vectors of `lanes` floats of 32 or 64 bits; `lanes` None: on single floats.

    Values are of the class `Number`; a Python number as an operand becomes a constant in all lanes.
    """

    def __init__(self, w: Writer, lanes: int | None, bits: int):
        self.w, self.lanes, self.bits = w, lanes, bits
        self.float, self.word = {32: ("float", "i32"), 64: ("double", "i64")}[bits]
        self.name = f"f{bits}"
        self.fraction = {32: 23, 64: 52}[bits]
        """Bits of the fraction: where the exponent begins."""
        self.bias = {32: 127, 64: 1023}[bits]
        self.sign = 1 << (bits - 1)
        self.infinity = (2 * self.bias + 1) << self.fraction
        """The bits of infinity; NaNs have larger ones."""
        self.rounder = 1.5 * 2.0**self.fraction
        """A float that, added to a small number, leaves the nearest integer in the lowest bits of the sum."""

    def at(self, bits: int) -> Lanes:
        """Return an emitter with as many lanes of floats of `bits` bits."""
        return Lanes(self.w, self.lanes, bits)

    def form(self, kind: str) -> str:
        """Return the LLVM type of a value whose lanes have type `kind`: `float` -> `<8 x float>`."""
        return kind if self.lanes is None else f"<{self.lanes} x {kind}>"

    def number(self, text: str) -> Number:
        """Return the float value with the LLVM name `text`."""
        return Number(self, text, self.float)

    def own(self, name: str, *values: Number | float) -> Number | None:
        """Emit the machine's own instruction for the f32 function `name` and return its result; None if it has none.

        Vectors and f64 have none.
        """
        if self.w.own is None or self.lanes is not None or self.bits != 32:
            return None
        name_of_result = self.w.own(name, [self.like(v, self.float) for v in values])
        return None if name_of_result is None else self.number(name_of_result)

    def constant(self, value: float) -> Number:
        """Return a float constant in all lanes."""
        return Number(self, self.like(value, self.float), self.float)

    def like(self, value: Number | float, kind: str) -> str:
        """Return the LLVM operand of a value; a Python number becomes a constant of LLVM type `kind` in all lanes."""
        if isinstance(value, Number):
            assert value.kind == kind, f"{value.kind} where {kind} is needed"
            return value.text
        if kind in ("float", "double"):
            exact = struct.unpack("<f", struct.pack("<f", value))[0] if kind == "float" else float(value)
            text = f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}"
        elif kind == "i1":
            text = "true" if value else "false"
        else:
            text = str(int(value))
        return text if self.lanes is None else f"splat ({kind} {text})"

    # -- steps ------------------------------------------------------------------------------------------------

    def fused(self, a: Number, b: Number | float, c: Number | float) -> Number:
        """Emit a*b + c and return it; rounded once if the machine has fused multiply-add, else twice."""
        if not self.w.fused:
            return a * b + c
        form = self.form(self.float)
        intrinsic = f"@llvm.fma.{'' if self.lanes is None else f'v{self.lanes}'}{self.name}"
        self.w.declare(f"{form} {intrinsic}({form}, {form}, {form})")
        parts = ", ".join(f"{form} {self.like(v, self.float)}" for v in (a, b, c))
        return self.number(self.w.value(f"call {form} {intrinsic}({parts})"))

    def polynomial(self, x: Number, coefficients: Sequence[float]) -> Number:
        """Emit the polynomial's value at x by Horner's rule and return it; coefficients of the lowest degree first."""
        total: Number | float = coefficients[-1]
        for c in reversed(coefficients[:-1]):
            total = self.fused(x, total, c)
        return total if isinstance(total, Number) else self.constant(total)

    def select(self, truth: Number, a: Number | float, b: Number | float) -> Number:
        """Emit a select, `a` where the i1 `truth` is set and `b` elsewhere, and return it."""
        kind = next((v.kind for v in (a, b) if isinstance(v, Number)), self.float)
        form = self.form(kind)
        instruction = f"select {self.form('i1')} {truth}, {form} {self.like(a, kind)}, {form} {self.like(b, kind)}"
        return Number(self, self.w.value(instruction), kind)

    def clamped(self, x: Number, lo: float, hi: float) -> Number:
        """Emit x limited to the range from `lo` to `hi` and return it; NaN stays NaN."""
        x = self.select(x < lo, lo, x)
        return self.select(x > hi, hi, x)

    def bits_of(self, x: Number) -> Number:
        """Emit the bitcast of a float to an integer and return it."""
        cast = f"bitcast {self.form(self.float)} {x} to {self.form(self.word)}"
        return Number(self, self.w.value(cast), self.word)

    def of_bits(self, word: Number) -> Number:
        """Emit the bitcast of an integer to a float and return it."""
        return self.number(self.w.value(f"bitcast {self.form(self.word)} {word} to {self.form(self.float)}"))

    def magnitude(self, x: Number) -> Number:
        """Emit |x| and return it."""
        return self.of_bits(self.bits_of(x) & (self.sign - 1))

    def sign_bit(self, x: Number) -> Number:
        """Emit the bits of x with all but the sign bit cleared and return the integer."""
        return self.bits_of(x) & -self.sign

    def with_sign(self, x: Number, sign: Number) -> Number:
        """Emit x with its sign flipped where the sign bit of the integer `sign` is set, and return it."""
        return self.of_bits(self.bits_of(x) ^ sign)

    def of_integer(self, word: Number) -> Number:
        """Emit the conversion of a signed integer to a float and return it."""
        return self.number(self.w.value(f"sitofp {self.form(self.word)} {word} to {self.form(self.float)}"))

    def widened(self, x: Number) -> Number:
        """Emit the conversion of an f32 to f64 and return it."""
        return self.at(64).number(self.w.value(f"fpext {self.form('float')} {x} to {self.form('double')}"))

    def narrowed(self, x: Number) -> Number:
        """Emit the conversion of an f64 to f32, rounded, and return it."""
        return self.at(32).number(self.w.value(f"fptrunc {self.form('double')} {x} to {self.form('float')}"))

    def low_half(self, word: Number) -> Number:
        """Emit the truncation of an i64 to its lower 32 bits and return the i32."""
        return Number(self.at(32), self.w.value(f"trunc {self.form('i64')} {word} to {self.form('i32')}"), "i32")

    # -- sums and products with their rounding errors -----------------------------------------------------------

    def sum_of(self, a: Number | float, b: Number) -> tuple[Number, Number]:
        """Emit a + b and its rounding error, which is exact for |a| >= |b| or a = 0; return both."""
        total = a + b
        return total, b - (total - a)

    def difference_of(self, a: Number, b: Number) -> tuple[Number, Number]:
        """Emit a - b and its exact rounding error; return both."""
        total = a - b
        back = total - a
        return total, (a - (total - back)) - (b + back)

    def product_of(self, a: Number, b: Number | float) -> tuple[Number, Number]:
        """Emit a*b and its rounding error; return both.

        The error is exact with fused multiply-add, else the pair has about twice the precision.
        """
        total = a * b
        if self.w.fused:
            return total, self.fused(a, b, -total)
        other = b if isinstance(b, Number) else self.constant(b)
        (a_hi, a_lo), (b_hi, b_lo) = self._halves(a), self._halves(other)
        return total, a_lo * b_lo - (((total - a_hi * b_hi) - a_lo * b_hi) - a_hi * b_lo)

    def _halves(self, x: Number) -> tuple[Number, Number]:
        """Emit the split of a float into a sum of two with about half of its bits each; return both."""
        hi = self.of_bits(self.bits_of(x) & -(1 << (self.fraction // 2 + 1)))
        return hi, x - hi
