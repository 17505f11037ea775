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

# how tightly each form binds, as in Python
_OR, _AND, _COMPARE, _XOR, _SUM, _PRODUCT, _ATOM = range(7)


def expr_text(e: Expr) -> str:
    """The expression in Python's notation.

    >>> from tilewright.algebra.expr import extent, index
    >>> Q, m = extent("Q"), index("m", 1000)
    >>> expr_text(2 * (m // Q) - m % Q + 3)
    '2*(m//Q) - m%Q + 3'
    >>> expr_text(m + 2 < Q)
    'm + 2 < Q'
    """
    memory: dict[Expr, tuple[str, int]] = {}
    for node in e.walk():
        memory[node] = _render(node, memory)
    return memory[e][0]


_Memory = dict[Expr, tuple[str, int]]


def _wrap(rendered: tuple[str, int], least: int) -> str:
    text, binding = rendered
    return text if binding >= least else f"({text})"


def _render(node: Expr, memory: _Memory) -> tuple[str, int]:
    if isinstance(node, Const):
        return str(node.value), _ATOM if node.value >= 0 else _SUM
    if isinstance(node, Symbol):
        return node.name, _ATOM
    if isinstance(node, Sum):
        return _sum_text(node.constant, node.terms, memory)
    if isinstance(node, Product):
        return "*".join(_wrap(memory[f], _ATOM) for f in _in_order(node.factors, memory)), _PRODUCT
    if isinstance(node, FloorDiv | Mod | Exact):
        sign = {FloorDiv: "//", Mod: "%", Exact: " / "}[type(node)]
        return _wrap(memory[node.left], _ATOM) + sign + _wrap(memory[node.right], _ATOM), _PRODUCT
    if isinstance(node, Xor):
        return " ^ ".join(_wrap(memory[part], _SUM) for part in _in_order(node.parts, memory)), _XOR
    if isinstance(node, Min | Max):
        name = "min" if isinstance(node, Min) else "max"
        return f"{name}({', '.join(memory[a][0] for a in _in_order(node.args, memory))})", _ATOM
    if isinstance(node, And | Or):
        word, binding = ("and", _AND) if isinstance(node, And) else ("or", _OR)
        return f" {word} ".join(_wrap(memory[a], binding + 1) for a in _in_order(node.args, memory)), binding
    if isinstance(node, AtLeastZero):
        return _at_least_text(node.operand, memory), _COMPARE
    if isinstance(node, IsZero):
        left, right, constant = _sides(node.operand, memory)
        return f"{_side(left, 0, memory)} == {_side(right, -constant, memory)}", _COMPARE
    raise AssertionError(type(node))


def _in_order(parts: Iterable[Expr], memory: _Memory) -> list[Expr]:
    return sorted(parts, key=lambda part: memory[part][0])


def _term(t: Expr, c: int, memory: _Memory) -> str:
    rendered = memory[t]
    if c == 1:
        return _wrap(rendered, _PRODUCT)
    return f"{c}*" + (rendered[0] if isinstance(t, Product) else _wrap(rendered, _ATOM))


def _sum_text(constant: int, terms: Iterable[tuple[Expr, int]], memory: _Memory) -> tuple[str, int]:
    """Larger coefficients first, what is subtracted after what is added, the number last."""
    ordered = sorted(terms, key=lambda term: (term[1] < 0, -abs(term[1]), memory[term[0]][0]))
    text = ""
    for t, c in ordered:
        part = _term(t, abs(c), memory)
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


def _sides(e: Expr, memory: _Memory) -> tuple[list[tuple[Expr, int]], list[tuple[Expr, int]], int]:
    """The terms that are added, those that are subtracted (made positive), and the number."""
    constant, terms = rules.linear(e)
    return [(t, c) for t, c in terms if c > 0], [(t, -c) for t, c in terms if c < 0], constant


def _side(terms: list[tuple[Expr, int]], constant: int, memory: _Memory) -> str:
    return _sum_text(constant, terms, memory)[0] if terms else str(constant)


def _at_least_text(e: Expr, memory: _Memory) -> str:
    plus, minus, constant = _sides(e, memory)
    if not minus:
        return f"{_side(plus, 0, memory)} >= {-constant}"
    if not plus:
        return f"{_side(minus, 0, memory)} <= {constant}"
    if constant < 0:
        return f"{_side(minus, -constant - 1, memory)} < {_side(plus, 0, memory)}"
    return f"{_side(minus, 0, memory)} <= {_side(plus, constant, memory)}"


# -- from text --------------------------------------------------------------------------------------


def parse_expr(text: str, symbols: Mapping[str, Any] | Iterable[Symbol]) -> Expr:
    """The expression that the text denotes, over these symbols: Python's integer notation, min, max, ceildiv.

    Comparisons chain, `and`, `or` and `not` join conditions, `/` is exact division.

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
    _require_limits(body)
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


def _require_limits(text: str) -> None:
    """Raises for a text that Python's own reader, or ours, would take too long or too deep for."""
    if len(text) <= NESTING.most:  # too short for any of it
        return
    depth = 0
    for at, c in enumerate(text):
        if c in "([{":
            depth += 1
            if NESTING.refuses(depth):
                raise ParseError(NESTING.rule, text, at)
        elif c in ")]}":
            depth -= 1
    for count, found in enumerate(_OPERATOR.finditer(text)):
        if OPERATORS.refuses(count + 1):
            raise ParseError(OPERATORS.rule, text, found.start())
    for found in _DIGITS.finditer(text):
        if len(found.group()) > 100:
            try:
                integer(found.group())
            except LimitExceeded as fault:
                raise ParseError(str(fault), text, found.start()) from None


class _Reader:
    def __init__(self, text: str, symbols: Mapping[str, Any]):
        self.text = text
        self.symbols = symbols
        self.depth = 0

    def fail(self, what: str, node: Any) -> ParseError:
        return ParseError(what, self.text, len(self.text.encode()[: node.col_offset].decode(errors="ignore")))

    def read(self, node: ast.expr) -> Expr:
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
        """What operators one after another give: a - b - c is read from its left end, without a call for each."""
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
"""The functions of expressions: the least and the most arguments, and what they give."""
