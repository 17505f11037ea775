"""Powers of a tile by a small integer: products of it, so that x ** 2 is x * x bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.errors import DtypeMismatch
from tilewright.ir.core import TileType, Value
from tilewright.ir.dtypes import plain_number
from tilewright.ir.location import author_location

LARGEST = 8
"""The largest exponent of a floating-point tile whose power is a product: each product rounds once more."""
LARGEST_INTEGER = 2**63 - 1
"""The same of an integer tile: products are exact modulo its range, whatever the exponent."""

Emit = Callable[..., Any]
"""Adds an operation to the kernel that is traced: its name, operands, attributes and result types."""


def as_products(base: Value, exponent: Any, emit: Emit) -> Value | None:
    """The power of a tile by an integer, as products: x^n is the square of x^(n // 2), times x where n is odd.

    x^0 is 1 everywhere, x^1 is x, and x^-n is 1 / x^n. None where the exponent is no integer, or where it lies beyond
    what products are taken for: `powf` computes these.
    """
    kind: TileType = base.type
    number = _integer(exponent, kind)
    if number is None or abs(number) > (LARGEST if kind.dtype.is_float else LARGEST_INTEGER):
        return None
    if number < 0 and not kind.dtype.is_float:
        raise DtypeMismatch(
            f"** {number} of a tile of {kind.dtype}: a negative power of an integer is no integer; cast the tile, for "
            "instance tkw.cast(x, tkl.f32)",
            author_location(2),
        )
    if number == 0:
        return _result(emit("fill", (), {"value": 1.0 if kind.dtype.is_float else 1}, (kind,)))
    power = _product(base, abs(number), emit)
    if number > 0:
        return power
    return _result(emit("div", (_result(emit("scalar", (), {"value": 1.0, "dtype": kind.dtype})), power)))


def _integer(exponent: Any, kind: TileType) -> int | None:
    """An exponent that is an integer; 2.0 is one beside a floating-point tile."""
    number = plain_number(exponent)
    if isinstance(number, float) and kind.dtype.is_float and number.is_integer():
        return int(number)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _product(base: Value, number: int, emit: Emit) -> Value:
    if number == 1:
        return base
    half = _product(base, number // 2, emit)
    square = _result(emit("mul", (half, half)))
    return _result(emit("mul", (square, base))) if number % 2 else square


def _result(op: Any) -> Value:
    value: Value = op.result
    return value
