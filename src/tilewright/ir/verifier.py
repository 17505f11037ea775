"""What must hold of every program, and the checks that a level adds to its operations."""

from __future__ import annotations

from tilewright.errors import ProgramError
from tilewright.ir.attrs import check_attr
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.printer import op_text


def verify(program: Program) -> None:
    """Raises a ProgramError, with the author's line where it is known, at the first thing that is wrong.

    Every operand is defined before its use in the same block or around it; attributes are complete and of their
    kinds; result types are those that follow from the operands; blocks end as they must.
    """
    known: set[Value] = set(program.args)
    for record in program.records:
        _check_attrs(record)
    _verify_block(program.body, known, program)


def _verify_block(block: Block, known: set[Value], program: Program) -> set[Value]:
    """Checks a block; gives the values that are known at its end."""
    inside = set(known) | set(block.args)
    for place, op in enumerate(block.ops):
        if program.level.ops.get(op.name) is not op.spec:
            raise ProgramError(f"{op.name} is no operation of the {program.level.name} level", op.loc)
        for i, operand in enumerate(op.operands):
            if operand not in inside:
                raise ProgramError(f"operand {i} of {op_text(op)} is not defined before it", op.loc)
        _check_attrs(op)
        least = min(1, op.spec.blocks) if op.spec.notation is not None else op.spec.blocks
        if not least <= len(op.blocks) <= op.spec.blocks:
            raise ProgramError(f"{op.name} has {len(op.blocks)} blocks; it takes {op.spec.blocks}", op.loc)
        if op.spec.ends_block and place != len(block.ops) - 1:
            raise ProgramError(f"{op.name} must be the last operation of its block", op.loc)
        _check_types(op)
        seen = inside
        for inner in op.blocks:
            found = _verify_block(inner, seen, program)
            seen = found if op.spec.chained else inside
        if op.spec.keeps:
            inside |= seen
        for result in op.results:
            if result in inside:
                raise ProgramError(f"a result of {op_text(op)} is defined twice", op.loc)
            inside.add(result)
    return inside


def _check_attrs(op: Op) -> None:
    for name, kind in op.spec.attrs.items():
        if name in op.attrs:
            check_attr(kind, name, op.attrs[name], op.name, op.loc)
        elif not kind.endswith("?"):
            raise ProgramError(f"{op.name} needs the attribute {name}", op.loc)
    for name in op.attrs:
        if name not in op.spec.attrs:
            raise ProgramError(f"{op.name} has no attribute {name}", op.loc)


def _check_types(op: Op) -> None:
    try:
        if op.spec.check is not None:
            op.spec.check(op)
        if op.spec.result_types is not None:
            wanted = op.spec.result_types(op)
            found = tuple(r.type for r in op.results)
            if wanted != found:
                raise ProgramError(f"{op_text(op)}: the type follows to be {', '.join(map(str, wanted))}")
    except ProgramError as fault:
        if fault.location is None and op.loc is not None:
            raise type(fault)(fault.what, op.loc) from None
        raise
