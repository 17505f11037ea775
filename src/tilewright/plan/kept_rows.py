"""Rows that a task reduces and then uses again, such as those of a softmax: where they stay between the two uses.

    row = read x                     reduced first, to the largest element
    y = exp(row - max(row))          and used again: computed from `row` once more
    write y / sum(y)

The values that are reduced stay in registers of lanes if these have room. Otherwise the row stays as it is in memory,
in shared memory or in registers, if two tasks of a core have room for it. A longer row is read from memory again.
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
"""Operations so cheap that their results are computed again for each use instead of staying in registers."""
REPEATED = frozenset({*ELEMENTWISE, "cast", "select"})
"""Elementwise operations: their results may be computed again for each use, from operands that are loaded again."""

Users = Mapping[Value, Sequence[Op]]
"""The users of each value: {value: operations that have it as an operand}."""


@dataclass(frozen=True)
class RowRead:
    """A read of rows that a task reduces and then uses again, and where the rows stay in between.

    `uses` is the number of times that a task uses all of its elements, `task_bytes` the bytes that a task reads.
    `keeper` is "lanes" if the values that are reduced stay in registers of lanes, "workgroup" if the row stays in
    shared memory or registers as it is in memory, and "nobody" if it is read again for each use.
    """

    read: Op
    uses: int
    task_bytes: int
    keeper: Literal["lanes", "workgroup", "nobody"]


def reused_reads(program: Program, width: Size, lanes: int, machine: Machine) -> list[RowRead]:
    """Return a list of RowReads, one for each read outside of loops whose elements a task reduces and then uses again.

    A RowRead says where the elements stay between the uses, its `keeper`: "lanes" (registers) if these have room. All
    other rows share half of the shared memory ("workgroup"); if they do not all fit there, they are read again
    ("nobody"). A task is one tile of the grid, with `lanes` lanes; `width(d)` evaluates its extent along a dimension d.
    """
    users, shared = program.users(), machine.spaces["shared"].bytes if "shared" in machine.spaces else None
    reads: list[tuple[Op, int, int, bool]] = []
    for op in (op for op in program.body.ops if op.name == "read"):
        reduced, uses = reduced_and_used_again(users, op.result)
        if reduced:
            elements = prod(width(d) for d in op.result.type.dims)
            in_lanes = any(is_kept_by_lanes(users, value, elements, lanes, machine) for value in reduced)
            reads.append((op, uses, elements * op.result.type.dtype.numpy.itemsize, in_lanes))
    fits = shared is not None and sum(task_bytes for *_, task_bytes, in_lanes in reads if not in_lanes) <= shared // 2
    other: Literal["workgroup", "nobody"] = "workgroup" if fits else "nobody"
    return [RowRead(op, uses, n, "lanes" if in_lanes else other) for op, uses, n, in_lanes in reads]


def is_kept_by_lanes(users: Users, value: Value, elements: int, lanes: int, machine: Machine) -> bool:
    """True if the lanes of a task should keep `value`: several operations use it, and its `elements` fit the registers.

    `value` is reduced; `elements` is the number of its elements in a task. A task (tile of the grid) has `lanes` lanes.
    Usually a lane holds the machine's largest number of values (`most_values`). It holds fewer (`values`) if cheap
    operations compute a second value from `value` that is reduced too, since both take registers. `users` maps each
    value to the operations that use it.
    """
    tasks = machine.row_tasks
    values = tasks.values if _is_reduced_twice(users, value) else tasks.most_values
    return len(users.get(value, ())) > 1 and elements <= values * lanes


def reduced_and_used_again(users: Users, value: Value) -> tuple[list[Value], int]:
    """Return (values that reductions reduce, number of uses) of `value` and of values computed from it elementwise.

    A use is an operation that is not elementwise, such as a reduction or a write. With a single use the list is empty.
    `users` maps each value to the operations that use it. The row x of a softmax gives ([x, exp(x - max)], 3): it is
    used by max, sum and write.
    """
    computed, reduced, uses = [value], list[Value](), dict[Op, None]()
    for each in computed:
        for op in users.get(each, ()):
            if op.name in REPEATED:
                computed += [v for v in op.results if v not in computed]
            else:
                uses[op] = None
                reduced += [each] if op.name in REDUCTIONS else []
    return (reduced if len(uses) > 1 else []), len(uses)


def _is_reduced_twice(users: Users, value: Value) -> bool:
    """True if a value that cheap operations (such as a subtraction) compute from `value` is reduced too.

    Both values then take registers of lanes. `users` maps each value to the operations that use it.
    """
    computed = [value]
    for each in computed:
        for op in users.get(each, ()):
            if op.name in REDUCTIONS and each is not value:
                return True
            computed += [v for v in op.results if op.name in CHEAP and v not in computed]
    return False
