"""Rows that a task reads once although it goes over them several times: who keeps them, lanes or the workgroup.

    row = read x                     reduced first, to the largest element
    y = exp(row - max(row))          and used again: it is computed anew from what was read
    write y / sum(y)

Lanes keep the values that are reduced if they have registers for them. Otherwise the workgroup keeps what it read as it
lies in memory, in shared memory or in registers of lanes, as long as two tasks of a core have room for that. What is
longer is read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from tilewright.ir.core import Op, Program, Value
from tilewright.ir.tile import ELEMENTWISE, REDUCTIONS
from tilewright.machine import Machine
from tilewright.plan.model import Size

CHEAP = ("add", "sub", "mul", "neg", "abs", "cast")
"""Operations whose results are computed again for each use, however few registers are left."""
REPEATED = frozenset({*ELEMENTWISE, "cast", "select"})
"""Operations on elements: what uses their results may load their operands again."""

Users = Mapping[Value, Sequence[Op]]


@dataclass(frozen=True)
class RowRead:
    """A read whose elements a task reduces and uses again.

    `uses` is how often a task goes over it, `task_bytes` what a task has of it, `keeper` who keeps it: lanes keep what
    is reduced, the workgroup keeps it as it lies in memory, and "nobody" means that it is read again for each use.
    """

    read: Op
    uses: int
    task_bytes: int
    keeper: Literal["lanes", "workgroup", "nobody"]


def row_reads(program: Program, width: Size, lanes: int, machine: Machine) -> list[RowRead]:
    """Return the reads of a program that a task reduces and uses again, those outside of loops.

    `width(d)` evaluates the extent of a dimension d in a task; a task has `lanes` lanes.
    """
    users, shared = program.users(), machine.spaces["shared"].bytes if "shared" in machine.spaces else None
    reads: list[tuple[Op, int, int, bool]] = []
    for op in (op for op in program.body.ops if op.name == "read"):
        reduced, uses = reduced_and_used_again(users, op.result)
        if reduced:
            elements = prod(width(d) for d in op.result.type.dims)
            near = any(is_kept_by_lanes(users, value, elements, lanes, machine) for value in reduced)
            reads.append((op, uses, elements * op.result.type.dtype.numpy.itemsize, near))
    fits = shared is not None and sum(task_bytes for *_, task_bytes, near in reads if not near) <= shared // 2
    other: Literal["workgroup", "nobody"] = "workgroup" if fits else "nobody"
    return [RowRead(op, uses, n, "lanes" if near else other) for op, uses, n, near in reads]


def is_kept_by_lanes(users: Users, value: Value, elements: int, lanes: int, machine: Machine) -> bool:
    """True if several operations use a value that is reduced, and lanes have registers for its `elements`."""
    tasks = machine.row_tasks
    values = tasks.values if _is_reduced_twice(users, value) else tasks.most_values
    return len(users.get(value, ())) > 1 and elements <= values * lanes


def reduced_and_used_again(users: Users, value: Value) -> tuple[list[Value], int]:
    """Return (values computed from this one element by element that are reduced, how many operations use it in all).

    The list is empty if a single operation uses it. What is computed element by element is computed again wherever it
    is used, up to reductions, writes and whatever else is not on elements.
    """
    computed, reduced, ends = [value], list[Value](), dict[Op, None]()
    for each in computed:
        for op in users.get(each, ()):
            if op.name in REPEATED:
                computed += [v for v in op.results if v not in computed]
            else:
                ends[op] = None
                reduced += [each] if op.name in REDUCTIONS else []
    return (reduced if len(ends) > 1 else []), len(ends)


def _is_reduced_twice(users: Users, value: Value) -> bool:
    """True if a value computed from this one by cheap operations is reduced too: lanes then hold both in registers."""
    computed = [value]
    for each in computed:
        for op in users.get(each, ()):
            if op.name in REDUCTIONS and each is not value:
                return True
            computed += [v for v in op.results if op.name in CHEAP and v not in computed]
    return False
