"""Lifetime of shared memory: what is allocated within a task belongs to it, and the next task reuses the same
memory.
"""

from __future__ import annotations

from tilewright.ir.core import Op, Value, walk_block
from tilewright.ir.tensors import TensorType


def uses_task_memory(op: Op) -> tuple[bool, ...]:
    """Return a tuple with a bool for each block of the `tasks` loop `op`: True if the block accesses shared memory that
    is allocated inside the loop.

    After such a block, the waves that execute it must synchronise, since the next task reuses the memory. The stages of
    a channel do not count: the channel orders a fill after all earlier uses of its stage.

    >>> from tilewright.ir.block import parse_block
    >>> program = parse_block('''block f(%x: in global f32 (4, 8), %y: out global f32 (4, 8))
    ... {
    ...   tasks t in 0..4 {
    ...     %s = alloc shared f32 (8)
    ...     %row = view %x (i 8) -> [t, i]
    ...     copy %row -> %s
    ...     %v = alloc register f32 (8) by (8,1):(1,0)
    ...     copy %s -> %v
    ...   } finally {
    ...     %to = view %y (i 8) -> [t, i]
    ...     copy %v -> %to
    ...   }
    ... }''')
    >>> uses_task_memory(program.body.ops[0])
    (True, False)
    """
    task_memory: set[Value] = set()
    for block in op.blocks:
        for inner in walk_block(block):
            is_alias = inner.name in _SEEN and inner.operands[0] in task_memory
            if is_alias or (inner.name == "alloc" and isinstance(inner.attrs["type"], TensorType)):
                task_memory.update(inner.results)
    return tuple(
        any(
            not task_memory.isdisjoint(inner.operands)
            for inner in walk_block(block)
            if inner.name not in (*_SEEN, "channel")
        )
        for block in op.blocks
    )


_SEEN = ("view", "bitcast")
"""Operations that give memory another name and access no element."""
