"""A few values that each expression really takes: a cheap way to see that something cannot be proved.

Every symbol has the same value in all expressions at a sample point, one that its limits and its definition allow.
If an expression is negative at such a point, no proof that it is never negative need be sought.
"""

from __future__ import annotations

from typing import TypeAlias

from tilewright.algebra.expr import AtLeastZero, Const, Expr, IsZero, Sum, Symbol
from tilewright.algebra.expr_operations import OPERATIONS

Samples: TypeAlias = "tuple[int | None, ...]"
"""The values at the sample points; None at a point that violates a limit or a definition."""

COUNT = 5
# (are sizes without a limit large?, position of limited symbols within their range)
_POINTS = ((False, "least"), (False, "greatest"), (True, "least"), (True, "greatest"), (True, "between"))


def samples(e: Expr) -> Samples:
    """Return the values of `e` at the `COUNT` sample points (fixed choices of a value for every symbol).

    An entry is None if `e` has no value at that point, such as for a division by 0. The result is cached in `e`.

    >>> from tilewright.algebra.expr import index
    >>> samples(index("i", 10) + 1)[:4]
    (1, 10, 1, 10)
    """
    if e._samples is None:
        e._samples = _sum_values(e) if isinstance(e, Sum) else tuple([_value(e, point) for point in range(COUNT)])
    return e._samples


def _sum_values(e: Sum) -> Samples:
    """Return the values of the sum `e` at all sample points. An entry is None if a term has no value at that point."""
    totals: list[int | None] = [e.constant] * COUNT
    for t, c in e.terms:
        for point, value in enumerate(t._samples or samples(t)):
            total = totals[point]
            totals[point] = None if value is None or total is None else total + c * value
    return tuple(totals)


def refuted(e: Expr, facts: tuple[Expr, ...] = ()) -> bool:
    """Return True if `e` is negative at a sample point at which all `facts` are known and not negative.

    `facts` are expressions known to be >= 0. True shows that no proof of e >= 0 from these facts can exist; False shows
    nothing.
    """
    for point, value in enumerate(samples(e)):
        if value is not None and value < 0 and all(_is_not_negative(samples(f)[point]) for f in facts):
            return True
    return False


def _is_not_negative(value: int | None) -> bool:
    """Return True if `value`, the value of an expression at a sample point or None, is an int of at least 0."""
    return value is not None and value >= 0


def _value(e: Expr, point: int) -> int | None:
    """Return the value of `e`, which must not be a sum, at sample point number `point`; None if `e` has no
    value there.
    """
    if isinstance(e, Const):
        return e.value
    if isinstance(e, Symbol):
        return _symbol_value(e, point)
    values = [samples(part)[point] for part in e.parts]
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    if isinstance(e, AtLeastZero):
        return int(known[0] >= 0)
    if isinstance(e, IsZero):
        return int(known[0] == 0)
    result = known[0]
    try:
        for value in known[1:]:
            result = OPERATIONS[type(e)](result, value)
    except ArithmeticError:  # a divisor of zero, or a division that is not exact here
        return None
    return int(result)


def _symbol_value(s: Symbol, point: int) -> int | None:
    """Return the value of the symbol `s` at sample point number `point`: the value of its definition, or a choice
    within its limits.

    Return None if the value would violate the symbol's limits or its `multiple`, or if a limit or the definition has no
    value there.
    """
    low = None if s.lower is None else samples(s.lower)[point]
    high = None if s.upper is None else samples(s.upper)[point]
    if (s.lower is not None and low is None) or (s.upper is not None and high is None):
        return None
    if s.definition is not None:
        value = samples(s.definition)[point]
    else:
        value = _choose(s, low, high, point)
    if value is None or (low is not None and value < low) or (high is not None and value > high):
        return None
    return None if value % s.multiple else value


def _choose(s: Symbol, low: int | None, high: int | None, point: int) -> int:
    """Return the value chosen for a symbol without definition at sample point number `point`.

    `low` and `high` are its limits there (None: no limit). The value is rounded to a multiple of the symbol's
    `multiple`.
    """
    far, position = _POINTS[point]
    if high is None or low is None:
        start = low if low is not None else (high or 0)
        distance = 40 + s.key % 23 if far else 0
        value = start + distance if high is None else start - distance
    elif position == "between":
        value = low + s.key % max(1, high - low + 1)
    else:
        value = low if position == "least" else high
    return value - value % s.multiple if position == "greatest" else value + -value % s.multiple
