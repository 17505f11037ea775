"""Masks: loop iterations that change nothing, because a mask covers a whole tile (causal attention).

They are found by evaluating the body with what is known of each value: the maximum with -inf changes nothing, e^-inf is
0, and an MMA with 0 adds nothing. This relies on finite values: the other operand of a multiplication by 0 is not
looked at.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from math import exp, inf, isinf
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op, Program, Value
from tilewright.plan.facts.loops import EXPONENTIALS
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
    """Return the selects in a loop's body that are masks, such as a causal mask of attention.

    A select is a mask if an iteration whose whole tile is masked leaves all values that the loop carries unchanged.
    """
    return tuple(op for op in loop.blocks[0].ops if op.name == "select" and changes_nothing(loop, op))


def changes_nothing(loop: Op, masked: Op, value: float | None = None) -> bool:
    """True if an iteration of `loop` leaves all carried values unchanged when `masked` gives `value` for every element.

    `masked` is an operation of the loop's body. If `value` is None, `masked` is a select, and gives its last operand
    everywhere. Values of which nothing is known are taken to be finite.
    """
    (body,) = loop.blocks
    known: dict[Value, Known] = {arg: arg for arg in body.args}
    for op in body.ops:
        operands = [known.get(v) for v in op.operands]
        if op.name == "yield":
            return operands == list(body.args)
        if op is masked:
            result = operands[2] if value is None else value
        else:
            result = _known_result(op, operands)
        if result is not None:
            known |= dict.fromkeys(op.results, result)
    return False


def last_maskable(loop: Op) -> Op | None:
    """Return the last operation in a loop's body that may give -inf past the end of the loop's axis; None if none may.

    So the elements past the end of a ragged tile count for nothing: a result that is -inf everywhere must leave all
    values that the loop carries unchanged. Only operations with a float result along the axis are tried.
    """
    float_ops = [
        inner
        for inner in loop.blocks[0].ops
        if len(inner.results) == 1
        and inner.name != "iterate"
        and inner.result.type.dtype.is_float
        and loop.attrs["axis"] in inner.result.type.dims
    ]
    return next((inner for inner in reversed(float_ops) if changes_nothing(loop, inner, -inf)), None)


def _known_result(op: Op, operands: Sequence[Known]) -> Known:
    """Return what is known of the result of `op`: a Value that it equals, a number that all elements have, or None.

    `operands` has the same knowledge of the operands of `op`; exp of -inf is known to be 0. None means that nothing is
    known; such operands are taken to be finite.
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
    if op.name == "select":  # a mask of a mask
        return second if second == operands[2] else None
    if op.name in EXPONENTIALS and first in (0.0, -inf):
        return exp(float(first))  # 1 or 0, whatever is raised
    if op.name == "mul" and 1.0 in (first, second):
        return second if first == 1.0 else first
    return None


def count_trips(
    program: Program, masks: Sequence[Op], axis: Expr, tile: int, rows: Mapping[Expr, int], size: Size
) -> Trips:
    """Count the iterations of a loop that masks leave to each task: return {(kept, partly masked): tasks}.

    The loop is over `axis`, `tile` elements per iteration. `kept` is the number of iterations with an unmasked element,
    `partly masked` how many of these also have a masked one, `tasks` how many tasks have these numbers. A task is one
    tile of the grid; `rows` maps each dimension of the masks except `axis` to a task's extent. `size(d)` evaluates the
    extent of a dimension d. Conditions are taken to be linear, and evaluated at the corners of a tile; one that depends
    on data masks nothing.
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
    """Evaluate a mask's condition at the coordinates `at` ({dimension: array}); return an array or a number.

    It is None if the condition depends on data, or uses an operation that ON_COORDINATES (index arithmetic and
    comparisons) lacks. `makers` maps a value to the operation that computes it. `size(e)` evaluates an expression of
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
