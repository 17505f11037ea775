"""Values of formulas on arrays: each step in the type that the executor would use, with the same rounding."""

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
    """Return the values of `formula` as an array of elements of type `to`.

    `leaf` is a function from a leaf of the formula (an operand or argument) to (array, element type). `coordinates` is
    {name of an index symbol: its values}. Each step is computed in the element type of its operands and rounded as the
    compiled code rounds.
    """
    with np.errstate(all="ignore"):
        value, _ = _compute(formula, leaf, coordinates or {}, to)
        return np.asarray(value).astype(to.numpy)


def _compute(
    f: Formula, leaf: Callable[[Formula], Typed], coordinates: Mapping[str, Any], default_type: DType | None
) -> Typed:
    """Return (values, element type) of the formula `f`; the element type of a plain number is None.

    `leaf` is a function from an operand or argument leaf to (array, element type); `coordinates` is {name of an index
    symbol: its values}. Plain numbers take the element type of the other operands; without other operands,
    `default_type`.
    """
    if f.name in ("operand", "argument"):
        return leaf(f)
    if f.name == "number":
        return f.value, None
    if f.name == "index":
        return evaluated(f.value, coordinates), dtypes.index
    if f.name == "cast":
        value, kind = _compute(f.parts[0], leaf, coordinates, None)
        return _cast(value, f.value), f.value
    if f.name == "select":
        condition, _ = _compute(f.parts[0], leaf, coordinates, None)
        (a, b), kind = _in_common_type(f.parts[1:], leaf, coordinates, default_type)
        return np.where(np.asarray(condition) != 0, a, b), kind
    values, kind = _in_common_type(f.parts, leaf, coordinates, None if f.name in COMPARISONS else default_type)
    wide = np.dtype(np.float32) if kind is not None and kind.is_narrow else None
    if wide is not None:
        values = [np.asarray(v).astype(wide) for v in values]
    result = _FUNCTIONS[f.name](*values)
    if f.name in COMPARISONS:
        return result, dtypes.bool_
    return (result if kind is None else np.asarray(result).astype(kind.numpy)), kind


def _in_common_type(
    parts: tuple[Formula, ...],
    leaf: Callable[[Formula], Typed],
    coordinates: Mapping[str, Any],
    default_type: DType | None,
) -> tuple[list[Any], DType | None]:
    """Return ([values of each formula in `parts`], element type).

    The element type is that of the first formula with one, otherwise `default_type`, which may be None. Plain numbers
    get this type, or f32 if it is None. `leaf` and `coordinates` are as in `_compute`.
    """
    typed_values = [_compute(part, leaf, coordinates, default_type) for part in parts]
    kind = next((k for _, k in typed_values if k is not None), default_type)
    literal_type = (kind or dtypes.f32).numpy
    return [np.asarray(v, dtype=literal_type) if k is None else v for v, k in typed_values], kind


def _cast(value: Any, to: DType) -> Array:
    """Return `value`, a number or array, as an array of elements of type `to`.

    Floats become integers by truncation; they are not clamped.
    """
    array = np.asarray(value)
    if array.dtype.kind == "f" and not to.is_float and to.kind != "bool":
        array = np.trunc(array.astype(np.float64))
    if array.dtype.isbuiltin != 1 and to.is_narrow:  # numpy does not know all pairs of its extension types
        array = array.astype(np.float32)
    return array.astype(to.numpy)
