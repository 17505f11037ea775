"""Removal of dead code from host programs: branches with constant conditions, operations after a `return`."""

from __future__ import annotations

from dataclasses import replace

from tilewright.algebra.expr import Const
from tilewright.ir.core import Block, Op, Program


def without_unreachable(host: Program) -> Program:
    """Return a host program (a kernel's launches and workspaces) without operations that are never reached.

    An `if` with a constant condition is replaced by the operations of the branch that is taken. Operations after a
    `return` are removed. `host` is not changed.

    >>> from tilewright.ir.host import parse_host
    >>> host = parse_host('''host f(%y: out global f32 (4)) {
    ...   if (1 < 2) {
    ...     fill %y 0
    ...     return
    ...   } else {
    ...     fill %y 1
    ...   }
    ...   fill %y 2
    ... }''')
    >>> print(without_unreachable(host))
    host f(%y: out global f32 (4))
    {
      fill %y 0
      return
    }
    <BLANKLINE>
    """
    block, _ = _without_dead_code(host.body)
    return replace(host, body=block)


def _without_dead_code(block: Block) -> tuple[Block, bool]:
    """Return (block without operations that are never reached, True if it always ends the host program by a `return`).

    If nothing is removed, the first result is `block` itself.
    """
    ops: list[Op] = []
    for op in block.ops:
        inner = [_without_dead_code(b) for b in op.blocks]
        if op.name == "if" and isinstance(when := op.attrs["when"], Const):
            branch = inner[0] if when.value else inner[1] if len(inner) == 2 else None
            if branch is not None:
                ops += branch[0].ops
                if branch[1]:
                    return Block(block.args, ops), True
            continue
        if all(a is b for (a, _), b in zip(inner, op.blocks, strict=True)):
            ops.append(op)
        else:
            new = Op(op.spec, op.operands, op.attrs, loc=op.loc)
            new.results, new.blocks = op.results, tuple(b for b, _ in inner)
            ops.append(new)
        if op.name == "return" or (op.name == "bind" and inner[0][1]):
            return Block(block.args, ops), True
    unchanged = len(ops) == len(block.ops) and all(a is b for a, b in zip(ops, block.ops, strict=True))
    return (block if unchanged else Block(block.args, ops)), False
