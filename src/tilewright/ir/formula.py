"""Formulas: scalars computed from scalars, for `map`, and as combining functions of `reduce` and `scan`.

The notation is that of arithmetic: `exp2(%s*0.125 - %m)`, `bf16(%acc)`, `select(a0 >= b0, a1, b1)`. `%x` is an element
of an operand; a bare name is an argument of a combining function; brackets hold an integer expression of the
coordinates, `select([i >= j], %s, -inf)`; an element type as a function converts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Any

from tilewright.algebra.expr import Expr
from tilewright.errors import DtypeMismatch, ProgramError
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType, plain_number
from tilewright.limits import FORMULA

if TYPE_CHECKING:
    from tilewright.ir.core import Value
    from tilewright.ir.parser import Reader

UNARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "tanh", "erf", "sigmoid"),
    *("sin", "cos", "sinh", "cosh", "cbrt", "neg", "abs", "relu", "floor", "ceil", "round", "roundeven", "not_"),
)
_FLOAT_ONLY = frozenset(UNARY) - {"neg", "abs", "relu", "floor", "ceil", "round", "roundeven", "not_"}
BINARY = (
    *("add", "sub", "mul", "div", "floordiv", "mod", "maximum", "minimum", "powf", "atan2", "remf"),
    *("and_", "or_", "xor", "shl", "shr"),
)
TERNARY = ("fma",)
"""`fma(a, b, c)` is a*b + c in one step: the product is not rounded."""
FUNCTIONS = _FLOAT_ONLY - {"sqrt", "reciprocal"} | {"powf"}
"""What no machine does in one step: many operations, each of which waits for the one before."""
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_TYPED = ("operand", "argument", "index", "cast", *COMPARISONS)
"""Nodes that have an element type of their own, whatever they are combined with."""
_INFIX = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_COMPARE = {"<=": "le", ">=": "ge", "==": "eq", "!=": "ne", "<": "lt", ">": "gt"}
_SIGNS = {name: sign for sign, name in (*_INFIX.items(), *_COMPARE.items())}
_BINDING = {"lt": 0, "le": 0, "gt": 0, "ge": 0, "eq": 0, "ne": 0, "add": 1, "sub": 1, "mul": 2, "div": 2, "neg": 3}


@dataclass(frozen=True)
class Formula:
    """One node: a function's name and parts, or a leaf (`operand`, `argument`, `number`, `index`) and its value.

    >>> x, half = Formula.operand(0), Formula.number(0.5)
    >>> print(Formula("exp2", (Formula("mul", (x, half)),)).text(["%s"]))
    exp2(%s*0.5)
    """

    name: str
    parts: tuple[Formula, ...] = ()
    value: Any = None
    depth: int = field(init=False, compare=False, repr=False, default=1)
    """How deep its parts stand in one another."""

    def __post_init__(self) -> None:
        if self.parts:
            object.__setattr__(self, "depth", 1 + max(part.depth for part in self.parts))
            if FORMULA.refuses(self.depth):
                raise ProgramError(f"{self.name} of formulas {self.depth - 1} deep: {FORMULA.rule}")

    @classmethod
    def operand(cls, place: int) -> Formula:
        """An element of the operation's operand at that place."""
        return cls("operand", (), place)

    @classmethod
    def argument(cls, name: str) -> Formula:
        """An argument of a combining function: a0, b0, a1, ..."""
        return cls("argument", (), name)

    @classmethod
    def number(cls, value: float) -> Formula:
        """A number; it takes the element type of what it is combined with."""
        plain = plain_number(value)
        kept = value if plain is None else plain
        return cls("number", (), kept if kept == kept else nan)  # one NaN, so that equal formulas are equal

    @classmethod
    def cast(cls, to: DType, part: Formula) -> Formula:
        """The part, converted."""
        return cls("cast", (part,), to)

    def walk(self) -> Iterable[Formula]:
        """Every node, parts first."""
        for part in self.parts:
            yield from part.walk()
        yield self

    def expressions(self) -> Iterable[Expr]:
        """The integer expressions in it."""
        return [node.value for node in self.walk() if node.name == "index"]

    def mapped(self, images: Callable[[Expr], Expr]) -> Formula:
        """The formula with every integer expression replaced by its image."""
        value = images(self.value) if self.name == "index" else self.value
        return Formula(self.name, tuple(part.mapped(images) for part in self.parts), value)

    def text(self, operands: Sequence[str] = ()) -> str:
        """The formula in the notation, with these names for the operands."""
        return self._text(operands, 0)

    def _text(self, operands: Sequence[str], least: int) -> str:
        if self.name == "operand":
            return operands[self.value] if self.value < len(operands) else f"%_{self.value}"
        if self.name == "argument":
            return str(self.value)
        if self.name == "number":
            return repr(self.value) if self.value >= 0 or least == 0 else f"({self.value!r})"
        if self.name == "index":
            return f"[{self.value}]"
        binding = _BINDING.get(self.name)
        if binding is None or (self.name == "neg" and self.parts[0].name == "number"):
            name = self.value.name if self.name == "cast" else self.name
            return f"{name}({', '.join(part._text(operands, 0) for part in self.parts)})"
        if self.name == "neg":
            text = f"-{self.parts[0]._text(operands, 4)}"
        else:
            sign = _SIGNS[self.name]
            spaced = sign if self.name in ("mul", "div") else f" {sign} "
            low = 1 if binding == 0 else binding
            text = self.parts[0]._text(operands, low) + spaced + self.parts[1]._text(operands, binding + 1)
        return text if binding >= least else f"({text})"

    def dtype(self, types: Callable[[Formula], DType | None]) -> DType | None:
        """The element type it computes; None where only numbers occur. `types` gives that of operands and arguments."""
        if self.name in ("operand", "argument"):
            return types(self)
        if self.name == "number":
            return None
        if self.name == "index":
            return dtypes.index
        found = [part.dtype(types) for part in self.parts]
        if self.name == "cast":
            if found[0] is None:
                self.parts[0].require_numbers(self.value)
            return self.value if isinstance(self.value, DType) else None
        if self.name == "select":
            common = _common("select", found[1:])
            if common is not None:
                self._require_numbers(self.parts[1:], common)
            return common
        common = _common(self.name, found)
        if common is not None:
            self._require_numbers(self.parts, common)
        if self.name in COMPARISONS:
            return dtypes.bool_
        if self.name in _FLOAT_ONLY and common is not None and not common.is_float:
            raise ProgramError(f"{self.name} of {common}: it takes floating-point numbers; convert first")
        return common

    def _require_numbers(self, parts: tuple[Formula, ...], common: DType) -> None:
        try:
            for part in parts:
                part.require_numbers(common)
        except DtypeMismatch as fault:
            raise ProgramError(f"{self.name} of {common} and {fault.what}; convert first") from None

    def require_numbers(self, kind: DType) -> None:
        """Raises where a number that takes this element type is none of its values."""
        if any(node.name in _TYPED for node in self.walk()):
            return  # its numbers take the type of what they stand beside
        for node in self.walk():
            if node.name == "number":
                kind.require(node.value)

    def gives(self, types: Callable[[Formula], DType | None], target: DType) -> DType:
        """The element type it computes; that of the target where only numbers occur."""
        found = self.dtype(types)
        if found is None:
            self.require_numbers(target)
        return target if found is None else found


