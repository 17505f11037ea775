"""Powers of a tile by a small integer, computed by multiplications, so that x ** 2 is x * x bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.errors import DtypeMismatch
from tilewright.ir.core import TileType, Value
from tilewright.ir.dtypes import plain_number
from tilewright.ir.location import author_location

LARGEST = 8
"""The largest |exponent| for which a float tile is multiplied out: each multiplication rounds once more."""
LARGEST_INTEGER = 2**63 - 1
"""The same limit for an integer tile: its multiplications are exact modulo the range of its type."""

Emit = Callable[..., Any]
"""`Tracer.emit`: (operation name, operands, attributes, result types) -> the operation added to the traced kernel."""


def as_products(base: Value, exponent: Any, emit: Emit) -> Value | None:
    """Emit the multiplications for the power `base` ** `exponent` of the tile `base`, and return the resulting tile.

    Return None and emit nothing if `exponent` is no integer, or if its absolute value exceeds `LARGEST` (for an integer
    tile, `LARGEST_INTEGER`). Squares are reused: x^n = (x^(n // 2))^2, times x if n is odd. x^0 is 1, x^1 is x and x^-n
    is 1 / x^n. Raise `DtypeMismatch` for a negative power of an integer tile. `emit` is `Tracer.emit`.
    """
    tile_type: TileType = base.type
    n = _as_integer(exponent, tile_type)
    if n is None or abs(n) > (LARGEST if tile_type.dtype.is_float else LARGEST_INTEGER):
        return None
    if n < 0 and not tile_type.dtype.is_float:
        raise DtypeMismatch(
            f"** {n} of a tile of {tile_type.dtype}: a negative power of an integer is no integer; cast the tile, for "
            "instance tkw.cast(x, tkl.f32)",
            author_location(2),
        )
    if n == 0:
        return _result_of(emit("fill", (), {"value": 1.0 if tile_type.dtype.is_float else 1}, (tile_type,)))
    power = _power_by_squaring(base, abs(n), emit)
    if n > 0:
        return power
    return _result_of(emit("div", (_result_of(emit("scalar", (), {"value": 1.0, "dtype": tile_type.dtype})), power)))


def _as_integer(exponent: Any, tile_type: TileType) -> int | None:
    """Return `exponent` as an int, or None if it is not integral.

    A float such as 2.0 counts as 2 only if `tile_type`, the type of the base, has floating-point elements.
    """
    number = plain_number(exponent)
    if isinstance(number, float) and tile_type.dtype.is_float and number.is_integer():
        return int(number)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _power_by_squaring(base: Value, exponent: int, emit: Emit) -> Value:
    """Emit multiplications for `base` ** `exponent` by repeated squaring, and return the resulting tile.

    `exponent` is at least 1; for 1, nothing is emitted and `base` is returned. `emit` is `Tracer.emit`.
    """
    if exponent == 1:
        return base
    root = _power_by_squaring(base, exponent // 2, emit)
    square = _result_of(emit("mul", (root, root)))
    return _result_of(emit("mul", (square, base))) if exponent % 2 else square


def _result_of(op: Any) -> Value:
    """Return the only result of the operation `op`."""
    value: Value = op.result
    return value
