"""Numbers in vector lanes, written as arithmetic: what a function is made of becomes LLVM text as Python evaluates it.

>>> from tilewright.codegen.text import Writer
>>> w = Writer()
>>> m = Lanes(w, 8, 32)
>>> x = m.number("%x")
>>> str(m.fused(x, x, 1.0) * 0.5)
'%v2'
>>> print(w.text())
  %v1 = call <8 x float> @llvm.fma.v8f32(<8 x float> %x, <8 x float> %x, <8 x float> splat (float 0x3FF0000000000000))
  %v2 = fmul <8 x float> %v1, splat (float 0x3FE0000000000000)

Only what every machine has is used: arithmetic, comparisons, selections and operations on bits. Where a machine has no
fused multiply-add (`Writer.fused` is unset), `fused` rounds the product, and `product_of` splits its factors.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.codegen.text import Writer


@dataclass(frozen=True, eq=False)
class Number:
    """A value in all lanes: a float, an integer as wide (both with arithmetic), or a truth.

    Comparisons of floats are false where one side is no number.
    """

    m: Lanes
    text: str
    kind: str

    def __str__(self) -> str:
        return self.text

    @property
    def is_float(self) -> bool:
        """Whether it is a float."""
        return self.kind in ("float", "double")

    def _step(self, word: str, a: Number | float, b: Number | float, kind: str = "") -> Number:
        form = self.m.form(self.kind)
        left, right = self.m.like(a, self.kind), self.m.like(b, self.kind)
        return Number(self.m, self.m.w.value(f"{word} {form} {left}, {right}"), kind or self.kind)

    def _arithmetic(self, word: str, a: Number | float, b: Number | float) -> Number:
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
        found = self.m.own("div", a, b) if self.kind == self.m.float else None
        return self._step("fdiv", a, b) if found is None else found

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
        """Zeros come in from above."""
        return self._step("lshr", self, count)

    def signed_shift(self, count: int) -> Number:
        """Shifted right; the sign comes in from above."""
        return self._step("ashr", self, count)

    def _compared(self, word: str, other: Number | float) -> Number:
        return self._step(f"fcmp o{word}" if self.is_float else f"icmp {word}", self, other, "i1")

    def __lt__(self, other: Number | float) -> Number:
        return self._compared("lt" if self.is_float else "slt", other)

    def __gt__(self, other: Number | float) -> Number:
        return self._compared("gt" if self.is_float else "sgt", other)

    def __ge__(self, other: Number | float) -> Number:
        return self._compared("ge" if self.is_float else "sge", other)

    def equals(self, other: Number | float) -> Number:
        """Whether both are equal; zeros of both signs are."""
        return self._compared("eq", other)

    def unordered(self, other: Number) -> Number:
        """Whether one of both is no number."""
        return self._step("fcmp uno", self, other, "i1")

    def inverted(self) -> Number:
        """A truth, turned round."""
        return self._step("xor", self, 1)


class Lanes:
    """Writes arithmetic on floats of 32 or 64 bits in so many lanes; lanes None: single numbers."""

    def __init__(self, w: Writer, lanes: int | None, bits: int):
        self.w, self.lanes, self.bits = w, lanes, bits
        self.float, self.word = {32: ("float", "i32"), 64: ("double", "i64")}[bits]
        self.name = f"f{bits}"
        self.fraction = {32: 23, 64: 52}[bits]
        """Bits of the fraction: where the exponent begins."""
        self.bias = {32: 127, 64: 1023}[bits]
        self.sign = 1 << (bits - 1)
        self.infinity = (2 * self.bias + 1) << self.fraction
        """The code of infinity; codes above are no numbers."""
        self.rounder = 1.5 * 2.0**self.fraction
        """Added to a small number, this leaves the nearest integer in the lowest bits."""

    def at(self, bits: int) -> Lanes:
        """As many lanes of another width."""
        return Lanes(self.w, self.lanes, bits)

    def form(self, kind: str) -> str:
        """The LLVM type of a value."""
        return kind if self.lanes is None else f"<{self.lanes} x {kind}>"

    def number(self, text: str) -> Number:
        """A float by its name."""
        return Number(self, text, self.float)

    def own(self, name: str, *values: Number | float) -> Number | None:
        """A function of f32 as the machine has it; None where it has none, or not for so many lanes."""
        if self.w.own is None or self.lanes is not None or self.bits != 32:
            return None
        found = self.w.own(name, [self.like(v, self.float) for v in values])
        return None if found is None else self.number(found)

    def constant(self, value: float) -> Number:
        """A float in all lanes."""
        return Number(self, self.like(value, self.float), self.float)

    def like(self, value: Number | float, kind: str) -> str:
        """An operand's text; a Python number becomes one of the kind, in all lanes."""
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
        """a*b + c, rounded once where the machine does that, twice where it does not."""
        if not self.w.fused:
            return a * b + c
        form = self.form(self.float)
        full = f"@llvm.fma.{'' if self.lanes is None else f'v{self.lanes}'}{self.name}"
        self.w.declare(f"{form} {full}({form}, {form}, {form})")
        parts = ", ".join(f"{form} {self.like(v, self.float)}" for v in (a, b, c))
        return self.number(self.w.value(f"call {form} {full}({parts})"))

    def polynomial(self, x: Number, coefficients: Sequence[float]) -> Number:
        """The polynomial's value, by Horner's rule; lowest degree first."""
        total: Number | float = coefficients[-1]
        for c in reversed(coefficients[:-1]):
            total = self.fused(x, total, c)
        return total if isinstance(total, Number) else self.constant(total)

    def select(self, truth: Number, a: Number | float, b: Number | float) -> Number:
        """`a` where it is true, else `b`."""
        kind = next((v.kind for v in (a, b) if isinstance(v, Number)), self.float)
        form = self.form(kind)
        chosen = f"select {self.form('i1')} {truth}, {form} {self.like(a, kind)}, {form} {self.like(b, kind)}"
        return Number(self, self.w.value(chosen), kind)

    def clamped(self, x: Number, lo: float, hi: float) -> Number:
        """x, kept between both; what is no number stays so."""
        x = self.select(x < lo, lo, x)
        return self.select(x > hi, hi, x)

    def bits_of(self, x: Number) -> Number:
        """A float's code as an integer."""
        cast = f"bitcast {self.form(self.float)} {x} to {self.form(self.word)}"
        return Number(self, self.w.value(cast), self.word)

    def of_bits(self, word: Number) -> Number:
        """The float with that code."""
        return self.number(self.w.value(f"bitcast {self.form(self.word)} {word} to {self.form(self.float)}"))

    def magnitude(self, x: Number) -> Number:
        """x without its sign."""
        return self.of_bits(self.bits_of(x) & (self.sign - 1))

    def sign_bit(self, x: Number) -> Number:
        """The sign's bit in its place, all others zero."""
        return self.bits_of(x) & -self.sign

    def with_sign(self, x: Number, sign: Number) -> Number:
        """x, its sign turned where the bit is set."""
        return self.of_bits(self.bits_of(x) ^ sign)

    def of_integer(self, word: Number) -> Number:
        """A signed integer as a float."""
        return self.number(self.w.value(f"sitofp {self.form(self.word)} {word} to {self.form(self.float)}"))

    def widened(self, x: Number) -> Number:
        """An f32 as the f64 it is."""
        return self.at(64).number(self.w.value(f"fpext {self.form('float')} {x} to {self.form('double')}"))

    def narrowed(self, x: Number) -> Number:
        """An f64, rounded to f32."""
        return self.at(32).number(self.w.value(f"fptrunc {self.form('double')} {x} to {self.form('float')}"))

    def low_half(self, word: Number) -> Number:
        """The lower 32 of 64 bits."""
        return Number(self.at(32), self.w.value(f"trunc {self.form('i64')} {word} to {self.form('i32')}"), "i32")

    # -- sums and products with what rounding lost --------------------------------------------------------------

    def sum_of(self, a: Number | float, b: Number) -> tuple[Number, Number]:
        """a + b and what its rounding lost, exactly, for |a| >= |b| or a = 0."""
        total = a + b
        return total, b - (total - a)

    def difference_of(self, a: Number, b: Number) -> tuple[Number, Number]:
        """a - b and what its rounding lost, exactly."""
        total = a - b
        back = total - a
        return total, (a - (total - back)) - (b + back)

    def product_of(self, a: Number, b: Number | float) -> tuple[Number, Number]:
        """a*b and what its rounding lost: exactly if multiply-add is fused, else to twice the precision."""
        total = a * b
        if self.w.fused:
            return total, self.fused(a, b, -total)
        factor = b if isinstance(b, Number) else self.constant(b)
        (a_hi, a_lo), (b_hi, b_lo) = self._halves(a), self._halves(factor)
        return total, a_lo * b_lo - (((total - a_hi * b_hi) - a_lo * b_hi) - a_hi * b_lo)

    def _halves(self, x: Number) -> tuple[Number, Number]:
        hi = self.of_bits(self.bits_of(x) & -(1 << (self.fraction // 2 + 1)))
        return hi, x - hi
