"""Formulas: scalar expressions that compute one element, for `map`, and combining functions of `reduce` and `scan`.

The notation is that of arithmetic: `exp2(%s*0.125 - %m)`, `bf16(%acc)`, `select(a0 >= b0, a1, b1)`. `%x` is an element
of an operand. A bare name is an argument of a combining function. Brackets hold an integer expression of the
coordinates, as in `select([i >= j], %s, -inf)`. An element type used as a function converts to that type.
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
"""Functions that no machine has as an instruction: a chain of dependent operations each."""
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_TYPED = ("operand", "argument", "index", "cast", *COMPARISONS)
"""Nodes whose element type does not depend on the nodes that they are combined with."""
_INFIX = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_COMPARE = {"<=": "le", ">=": "ge", "==": "eq", "!=": "ne", "<": "lt", ">": "gt"}
_SIGNS = {name: sign for sign, name in (*_INFIX.items(), *_COMPARE.items())}
_BINDING = {"lt": 0, "le": 0, "gt": 0, "ge": 0, "eq": 0, "ne": 0, "add": 1, "sub": 1, "mul": 2, "div": 2, "neg": 3}


@dataclass(frozen=True)
class Formula:
    """One node of a formula: a function `name` applied to `parts`, or a leaf with a `value`.

    Leaves are `operand` (its number), `argument` (its name), `number`, and `index` (an integer expression).

    >>> x, half = Formula.operand(0), Formula.number(0.5)
    >>> print(Formula("exp2", (Formula("mul", (x, half)),)).text(["%s"]))
    exp2(%s*0.5)
    """

    name: str
    parts: tuple[Formula, ...] = ()
    value: Any = None
    depth: int = field(init=False, compare=False, repr=False, default=1)
    """The depth of nesting."""

    def __post_init__(self) -> None:
        if self.parts:
            object.__setattr__(self, "depth", 1 + max(part.depth for part in self.parts))
            if FORMULA.refuses(self.depth):
                raise ProgramError(f"{self.name} of formulas {self.depth - 1} deep: {FORMULA.rule}")

    @classmethod
    def operand(cls, place: int) -> Formula:
        """Return the formula that is one element of the operation's operand number `place`."""
        return cls("operand", (), place)

    @classmethod
    def argument(cls, name: str) -> Formula:
        """Return the formula that is an argument of a combining function. `name` is a0, a1, ... or b0, b1, ..."""
        return cls("argument", (), name)

    @classmethod
    def number(cls, value: float) -> Formula:
        """Return the formula that is the constant `value`. In an operation, it takes the element type of the other
        operands.
        """
        plain = plain_number(value)
        stored = value if plain is None else plain
        return cls("number", (), stored if stored == stored else nan)  # one NaN, so that equal formulas are equal

    @classmethod
    def cast(cls, to: DType, part: Formula) -> Formula:
        """Return the formula that converts the formula `part` to the element type `to`."""
        return cls("cast", (part,), to)

    def walk(self) -> Iterable[Formula]:
        """Yield every node of the formula. A node comes after its `parts`, the subformulas that it is applied to."""
        for part in self.parts:
            yield from part.walk()
        yield self

    def expressions(self) -> Iterable[Expr]:
        """Return a list of the integer expressions in the formula. They stand in brackets in its text: `[i + 1]`."""
        return [node.value for node in self.walk() if node.name == "index"]

    def mapped(self, images: Callable[[Expr], Expr]) -> Formula:
        """Return the formula with every integer expression `e` in it replaced by `images(e)`."""
        value = images(self.value) if self.name == "index" else self.value
        return Formula(self.name, tuple(part.mapped(images) for part in self.parts), value)

    def text(self, operands: Sequence[str] = ()) -> str:
        """Return the formula as text, such as `exp2(%s*0.5)`. `operands` are the printed names of the operation's
        operands.

        An operand that has no name there is written `%_0`, with its number.
        """
        return self._text(operands, 0)

    def _text(self, operands: Sequence[str], least: int) -> str:
        """Return the formula as text, in parentheses if its operator binds less tightly than precedence `least`.

        Precedences are 0 for comparisons, 1 for + and -, 2 for * and /, 3 for negation. A negative number also gets
        parentheses unless `least` is 0. `operands` are the printed names of the operation's operands.
        """
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
        """Return the element type that the formula computes, or None if it is not determined.

        `types` is a function from an operand or argument leaf to its element type, or to None if that is unknown. The
        result is None if all leaves on which it depends are plain numbers or have unknown types, and for a cast to a
        type that is still open. Raise ProgramError if element types differ, if a plain number does not fit the type, or
        if a function of floats is applied to integers.
        """
        if self.name in ("operand", "argument"):
            return types(self)
        if self.name == "number":
            return None
        if self.name == "index":
            return dtypes.index
        part_types = [part.dtype(types) for part in self.parts]
        if self.name == "cast":
            if part_types[0] is None:
                self.parts[0].require_numbers(self.value)
            return self.value if isinstance(self.value, DType) else None
        if self.name == "select":
            common = _common_dtype("select", part_types[1:])
            if common is not None:
                self._require_numbers(self.parts[1:], common)
            return common
        common = _common_dtype(self.name, part_types)
        if common is not None:
            self._require_numbers(self.parts, common)
        if self.name in COMPARISONS:
            return dtypes.bool_
        if self.name in _FLOAT_ONLY and common is not None and not common.is_float:
            raise ProgramError(f"{self.name} of {common}: it takes floating-point numbers; convert first")
        return common

    def _require_numbers(self, parts: tuple[Formula, ...], common: DType) -> None:
        """Raise ProgramError if a plain number in `parts`, subformulas of this formula, does not fit the element type
        `common`.

        `common` is the element type of the subformulas that are not plain numbers.
        """
        try:
            for part in parts:
                part.require_numbers(common)
        except DtypeMismatch as fault:
            raise ProgramError(f"{self.name} of {common} and {fault.what}; convert first") from None

    def require_numbers(self, kind: DType) -> None:
        """Raise DtypeMismatch if the formula has only plain numbers as leaves, and one does not fit the element type
        `kind`.

        Do nothing if the formula contains an operand, an argument, an index, a cast or a comparison.
        """
        if any(node.name in _TYPED for node in self.walk()):
            return  # its numbers take the type of the parts beside them
        for node in self.walk():
            if node.name == "number":
                kind.require(node.value)

    def gives(self, types: Callable[[Formula], DType | None], target: DType) -> DType:
        """Return the element type that the formula computes, or `target` if that type is not determined (plain numbers
        only).

        `types` is a function from an operand or argument leaf to its element type. Raise ProgramError if element types
        do not fit together, and DtypeMismatch if a plain number does not fit `target`.
        """
        computed = self.dtype(types)
        if computed is None:
            self.require_numbers(target)
        return target if computed is None else computed


