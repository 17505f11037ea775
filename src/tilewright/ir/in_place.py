"""In-place calls: which output of a tile program may share an array with an input, and the program for that case.

An output may share memory with an input if each of its elements is written only where the elements it is computed from
are read: reads and the write have one access function, which is injective, and only elementwise operations lie between.
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
"""Operations whose elements depend only on elements at the same coordinates."""


def why_not_in_place(program: Program, output: Value, source: Value) -> str | None:
    """Return why the arguments `output` and `source` of a tile program must not be one array, as text; None if they may
    be.

    None means that every element is written only where the elements it is computed from are read. A program for which
    this cannot be proved gets a text. `output` and `source` may be the same argument.

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
    position = {op: n for n, op in enumerate(program.body.ops)}
    if any(op not in position for op in accesses):
        return "they are read or written inside a loop or a conditional"
    if source is not output and any(accessed(op)[0] is source for op in writes):
        return f"{source.name} is an output too"
    if len(writes) != 1 or writes[0].name != "write":
        return "only what one `write` alone fills can be computed in place"
    (write,) = writes
    reads = [op for op in accesses if op.name == "read"]
    if any(position[op] > position[write] for op in reads):
        return f"memory is read after the write to {output.name}"
    if any(access_form(op) != access_form(write) for op in reads):
        return f"{source.name} is read at other places than {output.name} is written"
    if not _is_one_to_one(write):
        return f"elements of the write to {output.name} may meet at one place"
    return _why_not_pointwise(program, output, reads)


def is_changed_in_place(program: Program, arg: Value) -> bool:
    """True if a tile program updates its argument `arg` in place, so that no copy of the old elements is needed.

    Each element of `arg` is then read only to compute the new element at the same coordinates, and no value computed
    from old elements is used after the write. False also if the program does not write `arg`.
    """
    if why_not_in_place(program, arg, arg) is not None:
        return False
    derived: set[Value] = set()
    written = False
    for op in program.walk():
        if op.name in ACCESSES and accessed(op)[0] is arg:
            derived |= set(op.results)
            written = written or op.name == "write"
        elif derived.intersection(op.operands):
            if written:
                return False
            derived |= set(op.results)
    return written


def _is_one_to_one(op: Op) -> bool:
    """True if `op`, a read or write, provably accesses each element of memory at most once.

    The coordinates in memory are then an injective function of the iterators `over`. An access without an index mapping
    gives True; an access with lookups (coordinates that are data) gives False.
    """
    over: tuple[Symbol, ...] = op.attrs.get("over", ())
    at: tuple[Expr, ...] = op.attrs.get("at", ())
    return not op.attrs.get("lookups") and all(
        any(_is_linear_in_one(e, s, over) for e in at) or _is_determined(s, at) for s in over
    )


def _is_linear_in_one(e: Expr, iterator: Symbol, over: tuple[Symbol, ...]) -> bool:
    """True if the coordinate `e` is factor*iterator + rest, with a constant factor other than 0.

    The rest must contain none of `over`, the iterators of the access. With iterators (i, j), `2*i + 1` is linear in i
    alone; `2*i + j` is not.
    """
    form = linear_form(e, [iterator])
    factor = ZERO if form is None else form[0].get(iterator, ZERO)
    return form is not None and factor.is_constant and factor is not ZERO and not form[1].symbols & set(over)


def _is_determined(e: Expr, at: tuple[Expr, ...]) -> bool:
    """True if the value of `e` follows from the values of the coordinates `at`.

    `e` is a coordinate, or `e % n` is one for a constant n and `e // n` is determined too: `[i // 4, i % 4]` determines
    i.
    """
    if any(e is coordinate for coordinate in at):
        return True
    remainders = [
        coordinate
        for coordinate in at
        if isinstance(coordinate, Mod) and coordinate.left is e and isinstance(coordinate.right, Const)
    ]
    return any(_is_determined(e // coordinate.right, at) for coordinate in remainders)


def _why_not_pointwise(program: Program, output: Value, reads: list[Op]) -> str | None:
    """Return why values computed from `reads` do not stay at their coordinates until they are written, as text, or
    None.

    `reads` are read operations of the program. The reason is an operation that combines elements of different
    coordinates, or a write to an argument other than `output` that the program also reads.
    """
    derived = {result for op in reads for result in op.results}
    read = {accessed(op)[0] for op in program.walk() if op.name == "read"}
    for op in program.walk():
        if not derived.intersection(op.operands) or op.name == "debug_log":
            continue
        if op.name in POINTWISE:
            derived |= set(op.results)
        elif op.name != "write" or op.operands[0] not in derived or derived.intersection(op.operands[1:]):
            return f"`{op.name}` puts elements of different places together"
        elif op.operands[1] is not output and op.operands[1] in read:
            return f"what is computed from it passes through {op.operands[1].name}"
    return None


def merge_arguments(program: Program, same: Mapping[Value, Value]) -> Program:
    """Return a copy of the tile program with arguments merged: `same` is {argument to drop: argument used instead}."""
    args = tuple(a for a in program.args if a not in same)
    return replace(
        program, args=args, body=_with_operands_replaced(program.body, same), bindings=dict(program.bindings)
    )


def _with_operands_replaced(block: Block, same: Mapping[Value, Value]) -> Block:
    """Return a copy of `block` with operands replaced, also in nested blocks: `same` is {old operand: new operand}.

    Operands that are not in `same` stay. Results are the same `Value` objects as before.
    """
    ops = []
    for op in block.ops:
        operands = tuple(same.get(v, v) for v in op.operands)
        blocks = tuple(_with_operands_replaced(b, same) for b in op.blocks)
        ops.append(Op(op.spec, operands, op.attrs, op.results, blocks, op.loc))
    return Block(block.args, ops)
