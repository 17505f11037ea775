"""Tables of the offset of each element of a box, for all loop iterations and open sizes at once.

The offset of an element is a sum: a base that does not depend on the element, and tables of integers times weights,
which are 1 or symbolic sizes. So two elements can be compared for all iterations and sizes at once; if an open size
decides, the answer is a `Condition`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.algebra import ceildiv, eq, evaluate, is_nonneg
from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.algebra.expr_rules import factors_of, linear, product_node, total, weighted_sum
from tilewright.machine.copy import Refused
from tilewright.machine.views import Condition, MemoryView, multiple

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Table:
    """A number for each element of a box (first dimension fastest): `base` + sum of weight * table of integers.

    `parts` maps each weight, an expression, to the integers of all elements.
    """

    base: Expr
    parts: dict[Expr, Array]

    def at(self, entries: tuple[int, ...]) -> Expr:
        """Return `self.base` + the sum of weight * entry, an expression: the number that the table has for one element
        of the box.

        `self.parts` is {weight: integers of all elements}. `entries` are the element's integers, in the order of
        `self.parts`.
        """
        return weighted_sum(0, [(self.base, 1), *zip(self.parts, map(int, entries), strict=True)])

    def rows(self, elements: Array) -> list[tuple[int, ...]]:
        """Return the different tuples of integers that the given elements have in `self.parts`, sorted.

        `self.parts` is {weight: integers of all elements}; a tuple has one integer for each weight. `elements` is an
        array of element numbers of the box, first dimension fastest. If `self.parts` is empty, the result is [()].
        """
        if not self.parts:
            return [()]
        stacked = np.stack([table[elements].reshape(-1) for table in self.parts.values()], axis=1)
        return [tuple(map(int, row)) for row in np.unique(stacked, axis=0)]


def table(e: Expr, axes: tuple[Symbol, ...]) -> Table | None:
    """Return the values of the expression `e` at all elements of a box with these `axes`, as a `Table` of integers.

    Return None if a factor mixes axes with other symbols, such as (m + i) // 5 with axis i and loop variable m.

    >>> from tilewright.algebra import index, symbol
    >>> i, j, m, K = index("i", 2), index("j", 3), index("m", 9), symbol("K", 1)
    >>> offsets = table((8*m + i) * K + j // 2 + 5, (i, j))
    >>> offsets.base, {str(weight): integers.tolist() for weight, integers in offsets.parts.items()}
    (<8*K*m + 5>, {'K': [0, 1, 0, 1, 0, 1], '1': [0, 0, 0, 0, 1, 1]})
    >>> table((8*m + i) // 5, (i, j)) is None
    True
    """
    extents = [int(axis.hi) + 1 for axis in axes]
    values = dict(zip(axes, np.indices(extents).reshape(len(axes), *extents), strict=True))
    axis_set = set(axes)
    constant, terms = linear(e)
    rest: dict[Expr, int] = {}
    parts: dict[Expr, Array] = {}
    for term, count in terms:
        inside = [f for f in factors_of(term) if f.symbols & axis_set]
        if not inside:
            rest[term] = count
            continue
        if any(not f.symbols <= axis_set for f in inside):
            return None
        weight = product_node([f for f in factors_of(term) if not f.symbols & axis_set])
        integers = np.broadcast_to(evaluate(product_node(inside), values) * count, extents).reshape(-1, order="F")
        parts[weight] = parts[weight] + integers if weight in parts else integers
    return Table(total(constant, rest), parts)


@dataclass(frozen=True)
class Offsets:
    """Tables for a box of a view: one for each coordinate, and one for the offset before the swizzle."""

    view: MemoryView
    coordinates: tuple[Table, ...]
    offset: Table

    @classmethod
    def of(cls, view: MemoryView, axes: tuple[Symbol, ...]) -> Offsets:
        """Return the Offsets of `view` for a box with these `axes`: a table of each coordinate and one of the offset.

        Dimensions of the view are joined first where possible (`MemoryView.joined`). Raise Refused if a coordinate
        divides (// or %) a sum of an axis and of other symbols, such as (m + i) // 5 with axis i.
        """
        view = view.joined(axes)
        tables = []
        for coordinate in view.coordinates:
            coordinate_table = table(coordinate, axes)
            if coordinate_table is None:
                raise Refused(f"the coordinate {coordinate} of {view.name} divides an axis of the box and what varies")
            tables.append(coordinate_table)
        offset_table = table(view.offset(), axes)
        assert offset_table is not None  # the coordinates have tables, so their sum has one
        return cls(view, tuple(tables), offset_table)

    def require_steps(self, some: Array, others: Array, steps: Array, reason: str) -> Iterator[Condition]:
        """Yield the conditions on open sizes (known only at the call) under which elements have given distances in
        memory.

        `some` and `others` are arrays of element numbers of the box; offset[some] - offset[others] must equal `steps`,
        in elements. The conditions cover all loop iterations. `reason` is the message for a false condition. Raise
        Refused with this message, while the conditions are iterated, if a distance is constant and wrong. It is not
        checked whether the conditions contradict each other.
        """
        differences = [t[some] - t[others] for t in self.offset.parts.values()]
        shape = np.broadcast_shapes(some.shape, others.shape, np.shape(steps))
        stacked = np.stack([np.broadcast_to(d, shape).reshape(-1) for d in (-np.asarray(steps), *differences)], axis=1)
        for row in np.unique(stacked, axis=0):
            error = weighted_sum(int(row[0]), zip(self.offset.parts, map(int, row[1:]), strict=True))
            if isinstance(error, Const):
                if error.value:
                    raise Refused(reason)
                continue
            yield Condition(eq(error, 0), reason)

    def aligned(self, elements: Array, count: int, size: int) -> Iterator[Condition]:
        """Yield the conditions on open sizes (known only at the call) under which the offsets of `elements` are
        multiples of `count`.

        `elements` are element numbers of the box; offsets count elements. In each dimension, coordinate * stride must
        be a multiple of `count`; a symbolic stride must itself be one. `size` is the bytes of an element, for the
        message.
        """
        for d, (coordinate, stride) in enumerate(zip(self.coordinates, self.view.strides, strict=True)):
            for row in coordinate.rows(elements):
                offset = coordinate.at(row) * stride
                reason = (
                    f"{self.view.name} is moved from element {offset} along dimension {d} on, which is not always at a "
                    f"multiple of {count * size} bytes"
                )
                if not multiple(offset, count, reason):
                    continue
                # a symbolic stride must be a multiple; with a constant stride, coordinate * stride must be
                yield from multiple(stride if not isinstance(stride, Const) else offset, count, reason)
                break

    def inside(self, count: int, reason: str) -> Iterator[Condition]:
        """Yield the conditions on open sizes (known only at the call) under which all elements of the box are in bounds
        of the view.

        A dimension gives no condition if the view says that it cannot be out of bounds (`may_leave` is False), or if it
        is provably in bounds. A dimension that is out of bounds only because its extent is rounded up to `count` gives
        the condition that the extent is a multiple of `count`; for a constant extent that is no multiple, this is the
        constant 0.

        Raise Refused, while the conditions are iterated, if elements may be out of bounds in any other way, or if the
        view has `ends` (bounds inside those of its tensor). The message ends in `reason`.
        """
        self.need_no_ends(reason)
        for d, (coordinate, extent) in enumerate(zip(self.view.coordinates, self.view.shape, strict=True)):
            if not self.view.may_leave[d] or (is_nonneg(coordinate) and is_nonneg(extent - 1 - coordinate)):
                continue
            covered = ceildiv(extent, count) * count
            if not is_nonneg(coordinate) or not is_nonneg(covered - 1 - coordinate):
                raise Refused(f"dimension {d} of {self.view.name} may lie outside: {reason}")
            yield from multiple(
                extent,
                count,
                f"{self.view.name} has {extent} elements in dimension {d}, no multiple of {count}: {reason}",
            )

    def need_no_ends(self, reason: str) -> None:
        """Raise Refused if the view has `ends`, that is, bounds inside the bounds of its tensor. The message ends in
        `reason`.
        """
        if self.view.ends:
            raise Refused(f"a view of {self.view.name} ends where {self.view.ends[0]} is below 0: {reason}")

    def require_whole_runs(self, count: int) -> None:
        """Raise Refused if the view's swizzle separates elements of a run: `count` contiguous elements that begin at a
        multiple of `count`.
        """
        swizzle = self.view.swizzle
        if swizzle is not None and (1 << swizzle.base) % count:
            raise Refused(f"the swizzle {swizzle} of {self.view.name} tears runs of {count} elements apart")
