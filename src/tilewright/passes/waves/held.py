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
    """Values of a fragment: tables over [thread, value] of element coordinates, and of who stores an element.

    `columns` are the fragment's values that the tables describe, in order.
    """

    fragment: Value
    columns: tuple[int, ...]
    coordinates: tuple[Array, ...]
    first: Array

    @property
    def whole(self) -> bool:
        """True if it has all values of the fragment, in order."""
        (_, count) = self.fragment.type.shape
        return self.columns == tuple(range(int(count)))

    def ids(self, shape: Sequence[int]) -> Array:
        """Return a table of the flat number of each element in a tensor of that shape, last dimension fastest."""
        return numbered(self.coordinates, shape) + np.zeros(self.first.shape, np.int64)

    def taken(self, columns: Array, coordinates: tuple[Array, ...]) -> Piece:
        """Return some of its values, with other coordinates (as elements of a view)."""
        chosen = tuple(self.columns[int(c)] for c in columns)
        return Piece(self.fragment, chosen, coordinates, self.first[:, columns])


@dataclass(frozen=True, eq=False)
class Held:
    """A register tensor; its pieces hold every element."""

    dtype: DType
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    def ids(self, piece: Piece) -> Array:
        """Return a table of the flat number of each element of a piece (some values of a fragment), last dimension
        fastest.
        """
        return piece.ids(self.shape)


def numbered(coordinates: tuple[Array, ...], shape: Sequence[int]) -> Array:
    """Return coordinates as one flat number, last dimension fastest."""
    total: Any = 0
    for c, n in zip(coordinates, shape, strict=True):
        total = total * n + c
    return np.asarray(total)


def matching(wanted: Array, there: Array) -> Array | None:
    """Return for each column of `wanted` the number of one of `there` that is equal in every thread; None if one is
    missing.

    >>> matching(np.array([[2, 0], [3, 1]]), np.array([[0, 2], [1, 3]]))
    array([1, 0])
    """
    columns = {column.tobytes(): i for i, column in reversed(list(enumerate(np.ascontiguousarray(there.T))))}
    matches = [columns.get(column.tobytes(), -1) for column in np.ascontiguousarray(wanted.T)]
    return None if -1 in matches else np.asarray(matches)


def along(values: Array, axis: Expr) -> Expr | None:
    """Return an expression of `axis` that gives values[axis]; None if the values are no sum of digits of the index.

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
    """Return a table over [thread, value] as an expression of wave, lane and value; raise a ProgramError if it is
    none.
    """
    waves = table.shape[0] // lanes
    cube = table.reshape(waves, lanes, table.shape[1])
    parts = (cube[:, 0, 0], cube[0, :, 0], cube[0, 0, :])
    start = int(cube[0, 0, 0])
    joined = parts[0][:, None, None] + parts[1][None, :, None] + parts[2][None, None, :] - 2 * start
    digits = [along(p - start, axis) for p, axis in zip(parts, (wave, lane, value), strict=True)]
    if (joined != cube).any() or any(e is None for e in digits):
        raise ProgramError("a distribution is not a sum of digits of wave, lane and value: no address says it")
    return weighted_sum(start, [(e, 1) for e in digits if e is not None])


def storing(piece: Piece, lanes: int, wave: Expr, lane: Expr) -> tuple[Array, tuple[Expr, ...]]:
    """Return (columns to store, conditions on wave and lane) so that each repeated element is stored once.

    Raise a ProgramError if elements are repeated irregularly.
    """
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
    """Return the conjunction of conditions; None if there is none, or it always holds."""
    conjunction = all_of(*conditions)
    return None if isinstance(conjunction, Const) and conjunction.value else conjunction
