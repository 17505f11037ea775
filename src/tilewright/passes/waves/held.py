"""Register tensors over the lanes of waves: which fragment holds which elements, as tables and as expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.algebra.expr import Const, Expr
from tilewright.algebra.expr_conditions import all_of
from tilewright.algebra.expr_rules import weighted_sum
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Piece:
    """Values of a fragment: of each [thread, value], the element's coordinates, and whether it is the one to store.

    `columns` are the fragment's values that count, in the order of the tables.
    """

    fragment: Value
    columns: tuple[int, ...]
    coordinates: tuple[Array, ...]
    first: Array

    @property
    def whole(self) -> bool:
        """Whether it is the fragment as it stands."""
        (_, count) = self.fragment.type.shape
        return self.columns == tuple(range(int(count)))

    def ids(self, shape: Sequence[int]) -> Array:
        """The number of each element in a tensor of that shape, last dimension fastest."""
        return numbered(self.coordinates, shape) + np.zeros(self.first.shape, np.int64)

    def taken(self, columns: Array, coordinates: tuple[Array, ...]) -> Piece:
        """Some of its values, seen as elements of a view."""
        chosen = tuple(self.columns[int(c)] for c in columns)
        return Piece(self.fragment, chosen, coordinates, self.first[:, columns])


@dataclass(frozen=True, eq=False)
class Held:
    """A register tensor: its pieces hold every element."""

    dtype: DType
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    def ids(self, piece: Piece) -> Array:
        """The number of each element of a piece, last dimension fastest."""
        return piece.ids(self.shape)


def numbered(coordinates: tuple[Array, ...], shape: Sequence[int]) -> Array:
    """Coordinates as one number, last dimension fastest."""
    total: Any = 0
    for c, n in zip(coordinates, shape, strict=True):
        total = total * n + c
    return np.asarray(total)


def matching(wanted: Array, there: Array) -> Array | None:
    """For each column of `wanted`, one of `there` with the same elements in every thread; None: there is none.

    >>> matching(np.array([[2, 0], [3, 1]]), np.array([[0, 2], [1, 3]]))
    array([1, 0])
    """
    columns = {column.tobytes(): i for i, column in reversed(list(enumerate(np.ascontiguousarray(there.T))))}
    found = [columns.get(column.tobytes(), -1) for column in np.ascontiguousarray(wanted.T)]
    return None if -1 in found else np.asarray(found)


def along(values: Array, axis: Expr) -> Expr | None:
    """The numbers values[0], values[1], ... as an expression of the axis that counts them; None: no digits say so.

    >>> from tilewright.algebra.expr import index
    >>> print(along(np.array([5, 6, 5, 6, 9, 10, 9, 10]), index("n", 8)))
    4*(n//4) + n%2 + 5
    >>> print(along(np.array([0, 2, 4, 1, 3, 5]), index("n", 6)))
    2*(n%3) + n//3
    """
    moved = values - values[0]
    count, stride, terms = len(values), 1, []
    while stride < count:
        step, radix = int(moved[stride]), 1
        for more in range(2, count // stride + 1):
            if moved[stride * (more - 1)] != step * (more - 1):
                break
            if count % (stride * more) == 0:
                radix = more
        if radix == 1:
            return None
        if step:
            terms.append(((axis // stride) % radix, step, stride, radix))
        stride *= radix
    number = np.arange(count)
    if (sum((number // s % r * c for _, c, s, r in terms), np.zeros(count, np.int64)) != moved).any():
        return None
    return weighted_sum(int(values[0]), [(e, c) for e, c, _, _ in terms])


def place(table: Array, lanes: int, wave: Expr, lane: Expr, value: Expr) -> Expr:
    """A table over [thread, value] as an expression of wave, lane and value."""
    waves = table.shape[0] // lanes
    cube = table.reshape(waves, lanes, table.shape[1])
    parts = (cube[:, 0, 0], cube[0, :, 0], cube[0, 0, :])
    start = int(cube[0, 0, 0])
    joined = parts[0][:, None, None] + parts[1][None, :, None] + parts[2][None, None, :] - 2 * start
    found = [along(p - start, axis) for p, axis in zip(parts, (wave, lane, value), strict=True)]
    if (joined != cube).any() or any(e is None for e in found):
        raise ProgramError("a distribution is not a sum of digits of wave, lane and value: no address says it")
    return weighted_sum(start, [(e, 1) for e in found if e is not None])


def storing(piece: Piece, lanes: int, wave: Expr, lane: Expr) -> tuple[Array, tuple[Expr, ...]]:
    """(which columns are stored, conditions on wave and lane), so that of repeated elements each is stored once."""
    first = piece.first
    columns = np.nonzero(first.any(axis=0))[0]
    table = first[:, columns]
    if (table != table[:, :1]).any():
        raise ProgramError("a distribution repeats elements in some values and not in others: who stores is not clear")
    wanted = table[:, 0]
    if wanted.all():
        return columns, ()
    threads = np.arange(len(wanted))
    conditions: list[Expr] = []
    bit, mask = 1, np.ones(len(wanted), bool)
    while bit < len(wanted):
        if not wanted[(threads & bit) != 0].any():
            mask &= (threads & bit) == 0
            source = lane // bit if bit < lanes else wave // (bit // lanes)
            conditions.append(source % 2 < 1)
        bit *= 2
    if (mask != wanted).any():
        raise ProgramError("a distribution repeats elements irregularly: who stores is no condition on bits")
    return columns, tuple(conditions)


def both(conditions: Sequence[Expr]) -> Expr | None:
    """All of the conditions in one; None: there are none."""
    found = all_of(*conditions)
    return None if isinstance(found, Const) and found.value else found
