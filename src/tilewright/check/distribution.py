"""Which thread holds which element of a register tensor.

Elements of a shape (I, J) are numbered i + I*j, as layouts do.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tilewright.algebra import Layout
from tilewright.algebra.inttuple import leaves
from tilewright.errors import LayoutError, ProgramError
from tilewright.ir.tensors import RegisterType, numbers
from tilewright.limits import REGISTERS
from tilewright.machine import Machine, MultiplyAtom, RegisterOperand

Array = np.ndarray[Any, np.dtype[Any]]


class Placement:
    """A distribution in numbers: tables from (thread, value) to elements, and back.

    >>> p = Placement(Layout((4, 2), (2, 1)), (8,))
    >>> p.elements
    array([[0, 1],
           [2, 3],
           [4, 5],
           [6, 7]])
    """

    def __init__(self, layout: Layout, shape: tuple[int, ...]):
        self.layout, self.shape = layout, shape
        if len(layout) != 2:
            raise LayoutError(f"a distribution has two modes, (thread, value); {layout} has {len(layout)}")
        self.threads, self.values = layout[0].size(), layout[1].size()
        if REGISTERS.refuses(self.threads * self.values):
            raise LayoutError(
                f"{layout} spreads {shape} over {self.threads} threads of {self.values}: {REGISTERS.rule}"
            )
        thread, value = np.indices((self.threads, self.values))
        self.elements: Array = np.asarray(layout(thread, value)).astype(np.int64)
        size = int(np.prod(shape, dtype=np.int64))
        held = np.unique(self.elements)
        if held.size != size or held[0] != 0 or held[-1] != size - 1:
            raise LayoutError(f"{layout} does not hold each of the {size} elements of {shape}, and only those")

    @cached_property
    def first(self) -> Array:
        """Whether (thread, value) is the first place that holds its element: it is the one that stores it."""
        flat = self.elements.reshape(-1)
        _, where = np.unique(flat, return_index=True)
        found = np.zeros(flat.size, bool)
        found[where] = True
        return found.reshape(self.elements.shape)

    @cached_property
    def coordinates(self) -> tuple[Array, ...]:
        """The coordinates of the element at each (thread, value)."""
        return np.unravel_index(self.elements, self.shape, order="F") if self.shape else ()


@lru_cache(maxsize=256)
def placed(layout: Layout, shape: tuple[int, ...]) -> Placement:
    """The placement by a layout; the same one each time, since its tables are large."""
    return Placement(layout, shape)


def placement(found: RegisterType, machine: Machine | None) -> Placement:
    """Where a register tensor's elements lie."""
    return _placement(found, None if machine is None else _Held(machine))


class _Held:
    """A machine as a key: by its name."""

    def __init__(self, machine: Machine):
        self.machine = machine

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and other.machine is self.machine

    def __hash__(self) -> int:
        return hash(self.machine.name)


@lru_cache(maxsize=1024)
def _placement(found: RegisterType, held: _Held | None) -> Placement:
    shape = numbers(found.shape, found)
    spread = found.distribution
    if spread is None:
        raise ProgramError(f"{found} has no distribution of its own")
    if spread.layout is not None:
        try:
            return placed(spread.layout, shape)
        except LayoutError as fault:
            raise ProgramError(f"{found}: {fault}") from None
    if held is None or spread.operand is None:
        raise ProgramError(f"{found}: the program names no machine, so {spread.operand} has no meaning")
    name, _, operand = spread.operand.rpartition(".")
    if operand not in ("a", "b", "c"):
        raise ProgramError(f"{found}: {spread.operand} must end in .a, .b or .c, an operand of an atom")
    waves = (1, 1) if spread.waves is None else numbers(spread.waves, found)
    if len(waves) != 2:
        raise ProgramError(f"{found}: waves are given as (rows, columns)")
    try:
        layout = operand_layout(held.machine.multiply_atom(name), operand, shape, waves)
        return placed(layout, shape)
    except LayoutError as fault:
        raise ProgramError(f"{found}: {fault}") from None


