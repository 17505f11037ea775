"""How long memory lives: what is allocated within a task is the task's, and the next task's is the same memory."""

from __future__ import annotations

from tilewright.ir.core import Op, Value, walk_block
from tilewright.ir.tensors import TensorType


def uses_task_memory(op: Op) -> tuple[bool, ...]:
    """Of each block of a `tasks` loop: whether it touches shared memory that is allocated within the loop.

    Where it does, the waves of the role meet at its end: the next task gets the same memory. What only a channel hands
    out does not count, since the channel orders whoever fills a stage after those who held it before.

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
    own: set[Value] = set()
    for block in op.blocks:
        for inner in walk_block(block):
            seen = inner.name in _SEEN and inner.operands[0] in own
            if seen or (inner.name == "alloc" and isinstance(inner.attrs["type"], TensorType)):
                own.update(inner.results)
    return tuple(
        any(not own.isdisjoint(inner.operands) for inner in walk_block(block) if inner.name not in (*_SEEN, "channel"))
        for block in op.blocks
    )


_SEEN = ("view", "bitcast")
"""Operations that give memory another name, and do not touch it."""
