"""Dynamic tasks (a persistent kernel's tile scheduler): a workgroup takes the next task when it has finished one.

A counter in global memory counts the tasks that were taken. The first wave of the first role that has the tasks
*deals*: it draws the next number by an atomic increment while the workgroup works on the current task, and stores
numbers in two slots of shared memory, which the waves of all roles read in turn. A number past the last task ends the
loop. A workgroup begins with the task of its own number. Every task costs one draw, so the counter is back at 0 after
the last draw of a launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.algebra.expr import Expr, as_expr
from tilewright.algebra.expr_rules import maximum
from tilewright.errors import ProgramError
from tilewright.ir.attrs import Range
from tilewright.ir.core import Op, walk_block
from tilewright.ir.tensors import numbers

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter

PLACES = 2
"""Slots for task numbers: the dealing wave may be ahead of the slowest wave by this many tasks."""


@dataclass
class DynamicTasks:
    """Dynamic tasks that several roles share: the number of their counter, and how many tasks there are.

    `waves` is the number of waves that take part. `full` and `empty` are the offsets in shared memory of barriers, one
    for each slot; `place` is that of the slots themselves.
    """

    counter: int
    total: Expr
    waves: int = 0
    full: int = 0
    empty: int = 0
    place: int = 0


def count_of(op: Op) -> Expr:
    """Return the number of tasks of the `tasks` operation `op`: the product of the numbers of steps of its ranges. It
    is an expression of open sizes, or a constant.
    """
    total: Expr = as_expr(1)
    for r in op.attrs["ranges"]:
        total = total * maximum(0, count_along(r))
    return total


def count_along(r: Range) -> Expr:
    """Return the number of steps of the range `r`, as an expression. It is 0 or negative if the range is empty."""
    return -(-(r.hi - r.lo) // r.step)


def find_dynamic_tasks(roles: list[Op]) -> dict[Op, tuple[DynamicTasks, bool]]:
    """Return {`tasks` operation: (its dynamic tasks, True if its role draws the task numbers)} for all `tasks`
    operations of `roles` with a dynamic schedule.

    The n-th of these operations in each role share their dynamic tasks, and the first role that has an n-th one draws
    the numbers. Raise ProgramError if they have different numbers of tasks. The result is empty if one of the
    operations is inside another operation of its role, such as a loop, or has the attribute `turn` (ping-pong). All
    tasks then have a strided schedule.
    """
    operations = [op for role in roles for op in walk_block(role.blocks[0]) if _is_dynamic(op)]
    outermost = {op for role in roles for op in role.blocks[0].ops}
    if any(op not in outermost or "turn" in op.attrs for op in operations):
        return {}
    groups: list[DynamicTasks] = []
    tasks_of: dict[Op, tuple[DynamicTasks, bool]] = {}
    for role in roles:
        (waves,) = numbers((role.attrs["waves"],), "waves")
        for place, op in enumerate(filter(_is_dynamic, role.blocks[0].ops)):
            total = count_of(op)
            leads = place == len(groups)
            if leads:
                groups.append(DynamicTasks(place, total))
            if groups[place].total is not total:
                raise ProgramError(
                    f"tasks schedule dynamic: role {role.attrs['name']} has {total} of them, another role "
                    f"{groups[place].total}; roles of a workgroup do the same tasks together",
                    op.loc,
                )
            groups[place].waves += waves
            tasks_of[op] = (groups[place], leads)
    return tasks_of


def _is_dynamic(op: Op) -> bool:
    """True if `op` is a `tasks` operation with a dynamic schedule."""
    return op.name == "tasks" and op.attrs.get("schedule") == "dynamic"


def reserve(e: Emitter, deal: DynamicTasks) -> None:
    """Reserve shared memory for the barriers and task number slots of `deal`, and set `deal.full`, `deal.empty` and
    `deal.place` to the offsets. The barriers and their numbers of arrivals are appended to `e.arrivals`. Raise
    ProgramError if the machine has too little shared memory.
    """
    deal.full = e.room(8 * PLACES, 8)
    deal.empty = e.room(8 * PLACES, 8)
    deal.place = e.room(4 * PLACES, 8)
    for i in range(PLACES):
        e.arrivals += [(deal.full + 8 * i, 1), (deal.empty + 8 * i, deal.waves)]


@contextmanager
def task_loop(e: Emitter, deal: DynamicTasks, leads: bool, wave: str) -> Iterator[str]:
    """Return a context manager: code that is emitted within it runs for each task that the workgroup draws. It yields
    the number of the task, an LLVM value of type i32. `deal` describes the dynamic tasks. `leads` says that the first
    wave of this role draws the task numbers for all roles. `wave` is the number of the wave in its role, an LLVM value.
    """
    w, d = e.w, e.dialect
    total, last = w.number(deal.total), w.number(deal.total - 1)
    count, drawn, read = (w.slot("i32") for _ in range(3))
    w.line(f"store i32 0, ptr {count}")
    w.line(f"store i32 0, ptr {read}")
    workers = d.workers(e) if leads else ""
    dealing = w.value(f"icmp eq i32 {wave}, 0") if leads else ""
    if leads:  # the first number is the workgroup's own
        first = w.value(f"sub i32 {d.worker(e)}, {workers}")
        w.line(f"store i32 {first}, ptr {drawn}")
    counter = f"getelementptr i32, ptr addrspace(1) {e.counters}, i64 {deal.counter}"

    def next_number() -> str:
        """Emit the code that waits for the next task number, and append the number, an LLVM value, to `numbered`. If
        `leads`, the first wave of the role first stores the number for all waves. Return an i1 that is true if a task
        has this number.
        """
        n = w.value(f"load i32, ptr {count}")
        place = w.value(f"urem i32 {n}, {PLACES}")
        phase = w.value(f"and i32 {w.value(f'udiv i32 {n}, {PLACES}')}, 1")
        at = w.value(f"mul i32 {place}, 8")
        full, empty = (w.value(f"add i32 {e.shared}, {w.value(f'add i32 {at}, {start}')}") for start in _barriers(deal))
        slot_offset = w.value(f"add i32 {w.value(f'mul i32 {place}, 4')}, {deal.place}")
        slot = w.value(f"inttoptr i32 {w.value(f'add i32 {e.shared}, {slot_offset}')} to ptr addrspace(3)")
        if leads:
            with w.when(dealing):
                d.await_(e, empty, w.value(f"xor i32 {phase}, 1"))
                with w.when(e.first_lane):
                    before = w.value(f"load i32, ptr {drawn}")
                    number = w.value(f"add i32 {before}, {workers}")
                    w.line(f"store volatile i32 {number}, ptr addrspace(3) {slot}")
                    d.arrive(e, full, everywhere=False)
            d.sync_lanes(e)  # keeps the lanes of the dealing wave together
        d.await_(e, full, phase)
        with w.when(e.first_lane):  # one lane reads and arrives: race checkers miss the order of a wave's lanes
            w.line(f"store i32 {w.value(f'load volatile i32, ptr addrspace(3) {slot}')}, ptr {read}")
            d.arrive(e, empty, everywhere=False)
        number = d.uniform(e, w.value(f"load i32, ptr {read}"))
        w.line(f"store i32 {w.value(f'add i32 {n}, 1')}, ptr {count}")
        numbered.append(number)
        return w.value(f"icmp slt i32 {number}, {total}")

    numbered: list[str] = []
    with w.while_loop(next_number):
        if leads:
            with w.when(dealing), w.when(e.first_lane):
                # after the last number of a launch the counter is 0 again
                one = w.value(f"atomicrmw uinc_wrap ptr addrspace(1) {w.value(counter)}, i32 {last} monotonic")
                w.line(f"store i32 {one}, ptr {drawn}")
        yield numbered[0]
        # without it, the branch of one lane would make the compiler treat the next iteration as divergent
        d.sync_lanes(e)


def _barriers(deal: DynamicTasks) -> tuple[int, int]:
    """Return the offsets in shared memory of the first full barrier and the first empty barrier of `deal`."""
    return deal.full, deal.empty
