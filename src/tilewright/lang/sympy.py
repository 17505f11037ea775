"""The functions of sympy that Wave kernels use, implemented on Tilewright's integer expressions.

>>> from tilewright.lang import sym, sympy
>>> print(sympy.ceiling(sym.M / 64) * 64, "and", sympy.Max(sympy.Min(1024, 256), 64))
-64*((-M)//64) and 256
"""

from __future__ import annotations

import math
from typing import Any

from tilewright.algebra import expr as _expr
from tilewright.algebra.expr import Expr, ExprLike, as_expr, symbol
from tilewright.algebra.expr_conditions import all_of, any_of, eq, ne, negate
from tilewright.algebra.expr_rules import maximum, minimum, multiply
from tilewright.errors import ProgramError
from tilewright.ir.location import author_location
from tilewright.limits import written

Integer = as_expr
Min, Max = minimum, maximum
Eq, Ne = eq, ne
sympify = as_expr
oo = math.inf


class _SymbolMeta(type):
    """Lets `Symbol("X")` make a symbol and `isinstance(x, Symbol)` recognise one."""

    def __call__(cls, name: str, **assumptions: Any) -> Any:
        return _symbol(name, assumptions)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _expr.Symbol)


class Symbol(metaclass=_SymbolMeta):
    """`Symbol("X")` is the symbol X, of either sign; with `nonnegative=True` it is `tkl.sym.X`, never negative."""


def _symbol(name: str, assumptions: dict[str, Any]) -> Any:
    """Return the integer symbol `name`: never negative if `assumptions` has nonnegative or positive, otherwise of
    either sign.
    """
    known = assumptions.get("nonnegative") or assumptions.get("positive")
    return symbol(name, 0) if known else symbol(name)


def ceiling(x: ExprLike) -> Expr:
    """Return the smallest integer >= x as an expression; `ceiling(M / 64)` is the division rounded up. `x` may be a
    float.
    """
    if isinstance(x, float) and math.isfinite(x):
        return as_expr(math.ceil(x))
    return as_expr(x).__ceil__()


def floor(x: ExprLike) -> Expr:
    """Return the largest integer <= x as an expression; `floor(M / 64)` is the division rounded down. `x` may be a
    float.
    """
    if isinstance(x, float) and math.isfinite(x):
        return as_expr(math.floor(x))
    return as_expr(x).__floor__()


def Mod(a: ExprLike, b: ExprLike) -> Expr:  # noqa: N802
    """Return the expression `a % b` as Python defines it: the result has the sign of `b`."""
    return as_expr(a) % b


def Lt(a: ExprLike, b: ExprLike) -> Expr:  # noqa: N802
    """Return the condition `a < b`: an expression that is 1 or 0."""
    return as_expr(a) < b


def Le(a: ExprLike, b: ExprLike) -> Expr:  # noqa: N802
    """Return the condition `a <= b`: an expression that is 1 or 0."""
    return as_expr(a) <= b


def Gt(a: ExprLike, b: ExprLike) -> Expr:  # noqa: N802
    """Return the condition `a > b`: an expression that is 1 or 0."""
    return as_expr(a) > b


def Ge(a: ExprLike, b: ExprLike) -> Expr:  # noqa: N802
    """Return the condition `a >= b`: an expression that is 1 or 0."""
    return as_expr(a) >= b


def And(*conditions: Any) -> Expr:  # noqa: N802
    """Return an expression that is 1 if all `conditions` hold, otherwise 0. A condition may be a bool."""
    return all_of(*[_condition(c) for c in conditions])


def Or(*conditions: Any) -> Expr:  # noqa: N802
    """Return an expression that is 1 if at least one of `conditions` holds, otherwise 0. A condition may be a bool."""
    return any_of(*[_condition(c) for c in conditions])


def Not(condition: Any) -> Expr:  # noqa: N802
    """Return an expression that is 0 if `condition` holds, otherwise 1. The condition may be a bool."""
    return negate(_condition(condition))


def Abs(x: ExprLike) -> Expr:  # noqa: N802
    """Return the absolute value of `x` as an expression: max(x, -x)."""
    return maximum(as_expr(x), -as_expr(x))


def Piecewise(*cases: tuple[Any, Any]) -> Expr:  # noqa: N802
    """Return an expression that is the value of the first pair (value, condition) in `cases` of which the condition
    holds.

    Raise ProgramError unless `cases` are pairs, at least one, and the condition of the last one is True.
    """
    if not cases or not all(isinstance(case, tuple | list) and len(case) == 2 for case in cases):
        raise ProgramError(f"Piecewise: {written(cases, 80)}: give pairs (value, condition)", author_location())
    *earlier, (default, last) = cases
    if last is not True and not (isinstance(last, Expr) and last.is_constant and bool(last)):
        raise ProgramError(f"Piecewise: the last case must have the condition True, not {last}", author_location())
    result = as_expr(default)
    for earlier_value, condition in reversed(earlier):
        holds = _condition(condition)
        result = multiply(holds, as_expr(earlier_value) - result) + result
    return result


def symbols(names: str, **assumptions: Any) -> Any:
    """Return the symbols that `names` lists, such as "M N" or "M, N": a symbol for a single name, otherwise a tuple.

    The symbols are of either sign, unless `assumptions` has nonnegative=True or positive=True. Raise ProgramError if
    `names` is no text.
    """
    if not isinstance(names, str):
        raise ProgramError(f"symbols: {written(names, 80)} is no text", author_location())
    result = tuple(_symbol(name, assumptions) for name in names.replace(",", " ").split())
    return result[0] if len(result) == 1 else result


def simplify(x: ExprLike) -> Expr:
    """Return `x` as an expression. An expression is returned unchanged, since expressions are simplified when they are
    made.
    """
    return as_expr(x)


def _condition(c: Any) -> Expr:
    """Return the condition `c`, a bool or an expression, as an expression; a bool becomes 0 or 1."""
    return as_expr(int(c)) if isinstance(c, bool) else as_expr(c)


true, false = as_expr(1), as_expr(0)
__all__ = ["Abs", "And", "Eq", "Expr", "Ge", "Gt", "Integer", "Le", "Lt", "Max", "Min", "Mod", "Ne", "Not", "Or"]
__all__ += ["Piecewise", "Symbol", "ceiling", "false", "floor", "oo", "simplify", "symbols", "sympify", "true"]
