"""Rounds of a loop that give back what they are given, because a selection hides a whole tile.

Whether they do is found by going through the body with the selection's other side everywhere: the maximum with -inf
changes nothing, e^-inf is 0, and a product with 0 adds nothing. This counts on finite values: what 0 is multiplied by
is not looked at.
"""

from __future__ import annotations

from math import exp, inf, isinf

from tilewright.ir.core import Op, Value

_Known = Value | float | None
"""What is known of a value: that it is another, that it is a number everywhere, or nothing."""


def changes_nothing(op: Op, hidden: Op, value: float | None = None) -> bool:
    """Whether a loop's body gives back what it is given where an operation gives a number everywhere, or a selection
    its last operand."""
    (body,) = op.blocks
    known: dict[Value, _Known] = {a: a for a in body.args}
    for inner in body.ops:
        if inner.name == "yield":
            return [known.get(v) for v in inner.operands] == list(body.args)
        said = [known.get(v) for v in inner.operands]
        found = _abstract(inner, said) if inner is not hidden else said[2] if value is None else value
        known |= dict.fromkeys(inner.results, found) if found is not None else {}
    return False


def last_hidden(op: Op) -> Op | None:
    """The last operation of a loop's body that may give -inf past the end of the loop's axis, so that nothing there
    changes what is carried; None where there is none.

    Every element there is -inf for itself, so it is enough that a tile of them changes nothing.
    """
    found = [
        inner
        for inner in op.blocks[0].ops
        if len(inner.results) == 1
        and inner.name != "iterate"
        and inner.result.type.dtype.is_float
        and op.attrs["axis"] in inner.result.type.dims
    ]
    return next((inner for inner in reversed(found) if changes_nothing(op, inner, -inf)), None)


def _abstract(op: Op, said: list[_Known]) -> _Known:
    """What is known of an operation's result, from what is known of its operands, which are finite."""
    if op.name in ("fill", "scalar"):
        value = op.attrs["value"]
        return float(value) if isinstance(value, int | float) else None
    if op.name in ("broadcast", "permute", "cast") and (op.name != "cast" or said[0] in (0.0, 1.0, inf, -inf)):
        return said[0]
    a, b = said[0] if said else None, said[1] if len(said) > 1 else None
    if op.name in ("max", "min", "sum") and op.attrs.get("acc"):
        neutral = {"max": -inf, "min": inf, "sum": 0.0}[op.name]
        return b if a == neutral else None
    if op.name == "mma":
        return said[2] if 0.0 in said[:2] else None
    if op.name == "sub":
        if isinstance(a, Value) and a is b:
            return 0.0
        return a if isinstance(a, float) and isinf(a) and isinstance(b, Value) else None
    if op.name == "select":  # a mask of a mask
        return b if b == said[2] else None
    if op.name == "exp" and isinstance(a, float):
        return exp(a) if a in (0.0, -inf) else None
    if op.name == "mul" and 1.0 in (a, b):
        return b if a == 1.0 else a
    return None
