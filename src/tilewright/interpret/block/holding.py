"""Which element of a register tensor each register of a wave holds.

This follows from types and views alone, so it is computed once for each distribution, as a `Holding`, and cached. A
`Holding` is compared by identity.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tilewright.analysis.distribution import Placement
from tilewright.interpret.block.places import Coordinates

Array = np.ndarray[Any, np.dtype[Any]]


class Wanted:
    """Elements of a tensor of shape `shape` that lanes read: lane `lanes[i]` reads element number `ids[i]`.

    `coordinates` are those of the elements, one array for each dimension.
    """

    def __init__(self, lanes: Array, ids: Array, shape: tuple[int, ...]):
        self.lanes, self.ids = lanes, ids
        self.coordinates: tuple[Array, ...] = Coordinates(np.unravel_index(ids, shape)) if shape else ()


class Held(Wanted):
    """Some registers of a wave and the elements that they hold.

    `mask[lane, value]` is True for these registers, and `registers` are their flat numbers. `everywhere` is True if
    these are all registers of the wave.
    """

    def __init__(self, mask: Array, ids: Array, shape: tuple[int, ...]):
        super().__init__(np.nonzero(mask)[0], ids[mask], shape)
        self.mask = mask
        self.registers = np.flatnonzero(mask)
        self.everywhere = bool(mask.all())


class Holding:
    """Which element of a tensor, or of a view, of shape `shape` each register of a wave holds; it never changes.

    `ids[lane, value]` is the element's number, last dimension fastest, or -1 if the register is not in the view.
    `first[lane, value]` is True for the register that stores an element if several hold it.
    """

    def __init__(self, ids: Array, first: Array, shape: tuple[int, ...]):
        self.ids, self.first, self.shape = ids, first, shape
        self.size = int(np.prod(shape, dtype=np.int64))

    @cached_property
    def mine(self) -> Held:
        """The registers of the wave that are in the view, with the elements that they hold."""
        return Held(self.ids >= 0, self.ids, self.shape)

    @cached_property
    def owned(self) -> Held:
        """The registers of the view that store their element when the tensor is written to memory. If several
        registers, perhaps of several waves, hold an element, only one of them is included.
        """
        return Held(self.mine.mask & self.first, self.ids, self.shape)

    @cached_property
    def is_held(self) -> Array:
        """A bool array over the element numbers of the view: True if the wave holds the element. The array must not be
        changed.
        """
        return self.register_of_element >= 0

    @cached_property
    def register_of_element(self) -> Array:
        """An array over the element numbers of the view: the number of the last register that holds the
        element, or -1.
        """
        registers = np.full(self.size, -1)
        registers[self.mine.ids] = self.mine.registers
        return registers

    @cached_property
    def rows_and_columns(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """For a matrix, ((rows, row position of each register), (columns, column position of each register)).

        `rows` are the numbers of the rows of which the wave holds an element, sorted. The row position of a register of
        the view is the index in `rows` of its element's row. Columns are the same along the other dimension.
        """
        rows, columns = self.mine.coordinates
        return _distinct(rows, self.shape[0]), _distinct(columns, self.shape[1])


def _distinct(numbers: Array, extent: int) -> tuple[Array, Array]:
    """Return (the distinct values of `numbers`, sorted; the position of each number among the distinct values): [4, 2,
    4] -> ([2, 4], [1, 0, 1]).

    All numbers must be in 0..extent - 1.
    """
    occurs = np.zeros(extent, bool)
    occurs[numbers] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[numbers]


@lru_cache(maxsize=512)
def holding(spread: Placement, first_lane: int, lanes: int) -> Holding:
    """Return the `Holding` of a wave of `lanes` lanes, starting with the lane `first_lane` of the workgroup: the
    elements that it holds of a tensor with the placement `spread`.

    The result is cached.
    """
    own_lanes = slice(first_lane, first_lane + lanes)
    elements = spread.elements[own_lanes]
    ids = elements
    if spread.shape:
        ids = np.asarray(np.ravel_multi_index(np.unravel_index(elements, spread.shape, order="F"), spread.shape))
    return Holding(ids, spread.first[own_lanes], spread.shape)


@lru_cache(maxsize=512)
def have_equal_elements(one: Holding, other: Holding) -> bool:
    """True if each register holds the same element in the holdings `one` and `other`. The result is cached."""
    return one is other or (one.ids.shape == other.ids.shape and np.array_equal(one.ids, other.ids))


@lru_cache(maxsize=512)
def registers_at(held: Holding, wanted: Wanted) -> Array | None:
    """Return an array with a register number for each i: a register of lane `wanted.lanes[i]` that holds element
    `wanted.ids[i]`.

    `held` says which elements the wave's registers hold. Return None if some lane does not hold its element, or if the
    wave holds no elements. The result is cached.
    """
    keys, order, goal = _keys_of_lanes(held, wanted)
    position = _positions(keys[order], goal)
    if len(order) == 0 or not np.array_equal(keys[order][position], goal):
        return None
    registers: Array = held.mine.registers[order[position]]
    return registers


def first_missing(held: Holding, wanted: Wanted) -> int:
    """Return the first index i for which lane `wanted.lanes[i]` does not hold element `wanted.ids[i]`. There must be
    one.

    `held` says which elements the wave's registers hold.
    """
    keys, order, goal = _keys_of_lanes(held, wanted)
    return int(np.flatnonzero(keys[order][_positions(keys[order], goal)] != goal)[0]) if len(order) else 0


def _keys_of_lanes(held: Holding, wanted: Wanted) -> tuple[Array, Array, Array]:
    """Return (keys of the registers of `held`, indices that sort these keys, keys of the elements of `wanted`), three
    arrays.

    A key is lane * size + element number, where size is the number of elements of the tensor or view.
    """
    size = max(1, held.size)
    keys = held.mine.lanes * size + held.mine.ids
    return keys, np.argsort(keys, kind="stable"), wanted.lanes * size + wanted.ids


def _positions(ordered: Array, goal: Array) -> Array:
    """Return the position of each number of `goal` in the sorted array `ordered`.

    For a number that is not in `ordered`, it is the position of the next larger number, or the last position.
    """
    return np.minimum(np.searchsorted(ordered, goal), len(ordered) - 1)


@lru_cache(maxsize=512)
def without_dimension(held: Held, along: int, shape: tuple[int, ...]) -> Wanted:
    """Return the elements of the source of a broadcast that lanes read to fill the registers `held` of its result.

    The broadcast repeats a source of shape `shape` along dimension number `along` of the result. The result is cached.
    """
    coordinates = (*held.coordinates[:along], *held.coordinates[along + 1 :])
    ids = np.ravel_multi_index(coordinates, shape) if shape else np.zeros(held.lanes.shape, np.int64)
    return Wanted(held.lanes, np.asarray(ids), shape)


class ProductPart:
    """The part of a matrix product A*B that a wave computes: the rows of A and columns of B that its elements of C
    need.

    `left` and `right` are the coordinates of these elements in A and in B. Their product is a matrix; `results` holds,
    for each register of the wave, the number of its element in this matrix, last dimension fastest.
    """

    def __init__(self, held: Holding, depth: int):
        (rows, row_of), (columns, column_of) = held.rows_and_columns
        k = np.arange(depth)
        self.left = Coordinates((rows[:, None], k[None, :]))
        self.right = Coordinates((k[:, None], columns[None, :]))
        self.results: Array = row_of * len(columns) + column_of


@lru_cache(maxsize=512)
def product_of(held: Holding, depth: int) -> ProductPart:
    """Return the part of A*B that a wave computes if its registers hold the elements `held` of C.

    `depth` is the number of columns of A. The result is cached.
    """
    return ProductPart(held, depth)


@lru_cache(maxsize=512)
def registers_of(held: Holding, coordinates: Coordinates) -> Array | None:
    """Return an array with the number of a register for each element of a matrix at `coordinates`, (rows, columns).

    `held` says which elements the wave's registers hold. Return None if the wave does not hold one of the elements. The
    result is cached.
    """
    rows, columns = coordinates
    registers: Array = held.register_of_element[rows * held.shape[1] + columns]
    return registers if (registers >= 0).all() else None
