"""Text and colour of each cell of a picture; drawn by `svg` and by `terminal`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.algebra.inttuple import leaves
from tilewright.algebra.layout import Layout, rank, shape_text, size
from tilewright.algebra.picture.banks import (
    banks_text,
    bytes_text,
    check_banks,
    counted,
    layout_conflicts,
    passes_text,
    words_of,
)
from tilewright.algebra.picture.owners import (
    Owner,
    conflicts_text,
    owner_lines,
    owners_of,
    partition_conflicts,
)
from tilewright.algebra.picture.palette import bank_colour, ramp, thread_colour
from tilewright.algebra.picture.panels import PictureAxis, axes_of, check_drawable, panels_of
from tilewright.algebra.swizzle import ComposedLayout
from tilewright.errors import LayoutError


@dataclass(frozen=True)
class Cell:
    """One cell: its lines of text and its fill colour, as #rrggbb; a cell without an owner has no fill."""

    lines: tuple[str, ...]
    fill: str = ""


@dataclass(frozen=True)
class Panel:
    """One grid of cells, with a label if there are several."""

    label: str
    cells: list[list[Cell]]


@dataclass(frozen=True)
class Picture:
    """Panels of one size, one below the other, under a title and above lines of caption."""

    title: str
    rows: PictureAxis
    columns: PictureAxis
    panels: list[Panel]
    caption: list[str]

    def cells(self) -> Iterator[Cell]:
        """Yield the cells of all panels, panel by panel and row by row."""
        for panel in self.panels:
            for line in panel.cells:
                yield from line


def layout_picture(
    layout: Layout | ComposedLayout,
    *,
    threads: Layout | ComposedLayout | None = None,
    element_bytes: int | None = None,
    bank_bytes: int = 4,
    banks: int = 32,
    title: str | None = None,
) -> Picture:
    """Return the `Picture` of a layout (text and colour of each cell), with one cell for each coordinate.

    `threads` is a (thread, value) layout: cells are then coloured by thread, otherwise by memory bank (with
    `element_bytes`) or by offset. The memory has `banks` banks, each `bank_bytes` wide. Without `title` the layout's
    text is the title. Raise LayoutError if there are too many cells, or if `threads` does not fit the layout.

    >>> picture = layout_picture(Layout((2, 2), (2, 1)))
    >>> [cell.lines for cell in picture.cells()]
    [('0',), ('1',), ('2',), ('3',)]
    """
    check_drawable(layout, layout.shape)
    values = list(panels_of(layout))
    caption = []
    if threads is not None:
        cells = _cells_by_thread(values, owners_of(threads, layout.shape))
        caption.append(f"threads and values: {threads}")
        if element_bytes is not None:
            caption += _partition_caption(threads, layout, element_bytes, bank_bytes, banks)
    elif element_bytes is not None:
        check_banks(element_bytes, bank_bytes, banks)
        cells = _cells_by_bank(values, element_bytes, bank_bytes, banks)
        caption += _layout_caption(layout, element_bytes, bank_bytes, banks)
    else:
        cells = _cells_by_value(values)
    panels = [Panel(label, grid) for (label, _), grid in zip(values, cells, strict=True)]
    rows, columns = axes_of(layout.shape)
    return Picture(str(layout) if title is None else title, rows, columns, panels, caption)


def partition_picture(
    partition: Layout | ComposedLayout,
    shape: Any,
    *,
    memory: Layout | ComposedLayout | None = None,
    element_bytes: int | None = None,
    bank_bytes: int = 4,
    banks: int = 32,
    title: str | None = None,
) -> Picture:
    """Return the `Picture` (text and colour of each cell) of a thread/value partition of a tile of this shape, (M, N).

    `partition` maps (thread, value) to the linear index in the tile. With `element_bytes`, a caption says how many
    passes an access takes, for a tile stored as `memory` (packed if None) in `banks` banks, each `bank_bytes` wide.
    Without `title` there is one made of partition and shape. Raise LayoutError if the arguments do not fit.

    >>> picture = partition_picture(Layout((2, 2), (2, 1)), (2, 2))
    >>> [cell.lines for cell in picture.cells()]
    [('T0', 'V0'), ('T1', 'V0'), ('T0', 'V1'), ('T1', 'V1')]
    """
    if rank(shape) != 2:
        raise LayoutError(f"the tile {shape_text(shape)} has rank {rank(shape)}: a partition is drawn on (M, N)")
    tile = Layout(shape)
    check_drawable(f"the tile {shape_text(shape)}", shape)
    owners = owners_of(partition, shape)
    cells = [[_owned_cell(owners[index]) for index in line] for _, values in panels_of(tile) for line in values]
    caption = []
    if element_bytes is not None:
        _check_memory(memory, shape)
        memory = tile if memory is None else memory
        caption = [*_partition_caption(partition, memory, element_bytes, bank_bytes, banks), f"in memory: {memory}"]
    elif memory is not None:
        raise LayoutError(f"a memory layout {memory} without element_bytes: say how many bytes an element has")
    rows, columns = axes_of(shape)
    heading = f"{partition} of {shape_text(shape)}" if title is None else title
    return Picture(heading, rows, columns, [Panel("", cells)], caption)


