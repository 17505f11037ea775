"""Integer operations of expression nodes: what each node type computes from the values of its operands.

Values are ints or numpy arrays of integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.algebra.expr import And, Exact, Expr, FloorDiv, Max, Min, Mod, Or, Product, Xor
from tilewright.errors import DivisionByZero, NotExact


def _checked_divisor(a: Any, b: Any, sign: str) -> Any:
    """Return the divisor `b`, an int or an array, unchanged. Raise DivisionByZero if `b`, or an element of `b`, is 0.

    `a` is the dividend and `sign` the operator (//, % or /); both are only for the message.
    """
    if np.any(np.equal(b, 0)):
        raise DivisionByZero(f"{a} {sign} {b}")
    return b


def exact_quotient(a: Any, b: Any) -> Any:
    """Return a / b as an integer, or element by element for arrays.

    Raise NotExact if `b` does not divide `a`, DivisionByZero if `b` is 0; for arrays, if that holds for any element.
    """
    _checked_divisor(a, b, "/")
    left = np.asarray(a % b) != 0
    if left.any():
        dividend, divisor = (np.broadcast_to(np.asarray(x, object), left.shape)[left].flat[0] for x in (a, b))
        raise NotExact(
            f"{dividend} / {divisor} was said to be exact, but {divisor} does not divide {dividend}; // rounds down"
        )
    return a // b


def _minimum(a: Any, b: Any) -> Any:
    """Return the smaller of the ints `a` and `b`; if one of them is a numpy array, return the elementwise minimum."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def _maximum(a: Any, b: Any) -> Any:
    """Return the larger of the ints `a` and `b`; if one of them is a numpy array, return the elementwise maximum."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


OPERATIONS: dict[type[Expr], Callable[[Any, Any], Any]] = {
    Product: lambda a, b: a * b,
    FloorDiv: lambda a, b: a // _checked_divisor(a, b, "//"),
    Mod: lambda a, b: a % _checked_divisor(a, b, "%"),
    Exact: exact_quotient,
    Xor: lambda a, b: a ^ b,
    Min: _minimum,
    Max: _maximum,
    And: lambda a, b: a & b,
    Or: lambda a, b: a | b,
}
