"""Check that no operation writes two values to one element: a written view must have distinct elements.

    %rows = view %y (i 16, j 8) -> [j]
    copy %sums -> %rows                   sixteen values for each element of %y: refused

Views that are only read may repeat elements. So may a written view if the source repeats along the same axes: then all
values of an element are equal. Coordinates known only at run time are left to the interpreters, which report such a
write when it happens.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.analysis.views import Places
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value
from tilewright.ir.printer import op_text
from tilewright.ir.tensors import RegisterType

MOST = 4096
"""The most elements of a view whose offsets are listed to find two that are equal."""


def check_written_once(op: Op, places: Places) -> None:
    """Raise a ProgramError if the operation `op` writes two different values to one element of a tensor, through a view
    that repeats elements.

    `places` finds the tensor that a view is a part of. Coordinates that are known only at run time are not checked.
    Overlapping elements are found only for copies, and only in views of at most `MOST` elements.
    """
    for target, axis in _repeated_writes(op, places):
        count = target.type.shape[axis]
        raise ProgramError(
            f"{op_text(op)} writes {count} values to each element of %{places.root(target).name}: no coordinate of "
            f"%{target.name} depends on its axis {axis}"
        )
    if op.name == "copy":
        _check_overlap(op, places)


def _repeated_writes(op: Op, places: Places) -> Iterator[tuple[Value, int]]:
    """Yield (written view, axis number) for each error of the operation `op`: along that axis the view always has the
    same element, but the values that `op` writes may differ.

    Axes of extent 1, and axes of which the extent is not constant, are skipped. `places` finds the tensor that a view
    is a part of.
    """
    for target, sources in _targets_and_sources(op):
        if not _is_view(target, places):
            continue
        for axis, is_distinct in enumerate(_distinct_axes(target, places)):
            extent = target.type.shape[axis]
            if is_distinct or not isinstance(extent, Const) or extent.value < 2:
                continue
            source_axis = axis + 1 if op.name == "reduce" and axis >= op.attrs["along"] else axis
            sources_differ = sources is None or any(_distinct_axes(v, places)[source_axis] for v in sources)
            if sources_differ or _uses_axis(op, axis):
                yield target, axis


def _targets_and_sources(op: Op) -> list[tuple[Value, tuple[Value, ...] | None]]:
    """Return [(tensor that the operation `op` writes, operands from which the written values come)]; [] for operations
    other than `copy`, `map`, `mma`, `reduce` and `scan`.

    The operands are None for an `mma`: the values that it writes differ along all axes.
    """
    match op.name:
        case "copy":
            return [(op.operands[1], op.operands[:1])]
        case "map":
            return [(op.operands[0], op.operands[1:])]
        case "mma":
            return [(op.operands[0], None)]
        case "reduce" | "scan":
            count = len(op.operands) // 2
            return [(target, op.operands[:count]) for target in op.operands[count:]]
    return []


def _is_view(value: Value, places: Places) -> bool:
    """True if `value` is the result of a `view` operation. `places` maps values to the operations that make them."""
    maker = places.makers.get(value)
    return maker is not None and maker.name == "view"


def _distinct_axes(value: Value, places: Places) -> tuple[bool, ...]:
    """Return a tuple of bools, one for each axis of the tensor or view `value`: True if the address of an element
    depends on its index along the axis.

    Axes of extent 1 count as True. So do all axes of a tensor that is no view, and those of a bitcast that changes the
    number of axes. `places` maps values to the operations that make them.
    """
    op = places.makers.get(value)
    rank = len(value.type.shape)
    if op is None or op.name not in ("view", "bitcast"):
        return (True,) * rank
    base_distinct = _distinct_axes(op.operands[0], places)
    if op.name == "bitcast":
        return base_distinct if len(base_distinct) == rank else (True,) * rank
    address_symbols: set[Symbol] = set()
    for is_distinct, (e, _) in zip(base_distinct, op.attrs["at"], strict=True):
        address_symbols |= _symbols(e, places) if is_distinct else set()
    return tuple(s in address_symbols or s.hi == 0 for s in op.attrs["over"])


def _symbols(e: Expr, places: Places) -> frozenset[Symbol]:
    """Return the symbols on which the expression `e` depends, after names that `let` defines are replaced by their
    values. `places` knows these values.
    """
    return places.expanded(e).symbols if any(s.definition is not None for s in e.symbols) else e.symbols


def _indices(op: Op) -> list[Expr]:
    """Return the expressions in the `index` nodes of the formula of `op`, a `map` operation: indices used as data.

    For the formula x[i] * (i + 1) it is [i + 1]; the i in x[i] does not count.
    """
    pending, expressions = [op.attrs["formula"]], []
    while pending:
        node = pending.pop()
        expressions += [node.value] if node.name == "index" else []
        pending += node.parts
    return expressions


def _uses_axis(op: Op, axis: int) -> bool:
    """True if the operation `op` is a `map` whose formula uses the index along axis number `axis` as a number. False
    for all other operations.
    """
    over = op.attrs.get("over") or () if op.name == "map" else ()
    return axis < len(over) and any(over[axis] in e.symbols for e in _indices(op))


def _check_overlap(op: Op, places: Places) -> None:
    """Raise a ProgramError if the `copy` operation `op` writes different source elements to one element of its target.

    The offsets of all elements are compared. Source elements in registers, or possibly out of bounds, count as
    different. Targets in registers, targets with more than `MOST` elements or without constant extents, and targets
    that may be out of bounds are not checked.
    """
    source, target = op.operands
    if places.may_lie_outside(target) or _has_separate_axes(target, places):
        return
    shape = [n.value if isinstance(n, Const) else 0 for n in target.type.shape]
    size = int(np.prod(shape))
    if not 1 < size <= MOST or isinstance(places.root(target).type, RegisterType):
        return
    coordinates = tuple(np.indices(shape))
    _, offsets = places.offsets(target, coordinates)
    _, first_writer, address_number = np.unique(offsets.reshape(-1), return_index=True, return_inverse=True)
    if len(first_writer) == size:
        return
    source_ids = np.arange(size)
    if not isinstance(places.root(source).type, RegisterType) and not places.may_lie_outside(source):
        source_ids = places.offsets(source, coordinates)[1].reshape(-1)
    conflicting = np.flatnonzero(source_ids != source_ids[first_writer][address_number.reshape(-1)])
    if len(conflicting):
        pair = (int(first_writer[address_number.reshape(-1)[conflicting[0]]]), int(conflicting[0]))
        element, other_element = (tuple(int(i) for i in np.unravel_index(n, shape)) for n in pair)
        raise ProgramError(
            f"{op_text(op)} writes two values to one element of %{places.root(target).name}: elements {element} and "
            f"{other_element} of %{target.name} are the same"
        )


def _has_separate_axes(value: Value, places: Places) -> bool:
    """True if no view between `value` and its tensor can repeat an element; also if `value` is no view.

    In each of these views, every axis of an extent above 1 must have a coordinate that is the index along this axis
    plus terms without the other axes. `places` maps values to the operations that make them.
    """
    op = places.makers.get(value)
    while op is not None and op.name in ("view", "bitcast"):
        if op.name == "view":
            axes = {s for s in op.attrs["over"] if s.hi != 0}
            separate = {s for e, _ in op.attrs["at"] for s in e.symbols & axes if not (e - s).symbols & axes}
            if separate != axes:
                return False
        op = places.makers.get(op.operands[0])
    return True
