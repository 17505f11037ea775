"""Forms of a register tensor on CPUs: vectors, fragments, tile registers, or plain memory if none fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.algebra.expr import Expr, as_expr
from tilewright.analysis.distribution import Placement
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType
from tilewright.machine import MultiplyAtom, OpaqueOperand, RegisterOperand


@dataclass(frozen=True)
class Vectors:
    """A tensor as vector registers along its last dimension: `registers[outer..., block]` has `lanes` contiguous
    elements.
    """

    dtype: DType
    shape: tuple[int, ...]
    lanes: int
    registers: dict[tuple[int, ...], Value]

    def coordinates(self, key: tuple[int, ...], lane: Expr) -> tuple[Expr, ...]:
        """Return the tensor coordinates of the element in lane `lane` of the register with index `key`: with 8 lanes,
        key (2, 1) and lane l -> (2, 8 + l).
        """
        return (*(as_expr(k) for k in key[:-1]), self.lanes * key[-1] + lane)

    def has_same_layout(self, other: Vectors) -> bool:
        """True if `self` and `other` have the same shape and number of lanes, and `other` is no `Fragments`: registers
        with the same index then hold the same elements. The subclass Fragments overrides this.
        """
        return (self.shape, self.lanes) == (other.shape, other.lanes) and not isinstance(other, Fragments)


@dataclass(frozen=True)
class Fragments(Vectors):
    """A matrix as vector registers that each hold a small matrix: `registers[i, j]` is in row i and
    column j of these.
    """

    operand: RegisterOperand

    def coordinates(self, key: tuple[int, ...], lane: Expr) -> tuple[Expr, ...]:
        """Return the matrix coordinates (row, column), as expressions, of the element in lane `lane` of the register
        with index `key`, which is (row, column) of the register's small matrix among the small matrices.
        """
        number = _layout_expr(self.operand, lane, as_expr(0))
        r, c = number % self.operand.rows, number // self.operand.rows
        return self.operand.rows * key[0] + r, self.operand.columns * key[1] + c

    def has_same_layout(self, other: Vectors) -> bool:
        """True if `other` is also a matrix in `Fragments`, of the same shape, lanes and operand layout: registers with
        the same index then hold the same elements.
        """
        same = (self.shape, self.lanes) == (other.shape, other.lanes)
        return same and isinstance(other, Fragments) and other.operand.layout == self.operand.layout


@dataclass(frozen=True)
class Tiles:
    """A matrix as tile registers: `registers[i, j]` is the tile in row i and column j of tiles."""

    dtype: DType
    shape: tuple[int, int]
    operand: OpaqueOperand
    registers: dict[tuple[int, int], Value]

    @property
    def register_shape(self) -> tuple[int, int]:
        """(number of rows of a tile register, number of elements in a row)."""
        return self.operand.lanes, self.operand.values

    def coordinates(self, key: tuple[int, int], row: Expr, element: Expr) -> tuple[Expr, Expr]:
        """Return the matrix coordinates (row, column), as expressions, of element number `element` in row `row` of the
        tile register with index `key`, which is (row, column) among the tiles. The element need not be in the same row
        of the tile, because packed layouts reorder elements.
        """
        number = _layout_expr(self.operand, row, element)
        r, c = number % self.operand.rows, number // self.operand.rows
        return self.operand.rows * key[0] + r, self.operand.columns * key[1] + c


def _layout_expr(operand: RegisterOperand, row: Expr, element: Expr) -> Expr:
    """Return the column-major index, within the matrix of the MMA operand `operand`, of element number `element` in row
    `row` of its register. The index is an expression of `row` and `element`.
    """
    total: Expr = as_expr(0)
    for coordinate, mode in ((row, operand.layout[0]), (element, operand.layout[1])):
        rest: Expr = coordinate
        shape = mode.shape if isinstance(mode.shape, tuple) else (mode.shape,)
        stride = mode.stride if isinstance(mode.stride, tuple) else (mode.stride,)
        for i, (n, s) in enumerate(zip(shape, stride, strict=True)):
            digit = rest if i == len(shape) - 1 else rest % n
            total = total + s * digit
            rest = rest // n
    return total


def as_vectors(spread: Placement) -> tuple[int, list[tuple[int, ...]]] | None:
    """Return (lanes, indices) if vector registers can hold a register tensor with the distribution `spread`: `lanes` is
    the number of threads, and indices[v] is the index of the vector register with value v of all threads. For each v,
    these elements must be a contiguous run along the last dimension, aligned to its length.

    Return None otherwise, if there are more than 64 threads, or for a scalar.
    """
    if not spread.shape or spread.threads > 64:
        return None
    coordinates = np.unravel_index(spread.elements, spread.shape, order="F")
    last = coordinates[-1]
    run = np.arange(spread.threads)[:, None]
    if np.any(last - last[:1] != run) or np.any(last[:1] % spread.threads):
        return None
    if any(np.any(c != c[:1]) for c in coordinates[:-1]):
        return None
    keys = [
        (*(int(c[0, v]) for c in coordinates[:-1]), int(last[0, v]) // spread.threads) for v in range(spread.values)
    ]
    return (spread.threads, keys) if len(set(keys)) == len(keys) else None


def tile_operand(atom: MultiplyAtom, operand: str) -> OpaqueOperand | None:
    """Return the atom's operand named `operand` ("a", "b" or "c") if it is a tile register; else None."""
    operand_type = {"a": atom.a, "b": atom.b, "c": atom.c}[operand]
    return operand_type if isinstance(operand_type, OpaqueOperand) else None


def fragment_operand(atom: MultiplyAtom, operand: str) -> RegisterOperand | None:
    """Return the atom's operand named `operand` ("a", "b" or "c") if it is a vector register that holds a small matrix,
    one element per lane; else None. Also None for an atom that computes one row of C.
    """
    operand_type = {"a": atom.a, "b": atom.b, "c": atom.c}[operand]
    if atom.shape[0] == 1 or not isinstance(operand_type, RegisterOperand) or isinstance(operand_type, OpaqueOperand):
        return None
    return operand_type if operand_type.values == 1 else None
