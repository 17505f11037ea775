"""Verify programs: the rules for programs of all levels, and the checks that a level adds to its operations."""

from __future__ import annotations

from tilewright.errors import ProgramError
from tilewright.ir.attrs import check_attrs
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.printer import op_text


def verify(program: Program) -> None:
    """Raise ProgramError at the first rule that `program` breaks, with the source location if it is known.

    Every operand must be defined before its use, in the same block or in a surrounding block. Required attributes must
    be present, and each must be valid for its kind. Result types must be the inferred types. An operation such as
    `yield` must be the last of its block.
    """
    known: set[Value] = set(program.args)
    for record in program.records:
        check_attrs(record.spec.attrs, record.attrs, record.name, record.loc)
        _check_types(record)
    _verify_block(program.body, known, program)


def _verify_block(block: Block, known: set[Value], program: Program) -> set[Value]:
    """Check the operations of `block`, a block of `program`, and of its nested blocks; raise ProgramError if one is
    invalid.

    `known` are the values defined before and around the block. Return a new set: `known` and the values that the block
    defines.
    """
    inside = set(known) | set(block.args)
    for position, op in enumerate(block.ops):
        if program.level.ops.get(op.name) is not op.spec:
            raise ProgramError(f"{op.name} is no operation of the {program.level.name} level", op.loc)
        for i, operand in enumerate(op.operands):
            if operand not in inside:
                raise ProgramError(f"operand {i} of {op_text(op)} is not defined before it", op.loc)
        check_attrs(op.spec.attrs, op.attrs, op.name, op.loc)
        least = min(1, op.spec.blocks) if op.spec.notation is not None else op.spec.blocks
        if not least <= len(op.blocks) <= op.spec.blocks:
            raise ProgramError(f"{op.name} has {len(op.blocks)} blocks; it takes {op.spec.blocks}", op.loc)
        if op.spec.ends_block and position != len(block.ops) - 1:
            raise ProgramError(f"{op.name} must be the last operation of its block", op.loc)
        _check_types(op)
        visible = inside
        for inner in op.blocks:
            defined = _verify_block(inner, visible, program)
            visible = defined if op.spec.chained else inside
        if op.spec.keeps:
            inside |= visible
        for result in op.results:
            if result in inside:
                raise ProgramError(f"a result of {op_text(op)} is defined twice", op.loc)
            inside.add(result)
    return inside


def _check_types(op: Op) -> None:
    """Raise ProgramError if `op` fails the check of its spec, or if its result types differ from the inferred types.

    The error has the source location of `op`.
    """
    try:
        if op.spec.check is not None:
            op.spec.check(op)
        if op.spec.result_types is not None:
            inferred = op.spec.result_types(op)
            stated = tuple(r.type for r in op.results)
            if inferred != stated:
                raise ProgramError(f"{op_text(op)}: the type follows to be {', '.join(map(str, inferred))}")
    except ProgramError as fault:
        if fault.location is None and op.loc is not None:
            raise type(fault)(fault.what, op.loc) from None
        raise
