"""Conversions in LLVM IR between f32 and floats of eight bits or less, by integer arithmetic.

A small float is an i8 in LLVM IR; its bit pattern is called its code. To f32, the code is shifted to the position of
f32's exponent and fraction and multiplied by the power of two between the two biases, which is exact for subnormal
numbers too. From f32, the number is rounded to nearest, ties to even, by adding half of the last bit of the result;
below the smallest normal number, a power of two is added whose last bit has the weight of the result's last bit.
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
    """The encoding of a signed small float; a code is a bit pattern, without its sign bit unless said otherwise.

    `fraction` is the number of fraction bits, `bias` the exponent bias, `largest` the code of the largest finite
    number, `sign` the mask of the sign bit. `beyond` is the code of numbers that overflow; None: they become the
    largest number. `nan` is the code of NaN; None: NaN becomes zero with the opposite sign. `infinite` is the code of
    infinity, with NaN above it; None: the type has no infinity.
    """

    fraction: int
    bias: int
    largest: int
    sign: int = 0x80
    beyond: int | None = None
    nan: int | None = None
    infinite: int | None = None
    one_nan: bool = False
    """True if the code of minus zero is the only NaN of the type."""


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
    """True if the element type `kind` is a float of at most 8 bits (f8, f6, f4). LLVM IR holds such an element in an
    i8.
    """
    return kind.is_float and kind.bits <= 8


class _Words:
    """Emits single LLVM instructions on i32, i8 and f32 values that have as many lanes as a formula."""

    def __init__(self, writer: FormulaWriter):
        self.writer, self.word, self.float, self.byte = (
            writer,
            writer.kind("i32"),
            writer.kind("float"),
            writer.kind("i8"),
        )

    def number(self, value: int) -> str:
        """Return the LLVM constant of `value`, an unsigned 32-bit integer, as an i32 operand in all lanes.

        LLVM writes it as a signed number: 0xFFFFFFFF gives "-1".
        """
        return self.writer.number(value - (1 << 32) if value >= 1 << 31 else value, dtypes.i32)

    def step(self, name: str, a: str, b: int | str) -> str:
        """Emit the LLVM instruction `name`, such as "and" or "icmp ult", on the i32 operands `a` and `b`.

        An int `b` becomes a constant in all lanes. Return the LLVM name of the result.
        """
        return self.writer.w.value(f"{name} {self.word} {a}, {self.number(b) if isinstance(b, int) else b}")

    def select(self, condition: str, a: int | str, b: int | str) -> str:
        """Emit an LLVM select of i32: `a` in lanes where the i1 `condition` is set, `b` elsewhere.

        Operands given as ints become constants in all lanes. Return the LLVM name of the result.
        """
        x, y = (self.number(v) if isinstance(v, int) else v for v in (a, b))
        return self.writer.w.value(f"select {self.writer.kind('i1')} {condition}, {self.word} {x}, {self.word} {y}")

    def as_float(self, word: str) -> str:
        """Emit the bitcast of the i32 `word` (an LLVM name) to f32 and return the LLVM name of the result."""
        return self.writer.w.value(f"bitcast {self.word} {word} to {self.float}")

    def as_word(self, number: str) -> str:
        """Emit the bitcast of the f32 `number` (an LLVM name) to i32 and return the LLVM name of the result."""
        return self.writer.w.value(f"bitcast {self.float} {number} to {self.word}")

    def widened(self, byte: str) -> str:
        """Emit the zero extension of the i8 `byte` (an LLVM name) to i32 and return the LLVM name of the result."""
        return self.writer.w.value(f"zext {self.byte} {byte} to {self.word}")

    def truncated(self, word: str) -> str:
        """Emit the truncation of the i32 `word` (an LLVM name) to i8 and return the LLVM name of the result."""
        return self.writer.w.value(f"trunc {self.word} {word} to {self.byte}")


def widened(writer: FormulaWriter, value: str, kind: DType) -> str:
    """Emit the exact conversion to f32 of `value`, the LLVM name of an i8 that holds a float of type `kind`.

    `kind` has 8 bits or fewer. Return the LLVM name of the f32. NaN and infinity are kept. `writer` takes the
    instructions and knows the number of lanes.
    """
    w = _Words(writer)
    code = w.widened(value)
    if kind is dtypes.f8e8m0fnu:
        return w.as_float(_power(w, code))
    encoding = FORMATS[kind.name]
    magnitude = w.step("and", code, encoding.sign - 1)
    shifted = w.as_float(w.step("shl", magnitude, 23 - encoding.fraction))
    scale = writer.number(2.0 ** (127 - encoding.bias), dtypes.f32)
    bits = w.as_word(writer.w.value(f"fmul {w.float} {shifted}, {scale}"))
    if encoding.infinite is not None:
        bits = w.select(w.step("icmp uge", magnitude, encoding.infinite), ENDLESS, bits)
        bits = w.select(w.step("icmp ugt", magnitude, encoding.infinite), QUIET, bits)
    elif encoding.nan is not None and not encoding.one_nan:
        bits = w.select(w.step("icmp eq", magnitude, encoding.nan), QUIET, bits)
    sign = w.step("shl", w.step("and", code, encoding.sign), 32 - encoding.sign.bit_length())
    bits = w.step("or", bits, sign)
    if encoding.one_nan:
        bits = w.select(w.step("icmp eq", code, encoding.sign), QUIET, bits)
    return w.as_float(bits)


def narrowed(writer: FormulaWriter, value: str, kind: DType) -> str:
    """Emit the conversion of `value`, the LLVM name of an f32, to the float type `kind`, which has 8 bits or fewer.

    Return the LLVM name of the i8 with the result's bits. The number is rounded to nearest, ties to even (for f8e8m0fnu
    to a power of two, see `_exponent`). If it overflows, the result is infinity; NaN in types without infinity; and the
    largest number in types with neither. In types without NaN, a NaN becomes zero with the opposite sign. `writer`
    takes the instructions and knows the number of lanes.
    """
    w = _Words(writer)
    word = w.as_word(value)
    magnitude = w.step("and", word, 0x7FFFFFFF)
    is_nan = w.step("icmp ugt", magnitude, ENDLESS)
    if kind is dtypes.f8e8m0fnu:
        return w.truncated(_exponent(w, word, magnitude))
    encoding = FORMATS[kind.name]
    last_bit = 1 << (23 - encoding.fraction)
    odd = w.step("and", w.step("lshr", magnitude, 23 - encoding.fraction), 1)
    rounded = w.step("add", w.step("add", magnitude, last_bit // 2 - 1 - ((127 - encoding.bias) << 23)), odd)
    normal = w.step("lshr", rounded, 23 - encoding.fraction)
    shift_in = 2.0 ** (1 - encoding.bias - encoding.fraction + 23)
    rounded_sum = writer.w.value(f"fadd {w.float} {w.as_float(magnitude)}, {writer.number(shift_in, dtypes.f32)}")
    subnormal = w.step("sub", w.as_word(rounded_sum), (127 + 1 - encoding.bias - encoding.fraction + 23) << 23)
    code = w.select(w.step("icmp ult", magnitude, (128 - encoding.bias) << 23), subnormal, normal)
    overflows = w.step("icmp ugt", code, encoding.largest)
    sign = w.step("and", w.step("lshr", word, 32 - encoding.sign.bit_length()), encoding.sign)
    if encoding.one_nan:
        signed = w.select(w.step("icmp eq", code, 0), 0, w.step("or", code, sign))
        assert encoding.nan is not None
        return w.truncated(w.select(is_nan, encoding.nan, w.select(overflows, encoding.nan, signed)))
    code = w.select(overflows, encoding.largest if encoding.beyond is None else encoding.beyond, code)
    if encoding.nan is None:
        return w.truncated(w.select(is_nan, w.step("xor", sign, encoding.sign), w.step("or", code, sign)))
    return w.truncated(w.step("or", w.select(is_nan, encoding.nan, code), sign))


# -- f8e8m0: an exponent without sign and fraction ---------------------------------------------------------------


def _power(w: _Words, code: str) -> str:
    """Emit the f32 bits of 2^(code - 127), the value of the f8e8m0 number with bits `code`; return the LLVM name of the
    i32.

    `code` is the LLVM name of an i32. 255 gives the bits of NaN, 0 those of the subnormal number 2^-127. `w` takes the
    instructions.
    """
    bits = w.select(w.step("icmp eq", code, 0), 1 << 22, w.step("shl", code, 23))
    return w.select(w.step("icmp eq", code, 255), QUIET, bits)


def _exponent(w: _Words, word: str, magnitude: str) -> str:
    """Emit the f8e8m0 code of the power of two nearest to an f32, and return the LLVM name of this i32.

    The code of 2^e is e + 127. `word` has the bits of the f32, `magnitude` the same without the sign bit; both are LLVM
    names. Ties go to the larger power. Between the two smallest powers, the larger is always taken, as the interpreter
    does. Zero, negative numbers, NaN, and numbers that round to 2^128 or more give 255, the code of NaN. `w` takes the
    instructions.
    """
    normal = w.step("lshr", w.step("add", magnitude, 1 << 22), 23)
    subnormal = w.select(w.step("icmp ugt", magnitude, 1 << 22), 1, 0)
    code = w.select(w.step("icmp ult", magnitude, 1 << 23), subnormal, normal)
    code = w.select(w.step("icmp ugt", code, 254), 255, code)
    return w.select(w.step("icmp sle", word, 0), 255, code)
