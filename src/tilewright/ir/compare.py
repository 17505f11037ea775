"""Structural equality of programs: the test that parse(print(p)) gives p again."""

from __future__ import annotations

from typing import Any

from tilewright.ir.core import Block, Op, Program, Value


def same_program(a: Program, b: Program) -> bool:
    """True if two programs are equal: level, name, arguments, header lines, bindings, operations, attributes and types.

    Names of values, source locations and debug_log callbacks are not compared.
    """
    if (a.level.name, a.name, len(a.args)) != (b.level.name, b.name, len(b.args)) or a.bindings != b.bindings:
        return False
    pairs: dict[Value, Value] = {}
    return (
        _same_values(a.args, b.args, pairs)
        and len(a.records) == len(b.records)
        and all(_same_op(x, y, pairs) for x, y in zip(a.records, b.records, strict=True))
        and _same_block(a.body, b.body, pairs)
    )


def _same_values(a: tuple[Value, ...], b: tuple[Value, ...], pairs: dict[Value, Value]) -> bool:
    """True if the tuples of values `a` and `b` have equal lengths and the same types in order.

    Also add {value of `a`: value of `b` at the same position} to `pairs`, for the comparison of later operands.
    """
    pairs |= zip(a, b, strict=False)
    return len(a) == len(b) and all(x.type == y.type for x, y in zip(a, b, strict=True))


def _same_block(a: Block, b: Block, pairs: dict[Value, Value]) -> bool:
    """True if block `a` of one program and block `b` of another have the same arguments and operations.

    `pairs` is {value of the first program: its counterpart in the second}; values that the blocks define are added.
    """
    return (
        _same_values(a.args, b.args, pairs)
        and len(a.ops) == len(b.ops)
        and all(_same_op(x, y, pairs) for x, y in zip(a.ops, b.ops, strict=True))
    )


def _same_op(a: Op, b: Op, pairs: dict[Value, Value]) -> bool:
    """True if operation `a` of one program equals operation `b` of another program.

    Specs, operands, attributes, result types and blocks are compared. `pairs` is {value of the first program: its
    counterpart in the second}; results and block arguments are added.
    """
    return (
        a.spec is b.spec
        and len(a.operands) == len(b.operands)
        and all(pairs.get(x) is y for x, y in zip(a.operands, b.operands, strict=True))
        and _same_attrs(a.attrs, b.attrs)
        and _same_values(a.results, b.results, pairs)
        and len(a.blocks) == len(b.blocks)
        and all(_same_block(x, y, pairs) for x, y in zip(a.blocks, b.blocks, strict=True))
    )


def _same_attrs(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """True if two dictionaries {attribute name: value} are equal; a NaN counts as equal to a NaN."""
    return a.keys() == b.keys() and all(a[k] == b[k] or (a[k] != a[k] and b[k] != b[k]) for k in a)
