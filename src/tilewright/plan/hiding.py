"""Rounds of a loop that give back what they are given, because a selection hides a whole tile.

Whether they do is found by going through the body with the selection's other side everywhere: the maximum with -inf
changes nothing, e^-inf is 0, and a product with 0 adds nothing. This counts on finite values: what 0 is multiplied by
is not looked at.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from math import exp, inf, isinf
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op, Program, Value
from tilewright.plan.model import Size

_Known = Value | float | None
"""What is known of a value: that it is another, that it is a number everywhere, or nothing."""
_NUMBERS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "ge", "gt", "le", "lt", "and_")},
    "broadcast": lambda x: x,
    "cast": lambda x: x,
}
"""What is followed of conditions on coordinates."""


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


def uneven(program: Program, row: Expr) -> bool:
    """Whether it depends on the place along a dimension how many rounds of a loop change what it carries."""
    return any(_hidings(loop, row) for loop in program.walk() if loop.name == "iterate")


def hiding(program: Program, row: Expr) -> set[Op]:
    """The selections that hide whole tiles of rows, and the conditions of theirs: what only some tiles need."""
    selections = [op for loop in program.walk() if loop.name == "iterate" for op in _hidings(loop, row)]
    conditions = {op.operands[0] for op in selections}
    return {*selections, *(op for op in program.walk() if not conditions.isdisjoint(op.results))}


def rounds_of_tasks(program: Program, loop: Op, row: Expr, rows: int, tile: int, size: Size) -> list[tuple[int, int]]:
    """(rounds of a loop over tiles that change what it carries, those of them with tiles that are hidden in part), for
    each task of so many rows."""
    axis = loop.attrs["axis"]
    firsts = np.arange(0, size(row), rows)[:, None], np.arange(0, size(axis), tile)[None, :]
    lasts = np.minimum(firsts[0] + rows, size(row)) - 1, np.minimum(firsts[1] + tile, size(axis)) - 1
    shape = np.broadcast_shapes(*(x.shape for x in firsts))
    seen, whole = np.ones(shape, bool), np.ones(shape, bool)
    made = program.makers()
    for op in _hidings(loop, row):
        corners = [
            _holds(op.operands[0], made, {row: r, axis: c}, size)
            for r in (firsts[0], lasts[0])
            for c in (firsts[1], lasts[1])
        ]
        if all(x is not None for x in corners):  # what is linear holds somewhere, or everywhere, as corners say
            seen &= np.logical_or.reduce(np.broadcast_arrays(*corners))
            whole &= np.logical_and.reduce(np.broadcast_arrays(*corners))
    return [(int(n), int(m)) for n, m in zip(seen.sum(axis=1), (seen & ~whole).sum(axis=1), strict=True)]


def _hidings(loop: Op, row: Expr) -> list[Op]:
    """The selections of a loop's body that hide whole tiles of rows, so that rounds change nothing."""
    return [
        op
        for op in loop.blocks[0].ops
        if op.name == "select"
        and {row, loop.attrs["axis"]} <= set(op.operands[0].type.dims)
        and changes_nothing(loop, op)
    ]


def _holds(value: Value, made: Mapping[Value, Op], at: Mapping[Expr, Any], size: Size) -> Any:
    """A condition on coordinates, or a number of it, at these places; None where it is not made of coordinates."""
    op = made.get(value)
    if op is None:
        return None
    if op.name == "self_index":
        return at.get(op.attrs["dim"])
    if op.name == "scalar":
        said = op.attrs["value"]
        return size(said) if isinstance(said, Expr) else said
    parts = [_holds(v, made, at, size) for v in op.operands]
    if op.name not in _NUMBERS or any(p is None for p in parts):
        return None
    return _NUMBERS[op.name](*parts)
