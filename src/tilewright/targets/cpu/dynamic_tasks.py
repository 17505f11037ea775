"""How workers on a CPU divide the tasks of a launch: each has a share, and takes tasks of slower workers at the end.

Workers are not equally fast: another process, or the other thread of a core, may slow one down. So the last quarter of
each worker's share is *dynamic*. The worker runs its other tasks, and then claims its dynamic tasks, a *chunk* at a
time, by an atomic addition to a counter of its own. When none is left, it claims dynamic tasks of the other workers.
All counters are 0 at the launch. Caches of a worker may hold data of its share since the launch before, so it does not
leave its share as long as it has tasks.

A share is a range of neighbouring tasks, or every `workers`-th task, as the tasks' `schedule` says. With `schedule
dynamic`, all tasks of a share but one or two are dynamic, and chunks have one task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tilewright.codegen.entry.abi import COUNTER_BYTES
from tilewright.codegen.text import Writer

DYNAMIC = 4
"""One task in this number is dynamic."""
CHUNKS = 16
"""A chunk is a worker's share divided by this number, but at least one task."""


class TaskRun(NamedTuple):
    """LLVM values (i64): the task numbers from `first` to below `end`, every `step`-th, of the share of `owner`."""

    first: str
    end: str
    step: str
    owner: str


@dataclass(frozen=True)
class TaskShares:
    """LLVM values (i64) of the division of tasks among workers.

    Each worker has `share` tasks, and the first `more` workers have one more. The last `dynamic` tasks of a share are
    dynamic; `chunk` are claimed at a time. `counters` is the address of the workers' counters.
    """

    share: str
    more: str
    dynamic: str
    chunk: str
    is_contiguous: bool
    counters: str

    def run(self, w: Writer, owner: str, first: str, end: str) -> TaskRun:
        """Emit the tasks of the share of the worker `owner` from its `first` to below its `end`, counted from 0 within
        the share. Return their task numbers.
        """
        if self.is_contiguous:
            larger = w.value(f"call i64 @llvm.smin.i64(i64 {owner}, i64 {self.more})")
            before = w.value(f"add i64 {w.value(f'mul i64 {owner}, {self.share}')}, {larger}")
            return TaskRun(w.value(f"add i64 {before}, {first}"), w.value(f"add i64 {before}, {end}"), "1", owner)
        start, past = (w.value(f"add i64 {owner}, {w.value(f'mul i64 {n}, %workers')}") for n in (first, end))
        return TaskRun(start, past, "%workers", owner)

    def static_count(self, w: Writer, owner: str) -> str:
        """Emit the number of tasks of the share of the worker `owner` that are not dynamic, and return it."""
        is_larger = w.value(f"zext i1 {w.value(f'icmp slt i64 {owner}, {self.more}')} to i64")
        return w.value(f"sub i64 {w.value(f'add i64 {self.share}, {is_larger}')}, {self.dynamic}")


def divide_tasks(w: Writer, total: str, schedule: str, counters: str | None) -> TaskShares:
    """Emit the division of `total` tasks (an LLVM value) among the workers, and return it.

    Each worker has a share of the tasks. The dynamic tasks of a share are claimed at run time, by any worker. They are
    all but one task of a share if `schedule` is "dynamic", and about a quarter of it if `schedule` is "contiguous" or
    "strided". `counters` is the address of the workers' counters of claimed tasks. If it is None, no task is dynamic.
    """
    w.declare("i64 @llvm.smin.i64(i64, i64)")
    w.declare("i64 @llvm.smax.i64(i64, i64)")
    share = w.value(f"udiv i64 {total}, %workers")
    more = w.value(f"urem i64 {total}, %workers")
    dynamic = chunk = "0"
    if counters is not None and schedule == "dynamic":
        dynamic = w.value(f"call i64 @llvm.smax.i64(i64 {w.value(f'sub i64 {share}, 1')}, i64 0)")
        chunk = "1"
    elif counters is not None:
        dynamic = w.value(f"udiv i64 {w.value(f'add i64 {share}, {DYNAMIC // 2}')}, {DYNAMIC}")
        chunk = w.value(f"call i64 @llvm.smax.i64(i64 {w.value(f'udiv i64 {share}, {CHUNKS}')}, i64 1)")
    return TaskShares(share, more, dynamic, chunk, schedule == "contiguous", counters or "null")


