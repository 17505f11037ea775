"""Places of elements in memory that are asked for again and again, such as those of a view in a loop.

Most coordinates of a view are the sum of two parts: one depends on the element and is the same in every iteration, the
other depends on the loop variables. The first part is computed once, as a `Pattern`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol
from tilewright.interpret.evaluation import Separated, evaluated, separated

Array = np.ndarray[Any, np.dtype[Any]]

MOST_ELEMENTS = 1 << 14
"""Arrays with more elements are not kept: they would take much memory, and save little of the time."""

_KEPT_SWIZZLED = 4
"""The most swizzled arrays that a `Pattern` keeps."""


class Coordinates(tuple[Array, ...]):
    """Coordinates of elements, one array for each dimension, that are compared and hashed by identity.

    They are keys of caches for results that are computed from them. `shape` is the shape to which the arrays broadcast,
    and `size` its number of elements.
    """

    shape: tuple[int, ...]
    size: int

    def __new__(cls, arrays: tuple[Array, ...]) -> Coordinates:
        """Return the coordinates `arrays`, which are made read-only, since others keep them too."""
        coordinates = super().__new__(cls, arrays)
        coordinates.shape = np.broadcast_shapes(*(a.shape for a in arrays))
        coordinates.size = int(np.prod(coordinates.shape, dtype=np.int64))
        for array in arrays:
            array.setflags(write=False)
        return coordinates

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class Pattern:
    """The element numbers of a view in memory, up to one offset that depends on loop variables.

    `places` are the element numbers if the loop variables add nothing, and `limits` the least and greatest coordinate
    then, for each dimension of the memory. `strides` are those of the memory. `parts` are the coordinates, split into
    terms of the elements and numbers of the loop variables.
    """

    def __init__(self, places: Array, limits: tuple[tuple[int, int], ...], strides: tuple[int, ...], parts: Separated):
        self.places, self.limits, self.strides, self.parts = places, limits, strides, parts
        self._swizzled: dict[tuple[Any, int], Array] = {}

    def offset(self, values: Mapping[str, Any], sizes: tuple[int, ...]) -> int | None:
        """Return the number that the loop variables, `values` = {name: value}, add to each of `self.places`.

        Return None if a coordinate would be out of bounds (`sizes` are the extents), or if a value is missing or an
        array.
        """
        numbers = self.parts.numbers(values)
        if numbers is None:
            return None
        offset = 0
        for number, (least, greatest), size, stride in zip(numbers, self.limits, sizes, self.strides, strict=True):
            if number + least < 0 or number + greatest >= size:
                return None
            offset += number * stride
        return offset

    @cached_property
    def is_one_to_one(self) -> bool:
        """True if no two elements have the same address."""
        return bool(np.unique(self.places).size == self.places.size)

    def at(self, offset: int, swizzle: Any) -> Array:
        """Return `self.places` plus `offset`, swizzled by `swizzle` (None: not swizzled). The array must not be
        changed.

        A few swizzled results are cached, since shared memory has few stages.
        """
        if swizzle is None:
            return self.places + offset if offset else self.places
        swizzled_places = self._swizzled.get((swizzle, offset))
        if swizzled_places is None:
            swizzled_places = swizzle(self.places + offset)
            swizzled_places.setflags(write=False)
            if len(self._swizzled) == _KEPT_SWIZZLED:
                self._swizzled.clear()
            self._swizzled[swizzle, offset] = swizzled_places
        return swizzled_places


@lru_cache(maxsize=512)
def pattern(
    coordinates: Coordinates, names: tuple[str, ...], at: tuple[Expr, ...], strides: tuple[int, ...]
) -> Pattern | None:
    """Return the Pattern of the elements of a view at `coordinates` along its axes `names`. The result is cached.

    `at` are the coordinates in the viewed tensor, as expressions of the axes and of loop variables; `strides` are the
    strides of that tensor. Return None if there are no elements or more than `MOST_ELEMENTS`, if a term depends on both
    axes and loop variables, or if a term is no integer, such as a condition.
    """
    parts = separated(at, names)
    if parts is None or not 0 < coordinates.size <= MOST_ELEMENTS:
        return None
    arrays = dict(zip(names, coordinates, strict=True))
    places: Array = np.zeros(coordinates.shape, np.int64)
    limits = []
    for terms, stride in zip(parts.terms, strides, strict=True):
        varying = _sum_over(terms, arrays)
        if varying is None:
            return None
        limits.append((int(varying.min()), int(varying.max())))
        places += varying * stride
    places.setflags(write=False)
    return Pattern(places, tuple(limits), strides, parts)


def _sum_over(terms: tuple[tuple[Expr, int], ...], arrays: Mapping[str, Array]) -> Array | None:
    """Return the sum of coefficient * expression over `terms`, pairs (expression, coefficient).

    `arrays` is {symbol name: its values}. Return None if an expression is a condition, since numpy adds conditions as
    truth values.
    """
    total: Array = np.zeros((), np.int64)
    for term, coefficient in terms:
        if isinstance(term, Symbol) and term.definition is None:
            value = arrays[term.name]
        else:
            value = evaluated(term, arrays)
        if value.dtype != np.int64:
            return None
        total = total + coefficient * value
    return total


@lru_cache(maxsize=512)
def flat_places(coordinates: Coordinates, strides: tuple[int, ...]) -> Array:
    """Return the element numbers, relative to the start of a tensor, of its elements at `coordinates`; `strides` are
    the strides of the tensor. The result is cached and must not be changed.
    """
    total: Array = np.zeros(coordinates.shape, np.int64)
    for coordinate, stride in zip(coordinates, strides, strict=True):
        total += coordinate * stride
    total.setflags(write=False)
    return total
