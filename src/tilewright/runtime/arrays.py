"""Arrays that start at a cache line, so that a row that a tile or vector loads does not straddle two lines."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
LINE = 64


def empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an uninitialised array whose first element has an address that is a multiple of 64 bytes.

    >>> found = empty((3, 5), np.float32)
    >>> found.ctypes.data % 64, found.shape, found.dtype.name
    (0, (3, 5), 'float32')
    """
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    buffer = np.empty(size + LINE, np.uint8)
    start = -buffer.ctypes.data % LINE
    array: Array = buffer[start : start + size].view(kind).reshape(shape)
    return array


def placed(array: Array) -> Array:
    """Return `array` itself if it is contiguous and starts at a cache line, else a copy that does and is."""
    if array.ctypes.data % LINE == 0 and array.flags.c_contiguous:
        return array
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy
