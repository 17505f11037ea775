"""Numpy functions of the elementwise operations, on arrays in the type in which arithmetic is done."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import erf
from typing import Any

import numpy as np

from tilewright.interpret.tiles import Array

_erf = np.vectorize(erf, otypes=[np.float64])


def _divide(a: Array, b: Array) -> Array:
    """Return a / b, elementwise; quotients of integers are rounded towards zero, and a quotient by 0 is 0."""
    if not np.issubdtype(a.dtype, np.integer):
        return a / b
    is_raised: Array = (np.mod(a, b) != 0) & ((a < 0) != (b < 0))  # a negative quotient that was rounded down
    quotient: Array = np.floor_divide(a, b) + is_raised
    return quotient


def _round_half_away(a: Array) -> Array:
    """Return the floats `a` rounded to the nearest integers, halves away from zero: 2.5 -> 3, -2.5 -> -3."""
    fraction, whole = np.modf(a)  # both are exact; a + 0.5 may be rounded
    magnitude: Array = np.abs(whole) + (np.abs(fraction) >= 0.5)
    return np.copysign(magnitude, a)


def _on_floats(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a version of `function`, which rounds floats to integers, that returns arrays of integers unchanged."""
    return lambda a: a if np.issubdtype(a.dtype, np.integer) else function(a)


def _sigmoid(a: Array) -> Array:
    """Return 1 / (1 + exp(-a)), elementwise."""
    return 1 / (1 + np.exp(-a))


def _shift_left(a: Array, b: Array) -> Array:
    """Return the integers `a` shifted left by `b` bits, elementwise."""
    return np.left_shift(a, b)


def fused(a: Array, b: Array, c: Array) -> Array:
    """Return a*b + c, elementwise, in the type of the arguments; f32 and f64 are rounded once, other types after the
    product and after the sum.

    >>> third = np.float32(1 / 3)
    >>> float(fused(third, np.float32(3), np.float32(-1))), float(third * np.float32(3) - np.float32(1))
    (2.9802322387695312e-08, 0.0)
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    if a.dtype != np.float32:
        if a.dtype != np.float64:
            return np.asarray(a * b + c)
        return np.asarray(_fused_doubles(a, b, c), np.float64)
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)  # the product is exact
    total = product + addend
    added = total - product
    error = (product - (total - added)) + (addend - added)
    is_even = (total.view(np.int64) & 1) == 0
    # round to odd: the last bit records the error, so that the second rounding knows on which side of a half the sum is
    odd = np.where(is_even & (error != 0) & np.isfinite(total), np.nextafter(total, np.copysign(np.inf, error)), total)
    return np.asarray(odd, np.float32)


def _fused_double(a: float, b: float, c: float) -> float:
    """Return a*b + c for Python floats, rounded once. Infinities and NaN are allowed."""
    if not np.isfinite([a, b, c]).all():
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(exact) if exact else a * b + c
    except OverflowError:
        return float("inf") if exact > 0 else -float("inf")


_fused_doubles = np.vectorize(_fused_double, otypes=[np.float64])


UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "relu": lambda a: np.maximum(a, a.dtype.type(0)),
    "floor": _on_floats(np.floor),
    "ceil": _on_floats(np.ceil),
    "round": _on_floats(_round_half_away),
    "roundeven": _on_floats(np.rint),
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "reciprocal": lambda a: 1 / a,
    "tanh": np.tanh,
    "erf": lambda a: _erf(a).astype(a.dtype),
    "sigmoid": _sigmoid,
    "sin": np.sin,
    "cos": np.cos,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "cbrt": np.cbrt,
    "not_": np.invert,
}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "powf": np.power,
    "atan2": np.arctan2,
    "remf": np.fmod,
    "and_": np.bitwise_and,
    "or_": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": _shift_left,
    "shr": np.right_shift,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}

TERNARY: dict[str, Callable[[Any, Any, Any], Any]] = {"fma": fused}
