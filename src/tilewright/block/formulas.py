"""Elementwise expressions: ordinary operators and functions on tensors inside a block kernel.

`a*2 + b` computes nothing by itself. It builds a formula over the elements of a and b, and `c[...] = a*2 + b` emits one
`map` with that formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.algebra.expr import Expr
from tilewright.errors import DtypeMismatch, PythonControlFlow
from tilewright.ir.dtypes import DTypeLike, element_type, plain_number
from tilewright.ir.formula import Formula
from tilewright.ir.location import author_location

if TYPE_CHECKING:
    from tilewright.ir.core import Value


def _binary(name: str, *, reflected: bool = False) -> Any:
    """Return a Python operator method, such as `__add__`, that returns the formula `name`(self, other).

    With `reflected`, the method returns `name`(other, self). The method returns NotImplemented if `other` cannot be
    part of a formula.
    """

    def operate(self: Elementwise, other: Any) -> Any:
        """Return the formula of `self` and `other`, or NotImplemented if `other` cannot be part of a formula."""
        operand = as_element(other)
        if operand is None:
            return NotImplemented
        operands = (operand, self.element) if reflected else (self.element, operand)
        return Element(name, operands)

    return operate


class Elementwise:
    """Base of tensors and formulas: its operators build formulas that are evaluated element by element."""

    __hash__ = object.__hash__

    @property
    def element(self) -> Element:
        """The formula node for one element of this operand. Subclasses override it; here it raises
        NotImplementedError.
        """
        raise NotImplementedError

    def to(self, kind: DTypeLike) -> Element:
        """Return the formula that converts each element to the element type `kind`, such as "f16". No operation is
        emitted.
        """
        return cast(self, kind)

    __add__, __radd__ = _binary("add"), _binary("add", reflected=True)
    __sub__, __rsub__ = _binary("sub"), _binary("sub", reflected=True)
    __mul__, __rmul__ = _binary("mul"), _binary("mul", reflected=True)
    __truediv__, __rtruediv__ = _binary("div"), _binary("div", reflected=True)
    __floordiv__, __rfloordiv__ = _binary("floordiv"), _binary("floordiv", reflected=True)
    __mod__, __rmod__ = _binary("mod"), _binary("mod", reflected=True)
    __pow__ = _binary("powf")
    __and__, __rand__ = _binary("and_"), _binary("and_", reflected=True)
    __or__, __ror__ = _binary("or_"), _binary("or_", reflected=True)
    __xor__, __rxor__ = _binary("xor"), _binary("xor", reflected=True)
    __lshift__, __rshift__ = _binary("shl"), _binary("shr")
    __lt__, __le__, __gt__, __ge__ = (_binary(name) for name in ("lt", "le", "gt", "ge"))
    __eq__, __ne__ = _binary("eq"), _binary("ne")

    def __neg__(self) -> Element:
        return Element("neg", (self.element,))

    def __invert__(self) -> Element:
        return Element("not_", (self.element,))

    def __abs__(self) -> Element:
        return Element("abs", (self.element,))

    def __bool__(self) -> bool:
        raise PythonControlFlow(
            "Python's `if`, `while`, `and` and `or` cannot ask an element: it is not known while the kernel is traced. "
            "Choose element by element with tb.select(condition, a, b)",
            author_location(),
        )


class Element(Elementwise):
    """A node of a formula: an operation `name` on `parts`. A leaf has a `value`: a tensor's value, a number, or an
    integer expression of coordinates.
    """

    __slots__ = ("name", "parts", "value")

    def __init__(self, name: str, parts: tuple[Element, ...] = (), value: Any = None):
        self.name, self.parts, self.value = name, parts, value

    @property
    def element(self) -> Element:
        """The formula node itself."""
        return self

    def formula(self, operand_number: Callable[[Value], int]) -> Formula:
        """Return this expression tree as an IR formula.

        `operand_number` is a function from a tensor's IR value to its number among the operands of the operation.
        """
        if self.name == "operand":
            return Formula.operand(operand_number(self.value))
        return Formula(self.name, tuple(part.formula(operand_number) for part in self.parts), self.value)


def as_element(x: Any) -> Element | None:
    """Return `x` (a tensor, formula, index expression or number) as a node of a formula; None if `x` is
    none of these.
    """
    if isinstance(x, Elementwise):
        return x.element
    if isinstance(x, Expr):
        return Element("index", (), x)
    plain = plain_number(x)
    if plain is None:
        return None
    return Element("number", (), Formula.number(int(plain) if isinstance(plain, bool) else plain).value)


def element_of(x: Any, what: str) -> Element:
    """Return `x` (a tensor, formula, index expression or number) as a node of a formula. Raise a DtypeMismatch if `x`
    is none of these; `what` names the function in the message.
    """
    node = as_element(x)
    if node is None:
        raise DtypeMismatch(
            f"{what} takes tensors, numbers and what is computed from them, not {x!r}", author_location(2)
        )
    return node


def argument(name: str) -> Element:
    """Return the formula leaf for the argument `name` of a combining function (the `how` of `reduce` and `scan`).

    Names are a0, a1, ... for the values combined so far, and b0, b1, ... for the next values.
    """
    return Element("argument", (), name)


def cast(x: Any, kind: DTypeLike) -> Element:
    """Return the formula that converts each element of `x`, a tensor, number or formula, to the element type `kind`. No
    operation is emitted.

    >>> cast(2.5, "i32").formula(lambda _: 0).text()
    'i32(2.5)'
    """
    return Element("cast", (element_of(x, "cast"),), element_type(kind))


def select(condition: Any, when_true: Any, when_false: Any) -> Element:
    """Return the formula that is `when_true` where `condition` holds and `when_false` elsewhere, element by element.
    Each is a tensor, a number or a formula. No operation is emitted.
    """
    return Element("select", tuple(element_of(x, "select") for x in (condition, when_true, when_false)))


def fma(a: Any, b: Any, c: Any) -> Element:
    """Return the formula a*b + c, element by element, rounded once. Each is a tensor, a number or a formula. No
    operation is emitted.
    """
    return Element("fma", tuple(element_of(x, "fma") for x in (a, b, c)))


def _function(name: str, count: int) -> Callable[..., Element]:
    """Return a Python function of `count` arguments that returns the formula `name` of them: `_function("exp", 1)` is
    `tb.exp`.

    The function raises a DtypeMismatch for another number of arguments.
    """

    def apply(*args: Any) -> Element:
        """Return the formula of this function for `args`; raise a DtypeMismatch for another number of arguments."""
        if len(args) != count:
            raise DtypeMismatch(
                f"{name} takes {count} argument{'s' * (count != 1)}, not {len(args)}", author_location()
            )
        return Element(name, tuple(element_of(x, name) for x in args))

    apply.__name__ = name
    apply.__doc__ = f"Return the formula `{name}` of the arguments, element by element. No operation is emitted."
    return apply


exp, exp2, expm1 = (_function(n, 1) for n in ("exp", "exp2", "expm1"))
log, log2, log10, log1p = (_function(n, 1) for n in ("log", "log2", "log10", "log1p"))
sqrt, rsqrt, reciprocal, cbrt = (_function(n, 1) for n in ("sqrt", "rsqrt", "reciprocal", "cbrt"))
tanh, erf, sigmoid, relu = (_function(n, 1) for n in ("tanh", "erf", "sigmoid", "relu"))
sin, cos, sinh, cosh = (_function(n, 1) for n in ("sin", "cos", "sinh", "cosh"))
floor, ceil, roundeven = (_function(n, 1) for n in ("floor", "ceil", "roundeven"))
round_ = _function("round", 1)
maximum, minimum, atan2, remf = (_function(n, 2) for n in ("maximum", "minimum", "atan2", "remf"))
