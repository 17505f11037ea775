"""Fractions of sizes beside float tiles: `t * (M / N)` multiplies by M / N, also if N does not divide M."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.algebra.expr import Exact, Expr, Product, Sum, as_expr
from tilewright.ir import dtypes
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType

Emit = Callable[[str, tuple[Value, ...], dict[str, Any]], Op]


def has_fraction(e: Expr) -> bool:
    """True if the expression `e` is a quotient `a / b`, or a sum or product that contains a quotient."""
    return isinstance(e, Exact) or (isinstance(e, Sum | Product) and any(map(has_fraction, e.parts)))


def fraction(emit: Emit, e: Expr, dtype: DType) -> Value:
    """Emit operations that compute the expression `e` with real division; return the result as a tile of the float type
    `dtype` without dimensions.

    The computation is in f32, or in f64 for `dtype` f64. `emit(name, operands, attributes)` emits an operation and
    returns it.
    """
    wide = dtypes.f64 if dtype is dtypes.f64 else dtypes.f32

    def joined(name: str, values: list[Value]) -> Value:
        """Emit the sum ("add") or product ("mul") of `values`, from left to right, and return the result."""
        first, *others = values
        for value in others:
            first = emit(name, (first, value), {}).result
        return first

    def number(e: Expr | int) -> Value:
        """Emit the value of the expression `e` in the wide type, and return it."""
        e = as_expr(e)
        if not has_fraction(e):
            return emit("scalar", (), {"value": e, "dtype": wide}).result
        if isinstance(e, Exact):
            return emit("div", (number(e.left), number(e.right)), {}).result
        if isinstance(e, Product):
            return joined("mul", [number(factor) for factor in e.factors])
        assert isinstance(e, Sum)
        terms = [number(t) if c == 1 else joined("mul", [number(c), number(t)]) for t, c in e.terms]
        return joined("add", [*terms, *([number(e.constant)] if e.constant else [])])

    value = number(e)
    return value if wide is dtype else emit("cast", (value,), {"dtype": dtype}).result
