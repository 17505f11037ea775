"""LLVM text that calls entries on prepared blocks of words: for bound launches, and for remembered calls, which first
write the addresses of their arrays.

Other threads of Python run meanwhile. Calls that use one workspace take turns, by its lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tilewright.targets.calls import following
from tilewright.targets.calls.llvm_text import fields, loop, row
from tilewright.targets.calls.table import CallLaunch
from tilewright.targets.calls.words import PATCH

ENTRY = ("function", "buffers", "sizes", "kept", "workspace", "lock", "context", "run", "workers")
"""The words of an entry's call. `lock` is the address of the workspace's lock; the last three are its `tw_pool`."""
FIELDS = (
    "patches", "patched",  # (array, address of the word) of every address
    "launch",  # the words of the entry's call
)  # fmt: skip
"""The words of the launch of a call."""
_LOCK, _POOL = (8 * ENTRY.index(name) for name in ("lock", "context"))

TEXT = f"""
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
{following.TEXT}
define internal i32 @call_entry(ptr %words) {{
entry:
{fields(ENTRY[:5], ENTRY, "words", set(ENTRY))}
  %pool = getelementptr i8, ptr %words, i64 {_POOL}
  %code = call i32 %function(ptr %buffers, ptr %sizes, ptr %kept, ptr %workspace, ptr %pool)
  ret i32 %code
}}

define i32 @launch_entry(ptr %words) {{
entry:
  %word.lock = getelementptr i8, ptr %words, i64 {_LOCK}
  %lock = load ptr, ptr %word.lock
  call void @lock(ptr %lock)
  %code = call i32 @call_entry(ptr %words)
  call void @unlock(ptr %lock)
  ret i32 %code
}}

define i32 @launch_like(ptr %record, ptr %at) {{
entry:
{fields(FIELDS, FIELDS, "record", {"patched", "launch"})}
  %word.lock = getelementptr i8, ptr %launch, i64 {_LOCK}
  %lock = load ptr, ptr %word.lock
  %state = call ptr @PyEval_SaveThread()
  call void @lock(ptr %lock)
  br label %patching
{loop("patching", "k", "patches", after="entry", body="patch", end="launching")}
patch:
{row("patched", "k", PATCH, PATCH, ["where"])}
  %new_in = getelementptr i64, ptr %at, i64 %which
  %new = load i64, ptr %new_in
  store i64 %new, ptr %where
  br label %patching
launching:
  %code = call i32 @call_entry(ptr %launch)
  call void @unlock(ptr %lock)
  call void @PyEval_RestoreThread(ptr %state)
  ret i32 %code
}}
"""


class MovableLaunch(Protocol):
    """A launch that can be repeated with other arrays: `words` is the address of the words that hold their addresses,
    `pointer` that of the entry's call. `trouble` raises the error for a code other than 0."""

    words: int
    pointer: int

    def trouble(self, code: int, arrays: tuple[Any, ...] = ()) -> None:
        """Raise the error for `code`, the nonzero result of an entry. `arrays` are the arrays of the call. Protocol
        method.
        """


def call_launch(pool: Any, launch: MovableLaunch, places: Sequence[int | None]) -> CallLaunch:
    """Return the launch of a remembered call. It writes the addresses of the call's arrays into `launch`, and then runs
    it. `places` has one entry for each array of `launch`: its number among the arrays of the call, or None if every
    call uses the same array. `pool` is the linked machine code of the worker pool, with the function `launch_like`.
    """
    patches = [(place, launch.words + 8 * word) for word, place in enumerate(places) if place is not None]
    patched = np.array(patches, np.int64)
    record = np.array([len(patched), patched.ctypes.data, launch.pointer], np.int64)
    trouble = launch.trouble
    keep_alive = (pool, record, patched, launch, trouble)
    return CallLaunch(pool.address("launch_like"), int(record.ctypes.data), keep_alive, trouble)
