"""Registers as one wave sees them: its lanes' values, their element numbers, and which are initialised."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import ProgramError, UninitialisedFault
from tilewright.interpret.block.memory import at_line
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.core import Op

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(eq=False)
class Registers:
    """The part that one wave holds of a register tensor, or of a view of one.

    `ids[lane, value]` is the element's number in the view's shape, last dimension fastest, or -1 if the register is not
    in the view. `first` marks the register that stores an element if several hold it. Both never change.
    """

    data: Array
    initialised: Array
    ids: Array
    first: Array
    shape: tuple[int, ...]
    name: str

    def coordinates(self, chosen: Array) -> tuple[Array, ...]:
        """Return the coordinates of the elements in some registers of the wave, one array for each dimension of the
        view.

        `chosen` is a bool mask over (lane, value) that selects the registers, all of which must be in the view.
        """
        return self._own_coordinates if chosen is self.mine else self._coordinates(chosen)

    def _coordinates(self, chosen: Array) -> tuple[Array, ...]:
        """Return the coordinates of the elements in some registers of the wave, one array for each dimension of the
        view.

        `chosen` is a bool mask over (lane, value) that selects the registers. Unlike `coordinates`, this caches
        nothing.
        """
        return np.unravel_index(self.ids[chosen], self.shape) if self.shape else ()

    @cached_property
    def mine(self) -> Array:
        """A bool mask over (lane, value): True for each register of the wave that is in the view."""
        return self.ids >= 0

    @cached_property
    def _own_coordinates(self) -> tuple[Array, ...]:
        """The coordinates of the elements in all registers of the view, one array for each dimension; computed once."""
        return self._coordinates(self.mine)

    @cached_property
    def _has_all_registers(self) -> bool:
        """True if all registers of the wave are in the view."""
        return bool(self.mine.all())

    @cached_property
    def rows_and_columns(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """For a matrix, ((rows, row of each register), (columns, column of each register)).

        `rows` are the row numbers of which the wave holds an element, sorted; the second array has, for each register
        of the view, the position of its row in `rows`. Columns likewise.
        """
        rows, columns = self._own_coordinates
        return _distinct(rows, self.shape[0]), _distinct(columns, self.shape[1])

    def read(self, chosen: Array, op: Op) -> Array:
        """Return the values of the registers that the bool mask `chosen` over (lane, value) selects, as a flat array.

        Raise an UninitialisedFault, naming `op`, if one of them was never written.
        """
        if chosen is self.mine and self._has_all_registers and self.initialised.all():
            return self.data.flatten()
        if not self.initialised[chosen].all():
            lane, value = (int(indices[0]) for indices in np.nonzero(chosen & ~self.initialised))
            raise UninitialisedFault(
                f"{at_line(op)} reads value {value} of lane {lane} of %{self.name}, which nothing wrote", op.loc
            )
        selected: Array = self.data[chosen]
        return selected

    def write(self, chosen: Array, values: Any) -> None:
        """Set the registers that the bool mask `chosen` over (lane, value) selects to `values`, and mark them as
        initialised.
        """
        if chosen is self.mine and self._has_all_registers and np.size(values) == self.data.size:
            self.data[...] = np.reshape(values, self.data.shape)
            self.initialised[...] = True
            return
        self.data[chosen] = values
        self.initialised[chosen] = True

    def table(self, op: Op) -> tuple[Array, Array]:
        """Return (value of each element of the view by its number, mask of the elements that this wave holds).

        Elements are numbered with the last dimension fastest; those that the wave does not hold are 0. Raise an
        UninitialisedFault, naming `op`, if a register was never written.
        """
        size = int(np.prod(self.shape, dtype=np.int64))
        is_held, values = np.zeros(size, bool), np.zeros(size, self.data.dtype)
        in_view = self.mine
        values[self.ids[in_view]] = self.read(in_view, op)
        is_held[self.ids[in_view]] = True
        return values, is_held

    def at_lanes(self, lanes: Array, ids: Array, op: Op) -> Array:
        """Return, for each position i, the value of element number `ids[i]` of the view, from a register of lane
        `lanes[i]`.

        Raise a ProgramError, naming `op`, if that lane does not hold the element, and an UninitialisedFault if the
        register was never written.
        """
        size = max(1, int(np.prod(self.shape, dtype=np.int64)))
        lane, value = np.nonzero(self.mine)
        keys = lane * size + self.ids[lane, value]
        order = np.argsort(keys, kind="stable")
        wanted = lanes * size + ids
        position = np.searchsorted(keys[order], wanted)
        position = np.minimum(position, len(order) - 1)
        if len(order) == 0 or not np.array_equal(keys[order][position], wanted):
            missing = int(np.flatnonzero(keys[order][position] != wanted)[0]) if len(order) else 0
            coordinate = tuple(int(c) for c in np.unravel_index(int(ids[missing]), self.shape)) if self.shape else ()
            raise ProgramError(
                f"{at_line(op)}: lane {int(lanes[missing])} needs element {coordinate} of %{self.name}, which it does "
                "not hold; convert_layout is the only way between two distributions",
                op.loc,
            )
        chosen = order[position]
        flags = np.zeros(self.ids.shape, bool)
        flags[lane[chosen], value[chosen]] = True
        self.read(flags, op)
        elements: Array = self.data[lane[chosen], value[chosen]]
        return elements

    def view(self, op: Op, values: dict[str, int], shape: tuple[int, ...]) -> Registers:
        """Return the view that `op`, a `view` operation, makes of these registers; both share the values.

        `values` is {loop variable: value}, and `shape` the shape of the view. Raise a ProgramError if a coordinate is
        out of bounds, or if the view names an element twice.
        """
        coordinates = np.indices(shape)
        symbol_values = {
            **values,
            **{s.name: coordinate for s, coordinate in zip(op.attrs["over"], coordinates, strict=True)},
        }
        number: Any = 0
        for dim, ((e, _), size) in enumerate(zip(op.attrs["at"], self.shape, strict=True)):
            coordinate = evaluated(e, symbol_values)
            if np.any(coordinate < 0) or np.any(coordinate >= size):
                raise ProgramError(f"{at_line(op)}: coordinate {dim}, {e}, leaves 0..{size}", op.loc)
            number = number * size + coordinate
        flat = np.broadcast_to(np.asarray(number), shape).reshape(-1)
        view_number = np.full(int(np.prod(self.shape, dtype=np.int64)), -1, np.int64)
        numbered = np.arange(flat.size)
        view_number[flat] = numbered
        if not np.array_equal(view_number[flat], numbered):
            raise ProgramError(f"{at_line(op)}: a view of registers names an element twice; use broadcast", op.loc)
        ids = np.where(self.ids >= 0, view_number[np.maximum(self.ids, 0)], -1)
        return Registers(self.data, self.initialised, ids, self.first, shape, self.name)

    def bitcast(self, dtype: np.dtype[Any]) -> Registers:
        """Return the same registers, seen as elements of the numpy type `dtype`; both share the values."""
        return Registers(self.data.view(dtype), self.initialised, self.ids, self.first, self.shape, self.name)

    def snapshot(self) -> Registers:
        """Return a copy of the registers with values of its own, for a `finally` block that runs during the next
        iteration.
        """
        return Registers(self.data.copy(), self.initialised.copy(), self.ids, self.first, self.shape, self.name)


def _distinct(numbers: Array, extent: int) -> tuple[Array, Array]:
    """Return (the distinct values of `numbers`, sorted; for each number its position among them).

    [4, 2, 4] -> ([2, 4], [1, 0, 1]). All numbers must be in 0..extent - 1.
    """
    occurs = np.zeros(extent, bool)
    occurs[numbers] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[numbers]
