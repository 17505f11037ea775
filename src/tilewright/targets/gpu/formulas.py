"""Formulas for one value of a lane: the machine's own instructions for functions where it has them.

How good a function must be follows from what becomes of it. What is rounded to 16 bits at the end, after products and
quotients alone, may be off by some 2^-17 of itself. Where such a value is a number plus a part no larger, the part's
error counts beside that number, not beside the part.
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
"""Operations whose result is off by the same part of itself as what they are given."""
UP_TO_ONE = ("erf", "tanh")
"""Functions whose results are between -1 and 1."""
LEAST = 2.0**-100
"""A number beside which what a product loses below the range of f32 does not count."""


def is_coarse(kind: DType) -> bool:
    """Whether a type holds floats of 16 bits or fewer."""
    return kind.is_float and kind.bits <= 16


def needed(f: Formula, part: Formula, accuracy: Accuracy) -> Accuracy:
    """How good a part of a formula must be, where the whole must be so good.

    >>> x = Formula.operand(1)
    >>> gate = Formula("mul", (x, Formula("sigmoid", (x,))))
    >>> needed(Formula.cast(dtypes.bf16, gate), gate, "full"), needed(gate, gate.parts[1], "coarse")
    ('coarse', 'coarse')
    >>> needed(gate.parts[1], x, "coarse")
    'full'
    """
    if f.name == "cast" and is_coarse(f.value):
        return "coarse"
    if accuracy == "coarse" and (f.name in KEEPS or (f.name == "select" and part is not f.parts[0])):
        return "coarse"
    if accuracy == "coarse" and part.name in UP_TO_ONE and _is_no_larger(f, part):
        return "absolute"
    return "full"


def _is_no_larger(f: Formula, part: Formula) -> bool:
    """Whether a formula adds a part that is between -1 and 1, perhaps a multiple of it, to a number no smaller."""
    values = [each.value if each.name == "number" else None for each in f.parts]
    if f.name == "fma" and part is f.parts[1]:
        factor, _, number = values
    elif f.name == "add":
        factor, number = 1, values[0] if part is f.parts[1] else values[1]
    else:
        return False
    return factor is not None and number is not None and abs(factor) <= abs(number)


def _in_one_step(f: Formula) -> Formula:
    """A sum of a number and a product by a power of two as one step: the product is exact, so nothing changes.

    >>> half, x = Formula.number(0.5), Formula.operand(1)
    >>> print(_in_one_step(Formula("add", (half, Formula("mul", (half, x))))).text(["%y", "%x"]))
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
    """Writes one formula for one of a lane's values."""

    def __init__(self, e: Emitter, axes: tuple[Symbol, ...], place: int, leaf: Callable[[Formula], Typed]):
        super().__init__(e.w, None, None, leaf)
        self.e, self.axes, self.place = e, axes, place
        self.accuracy: Accuracy = "full"
        self.above: Formula | None = None

    def write(self, f: Formula, to: DType, rounded: DType | None = None) -> str:
        """The formula's value as elements of type `to`, which are rounded to another type after that."""
        self.accuracy, self.above = "coarse" if is_coarse(rounded or to) else "full", None
        return super().write(f, to)

    def _write(self, f: Formula, want: DType | None) -> Typed:
        if f.name == "index":
            return self.w.integer(self.e.at_value(f.value, self.axes, self.place)), dtypes.index
        outside = self.accuracy, self.above
        if self.above is not None:
            self.accuracy = needed(self.above, f, self.accuracy)
        self.above = f = _in_one_step(f)
        found = super()._write(f, want)
        self.accuracy, self.above = outside
        return found

    def _step_rounded(self, name: str, values: list[str], kind: DType) -> Typed:
        outside, self.accuracy = self.accuracy, "coarse"
        found = self._step(name, values, kind)
        self.accuracy = outside
        return found

    def cast(self, value: str, kind: DType, to: DType) -> str:
        """A value in another element type; bf16 is the upper half of an f32: one operation on the word it came in."""
        if kind is dtypes.bf16 and to is dtypes.f32:
            half = self.w.value(f"zext i16 {self.w.value(f'bitcast bfloat {value} to i16')} to i32")
            return self.w.value(f"bitcast i32 {self.w.value(f'shl i32 {half}, 16')} to float")
        return super().cast(value, kind, to)

    def _float(self, name: str, values: list[str], kind: DType) -> Any:
        if kind is dtypes.f32:
            found = self.e.dialect.function(self.e, name, values, self.accuracy)
            if found is not None:
                return found
        return super()._float(name, values, kind)
