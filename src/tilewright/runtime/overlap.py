"""Exact tests for overlapping memory: of two arrays, or of two elements of one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.errors import ArgumentError

Array = np.ndarray[Any, np.dtype[Any]]
_WORK: Any = 1_000_000
"""The most candidates that numpy tries, a few milliseconds; its stubs' types differ between versions."""


def share_memory(a: Array, b: Array) -> bool:
    """True if two numpy arrays have an element in common, wholly or in part. True also if an exact answer would take
    too long.

    >>> x = np.zeros(8)
    >>> share_memory(x[::2], x[1::2]), share_memory(x[::2], x[1::3])
    (False, True)
    """
    if not np.may_share_memory(a, b):
        return False
    try:
        return bool(np.shares_memory(a, b, max_work=_WORK))
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(array: Array) -> bool:
    """True if two elements of `array` share memory, wholly or in part, as in a broadcast view.

    True also if an exact answer would take too long.

    >>> from numpy.lib.stride_tricks import as_strided
    >>> x = np.zeros(8, np.float32)
    >>> overlaps_itself(as_strided(x, (2, 4), (4, 4))), overlaps_itself(as_strided(x, (2, 3), (12, 4)))
    (True, False)
    """
    if array.size <= 1:
        return False
    reach = array.itemsize
    for stride, count in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride < reach:
            break
        reach += stride * (count - 1)
    else:
        return False  # each stride goes past all elements that smaller strides reach
    # Two elements that coincide differ first along some dimension; only their distance matters, so one is at its start.
    view = array
    for count in array.shape:
        if count > 1 and share_memory(view[:1], view[1:]):
            return True
        view = view[0, ...]
    return False


def require_own_memory(array: Array, where: str) -> None:
    """Raise ArgumentError if `array`, which a kernel writes, is read-only or has two elements that share memory.

    `where` names the array in the message.
    """
    if not array.flags.writeable:
        raise ArgumentError(f"{where} is written, but the array given is read-only")
    if overlaps_itself(array):
        raise ArgumentError(
            f"{where} is written, but its shape {array.shape} and strides {array.strides} make elements coincide; "
            "pass an array whose elements each have memory of their own, as numpy.empty gives"
        )


def require_no_overlap(name: str, args: Sequence[tuple[str, str | None]], arrays: Sequence[Array]) -> None:
    """Raise ArgumentError if the address range of an array that is written overlaps that of another array.

    `args` has a pair (name, role) for each of `arrays`; an array of any role but "in" is written. `name` is the
    program's name in the message.
    """
    for place, (written, role) in enumerate(args):
        for other in range(len(arrays)):
            if role != "in" and other != place and np.may_share_memory(arrays[place], arrays[other]):
                raise ArgumentError(
                    f"{name}: {written}, which is written, shares memory with {args[other][0]}; "
                    "give them memory of their own"
                )
