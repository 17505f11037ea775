"""Joins reads of the same elements, so that an operand that two MMAs share is copied to shared memory once.

%0 = read %x : bf16[M, K]               %0 = read %x : bf16[M, K]
%1 = mma %0, %w, %acc                   %1 = mma %0, %w, %acc
%2 = read %x : bf16[M, K]
%3 = mma %2, %v, %acc2                  %3 = mma %0, %v, %acc2
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import replace

from tilewright.algebra.expr import Symbol
from tilewright.ir.core import Op, Program, Value, building
from tilewright.ir.tile import access_form
from tilewright.plan.boxes import WRITES
from tilewright.rewrite.rewriter import Regrouped


def with_equal_reads_once(program: Program, free: Collection[Op]) -> tuple[Program, Collection[Op]]:
    """Return (the program with equal reads of a block replaced by one read, the loops in it that correspond to `free`).

    `free` holds loops of `program` that give the same result for every tile size. Reads of memory that the program
    writes are not joined, nor reads at coordinates that depend on data. If no two reads are equal, both are returned
    unchanged.
    """
    written = {op.operands[1] for op in program.walk() if op.name in WRITES}
    changing = {op.attrs["symbol"] for op in program.walk() if op.name == "set_symbol"}
    reads = [op for op in program.walk() if _can_be_shared(op, written, changing)]
    if len({_key(op) for op in reads}) == len(reads):
        return program, free
    with building():
        rewrite = _ReadOnce(written, changing)
        rewritten = replace(program, body=rewrite.body(program.body))
    return rewritten, {rewrite.kept[op] for op in free if op in rewrite.kept}


def _can_be_shared(op: Op, written: Collection[Value], changing: Set[Symbol]) -> bool:
    """True if `op` is a read that gives the same elements as an equal read earlier in its block.

    False if its memory is in `written` (the memories that the program writes), or if its coordinates depend on data, on
    bounds, or on a symbol of `changing` (the symbols that `set_symbol` sets).
    """
    if op.name != "read" or op.operands[0] in written or op.attrs.get("lookups") or op.attrs.get("bounds"):
        return False
    return all(changing.isdisjoint(e.symbols) for e in (*access_form(op)[0], *op.result.type.dims))


def _key(op: Op) -> tuple[object, ...]:
    """Return a key of the read `op`: reads with equal keys give the same elements in tiles of the same type."""
    return op.operands[0], access_form(op)[0], op.result.type, op.attrs.get("otherwise")


class _ReadOnce(Regrouped):
    """Rewrites a program without reads that are equal to an earlier read of their block."""

    def __init__(self, written: Collection[Value], changing: Set[Symbol]):
        super().__init__(())
        self.written, self.changing = written, changing
        self.same: dict[Value, Value] = {}

    def of(self, value: Value) -> Value:
        """Return the value that replaces `value` in the rewritten program.

        For the result of a read that was left out, this is the replacement of the result of the earlier, equal read.
        """
        return super().of(self.same.get(value, value))

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten form of each operation in the list `given` to `ops`.

        A read that is equal to an earlier read in `given` is left out.
        """
        first: dict[tuple[object, ...], Value] = {}
        remaining: list[Op] = []
        for op in given:
            key = _key(op) if _can_be_shared(op, self.written, self.changing) else None
            if key is not None and key in first:
                self.same[op.result] = first[key]
                continue
            if key is not None:
                first[key] = op.result
            remaining.append(op)
        super().block(remaining, ops)
