"""Results stay in the last-level cache while what is read once passes by: such loads say `stream` (evict first).

If results nearly fill the cache, loads would evict them before the next launch reads them. Of a tensor that is read
several times, only the last load streams. If results do not fit, or are few, nothing is gained: lines that an earlier
launch left in the cache would stay instead. Nothing is changed but what the cache keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tilewright.algebra.expr import Const, Expr
from tilewright.algebra.expr_conditions import all_of, negate
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.tensors import TensorType
from tilewright.machine import Machine
from tilewright.passes.waves.repeated import QUIET
from tilewright.plan.model import element_bytes

AGAIN = 1.25
"""Elements that loads may have for each that there is: those past a ragged end are not told apart."""


@dataclass(frozen=True)
class _Use:
    """An operation that may use an argument.

    `when` are the conditions around it, `pauses` the number of earlier operations that change memory or wait, `count`
    the elements that all tasks move by it; None if that is not known.
    """

    op: Op
    when: tuple[Expr, ...]
    pauses: int
    count: int | None

    def excludes(self, other: _Use) -> bool:
        """True if a task does at most one of both."""
        together = all_of(*self.when, *other.when)
        return isinstance(together, Const) and not together.value


def mark_streams(program: Program, machine: Machine) -> None:
    """Set `stream` on the loads of a loop program that should leave the last-level cache to its results."""
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
    """Return the number of bytes of an argument; 0 if it is known only at the launch."""
    kind = value.type
    return element_bytes(kind.dtype) * (_product(list(kind.shape)) or 0) if isinstance(kind, TensorType) else 0


def _uses(body: Block) -> Iterator[_Use]:
    """Yield all operations as _Use, in order."""
    pauses = 0

    def within(block: Block, when: tuple[Expr, ...], times: int | None) -> Iterator[_Use]:
        nonlocal pauses
        for op in block.ops:
            lanes = _product([s.upper + 1 for s in op.attrs.get("over", ())])
            yield _Use(op, when, pauses, None if times is None or lanes is None else times * lanes)
            pauses += op.name not in QUIET
            inner = _times(op)
            for way, each in enumerate(op.blocks):
                inside = None if times is None or inner is None else times * inner
                yield from within(each, (*when, *_conditions(op, way)), inside)
                pauses += 1

    return within(body, (), 1)


def _conditions(op: Op, way: int) -> tuple[Expr, ...]:
    """Return the conditions under which block number `way` of an operation runs."""
    if op.name != "if":
        return ()
    return (negate(op.attrs["when"]) if way else op.attrs["when"],)


def _times(op: Op) -> int | None:
    """Return the number of times that the blocks of an operation run; None if it is not known."""
    match op.name:
        case "role":
            return _product([s.upper + 1 for s in op.attrs.get("over", ())])
        case "tasks" | "for":
            return _product([-((r.lo - r.hi) // r.step) for r in op.attrs["ranges"]])
        case "if":
            return 1
    return None


def _product(extents: list[Expr]) -> int | None:
    """Return the product of extents; None if one is no constant."""
    if not all(isinstance(n, Const) for n in extents):
        return None
    return prod(n.value for n in extents if isinstance(n, Const))
