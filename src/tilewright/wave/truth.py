"""The expression to write where Python asked a tile for its truth value, made of the author's own."""

from __future__ import annotations

import ast
from functools import reduce
from itertools import pairwise

from tilewright.ir.location import Location

_ELSEWHERE = (
    "Choose element by element with tkw.select(condition, a, b), or guard writes with @tkw.conditional(condition); "
    "conditions are combined by &, | and ~, as in (t > -1) & (t < 1)"
)


def instead_of_truth(where: Location | None) -> str:
    """The expression to write instead of the one at a place of the author's file.

    Of -1 < t < 1 this is (-1 < t) & (t < 1), of `a and b` it is a & b; of anything else it is the general rule.
    """
    expression = None if where is None else _expression(where)
    if isinstance(expression, ast.Compare) and len(expression.ops) > 1 and not _asks_membership(expression):
        terms = pairwise([expression.left, *expression.comparators])
        pairs: list[ast.expr] = [
            ast.Compare(left, [op], [right]) for (left, right), op in zip(terms, expression.ops, strict=True)
        ]
        joined = _joined(pairs, ast.BitAnd())
        return f"Python reads {ast.unparse(expression)} as conditions joined by `and`: write {joined}"
    if isinstance(expression, ast.BoolOp):
        joined = _joined(expression.values, ast.BitAnd() if isinstance(expression.op, ast.And) else ast.BitOr())
        return f"For {ast.unparse(expression)} write {joined}, of bool tiles, which works element by element"
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.Not):
        inverted = ast.unparse(ast.UnaryOp(ast.Invert(), expression.operand))
        return f"For {ast.unparse(expression)} write {inverted}, of a bool tile, which works element by element"
    return _ELSEWHERE


def _joined(conditions: list[ast.expr], sign: ast.operator) -> str:
    """Conditions joined by an operator, in parentheses where they need them."""
    return ast.unparse(reduce(lambda a, b: ast.BinOp(a, sign, b), conditions))


def _asks_membership(expression: ast.Compare) -> bool:
    return any(isinstance(op, ast.In | ast.NotIn) for op in expression.ops)


def _expression(where: Location) -> ast.expr | None:
    """The author's expression at a place; None where its text is no expression."""
    begin, end = where.columns
    try:
        return ast.parse(where.text[begin:end].strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
