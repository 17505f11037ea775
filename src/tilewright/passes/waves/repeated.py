"""Common loads are eliminated: of two loads of the same elements, with nothing between them that changes memory or
waits for it, the second goes.

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
    """Delete each load whose elements an earlier load of its block has; its users take those.

    Only registers that their block allocates and that nothing else writes are joined: others may hold a value of an
    earlier iteration until the load.
    """
    writers = Counter(value for op in program.walk() for value in _written(op))
    same: dict[Value, Value] = {}
    _join_in(program.body, writers, same)
    for op in program.walk() if same else ():
        op.operands = tuple(same.get(v, v) for v in op.operands)


def _written(op: Op) -> tuple[Value, ...]:
    """Return the registers that an operation may write."""
    match op.name:
        case "load" | "compute" | "shuffle" | "fill":
            return op.operands[:1]
        case "store" | "atomic" | "read":
            return ()
    return op.operands


def _join_in(block: Block, writers: Mapping[Value, int], same: dict[Value, Value]) -> None:
    """Delete repeated loads of a block and of blocks inside it; `same` gets {register: the one that replaces it}."""
    known: dict[tuple[Any, ...], Value] = {}
    kept: list[Op] = []
    allocated = {value for op in block.ops if op.name == "alloc" for value in op.results}
    for op in block.ops:
        if op.name not in QUIET:
            known.clear()
        for inner in op.blocks:
            _join_in(inner, writers, same)
        if op.name == "load" and op.operands[0] in allocated and writers[op.operands[0]] == 1:
            register, first = op.operands[0], known.setdefault(_load_key(op), op.operands[0])
            if first is not register:
                same[register] = first
                continue
        kept.append(op)
    block.ops[:] = [op for op in kept if not (op.results and op.results[0] in same)]


def _load_key(op: Op) -> tuple[Any, ...]:
    """Return a key of a load: equal keys load the same elements."""
    register, memory = op.operands
    axes = op.attrs["over"]
    named = Substitution({a: index(f"axis_{n}", a.upper + 1) for n, a in enumerate(axes)})
    (place,), when = op.attrs["at"], op.attrs.get("when")
    condition: Expr | None = None if when is None else named(when)
    number = op.attrs.get("otherwise")
    return register.type, memory, named(place), condition, str(number), op.attrs.get("stream")
