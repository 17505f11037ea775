"""Build block-level formulas from constants, conversions and index expressions of the tile level."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from tilewright.algebra.expr import (
    And,
    AtLeastZero,
    Const,
    Exact,
    Expr,
    FloorDiv,
    IsZero,
    Max,
    Min,
    Mod,
    Or,
    Product,
    Sum,
    Symbol,
    Xor,
)
from tilewright.errors import ProgramError
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula

_NAMES: dict[type[Expr], str] = {
    Product: "mul",
    FloorDiv: "floordiv",
    Exact: "floordiv",
    Mod: "mod",
    Min: "minimum",
    Max: "maximum",
    And: "minimum",
    Or: "maximum",
    Xor: "xor",
}


def rounded(value: float, dtype: DType) -> Any:
    """Return the number `value` as element type `dtype` stores it: floats round to nearest even, integers wrap.

    >>> rounded(0.1, dtypes.f16), rounded(300, dtypes.i8)
    (0.0999755859375, 44)
    """
    with np.errstate(all="ignore"):
        stored = np.asarray(value).astype(dtype.numpy)
    return float(stored) if dtype.is_float else int(stored)


def number(value: float, dtype: DType) -> Formula:
    """Return a formula that is the constant `value` of element type `dtype`, rounded to that type.

    An integer beyond 2**53 is composed of smaller constants, high * 2**32 + low.
    """
    stored = rounded(value, dtype)
    if not dtype.is_float and abs(stored) > 1 << 53:
        high, low = divmod(stored, 1 << 32)
        upper = Formula("mul", (number(high, dtype), number(1 << 32, dtype)))
        return Formula("add", (upper, number(low, dtype)))
    return Formula.cast(dtype, Formula.number(stored))


def is_number(formula: Formula) -> bool:
    """True if the formula is a constant of a stated element type, such as `f32(0.5)`, which `number` returns."""
    return formula.name == "cast" and formula.parts[0].name == "number"


_ROUNDED: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
}
"""Functions of one or two exactly rounded steps, which give the same result on every machine."""


def call(name: str, *parts: Formula) -> Formula:
    """Return the formula `name(*parts)`. The `parts` must be formulas of one element type (for select, after the
    condition).

    If all parts are f32 or f64 constants and the function is exactly rounded, return the result, a constant. A constant
    loses its stated type if another part is not constant: `f32(0.5)` becomes `0.5`.

    >>> x = Formula.argument("x")
    >>> print(call("mul", x, number(0.5, dtypes.f32)).text())
    x*0.5
    >>> print(call("rsqrt", number(64, dtypes.f32)).text())
    f32(0.125)
    """
    if name in _ROUNDED and all(map(is_number, parts)) and len({p.value for p in parts}) == 1:
        dtype: DType = parts[0].value
        if dtype in (dtypes.f32, dtypes.f64):
            with np.errstate(all="ignore"):
                return number(_ROUNDED[name](*(dtype.numpy.type(p.parts[0].value) for p in parts)), dtype)
    if name == "select":
        condition, *chosen = parts
        return Formula(name, (condition, *_untyped_constants(tuple(chosen))))
    return Formula(name, _untyped_constants(parts))


def _untyped_constants(parts: tuple[Formula, ...]) -> tuple[Formula, ...]:
    """Return `parts` with every constant stripped of its stated type: `f32(0.5)` -> `0.5`.

    If all parts are constants, return them unchanged.
    """
    if all(map(is_number, parts)):
        return parts
    return tuple(p.parts[0] if is_number(p) else p for p in parts)


def scale_of(formula: Formula) -> tuple[Formula, float]:
    """Split a formula x * number into (x, number). For any other formula f, return (f, 1.0).

    >>> x = Formula.argument("x")
    >>> scale_of(call("mul", x, number(0.5, dtypes.f32)))[1], scale_of(x)[1]
    (0.5, 1.0)
    """
    if formula.name == "mul":
        for scaled, scale in (formula.parts, formula.parts[::-1]):
            if scale.name == "number":
                return scaled, float(scale.value)
    return formula, 1.0


def index(e: Expr, dtype: DType) -> Formula:
    """Return the formula of the value of `e`, an integer expression of coordinates, converted to element type `dtype`.

    A constant `e` gives a constant, rounded to `dtype`.
    """
    return number(e.value, dtype) if isinstance(e, Const) else Formula.cast(dtype, Formula("index", (), e))


def converted(formula: Formula, kind: DType, to: DType) -> Formula:
    """Return `formula`, of element type `kind`, converted to the element type `to`. A value out of range is not
    clamped.

    If both types are the same, return `formula` unchanged.
    """
    if kind is to:
        return formula
    return number(formula.parts[0].value, to) if is_number(formula) and to.is_float else Formula.cast(to, formula)


def cast(formula: Formula, kind: DType, to: DType) -> Formula:
    """Return `formula`, of element type `kind`, converted to the element type `to` as by the tile level's `cast`.

    Floats become integers by rounding towards zero, clamped to the limits of `to`; NaN becomes 0. Other conversions do
    not clamp.
    """
    if not kind.is_float or to.kind != "int":
        return converted(formula, kind, to)
    if kind.is_narrow:
        formula, kind = Formula.cast(dtypes.f32, formula), dtypes.f32
    least, most = (-8, 7) if to is dtypes.i4 else (np.iinfo(to.numpy).min, np.iinfo(to.numpy).max)
    low, high = Formula.number(float(least)), Formula.number(float(most))
    in_range = call("select", call("eq", formula, formula), Formula.cast(to, formula), number(0, to))
    clamped_above = call("select", call("ge", formula, high), number(int(most), to), in_range)
    return call("select", call("le", formula, low), number(int(least), to), clamped_above)


def of_expr(e: Expr, data: Mapping[Symbol, Formula]) -> Formula:
    """Return the integer expression `e` as a formula of i64.

    `data` is {symbol that stands for a value read at run time: its formula, of i64}. All other symbols are coordinates.
    Raise ProgramError for an operator without a formula, if one of its operands contains a symbol of `data`.
    """
    if not any(s in data for s in e.symbols):
        return index(e, dtypes.i64)
    if isinstance(e, Symbol):
        return data[e]
    if isinstance(e, Sum):
        terms = [
            of_expr(t, data) if c == 1 else call("mul", of_expr(t, data), number(c, dtypes.i64)) for t, c in e.terms
        ]
        if e.constant:
            terms.append(number(e.constant, dtypes.i64))
        return reduce(lambda a, b: call("add", a, b), terms)
    if isinstance(e, AtLeastZero | IsZero):
        name = "ge" if isinstance(e, AtLeastZero) else "eq"
        return Formula.cast(dtypes.i64, call(name, of_expr(e.operand, data), number(0, dtypes.i64)))
    name_of = _NAMES.get(type(e))
    if name_of is None:
        raise ProgramError(f"the expression {e} of values known at run time cannot be computed natively yet")
    if name_of in ("floordiv", "mod"):
        from tilewright.ir.tile_functions import quotient

        return quotient(name_of, dtypes.i64, *(of_expr(p, data) for p in e.parts))
    return reduce(lambda a, b: call(name_of, a, b), [of_expr(p, data) for p in e.parts])