def operand_layout(atom: MultiplyAtom, operand: str, shape: tuple[int, ...], waves: tuple[int, ...]) -> Layout:
    """The distribution of an atom's operand over a larger matrix and over several groups of threads.

    A group is the threads of one atom. Groups stand in `waves` (rows, columns) of C: each has its own rows of A, its
    own columns of B, and an equal part of C in one piece; within its part, the atom is repeated along rows, then along
    columns, as further values of each thread.
    """
    found: Any = {"a": atom.a, "b": atom.b, "c": atom.c}[operand]
    if not isinstance(found, RegisterOperand):
        raise LayoutError(f"operand {operand} of {atom.name} is read from memory, not from registers")
    if len(shape) != 2:
        raise LayoutError(f"an operand of {atom.name} is a matrix, not of shape {shape}")
    rows, columns = shape
    over_rows, over_columns = waves
    parts = (rows // over_rows if operand != "b" else rows, columns // over_columns if operand != "a" else columns)
    wanted = (
        found.rows * (over_rows if operand != "b" else 1),
        found.columns * (over_columns if operand != "a" else 1),
    )
    if rows % wanted[0] or columns % wanted[1]:
        raise LayoutError(
            f"{rows}x{columns} is not made of {wanted[0]}x{wanted[1]}, which {atom.name} takes as {operand} over "
            f"{over_rows}x{over_columns} waves"
        )
    threads = _restrided(found.layout[0], found.rows, rows)
    values = _restrided(found.layout[1], found.rows, rows)
    step_rows = 0 if operand == "b" else parts[0]
    step_columns = 0 if operand == "a" else parts[1] * rows
    threads = [*threads, (over_rows, step_rows), (over_columns, step_columns)]
    values = [*values, (parts[0] // found.rows, found.rows), (parts[1] // found.columns, found.columns * rows)]
    return _of_modes(threads, values)


def interleaved_layout(atom: MultiplyAtom, operand: str, shape: tuple[int, ...], waves: tuple[int, ...]) -> Layout:
    """As `operand_layout`, but the groups' atoms lie among each other, as Composable Kernel deals them out.

    Atom (i, j) of the group at (row, column) of the arrangement is atom (i*rows + row, j*columns + column) of C.
    """
    operand_layout(atom, operand, shape, waves)  # refuses what does not fit
    found: Any = {"a": atom.a, "b": atom.b, "c": atom.c}[operand]
    rows, (over_rows, over_columns) = shape[0], waves
    across_rows = 1 if operand == "b" else over_rows
    across_columns = 1 if operand == "a" else over_columns
    threads = [
        *_restrided(found.layout[0], found.rows, rows),
        (over_rows, 0 if operand == "b" else found.rows),
        (over_columns, 0 if operand == "a" else found.columns * rows),
    ]
    values = [
        *_restrided(found.layout[1], found.rows, rows),
        (rows // (found.rows * across_rows), found.rows * across_rows),
        (shape[1] // (found.columns * across_columns), found.columns * across_columns * rows),
    ]
    return _of_modes(threads, values)


def _of_modes(*pairs: list[tuple[int, int]]) -> Layout:
    """The layout with these (size, stride) pairs in each mode; ones are left out."""
    modes = [tuple(m for m in mode if m[0] != 1) or ((1, 0),) for mode in pairs]
    return Layout(
        tuple(tuple(n for n, _ in mode) for mode in modes), tuple(tuple(s for _, s in mode) for mode in modes)
    )


def _restrided(mode: Layout, rows: int, new_rows: int) -> list[tuple[int, int]]:
    """The (size, stride) pairs of a mode, for a matrix of more rows."""
    found = []
    for size, stride in zip(leaves(mode.shape), leaves(mode.stride), strict=True):
        if stride % rows == 0:
            found.append((size, stride // rows * new_rows))
        elif (size - 1) * stride < rows:
            found.append((size, stride))
        else:
            raise LayoutError(f"the mode {mode} runs over the end of a column of {rows}")
    return found
