"""Floats of eight bits and less in LLVM IR: to f32 and back, by integer arithmetic.

They travel as bytes. To f32: the code is moved to where f32 has its exponent and fraction, and multiplied by the power
of two between the two biases, which is exact for subnormal numbers too. From f32: rounded to nearest, ties to even, by
adding half of the last bit; below the smallest normal number by adding a power of two whose last bit is the result's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType

if TYPE_CHECKING:
    from tilewright.codegen.formula import FormulaWriter


@dataclass(frozen=True)
class Format:
    """A float with a sign: bits of its fraction, its bias, the code of its largest number, and what lies beyond.

    `beyond` and `nan` are the codes that numbers too large and what is no number become; None: the largest number, and
    zero with the other sign. `infinite` is the code of infinity, where codes above it are no numbers.
    """

    fraction: int
    bias: int
    largest: int
    sign: int = 0x80
    beyond: int | None = None
    nan: int | None = None
    infinite: int | None = None
    one_nan: bool = False
    """Whether the code of minus zero is the only one that is no number."""


FORMATS = {
    "f8e4m3fn": Format(3, 7, 0x7E, beyond=0x7F, nan=0x7F),
    "f8e5m2": Format(2, 15, 0x7B, beyond=0x7C, nan=0x7E, infinite=0x7C),
    "f8e4m3fnuz": Format(3, 8, 0x7F, beyond=0x80, nan=0x80, one_nan=True),
    "f8e5m2fnuz": Format(2, 16, 0x7F, beyond=0x80, nan=0x80, one_nan=True),
    "f6e2m3fn": Format(3, 1, 0x1F, sign=0x20),
    "f4e2m1fn": Format(1, 1, 0x07, sign=0x08),
}
QUIET = 0x7FC00000
ENDLESS = 0x7F800000


def is_small(kind: DType) -> bool:
    """Whether it is a float that travels as a byte."""
    return kind.is_float and kind.bits <= 8


class _Words:
    """Steps on 32-bit words and floats with a formula's lanes."""

    def __init__(self, to: FormulaWriter):
        self.to, self.word, self.float, self.byte = to, to.kind("i32"), to.kind("float"), to.kind("i8")

    def number(self, value: int) -> str:
        return self.to.number(value - (1 << 32) if value >= 1 << 31 else value, dtypes.i32)

    def step(self, name: str, a: str, b: int | str) -> str:
        return self.to.w.value(f"{name} {self.word} {a}, {self.number(b) if isinstance(b, int) else b}")

    def select(self, condition: str, a: int | str, b: int | str) -> str:
        x, y = (self.number(v) if isinstance(v, int) else v for v in (a, b))
        return self.to.w.value(f"select {self.to.kind('i1')} {condition}, {self.word} {x}, {self.word} {y}")

    def as_float(self, word: str) -> str:
        return self.to.w.value(f"bitcast {self.word} {word} to {self.float}")

    def as_word(self, number: str) -> str:
        return self.to.w.value(f"bitcast {self.float} {number} to {self.word}")

    def widened(self, byte: str) -> str:
        return self.to.w.value(f"zext {self.byte} {byte} to {self.word}")

    def cut(self, word: str) -> str:
        return self.to.w.value(f"trunc {self.word} {word} to {self.byte}")


def widened(to: FormulaWriter, value: str, kind: DType) -> str:
    """A small float as f32; every one of them is one."""
    w = _Words(to)
    code = w.widened(value)
    if kind is dtypes.f8e8m0fnu:
        return w.as_float(_power(w, code))
    form = FORMATS[kind.name]
    size = w.step("and", code, form.sign - 1)
    moved = w.as_float(w.step("shl", size, 23 - form.fraction))
    scale = to.number(2.0 ** (127 - form.bias), dtypes.f32)
    bits = w.as_word(to.w.value(f"fmul {w.float} {moved}, {scale}"))
    if form.infinite is not None:
        bits = w.select(w.step("icmp uge", size, form.infinite), ENDLESS, bits)
        bits = w.select(w.step("icmp ugt", size, form.infinite), QUIET, bits)
    elif form.nan is not None and not form.one_nan:
        bits = w.select(w.step("icmp eq", size, form.nan), QUIET, bits)
    sign = w.step("shl", w.step("and", code, form.sign), 32 - form.sign.bit_length())
    bits = w.step("or", bits, sign)
    if form.one_nan:
        bits = w.select(w.step("icmp eq", code, form.sign), QUIET, bits)
    return w.as_float(bits)


def narrowed(to: FormulaWriter, value: str, kind: DType) -> str:
    """An f32 as a small float."""
    w = _Words(to)
    word = w.as_word(value)
    size = w.step("and", word, 0x7FFFFFFF)
    nothing = w.step("icmp ugt", size, ENDLESS)
    if kind is dtypes.f8e8m0fnu:
        return w.cut(_exponent(w, word, size))
    form = FORMATS[kind.name]
    step = 1 << (23 - form.fraction)
    odd = w.step("and", w.step("lshr", size, 23 - form.fraction), 1)
    rounded = w.step("add", w.step("add", size, step // 2 - 1 - ((127 - form.bias) << 23)), odd)
    normal = w.step("lshr", rounded, 23 - form.fraction)
    unit = 2.0 ** (1 - form.bias - form.fraction + 23)
    near = to.w.value(f"fadd {w.float} {w.as_float(size)}, {to.number(unit, dtypes.f32)}")
    below = w.step("sub", w.as_word(near), (127 + 1 - form.bias - form.fraction + 23) << 23)
    code = w.select(w.step("icmp ult", size, (128 - form.bias) << 23), below, normal)
    beyond = w.step("icmp ugt", code, form.largest)
    sign = w.step("and", w.step("lshr", word, 32 - form.sign.bit_length()), form.sign)
    if form.one_nan:
        signed = w.select(w.step("icmp eq", code, 0), 0, w.step("or", code, sign))
        assert form.nan is not None
        return w.cut(w.select(nothing, form.nan, w.select(beyond, form.nan, signed)))
    code = w.select(beyond, form.largest if form.beyond is None else form.beyond, code)
    if form.nan is None:
        return w.cut(w.select(nothing, w.step("xor", sign, form.sign), w.step("or", code, sign)))
    return w.cut(w.step("or", w.select(nothing, form.nan, code), sign))


# -- powers of two: an exponent and nothing else ----------------------------------------------------------------


def _power(w: _Words, code: str) -> str:
    """The bits of 2^(code - 127); 255 is no number, and the smallest power is a subnormal one."""
    bits = w.select(w.step("icmp eq", code, 0), 1 << 22, w.step("shl", code, 23))
    return w.select(w.step("icmp eq", code, 255), QUIET, bits)


def _exponent(w: _Words, word: str, size: str) -> str:
    """The code of the nearest power of two, of two the larger one; 255 for what is no number, zero or negative.

    Between the two smallest powers it is always the larger one, as the executor has it.
    """
    normal = w.step("lshr", w.step("add", size, 1 << 22), 23)
    below = w.select(w.step("icmp ugt", size, 1 << 22), 1, 0)
    code = w.select(w.step("icmp ult", size, 1 << 23), below, normal)
    code = w.select(w.step("icmp ugt", code, 254), 255, code)
    return w.select(w.step("icmp sle", word, 0), 255, code)
