"""How conditions are simplified when they are made: comparisons, and, or, not.

Every comparison becomes e >= 0 or e == 0. A condition that can be shown to hold always, or never, is 1 or 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilewright.algebra import expr as _e
from tilewright.algebra.expr import And, AtLeastZero, Const, Expr, IsZero, Or, const, gcd_of
from tilewright.algebra.expr_prove import is_nonneg
from tilewright.errors import ExpressionError


def at_least_zero(e: Expr) -> Expr:
    """Return the condition e >= 0 as an expression, simplified: 1 if it provably always holds, 0 if it provably never
    does.

    Common factors of the coefficients are divided out: 4*i - 6 >= 0 becomes i - 2 >= 0.
    """
    if is_nonneg(e):
        return _e.TRUE
    if e.hi < 0 or (e.open and is_nonneg(-1 - e)):
        return _e.FALSE
    constant, terms = linear(e)
    common = gcd_of(c for _, c in terms)
    if common > 1:
        e = sum_node(constant // common, tuple((t, c // common) for t, c in terms))
    return condition_node(AtLeastZero, e)


def is_zero(e: Expr) -> Expr:
    """Return the condition e == 0 as an expression, simplified: 1 if `e` is the number 0, 0 if `e` is provably never 0.

    `e` and -e give the same node.
    """
    constant, terms = linear(e)
    if not terms:
        return _e.TRUE if constant == 0 else _e.FALSE
    if e.lo > 0 or e.hi < 0 or (e.open and (is_nonneg(e - 1) or is_nonneg(-1 - e))):
        return _e.FALSE
    common = gcd_of(c for _, c in terms)
    if constant % common != 0 or constant % gcd_of(c * t.multiple for t, c in terms) != 0:
        return _e.FALSE
    if terms[0][1] < 0:
        common = -common
    return condition_node(IsZero, sum_node(constant // common, tuple((t, c // common) for t, c in terms)))


def condition_node(kind: Any, operand: Expr) -> Expr:
    """Return the expression node operand >= 0 (for the class `kind` AtLeastZero) or operand == 0 (for IsZero).

    Nothing is simplified; an equal node that exists already is returned.
    """
    identity = (kind, operand)
    known = _e._nodes.get(identity)
    if known is not None:
        return known
    node = kind.__new__(kind)
    node.operand = operand
    interned: Expr = _e._intern(node, hash((tag_of(kind), operand.key)), 0, 1, 1, operand.open, identity)
    return interned


def eq(a: _e.ExprLike, b: _e.ExprLike) -> Expr:
    """Return the condition a == b as a simplified expression of value 1 or 0. (The operator == compares nodes, not
    values.)

    >>> from tilewright.algebra.expr import index
    >>> eq(2 * index("i", 10), 5), eq(index("i", 10), 5)
    (<0>, <i == 5>)
    """
    return is_zero(add(_e.as_expr(a), scale(_e.as_expr(b), -1)))


def ne(a: _e.ExprLike, b: _e.ExprLike) -> Expr:
    """Return the condition a != b as a simplified expression of value 1 or 0. (The operator != compares nodes, not
    values.)
    """
    return negate(eq(a, b))


def negate(condition: Expr) -> Expr:
    """Return the negated condition, simplified: 1 (true) where `condition` is 0 (false), and 0 where it is 1.

    Raise ExpressionError for an expression that can take other values. A constant is an exception: any constant c gives
    1 - c.
    """
    if type(condition) is Const:
        return const(1 - condition.value)
    if type(condition) is AtLeastZero:
        return at_least_zero(-1 - condition.operand)
    if type(condition) is And:
        return any_of(*[negate(a) for a in condition.args])
    if type(condition) is Or:
        return all_of(*[negate(a) for a in condition.args])
    if type(condition) is IsZero:
        return any_of(at_least_zero(condition.operand - 1), at_least_zero(-1 - condition.operand))
    require_condition(condition)
    return is_zero(condition)


def require_condition(e: Expr) -> None:
    """Raise ExpressionError unless all values of `e` are known to be 0 or 1, as those of a condition are."""
    if e.lo < 0 or e.hi > 1:
        raise ExpressionError(f"{e} is not a condition: it takes values from {e.lo} to {e.hi}")


def all_of(*conditions: Expr) -> Expr:
    """Return the condition that all of `conditions` hold, simplified; without arguments it is 1 (true).

    Raise ExpressionError if an argument may have other values than 0 and 1.

    >>> from tilewright.algebra.expr import index
    >>> i = index("i", 10)
    >>> print(all_of(i >= 2, i >= 4, i < 12))
    i >= 4
    """
    return _connective(And, conditions, _e.TRUE, _e.FALSE)


def conjuncts(conditions: Iterable[Expr]) -> tuple[Expr, ...]:
    """Return conditions, as a tuple, that all hold exactly if all `conditions` hold, with redundant ones removed.

    Always-true conditions, duplicates, and weaker conditions (i >= 2 beside i >= 4) are removed. The result is (0,) if
    the conditions exclude each other, and () if all always hold. Raise ExpressionError if one may have other values
    than 0 and 1.

    >>> from tilewright.algebra.expr import index
    >>> i = index("i", 10)
    >>> conjuncts([i >= 0, i >= 2, i >= 4])
    (<i >= 4>,)
    """
    joined = all_of(*conditions)
    if type(joined) is Const:
        return () if joined.value else (joined,)
    return joined.args if type(joined) is And else (joined,)


def any_of(*conditions: Expr) -> Expr:
    """Return the condition that at least one of `conditions` holds, simplified; without arguments it is 0 (false).

    Raise ExpressionError if an argument may have other values than 0 and 1.

    >>> from tilewright.algebra.expr import index
    >>> i = index("i", 10)
    >>> any_of(i >= 2, i < 2)
    <1>
    """
    return _connective(Or, conditions, _e.FALSE, _e.TRUE)


def _connective(kind: Any, conditions: tuple[Expr, ...], neutral: Expr, absorbing: Expr) -> Expr:
    """Return the simplified conjunction or disjunction of the conditions; `kind` is the node class, And or Or.

    `neutral` is the operand that changes nothing (1 for And, 0 for Or), `absorbing` the operand that decides the result
    (0 for And, 1 for Or). Raise ExpressionError if an operand may have other values than 0 and 1.
    """
    flat: list[Expr] = []
    for a in conditions:
        require_condition(a)
        for part in a.parts if type(a) is kind else (a,):
            if part is absorbing:
                return absorbing
            if part is not neutral and part not in flat:
                flat.append(part)
    if len(flat) > 1:
        flat = _keep_binding(flat, keep_smaller=kind is And)
        if _has_opposed_pair(flat, kind):
            return absorbing
    if not flat:
        return neutral
    if len(flat) == 1:
        return flat[0]
    flat.sort(key=lambda a: a.key)
    return nary_node(kind, tuple(flat), 0, 1, 1)


def _has_opposed_pair(conditions: list[Expr], kind: Any) -> bool:
    """Return True if two of `conditions`, of the forms e + c >= 0 and -e + d >= 0, decide the result of the connective
    `kind`.

    For And: the two exclude each other, so the result is 0. For Or: one of the two always holds, so the result is 1.
    """
    constants: dict[Any, int] = {}
    for a in conditions:
        if type(a) is AtLeastZero:
            constant, terms = linear(a.operand)
            other = constants.get(tuple([(t, -c) for t, c in terms]))
            if other is not None and (constant + other < 0 if kind is And else constant + other >= -1):
                return True
            constants[terms] = constant
    return False


def _keep_binding(conditions: list[Expr], *, keep_smaller: bool) -> list[Expr]:
    """Return the conditions with one kept of all conditions e + c >= 0 that have the same e and differ in the constant
    c.

    With `keep_smaller`, the condition with the smallest c is kept, which implies the others (for And); otherwise the
    one with the largest c, which the others imply (for Or). Other conditions stay.
    """
    best: dict[Any, Expr] = {}
    for a in conditions:
        if type(a) is AtLeastZero:
            constant, terms = linear(a.operand)
            rival = best.get(terms)
            if rival is not None and (constant > linear(rival.parts[0])[0]) is keep_smaller:
                continue
            best[terms] = a
        else:
            best[a] = a
    return list(best.values())


from tilewright.algebra.expr_rules import add, linear, nary_node, scale, sum_node, tag_of  # noqa: E402
