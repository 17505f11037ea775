"""Operands of instructions: the matrix, and the layout of its elements in registers or memory.

The elements of a matrix of R rows and C columns are numbered column-major: element (r, c) is r + R*c. An operand has a
layout from registers or memory to these numbers, and loads and stores matrices *through that layout only*, so that a
wrong entry gives wrong products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.algebra import ComposedLayout, Layout
from tilewright.errors import LayoutError
from tilewright.ir.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class RegisterOperand:
    """A matrix distributed over the lanes of a wave and their registers.

    `layout` maps (lane, value) to the number of the matrix element that it holds; stride 0 repeats elements.

    >>> from tilewright.ir.dtypes import f32
    >>> column = RegisterOperand(1, 4, f32, Layout((4, 1), (1, 0)))
    >>> column.store(np.array([[5, 6, 7, 8]])).T
    array([[5, 6, 7, 8]])
    """

    rows: int
    columns: int
    dtype: DType
    layout: Layout

    @cached_property
    def lanes(self) -> int:
        """Return the number of lanes that hold the operand."""
        return self.layout[0].size()

    @cached_property
    def values(self) -> int:
        """Return the number of values that each lane holds."""
        return self.layout[1].size()

    def store(self, matrix: Array) -> Array:
        """Return the registers that hold `matrix` (rows x columns): an array indexed [lane, value].

        An element may be held by several lanes.
        """
        return matrix.T.reshape(-1)[self._places]

    def load(self, registers: Array) -> Array:
        """Return the matrix (rows x columns) that `registers`, an array indexed [lane, value], hold.

        Raise LayoutError if the layout lacks an element of the matrix, or if registers that hold the same element
        differ.
        """
        elements = self._places
        flat = np.zeros(self.rows * self.columns, registers.dtype)
        if self._distinct != flat.size:
            raise LayoutError(f"{self.layout} does not hold every element of a {self.rows}x{self.columns} matrix")
        flat[elements] = registers
        expected = flat[elements]
        if not ((expected == registers) | ((expected != expected) & (registers != registers))).all():  # NaN != NaN
            raise LayoutError(f"registers that {self.layout} says hold one element differ")
        return flat.reshape(self.columns, self.rows).T

    @cached_property
    def _places(self) -> Array:
        """Return the column-major number of the matrix element that each register holds, as an array indexed [lane,
        value].
        """
        lane, value = np.indices((self.lanes, self.values))
        elements: Array = np.asarray(self.layout(lane, value))
        return elements

    @cached_property
    def _distinct(self) -> int:
        """Return the number of different matrix elements that the registers hold."""
        return len(np.unique(self._places))


@dataclass(frozen=True)
class OpaqueOperand(RegisterOperand):
    """A matrix in a tile register, which only whole-tile instructions access.

    `layout` maps (register row, position in the row) to the number of the matrix element there, so the packing of an
    operand is part of its description.
    """


@dataclass(frozen=True)
class MemoryOperand:
    """A matrix that the instruction reads from memory.

    `layout` maps (row, column) to an offset in elements from the operand's start; it may end in a swizzle. `alignment`
    is in bytes. `encoding` is how the instruction addresses the operand: "pointer and stride" or "descriptor".
    """

    rows: int
    columns: int
    dtype: DType
    layout: Layout | ComposedLayout
    alignment: int
    encoding: str

    @cached_property
    def steps(self) -> tuple[int, int]:
        """Return (stride from row to row, stride from column to column), in elements, before a swizzle."""
        layout = self.layout.layout if isinstance(self.layout, ComposedLayout) else self.layout
        return int(layout(1, 0)), int(layout(0, 1))

    def store(self, matrix: Array) -> Array:
        """Return a new flat array that holds the elements of `matrix` at the offsets of `self.layout`; other elements
        are zero.
        """
        row, column = np.indices((self.rows, self.columns))
        offsets = np.asarray(self.layout(row, column))
        memory = np.zeros(int(offsets.max()) + 1, matrix.dtype)
        memory[offsets] = matrix
        return memory

    def load(self, memory: Array) -> Array:
        """Return the matrix (rows x columns) whose elements are at the offsets of `self.layout` in the flat array
        `memory`.
        """
        row, column = np.indices((self.rows, self.columns))
        matrix: Array = memory[np.asarray(self.layout(row, column))]
        return matrix