def _check_memory(memory: Layout | ComposedLayout | None, shape: Any) -> None:
    """Raise LayoutError unless the layout `memory` can be drawn and has as many rows and columns as the tile `shape`.

    If `memory` is None, do nothing.
    """
    if memory is not None:
        check_drawable(memory, memory.shape)
    if memory is not None and [len(axis) for axis in axes_of(memory.shape)] != [len(axis) for axis in axes_of(shape)]:
        raise LayoutError(f"the memory layout {memory} is not one of the tile {shape_text(shape)}")


# -- cells ------------------------------------------------------------------------------------------

_Values = list[tuple[str, list[list[Any]]]]


def _cells_by_value(panels: _Values) -> list[list[list[Cell]]]:
    """Return the cells of each panel as [panel][row][column], coloured by value.

    `panels` are pairs (label, rows of values). The colour of a number (an offset) shows its position between the
    smallest and the largest number of all panels. The colour of a tuple (a coordinate) shows its number among the
    sorted tuples.
    """
    positions = _positions([value for _, values in panels for line in values for value in line])
    return [[[Cell((shape_text(v),), ramp(positions[v])) for v in line] for line in values] for _, values in panels]


def _positions(values: Sequence[Any]) -> dict[Any, float]:
    """Return {value: position on the colour ramp, from 0 to 1}.

    The position of a number is proportional to its distance from the smallest number; the largest has 1. If a value is
    a tuple (coordinates), all values are evenly spaced in colexicographic order, in which the first entry varies
    fastest: (0, 0), (1, 0), (0, 1), (1, 1).
    """
    if any(isinstance(value, tuple) for value in values):
        ordered = sorted(set(values), key=lambda value: leaves(value)[::-1])
        return {value: rank / max(1, len(ordered) - 1) for rank, value in enumerate(ordered)}
    low, high = min(values), max(values)
    return {value: (value - low) / max(1, high - low) for value in values}


def _cells_by_bank(panels: _Values, element_bytes: int, bank_bytes: int, banks: int) -> list[list[list[Cell]]]:
    """Return the cells of each panel as [panel][row][column], coloured by memory bank, with offset and bank as text.

    `panels` are pairs (label, rows of offsets); offsets count elements of `element_bytes`. The memory has `banks`
    banks, each `bank_bytes` wide.
    """

    def cell(offset: Any) -> Cell:
        words = words_of(offset, element_bytes, bank_bytes)
        first, last = words[0] % banks, words[-1] % banks
        name = f"b{first}" if len(words) == 1 else f"b{first}-{last}"
        return Cell((str(offset), name), bank_colour(first, banks))

    return [[[cell(value) for value in line] for line in values] for _, values in panels]


def _cells_by_thread(panels: _Values, owners: list[list[Owner]]) -> list[list[list[Cell]]]:
    """Return the cells of each panel as [panel][row][column], coloured by the thread that holds the element.

    `panels` are pairs (label, rows of values). `owners` holds a list of (thread, value) pairs for each element, by
    linear index; this index runs down the columns, then from panel to panel.
    """
    grids = []
    index = 0
    for _, values in panels:
        height = len(values)
        grid = [
            [_owned_cell(owners[index + i + height * j], shape_text(value)) for j, value in enumerate(line)]
            for i, line in enumerate(values)
        ]
        grids.append(grid)
        index += height * len(values[0])
    return grids


def _owned_cell(owners: Sequence[Owner], value: str = "") -> Cell:
    """Return the cell of an element that `owners`, (thread, value) pairs, hold, in the colour of the first owner's
    thread.

    The text has two lines: thread and value, such as "T3" and "V1". With a text `value`, the first line is `value`, and
    the second has thread and value. Without owners the cell has no colour, and no text but `value`.
    """
    lines = owner_lines(owners)
    if value:
        lines = (value, " ".join(lines)) if lines else (value,)
    return Cell(lines, thread_colour(owners[0].thread) if owners else "")


# -- captions ---------------------------------------------------------------------------------------


def _layout_caption(layout: Layout | ComposedLayout, element_bytes: int, bank_bytes: int, banks: int) -> list[str]:
    """Return the caption lines that say in how many passes a row and a column of the layout are read from a banked
    memory.

    The memory has `banks` banks, each `bank_bytes` wide; offsets count elements of `element_bytes`.
    """
    column, row = layout_conflicts(layout, element_bytes, bank_bytes, banks)
    passes = f"a row: {passes_text(row)}, a column: {passes_text(column)}, {banks_text(bank_bytes, banks)}"
    return [passes, f"elements of {bytes_text(element_bytes)}"]


def _partition_caption(
    partition: Layout | ComposedLayout,
    memory: Layout | ComposedLayout,
    element_bytes: int,
    bank_bytes: int,
    banks: int,
) -> list[str]:
    """Return the caption lines that say how many passes an access takes in which all threads access their value of one
    number.

    `partition` maps (thread, value) to an index in the tile. The tile is stored as the layout `memory`, in elements of
    `element_bytes`, in a memory of `banks` banks, each `bank_bytes` wide.
    """
    passes = conflicts_text(partition_conflicts(partition, memory, element_bytes, bank_bytes, banks))
    thread_count = counted(size(partition.shape, 0), "thread", "threads")
    return [
        f"{passes}, {thread_count} at once",
        f"{banks_text(bank_bytes, banks)}, elements of {bytes_text(element_bytes)}",
    ]
