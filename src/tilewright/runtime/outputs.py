"""Memory of outputs that calls allocate: large ones come from a pool, and return to it when their array is deleted.

The system maps large blocks page by page, at the first access, and unmaps them when they are freed: an output of 3 MB
costs hundreds of page faults at every call. A block of the pool has these faults once. It belongs to an array and all
views of it: the array's base is a *lease*, whose destructor returns the block to the pool.

The pool keeps at most `most_kept` bytes that no array uses; further blocks are returned to the system.
Outputs of fewer than `LEAST` bytes are allocated by numpy. Blocks are private to a process: after a fork each process
has its own copies.
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
KEPT_SHARE = 64
"""The pool keeps at most the machine's memory divided by this number."""
LARGE_PAGE = 2 << 20
"""Bytes of a large page."""


def private_pages(count: int) -> mmap.mmap:
    """Map zeroed memory of at least `count` bytes and return it: page-aligned, and copied on write after a fork.

    Memory of 256 KB or more uses huge pages if the system has them. On Windows the memory is not private: no process is
    forked there.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):  # as on Windows, where no process is forked
        return mmap.mmap(-1, count)
    pages = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if count >= LARGE_PAGE // 8 and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            pages.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # the system may have no huge pages
            return pages
    return pages


def most_kept() -> int:
    """Return the most bytes that the pool keeps for later outputs: a 64th of the machine's memory, but at least 64 MB.

    It is 64 MB also if the system does not tell its memory. A network of convolutions may have a dozen sizes of
    outputs, 100 MB in all, and needs each again in its next run.
    """
    least = 64 << 20
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return least
    return max(least, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // KEPT_SHARE)


class _Block:
    """Memory of `size` bytes that belongs to a pool."""

    __slots__ = ("address", "pages", "pool", "size")

    def __init__(self, pool: OutputPool, size: int):
        self.pool, self.size, self.pages = pool, size, private_pages(size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))


@cache
def _lease(size: int) -> Any:
    """Return the class of leases for blocks of `size` bytes; classes are cached.

    A lease is the base object of an output array: a ctypes buffer at a block's address. Its attribute `block` is set by
    the caller. Its destructor returns the block to the pool.
    """

    def end(self: Any) -> None:
        """Return the block of the lease `self` to the block's pool."""
        self.block.pool.take_back(self.block)

    return type(f"Lease{size}", (ctypes.c_char * size,), {"__del__": end, "__slots__": ("block",)})


class OutputPool:
    """Unused blocks of memory, by their size.

    >>> pool = OutputPool()
    >>> make = pool.maker((1024, 768), np.dtype(np.float32))
    >>> first = make()
    >>> where, row = first.ctypes.data, first[3]
    >>> del first
    >>> make().ctypes.data == where  # a row of it is still alive
    False
    >>> del row
    >>> make().ctypes.data == where
    True
    """

    def __init__(self, most: int | None = None):
        self.most, self.kept = most_kept() if most is None else most, 0
        """The most bytes that unused blocks may have, and the bytes that they have now."""
        self.lock = threading.Lock()
        self._free: dict[int, list[_Block]] = {}

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], Array]:
        """Return a function that allocates: each call returns a new, uninitialised, page-aligned array of this shape
        and type.

        The array is on an unused block of the pool, or on new memory from the system if the pool has no block of this
        size. The block returns to the pool when the array and all its views are deleted.
        """
        size = size_class(prod(shape) * dtype.itemsize)
        with self.lock:
            free = self._free.setdefault(size, [])
        lease_of = _lease(size).from_address

        def make() -> Array:
            """Return a new array on an unused block of the pool, or on a new block if there is none of the size."""
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
        """Keep `block`, the memory of a deleted array, for a later array.

        If the pool would exceed its limit, other unused blocks are unmapped. `block` itself is unmapped if it is larger
        than the limit, or if another call holds the lock. (Destructors call this at any moment, perhaps while this
        thread holds the lock.)
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
        """Unmap unused blocks until `size` more bytes are within the pool's limit. Blocks of another size go first.

        The caller holds the lock.
        """
        for other, free in sorted(self._free.items(), key=lambda item: item[0] == size):
            while free and self.kept + size > self.most:
                free.pop()
                self.kept -= other

    def after_fork(self) -> None:
        """Replace the pool's lock in a forked process, since another thread of the parent may have held it."""
        self.lock = threading.Lock()


def size_class(count: int) -> int:
    """Return `count` bytes rounded up to the size of a block of the pool.

    Up to four pages, the sizes are the multiples of a page. Above, they are the powers of two, with three sizes between
    each two of them.

    >>> [size_class(n) for n in (16 << 10, (16 << 10) + 1, 3 << 20, 2**22 - 1)]
    [16384, 20480, 3145728, 4194304]
    """
    step = max(mmap.PAGESIZE, 1 << max(0, (count - 1).bit_length() - 3))
    return -(-count // step) * step


POOL = OutputPool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.after_fork)


def maker(shape: tuple[int, ...], dtype: np.dtype[Any], zeroed: bool = False) -> Callable[[], Array]:
    """Return a function that allocates: each call returns a new array of the given shape and type, for an output.

    The array is uninitialised; with `zeroed` it is filled with zeros. Arrays of 4 KB and more come from the pool,
    smaller ones from numpy.

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
        """Return a new output filled with zeros."""
        output = make()
        output.fill(0)
        return output

    return zeros
