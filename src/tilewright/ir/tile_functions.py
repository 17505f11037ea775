"""What each element-by-element operation of the tile level is as a formula.

Functions that have no instruction are made from those that have; integer arithmetic goes round what stops machines.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.errors import ProgramError
from tilewright.ir.dtypes import DType, bool_, f32
from tilewright.ir.formula import Formula
from tilewright.ir.tile_formulas import call, converted, is_number, number


def _mod(kind: DType, a: Formula, b: Formula) -> Formula:
    """The remainder of floor division: that of truncated division, moved where its sign is not the divisor's."""
    rest, zero = Formula("remf", (a, b)), Formula.number(0.0)
    crossed = Formula("lt", (Formula("mul", (rest, b)), zero))
    return Formula("select", (crossed, Formula("add", (rest, b)), rest))


def quotient(name: str, kind: DType, a: Formula, b: Formula) -> Formula:
    """Division of integers: by 0 it gives 0; by -1 it is a change of sign, since the least number has no opposite.

    Machines stop there. A number to divide by that is neither needs no care.
    """
    if is_number(b) and b.parts[0].value not in (0, -1):
        return call(name, a, b)
    zero, one = number(0, kind), number(1, kind)
    nothing, turned = call("eq", b, zero), zero if name == "mod" else Formula("neg", (a,))
    if kind.numpy.kind == "u":
        return call("select", nothing, zero, call(name, a, call("select", nothing, one, b)))
    opposite = call("eq", b, number(-1, kind))
    careful = call("select", Formula("or_", (nothing, opposite)), one, b)
    found = call("select", opposite, turned, call(name, a, careful))
    return call("select", nothing, zero, found)


def remainder(kind: DType, a: Formula, b: Formula) -> Formula:
    """What division towards zero leaves; by 0 it is 0."""
    rest = call("sub", a, call("mul", quotient("div", kind, a, b), b))
    return call("select", call("eq", b, number(0, kind)), number(0, kind), rest)


def shifted(name: str, kind: DType, a: Formula, b: Formula) -> Formula:
    """A shift by any number of bits: by more than there are, all are gone; to the right the sign stays."""
    if is_number(b) and 0 <= b.parts[0].value < kind.bits:
        return call(name, a, b)
    last = number(kind.bits - 1, kind)
    inside = Formula("and_", (call("ge", b, number(0, kind)), call("le", b, last)))
    most = call(name, a, call("select", inside, b, last))
    if name == "shr" and kind.numpy.kind != "u":
        return most
    return call("select", inside, most, number(0, kind))


INTEGER: dict[str, Callable[..., Formula]] = {
    **{name: partial(quotient, name) for name in ("div", "floordiv", "mod")},
    **{name: partial(shifted, name) for name in ("shl", "shr")},
    "remf": remainder,
}
FUNCTIONS: dict[str, Callable[..., Formula]] = {"mod": _mod}
FLOAT_ONLY = frozenset(("powf", "atan2"))
"""What integers have not."""


def is_composed(name: str, dtype: DType) -> bool:
    """Whether an operation is made of several steps, so that its arguments occur in it more than once."""
    return name in (FUNCTIONS if dtype.is_float else INTEGER)


def elementwise(name: str, dtype: DType, *arguments: Formula) -> Formula:
    """An operation on elements of a type, rounded to the type; a ProgramError where there is no such formula.

    >>> from tilewright.ir import dtypes
    >>> x = Formula.argument("x")
    >>> print(elementwise("maximum", dtypes.f32, x, number(0.0, dtypes.f32)).text())
    maximum(x, 0.0)
    >>> print(elementwise("div", dtypes.i32, x, number(3, dtypes.i32)).text())
    x/3
    """
    if dtype is bool_ and name in ("add", "mul", "sub", "neg"):
        raise ProgramError(f"{name} of bool tiles: use &, | or select")
    if name == "abs" and dtype.numpy.kind in "ub":
        return arguments[0]
    if name in FLOAT_ONLY and not dtype.is_float:
        raise ProgramError(f"{name} of {dtype} has no native form yet")
    special = (FUNCTIONS if dtype.is_float else INTEGER).get(name)
    if special is None:
        return call(name, *arguments)
    wide = f32 if dtype.is_narrow else dtype
    return converted(special(wide, *(converted(a, dtype, wide) for a in arguments)), wide, dtype)