def _common_dtype(name: str, types: list[DType | None]) -> DType | None:
    """Return the one element type in `types`; an entry of None stands for a plain number, which matches every type.

    Return None if all entries are None. Raise ProgramError, naming the function `name`, if two element types differ.
    """
    known = [t for t in types if t is not None]
    for t in known[1:]:
        if t is not known[0]:
            raise ProgramError(f"{name} of {known[0]} and {t}: the element types differ; convert one, as in {t}(...)")
    return known[0] if known else None


# -- from text --------------------------------------------------------------------------------------------

_SIGN = re.compile(r"<=|>=|==|!=|<|>")
_NUMBER = re.compile(r"(?:inf|nan)\b|\d+(?:\.\d*)?(?:e[+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z_]\w*")


def read_formula(reader: Reader, operands: list[Value]) -> Formula:
    """Parse a formula such as `exp2(%x*0.5) < %y` from `reader` and return it; raise ParseError if it is not valid.

    `operands` are the operation's operands, the target first. Each operand that occurs in the formula is appended once;
    the target, too, if the formula reads it.
    """
    left = _read_sum(reader, operands)
    reader.skip()
    match = _SIGN.match(reader.text, reader.at)
    if match is None:
        return left
    reader.at = match.end()
    return Formula(_COMPARE[match.group()], (left, _read_sum(reader, operands)))


def _read_sum(reader: Reader, operands: list[Value]) -> Formula:
    """Parse a sum such as `%a*2 + %b - 1` (products joined by + and -) from `reader`, and return its formula.

    A single product is a sum too. Operands that occur in it (`%a`) are appended to `operands`, each once. Raise
    ParseError if the text is not valid.
    """
    left = _read_product(reader, operands)
    while True:
        if reader.accept("+"):
            left = Formula("add", (left, _read_product(reader, operands)))
        elif reader.peek("-") and not reader.peek("->"):
            reader.expect("-")
            left = Formula("sub", (left, _read_product(reader, operands)))
        else:
            return left


def _read_product(reader: Reader, operands: list[Value]) -> Formula:
    """Parse a product such as `%a*2/%b` (factors joined by * and /) from `reader`, and return its formula.

    A single factor is a product too. Operands that occur in it (`%a`) are appended to `operands`, each once. Raise
    ParseError if the text is not valid.
    """
    left = _read_factor(reader, operands)
    while True:
        if reader.accept("*"):
            left = Formula("mul", (left, _read_factor(reader, operands)))
        elif reader.accept("/"):
            left = Formula("div", (left, _read_factor(reader, operands)))
        else:
            return left


def _read_factor(reader: Reader, operands: list[Value]) -> Formula:
    """Parse one factor of a formula from `reader`, and return its formula; raise ParseError if none comes next.

    A factor is a number, an operand `%x`, a bare name, a function call, an `[index]`, a negation, or a formula in
    parentheses. Operands that occur in it are appended to `operands`, each once.
    """
    if reader.accept("-"):
        with reader.nested():
            part = _read_factor(reader, operands)
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
    return _function_call(reader, word, tuple(parts), start)


def _function_call(reader: Reader, word: str, parts: tuple[Formula, ...], start: int) -> Formula:
    """Return the formula of the call `word(parts)`. If `word` is an element type, the formula converts to that type.

    Raise ParseError if there is no function `word`, or if the number of `parts` is wrong. The error points at offset
    `start` of the text in `reader`.
    """
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
