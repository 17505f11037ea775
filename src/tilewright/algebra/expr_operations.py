"""What each kind of expression computes from the values of its parts: ints, or numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.algebra.expr import And, Exact, Expr, FloorDiv, Max, Min, Mod, Or, Product, Xor
from tilewright.errors import NotExact


def _exactly(a: Any, b: Any) -> Any:
    if np.any(a % b):
        raise NotExact(f"{a} / {b} was said to be exact, but {b} does not divide {a}")
    return a // b


def _smaller(a: Any, b: Any) -> Any:
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def _larger(a: Any, b: Any) -> Any:
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


OPERATIONS: dict[type[Expr], Callable[[Any, Any], Any]] = {
    Product: lambda a, b: a * b,
    FloorDiv: lambda a, b: a // b,
    Mod: lambda a, b: a % b,
    Exact: _exactly,
    Xor: lambda a, b: a ^ b,
    Min: _smaller,
    Max: _larger,
    And: lambda a, b: a & b,
    Or: lambda a, b: a | b,
}
