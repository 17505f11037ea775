"""Scalar formulas of one lane as LLVM IR, with the machine's own instructions for functions such as exp.

The accuracy that a function needs depends on how its result is used. If only products and quotients follow before it
is rounded to 16 bits, a relative error of about 2^-17 is allowed. If a term in [-1, 1] is added to a constant that is
no smaller, only the term's absolute error counts.
"""

from __future__ import annotations

from collections.abc import Callable
from math import frexp
from typing import TYPE_CHECKING, Any

from tilewright.algebra.expr import Symbol
from tilewright.codegen.formula import FormulaWriter, Typed
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.targets.gpu.dialect import Accuracy

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter

KEEPS = ("mul", "div", "neg", "abs", "cast")
"""Operations whose result has the relative error of their operands."""
UP_TO_ONE = ("erf", "tanh")
"""Functions whose results are between -1 and 1."""
LEAST = 2.0**-100
"""The least constant beside which an underflow of a product does not matter."""


def is_coarse(kind: DType) -> bool:
    """True if `kind` is a floating-point type of at most 16 bits."""
    return kind.is_float and kind.bits <= 16


def accuracy_of_part(f: Formula, part: Formula, accuracy: Accuracy) -> Accuracy:
    """Return the accuracy that `part`, an operand of the formula `f`, needs if the result of `f` needs `accuracy`.

    - "coarse" if `f` rounds to a float of at most 16 bits
    - "coarse" if `accuracy` is "coarse" and `f` keeps relative errors: it is in KEEPS, or it selects the value `part`
    - "absolute" if `accuracy` is "coarse" and `f` adds `part`, an erf or tanh, to a constant that is no smaller
    - "full" otherwise

    >>> x = Formula.operand(1)
    >>> gate = Formula("mul", (x, Formula("sigmoid", (x,))))
    >>> accuracy_of_part(Formula.cast(dtypes.bf16, gate), gate, "full"), accuracy_of_part(gate, gate.parts[1], "coarse")
    ('coarse', 'coarse')
    >>> accuracy_of_part(gate.parts[1], x, "coarse")
    'full'
    """
    if f.name == "cast" and is_coarse(f.value):
        return "coarse"
    if accuracy == "coarse" and (f.name in KEEPS or (f.name == "select" and part is not f.parts[0])):
        return "coarse"
    if accuracy == "coarse" and part.name in UP_TO_ONE and _adds_bounded_term(f, part):
        return "absolute"
    return "full"


def _adds_bounded_term(f: Formula, part: Formula) -> bool:
    """True if `f` is part + d, or fma(c, part, d), with constants |c| <= |d| (c = 1 in the first case). `part` must be
    an operand of `f` with values in [-1, 1].
    """
    values = [each.value if each.name == "number" else None for each in f.parts]
    if f.name == "fma" and part is f.parts[1]:
        factor, _, number = values
    elif f.name == "add":
        factor, number = 1, values[0] if part is f.parts[1] else values[1]
    else:
        return False
    return factor is not None and number is not None and abs(factor) <= abs(number)


def _as_fma(f: Formula) -> Formula:
    """Return the formula `f` as fma(c, x, d) if it is d + c * x, in this order, c and d are numbers, and |c| is a power
    of two of at most 1. The product is then exact, so that the result is the same. Return `f` unchanged in all other
    cases, and also if |c| or |d| is below LEAST or |d| is above 1 / LEAST.

    >>> half, x = Formula.number(0.5), Formula.operand(1)
    >>> print(_as_fma(Formula("add", (half, Formula("mul", (half, x))))).text(["%y", "%x"]))
    fma(0.5, %x, 0.5)
    """
    if f.name != "add" or [part.name for part in f.parts] != ["number", "mul"]:
        return f
    number, (factor, other) = f.parts[0], f.parts[1].parts
    if factor.name != "number" or abs(frexp(factor.value)[0]) != frexp(1)[0]:
        return f
    fits = LEAST <= abs(number.value) <= 1 / LEAST and LEAST <= abs(factor.value) <= 1
    return Formula("fma", (factor, other, number)) if fits else f


class LaneFormula(FormulaWriter):
    """The writer of a formula for one of a lane's values: value number `place`, with `axes` as the operation's axes."""

    def __init__(self, e: Emitter, axes: tuple[Symbol, ...], place: int, leaf: Callable[[Formula], Typed]):
        super().__init__(e.w, None, None, leaf)
        self.e, self.axes, self.place = e, axes, place
        self.accuracy: Accuracy = "full"
        self.above: Formula | None = None

    def write(self, f: Formula, to: DType, rounded: DType | None = None) -> str:
        """Emit the formula `f`, and return its LLVM value, of the type `to`. The caller then rounds the value to the
        type `rounded` (None: it does not). If `rounded`, or else `to`, is a float of at most 16 bits, less accurate
        instructions may be used.
        """
        self.accuracy, self.above = "coarse" if is_coarse(rounded or to) else "full", None
        return super().write(f, to)

    def _write(self, f: Formula, want: DType | None) -> Typed:
        """Emit the subformula `f` with the accuracy that the whole formula needs. Return (LLVM value, element type).
        The type is `want` if possible (None: any type).
        """
        if f.name == "index":
            return self.w.integer(self.e.at_value(f.value, self.axes, self.place)), dtypes.index
        saved = self.accuracy, self.above
        if self.above is not None:
            self.accuracy = accuracy_of_part(self.above, f, self.accuracy)
        self.above = f = _as_fma(f)
        typed = super()._write(f, want)
        self.accuracy, self.above = saved
        return typed

    def _step_rounded(self, name: str, values: list[str], kind: DType) -> Typed:
        """Emit the operation `name` on the LLVM values `values` of the type `kind`, with coarse accuracy: its result is
        rounded to 16 bits. Return (LLVM value, element type).
        """
        saved, self.accuracy = self.accuracy, "coarse"
        typed = self._step(name, values, kind)
        self.accuracy = saved
        return typed

    def cast(self, value: str, kind: DType, to: DType) -> str:
        """Emit the conversion of the LLVM value `value` from the type `kind` to the type `to`, and return the result.
        bf16 is converted to f32 by a shift of its bits.
        """
        if kind is dtypes.bf16 and to is dtypes.f32:
            half = self.w.value(f"zext i16 {self.w.value(f'bitcast bfloat {value} to i16')} to i32")
            return self.w.value(f"bitcast i32 {self.w.value(f'shl i32 {half}, 16')} to float")
        return super().cast(value, kind, to)

    def _float(self, name: str, values: list[str], kind: DType) -> Any:
        """Emit the floating-point function `name` of the LLVM values `values` of the type `kind`, and return the
        result. For f32, the machine's instructions are used if it has instructions for this function.
        """
        if kind is dtypes.f32:
            result = self.e.dialect.function(self.e, name, values, self.accuracy)
            if result is not None:
                return result
        return super()._float(name, values, kind)
