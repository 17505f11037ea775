"""The worker pool inside an exported object: its machine code with the kernel's name, without any library.

`tilewright.load` starts threads of Python in `NAME_pool_worker`, and passes `NAME_pool_run` as `run` of a `tw_pool`
whose context is the control block. `NAME_pool_launch` takes a launch record, like `pool_run` of `pool`. First of all,
`NAME_pool_setup` gets the addresses of libc's `syscall` and `sched_yield`: the object itself needs no libc.
"""

from __future__ import annotations

from tilewright.targets.cpu.family import Family
from tilewright.targets.cpu.pool import TEXT
from tilewright.targets.cpu.waiting import CALLS, text_without_library

ENTRIES = {"pool_worker": "pool_worker", "pool_run": "pool_launch"}
"""For functions of `pool`: the end of the exported function's name, after the kernel's name."""

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
    """Return the LLVM text of a worker pool that needs no library. Its main function is `pool_run`. Return None if
    threads of the CPU family `family` have no way to sleep without a library.
    """
    waiting = text_without_library(family)
    return None if waiting is None else waiting + TEXT


def pool_entry(name: str) -> str:
    """Return the LLVM text of the pool functions that an object of the exported kernel `name` offers: NAME_pool_run,
    NAME_pool_launch, NAME_pool_setup and NAME_pool_worker. They call the functions of `pool_text`.
    """
    return _ENTRY.replace("NAME", name).replace("CALLS", CALLS)
