"""Cache hints: loads of data that is read once `stream` (evict first), so that results stay in the last-level cache.

If results nearly fill the cache, loads would evict them before the next launch reads them. If a tensor is read several
times, only its last load streams. If results do not fit, or are few, nothing is gained: lines that an earlier launch
left in the cache would stay instead. The pass changes only what the cache keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tilewright.algebra.expr import Const, Expr
from tilewright.algebra.expr_conditions import all_of, negate
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.tensors import TensorType
from tilewright.lower.gpu.common_loads import QUIET
from tilewright.machine import Machine
from tilewright.plan.model import element_bytes

AGAIN = 1.25
"""The most elements loaded per element of a tensor that is read once: those past a ragged end are counted too."""


@dataclass(frozen=True)
class _Use:
    """An operation that may use an argument.

    `when` are the conditions around it, `pauses` the number of earlier operations that change memory or wait, `count`
    the number of elements that all tasks move by it (None: unknown).
    """

    op: Op
    when: tuple[Expr, ...]
    pauses: int
    count: int | None

    def excludes(self, other: _Use) -> bool:
        """True if it is proved that no task does both this operation and `other`: the conditions of the branches around
        them contradict each other.
        """
        conjunction = all_of(*self.when, *other.when)
        return isinstance(conjunction, Const) and not conjunction.value


def mark_streams(program: Program, machine: Machine) -> None:
    """Set the attribute `stream` (evict first), in place, on loads of a loop program with data that should not displace
    results from the machine's last-level cache.

    A load is marked if it reads each element about once, and is the last read of an argument that the program uses only
    in loads. Nothing is marked unless the written arguments nearly fill the cache (`limits.results_kept` is the range),
    and all arguments together exceed it.
    """
    cache, (least, most) = machine.limits.l2_bytes, machine.limits.results_kept
    sizes = {value: _bytes(value) for value in program.args}
    written = sum(size for value, size in sizes.items() if value.type.role != "in")
    if not 0 < least * cache <= written <= most * cache or sum(sizes.values()) <= cache:
        return
    uses: dict[Value, list[_Use]] = {value: [] for value in program.args}
    for use in _uses(program.body):
        for value in use.op.operands:
            if value in uses:
                uses[value].append(use)
    for value, uses_of_value in uses.items():
        if not all(x.op.name == "load" for x in uses_of_value):
            continue
        elements = sizes[value] // element_bytes(value.type.dtype)
        for place, use in enumerate(uses_of_value):
            later = any(x.pauses != use.pauses and not use.excludes(x) for x in uses_of_value[place + 1 :])
            if use.count is not None and use.count <= AGAIN * elements and not later:
                use.op.attrs["stream"] = True


def _bytes(value: Value) -> int:
    """Return the number of bytes of the argument `value`; 0 if it is no tensor, or if its size is known only at the
    call.
    """
    kind = value.type
    return element_bytes(kind.dtype) * (_product(list(kind.shape)) or 0) if isinstance(kind, TensorType) else 0


def _uses(body: Block) -> Iterator[_Use]:
    """Yield a _Use for each operation in `body` and in the blocks inside it, in program order; an operation comes
    before those inside its blocks.

    A _Use has the operation, the conditions around it, the number of elements that it moves in all tasks (None:
    unknown), and the number of earlier operations that change memory or wait; the end of each inner block counts as one
    of these.
    """
    pauses = 0

    def within(block: Block, when: tuple[Expr, ...], times: int | None) -> Iterator[_Use]:
        """Yield the uses in `block`, which runs `times` times (None: unknown) under the conditions `when`."""
        nonlocal pauses
        for op in block.ops:
            lanes = _product([s.upper + 1 for s in op.attrs.get("over", ())])
            yield _Use(op, when, pauses, None if times is None or lanes is None else times * lanes)
            pauses += op.name not in QUIET
            inner = _executions(op)
            for way, each in enumerate(op.blocks):
                inside = None if times is None or inner is None else times * inner
                yield from within(each, (*when, *_conditions(op, way)), inside)
                pauses += 1

    return within(body, (), 1)


def _conditions(op: Op, number: int) -> tuple[Expr, ...]:
    """Return, as a tuple of at most one, the condition under which block number `number` of `op` runs. For an `if`,
    this is the condition for block 0, and its negation for block 1. Return () for any other operation.
    """
    if op.name != "if":
        return ()
    return (negate(op.attrs["when"]) if number else op.attrs["when"],)


def _executions(op: Op) -> int | None:
    """Return how often the blocks of `op` run: the number of iterations of a `for`, the number of all tasks, the number
    of waves of a role (in all workgroups of a cluster), 1 for an `if`, taken or not. Return None for other operations,
    and if the number is not constant.
    """
    match op.name:
        case "role":
            return _product([s.upper + 1 for s in op.attrs.get("over", ())])
        case "tasks" | "for":
            return _product([-((r.lo - r.hi) // r.step) for r in op.attrs["ranges"]])
        case "if":
            return 1
    return None


def _product(extents: list[Expr]) -> int | None:
    """Return the product of the expressions `extents` as an int; None if one of them is not constant."""
    if not all(isinstance(n, Const) for n in extents):
        return None
    return prod(n.value for n in extents if isinstance(n, Const))
