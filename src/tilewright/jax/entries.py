"""The table from which XLA's FFI handler calls a kernel on a CPU: machine-code addresses, sizes and buffer numbers.

`handler.TABLE` names the words of the table. The handler calls the kernel's bind function before each call, because
XLA's buffers may hold other values each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.jax.handler import ALIGNMENT, TABLE
from tilewright.targets.cpu.entry import EntryMember
from tilewright.targets.cpu.pool import pool

Words = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class XlaBuffer:
    """The shape and element type of an array that XLA passes, without the dimensions that vmap adds in front."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """Return the size in bytes of an array of this shape, without the dimensions that vmap adds in front."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class XlaCall:
    """The buffers of a custom call: those that XLA passes, and how they are a kernel's arguments.

    XLA numbers the call's arguments first, then its results. A kernel takes inputs and outputs in its own order.
    """

    arguments: tuple[XlaBuffer, ...]
    results: tuple[XlaBuffer, ...]
    buffer_indices: tuple[int, ...]
    """For each argument of the kernel, the number of its buffer in `buffers`."""
    zeroed_results: tuple[int, ...] = ()
    """Numbers of the results to fill with zeros before the kernel runs, because it may not write all of them."""

    @property
    def buffers(self) -> tuple[XlaBuffer, ...]:
        """Return all buffers that XLA passes: first the arguments, then the results."""
        return self.arguments + self.results


@dataclass(frozen=True)
class XlaCpuProgram:
    """A kernel as machine code for CPUs: its entry (C functions and sizes), and how many threads run it at most."""

    member: EntryMember
    workers: int | None = None
    """The most threads that run the kernel; None: all of the process's thread pool."""


class EntryTable:
    """The table (an array of 64-bit words) that a handler reads to call a kernel, and the arrays that it points to."""

    def __init__(self, name: str, program: XlaCpuProgram, call: XlaCall):
        """Write the table for calls of `program` with the buffers of `call`; `name` begins its error messages."""
        self._referenced: list[Any] = [program]
        code, threads = program.member.code, pool()
        count = min(program.workers or threads.workers, threads.workers)
        sizes = self._address_of(program.member.sizes)
        kept_bytes = -(-code.kept_bytes(sizes) // ALIGNMENT) * ALIGNMENT
        texts = {number: f"{name}: {says}".encode() + b"\0" for number, says in code.says.items()}
        faults = [word for number, text in texts.items() for word in (number, self._address_of(text, np.uint8))]
        first = len(call.arguments)
        words = {
            "arguments": first,
            "results": len(call.results),
            "ranks": self._address_of([len(b.shape) for b in call.buffers]),
            "bytes": self._address_of([b.bytes for b in call.buffers]),
            "buffers": len(call.buffer_indices),
            "places": self._address_of(call.buffer_indices),
            "zeroed": self._address_of([first + result for result in call.zeroed_results]),
            "zeros": len(call.zeroed_results),
            "call": code.call,
            "bind": code.bind,
            "sizes": sizes,
            "kept": kept_bytes,
            "room": kept_bytes + code.workspace_bytes(sizes, count),
            "pool": self._address_of([threads.address, threads.code.address("pool_tasks"), count]),
            "fault": self._address_of(faults),
            "faults": len(texts),
        }
        self.words: Words = np.array([words.get(word, 0) for word in TABLE], np.uint64)

    def _address_of(self, values: Any, dtype: Any = np.int64) -> int:
        """Return the memory address of an array with the elements `values`. The table keeps the array alive.

        If `values` are bytes, the address is theirs. Otherwise a new array of element type `dtype` is made from the
        numbers, with a 0 added at its end.
        """
        array = np.frombuffer(values, dtype) if isinstance(values, bytes) else np.array([*values, 0], dtype)
        self._referenced.append(array)
        return int(array.ctypes.data)
