"""Find workgroup barriers that are not needed: since the one before, no memory was accessed that another wave may
write.

A block program has a barrier after every operation on shared memory. Tensors that end up in registers
(`analysis/thread_layout`) are a lane's own. A tensor that a task loads first, by one operation with a barrier
behind it, and only reads afterwards needs no further barrier: it is written again in the next task, before which
the waves synchronise anyway.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import zip_longest

from tilewright.analysis.views import Places, written
from tilewright.ir.core import Block, Op, Program, Value, walk_block
from tilewright.ir.tensors import TensorType

NAMING = ("alloc", "view", "bitcast", "let", "barrier")
"""Operations that access no element."""


def needless(program: Program, chain: Places, distributed: Collection[Value]) -> set[Op]:
    """Return the set of barriers of `program` that may be left out because no wave waits there for memory accesses of
    another wave.

    Between such a barrier and the one before, no memory is accessed that another wave may write. `distributed` are the
    tensors that are distributed over registers: each lane has its own elements, which need no barriers. `chain`
    resolves a view to its tensor. Only the first blocks of `tasks` loops at the top level of the program are searched.
    """
    removable: set[Op] = set()
    for op in program.body.ops:
        if op.name == "tasks":
            _BarrierSearch(op.blocks[0], chain, distributed, removable).visit(op.blocks[0], True, is_task=True)
    return removable


class _BarrierSearch:
    """The search for needless barriers in one task; they are added to `removable`."""

    def __init__(self, task: Block, chain: Places, distributed: Collection[Value], removable: set[Op]):
        self._chain, self._distributed, self.removable = chain, distributed, removable
        self._writing = [v for op in walk_block(task) for v in {chain.root(v) for v in written(op)}]
        self._loaded_first = self._loaded_once_first(task)

    def _loaded_once_first(self, block: Block) -> set[Value]:
        """Return the tensors that `block` loads first: one operation writes the tensor, and a barrier follows directly.

        No other operation of the task may write such a tensor, and none in `block` may access it before. Tensors that
        are loaded in this way in the blocks of an `if` count too.
        """
        touched: set[Value] = set()
        loaded_first: set[Value] = set()
        for op, following in zip_longest(block.ops, block.ops[1:]):
            if op.name == "if":
                loaded_first |= {
                    tensor for inner_block in op.blocks for tensor in self._loaded_once_first(inner_block)
                } - touched
            for value in {self._chain.root(tensor) for tensor in written(op)} - touched:
                is_written_once = (
                    isinstance(value.type, TensorType) and value.type.role is None and self._writing.count(value) == 1
                )
                if is_written_once and following is not None and following.name == "barrier":
                    loaded_first.add(value)
            accesses = [access for access in (op, *_nested_ops(op)) if access.name not in NAMING]
            touched |= {self._chain.root(tensor) for access in accesses for tensor in access.operands}
        return loaded_first

    def visit(self, block: Block, unmet: bool, *, is_task: bool = False) -> bool:
        """Add the barriers of `block` that are not needed to `self.removable`; return True if a barrier directly after
        `block` is needed.

        Protected memory is memory that another wave may write. A barrier is needed if protected memory was accessed
        since the barrier before it. `unmet` says whether protected memory was accessed before `block` without a barrier
        after the access. With `is_task`, `block` is a whole task, before which the waves synchronise.

        An operation with nested blocks that access protected memory counts as an access, and its blocks are visited
        too. If its blocks access none, their barriers are not needed, unless protected memory is accessed both before
        and after the operation without another barrier in between.
        """
        waiting, accessed = set[Op](), not is_task  # barriers of nested blocks since the last barrier, after an access
        for op in block.ops:
            if op.name == "barrier":
                if not unmet:
                    self.removable.add(op)
                unmet = accessed = False
                waiting.clear()
            elif any(self._touches(each) for each in (op, *_nested_ops(op))):
                self.removable -= waiting
                for inner_block in op.blocks:
                    self.visit(inner_block, True)
                unmet = accessed = True
            else:
                barriers = {nested for nested in _nested_ops(op) if nested.name == "barrier"}
                self.removable |= barriers
                waiting |= barriers if accessed else set()
        self.removable -= waiting
        return unmet

    def _touches(self, op: Op) -> bool:
        """Return True if `op` accesses memory that barriers must protect.

        All memory is protected, with these exceptions: tensors that are distributed among threads (registers);
        read-only arguments; and tensors that the task loads once, before it uses them, if `op` only reads them. Return
        False for operations with blocks, and for those that access no element, such as views.
        """
        if op.name in NAMING or op.blocks:
            return False
        written_tensors = {self._chain.root(v) for v in written(op)}
        for value in {self._chain.root(v) for v in op.operands}:
            is_read_only = isinstance(value.type, TensorType) and value.type.role == "in"
            if (
                value not in self._distributed
                and not is_read_only
                and (value in written_tensors or value not in self._loaded_first)
            ):
                return True
        return False


def _nested_ops(op: Op) -> list[Op]:
    """Return all operations in the blocks of `op`, nested ones included."""
    return [nested for block in op.blocks for nested in walk_block(block)]
