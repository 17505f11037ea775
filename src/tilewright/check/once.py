"""No operation writes two values to one element: a view that is written has a place for each of its elements.

    %rows = view %y (i 16, j 8) -> [j]
    copy %sums -> %rows                   sixteen values for each element of %y: refused

Views that are only read may repeat elements. So may a view that is written, where the source repeats along the same
axes: all values of an element are the same. Coordinates that only a run tells are left to the interpreters, which
report such a write when it happens.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.check.places import Places
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value
from tilewright.ir.printer import op_text
from tilewright.ir.tensors import RegisterType

MOST = 4096
"""Elements of a view whose places are listed to find two that are the same."""


def check_written_once(op: Op, places: Places) -> None:
    """Raises a ProgramError where an operation writes two values to one element."""
    for target, axis in _repeated(op, places):
        count = target.type.shape[axis]
        raise ProgramError(
            f"{op_text(op)} writes {count} values to each element of %{places.root(target).name}: no coordinate of "
            f"%{target.name} depends on its axis {axis}"
        )
    if op.name == "copy":
        _check_overlap(op, places)


def _repeated(op: Op, places: Places) -> Iterator[tuple[Value, int]]:
    """(a written view, an axis along which it repeats elements and gets different values)."""
    for target, sources in _writes(op):
        if not _is_view(target, places):
            continue
        for axis, distinct in enumerate(_distinct_axes(target, places)):
            extent = target.type.shape[axis]
            if distinct or not isinstance(extent, Const) or extent.value < 2:
                continue
            source_axis = axis + 1 if op.name == "reduce" and axis >= op.attrs["along"] else axis
            differs = sources is None or any(_distinct_axes(v, places)[source_axis] for v in sources)
            if differs or _uses_axis(op, axis):
                yield target, axis


def _writes(op: Op) -> list[tuple[Value, tuple[Value, ...] | None]]:
    """The tensors that an operation writes, each with its source operands; None: all values differ."""
    match op.name:
        case "copy":
            return [(op.operands[1], op.operands[:1])]
        case "map":
            return [(op.operands[0], op.operands[1:])]
        case "mma":
            return [(op.operands[0], None)]
        case "reduce" | "scan":
            half = len(op.operands) // 2
            return [(target, op.operands[:half]) for target in op.operands[half:]]
    return []


def _is_view(value: Value, places: Places) -> bool:
    maker = places.made.get(value)
    return maker is not None and maker.name == "view"


def _distinct_axes(value: Value, places: Places) -> tuple[bool, ...]:
    """For each axis of a tensor, whether its elements along it have different addresses; one element always does."""
    op = places.made.get(value)
    rank = len(value.type.shape)
    if op is None or op.name not in ("view", "bitcast"):
        return (True,) * rank
    inner = _distinct_axes(op.operands[0], places)
    if op.name == "bitcast":
        return inner if len(inner) == rank else (True,) * rank
    used: set[Symbol] = set()
    for distinct, (e, _) in zip(inner, op.attrs["at"], strict=True):
        used |= _symbols(e, places) if distinct else set()
    return tuple(s in used or s.hi == 0 for s in op.attrs["over"])


def _symbols(e: Expr, places: Places) -> frozenset[Symbol]:
    """The symbols that an expression depends on, lets written out."""
    return places.expanded(e).symbols if any(s.definition is not None for s in e.symbols) else e.symbols


def _indices(op: Op) -> list[Expr]:
    """The expressions of coordinates in a map's formula."""
    left, expressions = [op.attrs["formula"]], []
    while left:
        node = left.pop()
        expressions += [node.value] if node.name == "index" else []
        left += node.parts
    return expressions


def _uses_axis(op: Op, axis: int) -> bool:
    """Whether a map's formula depends on the coordinate along an axis."""
    over = op.attrs.get("over") or () if op.name == "map" else ()
    return axis < len(over) and any(over[axis] in e.symbols for e in _indices(op))


def _check_overlap(op: Op, places: Places) -> None:
    """Raises where a copy writes two elements of its source to one place, though every axis moves it."""
    source, target = op.operands
    if places.may_lie_outside(target) or _is_plain(target, places):
        return
    shape = [n.value if isinstance(n, Const) else 0 for n in target.type.shape]
    size = int(np.prod(shape))
    if not 1 < size <= MOST or isinstance(places.root(target).type, RegisterType):
        return
    coordinates = tuple(np.indices(shape))
    _, offsets = places.offsets(target, coordinates)
    _, first, which = np.unique(offsets.reshape(-1), return_index=True, return_inverse=True)
    if len(first) == size:
        return
    values = np.arange(size)
    if not isinstance(places.root(source).type, RegisterType) and not places.may_lie_outside(source):
        values = places.offsets(source, coordinates)[1].reshape(-1)
    other = np.flatnonzero(values != values[first][which.reshape(-1)])
    if len(other):
        pair = (int(first[which.reshape(-1)[other[0]]]), int(other[0]))
        here, there = (tuple(int(i) for i in np.unravel_index(n, shape)) for n in pair)
        raise ProgramError(
            f"{op_text(op)} writes two values to one element of %{places.root(target).name}: elements {here} and "
            f"{there} of %{target.name} are the same"
        )


def _is_plain(value: Value, places: Places) -> bool:
    """Whether each axis of all views on the way to a tensor has a coordinate to itself."""
    op = places.made.get(value)
    while op is not None and op.name in ("view", "bitcast"):
        if op.name == "view":
            axes = {s for s in op.attrs["over"] if s.hi != 0}
            alone = {s for e, _ in op.attrs["at"] for s in e.symbols & axes if not (e - s).symbols & axes}
            if alone != axes:
                return False
        op = places.made.get(op.operands[0])
    return True
