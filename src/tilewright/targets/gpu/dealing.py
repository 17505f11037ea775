"""Dynamic tasks: a workgroup takes the next task when it is done with one.

One counter in global memory, the kernel's own, says how many tasks were taken. The first wave of the first role that
has the tasks *deals*: it draws the next number while the workgroup is at the one before, and lays numbers in two
places of shared memory, which the waves of all roles read in turn; a number past the last task is the end. A workgroup
begins with the task of its own number. Every task costs one draw, so with the last draw of a launch the counter is back
at 0.
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
"""Tasks that the dealing wave may be ahead of the slowest one."""


@dataclass
class Deal:
    """Tasks that several roles share: the counter's number, how many tasks there are, where the workgroup's places are.

    `full` and `empty` are barriers, one a place.
    """

    counter: int
    total: Expr
    waves: int = 0
    full: int = 0
    empty: int = 0
    place: int = 0


def count_of(op: Op) -> Expr:
    """How many tasks there are; a number, or an expression of open parameters."""
    total: Expr = as_expr(1)
    for r in op.attrs["ranges"]:
        total = total * maximum(0, count_along(r))
    return total


def count_along(r: Range) -> Expr:
    """How many tasks there are along one range, unless it is empty."""
    return -(-(r.hi - r.lo) // r.step)


def dealt(roles: list[Op]) -> dict[Op, tuple[Deal, bool]]:
    """The dynamic tasks of all roles, the first with the first, and so on; of each, whether its role deals.

    Where some stand in loops, or are taken in turn by halves of a role, none is dealt: tasks are strided, which any
    order of taking them allows.
    """
    every = [op for role in roles for op in walk_block(role.blocks[0]) if _dynamic(op)]
    outermost = {op for role in roles for op in role.blocks[0].ops}
    if any(op not in outermost or "turn" in op.attrs for op in every):
        return {}
    deals: list[Deal] = []
    found: dict[Op, tuple[Deal, bool]] = {}
    for role in roles:
        (waves,) = numbers((role.attrs["waves"],), "waves")
        for place, op in enumerate(filter(_dynamic, role.blocks[0].ops)):
            total = count_of(op)
            leads = place == len(deals)
            if leads:
                deals.append(Deal(place, total))
            if deals[place].total is not total:
                raise ProgramError(
                    f"tasks schedule dynamic: role {role.attrs['name']} has {total} of them, another role "
                    f"{deals[place].total}; roles of a workgroup do the same tasks together",
                    op.loc,
                )
            deals[place].waves += waves
            found[op] = (deals[place], leads)
    return found


def _dynamic(op: Op) -> bool:
    return op.name == "tasks" and op.attrs.get("schedule") == "dynamic"


def reserve(e: Emitter, deal: Deal) -> None:
    """Room in shared memory: barriers, and places for numbers."""
    deal.full = e.room(8 * PLACES, 8)
    deal.empty = e.room(8 * PLACES, 8)
    deal.place = e.room(4 * PLACES, 8)
    for i in range(PLACES):
        e.arrivals += [(deal.full + 8 * i, 1), (deal.empty + 8 * i, deal.waves)]


@contextmanager
def rounds(e: Emitter, deal: Deal, leads: bool, wave: str) -> Iterator[str]:
    """The body for each task that the workgroup takes; gives the task's number, an i32."""
    w, d = e.w, e.dialect
    total, last = w.number(deal.total), w.number(deal.total - 1)
    taken, drawn, read = (w.slot("i32") for _ in range(3))
    w.line(f"store i32 0, ptr {taken}")
    w.line(f"store i32 0, ptr {read}")
    workers = d.workers(e) if leads else ""
    dealing = w.value(f"icmp eq i32 {wave}, 0") if leads else ""
    if leads:  # as if the number had been drawn
        first = w.value(f"sub i32 {d.worker(e)}, {workers}")
        w.line(f"store i32 {first}, ptr {drawn}")
    counter = f"getelementptr i32, ptr addrspace(1) {e.counters}, i64 {deal.counter}"

    def next_number() -> str:
        n = w.value(f"load i32, ptr {taken}")
        place = w.value(f"urem i32 {n}, {PLACES}")
        phase = w.value(f"and i32 {w.value(f'udiv i32 {n}, {PLACES}')}, 1")
        at = w.value(f"mul i32 {place}, 8")
        full, empty = (w.value(f"add i32 {e.shared}, {w.value(f'add i32 {at}, {start}')}") for start in _barriers(deal))
        where = w.value(f"add i32 {w.value(f'mul i32 {place}, 4')}, {deal.place}")
        slot = w.value(f"inttoptr i32 {w.value(f'add i32 {e.shared}, {where}')} to ptr addrspace(3)")
        if leads:
            with w.when(dealing):
                d.await_(e, empty, w.value(f"xor i32 {phase}, 1"))
                with w.when(e.first_lane):
                    before = w.value(f"load i32, ptr {drawn}")
                    number = w.value(f"add i32 {before}, {workers}")
                    w.line(f"store volatile i32 {number}, ptr addrspace(3) {slot}")
                    d.arrive(e, full, everywhere=False)
            d.together(e)  # else a lane of its own would go on by itself
        d.await_(e, full, phase)
        with w.when(e.first_lane):  # one lane reads and says so: what orders others of its wave, race checkers miss
            w.line(f"store i32 {w.value(f'load volatile i32, ptr addrspace(3) {slot}')}, ptr {read}")
            d.arrive(e, empty, everywhere=False)
        number = d.uniform(e, w.value(f"load i32, ptr {read}"))
        w.line(f"store i32 {w.value(f'add i32 {n}, 1')}, ptr {taken}")
        numbered.append(number)
        return w.value(f"icmp slt i32 {number}, {total}")

    numbered: list[str] = []
    with w.rounds(next_number):
        if leads:
            with w.when(dealing), w.when(e.first_lane):
                # after the last number of a launch the counter is 0 again
                one = w.value(f"atomicrmw uinc_wrap ptr addrspace(1) {w.value(counter)}, i32 {last} monotonic")
                w.line(f"store i32 {one}, ptr {drawn}")
        yield numbered[0]
        # a branch of one lane that went straight to the next round would make all of it look as if lanes disagreed
        d.together(e)


def _barriers(deal: Deal) -> tuple[int, int]:
    return deal.full, deal.empty
