"""How workers on a CPU divide the tasks of a launch: most tasks are static, the last ones dynamic.

Workers are not equally fast: another process, or the other thread of a core, may slow one down. So each worker first
runs three quarters of its share, as the tasks' `schedule` says: neighbouring tasks, or every `workers`-th one. These
tasks are *static*. The tasks that are left are *dynamic*, and come last in the order of tasks. A worker that has no
static task left claims the next dynamic ones, a *chunk* at a time, by an atomic addition to the launch's counter, which
begins at 0. With `schedule dynamic`, each worker has one static task, and chunks have one task. A single worker runs
all tasks without the counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tilewright.codegen.text import Writer

DYNAMIC = 4
"""One task in this number is dynamic."""
CHUNKS = 16
"""A chunk is a worker's share of all tasks divided by this number, but at least one task."""


class TaskRun(NamedTuple):
    """LLVM values (i64) of the task numbers that a worker runs: from `first` to below `end`, every `step`-th."""

    first: str
    end: str
    step: str


@dataclass(frozen=True)
class TasksToClaim:
    """LLVM values of the dynamic tasks: from the number `first` to below `total`. A worker claims `chunk` at a time.

    `exist` is an i1: there are such tasks. `counter` is the address of the number of dynamic tasks claimed so far.
    """

    first: str
    total: str
    chunk: str
    exist: str
    counter: str


def divide_tasks(w: Writer, total: str, schedule: str, counter: str | None) -> tuple[TaskRun, TasksToClaim | None]:
    """Emit the division of `total` tasks (an LLVM value) among workers. Return (the worker's static tasks, the dynamic
    tasks).

    `schedule` is that of the tasks: "contiguous", "strided" or "dynamic". `counter` is the address of the counter of
    dynamic tasks. With None all tasks are static, and the second result is None.
    """
    w.declare("i64 @llvm.smin.i64(i64, i64)")
    w.declare("i64 @llvm.smax.i64(i64, i64)")
    static_share = chunk = "1"
    if counter is None:
        more = w.value(f"add i64 {total}, {w.value('sub i64 %workers, 1')}")
        static_share = w.value(f"udiv i64 {more}, %workers")
    elif schedule != "dynamic":
        share = w.value(f"udiv i64 {total}, %workers")
        is_alone = w.value("icmp eq i64 %workers, 1")
        dynamic_share = w.value(f"udiv i64 {w.value(f'add i64 {share}, {DYNAMIC // 2}')}, {DYNAMIC}")
        left = w.value(f"select i1 {is_alone}, i64 0, i64 {dynamic_share}")
        static_share = w.value(f"call i64 @llvm.smax.i64(i64 {w.value(f'sub i64 {share}, {left}')}, i64 1)")
        chunk = w.value(f"call i64 @llvm.smax.i64(i64 {w.value(f'udiv i64 {share}, {CHUNKS}')}, i64 1)")
    static_count = w.value(f"mul i64 {static_share}, %workers")
    end = w.value(f"call i64 @llvm.smin.i64(i64 {static_count}, i64 {total})")
    static = TaskRun("%worker", end, "%workers")
    if schedule == "contiguous":
        first = w.value(f"mul i64 %worker, {static_share}")
        past = w.value(f"add i64 {first}, {static_share}")
        static = TaskRun(first, w.value(f"call i64 @llvm.smin.i64(i64 {past}, i64 {total})"), "1")
    if counter is None:
        return static, None
    return static, TasksToClaim(end, total, chunk, w.value(f"icmp slt i64 {end}, {total}"), counter)


def emit_next_task(w: Writer, dynamic: TasksToClaim | None, task: str, end: str, step: str) -> tuple[TaskRun, str]:
    """Emit what a worker does after the task number `task`: it goes on with its run of tasks, or claims a chunk.

    The run ends below `end` and has this `step`; `dynamic` are the dynamic tasks, or None. Return (the run from the
    next task on, an i1: there is a next task), LLVM values.
    """
    following = w.value(f"add i64 {task}, {step}")
    has_more = w.value(f"icmp slt i64 {following}, {end}")
    if dynamic is None:
        return TaskRun(following, end, step), has_more
    w.count += 1
    at_end, claim, done = (f"{name}{w.count}" for name in ("ended", "claim", "claimed"))
    before = w.block
    w.line(f"br i1 {has_more}, label %{done}, label %{at_end}")
    w.label(at_end)
    w.line(f"br i1 {dynamic.exist}, label %{claim}, label %{done}")
    w.label(claim)
    number = w.value(f"atomicrmw add ptr {dynamic.counter}, i64 {dynamic.chunk} monotonic")
    first = w.value(f"add i64 {dynamic.first}, {number}")
    past_chunk = w.value(f"add i64 {first}, {dynamic.chunk}")
    past = w.value(f"call i64 @llvm.smin.i64(i64 {past_chunk}, i64 {dynamic.total})")
    is_task = w.value(f"icmp slt i64 {first}, {dynamic.total}")
    w.line(f"br label %{done}")
    w.label(done)

    def phi(kind: str, *values: str) -> str:
        """Emit a phi of type `kind`, and return its name. `values` are for the blocks `before`, `at_end`, `claim`."""
        arms = ", ".join(f"[{v}, %{label}]" for v, label in zip(values, (before, at_end, claim), strict=True))
        return w.value(f"phi {kind} {arms}")

    run = TaskRun(phi("i64", following, following, first), phi("i64", end, end, past), phi("i64", step, step, "1"))
    return run, phi("i1", "true", "false", is_task)
