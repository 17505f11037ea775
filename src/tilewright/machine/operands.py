"""Where an operand of an instruction lives, and which element of its matrix lies where.

A matrix of R rows and C columns is numbered first row fastest: element (r, c) is r + R*c. Each kind of operand has a
layout from places to these numbers, and moves matrices in and out *through that layout only*: an entry that is
wrong there gives wrong products.
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
    """A matrix spread over the lanes of a wave and their registers.

    `layout` sends (lane, value) to the element that the lane's value holds; stride 0 repeats elements.

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
        """How many lanes share the operand."""
        return self.layout[0].size()

    @cached_property
    def values(self) -> int:
        """How many values each lane holds."""
        return self.layout[1].size()

    def store(self, matrix: Array) -> Array:
        """The registers that hold a matrix: indexed [lane, value]."""
        return matrix.T.reshape(-1)[self._places]

    def load(self, registers: Array) -> Array:
        """The matrix that registers hold; elements that are repeated must agree."""
        places = self._places
        flat = np.zeros(self.rows * self.columns, registers.dtype)
        if self._distinct != flat.size:
            raise LayoutError(f"{self.layout} does not hold every element of a {self.rows}x{self.columns} matrix")
        flat[places] = registers
        again = flat[places]
        if not ((again == registers) | ((again != again) & (registers != registers))).all():  # NaN is equal to none
            raise LayoutError(f"registers that {self.layout} says hold one element differ")
        return flat.reshape(self.columns, self.rows).T

    @cached_property
    def _places(self) -> Array:
        lane, value = np.indices((self.lanes, self.values))
        places: Array = np.asarray(self.layout(lane, value))
        return places

    @cached_property
    def _distinct(self) -> int:
        """How many elements there are places for."""
        return len(np.unique(self._places))


@dataclass(frozen=True)
class OpaqueOperand(RegisterOperand):
    """A matrix in a tile register that only whole-tile instructions reach.

    `layout` sends (row of the register, element of the row) to the element of the matrix that lies there, so the
    packing of an operand is part of the description.
    """


@dataclass(frozen=True)
class MemoryOperand:
    """A matrix that the instruction reads from memory itself.

    `layout` sends (row, column) to an offset in elements from where the operand starts; it may end in a swizzle.
    `alignment` is in bytes. `encoding` says how the instruction is told: "pointer and stride" or "descriptor".
    """

    rows: int
    columns: int
    dtype: DType
    layout: Layout | ComposedLayout
    alignment: int
    encoding: str

    @cached_property
    def steps(self) -> tuple[int, int]:
        """How far the second row, and the second column, lie from the first, before a swizzle."""
        layout = self.layout.layout if isinstance(self.layout, ComposedLayout) else self.layout
        return int(layout(1, 0)), int(layout(0, 1))

    def store(self, matrix: Array) -> Array:
        """Memory that holds a matrix; other elements are zero."""
        row, column = np.indices((self.rows, self.columns))
        places = np.asarray(self.layout(row, column))
        memory = np.zeros(int(places.max()) + 1, matrix.dtype)
        memory[places] = matrix
        return memory

    def load(self, memory: Array) -> Array:
        """The matrix that memory holds."""
        row, column = np.indices((self.rows, self.columns))
        matrix: Array = memory[np.asarray(self.layout(row, column))]
        return matrix
