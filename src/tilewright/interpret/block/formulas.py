"""What formulas compute, on arrays: each step in the type that the executor would use, rounded as it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.interpret import elementwise
from tilewright.interpret.evaluation import evaluated
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import COMPARISONS, Formula

Array = np.ndarray[Any, np.dtype[Any]]
Typed = tuple[Any, DType | None]

_FUNCTIONS: dict[str, Callable[..., Any]] = elementwise.UNARY | elementwise.BINARY | elementwise.TERNARY


def compute(
    formula: Formula, leaf: Callable[[Formula], Typed], to: DType, coordinates: Mapping[str, Any] | None = None
) -> Array:
    """The formula's values as elements of type `to`; `leaf` gives operands' and arguments' arrays with their types."""
    with np.errstate(all="ignore"):
        value, _ = _compute(formula, leaf, coordinates or {}, to)
        return np.asarray(value).astype(to.numpy)


def _compute(f: Formula, leaf: Callable[[Formula], Typed], at: Mapping[str, Any], want: DType | None) -> Typed:
    if f.name in ("operand", "argument"):
        return leaf(f)
    if f.name == "number":
        return f.value, None
    if f.name == "index":
        return evaluated(f.value, at), dtypes.index
    if f.name == "cast":
        value, kind = _compute(f.parts[0], leaf, at, None)
        return _cast(value, kind, f.value), f.value
    if f.name == "select":
        truth, _ = _compute(f.parts[0], leaf, at, None)
        (a, b), kind = _agreed(f.parts[1:], leaf, at, want)
        return np.where(np.asarray(truth) != 0, a, b), kind
    values, kind = _agreed(f.parts, leaf, at, None if f.name in COMPARISONS else want)
    wide = np.dtype(np.float32) if kind is not None and kind.is_narrow else None
    if wide is not None:
        values = [np.asarray(v).astype(wide) for v in values]
    result = _FUNCTIONS[f.name](*values)
    if f.name in COMPARISONS:
        return result, dtypes.bool_
    return (result if kind is None else np.asarray(result).astype(kind.numpy)), kind


def _agreed(
    parts: tuple[Formula, ...], leaf: Callable[[Formula], Typed], at: Mapping[str, Any], want: DType | None
) -> tuple[list[Any], DType | None]:
    """The parts' values in their common type, which numbers take on."""
    found = [_compute(part, leaf, at, want) for part in parts]
    kind = next((k for _, k in found if k is not None), want)
    form = (kind or dtypes.f32).numpy
    return [np.asarray(v, dtype=form) if k is None else v for v, k in found], kind


def _cast(value: Any, kind: DType | None, to: DType) -> Array:
    array = np.asarray(value)
    if array.dtype.kind == "f" and not to.is_float and to.kind != "bool":
        array = np.trunc(array.astype(np.float64))
    if kind is not None and kind.is_narrow and to.is_narrow:  # numpy does not know all pairs of them
        array = array.astype(np.float32)
    return array.astype(to.numpy)
