"""The hint of the error for a tile used as a Python condition: the author's expression, rewritten with &, | and ~."""

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
    """Return a hint for the error that Python asked a tile for its truth value, as `if` and `and` do. `where` is the
    location of the author's expression.

    The hint shows the expression rewritten: `-1 < t < 1` -> `(-1 < t) & (t < 1)`, `a and b` -> `a & b`, `not a` ->
    `~a`. For any other expression, or if `where` is None, the hint is a general rule.
    """
    expression = None if where is None else _expression_at(where)
    if isinstance(expression, ast.Compare) and len(expression.ops) > 1 and not _is_membership_test(expression):
        terms = pairwise([expression.left, *expression.comparators])
        pairs: list[ast.expr] = [
            ast.Compare(left, [op], [right]) for (left, right), op in zip(terms, expression.ops, strict=True)
        ]
        joined = _join_conditions(pairs, ast.BitAnd())
        return f"Python reads {ast.unparse(expression)} as conditions joined by `and`: write {joined}"
    if isinstance(expression, ast.BoolOp):
        joined = _join_conditions(
            expression.values, ast.BitAnd() if isinstance(expression.op, ast.And) else ast.BitOr()
        )
        return f"For {ast.unparse(expression)} write {joined}, of bool tiles, which works element by element"
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.Not):
        inverted = ast.unparse(ast.UnaryOp(ast.Invert(), expression.operand))
        return f"For {ast.unparse(expression)} write {inverted}, of a bool tile, which works element by element"
    return _ELSEWHERE


def _join_conditions(conditions: list[ast.expr], operator: ast.operator) -> str:
    """Return the source text of `conditions` joined by `operator` (& or |), with the necessary parentheses."""
    return ast.unparse(reduce(lambda a, b: ast.BinOp(a, operator, b), conditions))


def _is_membership_test(expression: ast.Compare) -> bool:
    """True if the comparison `expression` contains `in` or `not in`."""
    return any(isinstance(op, ast.In | ast.NotIn) for op in expression.ops)


def _expression_at(where: Location) -> ast.expr | None:
    """Return the author's expression at `where` as a syntax tree; None if the source text there cannot be parsed."""
    begin, end = where.columns
    try:
        return ast.parse(where.text[begin:end].strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
