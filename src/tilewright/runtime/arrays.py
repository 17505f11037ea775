"""Arrays that start at a cache line, so that a row that a tile or vector loads does not straddle two lines."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
LINE = 64


def empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an uninitialised numpy array, of the given shape and numpy type, at an address that is a multiple of 64
    bytes.

    >>> x = empty((3, 5), np.float32)
    >>> x.ctypes.data % 64, x.shape, x.dtype.name
    (0, (3, 5), 'float32')
    """
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    buffer = np.empty(size + LINE, np.uint8)
    start = -buffer.ctypes.data % LINE
    array: Array = buffer[start : start + size].view(kind).reshape(shape)
    return array


def placed(array: Array) -> Array:
    """Return `array` itself if it is contiguous and its address is a multiple of 64 bytes; else a copy with both
    properties."""
    if array.ctypes.data % LINE == 0 and array.flags.c_contiguous:
        return array
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy
