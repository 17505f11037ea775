"""Registers as one wave sees them: its lanes' values, which elements they are, and which are initialised."""

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
    """The part of a register tensor, or of a view of one, that a wave holds.

    `ids[lane, value]` is the element's number in the view's shape, last dimension fastest, or -1 if the register is
    no part of the view. `first` marks the place that stores an element where several hold it. Both stay as they are.
    """

    data: Array
    initialised: Array
    ids: Array
    first: Array
    shape: tuple[int, ...]
    name: str

    def coordinates(self, chosen: Array) -> tuple[Array, ...]:
        """The coordinates of the chosen registers' elements."""
        return self._of_mine if chosen is self.mine else self._coordinates(chosen)

    def _coordinates(self, chosen: Array) -> tuple[Array, ...]:
        return np.unravel_index(self.ids[chosen], self.shape) if self.shape else ()

    @cached_property
    def mine(self) -> Array:
        """Which registers are part of the view."""
        return self.ids >= 0

    @cached_property
    def _of_mine(self) -> tuple[Array, ...]:
        return self._coordinates(self.mine)

    @cached_property
    def _whole(self) -> bool:
        """Whether all registers are part of the view."""
        return bool(self.mine.all())

    @cached_property
    def rows_and_columns(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Of a matrix: the rows that the view's registers are of, in order, and for each its place among them; and the
        columns."""
        rows, columns = self._of_mine
        return _distinct(rows, self.shape[0]), _distinct(columns, self.shape[1])

    def read(self, chosen: Array, op: Op) -> Array:
        """The chosen registers."""
        if chosen is self.mine and self._whole and self.initialised.all():
            return self.data.flatten()
        if not self.initialised[chosen].all():
            lane, value = (int(i[0]) for i in np.nonzero(chosen & ~self.initialised))
            raise UninitialisedFault(
                f"{at_line(op)} reads value {value} of lane {lane} of %{self.name}, which nothing wrote", op.loc
            )
        found: Array = self.data[chosen]
        return found

    def write(self, chosen: Array, values: Any) -> None:
        """The chosen registers become the values."""
        if chosen is self.mine and self._whole and np.size(values) == self.data.size:
            self.data[...] = np.reshape(values, self.data.shape)
            self.initialised[...] = True
            return
        self.data[chosen] = values
        self.initialised[chosen] = True

    def table(self, op: Op) -> tuple[Array, Array]:
        """(every element by number, which of them this wave holds)."""
        size = int(np.prod(self.shape, dtype=np.int64))
        known, values = np.zeros(size, bool), np.zeros(size, self.data.dtype)
        mine = self.mine
        values[self.ids[mine]] = self.read(mine, op)
        known[self.ids[mine]] = True
        return values, known

    def at_lanes(self, lanes: Array, ids: Array, op: Op) -> Array:
        """The elements of these numbers, each as its lane holds it."""
        size = max(1, int(np.prod(self.shape, dtype=np.int64)))
        lane, value = np.nonzero(self.mine)
        keys = lane * size + self.ids[lane, value]
        order = np.argsort(keys, kind="stable")
        wanted = lanes * size + ids
        place = np.searchsorted(keys[order], wanted)
        place = np.minimum(place, len(order) - 1)
        if len(order) == 0 or not np.array_equal(keys[order][place], wanted):
            missing = int(np.flatnonzero(keys[order][place] != wanted)[0]) if len(order) else 0
            coordinate = tuple(int(c) for c in np.unravel_index(int(ids[missing]), self.shape)) if self.shape else ()
            raise ProgramError(
                f"{at_line(op)}: lane {int(lanes[missing])} needs element {coordinate} of %{self.name}, which it does "
                "not hold; convert_layout is the only way between two distributions",
                op.loc,
            )
        chosen = order[place]
        flags = np.zeros(self.ids.shape, bool)
        flags[lane[chosen], value[chosen]] = True
        self.read(flags, op)
        found: Array = self.data[lane[chosen], value[chosen]]
        return found

    def view(self, op: Op, values: dict[str, int], shape: tuple[int, ...]) -> Registers:
        """The view that an operation makes of it."""
        coordinates = np.indices(shape)
        known = {**values, **{s.name: c for s, c in zip(op.attrs["over"], coordinates, strict=True)}}
        number: Any = 0
        for dim, ((e, _), size) in enumerate(zip(op.attrs["at"], self.shape, strict=True)):
            c = evaluated(e, known)
            if np.any(c < 0) or np.any(c >= size):
                raise ProgramError(f"{at_line(op)}: coordinate {dim}, {e}, leaves 0..{size}", op.loc)
            number = number * size + c
        flat = np.broadcast_to(np.asarray(number), shape).reshape(-1)
        inverse = np.full(int(np.prod(self.shape, dtype=np.int64)), -1, np.int64)
        numbered = np.arange(flat.size)
        inverse[flat] = numbered
        if not np.array_equal(inverse[flat], numbered):
            raise ProgramError(f"{at_line(op)}: a view of registers names an element twice; use broadcast", op.loc)
        ids = np.where(self.ids >= 0, inverse[np.maximum(self.ids, 0)], -1)
        return Registers(self.data, self.initialised, ids, self.first, shape, self.name)

    def bitcast(self, dtype: np.dtype[Any]) -> Registers:
        """The same bits as another element type."""
        return Registers(self.data.view(dtype), self.initialised, self.ids, self.first, self.shape, self.name)

    def snapshot(self) -> Registers:
        """A copy, for a part that is deferred."""
        return Registers(self.data.copy(), self.initialised.copy(), self.ids, self.first, self.shape, self.name)


def _distinct(numbers: Array, extent: int) -> tuple[Array, Array]:
    """The numbers below an extent that occur, in order, and for each of those given its place among them."""
    occurs = np.zeros(extent, bool)
    occurs[numbers] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[numbers]
