"""Masks: selects that cover whole tiles of a loop, so that iterations over them change nothing."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from math import exp, inf, isinf
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op, Program, Value
from tilewright.plan.model import Size

Known = Value | float | None
"""Knowledge of a value: it is another value, it is a number everywhere, or nothing is known."""
Trips = dict[tuple[int, int], int]
"""(iterations that change anything, those of them with a partly masked tile) -> number of tasks that have these."""
ON_COORDINATES: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "ge", "gt", "le", "lt", "and_", "mod")},
    **dict.fromkeys(("broadcast", "permute", "cast"), lambda x: x),
}
"""Operations that conditions on coordinates are made of."""
NEUTRAL = {"max": -inf, "min": inf, "sum": 0.0}


def masks_of(loop: Op) -> tuple[Op, ...]:
    """Return the selects of a loop's body that are masks: masking a whole tile leaves all carried values unchanged."""
    return tuple(op for op in loop.blocks[0].ops if op.name == "select" and is_mask(loop, op))


def is_mask(loop: Op, selection: Op) -> bool:
    """True if an iteration leaves all values that the loop carries unchanged when `selection` masks every element.

    `selection` is a select in the loop's body. It masks an element if it gives its last operand for it. Values of which
    nothing is known are taken to be finite.
    """
    (body,) = loop.blocks
    known: dict[Value, Known] = {arg: arg for arg in body.args}
    for op in body.ops:
        operands = [known.get(v) for v in op.operands]
        if op.name == "yield":
            return operands == list(body.args)
        if op is selection:
            result = operands[2]
        elif op.name == "select" and operands[1] is not None and operands[1] == operands[2]:
            result = operands[1]  # a mask of a mask
        else:
            result = _known_result(op, operands)
        if result is not None:
            known |= dict.fromkeys(op.results, result)
    return False


def _known_result(op: Op, operands: Sequence[Known]) -> Known:
    """Return what is known of the result of `op`: a Value that it equals, a number that all elements have, or None.

    `operands` has the same knowledge of the operands of `op`. None means that nothing is known; such operands are taken
    to be finite.
    """
    first, second = (*operands, None, None)[:2]
    if op.name in ("fill", "scalar"):
        value = op.attrs["value"]
        return float(value) if isinstance(value, int | float) else None
    if op.name in ("broadcast", "permute"):
        return first
    if op.name == "cast":
        return first if first in (0.0, 1.0, inf, -inf) else None
    if op.name in NEUTRAL and op.attrs.get("acc"):
        return second if first == NEUTRAL[op.name] else None
    if op.name == "mma":
        return operands[2] if 0.0 in operands[:2] else None
    if op.name == "sub" and isinstance(second, Value):
        if first is second:
            return 0.0
        return first if isinstance(first, float) and isinf(first) else None
    if op.name == "exp" and first in (0.0, -inf):
        return exp(float(first))
    if op.name == "mul" and 1.0 in (first, second):
        return second if first == 1.0 else first
    return None


def count_trips(
    program: Program, masks: Sequence[Op], axis: Expr, tile: int, rows: Mapping[Expr, int], size: Size
) -> Trips:
    """Return {(iterations with an unmasked element, how many of these also have a masked one): number of tasks}.

    The iterations are of the loop over `axis`; each covers `tile` elements. A task is one tile of the grid; `rows` maps
    each dimension of the masks except `axis` to a task's extent. `size(d)` evaluates the whole extent of a dimension d.
    Conditions are taken to be linear: one holds somewhere in a tile if it holds at a corner, and everywhere if it holds
    at all corners. Conditions that depend on data mask nothing.
    """
    dims = [*rows, axis]
    steps = [min(max(1, step), size(d)) for d, step in rows.items()] + [tile]
    first = np.meshgrid(*(np.arange(0, size(d), step) for d, step in zip(dims, steps, strict=True)), indexing="ij")
    last = [np.minimum(at + step, size(d)) - 1 for at, step, d in zip(first, steps, dims, strict=True)]
    seen, whole, makers = np.ones(first[0].shape, bool), np.ones(first[0].shape, bool), program.makers()
    for mask in masks:
        corners = []
        for pick in np.ndindex(*(2,) * len(dims)):
            at = {d: (last if end else first)[n] for n, (d, end) in enumerate(zip(dims, pick, strict=True))}
            corners.append(_value_at(mask.operands[0], makers, at, size))
        if all(corner is not None for corner in corners):
            seen &= np.logical_or.reduce(corners)
            whole &= np.logical_and.reduce(corners)
    trips, masked = seen.sum(axis=-1).ravel().tolist(), (seen & ~whole).sum(axis=-1).ravel().tolist()
    counted: Trips = {}
    for pair in zip(trips, masked, strict=True):
        counted[pair] = counted.get(pair, 0) + 1
    return counted


def _value_at(value: Value, makers: Mapping[Value, Op], at: Mapping[Expr, Any], size: Size) -> Any:
    """Return the values of a condition at the coordinates `at`, which maps each dimension to an array.

    The result is an array or a number. It is None if the condition depends on data, or uses an operation that
    ON_COORDINATES lacks. `makers` maps a value to the operation that computes it. `size(d)` evaluates an expression of
    sizes.
    """
    op = makers.get(value)
    if op is None:
        return None
    if op.name == "self_index":
        return at.get(op.attrs["dim"])
    if op.name == "scalar":
        number = op.attrs["value"]
        return size(number) if isinstance(number, Expr) else number
    parts = [_value_at(v, makers, at, size) for v in op.operands]
    if op.name not in ON_COORDINATES or any(part is None for part in parts):
        return None
    return ON_COORDINATES[op.name](*parts)
