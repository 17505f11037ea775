"""The entry of a kernel as XLA's handler calls it: a table of words, of which `handler.py` says what they are.

The function that binds is called before each call: the arrays are XLA's, and may hold other values each time.
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
    """An array that XLA passes: its shape and element type, without the dimensions that vmap adds in front."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """The bytes of one member of a batch."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class XlaCall:
    """Buffers that XLA passes: arguments, results, for each argument of the host program the buffer that it is, and the
    results that are filled with zeros first."""

    arguments: tuple[XlaBuffer, ...]
    results: tuple[XlaBuffer, ...]
    places: tuple[int, ...]
    zeroed: tuple[int, ...] = ()

    @property
    def buffers(self) -> tuple[XlaBuffer, ...]:
        """Arguments, then results."""
        return self.arguments + self.results


@dataclass(frozen=True)
class EntrySteps:
    """The entry of a kernel, and how many workers run it at most; None: all that there are."""

    member: EntryMember
    workers: int | None = None


class EntryTable:
    """The words of an entry's calls, and everything that they point at."""

    def __init__(self, name: str, steps: EntrySteps, call: XlaCall):
        self._kept: list[Any] = [steps]
        code, threads = steps.member.code, pool()
        count = min(steps.workers or threads.workers, threads.workers)
        sizes = self._address(steps.member.sizes)
        kept = -(-code.kept_bytes(sizes) // ALIGNMENT) * ALIGNMENT
        texts = {number: f"{name}: {says}".encode() + b"\0" for number, says in code.says.items()}
        faults = [word for number, text in texts.items() for word in (number, self._address(text, np.uint8))]
        first = len(call.arguments)
        words = {
            "arguments": first,
            "results": len(call.results),
            "ranks": self._address([len(b.shape) for b in call.buffers]),
            "bytes": self._address([b.bytes for b in call.buffers]),
            "buffers": len(call.places),
            "places": self._address(call.places),
            "zeroed": self._address([first + result for result in call.zeroed]),
            "zeros": len(call.zeroed),
            "call": code.call,
            "bind": code.bind,
            "sizes": sizes,
            "kept": kept,
            "room": kept + code.workspace_bytes(sizes, count),
            "pool": self._address([threads.address, threads.code.address("pool_tasks"), count]),
            "fault": self._address(faults),
            "faults": len(texts),
        }
        self.words: Words = np.array([words.get(word, 0) for word in TABLE], np.uint64)

    def _address(self, values: Any, dtype: Any = np.int64) -> int:
        """The address of numbers, which live as long as the table."""
        array = np.frombuffer(values, dtype) if isinstance(values, bytes) else np.array([*values, 0], dtype)
        self._kept.append(array)
        return int(array.ctypes.data)
