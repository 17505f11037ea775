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
    """The quotient, rounded up."""
    return _plain(ceildiv(a, b))


def min(*numbers: Any) -> Any:
    """The least of them."""
    return _plain(minimum(*numbers))


def max(*numbers: Any) -> Any:
    """The greatest of them."""
    return _plain(maximum(*numbers))


def _plain(found: Any) -> Any:
    return found.value if isinstance(found, Const) else found
