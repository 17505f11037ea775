"""Scalar arguments: conversion of numbers to element types.

Integers and bool accept only exact values: 3, 3.0 and `np.int64(3)` are the same i32; 3.5 and 2**40 are refused.
Floating-point types round to nearest; numbers beyond the largest one are refused, and so are infinities and NaN if the
type has none.
"""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DType

_finfo: Any = ml_dtypes.finfo
_iinfo: Any = ml_dtypes.iinfo


def scalar(value: bool | float, wanted: DType, where: str) -> bool | int | float:
    """Return the number that is stored if `value`, a scalar argument, is converted to the element type `wanted`.

    Floats are rounded to nearest; integers and bool must be exact. Raise ArgumentError if the type cannot hold `value`.
    `where` names the argument in the message.

    >>> from tilewright.ir import dtypes
    >>> scalar(3.0, dtypes.i32, "n"), scalar(0.1, dtypes.f32, "x"), scalar(1, dtypes.bool_, "on")
    (3, 0.10000000149011612, True)
    >>> scalar(2**40, dtypes.i32, "n")
    Traceback (most recent call last):
        ...
    tilewright.errors.ArgumentError: n is 1099511627776; it must be an integer in -2147483648..2147483647 (i32)
    """
    number = _rounded(value, wanted) if wanted.is_float else _exact(value, wanted)
    if number is None:
        raise ArgumentError(f"{where} is {value!r}; it must be {_allowed(wanted)} ({wanted})")
    return number


def _limits(wanted: DType) -> tuple[Any, Any]:
    """Return (smallest, largest) finite number of the element type `wanted`."""
    if wanted.kind == "bool":
        return 0, 1
    info = _finfo(wanted.numpy) if wanted.is_float else _iinfo(wanted.numpy)
    return (float(info.min), float(info.max)) if wanted.is_float else (int(info.min), int(info.max))


def _allowed(wanted: DType) -> str:
    """Return a text for an error message that says which numbers the type `wanted` holds: "an integer in -128..127"."""
    lo, hi = _limits(wanted)
    if wanted.kind == "bool":
        return "False or True, 0 or 1"
    return f"{'a number' if wanted.is_float else 'an integer'} in {lo!r}..{hi!r}"


def _exact(value: bool | float, wanted: DType) -> bool | int | None:
    """Return `value` as an int, or as a bool for type bool; None if it is not integral or out of the range of `wanted`.

    `wanted` is an integer type or bool. An infinity or NaN gives None.
    """
    if isinstance(value, float) and not value.is_integer():
        return None
    lo, hi = _limits(wanted)
    number = int(value)
    if not lo <= number <= hi:
        return None
    return bool(number) if wanted.kind == "bool" else number


def _rounded(value: bool | float, wanted: DType) -> float | None:
    """Return `value` rounded to the nearest number of the float type `wanted`; None if the type cannot hold it.

    The type cannot hold a number beyond its largest one, nor an infinity or NaN that it lacks.
    """
    try:
        number = float(value)
    except OverflowError:
        return None
    lo, hi = _limits(wanted)
    with np.errstate(all="ignore"):
        rounded = float(np.float64(number).astype(wanted.numpy))
        saturates = isfinite(float(np.float64(2 * hi).astype(wanted.numpy)))  # such a type shows no overflow
    if not isfinite(number):
        return rounded if rounded == number or (isnan(rounded) and isnan(number)) else None
    return rounded if isfinite(rounded) and (lo <= number <= hi or not saturates) else None
