"""Loop iterations that change nothing, because a mask covers a whole tile (causal attention).

They are found by evaluating the body with what is known of each value: the maximum with -inf changes nothing, e^-inf is
0, and an MMA with 0 adds nothing. This relies on finite values: the other operand of a multiplication by 0 is not
looked at.
"""

from __future__ import annotations

from math import exp, inf, isinf

from tilewright.ir.core import Op, Value

_Known = Value | float | None
"""Knowledge of a value: it equals another value, it is a constant tile, or nothing (None)."""


def changes_nothing(loop: Op, masked: Op, value: float | None = None) -> bool:
    """True if an iteration of `loop` leaves all carried values unchanged when `masked` gives `value` everywhere.

    `masked` is an operation of the loop's body. If `value` is None, `masked` is a select, and gives its last operand
    everywhere. Values of which nothing is known are taken to be finite.
    """
    (body,) = loop.blocks
    known: dict[Value, _Known] = {a: a for a in body.args}
    for inner in body.ops:
        if inner.name == "yield":
            return [known.get(v) for v in inner.operands] == list(body.args)
        operands = [known.get(v) for v in inner.operands]
        result = _known_result(inner, operands) if inner is not masked else operands[2] if value is None else value
        known |= dict.fromkeys(inner.results, result) if result is not None else {}
    return False


def last_maskable(loop: Op) -> Op | None:
    """Return the last operation of a loop's body that may give -inf past the end of the axis; None if there is none.

    The axis is the loop's. A result that is -inf everywhere must leave all values that the loop carries unchanged; then
    single elements of -inf change nothing either. Only float results with the axis count.
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


def _known_result(op: Op, operands: list[_Known]) -> _Known:
    """Return what is known of the result of `op`: a Value that it equals, a number that all elements have, or None.

    `operands` has the same knowledge of the operands of `op`. None means that nothing is known; such operands are taken
    to be finite.
    """
    if op.name in ("fill", "scalar"):
        value = op.attrs["value"]
        return float(value) if isinstance(value, int | float) else None
    if op.name in ("broadcast", "permute", "cast") and (op.name != "cast" or operands[0] in (0.0, 1.0, inf, -inf)):
        return operands[0]
    a, b = operands[0] if operands else None, operands[1] if len(operands) > 1 else None
    if op.name in ("max", "min", "sum") and op.attrs.get("acc"):
        neutral = {"max": -inf, "min": inf, "sum": 0.0}[op.name]
        return b if a == neutral else None
    if op.name == "mma":
        return operands[2] if 0.0 in operands[:2] else None
    if op.name == "sub":
        if isinstance(a, Value) and a is b:
            return 0.0
        return a if isinstance(a, float) and isinf(a) and isinstance(b, Value) else None
    if op.name == "select":  # a mask of a mask
        return b if b == operands[2] else None
    if op.name == "exp" and isinstance(a, float):
        return exp(a) if a in (0.0, -inf) else None
    if op.name == "mul" and 1.0 in (a, b):
        return b if a == 1.0 else a
    return None
