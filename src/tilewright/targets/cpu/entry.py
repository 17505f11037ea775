"""The entry of a module in this process: its functions, which `codegen/entry` writes, and calls of them on memory.

One object holds the functions and the block programs that they launch. The cache keeps it with a line before it: the
sentence of every code that the functions return, and why products run as loops.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import ArgumentError, ExecutionError, MissingAtomWarning, TilewrightError
from tilewright.ir.location import warn_author
from tilewright.runtime.scripts import SlotMemory
from tilewright.targets.cpu.calling import ENTRY
from tilewright.targets.cpu.load import Code, link
from tilewright.targets.cpu.pool import aligned, pool

Array = np.ndarray[Any, np.dtype[Any]]
NAME = "kernel"
"""The names of the functions in every object."""
FUNCTIONS = (NAME, *(f"{NAME}_{what}" for what in ("bind", "kept_bytes", "workspace_bytes")))
_KEPT_BYTES = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_WORKSPACE_BYTES = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32)
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_FUNCTION, _LOCK = (ENTRY.index(name) for name in ("function", "lock"))
_reported: set[str] = set()


def report_slow(reasons: Sequence[str]) -> None:
    """Warns, once for each reason, that products run as loops."""
    for reason in reasons:
        if reason not in _reported:
            _reported.add(reason)
            warn_author(reason, MissingAtomWarning)


class EntryCode:
    """The linked functions of a module; `key` is the place of its object in the cache."""

    def __init__(self, key: str, kept: bytes):
        """`kept` is what the cache holds: a line of JSON, and the object."""
        head, _, code = kept.partition(b"\n")
        header = json.loads(head)
        report_slow(header["slow"])
        self.key = key
        self.code: Code = link(code, FUNCTIONS)
        self.call, self.bind, kept_bytes, workspace_bytes = map(self.code.address, FUNCTIONS)
        self.kept_bytes = _KEPT_BYTES(kept_bytes)
        self.workspace_bytes = _WORKSPACE_BYTES(workspace_bytes)
        self.says: dict[int, str] = {code: says for code, says, _ in header["faults"]}
        """The sentence of every code."""
        self.checks: dict[int, int] = {code: place for code, _, place in header["faults"] if place is not None}
        """For each code of a check, which operation of the host program it is."""


@dataclass(frozen=True)
class EntryMember:
    """A module's entry for one set of sizes.

    `once` tells what is done when arguments are bound from all else; it is empty where nothing is. `made` are the
    workspaces that this fills. `lasting` says that it does no more, so that the result may be kept for other arguments;
    `fixed` are the arguments that it uses. `places` has the place of a text for codes of checks.
    """

    name: str
    code: EntryCode
    sizes: tuple[int, ...] = ()
    once: tuple[object, ...] = ()
    made: tuple[SlotMemory, ...] = ()
    lasting: bool = True
    fixed: frozenset[int] = frozenset()
    places: Mapping[int, Any] = field(default_factory=dict)

    def fault(self, code: int) -> TilewrightError:
        """The error that a code stands for."""
        says = self.code.says[code]
        if code in self.code.checks:
            return ExecutionError(says, self.places.get(code))
        return ArgumentError(f"{self.name}: {says}")


class EntryLaunch:
    """An entry bound to arrays; a call runs it. Threads may call it at the same time: they take turns.

    `kept` is memory that a launch like it has filled; None: `bind` fills its own.
    """

    def __init__(
        self, member: EntryMember, arrays: Sequence[Array], kept: Array | None = None, workers: int | None = None
    ):
        threads, code, sizes = pool(), member.code, member.sizes
        count = min(workers or threads.workers, threads.workers)
        first = len(ENTRY) + len(sizes)
        block = aligned(8 * (first + len(arrays)), 64).view(np.int64)
        start = int(block.ctypes.data)
        block[len(ENTRY) : first] = sizes
        block[first:] = [a.ctypes.data if a.size else start for a in arrays]
        self._start, self.words = start, start + 8 * first
        """The addresses of the words of the call, and of those that hold its arrays' addresses, one each."""
        sizes_at = start + 8 * len(ENTRY)
        workspace = aligned(code.workspace_bytes(sizes_at, count))
        is_owner = kept is None
        if kept is None:
            kept = aligned(code.kept_bytes(sizes_at))
        run = threads.code.address("pool_tasks")
        block[: len(ENTRY)] = [
            code.call, self.words, sizes_at, kept.ctypes.data, workspace.ctypes.data, 0, threads.address, run, count
        ]  # fmt: skip
        self._member, self._block, self._arrays, self.kept = member, block, tuple(arrays), kept
        self._memory = threads, workspace
        self.room = int(workspace.nbytes + (kept.nbytes if is_owner else 0))
        """Bytes of memory that it holds beside its arrays."""
        self._run, self.pointer = _LAUNCH(threads.code.address("launch_entry")), start
        self._pointer = ctypes.c_void_p(start)
        threads.add(self)

    def __call__(self) -> None:
        """Runs the kernel."""
        code = self._run(self._pointer)
        if code:
            self.trouble(code)

    def bind(self) -> None:
        """Does what is done once; what it leaves for calls is then in `kept`."""
        self._block[_FUNCTION] = self._member.code.bind
        self()
        self._block[_FUNCTION] = self._member.code.call

    def trouble(self, code: int, arrays: tuple[Any, ...] = ()) -> None:
        """Raises for a code."""
        raise self._member.fault(code)

    def unlock(self) -> None:
        """Frees its lock: who held it is gone."""
        self._block[_LOCK] = 0

    def let_go(self, moved: Sequence[int | None]) -> None:
        """Others will take the place of its arrays, but for those whose place is None; it keeps only these."""
        self._arrays = tuple(a for a, place in zip(self._arrays, moved, strict=True) if place is None)
