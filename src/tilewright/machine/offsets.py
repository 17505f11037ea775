"""Where each element of a box lies in memory, as a table whose entries hold sizes and rounds that are not known yet.

The offset of an element is a sum: what does not depend on the element, and tables of integers times weights, which are
1 or sizes that are open. So two elements can be compared for all rounds and sizes at once; where an open size decides,
the answer is a `Condition`.
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
    """A number for each element of the box, first dimension fastest: `base` + sum of weight * integers."""

    base: Expr
    parts: dict[Expr, Array]

    def at(self, entries: tuple[int, ...]) -> Expr:
        """The number of an element whose integers are these."""
        return weighted_sum(0, [(self.base, 1), *zip(self.parts, map(int, entries), strict=True)])

    def rows(self, elements: Array) -> list[tuple[int, ...]]:
        """The different integers of these elements, one for each weight."""
        if not self.parts:
            return [()]
        stacked = np.stack([table[elements].reshape(-1) for table in self.parts.values()], axis=1)
        return [tuple(map(int, row)) for row in np.unique(stacked, axis=0)]


def table(e: Expr, axes: tuple[Symbol, ...]) -> Table | None:
    """An expression of the box's axes and of anything else, as a table; None where a term mixes them inside.

    >>> from tilewright.algebra import index, symbol
    >>> i, j, m, K = index("i", 2), index("j", 3), index("m", 9), symbol("K", 1)
    >>> found = table((8*m + i) * K + j // 2 + 5, (i, j))
    >>> found.base, {str(weight): integers.tolist() for weight, integers in found.parts.items()}
    (<8*K*m + 5>, {'K': [0, 1, 0, 1, 0, 1], '1': [0, 0, 0, 0, 1, 1]})
    >>> table((8*m + i) // 5, (i, j)) is None
    True
    """
    extents = [int(axis.hi) + 1 for axis in axes]
    values = dict(zip(axes, np.indices(extents).reshape(len(axes), *extents), strict=True))
    own = set(axes)
    constant, terms = linear(e)
    rest: dict[Expr, int] = {}
    parts: dict[Expr, Array] = {}
    for term, count in terms:
        inside = [f for f in factors_of(term) if f.symbols & own]
        if not inside:
            rest[term] = count
            continue
        if any(not f.symbols <= own for f in inside):
            return None
        weight = product_node([f for f in factors_of(term) if not f.symbols & own])
        found = np.broadcast_to(evaluate(product_node(inside), values) * count, extents).reshape(-1, order="F")
        parts[weight] = parts[weight] + found if weight in parts else found
    return Table(total(constant, rest), parts)


@dataclass(frozen=True)
class Offsets:
    """The elements of a box of a view: the table of each coordinate, and of the offset before the swizzle."""

    view: MemoryView
    coordinates: tuple[Table, ...]
    offset: Table

    @classmethod
    def of(cls, view: MemoryView, axes: tuple[Symbol, ...]) -> Offsets:
        """Those of a view; refused where an element's place cannot be told apart from the round."""
        view = view.joined(axes)
        found = []
        for coordinate in view.coordinates:
            made = table(coordinate, axes)
            if made is None:
                raise Refused(f"the coordinate {coordinate} of {view.name} divides an axis of the box and what varies")
            found.append(made)
        whole = table(view.offset(), axes)
        assert whole is not None  # it is made of the coordinates
        return cls(view, tuple(found), whole)

    def apart(self, some: Array, others: Array, steps: Array, reason: str) -> Iterator[Condition]:
        """That elements `some` lie so many places behind `others`, whatever the rounds are."""
        differences = [t[some] - t[others] for t in self.offset.parts.values()]
        shape = np.broadcast_shapes(some.shape, others.shape, np.shape(steps))
        stacked = np.stack([np.broadcast_to(d, shape).reshape(-1) for d in (-np.asarray(steps), *differences)], axis=1)
        for row in np.unique(stacked, axis=0):
            wrong = weighted_sum(int(row[0]), zip(self.offset.parts, map(int, row[1:]), strict=True))
            if isinstance(wrong, Const):
                if wrong.value:
                    raise Refused(reason)
                continue
            yield Condition(eq(wrong, 0), reason)

    def aligned(self, elements: Array, count: int, size: int) -> Iterator[Condition]:
        """That these elements lie at multiples of `count`: each dimension's step on its own."""
        for d, (coordinate, stride) in enumerate(zip(self.coordinates, self.view.strides, strict=True)):
            for row in coordinate.rows(elements):
                place = coordinate.at(row) * stride
                reason = (
                    f"{self.view.name} is moved from element {place} along dimension {d} on, which is not always at a "
                    f"multiple of {count * size} bytes"
                )
                if not multiple(place, count, reason):
                    continue
                # a stride that is open is asked to be a multiple; one that is a number makes up for the coordinate
                yield from multiple(stride if not isinstance(stride, Const) else place, count, reason)
                break

    def inside(self, count: int, reason: str) -> Iterator[Condition]:
        """That no element lies outside the tensor; where tiles of `count` cover it, its extent has to be whole."""
        self.need_no_ends(reason)
        for d, (coordinate, extent) in enumerate(zip(self.view.coordinates, self.view.shape, strict=True)):
            if not self.view.loose[d] or (is_nonneg(coordinate) and is_nonneg(extent - 1 - coordinate)):
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
        """Refuses a view that ends before its tensor does."""
        if self.view.ends:
            raise Refused(f"a view of {self.view.name} ends where {self.view.ends[0]} is below 0: {reason}")

    def keeps_runs(self, count: int) -> None:
        """Refuses a swizzle that tears aligned runs apart."""
        swizzle = self.view.swizzle
        if swizzle is not None and (1 << swizzle.base) % count:
            raise Refused(f"the swizzle {swizzle} of {self.view.name} tears runs of {count} elements apart")
