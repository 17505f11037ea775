"""Pictures in a terminal: coloured cells, in bands as wide as the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.algebra.layout import Layout
from tilewright.algebra.picture.grid import Panel, Picture, layout_picture, partition_picture
from tilewright.algebra.picture.palette import text_colour
from tilewright.algebra.swizzle import ComposedLayout

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_NO_OWNER = "."


def layout_table(layout: Layout | ComposedLayout, **options: Any) -> PictureTable:
    """Return a layout as a coloured table that the library `rich` prints; `options` are those of `layout_svg`.

    >>> from rich.console import Console
    >>> Console(width=40, color_system=None).print(layout_table(Layout((2, 4), (4, 1))))
    (2,4):(4,1)
        0  1  2  3
     0  0  1  2  3
     1  4  5  6  7
    """
    return PictureTable(layout_picture(layout, **options))


def partition_table(tv_layout: Layout | ComposedLayout, shape: Any, **options: Any) -> PictureTable:
    """Return a thread/value partition of a tile of this shape as a coloured table that the library `rich` prints.

    `tv_layout` maps (thread, value) to the linear index in the tile; `options` are those of `partition_svg`.

    >>> from rich.console import Console
    >>> Console(width=40, color_system=None).print(partition_table(Layout((2, 2), (1, 2)), (2, 2)))
    (2,2):(1,2) of (2,2)
            0     1
     0 T0 V0 T0 V1
     1 T1 V0 T1 V1
    """
    return PictureTable(partition_picture(tv_layout, shape, **options))


@dataclass(frozen=True)
class PictureTable:
    """A picture that `rich` prints; columns that do not fit beside each other continue below."""

    picture: Picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        picture = self.picture
        if picture.title:
            yield Text(picture.title, style="bold")
        bands = list(self._bands(options.max_width))
        for panel in picture.panels:
            if panel.label:
                yield Text(panel.label, style="bold")
            for number, columns in enumerate(bands):
                if number:
                    yield Text("")
                yield from self._band_lines(panel, columns)
        for line in picture.caption:
            yield Text(line)

    @property
    def _cell_width(self) -> int:
        """Return the width of every cell in characters: the longest cell text, with a blank on both sides."""
        return 2 + max(len(" ".join(cell.lines)) for cell in self.picture.cells())

    @property
    def _number_width(self) -> int:
        """Return the width in characters of the column of row numbers."""
        return 2 + len(str(len(self.picture.rows) - 1))

    def _bands(self, width: int) -> Iterator[range]:
        """Yield the columns as consecutive ranges, each of which fits into `width` characters or is a single column."""
        columns, first_column, width_used = self.picture.columns, 0, self._number_width
        for column in range(len(columns)):
            width_needed = self._cell_width + (columns.weights[column] > 0)
            if column > first_column and width_used + width_needed > width:
                yield range(first_column, column)
                first_column, width_used = column, self._number_width
            width_used += width_needed
        yield range(first_column, len(columns))

    def _band_lines(self, panel: Panel, columns: range) -> Iterator[Text]:
        """Yield the lines of a panel for the given columns: the column numbers, then each row, with rules between
        sub-modes.
        """
        yield self._line("", columns, [(self._cell_text((str(column),)), "dim") for column in columns], " ")
        rule = [("─" * self._cell_width, "dim") for _ in columns]
        for row, cells in enumerate(panel.cells):
            if self.picture.rows.weights[row]:
                yield self._line("", columns, rule, "┼")
            texts = [(self._cell_text(cells[column].lines), _cell_style(cells[column].fill)) for column in columns]
            yield self._line(str(row), columns, texts, "│")

    def _line(self, number: str, columns: range, cells: list[tuple[str, str]], separator: str) -> Text:
        """Return one line of the table: the row number `number`, then `cells`, one (text, style) pair for each of
        `columns`.

        `separator` is drawn before each column at which a sub-mode starts anew.
        """
        from rich.text import Text

        line = Text(no_wrap=True, overflow="crop")
        line.append(number.rjust(self._number_width - 1) + " ", "dim")
        for column, (text, style) in zip(columns, cells, strict=True):
            if self.picture.columns.weights[column]:
                line.append(separator, "dim")
            line.append(text, style)
        return line

    def _cell_text(self, lines: tuple[str, ...]) -> str:
        """Return the text of one table cell: `lines` joined by spaces, with a space on both sides, right-aligned to the
        cell width.

        Without lines, or if all are empty, "." is the text.
        """
        return f" {' '.join(lines) or _NO_OWNER} ".rjust(self._cell_width)


def _cell_style(fill: str) -> str:
    """Return the `rich` style of a cell with the fill colour `fill`: readable text on this colour; "dim" if `fill` is
    empty.
    """
    return f"{text_colour(fill)} on {fill}" if fill else "dim"
