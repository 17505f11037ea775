"""Arrays that start at a cache line: rows that a tile or a vector loads then lie in one line each, not in two."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
LINE = 64


def empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array whose first element lies at a multiple of 64 bytes; what it holds is not set.

    >>> found = empty((3, 5), np.float32)
    >>> found.ctypes.data % 64, found.shape, found.dtype.name
    (0, (3, 5), 'float32')
    """
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    raw = np.empty(count + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    found: Array = raw[start : start + count].view(kind).reshape(shape)
    return found


def placed(array: Array) -> Array:
    """The array, copied to a cache line's start if it does not begin at one."""
    if array.ctypes.data % LINE == 0 and array.flags.c_contiguous:
        return array
    found = empty(array.shape, array.dtype)
    found[...] = array
    return found
