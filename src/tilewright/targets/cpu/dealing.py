"""How workers on a CPU divide the tasks of a launch: each has a share of its own, and the last tasks are dealt.

Workers are not equally fast: another process, or the other thread of a core, may slow one down. So each worker first
runs three quarters of its share, as the tasks' `schedule` says: neighbouring tasks, or every `workers`-th one. The
tasks that are left come last in the order of tasks. A worker that has finished its own tasks takes the next ones, a
*chunk* at a time, by an atomic addition to the launch's counter, which begins at 0. With `schedule dynamic`, each
worker has one task of its own, and all others are dealt one by one. A single worker runs all tasks without the counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tilewright.codegen.text import Writer

DEALT = 4
"""One task in this number is dealt."""
CHUNKS = 16
"""A chunk is a worker's share divided by this number, but at least one task."""


class TaskRun(NamedTuple):
    """LLVM values (i64) of the task numbers that a worker runs: from `first` to below `end`, every `step`-th."""

    first: str
    end: str
    step: str


@dataclass(frozen=True)
class DealtTasks:
    """LLVM values of the tasks that are dealt: from the number `first` to below `total`, `chunk` at a time.

    `exist` is an i1: there are such tasks. `counter` is the address of the number of tasks that were dealt.
    """

    first: str
    total: str
    chunk: str
    exist: str
    counter: str


def divide_tasks(w: Writer, total: str, schedule: str, counter: str | None) -> tuple[TaskRun, DealtTasks | None]:
    """Emit the division of `total` tasks (an LLVM value) among workers; return (the worker's own tasks, the dealt
    ones).

    `schedule` is that of the tasks: "contiguous", "strided" or "dynamic". `counter` is the address of the counter of
    dealt tasks. None: there is no counter, so that no tasks are dealt, and None is returned for them.
    """
    w.declare("i64 @llvm.smin.i64(i64, i64)")
    w.declare("i64 @llvm.smax.i64(i64, i64)")
    rounds = chunk = "1"
    if counter is None:
        more = w.value(f"add i64 {total}, {w.value('sub i64 %workers, 1')}")
        rounds = w.value(f"udiv i64 {more}, %workers")
    elif schedule != "dynamic":
        share = w.value(f"udiv i64 {total}, %workers")
        is_alone = w.value("icmp eq i64 %workers, 1")
        dealt_share = w.value(f"udiv i64 {w.value(f'add i64 {share}, {DEALT // 2}')}, {DEALT}")
        left = w.value(f"select i1 {is_alone}, i64 0, i64 {dealt_share}")
        rounds = w.value(f"call i64 @llvm.smax.i64(i64 {w.value(f'sub i64 {share}, {left}')}, i64 1)")
        chunk = w.value(f"call i64 @llvm.smax.i64(i64 {w.value(f'udiv i64 {share}, {CHUNKS}')}, i64 1)")
    taken = w.value(f"mul i64 {rounds}, %workers")
    end = w.value(f"call i64 @llvm.smin.i64(i64 {taken}, i64 {total})")
    own = TaskRun("%worker", end, "%workers")
    if schedule == "contiguous":
        first = w.value(f"mul i64 %worker, {rounds}")
        past = w.value(f"add i64 {first}, {rounds}")
        own = TaskRun(first, w.value(f"call i64 @llvm.smin.i64(i64 {past}, i64 {total})"), "1")
    if counter is None:
        return own, None
    return own, DealtTasks(end, total, chunk, w.value(f"icmp slt i64 {end}, {total}"), counter)


def emit_next_task(w: Writer, dealt: DealtTasks | None, task: str, end: str, step: str) -> tuple[TaskRun, str]:
    """Emit what a worker does after the task number `task`: it goes on with its run of tasks, or takes a chunk.

    The run ends below `end` and has this `step`; `dealt` are the dealt tasks, or None. Return (the run from the next
    task on, an i1: there is a next task), LLVM values.
    """
    following = w.value(f"add i64 {task}, {step}")
    has_more = w.value(f"icmp slt i64 {following}, {end}")
    if dealt is None:
        return TaskRun(following, end, step), has_more
    w.count += 1
    at_end, take, taken = (f"{name}{w.count}" for name in ("ended", "take", "taken"))
    before = w.block
    w.line(f"br i1 {has_more}, label %{taken}, label %{at_end}")
    w.label(at_end)
    w.line(f"br i1 {dealt.exist}, label %{take}, label %{taken}")
    w.label(take)
    number = w.value(f"atomicrmw add ptr {dealt.counter}, i64 {dealt.chunk} monotonic")
    first = w.value(f"add i64 {dealt.first}, {number}")
    past_chunk = w.value(f"add i64 {first}, {dealt.chunk}")
    past = w.value(f"call i64 @llvm.smin.i64(i64 {past_chunk}, i64 {dealt.total})")
    is_task = w.value(f"icmp slt i64 {first}, {dealt.total}")
    w.line(f"br label %{taken}")
    w.label(taken)

    def chosen(kind: str, *values: str) -> str:
        """Emit the value of type `kind` of the block that the code comes from: `before`, `at_end` or `take`."""
        arms = ", ".join(f"[{v}, %{label}]" for v, label in zip(values, (before, at_end, take), strict=True))
        return w.value(f"phi {kind} {arms}")

    run = TaskRun(
        chosen("i64", following, following, first), chosen("i64", end, end, past), chosen("i64", step, step, "1")
    )
    return run, chosen("i1", "true", "false", is_task)
