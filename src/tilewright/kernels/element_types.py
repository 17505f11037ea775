"""Element types as kernel makers take them: by name, as numpy has them, or as they are."""

from __future__ import annotations

from tilewright.ir.dtypes import DType, as_dtype


def element_type(given: DType | str) -> DType:
    """The element type of that name; an element type is given back.

    >>> import tilewright.lang as tkl
    >>> element_type("bf16") is element_type(tkl.bf16)
    True
    """
    return as_dtype(given, "dtype")
