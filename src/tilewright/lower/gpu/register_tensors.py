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
class RegisterValues:
    """Some values of one fragment, with tables over [thread, value]: `coordinates` of each element in its tensor, and
    `first`, true for the one thread and value that stores a repeated element.

    `columns` are the indices of these values in the fragment, in order.
    """

    fragment: Value
    columns: tuple[int, ...]
    coordinates: tuple[Array, ...]
    first: Array

    @property
    def whole(self) -> bool:
        """True if these are all values of `fragment`, in order."""
        (_, count) = self.fragment.type.shape
        return self.columns == tuple(range(int(count)))

    def ids(self, shape: Sequence[int]) -> Array:
        """Return a table over [thread, value] of the row-major index of each element in its tensor. `shape` is the
        shape of the tensor.
        """
        return row_major_indices(self.coordinates, shape) + np.zeros(self.first.shape, np.int64)

    def selected(self, columns: Array, coordinates: tuple[Array, ...]) -> RegisterValues:
        """Return some of these values as new RegisterValues: those numbered `columns`, an array of indices into
        `self.columns`, in this order. `coordinates` are the new coordinates of their elements, such as those in a view
        of the tensor.
        """
        chosen = tuple(self.columns[int(c)] for c in columns)
        return RegisterValues(self.fragment, chosen, coordinates, self.first[:, columns])


@dataclass(frozen=True, eq=False)
class RegisterTensor:
    """A tensor in registers, distributed over lanes: together its `pieces` hold every element."""

    dtype: DType
    shape: tuple[int, ...]
    pieces: tuple[RegisterValues, ...]

    def ids(self, piece: RegisterValues) -> Array:
        """Return a table over [thread, value] of the row-major index, in this tensor, of each element of `piece`."""
        return piece.ids(self.shape)


def row_major_indices(coordinates: tuple[Array, ...], shape: Sequence[int]) -> Array:
    """Return an array of the row-major indices, in a tensor of this `shape`, of the elements at `coordinates` (one
    array per dimension).

        >>> row_major_indices((np.array([1, 0]), np.array([2, 4])), (2, 5))
        array([7, 4])
    """
    total: Any = 0
    for c, n in zip(coordinates, shape, strict=True):
        total = total * n + c
    return np.asarray(total)


def matching_columns(wanted: Array, available: Array) -> Array | None:
    """Return, for each column of the table `wanted`, the index of an equal column of the table `available`; None if a
    column has no equal. Tables are over [thread, value], so that equal columns are the same elements in every thread.

    >>> matching_columns(np.array([[2, 0], [3, 1]]), np.array([[0, 2], [1, 3]]))
    array([1, 0])
    """
    columns = {column.tobytes(): i for i, column in reversed(list(enumerate(np.ascontiguousarray(available.T))))}
    matches = [columns.get(column.tobytes(), -1) for column in np.ascontiguousarray(wanted.T)]
    return None if -1 in matches else np.asarray(matches)


def as_expression(values: Array, axis: Expr) -> Expr | None:
    """Return an expression of the symbol `axis` that equals values[axis]. Return None if there is none: the values must
    be a constant plus strides times digits (mixed-radix parts) of the index.

    >>> from tilewright.algebra.expr import index
    >>> print(as_expression(np.array([5, 6, 5, 6, 9, 10, 9, 10]), index("n", 8)))
    4*(n//4) + n%2 + 5
    >>> print(as_expression(np.array([0, 2, 4, 1, 3, 5]), index("n", 6)))
    2*(n%3) + n//3
    """
    moved = values - values[0]
    count, stride, terms = len(values), 1, []
    while stride < count:
        step, radix = int(moved[stride]), 1
        for count_so_far in range(2, count // stride + 1):
            if moved[stride * (count_so_far - 1)] != step * (count_so_far - 1):
                break
            if count % (stride * count_so_far) == 0:
                radix = count_so_far
        if radix == 1:
            return None
        if step:
            terms.append(((axis // stride) % radix, step, stride, radix))
        stride *= radix
    number = np.arange(count)
    if (sum((number // s % r * c for _, c, s, r in terms), np.zeros(count, np.int64)) != moved).any():
        return None
    return weighted_sum(int(values[0]), [(e, c) for e, c, _, _ in terms])


def table_expression(table: Array, lanes: int, wave: Expr, lane: Expr, value: Expr) -> Expr:
    """Return an expression of the symbols `wave`, `lane` and `value` that equals the entries of `table`, an array over
    [thread, value]. The thread number is `wave` * `lanes` + `lane`. Raise a ProgramError if no sum of strides times
    digits (mixed-radix parts) of the three symbols equals the table.
    """
    waves = table.shape[0] // lanes
    cube = table.reshape(waves, lanes, table.shape[1])
    parts = (cube[:, 0, 0], cube[0, :, 0], cube[0, 0, :])
    start = int(cube[0, 0, 0])
    joined = parts[0][:, None, None] + parts[1][None, :, None] + parts[2][None, None, :] - 2 * start
    digits = [as_expression(p - start, axis) for p, axis in zip(parts, (wave, lane, value), strict=True)]
    if (joined != cube).any() or any(e is None for e in digits):
        raise ProgramError("a distribution is not a sum of digits of wave, lane and value: no address says it")
    return weighted_sum(start, [(e, 1) for e in digits if e is not None])


def threads_that_store(piece: RegisterValues, lanes: int, wave: Expr, lane: Expr) -> tuple[Array, tuple[Expr, ...]]:
    """Return (values, conditions) with which exactly one thread stores each element of `piece`, although several
    threads may hold it.

    `values` is an array of the indices of the values to store. Lane `lane` of wave `wave` stores these values if all
    `conditions`, expressions of these two symbols, hold; () if no element is repeated. A wave has `lanes` lanes. Raise
    a ProgramError if no conditions on bits of the thread number select one thread per element.
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


def conjunction(conditions: Sequence[Expr]) -> Expr | None:
    """Return one condition that holds exactly if all `conditions` hold; None if it is constantly true, as for ()."""
    every = all_of(*conditions)
    return None if isinstance(every, Const) and every.value else every
