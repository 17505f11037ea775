"""Element types of problems by their short names: f32, bf16, s8, ..."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.errors import ProblemError
from tilewright.ir.dtypes import DTypeLike, as_element_type

_ALIASES = {"f8_e4m3": "f8e4m3fn", "f8_e5m2": "f8e5m2"}


@dataclass(frozen=True)
class Dtype:
    """An element type: its name, its numpy type, and the precision and range that tests need.

    `digits` counts the bits of the significand with the leading one (for integers, the bits without the sign), so that
    all integers up to `exact_limit` in magnitude are values of the type. `eps` is the distance from 1 to the next
    value, `tiny` the smallest positive normal value (both 0 for integers).
    """

    name: str
    numpy: np.dtype[np.generic]
    digits: int
    eps: float = 0.0
    tiny: float = 0.0
    signed: bool = True

    @property
    def is_integer(self) -> bool:
        """Return True if the type is an integer type: its `eps` is 0."""
        return self.eps == 0

    @property
    def exact_limit(self) -> int:
        """Return the largest n for which all integers 0, 1, ..., n are values of the type.

        >>> dtype("bf16").exact_limit, dtype("s8").exact_limit, dtype("f8e4m3fn").exact_limit
        (256, 127, 16)
        """
        return (1 << self.digits) - (1 if self.is_integer else 0)


def _float_type(name: str, kind: type) -> Dtype:
    """Return the floating-point element type called `name`, with the precision and range of the numpy type `kind`."""
    info = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
    return Dtype(name, np.dtype(kind), info.nmant + 1, float(info.eps), float(info.smallest_normal))


def _integer_type(name: str, kind: type) -> Dtype:
    """Return the integer element type called `name`, with the range and sign of the numpy type `kind`."""
    info = np.iinfo(kind)
    return Dtype(name, np.dtype(kind), int(info.max).bit_length(), signed=info.min < 0)


DTYPES = {
    kind.name: kind
    for kind in (
        _float_type("f64", np.float64),
        _float_type("f32", np.float32),
        _float_type("bf16", ml_dtypes.bfloat16),
        _float_type("f16", np.float16),
        _float_type("f8e4m3fn", ml_dtypes.float8_e4m3fn),
        _float_type("f8e5m2", ml_dtypes.float8_e5m2),
        _integer_type("s8", np.int8),
        _integer_type("u8", np.uint8),
        _integer_type("s32", np.int32),
        _integer_type("s64", np.int64),
    )
}


def dtype(name: DTypeLike) -> Dtype:
    """Return the element type called `name`: a short name such as "bf16" or "s8" (also "i8"), numpy's name, or a numpy
    type.

    Raise ProblemError if there is no such type.

    >>> dtype("bf16").digits, dtype("i8").name, dtype(np.int8).name, dtype("float32").name
    (8, 's8', 's8', 'f32')
    >>> dtype("f13")
    Traceback (most recent call last):
        ...
    tilewright.errors.ProblemError: 'f13' names no element type; there are f64, f32, bf16, f16, f8e4m3fn, f8e5m2, s8,
    u8, s32, s64
    """
    element_type = as_element_type(_ALIASES.get(name, name) if isinstance(name, str) else name)
    match = None if element_type is None else next((t for t in DTYPES.values() if t.numpy == element_type.numpy), None)
    if match is None:
        raise ProblemError(f"{name!r} names no element type; there are {', '.join(DTYPES)}")
    return match
