"""Elimination of common loads.

Of two loads of the same elements, with nothing between them that changes memory or waits, the second is deleted.

    load %a (l 32, v 8) = %x[256*t + 8*l + v]       load %a (l 32, v 8) = %x[256*t + 8*l + v]
    load %b (m 32, u 8) = %x[256*t + 8*m + u]
    compute %c = %a*%b                              compute %c = %a*%a
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tilewright.algebra.expr import Expr, index
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Block, Op, Program, Value

QUIET = ("alloc", "load", "compute", "shuffle", "fill", "let", "read")
"""Operations that neither change memory nor wait."""


def join_loads(program: Program) -> None:
    """Delete, in place, each load of a loop program that repeats an earlier load of the same block: it loads the same
    elements, and no operation in between changes memory or waits. Operations that used its register use the earlier
    load's register instead. A load is deleted only if its block allocates the register, and nothing else writes it.
    """
    writers = Counter(value for op in program.walk() for value in _registers_written(op))
    replacement: dict[Value, Value] = {}
    _join_loads_in(program.body, writers, replacement)
    for op in program.walk() if replacement else ():
        op.operands = tuple(replacement.get(v, v) for v in op.operands)


def _registers_written(op: Op) -> tuple[Value, ...]:
    """Return the operands of the loop operation `op` that it may write: the first one of `load`, `compute`, `shuffle`
    and `fill`; () for `store`, `atomic` and `read`; all operands of any other operation.
    """
    match op.name:
        case "load" | "compute" | "shuffle" | "fill":
            return op.operands[:1]
        case "store" | "atomic" | "read":
            return ()
    return op.operands


def _join_loads_in(block: Block, writers: Mapping[Value, int], replacement: dict[Value, Value]) -> None:
    """Delete the repeated loads of `block` and of the blocks inside it, in place. A load is repeated if an earlier one
    in the same block loads the same elements, and no operation between them may write memory or synchronise.

    Add {register of a deleted load: register of the earlier load} to `replacement`. `writers` is {register: number of
    operations that may write it}; loads to registers with more than one are kept.
    """
    register_of: dict[tuple[Any, ...], Value] = {}
    remaining: list[Op] = []
    allocated = {value for op in block.ops if op.name == "alloc" for value in op.results}
    for op in block.ops:
        if op.name not in QUIET:
            register_of.clear()
        for inner in op.blocks:
            _join_loads_in(inner, writers, replacement)
        if op.name == "load" and op.operands[0] in allocated and writers[op.operands[0]] == 1:
            register, first = op.operands[0], register_of.setdefault(_load_key(op), op.operands[0])
            if first is not register:
                replacement[register] = first
                continue
        remaining.append(op)
    block.ops[:] = [op for op in remaining if not (op.results and op.results[0] in replacement)]


def _load_key(op: Op) -> tuple[Any, ...]:
    """Return a tuple that is equal for two loads of the same elements, even if they name lanes and values by different
    symbols. It has the register type, the memory, the offset, the condition, and the other attributes.
    """
    register, memory = op.operands
    axes = op.attrs["over"]
    named = Substitution({a: index(f"axis_{n}", a.upper + 1) for n, a in enumerate(axes)})
    (place,), when = op.attrs["at"], op.attrs.get("when")
    condition: Expr | None = None if when is None else named(when)
    number = op.attrs.get("otherwise")
    return register.type, memory, named(place), condition, str(number), op.attrs.get("stream")
