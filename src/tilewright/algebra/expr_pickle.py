"""Expressions as rows of plain data, and back: a pickled expression is, where it is read, the very node it was.

A row is a kind of node and what it is made of, its parts as places of earlier rows; so depth costs no recursion, and
what is shared is written once.
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
    """The expression as rows, the last of which is itself.

    >>> from tilewright.algebra.expr import index
    >>> i = index("i", 10)
    >>> rows_of(2 * i + 3)
    (('Const', 0), ('Const', 9), ('Symbol', 'i', 0, 1, None, 1), ('Sum', 3, (2, 2)))
    """
    places: dict[Expr, int] = {}
    rows: list[tuple[Any, ...]] = []
    stack: list[tuple[Expr, bool]] = [(e, False)]
    while stack:
        node, ready = stack.pop()
        if node in places:
            continue
        parts = _parts(node)
        if ready or not parts:
            places[node] = len(rows)
            rows.append(_row(node, [places[part] for part in parts]))
        else:
            stack.append((node, True))
            stack.extend((part, False) for part in reversed(parts))
    return tuple(rows)


def expr_of(rows: tuple[tuple[Any, ...], ...]) -> Expr:
    """The expression that rows stand for."""
    nodes: list[Expr] = []
    for kind, *made_of in rows:
        nodes.append(_node(kind, made_of, nodes))
    return nodes[-1]


def _parts(node: Expr) -> tuple[Expr, ...]:
    """What must be there before the node; of a symbol, its limits and its definition too."""
    if isinstance(node, Symbol):
        return tuple(e for e in (node.lower, node.upper, node.definition) if e is not None)
    return node.parts


def _row(node: Expr, places: list[int]) -> tuple[Any, ...]:
    kind = type(node).__name__
    if isinstance(node, Const):
        return kind, node.value
    if isinstance(node, Symbol):
        left = iter(places)
        limits = [None if e is None else next(left) for e in (node.lower, node.upper, node.definition)]
        return kind, node.name, *limits, node.multiple
    if isinstance(node, Sum):
        pairs = zip(places, (c for _, c in node.terms), strict=True)
        return kind, node.constant, *pairs
    return kind, *places


def _node(kind: str, made_of: list[Any], nodes: list[Expr]) -> Expr:
    """One node, by the functions that make nodes and simplify nothing: it was simplified when it was made first."""
    if kind == "Const":
        return const(made_of[0])
    if kind == "Symbol":
        name, *limits, multiple = made_of
        lower, upper, definition = (None if place is None else nodes[place] for place in limits)
        return symbol(name, lower, upper, multiple_of=multiple, definition=definition)
    if kind == "Sum":
        constant, *terms = made_of
        return expr_rules.sum_node(constant, tuple((nodes[place], c) for place, c in terms))
    parts = tuple(nodes[place] for place in made_of)
    if kind == "Product":
        return expr_rules.product_node(list(parts))
    if kind == "Xor":
        return expr_rules.xor(*parts)
    if kind in ("FloorDiv", "Mod", "Exact"):
        return expr_divide.division_node(_BY_NAME[kind], *parts)
    if kind in ("AtLeastZero", "IsZero"):
        return expr_conditions.condition_node(_BY_NAME[kind], *parts)
    if kind in ("And", "Or"):
        return expr_rules.nary_node(_BY_NAME[kind], parts, 0, 1, 1)
    return expr_rules.extreme_node(_BY_NAME[kind], parts)
