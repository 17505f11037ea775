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
        """True if each lane of the value is a float (f32 or f64), not an integer or an i1."""
        return self.kind in ("float", "double")

    def _step(self, word: str, a: Number | float, b: Number | float, kind: str = "") -> Number:
        """Emit the LLVM instruction `word`, such as "fmul", on `a` and `b`, and return its result.

        `a` and `b` must have the type of this number; Python numbers become constants of this type. `kind` is the LLVM
        type of the result's lanes; "": the type of this number.
        """
        form = self.m.form(self.kind)
        left, right = self.m.like(a, self.kind), self.m.like(b, self.kind)
        return Number(self.m, self.m.w.value(f"{word} {form} {left}, {right}"), kind or self.kind)

    def _arithmetic(self, word: str, a: Number | float, b: Number | float) -> Number:
        """Emit the sum, difference or product of `a` and `b`, and return the result; `word` is "add", "sub" or "mul".

        `a` and `b` must have the type of this number, float or integer; Python numbers become constants of this type.
        """
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
        """Emit the quotient a/b of floats of this number's type, and return the result; Python numbers become
        constants.

        For single f32 numbers, the machine's division instruction is used if it has one.
        """
        by_instruction = self.m.by_instruction("div", a, b) if self.kind == self.m.float else None
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
        """Emit this integer's logical right shift by `count` bits (zeros come in) and return it."""
        return self._step("lshr", self, count)

    def signed_shift(self, count: int) -> Number:
        """Emit the arithmetic right shift of this integer by `count` bits (copies of the sign bit come in); return the
        result.
        """
        return self._step("ashr", self, count)

    def _compared(self, word: str, other: Number | float) -> Number:
        """Emit the comparison of this number with `other`, and return the i1 of each lane.

        `word` is the LLVM predicate, such as "lt" for floats or "slt" for integers. Comparisons of floats are false if
        either is NaN.
        """
        return self._step(f"fcmp o{word}" if self.is_float else f"icmp {word}", self, other, "i1")

    def __lt__(self, other: Number | float) -> Number:
        return self._compared("lt" if self.is_float else "slt", other)

    def __gt__(self, other: Number | float) -> Number:
        return self._compared("gt" if self.is_float else "sgt", other)

    def __ge__(self, other: Number | float) -> Number:
        return self._compared("ge" if self.is_float else "sge", other)

    def equals(self, other: Number | float) -> Number:
        """Emit the test whether this number equals `other`, and return the i1 of each lane.

        0.0 and -0.0 are equal; NaN equals nothing.
        """
        return self._compared("eq", other)

    def unordered(self, other: Number) -> Number:
        """Emit the test whether this float or the float `other` is NaN, and return the i1 of each lane."""
        return self._step("fcmp uno", self, other, "i1")

    def inverted(self) -> Number:
        """Emit the negation of this i1 (true becomes false) and return it."""
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
        """Return an emitter for floats of `bits` bits (32 or 64), with the same writer and the same number of lanes."""
        return Lanes(self.w, self.lanes, bits)

    def form(self, kind: str) -> str:
        """Return the LLVM type of a value with `kind` as LLVM type of each lane: with 8 lanes, "i32" gives "<8 x i32>".

        For single numbers, return `kind` itself.
        """
        return kind if self.lanes is None else f"<{self.lanes} x {kind}>"

    def number(self, text: str) -> Number:
        """Return the LLVM operand `text`, a float in each lane, as a `Number`, an object with operators that emit
        instructions.

        Nothing is emitted here.
        """
        return Number(self, text, self.float)

    def by_instruction(self, name: str, *values: Number | float) -> Number | None:
        """Emit the machine's instruction for the function `name`, such as "exp", of the operands `values`; return its
        result.

        Return None, with nothing emitted, for vectors, for f64, and if the machine has no such instruction.
        """
        if self.w.instruction is None or self.lanes is not None or self.bits != 32:
            return None
        name_of_result = self.w.instruction(name, [self.like(v, self.float) for v in values])
        return None if name_of_result is None else self.number(name_of_result)

    def constant(self, value: float) -> Number:
        """Return the float constant `value`, the same in all lanes. Nothing is emitted."""
        return Number(self, self.like(value, self.float), self.float)

    def like(self, value: Number | float, kind: str) -> str:
        """Return the LLVM operand of `value`. A Python number becomes a constant with lanes of the LLVM type `kind`.

        A `Number` must have this type already. Nothing is emitted.
        """
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
        """Emit a*b + c for each lane, and return the result.

        It is rounded once if the machine has fused multiply-add; otherwise the product is rounded, too.
        """
        if not self.w.fused:
            return a * b + c
        form = self.form(self.float)
        intrinsic = f"@llvm.fma.{'' if self.lanes is None else f'v{self.lanes}'}{self.name}"
        self.w.declare(f"{form} {intrinsic}({form}, {form}, {form})")
        parts = ", ".join(f"{form} {self.like(v, self.float)}" for v in (a, b, c))
        return self.number(self.w.value(f"call {form} {intrinsic}({parts})"))

    def polynomial(self, x: Number, coefficients: Sequence[float]) -> Number:
        """Emit the polynomial with these `coefficients`, lowest degree first, at x for each lane, and return the
        result.

        It is evaluated by Horner's rule.
        """
        total: Number | float = coefficients[-1]
        for c in reversed(coefficients[:-1]):
            total = self.fused(x, total, c)
        return total if isinstance(total, Number) else self.constant(total)

    def select(self, truth: Number, a: Number | float, b: Number | float) -> Number:
        """Emit an LLVM select, and return its result: `a` in lanes where the i1 `truth` is set, else `b`.

        Python numbers become constants.
        """
        kind = next((v.kind for v in (a, b) if isinstance(v, Number)), self.float)
        form = self.form(kind)
        instruction = f"select {self.form('i1')} {truth}, {form} {self.like(a, kind)}, {form} {self.like(b, kind)}"
        return Number(self, self.w.value(instruction), kind)

    def clamped(self, x: Number, lo: float, hi: float) -> Number:
        """Emit x limited to the range from `lo` to `hi`, for each lane, and return the result. NaN stays NaN."""
        x = self.select(x < lo, lo, x)
        return self.select(x > hi, hi, x)

    def bits_of(self, x: Number) -> Number:
        """Emit the bitcast of the float x to an integer of the same width, and return the integer."""
        cast = f"bitcast {self.form(self.float)} {x} to {self.form(self.word)}"
        return Number(self, self.w.value(cast), self.word)

    def of_bits(self, word: Number) -> Number:
        """Emit the bitcast of the integer `word` to a float of the same width, and return the float."""
        return self.number(self.w.value(f"bitcast {self.form(self.word)} {word} to {self.form(self.float)}"))

    def magnitude(self, x: Number) -> Number:
        """Emit the absolute value of the float x (its sign bit is cleared), and return the result."""
        return self.of_bits(self.bits_of(x) & (self.sign - 1))

    def sign_bit(self, x: Number) -> Number:
        """Emit the bits of the float x with all but the sign bit cleared, and return the integer.

        It is 0 if the sign is plus, else 2^31 (f32) or 2^63 (f64).
        """
        return self.bits_of(x) & -self.sign

    def flip_sign(self, x: Number, sign: Number) -> Number:
        """Emit the float x with its sign flipped in lanes where the sign bit of the integer `sign` is set; return the
        result.
        """
        return self.of_bits(self.bits_of(x) ^ sign)

    def of_integer(self, word: Number) -> Number:
        """Emit the conversion of the signed integer `word` to a float of the same width, rounded to nearest; return the
        float.
        """
        return self.number(self.w.value(f"sitofp {self.form(self.word)} {word} to {self.form(self.float)}"))

    def widened(self, x: Number) -> Number:
        """Emit the exact conversion of the f32 number x to f64 for each lane, and return the f64."""
        return self.at(64).number(self.w.value(f"fpext {self.form('float')} {x} to {self.form('double')}"))

    def narrowed(self, x: Number) -> Number:
        """Emit the conversion of the f64 number x to f32, rounded to nearest, for each lane, and return the f32."""
        return self.at(32).number(self.w.value(f"fptrunc {self.form('double')} {x} to {self.form('float')}"))

    def low_half(self, word: Number) -> Number:
        """Emit the truncation of the i64 number `word` to its lower 32 bits for each lane, and return the i32."""
        return Number(self.at(32), self.w.value(f"trunc {self.form('i64')} {word} to {self.form('i32')}"), "i32")

    # -- sums and products with their rounding errors -----------------------------------------------------------

    def sum_of(self, a: Number | float, b: Number) -> tuple[Number, Number]:
        """Emit the sum a + b and its rounding error; return (rounded sum, rounding error).

        The error is exact if |a| >= |b| or a is 0.
        """
        total = a + b
        return total, b - (total - a)

    def difference_of(self, a: Number, b: Number) -> tuple[Number, Number]:
        """Emit the difference a - b and its rounding error; return (rounded difference, rounding error).

        The error is exact for operands of any size.
        """
        total = a - b
        back = total - a
        return total, (a - (total - back)) - (b + back)

    def product_of(self, a: Number, b: Number | float) -> tuple[Number, Number]:
        """Emit the product a*b and its rounding error; return (rounded product, rounding error).

        The error is exact if the machine has fused multiply-add. Otherwise it is computed from halves of the operands,
        and both results together have about twice the precision of one float.
        """
        total = a * b
        if self.w.fused:
            return total, self.fused(a, b, -total)
        other = b if isinstance(b, Number) else self.constant(b)
        (a_hi, a_lo), (b_hi, b_lo) = self._halves(a), self._halves(other)
        return total, a_lo * b_lo - (((total - a_hi * b_hi) - a_lo * b_hi) - a_hi * b_lo)

    def _halves(self, x: Number) -> tuple[Number, Number]:
        """Emit two floats that add up to the float x; return (x with the lower half of its fraction bits cleared, the
        remainder).
        """
        hi = self.of_bits(self.bits_of(x) & -(1 << (self.fraction // 2 + 1)))
        return hi, x - hi
