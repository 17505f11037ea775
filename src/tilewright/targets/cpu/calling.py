"""The launches of a call on this CPU, as records of calls name them: addresses are written to them, then they are made.

Other threads of Python run meanwhile. Threads may call one record at the same time: they take turns, by a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tilewright.targets.calls import following
from tilewright.targets.calls.llvm_text import fields, loop, row
from tilewright.targets.calls.table import CallLaunch
from tilewright.targets.calls.words import PATCH

FIELDS = (
    "patches", "patched",  # (array, address of the word) of every address in a launch
    "launches", "launch",  # the pool's records
    "lock",
)  # fmt: skip
"""The words of the launches of a call."""

TEXT = f"""
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
{following.TEXT}
define i32 @launch_all(ptr %record, ptr %at) {{
entry:
{fields(FIELDS[:4], FIELDS, "record", {"patched", "launch"})}
  %lock = getelementptr i64, ptr %record, i64 {FIELDS.index("lock")}
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
{loop("launching", "l", "launches", after="patching", body="start", end="done")}
start:
  %what_in = getelementptr ptr, ptr %launch, i64 %l
  %what = load ptr, ptr %what_in
  call void @pool_run(ptr %what)
  br label %launching
done:
  call void @unlock(ptr %lock)
  call void @PyEval_RestoreThread(ptr %state)
  ret i32 0
}}
"""


class MovableLaunch(Protocol):
    """A launch whose arrays may be others: `words` is where their addresses stand, `pointer` the pool's record."""

    words: int
    pointer: int


def call_launch(pool: Any, launches: Sequence[tuple[MovableLaunch, Sequence[int | None]]]) -> CallLaunch:
    """Launches, each with the places of its arrays among those of a call; None: an array that stays.

    `pool` is the machine code of the pool.
    """
    patched = np.array(
        [
            (place, launch.words + 8 * word)
            for launch, places in launches
            for word, place in enumerate(places)
            if place is not None
        ],
        np.int64,
    )
    pointers = np.array([launch.pointer for launch, _ in launches], np.int64)
    words = {
        "patches": len(patched),
        "patched": patched.ctypes.data,
        "launches": len(pointers),
        "launch": pointers.ctypes.data,
        "lock": 0,
    }
    record = np.array([words[name] for name in FIELDS], np.int64)
    kept = (pool, record, patched, pointers, tuple(launches))
    return CallLaunch(pool.address("launch_all"), int(record.ctypes.data), kept)
