"""Joins reads of the same elements, so that an operand that two MMAs share is copied to shared memory once.

%0 = read %x : bf16[M, K]               %0 = read %x : bf16[M, K]
%1 = mma %0, %w, %acc                   %1 = mma %0, %w, %acc
%2 = read %x : bf16[M, K]
%3 = mma %2, %v, %acc2                  %3 = mma %0, %v, %acc2
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.ir.core import Op, Program, Value, building
from tilewright.ir.tile import access_form
from tilewright.plan.boxes import WRITES
from tilewright.rewrite.rewriter import Regrouped


def with_equal_reads_once(program: Program, free: Collection[Op]) -> tuple[Program, Collection[Op]]:
    """Return (program with equal reads of a block joined, its free loops); unchanged if all reads differ.

    Reads of memory that the program writes are not joined. `free` are the loops with the same result for every tile
    size.
    """
    written = {op.operands[1] for op in program.walk() if op.name in WRITES}
    reads = [op for op in program.walk() if _can_be_shared(op, written)]
    if len({_key(op) for op in reads}) == len(reads):
        return program, free
    with building():
        rewrite = _ReadOnce(written)
        rewritten = replace(program, body=rewrite.body(program.body))
    return rewritten, {rewrite.kept[op] for op in free if op in rewrite.kept}


def _can_be_shared(op: Op, written: Collection[Value]) -> bool:
    """True if an operation reads memory that is not in `written`, at coordinates that do not depend on data."""
    return (
        op.name == "read"
        and op.operands[0] not in written
        and not op.attrs.get("lookups")
        and not op.attrs.get("bounds")
    )


def _key(op: Op) -> tuple[object, ...]:
    """Return a key that is equal for reads of the same elements."""
    return op.operands[0], access_form(op)[0], op.result.type, op.attrs.get("otherwise")


class _ReadOnce(Regrouped):
    """Rewrites a program without reads that are equal to an earlier read of their block."""

    def __init__(self, written: Collection[Value]):
        super().__init__(())
        self.written = written
        self.same: dict[Value, Value] = {}

    def of(self, value: Value) -> Value:
        """Return the value that replaces `value` in the rewritten program: for a joined read, the earlier equal one."""
        return super().of(self.same.get(value, value))

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten operations of the list `given` to `ops`, without reads equal to an earlier one in
        `given`.
        """
        first: dict[tuple[object, ...], Value] = {}
        remaining: list[Op] = []
        for op in given:
            key = _key(op) if _can_be_shared(op, self.written) else None
            if key is not None and key in first:
                self.same[op.result] = first[key]
                continue
            if key is not None:
                first[key] = op.result
            remaining.append(op)
        super().block(remaining, ops)
