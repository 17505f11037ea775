"""The types in which kernels multiply and accumulate."""

from __future__ import annotations

from typing import Any

from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DType, f16
from tilewright.limits import written


def known_accumulate(accumulate: Any, of_data: DType) -> str | None:
    """Return the option `accumulate` of a kernel unchanged if it is None (the usual accumulator) or "f16".

    "f16" accumulates f16 products in f16. Raise `ArgumentError` for another value, and for "f16" if `of_data`, the type
    of the operands, is not f16.

    >>> from tilewright.ir.dtypes import f32
    >>> known_accumulate("f16", f16)
    'f16'
    >>> known_accumulate("f16", f32)
    Traceback (most recent call last):
        ...
    tilewright.errors.ArgumentError: accumulate='f16': factors are f32; only products of f16 are summed in f16
    """
    if accumulate is None:
        return None
    if not isinstance(accumulate, str) or accumulate != f16.name:
        raise ArgumentError(f"accumulate={accumulate!r}: 'f16', which sums products of f16 in f16, or None")
    if of_data is not f16:
        raise ArgumentError(f"accumulate={accumulate!r}: factors are {of_data}; only products of f16 are summed in f16")
    return f16.name


def known_precision(precision: Any) -> str | None:
    """Return the option `precision` unchanged if it is None or "tf32" (f32 operands are rounded to tf32).

    Raise `ArgumentError` for any other value.
    """
    if precision is not None and not (isinstance(precision, str) and precision == "tf32"):
        raise ArgumentError(f"precision={written(precision, 80)}: 'tf32', which rounds factors of f32, or None")
    return None if precision is None else "tf32"


def sum_type(of_data: DType, accumulate: str | None) -> DType:
    """Return the accumulator type for operands of type `of_data`: f32, i32, f64 or i64; f16 if `accumulate` is "f16".

    Raise `ArgumentError` for other values of `accumulate`, and for "f16" if `of_data` is not f16.

    >>> sum_type(f16, None), sum_type(f16, "f16")
    (f32, f16)
    """
    return of_data.accumulator if known_accumulate(accumulate, of_data) is None else f16
