"""Expressions as text and back, in Python's own notation: `parse_expr(str(e), symbols) is e`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tilewright.algebra import expr_rules as rules
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
    as_expr,
)
from tilewright.algebra.expr_use import ceildiv
from tilewright.errors import LimitExceeded, ParseError, TilewrightError
from tilewright.limits import NESTING, OPERATORS, integer

# operator precedence, as in Python
_OR, _AND, _COMPARE, _XOR, _SUM, _PRODUCT, _ATOM = range(7)


def expr_text(e: Expr) -> str:
    """Return the expression as text in Python's notation.

    >>> from tilewright.algebra.expr import extent, index
    >>> Q, m = extent("Q"), index("m", 1000)
    >>> expr_text(2 * (m // Q) - m % Q + 3)
    '2*(m//Q) - m%Q + 3'
    >>> expr_text(m + 2 < Q)
    'm + 2 < Q'
    """
    rendered: dict[Expr, tuple[str, int]] = {}
    for node in e.walk():
        rendered[node] = _render(node, rendered)
    return rendered[e][0]


_Rendered = dict[Expr, tuple[str, int]]


def _in_brackets(text_and_binding: tuple[str, int], weakest: int) -> str:
    """Return the text of an operand, in parentheses if its precedence is below `weakest`.

    `text_and_binding` is the operand as (text, precedence of its outermost operator), which `_render` returns.
    Precedences run from `_OR`, the loosest, to `_ATOM`.
    """
    text, binding = text_and_binding
    return text if binding >= weakest else f"({text})"


def _render(node: Expr, rendered: _Rendered) -> tuple[str, int]:
    """Return (text, precedence) of `node`, given those of its operands in `rendered`, {operand: (text, precedence)}.

    The precedence says how tightly the outermost operator of the text binds (`_OR` to `_ATOM`): i + 1 needs parentheses
    in a product.
    """
    if isinstance(node, Const):
        return str(node.value), _ATOM if node.value >= 0 else _SUM
    if isinstance(node, Symbol):
        return node.name, _ATOM
    if isinstance(node, Sum):
        return _sum_text(node.constant, node.terms, rendered)
    if isinstance(node, Product):
        return "*".join(_in_brackets(rendered[f], _ATOM) for f in _sorted_by_text(node.factors, rendered)), _PRODUCT
    if isinstance(node, FloorDiv | Mod | Exact):
        sign = {FloorDiv: "//", Mod: "%", Exact: " / "}[type(node)]
        return _in_brackets(rendered[node.left], _ATOM) + sign + _in_brackets(rendered[node.right], _ATOM), _PRODUCT
    if isinstance(node, Xor):
        return " ^ ".join(_in_brackets(rendered[part], _SUM) for part in _sorted_by_text(node.parts, rendered)), _XOR
    if isinstance(node, Min | Max):
        name = "min" if isinstance(node, Min) else "max"
        return f"{name}({', '.join(rendered[a][0] for a in _sorted_by_text(node.args, rendered))})", _ATOM
    if isinstance(node, And | Or):
        word, binding = ("and", _AND) if isinstance(node, And) else ("or", _OR)
        return f" {word} ".join(
            _in_brackets(rendered[a], binding + 1) for a in _sorted_by_text(node.args, rendered)
        ), binding
    if isinstance(node, AtLeastZero):
        return _comparison_text(node.operand, rendered), _COMPARE
    if isinstance(node, IsZero):
        left, right, constant = _split_by_sign(node.operand)
        return f"{_side_text(left, 0, rendered)} == {_side_text(right, -constant, rendered)}", _COMPARE
    raise AssertionError(type(node))


def _sorted_by_text(parts: Iterable[Expr], rendered: _Rendered) -> list[Expr]:
    """Return the expressions in `parts`, sorted by their texts in `rendered`."""
    return sorted(parts, key=lambda part: rendered[part][0])


def _term(t: Expr, c: int, rendered: _Rendered) -> str:
    """Return the text of c * t for a positive coefficient `c`, such as "3*i"; a coefficient of 1 is left out.

    `rendered` is {expression: (text, precedence)} and contains `t`.
    """
    text_and_binding = rendered[t]
    if c == 1:
        return _in_brackets(text_and_binding, _PRODUCT)
    return f"{c}*" + (text_and_binding[0] if isinstance(t, Product) else _in_brackets(text_and_binding, _ATOM))


def _sum_text(constant: int, terms: Iterable[tuple[Expr, int]], rendered: _Rendered) -> tuple[str, int]:
    """Return (text, precedence) of constant + coefficient * term + ..., with (term, coefficient) pairs in `terms`.

    Added terms come before subtracted ones, larger coefficients first, the constant last. `rendered` is {term: (text,
    precedence)}.
    """
    ordered = sorted(terms, key=lambda term: (term[1] < 0, -abs(term[1]), rendered[term[0]][0]))
    text = ""
    for t, c in ordered:
        part = _term(t, abs(c), rendered)
        if text:
            text += f" - {part}" if c < 0 else f" + {part}"
        elif c < 0:  # a leading minus binds more tightly than //, % and /
            text = f"-({part})" if c == -1 and isinstance(t, FloorDiv | Mod | Exact) else f"-{part}"
        else:
            text = part
    if constant:
        text += f" - {-constant}" if constant < 0 else f" + {constant}"
    only = len(ordered) == 1 and not constant and ordered[0][1] > 0
    return text, _PRODUCT if only else _SUM


def _split_by_sign(e: Expr) -> tuple[list[tuple[Expr, int]], list[tuple[Expr, int]], int]:
    """Return (added, subtracted, constant) of `e`: lists of (term, coefficient) pairs by sign, with positive
    coefficients.

    `2*i - 3*j + 5` -> ([(i, 2)], [(j, 3)], 5).
    """
    constant, terms = rules.linear(e)
    return [(t, c) for t, c in terms if c > 0], [(t, -c) for t, c in terms if c < 0], constant


def _side_text(terms: list[tuple[Expr, int]], constant: int, rendered: _Rendered) -> str:
    """Return the text of one side of a comparison: the sum of the (term, coefficient) pairs in `terms` and of
    `constant`.

    `rendered` is {term: (text, precedence)}.
    """
    return _sum_text(constant, terms, rendered)[0] if terms else str(constant)


def _comparison_text(e: Expr, rendered: _Rendered) -> str:
    """Return the text of the condition e >= 0 as a comparison with positive coefficients on both sides: "i + 2 <= n".

    `rendered` is {term: (text, precedence)} for the terms of `e`.
    """
    plus, minus, constant = _split_by_sign(e)
    if not minus:
        return f"{_side_text(plus, 0, rendered)} >= {-constant}"
    if not plus:
        return f"{_side_text(minus, 0, rendered)} <= {constant}"
    if constant < 0:
        return f"{_side_text(minus, -constant - 1, rendered)} < {_side_text(plus, 0, rendered)}"
    return f"{_side_text(minus, 0, rendered)} <= {_side_text(plus, constant, rendered)}"


# -- from text --------------------------------------------------------------------------------------


def parse_expr(text: str, symbols: Mapping[str, Any] | Iterable[Symbol]) -> Expr:
    """Return the expression that `text` denotes: Python's integer notation with min, max, ceildiv, floor and ceil.

    `symbols` are the symbols that may occur, or {name: symbol, expression or int}. Comparisons chain; `and`, `or` and
    `not` combine conditions; `/` is exact division. Raise ParseError for anything else.

    >>> from tilewright.algebra.expr import index
    >>> k = index("k", 144)
    >>> parse_expr("16*(k//16) + k%16 < 100", [k])
    <k <= 99>
    >>> parse_expr("k + j", [k])
    Traceback (most recent call last):
        ...
    tilewright.errors.ParseError: there is no symbol j; known: k
      k + j
          ^
    """
    if not isinstance(symbols, Mapping):
        symbols = {s.name: s for s in symbols}
    body = text.strip()
    known = symbols.get(body)
    if isinstance(known, Expr):  # most of a program's expressions are one name or number
        return known
    if _NUMBER.fullmatch(body):
        return as_expr(int(body))
    _check_text_limits(body)
    try:
        tree = ast.parse(body, mode="eval").body
    except (SyntaxError, ValueError) as fault:  # a ValueError for null bytes
        what, offset = (fault.msg, fault.offset) if isinstance(fault, SyntaxError) else (str(fault), 1)
        what = what if body else "the text holds nothing"
        raise ParseError(f"not an expression: {what}", body, max(0, (offset or 1) - 1)) from None
    return _Reader(body, symbols).read(tree)


_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_DIGITS = re.compile(r"\d+")
_OPERATOR = re.compile(r"[-+*/%^<>=!~&|,]|\b(?:and|or|not|if|lambda|for)\b")


def _check_text_limits(text: str) -> None:
    """Raise ParseError if the text nests too deep, has too many operators, or contains an integer that is too long.

    Texts of at most 64 characters are not checked, since they cannot exceed a limit.
    """
    if len(text) <= NESTING.most:  # too short to exceed a limit
        return
    depth = 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
            if NESTING.refuses(depth):
                raise ParseError(NESTING.rule, text, position)
        elif character in ")]}":
            depth -= 1
    for count, match in enumerate(_OPERATOR.finditer(text)):
        if OPERATORS.refuses(count + 1):
            raise ParseError(OPERATORS.rule, text, match.start())
    for match in _DIGITS.finditer(text):
        if len(match.group()) > 100:
            try:
                integer(match.group())
            except LimitExceeded as fault:
                raise ParseError(str(fault), text, match.start()) from None


class _Reader:
    """Turns the syntax tree of one text (from Python's `ast`) into an expression."""

    def __init__(self, text: str, symbols: Mapping[str, Any]):
        self.text = text
        self.symbols = symbols
        self.depth = 0

    def fail(self, what: str, node: Any) -> ParseError:
        """Return (not raise) a ParseError with the message `what` that points at `node`, a syntax node of the text."""
        return ParseError(what, self.text, len(self.text.encode()[: node.col_offset].decode(errors="ignore")))

    def read(self, node: ast.expr) -> Expr:
        """Return the expression of `node`, a node of Python's syntax tree.

        Raise ParseError if it is nested too deep; other errors of the algebra become a ParseError that points at
        `node`.
        """
        self.depth += 1
        try:
            if NESTING.refuses(self.depth):
                raise self.fail(NESTING.rule, node)
            return self._read(node)
        except ParseError:
            raise
        except TilewrightError as fault:
            raise self.fail(str(fault), node) from None
        finally:
            self.depth -= 1

    def _chain(self, node: ast.BinOp) -> Expr:
        """Return the expression of a chain of binary operators such as a - b - c; `node` is its last operator.

        The chain is read in a loop, so that its length does not count as nesting. Raise ParseError if more than 64 of
        its operators are divisions, remainders or xors.
        """
        chain: list[ast.BinOp] = []
        left: ast.expr = node
        while isinstance(left, ast.BinOp) and type(left.op) in _BINARY:
            chain.append(left)
            left = left.left
        if NESTING.refuses(sum(type(link.op) not in _FLAT for link in chain)):
            raise self.fail(NESTING.rule, node)
        result = self.read(left)
        for link in reversed(chain):
            result = _BINARY[type(link.op)](result, self.read(link.right))
        return result

    def _read(self, node: ast.expr) -> Expr:
        """Return the expression of `node`, a node of Python's syntax tree.

        Raise ParseError for unknown names and for syntax that has no meaning in an integer expression.
        """
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return as_expr(int(node.value))
        if isinstance(node, ast.Name):
            if node.id not in self.symbols:
                known = ", ".join(sorted(self.symbols)) or "none"
                raise self.fail(f"there is no symbol {node.id}; known: {known}", node)
            return as_expr(self.symbols[node.id])
        if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
            return _UNARY[type(node.op)](self.read(node.operand))
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return self._chain(node)
        if isinstance(node, ast.BoolOp):
            join = rules.all_of if isinstance(node.op, ast.And) else rules.any_of
            return join(*[self.read(value) for value in node.values])
        if isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
            sides = [self.read(side) for side in (node.left, *node.comparators)]
            links = zip(node.ops, sides, sides[1:], strict=False)
            return rules.all_of(*[_COMPARISONS[type(op)](a, b) for op, a, b in links])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            if node.func.id in _FUNCTIONS:
                least, most, function = _FUNCTIONS[node.func.id]
                if not least <= len(node.args) <= most:
                    wanted = f"{least} argument{'s' * (least != 1)}" if most == least else "at least one argument"
                    raise self.fail(f"{node.func.id} takes {wanted}, not {len(node.args)}", node)
                return function(*[self.read(arg) for arg in node.args])
            raise self.fail(f"there is no function {node.func.id}; known: {', '.join(sorted(_FUNCTIONS))}", node)
        raise self.fail("this has no meaning in an integer expression", node)


_UNARY: dict[type[ast.unaryop], Callable[[Expr], Expr]] = {
    ast.USub: lambda a: -a,
    ast.UAdd: lambda a: a,
    ast.Not: rules.negate,
}
_BINARY: dict[type[ast.operator], Callable[[Expr, Expr], Expr]] = {
    ast.Add: rules.add,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: rules.multiply,
    ast.FloorDiv: rules.floordiv,
    ast.Mod: rules.modulo,
    ast.Div: rules.exact_divide,
    ast.BitXor: rules.xor,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Expr, Expr], Expr]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Eq: rules.eq,
    ast.NotEq: rules.ne,
}
_FLAT = (ast.Add, ast.Sub, ast.Mult)  # chains of these become one node
_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Expr]]] = {
    "min": (1, OPERATORS.most, rules.minimum),
    "max": (1, OPERATORS.most, rules.maximum),
    "ceildiv": (2, 2, ceildiv),
    "floor": (1, 1, lambda a: a.__floor__()),
    "ceil": (1, 1, lambda a: a.__ceil__()),
}
"""Functions in expressions, by name: (fewest arguments, most arguments, implementation)."""
