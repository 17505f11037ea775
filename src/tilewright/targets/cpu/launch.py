"""Machine code bound to arrays, and machine code that the cache kept, which needs no program to be launched."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import ArgumentError, MissingAtomWarning
from tilewright.ir.location import warn_author
from tilewright.targets.cpu.families import family
from tilewright.targets.cpu.load import Code, link
from tilewright.targets.cpu.pool import aligned, pool

Array = np.ndarray[Any, np.dtype[Any]]
_reported: set[str] = set()


def report_slow(reasons: Sequence[str]) -> None:
    """Warns, once for each reason, that products run as loops."""
    for reason in reasons:
        if reason not in _reported:
            _reported.add(reason)
            warn_author(reason, MissingAtomWarning)


def require_apart(name: str, args: Sequence[tuple[str, str | None]], arrays: Sequence[Array]) -> None:
    """Raises where an array that is written shares memory with another; `args` are (name, role) of each."""
    for place, (own, role) in enumerate(args):
        for other in range(len(arrays)):
            if role != "in" and other != place and np.may_share_memory(arrays[place], arrays[other]):
                raise ArgumentError(
                    f"{name}: {own}, which is written, shares memory with {args[other][0]}; "
                    "give them memory of their own"
                )


@dataclass(frozen=True)
class Entry:
    """The start of machine code, and what a launch must provide: scratch memory of each worker, at multiples of `line`.

    `family` is that of the CPU it is made for; `keeper` is what the code stays with.
    """

    address: int
    scratch: int
    line: int
    family: str
    keeper: Any


class NativeLaunch:
    """A kernel bound to arrays; a call runs it. Threads may call it at the same time: they take turns."""

    def __init__(self, entry: Entry, arrays: list[Array], workers: int | None, values: Sequence[int] = ()):
        found = pool()
        count = min(workers or found.workers, found.workers)
        scratch = aligned(entry.scratch * count + entry.line)
        block = aligned(8 * (len(arrays) + 2 + len(values)), entry.line).view(np.uint64)
        tiles = family(entry.family).tiles
        configuration = None if tiles is None else tiles.configuration()
        block[: len(arrays)] = [a.ctypes.data for a in arrays]
        block[len(arrays)] = scratch.ctypes.data
        block[len(arrays) + 1] = 0 if configuration is None else configuration.ctypes.data
        block[len(arrays) + 2 :] = values
        self._record = found.record(entry.address, block.ctypes.data, count)
        self._run, self._pointer = found.run, self._record.pointer
        self.words, self.pointer = int(block.ctypes.data), int(self._record.data.ctypes.data)
        """The address of the words with its arrays' addresses, one word each; and the pool's record."""
        self._kept: tuple[Any, ...] = (entry.keeper, arrays, scratch, block, configuration)

    def __call__(self) -> None:
        """Runs the kernel."""
        self._run(self._pointer)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of its workers' scratch memory."""
        return int(self._kept[2].nbytes)

    def let_go(self, moved: Sequence[int | None]) -> None:
        """Others will take the place of its arrays, but for those whose place is None; it keeps only these."""
        keeper, arrays, *rest = self._kept
        stay = [a for a, place in zip(arrays, moved, strict=True) if place is None]
        self._kept = (keeper, stay, *rest)


class StoredKernel:
    """Machine code as the cache kept it, of a program whose sizes are closed and whose arrays lie as it takes them.

    `args` are (name, role) of its arguments; whose shapes and types are right, says who launches it.
    """

    def __init__(self, name: str, args: Sequence[tuple[str, str]], line: int, family: str, kept: bytes):
        head, _, code = kept.partition(b"\n")
        header = json.loads(head)
        report_slow(header["slow"])
        self.name, self.args = name, tuple(args)
        self.code: Code = link(code, (header["name"],))
        self._entry = Entry(self.code.address(header["name"]), header["scratch"], line, family, self.code)

    def launch(self, arrays: list[Array], workers: int | None, params: Mapping[str, int] | None) -> Callable[[], None]:
        """The machine code bound to arrays; a call runs it."""
        require_apart(self.name, self.args, arrays)
        return NativeLaunch(self._entry, arrays, workers)
