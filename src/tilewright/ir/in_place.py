"""Calls in place: which output of a tile program may be the same array as an input, and the program where both are one.

An output may be an input where each of its elements is written only at the place that it is computed from: reads and
the write have one access, no two elements of which meet, and only element-by-element operations lie between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.algebra.expr import ZERO, Const, Expr, Mod, Symbol
from tilewright.algebra.expr_use import linear_form
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.tile import ELEMENTWISE, access_form, accessed

ACCESSES = ("read", "write", "atomic_add", "atomic_min", "atomic_max")
POINTWISE = frozenset((*ELEMENTWISE, "select", "cast", "broadcast", "permute", "apply"))
"""Operations whose elements depend on elements at the same coordinates only."""


def why_not_in_place(program: Program, output: Value, source: Value) -> str | None:
    """Why an output of a logical program and another argument must not be one array; None where they may.

    >>> from tilewright.ir.tile import parse_tile
    >>> program = parse_tile('''tile shifted(%x: global f32[M], %y: global f32[M])
    ...   symbols M, i
    ... {
    ...   %0 = read %x over=[i] at=[i + 1] otherwise=0 : f32[M]
    ...   write %0, %y
    ... }
    ... ''')
    >>> why_not_in_place(program, program.args[1], program.args[0])
    'x is read at other places than y is written'
    """
    if output.type != source.type:
        return f"they are declared as {source.type} and as {output.type}"
    accesses = [op for op in program.walk() if op.name in ACCESSES and accessed(op)[0] in (output, source)]
    writes = [op for op in accesses if op.name != "read"]
    place = {op: n for n, op in enumerate(program.body.ops)}
    if any(op not in place for op in accesses):
        return "they are read or written inside a loop or a conditional"
    if source is not output and any(accessed(op)[0] is source for op in writes):
        return f"{source.name} is an output too"
    if len(writes) != 1 or writes[0].name != "write":
        return "only what one `write` alone fills can be computed in place"
    (write,) = writes
    reads = [op for op in accesses if op.name == "read"]
    if any(place[op] > place[write] for op in reads):
        return f"memory is read after the write to {output.name}"
    if any(access_form(op) != access_form(write) for op in reads):
        return f"{source.name} is read at other places than {output.name} is written"
    if not _is_one_to_one(write):
        return f"elements of the write to {output.name} may meet at one place"
    return _mixed(program, output, reads)


def is_changed_in_place(program: Program, arg: Value) -> bool:
    """Whether what is read of an argument need not be kept: each element is last used where it is written itself."""
    if why_not_in_place(program, arg, arg) is not None:
        return False
    given: set[Value] = set()
    written = False
    for op in program.walk():
        if op.name in ACCESSES and accessed(op)[0] is arg:
            given |= set(op.results)
            written = written or op.name == "write"
        elif given.intersection(op.operands):
            if written:
                return False
            given |= set(op.results)
    return written


def _is_one_to_one(op: Op) -> bool:
    """Whether no two elements of an access meet: its coordinates tell every iterator."""
    over: tuple[Symbol, ...] = op.attrs.get("over", ())
    at: tuple[Expr, ...] = op.attrs.get("at", ())
    return not op.attrs.get("lookups") and all(
        any(_moves_alone(e, s, over) for e in at) or _is_told(s, at) for s in over
    )


def _moves_alone(e: Expr, iterator: Symbol, over: tuple[Symbol, ...]) -> bool:
    """Whether a coordinate is linear in an iterator, and depends on no other."""
    form = linear_form(e, [iterator])
    factor = ZERO if form is None else form[0].get(iterator, ZERO)
    return form is not None and factor.is_constant and factor is not ZERO and not form[1].symbols & set(over)


def _is_told(e: Expr, at: tuple[Expr, ...]) -> bool:
    """Whether coordinates tell a number: it is one of them, or they have its remainder and tell its quotient."""
    if any(e is each for each in at):
        return True
    remainders = [each for each in at if isinstance(each, Mod) and each.left is e and isinstance(each.right, Const)]
    return any(_is_told(e // each.right, at) for each in remainders)


def _mixed(program: Program, output: Value, reads: list[Op]) -> str | None:
    """The operation that combines elements of different coordinates of these reads, in words; None: none does."""
    given = {result for op in reads for result in op.results}
    read = {accessed(op)[0] for op in program.walk() if op.name == "read"}
    for op in program.walk():
        if not given.intersection(op.operands) or op.name == "debug_log":
            continue
        if op.name in POINTWISE:
            given |= set(op.results)
        elif op.name != "write" or op.operands[0] not in given or given.intersection(op.operands[1:]):
            return f"`{op.name}` puts elements of different places together"
        elif op.operands[1] is not output and op.operands[1] in read:
            return f"what is computed from it passes through {op.operands[1].name}"
    return None


def in_one_array(program: Program, same: Mapping[Value, Value]) -> Program:
    """The program in which arguments (keys) are other arguments (values), and no arguments of their own."""
    args = tuple(a for a in program.args if a not in same)
    return replace(program, args=args, body=_renamed(program.body, same), bindings=dict(program.bindings))


def _renamed(block: Block, same: Mapping[Value, Value]) -> Block:
    ops = []
    for op in block.ops:
        operands = tuple(same.get(v, v) for v in op.operands)
        blocks = tuple(_renamed(b, same) for b in op.blocks)
        ops.append(Op(op.spec, operands, op.attrs, op.results, blocks, op.loc))
    return Block(block.args, ops)
