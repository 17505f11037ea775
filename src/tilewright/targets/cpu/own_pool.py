"""The worker pool inside an exported object: its machine code under the kernel's name, without a library.

`tilewright.load` starts threads of Python in `NAME_pool_worker`, and gives `NAME_pool_run` as `run` of a `tw_pool`
whose context is the control block. `NAME_pool_launch` takes a launch record, as `pool_run` of `pool` does. Before all
of them, `NAME_pool_setup` is told the addresses of libc's `syscall` and `sched_yield`: the object itself needs no libc.
"""

from __future__ import annotations

from tilewright.targets.cpu.family import Family
from tilewright.targets.cpu.pool import TEXT
from tilewright.targets.cpu.waiting import CALLS, text_without_library

ENTRIES = {"pool_worker": "pool_worker", "pool_run": "pool_launch"}
"""The functions of `pool`, and what comes after a kernel's name for each."""

_ENTRY = """
define void @NAME_pool_run(ptr %control, ptr %task, ptr %argument, i32 %workers) nounwind {
entry:
  call void @pool_tasks(ptr %control, ptr %task, ptr %argument, i32 %workers)
  ret void
}

define void @NAME_pool_launch(ptr %record) nounwind {
entry:
  call void @NAME.pool_run(ptr %record)
  ret void
}

define void @NAME_pool_setup(ptr %syscall, ptr %yield) nounwind {
entry:
  %second = getelementptr i8, ptr @CALLS, i64 8
  store ptr %syscall, ptr @CALLS
  store ptr %yield, ptr %second
  ret void
}

define void @NAME_pool_worker(ptr %control, i64 %me) nounwind {
entry:
  call void @pool_worker(ptr %control, i64 %me)
  ret void
}
"""


def pool_text(family: Family) -> str | None:
    """The text of `pool` for code without a library; its function is `pool_run`. None: the family has none."""
    waiting = text_without_library(family)
    return None if waiting is None else waiting + TEXT


def pool_entry(name: str) -> str:
    """The functions of a kernel that call it."""
    return _ENTRY.replace("NAME", name).replace("CALLS", CALLS)
