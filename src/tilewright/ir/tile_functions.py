"""Formulas for the elementwise operations of the tile level.

Functions without an instruction are composed of others. Integer division and shifts avoid operands that trap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.errors import ProgramError
from tilewright.ir.dtypes import DType, bool_, f32
from tilewright.ir.formula import Formula
from tilewright.ir.tile_formulas import call, converted, is_number, number


def _mod(kind: DType, a: Formula, b: Formula) -> Formula:
    """Return the formula of `a % b` for floats: the result has the sign of `b`. `kind` is not used."""
    truncated, zero = Formula("remf", (a, b)), Formula.number(0.0)
    signs_differ = Formula("lt", (Formula("mul", (truncated, b)), zero))
    return Formula("select", (signs_differ, Formula("add", (truncated, b)), truncated))


def quotient(name: str, kind: DType, a: Formula, b: Formula) -> Formula:
    """Return the formula of the integer operation `name` ("div", "floordiv" or "mod") on `a` and `b` of type `kind`.

    Division by 0 gives 0. Division by -1 negates (mod gives 0), since the machine instruction traps for the smallest
    integer. A constant divisor other than 0 and -1 needs neither check.
    """
    if is_number(b) and b.parts[0].value not in (0, -1):
        return call(name, a, b)
    zero, one = number(0, kind), number(1, kind)
    divides_by_zero, by_minus_one = call("eq", b, zero), zero if name == "mod" else Formula("neg", (a,))
    if kind.numpy.kind == "u":
        return call("select", divides_by_zero, zero, call(name, a, call("select", divides_by_zero, one, b)))
    is_minus_one = call("eq", b, number(-1, kind))
    safe_divisor = call("select", Formula("or_", (divides_by_zero, is_minus_one)), one, b)
    signed_result = call("select", is_minus_one, by_minus_one, call(name, a, safe_divisor))
    return call("select", divides_by_zero, zero, signed_result)


def remainder(kind: DType, a: Formula, b: Formula) -> Formula:
    """Return the formula of `a - trunc(a / b) * b` for integers of type `kind`: the remainder with the sign of `a`.

    The remainder is 0 if `b` is 0.
    """
    difference = call("sub", a, call("mul", quotient("div", kind, a, b), b))
    return call("select", call("eq", b, number(0, kind)), number(0, kind), difference)


def shifted(name: str, kind: DType, a: Formula, b: Formula) -> Formula:
    """Return the formula of the shift `name` ("shl" or "shr") of `a` by `b` bits, both integers of type `kind`.

    It is defined for every `b`. If `b` is negative, or at least the width of `kind`, the result is 0. But a right shift
    of a signed integer by such a `b` gives the sign bit in all bits.
    """
    if is_number(b) and 0 <= b.parts[0].value < kind.bits:
        return call(name, a, b)
    last = number(kind.bits - 1, kind)
    in_range = Formula("and_", (call("ge", b, number(0, kind)), call("le", b, last)))
    limited = call(name, a, call("select", in_range, b, last))
    if name == "shr" and kind.numpy.kind != "u":
        return limited
    return call("select", in_range, limited, number(0, kind))


INTEGER: dict[str, Callable[..., Formula]] = {
    **{name: partial(quotient, name) for name in ("div", "floordiv", "mod")},
    **{name: partial(shifted, name) for name in ("shl", "shr")},
    "remf": remainder,
}
FUNCTIONS: dict[str, Callable[..., Formula]] = {"mod": _mod}
FLOAT_ONLY = frozenset(("powf", "atan2"))
"""Operations that integers do not have."""


def is_composed(name: str, dtype: DType) -> bool:
    """True if the formula of operation `name` for element type `dtype` may contain an argument more than once.

    These operations are division, remainder and shifts of integers, and mod of floats.
    """
    return name in (FUNCTIONS if dtype.is_float else INTEGER)


def elementwise(name: str, dtype: DType, *arguments: Formula) -> Formula:
    """Return the formula of the elementwise operation `name` applied to `arguments`, formulas of element type `dtype`.

    The result is of type `dtype` too; a comparison gives bool. Raise ProgramError for arithmetic on bool, and for
    `powf` and `atan2` of integers.

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
