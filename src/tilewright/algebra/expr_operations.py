"""What each kind of expression computes from the values of its parts: ints, or numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.algebra.expr import And, Exact, Expr, FloorDiv, Max, Min, Mod, Or, Product, Xor
from tilewright.errors import DivisionByZero, NotExact


def _divisor(a: Any, b: Any, sign: str) -> Any:
    if np.any(np.equal(b, 0)):
        raise DivisionByZero(f"{a} {sign} {b}")
    return b


def _exactly(a: Any, b: Any) -> Any:
    _divisor(a, b, "/")
    left = np.asarray(a % b) != 0
    if left.any():
        one, by = (np.broadcast_to(np.asarray(x, object), left.shape)[left].flat[0] for x in (a, b))
        raise NotExact(f"{one} / {by} was said to be exact, but {by} does not divide {one}; // rounds down")
    return a // b


def _smaller(a: Any, b: Any) -> Any:
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def _larger(a: Any, b: Any) -> Any:
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


OPERATIONS: dict[type[Expr], Callable[[Any, Any], Any]] = {
    Product: lambda a, b: a * b,
    FloorDiv: lambda a, b: a // _divisor(a, b, "//"),
    Mod: lambda a, b: a % _divisor(a, b, "%"),
    Exact: _exactly,
    Xor: lambda a, b: a ^ b,
    Min: _smaller,
    Max: _larger,
    And: lambda a, b: a & b,
    Or: lambda a, b: a | b,
}
