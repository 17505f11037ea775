"""Arithmetic of sizes and loop variables: Python integers where all are, expressions otherwise.

>>> cdiv(10, 4), min(3, 5), max(2, 7)
(3, 3, 7)
>>> from tilewright.algebra.expr import symbol
>>> print(cdiv(symbol("M", 1), 128), min(symbol("M", 1), 8))
(M + 127)//128 min(8, M)
"""

from __future__ import annotations

from typing import Any

from tilewright.algebra import ceildiv
from tilewright.algebra.expr import Const
from tilewright.algebra.expr_rules import maximum, minimum


def cdiv(a: Any, b: Any) -> Any:
    """Return a / b rounded up, for integers or expressions `a` and `b`: an int if the result is constant, otherwise an
    expression.
    """
    return _plain(ceildiv(a, b))


def min(*numbers: Any) -> Any:
    """Return the least of `numbers`, integers and expressions: an int if the result is constant, otherwise an
    expression.
    """
    return _plain(minimum(*numbers))


def max(*numbers: Any) -> Any:
    """Return the greatest of `numbers`, integers and expressions: an int if the result is constant, otherwise an
    expression.
    """
    return _plain(maximum(*numbers))


def _plain(number: Any) -> Any:
    """Return the expression `number` as an int if it is constant; otherwise return `number`."""
    return number.value if isinstance(number, Const) else number
