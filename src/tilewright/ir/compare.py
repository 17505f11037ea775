"""Whether two programs are the same: what parse(print(p)) == p means."""

from __future__ import annotations

from typing import Any

from tilewright.ir.core import Block, Op, Program, Value


def same_program(a: Program, b: Program) -> bool:
    """Equal headers and bodies: operations, operands, attributes, types. Names of values do not count, nor places."""
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
    pairs |= zip(a, b, strict=False)
    return len(a) == len(b) and all(x.type == y.type for x, y in zip(a, b, strict=True))


def _same_block(a: Block, b: Block, pairs: dict[Value, Value]) -> bool:
    return (
        _same_values(a.args, b.args, pairs)
        and len(a.ops) == len(b.ops)
        and all(_same_op(x, y, pairs) for x, y in zip(a.ops, b.ops, strict=True))
    )


def _same_op(a: Op, b: Op, pairs: dict[Value, Value]) -> bool:
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
    return a.keys() == b.keys() and all(a[k] == b[k] or (a[k] != a[k] and b[k] != b[k]) for k in a)
