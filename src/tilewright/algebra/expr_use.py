"""Uses of expressions: evaluation, substitution, and the linear form in chosen symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from tilewright.algebra import expr_rules as rules
from tilewright.algebra.expr import (
    And,
    AtLeastZero,
    Const,
    Exact,
    Expr,
    ExprLike,
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
    symbol,
)
from tilewright.algebra.expr_operations import OPERATIONS
from tilewright.errors import DivisionByZero, ExpressionError, NotExact, OutOfRange
from tilewright.limits import shown

# -- evaluation ---------------------------------------------------------------------------------------


def evaluate(e: ExprLike, values: Mapping[Any, Any]) -> Any:
    """Return the value of `e` for these values of its symbols: an int, or an array if values are numpy arrays of one
    shape.

    `values` is {symbol or name: int or array}. A symbol with a definition needs no value. Raise ExpressionError if
    another symbol has no value, and OutOfRange for a value outside a symbol's range, since `e` was simplified by that
    range. Raise DivisionByZero for a divisor of 0, and NotExact if an exact division `/` leaves a remainder.

    >>> from tilewright.algebra.expr import index
    >>> m = index("m", 100)
    >>> evaluate((m // 7) % 3, {"m": 23})
    0
    >>> evaluate((m - 50) // 7, {m: np.array([0, 49, 50, 99])})
    array([-8, -1,  0,  7])
    """
    if not isinstance(values, Mapping):
        raise ExpressionError(f"{values!r} is no dictionary of symbols (or names) and their values")
    results: dict[Expr, Any] = {}
    for node in as_expr(e).walk():
        results[node] = _value(node, results, values)
    return results[as_expr(e)]


def _value(node: Expr, results: dict[Expr, Any], values: Mapping[Any, Any]) -> Any:
    """Return the value of the expression `node`, an int or an array.

    `results` is {operand of the node: its value}; `values` is {symbol or its name: value}. Raise DivisionByZero or
    NotExact, with the node's text in the message, if a division fails. Errors for a symbol are those of
    `_symbol_value`.
    """
    if isinstance(node, Const):
        return node.value
    if isinstance(node, Symbol):
        return _symbol_value(node, values)
    if isinstance(node, Sum):
        return reduce(lambda total, term: total + term[1] * results[term[0]], node.terms, node.constant)
    if isinstance(node, AtLeastZero):
        return _as_int(results[node.operand] >= 0)
    if isinstance(node, IsZero):
        return _as_int(results[node.operand] == 0)
    try:
        return reduce(OPERATIONS[type(node)], [results[part] for part in node.parts])
    except (DivisionByZero, NotExact) as fault:
        raise type(fault)(f"{shown(node, 80)}: {fault}") from None


def _as_int(truth: Any) -> Any:
    """Return a truth value as 0 or 1; an array of bools becomes an array of int64."""
    return truth.astype(np.int64) if isinstance(truth, np.ndarray) else int(truth)


def _symbol_value(node: Symbol, values: Mapping[Any, Any]) -> Any:
    """Return the value of the symbol `node` in `values`, {symbol or name: value}; without an entry, the value of its
    definition.

    Raise OutOfRange if the value, or an element of an array, violates the symbol's range or `multiple`, and
    ExpressionError if there is neither a value nor a definition.
    """
    value = values[node] if node in values else values.get(node.name)
    if value is None:
        if node.definition is not None:
            return evaluate(node.definition, values)
        raise ExpressionError(f"no value is given for the symbol {node.name}")
    if isinstance(value, np.ndarray):
        if value.size == 0:
            return value
        least, greatest = value.min(), value.max()
    else:
        least = greatest = value
    if least < node.lo or greatest > node.hi or (node.multiple > 1 and np.any(value % node.multiple)):
        raise OutOfRange(f"{node.name} = {value} is outside its range: {symbol_range(node)}")
    return value


def symbol_range(node: Symbol) -> str:
    """Return the range of a symbol as a text for error messages, such as "0 to 12, a multiple of 4"."""
    multiple = f", a multiple of {node.multiple}" if node.multiple > 1 else ""
    return f"{node.lo} to {node.hi}{multiple}"


# -- substitution -------------------------------------------------------------------------------------


def substitute(e: ExprLike, values: Mapping[Any, ExprLike]) -> Expr:
    """Return `e` with symbols replaced, and simplified anew; `values` is {symbol or name: int or expression}.

    Symbols whose limits or definition mention a replaced symbol are replaced too: a defined size becomes a number once
    every size in its definition is a number. Raise OutOfRange for a number outside a symbol's range.

    >>> from tilewright.algebra.expr import extent, index
    >>> W = extent("W")
    >>> Q = extent("Q", definition=W // 2)
    >>> m = index("m", 4 * Q)
    >>> print(substitute((m // Q) % 4, {W: 56}), substitute(Q, {"W": 56}))
    m//28 28
    """
    return Substitution(values)(as_expr(e))


class Substitution:
    """One set of replacements, applied to any number of expressions; images are cached in `done`."""

    def __init__(self, values: Mapping[Any, ExprLike]):
        self.by_symbol: dict[Symbol, Expr] = {}
        self.by_name: dict[Any, Expr] = {}
        for key, value in values.items():
            image = value if isinstance(value, Expr) else as_expr(value)
            if isinstance(key, Symbol):
                self.by_symbol[key] = image
            else:
                self.by_name[key] = image
        self.done: dict[Expr, Expr] = {}

    def __call__(self, e: Expr) -> Expr:
        """Return the expression `e` with its symbols replaced; results are remembered for later calls."""
        if type(e) is Const:
            return e
        image = self.done.get(e)
        if image is None:
            image = self._symbol_image(e) if isinstance(e, Symbol) else self._with_new_parts(e)
            self.done[e] = image
        return image

    def _with_new_parts(self, e: Expr) -> Expr:
        """Return `e`, which is no symbol, with its operands replaced by their images; `e` itself if no operand changes.

        An ExpressionError on the way is raised again with the text of `e` in its message.
        """
        parts = e.parts
        images = [self(part) for part in parts]
        if all(image is part for image, part in zip(images, parts, strict=True)):
            return e
        if isinstance(e, Sum):
            return rules.weighted_sum(e.constant, [(image, c) for image, (_, c) in zip(images, e.terms, strict=True)])
        try:
            return _REBUILD[type(e)](*images)
        except ExpressionError as fault:
            raise type(fault)(f"{shown(e, 80)}: {fault}") from None

    def _symbol_image(self, s: Symbol) -> Expr:
        """Return the expression that replaces the symbol `s`: its replacement, or, if it has none, `s` with substituted
        limits.

        Without a replacement, `s` becomes a number if its definition becomes one, or if its two limits become equal
        numbers. Raise OutOfRange for a number that the symbol cannot be.
        """
        replacement = self.by_symbol.get(s)
        if replacement is None:
            replacement = self.by_name.get(s.name)
        if replacement is not None:
            if isinstance(replacement, Const):
                _require_in_range(s, replacement.value)
            return replacement
        lower, upper, definition = (None if x is None else self(x) for x in (s.lower, s.upper, s.definition))
        if (lower, upper, definition) == (s.lower, s.upper, s.definition):
            return s
        if isinstance(definition, Const):
            _require_in_range(s, definition.value)
            return definition
        if isinstance(lower, Const) and lower is upper:
            return lower
        return symbol(s.name, lower, upper, multiple_of=s.multiple, definition=definition)


def _require_in_range(s: Symbol, value: int) -> None:
    """Raise OutOfRange unless the integer `value` is allowed for the symbol `s` by its range and its `multiple`."""
    if value < s.lo or value > s.hi or value % s.multiple != 0:
        comes = "" if s.definition is None else f" = {shown(s.definition, 80)}"
        raise OutOfRange(f"{s.name}{comes} = {value} is outside its range: {symbol_range(s)}")


_REBUILD: dict[type[Expr], Callable[..., Expr]] = {
    Product: lambda *factors: reduce(rules.multiply, factors),
    FloorDiv: rules.floordiv,
    Mod: rules.modulo,
    Exact: rules.exact_divide,
    Xor: rules.xor,
    Min: rules.minimum,
    Max: rules.maximum,
    And: rules.all_of,
    Or: rules.any_of,
    AtLeastZero: rules.at_least_zero,
    IsZero: rules.is_zero,
}


# -- the linear form ------------------------------------------------------------------------------------


def linear_form(e: ExprLike, over: Iterable[Symbol]) -> tuple[dict[Symbol, Expr], Expr] | None:
    """Return (coefficients, rest) with e == rest + the sum of coefficients[s] * s, over the symbols s of `over` that
    occur in `e`.

    `coefficients` is {symbol: expression}, sorted by name. Coefficients and rest are free of the symbols in `over`.
    Return None if `e` is not linear in them.

    >>> from tilewright.algebra.expr import extent, index
    >>> W, p, q = extent("W"), index("p", 8), index("q", 8)
    >>> linear_form(W * (2 * p + q - 1), [p, q])
    ({<p>: <2*W>, <q>: <W>}, <-W>)
    >>> linear_form(p // 2, [p]) is None
    True
    """
    chosen = set(over)
    constant, terms = rules.linear(as_expr(e))
    gathered: dict[Symbol, list[Expr]] = {}
    rest: dict[Expr, int] = {}
    for t, c in terms:
        if not t.symbols & chosen:
            rest[t] = c
            continue
        variable: Symbol | None = None
        others = []
        for f in rules.factors_of(t):
            if variable is None and isinstance(f, Symbol) and f in chosen:
                variable = f
            else:
                others.append(f)
        if variable is None or any(f.symbols & chosen for f in others):
            return None
        gathered.setdefault(variable, []).append(rules.scale(rules.product_node(others), c))
    ordered = sorted(gathered, key=lambda s: s.name)
    return {s: rules.add_all(gathered[s]) for s in ordered}, rules.total(constant, rest)


def indices_in_bounds(step: int, rest: ExprLike, extent: ExprLike) -> tuple[Expr, Expr]:
    """Return (first, end), two expressions: 0 <= step*k + rest < extent holds exactly for the integers first <= k <
    end.

    `step` is an int other than 0.

    >>> first, end = indices_in_bounds(-1, 3, 2)
    >>> [k for k in range(9) if first <= k < end] == [k for k in range(9) if 0 <= 3 - k < 2]
    True
    """
    room_below, room_above = as_expr(rest), extent - 1 - as_expr(rest)  # distances of index 0 from both ends
    if step < 0:
        room_below, room_above, step = room_above, room_below, -step
    return -(room_below // step), room_above // step + 1


def has_division(e: Expr, over: Iterable[Symbol] | None = None) -> bool:
    """Return True if `e` contains a // or a %. With `over`, only a // or % counts that has one of these symbols in an
    operand.

    An exact division / does not count.

    >>> from tilewright.algebra.expr import index
    >>> m = index("m", 10)
    >>> has_division(m % 3), has_division(2 * m + 1)
    (True, False)
    """
    if over is None or not e.divided:
        return e.divided
    chosen = frozenset(over)
    return any(node.symbols & chosen for node in e.divisions(set()))


def ceildiv(a: ExprLike, b: ExprLike) -> Expr:
    """Return the expression for a / b rounded up, for b > 0.

    >>> ceildiv(57, 32)
    <2>
    """
    b = as_expr(b)
    return (as_expr(a) + b - 1) // b


def number_or(e: Expr) -> int | Expr:
    """Return the int of a constant expression; any other expression is returned unchanged."""
    return e.value if isinstance(e, Const) else e
