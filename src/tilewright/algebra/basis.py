"""Basis strides: layouts whose values are coordinates instead of offsets.

The stride `3@1` moves three steps along mode 1 of the codomain. A layout with such strides tells *which
element* a thread holds, not where it lies, and that is what a predicate compares with the tensor's shape:

>>> from tilewright.algebra import Layout, logical_divide
>>> tiles = logical_divide(Layout(10, E(0)), 4)      # ten elements in tiles of four: the last one is ragged
>>> tiles
Layout((4, 3), (1@0, 4@0))
>>> [tiles(i, 2)[0] < 10 for i in range(4)]
[True, True, False, False]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from tilewright.algebra.inttuple import TupleValue, is_int
from tilewright.errors import LayoutError
from tilewright.limits import NESTING, RANK, shown

Path: TypeAlias = "tuple[int, ...]"


class ScaledBasis(TupleValue):
    """`value` steps along the mode that `path` names, outermost mode first. Immutable.

    Printed as CuTe does, innermost mode first: `E(0, 1)` is `1@1@0`.
    """

    __slots__ = ("path", "value")
    __array_ufunc__ = None  # an array times a basis element is one basis element, not an array of them
    _parts = ("value", "path")

    value: Any
    path: Path

    def __init__(self, value: Any, path: Path):
        if not isinstance(path, tuple):
            raise LayoutError(f"a stride moves along a path of modes, a tuple, not {path!r}")
        for mode in path:
            if not is_int(mode) or not 0 <= mode < RANK.most:
                raise LayoutError(
                    f"the stride {shown(value)}@{shown(mode)}: modes are numbered from 0 to {RANK.most - 1}"
                )
        if NESTING.refuses(len(path)):
            raise LayoutError(f"a stride along {len(path)} modes in one another: {NESTING.rule}")
        self._keep(value=value, path=path)

    def __mul__(self, factor: Any) -> ScaledBasis:
        return ScaledBasis(self.value * factor, self.path)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        return Displacement({self.path: self.value}) + other

    __radd__ = __add__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScaledBasis):
            return NotImplemented
        return bool(self.value == other.value and self.path == other.path)

    def __hash__(self) -> int:
        return hash((self.value, self.path))

    def __repr__(self) -> str:
        return f"{self.value}" + "".join(f"@{mode}" for mode in reversed(self.path))


class Displacement:
    """A sum of scaled basis elements: the steps along each mode of the codomain, before they are written as a tuple."""

    __slots__ = ("steps",)
    __array_ufunc__ = None

    def __init__(self, steps: Mapping[Path, Any]):
        self.steps = dict(steps)

    def __add__(self, other: Any) -> Displacement:
        if _is_zero(other):
            return self
        if isinstance(other, ScaledBasis):
            other = Displacement({other.path: other.value})
        if not isinstance(other, Displacement):
            raise LayoutError(f"a coordinate and the offset {other!r} cannot be added: strides mix the two kinds")
        sums = dict(self.steps)
        for path, value in other.steps.items():
            sums[path] = sums[path] + value if path in sums else value
        return Displacement(sums)

    __radd__ = __add__


def _is_zero(x: Any) -> bool:
    """Return True if `x` is 0, or an array of zeros."""
    return not x.any() if isinstance(x, np.ndarray) else is_int(x) and not x


def E(*path: int) -> ScaledBasis:
    """Return the basis stride that moves one step along the mode `path` of the codomain (the space of a layout's
    values).

    The values of a layout with such strides are coordinates. `E(1)` is mode 1; `E(0, 1)` is mode 1 inside mode 0. Raise
    LayoutError for a negative mode number, and for too many modes.

    >>> E(0), 5 * E(1), E(0, 1)
    (1@0, 5@1, 1@1@0)
    """
    return ScaledBasis(1, path)


def coordinate_of(value: Any, strides: tuple[Any, ...]) -> Any:
    """Return `value`, a sum of basis strides that a layout computed, as a coordinate tuple.

    `strides` are the layout's strides, as a flat tuple; they determine how the coordinate is nested. Modes without a
    step are 0. Strides E(0) and E(1) and the value 2@1 give (0, 2). Raise LayoutError if `value` has steps along a mode
    inside which other strides move.
    """
    steps: Mapping[Path, Any]
    if isinstance(value, ScaledBasis):
        steps = {value.path: value.value}
    elif isinstance(value, Displacement):
        steps = value.steps
    else:  # every stride was multiplied by 0: the origin
        steps = {}
    paths = [stride.path for stride in strides if isinstance(stride, ScaledBasis)]
    return _build_coordinate((), paths, steps)


def _build_coordinate(prefix: Path, paths: list[Path], steps: Mapping[Path, Any]) -> Any:
    """Return the coordinate inside the mode `prefix` (a path of mode numbers): an int, or a tuple with one entry for
    each mode.

    `paths` are all modes along which strides move; `steps` is {path: number of steps}. Raise LayoutError if there are
    steps along `prefix` and strides along a mode inside `prefix`.
    """
    below = [p for p in paths if len(p) > len(prefix) and p[: len(prefix)] == prefix]
    if not below:
        return steps.get(prefix, 0)
    if prefix in steps:
        raise LayoutError(f"the strides step along {ScaledBasis(1, prefix)} and along {ScaledBasis(1, below[0])} in it")
    width = 1 + max(p[len(prefix)] for p in below)
    return tuple(_build_coordinate((*prefix, mode), below, steps) for mode in range(width))
