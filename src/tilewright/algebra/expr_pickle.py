"""Expressions as rows of plain data, and back: an unpickled expression is the interned node of the reading process.

A row is a node class and what the node is made of; operands are indices of earlier rows. So depth costs no recursion,
and shared subexpressions are written once.
"""

from __future__ import annotations

from typing import Any

from tilewright.algebra import expr_conditions, expr_divide, expr_rules
from tilewright.algebra.expr import (
    And,
    AtLeastZero,
    Const,
    Exact,
    Expr,
    FloorDiv,
    IsZero,
    Max,
    Min,
    Mod,
    Or,
    Product,
    Sum,
    Symbol,
    Xor,
    const,
    symbol,
)

_KINDS = (Product, FloorDiv, Mod, Exact, Xor, Min, Max, And, Or, AtLeastZero, IsZero)
_BY_NAME = {kind.__name__: kind for kind in _KINDS}


def rows_of(e: Expr) -> tuple[tuple[Any, ...], ...]:
    """Return the expression `e` as a tuple of rows. A row is (class name, fields...); operands are numbers of earlier
    rows.

    The last row is the whole expression. A sum has its constant, then pairs (row of a term, coefficient). In the
    example, (2, 5) is 5 times row 2, the symbol i; its limits are rows 0 and 1.

    >>> from tilewright.algebra.expr import index
    >>> i = index("i", 10)
    >>> rows_of(5 * i + 3)
    (('Const', 0), ('Const', 9), ('Symbol', 'i', 0, 1, None, 1), ('Sum', 3, (2, 5)))
    """
    row_of: dict[Expr, int] = {}
    rows: list[tuple[Any, ...]] = []
    stack: list[tuple[Expr, bool]] = [(e, False)]
    while stack:
        node, dependencies_done = stack.pop()
        if node in row_of:
            continue
        dependencies = _dependencies(node)
        if dependencies_done or not dependencies:
            row_of[node] = len(rows)
            rows.append(_row(node, [row_of[part] for part in dependencies]))
        else:
            stack.append((node, True))
            stack.extend((part, False) for part in reversed(dependencies))
    return tuple(rows)


def expr_of(rows: tuple[tuple[Any, ...], ...]) -> Expr:
    """Return the expression that `rows` describe: the inverse of `rows_of`.

    A row is (class name, fields...); operands are numbers of earlier rows. The last row is the whole expression.
    """
    nodes: list[Expr] = []
    for kind, *fields in rows:
        nodes.append(_node(kind, fields, nodes))
    return nodes[-1]


def _dependencies(node: Expr) -> tuple[Expr, ...]:
    """Return the expressions whose rows must precede that of `node`: its operands; for a symbol, its limits and
    definition.
    """
    if isinstance(node, Symbol):
        return tuple(e for e in (node.lower, node.upper, node.definition) if e is not None)
    return node.parts


def _row(node: Expr, operand_rows: list[int]) -> tuple[Any, ...]:
    """Return the row of `node`: (class name, fields...), in the format of `rows_of`.

    `operand_rows` are the row numbers of the expressions that `_dependencies(node)` returns, in that order.
    """
    kind = type(node).__name__
    if isinstance(node, Const):
        return kind, node.value
    if isinstance(node, Symbol):
        unread = iter(operand_rows)
        limits = [None if e is None else next(unread) for e in (node.lower, node.upper, node.definition)]
        return kind, node.name, *limits, node.multiple
    if isinstance(node, Sum):
        pairs = zip(operand_rows, (c for _, c in node.terms), strict=True)
        return kind, node.constant, *pairs
    return kind, *operand_rows


def _node(kind: str, fields: list[Any], nodes: list[Expr]) -> Expr:
    """Return the expression node that one row describes: `kind` is the name of its class, `fields` the rest of the row.

    Operands in `fields` are indices into `nodes`, the expressions of the rows before. Nothing is simplified again.
    """
    if kind == "Const":
        return const(fields[0])
    if kind == "Symbol":
        name, *limits, multiple = fields
        lower, upper, definition = (None if row is None else nodes[row] for row in limits)
        return symbol(name, lower, upper, multiple_of=multiple, definition=definition)
    if kind == "Sum":
        constant, *terms = fields
        return expr_rules.sum_node(constant, tuple((nodes[row], c) for row, c in terms))
    operands = tuple(nodes[row] for row in fields)
    if kind == "Product":
        return expr_rules.product_node(list(operands))
    if kind == "Xor":
        return expr_rules.xor(*operands)
    if kind in ("FloorDiv", "Mod", "Exact"):
        return expr_divide.division_node(_BY_NAME[kind], *operands)
    if kind in ("AtLeastZero", "IsZero"):
        return expr_conditions.condition_node(_BY_NAME[kind], *operands)
    if kind in ("And", "Or"):
        return expr_rules.nary_node(_BY_NAME[kind], operands, 0, 1, 1)
    return expr_rules.extreme_node(_BY_NAME[kind], operands)
