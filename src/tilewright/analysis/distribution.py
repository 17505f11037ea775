"""Which thread holds which element of a register tensor.

Elements of a shape (I, J) are numbered i + I*j, as in layouts.
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
    """A distribution as tables: the element of each (thread, value), and its coordinates.

    Raise a LayoutError unless `layout` has the two modes (thread, value) and holds each element of `shape`, and only
    those.

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
        distinct = np.unique(self.elements)
        if distinct.size != size or distinct[0] != 0 or distinct[-1] != size - 1:
            raise LayoutError(f"{layout} does not hold each of the {size} elements of {shape}, and only those")

    @cached_property
    def first(self) -> Array:
        """Return a boolean array [thread, value]: True for the first (thread, value) pair that holds an element.

        Several threads may hold the same element; the first pair is the one of the lowest thread, then of the lowest
        value.
        """
        flat = self.elements.reshape(-1)
        _, first_index = np.unique(flat, return_index=True)
        is_first = np.zeros(flat.size, bool)
        is_first[first_index] = True
        return is_first.reshape(self.elements.shape)

    @cached_property
    def coordinates(self) -> tuple[Array, ...]:
        """Return the coordinates of the elements: a tuple with an array [thread, value] for each dimension of the
        tensor.

        It is () for a tensor without dimensions.
        """
        return np.unravel_index(self.elements, self.shape, order="F") if self.shape else ()


@lru_cache(maxsize=256)
def placed(layout: Layout, shape: tuple[int, ...]) -> Placement:
    """Return the Placement (tables of which thread holds which element) of a tensor of `shape` with the distribution
    `layout`.

    `layout` maps (thread, value) to the element's number, first dimension fastest. Results are cached. Raise
    LayoutError unless the layout holds each element of the tensor, and only those.
    """
    return Placement(layout, shape)


def placement(register_type: RegisterType, machine: Machine | None) -> Placement:
    """Return the Placement (tables of which thread holds which element) of a tensor of type `register_type`.

    `machine` is needed if the type names an atom's operand, such as "ATOM.a"; otherwise it may be None. Raise
    ProgramError if the type has no valid distribution, and LookupError if the machine has no such atom.
    """
    return _placement(register_type, None if machine is None else _MachineKey(machine))


class _MachineKey:
    """A machine as a dictionary key, hashed by its name and compared by identity."""

    def __init__(self, machine: Machine):
        self.machine = machine

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _MachineKey) and other.machine is self.machine

    def __hash__(self) -> int:
        return hash(self.machine.name)


@lru_cache(maxsize=1024)
def _placement(register_type: RegisterType, key: _MachineKey | None) -> Placement:
    """Return the Placement (tables of which thread holds which element) of a register tensor of this type. Results are
    cached.

    `key` is the machine as a hashable key; it may be None unless the type names an atom's operand. Raise ProgramError
    if the type has no valid distribution, and LookupError if the machine has no such atom.
    """
    shape = numbers(register_type.shape, register_type)
    distribution = register_type.distribution
    if distribution is None:
        raise ProgramError(f"{register_type} has no distribution of its own")
    if distribution.layout is not None:
        try:
            return placed(distribution.layout, shape)
        except LayoutError as fault:
            raise ProgramError(f"{register_type}: {fault}") from None
    if key is None or distribution.operand is None:
        raise ProgramError(f"{register_type}: the program names no machine, so {distribution.operand} has no meaning")
    name, _, operand = distribution.operand.rpartition(".")
    if operand not in ("a", "b", "c"):
        raise ProgramError(f"{register_type}: {distribution.operand} must end in .a, .b or .c, an operand of an atom")
    waves = (1, 1) if distribution.waves is None else numbers(distribution.waves, register_type)
    if len(waves) != 2:
        raise ProgramError(f"{register_type}: waves are given as (rows, columns)")
    try:
        layout = operand_layout(key.machine.multiply_atom(name), operand, shape, waves)
        return placed(layout, shape)
    except LayoutError as fault:
        raise ProgramError(f"{register_type}: {fault}") from None