def static_tasks(w: Writer, shares: TaskShares) -> TaskRun:
    """Emit the tasks of the worker at hand that are not dynamic, and return them."""
    return shares.run(w, "%worker", "0", shares.static_count(w, "%worker"))


def emit_next_task(
    w: Writer, divide: Callable[[], TaskShares] | None, task: str, end: str, step: str, owner: str
) -> tuple[TaskRun, str]:
    """Emit the step from the task number `task` to the worker's next task: the next one of its run, or a claimed chunk.

    The current run is the tasks `task`, `task` + `step` and so on below `end`, from the share of the worker `owner`. At
    its end, the worker tries to claim a chunk of dynamic tasks: first from that share, then from the next worker's, and
    so on, until it comes back to its own. `divide` emits the division of tasks again, so that its values need no
    registers while a task runs. If it is None, no task is dynamic. Return (the run that begins with the next task, an
    i1 that is true if there is such a task), both LLVM values.
    """
    following = w.value(f"add i64 {task}, {step}")
    has_more = w.value(f"icmp slt i64 {following}, {end}")
    if divide is None:
        return TaskRun(following, end, step, owner), has_more
    w.count += 1
    names = ("ended", "look", "claim", "claimed", "next", "task")
    ended, look, claim, claimed, following_owner, done = (f"{name}{w.count}" for name in names)
    before = w.block
    w.line(f"br i1 {has_more}, label %{done}, label %{ended}")
    w.label(ended)
    shares = divide()
    exist = w.value(f"icmp sgt i64 {shares.dynamic}, 0")
    w.line(f"br i1 {exist}, label %{look}, label %{done}")
    w.label(look)
    candidate, later = w.name("owner"), w.name("owner")
    w.line(f"{candidate} = phi i64 [{owner}, %{ended}], [{later}, %{following_owner}]")
    counter = w.value(
        f"getelementptr i8, ptr {shares.counters}, i64 {w.value(f'mul i64 {candidate}, {COUNTER_BYTES}')}"
    )
    seen = w.value(f"load atomic i64, ptr {counter} monotonic, align 8")
    w.line(f"br i1 {w.value(f'icmp slt i64 {seen}, {shares.dynamic}')}, label %{claim}, label %{following_owner}")
    w.label(claim)
    number = w.value(f"atomicrmw add ptr {counter}, i64 {shares.chunk} monotonic")
    w.line(f"br i1 {w.value(f'icmp slt i64 {number}, {shares.dynamic}')}, label %{claimed}, label %{following_owner}")
    w.label(following_owner)
    increased = w.value(f"add i64 {candidate}, 1")
    is_past = w.value(f"icmp eq i64 {increased}, %workers")
    w.line(f"{later} = select i1 {is_past}, i64 0, i64 {increased}")
    w.line(f"br i1 {w.value(f'icmp eq i64 {later}, %worker')}, label %{done}, label %{look}")
    w.label(claimed)
    past = w.value(f"add i64 {number}, {shares.chunk}")
    last = w.value(f"call i64 @llvm.smin.i64(i64 {past}, i64 {shares.dynamic})")
    static = shares.static_count(w, candidate)
    run = shares.run(w, candidate, w.value(f"add i64 {static}, {number}"), w.value(f"add i64 {static}, {last}"))
    w.line(f"br label %{done}")
    w.label(done)

    def phi(kind: str, value: str, claimed_value: str, without: str) -> str:
        """Emit a phi of type `kind`, and return it: `value` if the run has more tasks, `claimed_value` if a chunk was
        claimed, `without` if no task is left.
        """
        arms = f"[{value}, %{before}], [{claimed_value}, %{claimed}]"
        return w.value(f"phi {kind} {arms}, [{without}, %{ended}], [{without}, %{following_owner}]")

    current = (following, end, step, owner)
    next_run = TaskRun(*(phi("i64", a, b, a) for a, b in zip(current, run, strict=True)))
    return next_run, phi("i1", "true", "true", "false")
