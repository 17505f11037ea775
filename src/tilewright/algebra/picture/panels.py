"""The arrangement of a layout's modes in a picture: mode 0 down, mode 1 across, further modes from panel to panel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, product
from operator import mul
from typing import Any

from tilewright.algebra.inttuple import is_int, leaves
from tilewright.algebra.inttuple import product as extent
from tilewright.algebra.layout import Layout, shape_text
from tilewright.algebra.swizzle import ComposedLayout
from tilewright.errors import LayoutError
from tilewright.limits import shown

LARGEST_SIDE = 128
LARGEST_AREA = LARGEST_SIDE * LARGEST_SIDE


@dataclass(frozen=True)
class PictureAxis:
    """One direction of a picture: how many cells, and how thick the line before each of them is.

    Weight 0 is no line. A nested mode has a line wherever its first sub-mode starts anew, a thicker one where its first
    two do, and so on.

    >>> PictureAxis.of((2, 3, 2)).weights
    (0, 0, 1, 0, 1, 0, 2, 0, 1, 0, 1, 0)
    """

    weights: tuple[int, ...]

    @classmethod
    def of(cls, mode: Any) -> PictureAxis:
        """Return the picture axis along a layout mode with the shape `mode`: a cell for each element, and lines between
        sub-modes.
        """
        extents = [s for s in leaves(mode) if s > 1]
        periods = list(accumulate(extents[:-1], mul))
        return cls(tuple(sum(i % p == 0 for p in periods) if i else 0 for i in range(extent(mode))))

    def __len__(self) -> int:
        return len(self.weights)


def axes_of(shape: Any) -> tuple[PictureAxis, PictureAxis]:
    """Return (rows, columns), the picture axes of a shape: mode 0 runs down, mode 1 across. A shape of one mode is one
    row.

    >>> [len(axis) for axis in axes_of(((2, 2), 6, 5))], [len(axis) for axis in axes_of(7)]
    ([4, 6], [1, 7])
    """
    modes = _as_modes(shape)
    if len(modes) < 2:
        return PictureAxis.of(1), PictureAxis.of(modes)
    return PictureAxis.of(modes[0]), PictureAxis.of(modes[1])


def panels_of(layout: Layout | ComposedLayout) -> Iterator[tuple[str, list[list[Any]]]]:
    """Yield (label, rows of values) for each panel of a layout's picture: one for each coordinate of the modes after
    the second.

    Panels come in the order of the linear index.

    >>> list(panels_of(Layout((2, 3))))
    [('', [[0, 2, 4], [1, 3, 5]])]
    >>> [label for label, _ in panels_of(Layout((2, 3, 2)))]
    ['(_,_,0)', '(_,_,1)']
    """
    modes = _as_modes(layout.shape)
    rows, columns = axes_of(layout.shape)
    missing = max(0, 2 - len(modes))  # a layout of one mode has no row in its coordinate
    further_ranges = [range(extent(mode)) for mode in modes[2:]]
    for slowest_first in product(*reversed(further_ranges)):
        further_coordinate = slowest_first[::-1]
        label = shape_text(("_", "_", *further_coordinate)) if further_coordinate else ""
        yield (
            label,
            [
                [_value_at(layout, (i, j, *further_coordinate)[missing:]) for j in range(len(columns))]
                for i in range(len(rows))
            ],
        )


def check_drawable(what: object, shape: Any) -> None:
    """Raise LayoutError if a picture of this shape would be too large: more than 128 rows or columns, or more than
    16384 cells.

    `what` is named in the message.
    """
    modes = _as_modes(shape)
    rows, columns = (1, extent(modes)) if len(modes) < 2 else (extent(modes[0]), extent(modes[1]))
    cells = extent(shape)
    if max(rows, columns) <= LARGEST_SIDE and cells <= LARGEST_AREA:
        return
    raise LayoutError(
        f"{shown(what, 80)} has {rows} rows and {columns} columns, {cells} cells in all; a picture holds up to "
        f"{LARGEST_SIDE} x {LARGEST_SIDE}: draw one tile of it (local_tile), or fold a long mode (logical_divide)"
    )


def _as_modes(shape: Any) -> tuple[Any, ...]:
    """Return a shape as a tuple of its modes; an int has one."""
    return shape if isinstance(shape, tuple) else (shape,)


def _value_at(layout: Layout | ComposedLayout, coordinate: tuple[int, ...]) -> Any:
    """Return the layout's value at a coordinate as a plain int, or as a coordinate tuple; raise LayoutError for other
    values.
    """
    value = layout(*coordinate)
    if isinstance(value, tuple):
        return value
    if is_int(value):
        return int(value)
    raise LayoutError(f"{layout} at {coordinate} is {value!r}: only offsets and coordinates can be drawn")