def operand_layout(atom: MultiplyAtom, operand: str, shape: tuple[int, ...], waves: tuple[int, ...]) -> Layout:
    """Return the distribution of an atom's operand over a matrix: a Layout (thread, value) -> element number,
    column-major.

    `operand` is "a", "b" or "c", `shape` the matrix's (rows, columns). `waves` = (R, S) is a grid of groups of threads,
    each with the threads of one atom. C is divided into R x S contiguous blocks, one for each group. A is divided into
    R blocks of rows, which the groups of one row of the grid share; B into S blocks of columns, which the groups of one
    column of the grid share. Within a block the atom repeats along rows, then columns, as further values of each
    thread. Threads are numbered within a group first, then down the grid's columns. Raise LayoutError if the shape is
    not made of whole atoms for each group, or if the atom reads the operand from memory.
    """
    operand_registers: Any = {"a": atom.a, "b": atom.b, "c": atom.c}[operand]
    if not isinstance(operand_registers, RegisterOperand):
        raise LayoutError(f"operand {operand} of {atom.name} is read from memory, not from registers")
    if len(shape) != 2:
        raise LayoutError(f"an operand of {atom.name} is a matrix, not of shape {shape}")
    rows, columns = shape
    over_rows, over_columns = waves
    parts = (rows // over_rows if operand != "b" else rows, columns // over_columns if operand != "a" else columns)
    unit = (
        operand_registers.rows * (over_rows if operand != "b" else 1),
        operand_registers.columns * (over_columns if operand != "a" else 1),
    )
    if rows % unit[0] or columns % unit[1]:
        raise LayoutError(
            f"{rows}x{columns} is not made of {unit[0]}x{unit[1]}, which {atom.name} takes as {operand} over "
            f"{over_rows}x{over_columns} waves"
        )
    threads = _restrided(operand_registers.layout[0], operand_registers.rows, rows)
    values = _restrided(operand_registers.layout[1], operand_registers.rows, rows)
    step_rows = 0 if operand == "b" else parts[0]
    step_columns = 0 if operand == "a" else parts[1] * rows
    threads = [*threads, (over_rows, step_rows), (over_columns, step_columns)]
    values = [
        *values,
        (parts[0] // operand_registers.rows, operand_registers.rows),
        (parts[1] // operand_registers.columns, operand_registers.columns * rows),
    ]
    return _layout_of_modes(threads, values)


def interleaved_layout(atom: MultiplyAtom, operand: str, shape: tuple[int, ...], waves: tuple[int, ...]) -> Layout:
    """Return the distribution of an atom's operand over a matrix, with the groups' atoms interleaved.

    The result is a Layout (thread, value) -> element number, column-major. `operand` is "a", "b" or "c", `shape` the
    matrix's (rows, columns), `waves` = (R, S) a grid of groups of threads. Neighbouring atoms belong to different
    groups, as in Composable Kernel: atom (i, j) of group (r, s) is atom (i*R + r, j*S + s) of C. A is interleaved only
    along rows, B only along columns. Raise LayoutError for the reasons of `operand_layout`.
    """
    operand_layout(atom, operand, shape, waves)  # refuses what does not fit
    operand_registers: Any = {"a": atom.a, "b": atom.b, "c": atom.c}[operand]
    rows, (over_rows, over_columns) = shape[0], waves
    across_rows = 1 if operand == "b" else over_rows
    across_columns = 1 if operand == "a" else over_columns
    threads = [
        *_restrided(operand_registers.layout[0], operand_registers.rows, rows),
        (over_rows, 0 if operand == "b" else operand_registers.rows),
        (over_columns, 0 if operand == "a" else operand_registers.columns * rows),
    ]
    values = [
        *_restrided(operand_registers.layout[1], operand_registers.rows, rows),
        (rows // (operand_registers.rows * across_rows), operand_registers.rows * across_rows),
        (shape[1] // (operand_registers.columns * across_columns), operand_registers.columns * across_columns * rows),
    ]
    return _layout_of_modes(threads, values)


def _layout_of_modes(*pairs: list[tuple[int, int]]) -> Layout:
    """Return the Layout with one mode for each argument, which is a list of (size, stride) pairs, fastest first.

    Pairs of size 1 are left out; a list without other pairs becomes a mode 1:0.
    """
    modes = [tuple(pair for pair in mode if pair[0] != 1) or ((1, 0),) for mode in pairs]
    return Layout(
        tuple(tuple(size for size, _ in mode) for mode in modes),
        tuple(tuple(stride for _, stride in mode) for mode in modes),
    )


def _restrided(mode: Layout, rows: int, new_rows: int) -> list[tuple[int, int]]:
    """Return the (size, stride) pairs of a layout's `mode`, restated for a matrix with `new_rows` rows instead of
    `rows`.

    Elements are numbered column by column, so the next column is `rows` numbers further in the old matrix, and
    `new_rows` in the new one. A pair whose stride is a number of whole columns gets a new stride; a pair that stays
    within one column is kept. Raise LayoutError if a pair runs over the end of an old column.
    """
    pairs = []
    for size, stride in zip(leaves(mode.shape), leaves(mode.stride), strict=True):
        if stride % rows == 0:
            pairs.append((size, stride // rows * new_rows))
        elif (size - 1) * stride < rows:
            pairs.append((size, stride))
        else:
            raise LayoutError(f"the mode {mode} runs over the end of a column of {rows}")
    return pairs
