"""Registers as one wave sees them: its lanes' values, and which are initialised."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.errors import ProgramError, UninitialisedFault
from tilewright.interpret.block.holding import (
    Held,
    Holding,
    Wanted,
    first_missing,
    registers_at,
    registers_of,
)
from tilewright.interpret.block.memory import at_line, expressions
from tilewright.interpret.block.places import Coordinates
from tilewright.interpret.evaluation import evaluated, names_in_all
from tilewright.ir.core import Op

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(eq=False)
class Written:
    """Which registers of a wave were written: a mask over (lane, value). If `all`, the mask need not be looked at."""

    mask: Array
    all: bool = False


class Registers:
    """The part that one wave holds of a register tensor, or of a view of one.

    `holding` says which element each register holds, in the view's shape, `shape`. Views share `data` and `written`.
    """

    def __init__(self, data: Array, written: Written, holding: Holding, name: str):
        self.data, self.written, self.holding, self.name = data, written, holding, name
        self.shape, self.mine = holding.shape, holding.mine

    @classmethod
    def uninitialised(cls, dtype: np.dtype[Any], holding: Holding, name: str) -> Registers:
        """Return registers of the numpy type `dtype` that were never written; `name` is the tensor's name in
        messages.
        """
        shape = holding.ids.shape
        return cls(np.zeros(shape, dtype), Written(np.zeros(shape, bool)), holding, name)

    @property
    def owned(self) -> Held:
        """The registers of the view that store their element when the tensor is written to memory. If several
        registers, perhaps of several waves, hold an element, only one of them is included.
        """
        return self.holding.owned

    def read(self, chosen: Held, op: Op) -> Array:
        """Return the values of the registers `chosen`, as a flat array in order of (lane, value).

        Raise an UninitialisedFault, naming `op`, if one of the registers was never written.
        """
        self._require_written(chosen.registers, op)
        if chosen.everywhere:
            return self.data.flatten()
        return self.data.take(chosen.registers)

    def _require_written(self, registers: Array, op: Op) -> None:
        """Raise an UninitialisedFault, naming `op`, if one of `registers`, register numbers, was never written."""
        written = self.written
        if written.all:
            return
        written.all = bool(written.mask.all())
        if not written.all and not written.mask.take(registers).all():
            chosen = np.zeros(written.mask.shape, bool)
            chosen.reshape(-1)[registers] = True
            lane, value = (int(indices[0]) for indices in np.nonzero(chosen & ~written.mask))
            raise UninitialisedFault(
                f"{at_line(op)} reads value {value} of lane {lane} of %{self.name}, which nothing wrote", op.loc
            )

    def write(self, chosen: Held, values: Any) -> None:
        """Set the registers `chosen` to `values`, and mark the registers as written."""
        if chosen.everywhere and np.size(values) == self.data.size:
            self.data[...] = np.reshape(values, self.data.shape)
            if not self.written.all:
                self.written.mask[...] = True
                self.written.all = True
            return
        self.data[chosen.mask] = values
        self.written.mask[chosen.mask] = True

    def table(self, op: Op) -> tuple[Array, Array]:
        """Return (value of each element of the view by its number, mask of the elements that this wave holds).

        Elements are numbered with the last dimension fastest; elements that the wave does not hold are 0. The mask must
        not be changed. Raise an UninitialisedFault, naming `op`, if a register was never written.
        """
        values = np.zeros(self.holding.size, self.data.dtype)
        values[self.mine.ids] = self.read(self.mine, op)
        return values, self.holding.is_held

    def at_lanes(self, wanted: Wanted, op: Op) -> Array:
        """Return a flat array: for each i, the value of element `wanted.ids[i]`, from a register of lane
        `wanted.lanes[i]`.

        Raise a ProgramError, naming `op`, if the lane does not hold the element, and an UninitialisedFault if the
        register was never written.
        """
        registers = registers_at(self.holding, wanted)
        if registers is None:
            missing = first_missing(self.holding, wanted)
            element = int(wanted.ids[missing])
            coordinate = tuple(int(c) for c in np.unravel_index(element, self.shape)) if self.shape else ()
            raise ProgramError(
                f"{at_line(op)}: lane {int(wanted.lanes[missing])} needs element {coordinate} of %{self.name}, "
                "which it does not hold; convert_layout is the only way between two distributions",
                op.loc,
            )
        self._require_written(registers, op)
        return self.data.take(registers)

    def matrix(self, coordinates: Coordinates, op: Op) -> Array | None:
        """Return the elements of the view, a matrix, at `coordinates`, (rows, columns). Return None if the wave does
        not hold one of them.

        Raise an UninitialisedFault, naming `op`, if a register of the view was never written.
        """
        self._require_written(self.mine.registers, op)
        registers = registers_of(self.holding, coordinates)
        return None if registers is None else self.data.take(registers)

    def view(self, op: Op, values: dict[str, int], shape: tuple[int, ...]) -> Registers:
        """Return the view that `op`, a `view` operation, makes of these registers; both share the values.

        `values` is {loop variable: value}, and `shape` the shape of the view. Raise a ProgramError if a coordinate is
        out of bounds, or if the view has an element twice.
        """
        names = names_in_all(expressions(op.attrs["at"]))
        used_values = tuple((name, values[name]) for name in names if name in values)
        return Registers(self.data, self.written, _viewed(self.holding, op, used_values, shape), self.name)

    def bitcast(self, dtype: np.dtype[Any]) -> Registers:
        """Return the same registers, seen as elements of the numpy type `dtype`; both share the values."""
        return Registers(self.data.view(dtype), self.written, self.holding, self.name)

    def snapshot(self) -> Registers:
        """Return a copy of the registers with separate values, for a `finally` block that runs during the next
        iteration.
        """
        written = Written(self.written.mask.copy(), self.written.all)
        return Registers(self.data.copy(), written, self.holding, self.name)


@lru_cache(maxsize=512)
def _viewed(base: Holding, op: Op, values: tuple[tuple[str, int], ...], shape: tuple[int, ...]) -> Holding:
    """Return the `Holding` of the view that `op`, a `view` operation, makes of registers that hold the elements of
    `base`.

    `values` are pairs (loop variable, value), and `shape` is the shape of the view. Registers with an element outside
    of the view get the number -1. The result is cached. Raise a ProgramError if a coordinate is out of bounds, or if
    the view has an element twice.
    """
    axes = dict(zip((s.name for s in op.attrs["over"]), np.indices(shape), strict=True))
    symbol_values: dict[str, Any] = {**dict(values), **axes}
    number: Any = 0
    for dim, ((e, _), size) in enumerate(zip(op.attrs["at"], base.shape, strict=True)):
        coordinate = evaluated(e, symbol_values)
        if np.any(coordinate < 0) or np.any(coordinate >= size):
            raise ProgramError(f"{at_line(op)}: coordinate {dim}, {e}, leaves 0..{size}", op.loc)
        number = number * size + coordinate
    flat = np.broadcast_to(np.asarray(number), shape).reshape(-1)
    view_number = np.full(base.size, -1, np.int64)
    numbered = np.arange(flat.size)
    view_number[flat] = numbered
    if not np.array_equal(view_number[flat], numbered):
        raise ProgramError(f"{at_line(op)}: a view of registers names an element twice; use broadcast", op.loc)
    ids = np.where(base.ids >= 0, view_number[np.maximum(base.ids, 0)], -1)
    return Holding(ids, base.first, shape)