def _common(name: str, found: list[DType | None]) -> DType | None:
    known = [t for t in found if t is not None]
    for t in known[1:]:
        if t is not known[0]:
            raise ProgramError(f"{name} of {known[0]} and {t}: the element types differ; convert one, as in {t}(...)")
    return known[0] if known else None


# -- from text --------------------------------------------------------------------------------------------

_SIGN = re.compile(r"<=|>=|==|!=|<|>")
_NUMBER = re.compile(r"(?:inf|nan)\b|\d+(?:\.\d*)?(?:e[+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z_]\w*")


def read_formula(reader: Reader, operands: list[Value]) -> Formula:
    """The formula that stands next in the text; its operands are appended to the operation's."""
    left = _sum(reader, operands)
    reader.skip()
    found = _SIGN.match(reader.text, reader.at)
    if found is None:
        return left
    reader.at = found.end()
    return Formula(_COMPARE[found.group()], (left, _sum(reader, operands)))


def _sum(reader: Reader, operands: list[Value]) -> Formula:
    left = _product(reader, operands)
    while True:
        if reader.accept("+"):
            left = Formula("add", (left, _product(reader, operands)))
        elif reader.peek("-") and not reader.peek("->"):
            reader.expect("-")
            left = Formula("sub", (left, _product(reader, operands)))
        else:
            return left


def _product(reader: Reader, operands: list[Value]) -> Formula:
    left = _factor(reader, operands)
    while True:
        if reader.accept("*"):
            left = Formula("mul", (left, _factor(reader, operands)))
        elif reader.accept("/"):
            left = Formula("div", (left, _factor(reader, operands)))
        else:
            return left


def _factor(reader: Reader, operands: list[Value]) -> Formula:
    if reader.accept("-"):
        with reader.nested():
            part = _factor(reader, operands)
        return Formula.number(-part.value) if part.name == "number" else Formula("neg", (part,))
    if reader.accept("("):
        with reader.nested():
            inner = read_formula(reader, operands)
        reader.expect(")")
        return inner
    if reader.accept("["):
        start = reader.at
        return Formula("index", (), reader.expr(reader.enclosed("]"), start))
    if reader.peek("%"):
        value = reader.use()
        if value not in operands[1:]:
            operands.append(value)
        return Formula.operand(operands.index(value, 1))
    reader.skip()
    start = reader.at
    number = _NUMBER.match(reader.text, start)
    if number is not None:
        reader.at = number.end()
        text = number.group()
        return Formula.number(reader.number(text, start) if text.isdigit() else float(text))
    word = reader.match(_WORD, "a number, a value such as %x or a function").group()
    if not reader.accept("("):
        return Formula.argument(word)
    parts = []
    with reader.nested(start):
        while not reader.accept(")"):
            parts.append(read_formula(reader, operands))
            if not reader.peek(")"):
                reader.expect(",")
    return _call(reader, word, tuple(parts), start)


def _call(reader: Reader, word: str, parts: tuple[Formula, ...], start: int) -> Formula:
    if word in dtypes.ALL:
        count = 1
    else:
        counts = {"select": 3} | dict.fromkeys(UNARY, 1) | dict.fromkeys((*BINARY, *COMPARISONS), 2)
        counts |= dict.fromkeys(TERNARY, 3)
        if word not in counts:
            raise reader.fail(f"there is no function {word}", start)
        count = counts[word]
    if len(parts) != count:
        raise reader.fail(f"{word} takes {count} argument{'s' * (count != 1)}, not {len(parts)}", start)
    return Formula.cast(dtypes.dtype(word), parts[0]) if word in dtypes.ALL else Formula(word, parts)
