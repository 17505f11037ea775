"""Barriers that no wave needs: between them and the ones before, nothing was touched that another wave may write.

A block program has a barrier after every operation on shared memory. What lies in registers in the end (check/frames)
is a lane's own. So is what a task brings first, by one operation with a barrier behind it, and only reads from then on:
it is written again in the next task, before which waves meet anyway.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import zip_longest

from tilewright.check.places import Places, written
from tilewright.ir.core import Block, Op, Program, Value, walk_block
from tilewright.ir.tensors import TensorType

NAMING = ("alloc", "view", "bitcast", "let", "barrier")
"""Operations that touch no element."""


def needless(program: Program, chain: Places, dealt: Collection[Value]) -> set[Op]:
    """The barriers that may be left out, where these tensors are dealt out to lanes."""
    found: set[Op] = set()
    for op in program.body.ops:
        if op.name == "tasks":
            _Meetings(op.blocks[0], chain, dealt, found).visit(op.blocks[0], True)
    return found


class _Meetings:
    def __init__(self, task: Block, chain: Places, dealt: Collection[Value], found: set[Op]):
        self._chain, self._dealt, self.found = chain, dealt, found
        self._writing = [v for op in walk_block(task) for v in {chain.root(v) for v in written(op)}]
        self._brought = self._brought_first(task)

    def _brought_first(self, block: Block) -> set[Value]:
        """Memory of a task that one operation of it writes, with a barrier behind it, before any other touches it; that
        of tasks at an end of a dimension, which stand under conditions, too."""
        touched: set[Value] = set()
        found: set[Value] = set()
        for op, after in zip_longest(block.ops, block.ops[1:]):
            if op.name == "if":
                found |= {v for each in op.blocks for v in self._brought_first(each)} - touched
            for value in {self._chain.root(v) for v in written(op)} - touched:
                alone = (
                    isinstance(value.type, TensorType) and value.type.role is None and self._writing.count(value) == 1
                )
                if alone and after is not None and after.name == "barrier":
                    found.add(value)
            every = [x for x in (op, *_within(op)) if x.name not in NAMING]
            touched |= {self._chain.root(v) for x in every for v in x.operands}
        return found

    def visit(self, block: Block, unmet: bool) -> bool:
        """Goes over a block; whether something was touched since the waves met, before it and after it."""
        for op in block.ops:
            if op.name == "barrier":
                if not unmet:
                    self.found.add(op)
                unmet = False
            elif not op.blocks:
                unmet |= self._touches(op)
            elif any(self._touches(x) for x in _within(op)):
                for inner in op.blocks:
                    self.visit(inner, True)
                unmet = True
            else:
                self.found |= {x for x in _within(op) if x.name == "barrier"}
        return unmet

    def _touches(self, op: Op) -> bool:
        """Whether an operation touches memory that waves must be ordered for."""
        if op.name in NAMING or op.blocks:
            return False
        changed = {self._chain.root(v) for v in written(op)}
        for value in {self._chain.root(v) for v in op.operands}:
            is_read_only = isinstance(value.type, TensorType) and value.type.role == "in"
            if value not in self._dealt and not is_read_only and (value in changed or value not in self._brought):
                return True
        return False


def _within(op: Op) -> list[Op]:
    return [x for block in op.blocks for x in walk_block(block)]
