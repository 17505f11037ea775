"""Memory for the outputs that calls make: large ones come from a pool, and return there when their array is gone.

The system hands out large blocks page by page, at the first touch, and takes them back when they are freed: an output
of 3 MB costs hundreds of page faults, each time. A block of the pool is touched once. It stays with its array and all
views of it: the array's base is a *lease*, and the end of the lease gives the block back.

The pool keeps at most `MOST` bytes that no array uses; what goes beyond that is returned to the system. Smaller outputs
than `LEAST` bytes are numpy's own. Blocks are private to a process: after a fork each has its own copies.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
LEAST = 4 << 10
"""Bytes of the smallest output that comes from the pool."""
MOST = 64 << 20
"""Bytes, at most, that the pool keeps for later outputs."""
LARGE_PAGE = 2 << 20
"""Bytes of a large page."""


def private_pages(count: int) -> mmap.mmap:
    """Zeroed memory of at least so many bytes, at a page's start, which a forked process gets a copy of.

    Much of it lies in large pages where the system has them.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):  # as on Windows, where no process is forked
        return mmap.mmap(-1, count)
    pages = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if count >= LARGE_PAGE // 8 and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            pages.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a system may have none
            return pages
    return pages


class _Block:
    """Memory of one size class."""

    __slots__ = ("address", "pages", "pool", "size")

    def __init__(self, pool: OutputPool, size: int):
        self.pool, self.size, self.pages = pool, size, private_pages(size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))


@cache
def _lease(size: int) -> Any:
    """The class of leases of blocks of this size: buffers whose end gives the block back."""

    def end(self: Any) -> None:
        self.block.pool.take_back(self.block)

    return type(f"Lease{size}", (ctypes.c_char * size,), {"__del__": end, "__slots__": ("block",)})


class OutputPool:
    """Blocks that no array uses, by their size.

    >>> pool = OutputPool()
    >>> make = pool.maker((1024, 768), np.dtype(np.float32))
    >>> first = make()
    >>> where, row = first.ctypes.data, first[3]
    >>> del first
    >>> make().ctypes.data == where  # a row of it is still there
    False
    >>> del row
    >>> make().ctypes.data == where
    True
    """

    def __init__(self, most: int = MOST):
        self.most, self.kept = most, 0
        """The most bytes that may be kept, and those that are."""
        self.lock = threading.Lock()
        self._free: dict[int, list[_Block]] = {}

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], Array]:
        """Return a function that makes an array with memory of its own, at a page's start; what it holds is not set."""
        size = size_class(prod(shape) * dtype.itemsize)
        with self.lock:
            free = self._free.setdefault(size, [])
        lease_of = _lease(size).from_address

        def make() -> Array:
            block = None
            with self.lock:
                if free:
                    block = free.pop()
                    self.kept -= size
            if block is None:
                block = _Block(self, size)
            lease = lease_of(block.address)
            lease.block = block
            return np.ndarray(shape, dtype, lease)

        return make

    def take_back(self, block: _Block) -> None:
        """Keeps a block whose array is gone, perhaps in the place of others; what does not fit is let go.

        It may come at any moment, also while this thread has the lock: who finds it taken lets the block go.
        """
        if block.size > self.most or not self.lock.acquire(blocking=False):
            return
        try:
            if self.kept + block.size > self.most:
                self._make_room(block.size)
            self._free[block.size].append(block)
            self.kept += block.size
        finally:
            self.lock.release()

    def _make_room(self, size: int) -> None:
        """Lets blocks go until one of this size fits: those of other sizes first, which were not used last."""
        for other, free in sorted(self._free.items(), key=lambda each: each[0] == size):
            while free and self.kept + size > self.most:
                free.pop()
                self.kept -= other

    def after_fork(self) -> None:
        """In a forked process nobody holds the lock."""
        self.lock = threading.Lock()


def size_class(count: int) -> int:
    """The bytes of the block for so many: a power of two, or one of three steps between two.

    >>> [size_class(n) for n in (16 << 10, (16 << 10) + 1, 3 << 20, 2**22 - 1)]
    [16384, 20480, 3145728, 4194304]
    """
    step = max(mmap.PAGESIZE, 1 << max(0, (count - 1).bit_length() - 3))
    return -(-count // step) * step


POOL = OutputPool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.after_fork)


def maker(shape: tuple[int, ...], dtype: np.dtype[Any], zeroed: bool = False) -> Callable[[], Array]:
    """Return a function that makes an output of this shape and type; `zeroed`: with zeros in it.

    >>> maker((2, 2), np.dtype(np.int8), zeroed=True)()
    array([[0, 0],
           [0, 0]], dtype=int8)
    """
    if prod(shape) * dtype.itemsize < LEAST:
        return partial(np.zeros if zeroed else np.empty, shape, dtype)
    make = POOL.maker(shape, dtype)
    if not zeroed:
        return make

    def zeros() -> Array:
        made = make()
        made.fill(0)
        return made

    return zeros
