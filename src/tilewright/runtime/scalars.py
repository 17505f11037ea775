"""Scalar arguments: numbers that an element type holds.

Integers and bool take what they hold exactly: 3, 3.0 and `np.int64(3)` are one i32; 3.5 and 2**40 are none. Floating-
point types round to the nearest number they have; what lies beyond their largest is refused, as are infinities and NaN
where the type has none.
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
    """The number as one of the element type; raises where the type does not hold it. `where` names the argument.

    >>> from tilewright.ir import dtypes
    >>> scalar(3.0, dtypes.i32, "n"), scalar(0.1, dtypes.f32, "x"), scalar(1, dtypes.bool_, "on")
    (3, 0.10000000149011612, True)
    >>> scalar(2**40, dtypes.i32, "n")
    Traceback (most recent call last):
        ...
    tilewright.errors.ArgumentError: n is 1099511627776; it must be an integer in -2147483648..2147483647 (i32)
    """
    found = _rounded(value, wanted) if wanted.is_float else _exact(value, wanted)
    if found is None:
        raise ArgumentError(f"{where} is {value!r}; it must be {_allowed(wanted)} ({wanted})")
    return found


def _limits(wanted: DType) -> tuple[Any, Any]:
    if wanted.kind == "bool":
        return 0, 1
    info = _finfo(wanted.numpy) if wanted.is_float else _iinfo(wanted.numpy)
    return (float(info.min), float(info.max)) if wanted.is_float else (int(info.min), int(info.max))


def _allowed(wanted: DType) -> str:
    lo, hi = _limits(wanted)
    if wanted.kind == "bool":
        return "False or True, 0 or 1"
    return f"{'a number' if wanted.is_float else 'an integer'} in {lo!r}..{hi!r}"


def _exact(value: bool | float, wanted: DType) -> bool | int | None:
    if isinstance(value, float) and not value.is_integer():
        return None
    lo, hi = _limits(wanted)
    number = int(value)
    if not lo <= number <= hi:
        return None
    return bool(number) if wanted.kind == "bool" else number


def _rounded(value: bool | float, wanted: DType) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    lo, hi = _limits(wanted)
    with np.errstate(all="ignore"):
        found = float(np.float64(number).astype(wanted.numpy))
        saturates = isfinite(float(np.float64(2 * hi).astype(wanted.numpy)))  # such a type shows no overflow
    if not isfinite(number):
        return found if found == number or (isnan(found) and isnan(number)) else None
    return found if isfinite(found) and (lo <= number <= hi or not saturates) else None
