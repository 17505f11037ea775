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

# record for pool_run: 0 function, 8 arguments, 16 workers, 24 control block, 32 lock
# what a task gets: 0 the caller's task, 8 its argument, 16 workers; where there are no threads, one worker does all
_ENTRY = """
define internal void @NAME.pool_task(ptr %given, i64 %me, i64 %many) nounwind {
entry:
  %pargument = getelementptr i8, ptr %given, i64 8
  %pworkers = getelementptr i8, ptr %given, i64 16
  %task = load ptr, ptr %given
  %argument = load ptr, ptr %pargument
  %workers = load i64, ptr %pworkers
  br label %look
look:
  %worker = phi i64 [%me, %entry], [%next, %call]
  %some = icmp slt i64 %worker, %workers
  br i1 %some, label %call, label %done
call:
  %number = trunc i64 %worker to i32
  call void %task(ptr %argument, i32 %number)
  %next = add i64 %worker, %many
  br label %look
done:
  ret void
}

define void @NAME_pool_run(ptr %control, ptr %task, ptr %argument, i32 %workers) nounwind {
entry:
  %given = alloca [24 x i8], align 8
  %record = alloca [40 x i8], align 8
  %many = sext i32 %workers to i64
  %given1 = getelementptr i8, ptr %given, i64 8
  %given2 = getelementptr i8, ptr %given, i64 16
  store ptr %task, ptr %given
  store ptr %argument, ptr %given1
  store i64 %many, ptr %given2
  %record1 = getelementptr i8, ptr %record, i64 8
  %record2 = getelementptr i8, ptr %record, i64 16
  %record3 = getelementptr i8, ptr %record, i64 24
  %record4 = getelementptr i8, ptr %record, i64 32
  store ptr @NAME.pool_task, ptr %record
  store ptr %given, ptr %record1
  store i64 %many, ptr %record2
  store ptr %control, ptr %record3
  store i64 0, ptr %record4
  call void @NAME.pool_run(ptr %record)
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
