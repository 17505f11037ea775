"""The loops of a program around each of its MMAs."""

from __future__ import annotations

from tilewright.ir.core import Block, Op, Program


def loops_around(program: Program) -> dict[Op, tuple[Op, ...]]:
    """Return {MMA: tuple of the loops around it, outermost first} for all MMAs of a program; () if in no loop."""
    around: dict[Op, tuple[Op, ...]] = {}

    def walk(block: Block, loops: tuple[Op, ...]) -> None:
        """Add all MMAs of a block and of nested blocks to `around`; `loops` are the loops around the block."""
        for op in block.ops:
            if op.name == "mma":
                around[op] = loops
            for inner in op.blocks:
                walk(inner, (*loops, op) if op.name == "iterate" else loops)

    walk(program.body, ())
    return around
