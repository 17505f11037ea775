"""A few values that each expression really takes: a cheap way to see that something cannot be shown.

Every symbol is given the same value in all expressions, one that its limits and its definition allow. If an
expression is negative at such a point, no proof that it is never negative need be sought.
"""

from __future__ import annotations

from typing import TypeAlias

from tilewright.algebra.expr import AtLeastZero, Const, Expr, IsZero, Sum, Symbol
from tilewright.algebra.expr_operations import OPERATIONS

Samples: TypeAlias = "tuple[int | None, ...]"
"""The values at the sample points; None where a limit or a definition cannot be met there."""

COUNT = 5
# (sizes without limit are large, where limited symbols lie: at their least, at their greatest, between)
_POINTS = ((False, "least"), (False, "greatest"), (True, "least"), (True, "greatest"), (True, "between"))


def samples(e: Expr) -> Samples:
    """The values of e at the sample points.

    >>> from tilewright.algebra.expr import index
    >>> samples(index("i", 10) + 1)[:4]
    (1, 10, 1, 10)
    """
    if e._samples is None:
        e._samples = _sum_values(e) if isinstance(e, Sum) else tuple([_value(e, point) for point in range(COUNT)])
    return e._samples


def _sum_values(e: Sum) -> Samples:
    """The values of a sum at all points, term by term."""
    totals: list[int | None] = [e.constant] * COUNT
    for t, c in e.terms:
        for point, value in enumerate(t._samples or samples(t)):
            total = totals[point]
            totals[point] = None if value is None or total is None else total + c * value
    return tuple(totals)


def refuted(e: Expr, facts: tuple[Expr, ...] = ()) -> bool:
    """Whether e is negative at a sample point where all facts hold."""
    for point, value in enumerate(samples(e)):
        if value is not None and value < 0 and all((samples(f)[point] or -1) >= 0 for f in facts):
            return True
    return False


def _value(e: Expr, point: int) -> int | None:
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
    large, place = _POINTS[point]
    if high is None or low is None:
        start = low if low is not None else (high or 0)
        distance = 40 + s.key % 23 if large else 0
        value = start + distance if high is None else start - distance
    elif place == "between":
        value = low + s.key % max(1, high - low + 1)
    else:
        value = low if place == "least" else high
    return value - value % s.multiple if place == "greatest" else value + -value % s.multiple
