"""The entry of a module in this process: its machine-code functions, which `codegen/entry` writes, and calls of them.

One object holds these functions and the block programs that they launch. The cache keeps it after a line of JSON: the
sentence of each error code that the functions return, and the reasons why products run as loops.
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
from tilewright.targets.cpu.workspaces import workspace

Array = np.ndarray[Any, np.dtype[Any]]
NAME = "kernel"
"""The name of the main function in every object; the others' names begin with it."""
FUNCTIONS = (NAME, *(f"{NAME}_{what}" for what in ("bind", "kept_bytes", "workspace_bytes")))
_KEPT_BYTES = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_WORKSPACE_BYTES = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32)
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_FUNCTION = ENTRY.index("function")
_reported: set[str] = set()


def report_slow(reasons: Sequence[str]) -> None:
    """Issue a MissingAtomWarning for each text in `reasons` that this process has not reported before. A reason says
    why a matrix product runs as scalar loops, without an instruction for it.
    """
    for reason in reasons:
        if reason not in _reported:
            _reported.add(reason)
            warn_author(reason, MissingAtomWarning)


class EntryCode:
    """The linked functions of a module; `key` is the key of its object in the cache."""

    def __init__(self, key: str, kept: bytes):
        """Link the machine code in `kept`, an entry of the cache: a line of JSON, then the object code. Issue the
        warnings in the JSON (see `report_slow`). Raise CodeGenerationError if a symbol is missing.
        """
        head, _, code = kept.partition(b"\n")
        header = json.loads(head)
        report_slow(header["slow"])
        self.key = key
        self.code: Code = link(code, FUNCTIONS)
        self.call, self.bind, kept_bytes, workspace_bytes = map(self.code.address, FUNCTIONS)
        self.kept_bytes = _KEPT_BYTES(kept_bytes)
        self.workspace_bytes = _WORKSPACE_BYTES(workspace_bytes)
        self.says: dict[int, str] = {code: says for code, says, _ in header["faults"]}
        """The sentence of each error code."""
        self.checks: dict[int, int] = {code: place for code, _, place in header["faults"] if place is not None}
        """For each error code of a check: the number of the operation in the host program."""


@dataclass(frozen=True)
class EntryMember:
    """A module's entry for one set of sizes.

    `once` is a key of everything on which its bind function depends beside the arguments; empty if nothing is bound.
    `workspaces` are the workspaces that bind fills. `lasting` says that bind only fills them, so that the result may be
    reused with other arguments. `fixed` are the arguments that bind reads. `places` has the source location of each
    check, by error code.
    """

    name: str
    code: EntryCode
    sizes: tuple[int, ...] = ()
    once: tuple[object, ...] = ()
    workspaces: tuple[SlotMemory, ...] = ()
    lasting: bool = True
    fixed: frozenset[int] = frozenset()
    places: Mapping[int, Any] = field(default_factory=dict)

    def fault(self, code: int) -> TilewrightError:
        """Return (not raise) the exception for the error code `code` of the entry. It is an ExecutionError with the
        source location if the code belongs to a check in the program, else an ArgumentError.
        """
        says = self.code.says[code]
        if code in self.code.checks:
            return ExecutionError(says, self.places.get(code))
        return ArgumentError(f"{self.name}: {says}")


class EntryLaunch:
    """An entry bound to arrays; a call runs it. Threads that call it at the same time take turns, also with other
    launches in the same workspace.

    `kept` is memory that the bind function of another launch has filled; None: this launch has its own, for `bind` to
    fill.
    """

    def __init__(
        self, member: EntryMember, arrays: Sequence[Array], kept: Array | None = None, workers: int | None = None
    ):
        """Bind `member` to `arrays`, without running it. At most `workers` workers run the launch (None: all of the
        pool). `kept` is the memory that an earlier bind has filled (None: this launch has its own, which `bind` fills).
        """
        threads, code, sizes = pool(), member.code, member.sizes
        count = min(workers or threads.workers, threads.workers)
        first = len(ENTRY) + len(sizes)
        block = aligned(8 * (first + len(arrays)), 64).view(np.int64)
        start = int(block.ctypes.data)
        block[len(ENTRY) : first] = sizes
        block[first:] = [a.ctypes.data if a.size else start for a in arrays]
        self._start, self.words = start, start + 8 * first
        """The addresses of the call's words, and of the words that hold the addresses of its arrays."""
        sizes_at = start + 8 * len(ENTRY)
        self._workspace, own_bytes = workspace(code.workspace_bytes(sizes_at, count), count)
        is_owner = kept is None
        if kept is None:
            kept = aligned(code.kept_bytes(sizes_at))
        run = threads.code.address("pool_tasks")
        block[: len(ENTRY)] = [
            code.call, self.words, sizes_at, kept.ctypes.data, self._workspace.address, self._workspace.lock,
            threads.address, run, count,
        ]  # fmt: skip
        self._member, self._block, self._arrays, self.kept = member, block, tuple(arrays), kept
        self._threads = threads
        self.room = own_bytes + int(kept.nbytes if is_owner else 0)
        """Bytes of memory that only this launch uses, beside its arrays."""
        self._run, self.pointer = _LAUNCH(threads.code.address("launch_entry")), start
        self._pointer = ctypes.c_void_p(start)
        threads.add(self)

    def __call__(self) -> None:
        """Run the kernel, and wait until it has finished. Raise an ExecutionError or ArgumentError if it returns an
        error code.
        """
        code = self._run(self._pointer)
        if code:
            self.trouble(code)

    def bind(self) -> None:
        """Run the entry's bind function with the arrays of this launch. The function fills the memory that later calls
        use, such as packed weights. Raise an ExecutionError or ArgumentError if it returns an error code.
        """
        self._block[_FUNCTION] = self._member.code.bind
        self()
        self._block[_FUNCTION] = self._member.code.call

    def trouble(self, code: int, arrays: tuple[Any, ...] = ()) -> None:
        """Raise the ExecutionError or ArgumentError for `code`, the nonzero result of the entry. `arrays`
        is not used.
        """
        raise self._member.fault(code)

    def unlock(self) -> None:
        """Release the lock of the launch's workspace. A forked process calls it, because the thread that held the lock
        does not exist there.
        """
        self._workspace.unlock()

    def drop_replaced_arrays(self, moved: Sequence[int | None]) -> None:
        """Drop the launch's references to arrays that later calls replace. `moved` has one entry for each array of the
        launch: its number among the arrays of a later call, or None if every call uses the same array. References to
        arrays with None are kept.
        """
        self._arrays = tuple(a for a, place in zip(self._arrays, moved, strict=True) if place is None)
