"""Copy requests: a box of elements, with the location of each element in the source and in the target.

The elements of a box are numbered first dimension fastest, like the coordinates of a layout. A `Place` locates each of
them in memory or in the registers of lanes. A request can be executed, as the reference for a copy atom's instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra import Access, ComposedLayout, Layout, Symbol, size
from tilewright.algebra.expr import Const
from tilewright.errors import AccessError, LayoutError
from tilewright.ir.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]

SPACES = ("global", "shared", "register")


@dataclass(frozen=True)
class Place:
    """One side of a copy: memory or registers.

    In memory, `layout` maps coordinates, one for each dimension of the box, to offsets in elements; the box begins at
    the coordinates `start`. Elements outside the layout's extents, or out of bounds by an access, are read as zero and
    not written. `alignment` is that of the address of offset 0, in bytes; None if it suffices for any copy.

    In registers, `layout` maps (lane, value) to the number of the box element that it holds.

    >>> rows = Place("global", Layout((3, 4), (4, 1)), start=(2, 0))
    >>> offsets, inside = rows.offsets((2, 2))  # the second row of the box is out of bounds
    >>> offsets, inside
    (array([8, 0, 9, 0]), array([ True, False,  True, False]))
    """

    space: str
    layout: Layout | ComposedLayout | Access
    alignment: int | None = None
    start: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.space not in SPACES:
            raise LayoutError(f"there is no space {self.space!r}; there are {', '.join(SPACES)}")

    @property
    def in_registers(self) -> bool:
        """Return True if this side of the copy is registers."""
        return self.space == "register"

    def extents(self) -> tuple[int, ...]:
        """Return the size of each mode of `layout`, or the extent of each axis if `layout` is an access.

        Raise AccessError if the extent of an axis is symbolic.
        """
        if isinstance(self.layout, Access):
            return tuple(_length(axis) for axis in self.layout.axes)
        shape = self.layout.shape
        return tuple(size(mode) for mode in shape) if isinstance(shape, tuple) else (size(shape),)

    def begin(self, box: tuple[int, ...]) -> tuple[int, ...]:
        """Return the coordinates at which a box of this shape begins in memory: `start`, or zeros if
        `start` is empty.
        """
        return self.start or (0,) * len(box)

    def offsets(self, box: tuple[int, ...]) -> tuple[Array, Array]:
        """Return (offsets, in_bounds), two flat arrays with an entry for each element of a box of shape `box` in
        memory.

        `offsets` count elements from offset 0 of the layout, `in_bounds` are booleans. The box begins at `self.start`;
        its elements are numbered first dimension fastest. The offset of an out-of-bounds element is 0.
        """
        extents, begin = self.extents(), self.begin(box)
        number = np.arange(prod(box))
        inside = np.ones(number.size, bool)
        coordinates = []
        for extent, first, length in zip(extents, begin, box, strict=True):
            coordinate = first + number % length
            number = number // length
            inside &= (coordinate >= 0) & (coordinate < extent)
            coordinates.append(np.clip(coordinate, 0, extent - 1))
        if isinstance(self.layout, Access):
            names = [axis.name for axis in self.layout.axes]
            offset, domain, bounds = self.layout.at(dict(zip(names, coordinates, strict=True)))
            inside &= (np.asarray(domain) != 0) & (np.asarray(bounds) != 0)
        else:
            offset = self.layout(*coordinates)
        return np.where(inside, np.broadcast_to(offset, inside.shape), 0), inside

    def numbers(self) -> Array:
        """Return the number of the box element that each register holds, as an array indexed [lane, value].

        Raise LayoutError unless the layout has the two modes (lane, value).
        """
        if isinstance(self.layout, Access) or len(self.layout) != 2:
            raise LayoutError(f"registers need a layout of (lane, value), not {self.layout}")
        lane, value = np.indices(self.extents())
        numbers: Array = np.asarray(self.layout(lane, value))
        return numbers


def _length(axis: Symbol) -> int:
    """Return the extent of an axis (its last value plus 1) as an int; raise AccessError if it is symbolic."""
    if not isinstance(axis.upper, Const):
        raise AccessError(f"axis {axis.name} runs to {axis.upper}: give a copy's access its sizes by substitute()")
    return int(axis.upper) + 1


@dataclass(frozen=True)
class CopyRequest:
    """A request to copy the elements of a box from `source` to `target`; at most one of them is registers.

    Raise LayoutError if both are registers, if a side does not have the dimensions of the box, if registers hold an
    element that the box lacks, if registers as source lack an element, or if two elements go to one place in memory.


    >>> from tilewright.ir.dtypes import f32
    >>> turned = CopyRequest(
    ...     (2, 3), f32, Place("global", Layout((2, 3), (3, 1))), Place("shared", Layout((2, 3), (1, 2)))
    ... )
    >>> target = np.zeros(6, int)
    >>> turned.run(np.arange(6), target)
    >>> target
    array([0, 3, 1, 4, 2, 5])
    """

    box: tuple[int, ...]
    dtype: DType
    source: Place
    target: Place

    def __post_init__(self) -> None:
        if self.source.in_registers and self.target.in_registers:
            raise LayoutError("a copy from registers to registers is a change of layout, not a copy")
        for place in (self.source, self.target):
            if place.in_registers:
                self._check_registers(place)
            elif len(place.extents()) != len(self.box) or len(place.begin(self.box)) != len(self.box):
                raise LayoutError(f"{place.layout} has not the {len(self.box)} dimensions of the box {self.box}")
        if not self.target.in_registers:
            offsets, inside = self.target_table
            if np.unique(offsets[inside]).size != np.count_nonzero(inside):
                raise LayoutError(f"{self.target.layout} puts two elements of the box {self.box} at one place")

    def _check_registers(self, place: Place) -> None:
        """Raise LayoutError if the registers `place` hold an element number that is not in the box.

        If `place` is the source of the copy, raise LayoutError also if an element of the box is in no register.
        """
        numbers, elements = place.numbers(), prod(self.box)
        if numbers.min() < 0 or numbers.max() >= elements:
            raise LayoutError(f"registers by {place.layout} hold elements that the box {self.box} does not have")
        if place is self.source and np.unique(numbers).size != elements:
            raise LayoutError(f"registers by {place.layout} do not hold every element of the box {self.box}")

    @property
    def size(self) -> int:
        """Return the bytes of an element."""
        return int(self.dtype.numpy.itemsize)

    @cached_property
    def source_table(self) -> tuple[Array, Array]:
        """Return (offsets, in_bounds) in the source, which must be memory: two flat arrays with an entry for each
        element of the box.

        Offsets count elements; the offset of an out-of-bounds element is 0.
        """
        return self.source.offsets(self.box)

    @cached_property
    def target_table(self) -> tuple[Array, Array]:
        """Return (offsets, in_bounds) in the target, which must be memory: two flat arrays with an entry for each
        element of the box.

        Offsets count elements; the offset of an out-of-bounds element is 0.
        """
        return self.target.offsets(self.box)

    def memory(self) -> tuple[Place, Array, Array]:
        """Return (place, offsets, in_bounds) of the memory side of a copy between memory and registers.

        `offsets` (in elements) and `in_bounds` are flat arrays with an entry for each element of the box.
        """
        place = self.source if self.target.in_registers else self.target
        return place, *(self.source_table if self.target.in_registers else self.target_table)

    def registers(self) -> Array:
        """Return the number of the box element that each register holds, as an array indexed [lane, value].

        One side of the copy must be registers.
        """
        return (self.target if self.target.in_registers else self.source).numbers()

    def run(self, source: Array, target: Array) -> None:
        """Do the copy element by element: read `source`, write `target` in place.

        Memory is a flat array; registers are an array indexed [lane, value]. Elements out of bounds of the source are
        copied as zeros; those out of bounds of the target are not written.
        """
        if self.source.in_registers:
            offsets, inside = self.target_table
            numbers = self.source.numbers()
            written = inside[numbers]
            target[offsets[numbers][written]] = source[written]
            return
        offsets, inside = self.source_table
        elements = np.zeros(offsets.size, source.dtype)
        elements[inside] = source[offsets[inside]]
        if self.target.in_registers:
            target[...] = elements[self.target.numbers()]
            return
        offsets, inside = self.target_table
        target[offsets[inside]] = elements[inside]
