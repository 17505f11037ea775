"""Pictures as SVG: one standalone document, for light and dark pages, without fonts or scripts from elsewhere.

Cells carry their own fill and text colour. Everything else is drawn in a grey that can be read on white and
on black, and turns lighter where the reader prefers dark pages.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.algebra.layout import Layout
from tilewright.algebra.picture.grid import Cell, Panel, Picture, layout_picture, partition_picture
from tilewright.algebra.picture.palette import text_colour
from tilewright.algebra.picture.panels import PictureAxis
from tilewright.algebra.swizzle import ComposedLayout

_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_CHARACTER = 0.602  # the width of a character of such fonts, for a font size of 1
_CENTRE = 0.35  # how far below the middle of a line its baseline lies, for a font size of 1

_TITLE, _TEXT, _SMALL = 14.0, 13.0, 11.0  # font sizes
_MARGIN = 14.0
_PADDING = 5.0  # between a cell's text and its sides
_GAP = 1.0  # between cells that no line separates
_SMALLEST_CELL = 28.0

_STYLE = (
    ".tilewright-picture .ink{fill:#767676}"
    ".tilewright-picture .line{stroke:#767676;fill:none}"
    "@media (prefers-color-scheme:dark){"
    ".tilewright-picture .ink{fill:#a0a0a0}"
    ".tilewright-picture .line{stroke:#a0a0a0}"
    "}"
)


def layout_svg(
    layout: Layout | ComposedLayout,
    *,
    threads: Layout | ComposedLayout | None = None,
    element_bytes: int | None = None,
    bank_bytes: int = 4,
    banks: int = 32,
    title: str | None = None,
) -> str:
    """A layout as an SVG document: a cell for each coordinate, in it the offset.

    Mode 0 runs down, mode 1 across, and each coordinate of further modes has a panel of its own; a layout of
    rank 1 is one row. Nested modes are laid out flat, with lines where their sub-modes start anew. Colours
    follow the offset, from blue to yellow.

    With `element_bytes` the colours and the second line of each cell show the memory bank, and a caption says
    in how many passes a row or a column can be read. With `threads`, a (thread, value) layout into the linear
    index of `layout`, they show who holds the element, and the passes are those of all threads at once.

    >>> svg = layout_svg(Layout((4, 8), (8, 1)), element_bytes=4)
    >>> "a row: 1 pass, a column: 1 pass, 32 banks of 4 bytes" in svg
    True
    """
    picture = layout_picture(
        layout, threads=threads, element_bytes=element_bytes, bank_bytes=bank_bytes, banks=banks, title=title
    )
    return picture_svg(picture)


def partition_svg(
    tv_layout: Layout | ComposedLayout,
    shape: Any,
    *,
    memory: Layout | ComposedLayout | None = None,
    element_bytes: int | None = None,
    bank_bytes: int = 4,
    banks: int = 32,
    title: str | None = None,
) -> str:
    """A partition of a tile among threads as an SVG document: in each cell its thread and value, T3 and V1.

    `tv_layout` sends (thread, value) to the linear index, first mode fastest, in the tile of the given shape
    (M, N). An element of several threads shows the first and how many more: T0 +3. One of nobody is hatched.

    With `element_bytes` a caption says how many passes each value takes when all threads access it at once,
    the tile lying in memory as the layout `memory` says (packed, first mode fastest, if it is not given).

    >>> svg = partition_svg(Layout((4, 2), (2, 1)), (2, 4))
    >>> "T3" in svg, "V1" in svg, "T4" in svg
    (True, True, False)
    """
    picture = partition_picture(
        tv_layout,
        shape,
        memory=memory,
        element_bytes=element_bytes,
        bank_bytes=bank_bytes,
        banks=banks,
        title=title,
    )
    return picture_svg(picture)


def picture_svg(picture: Picture) -> str:
    """A picture as an SVG document.

    >>> picture_svg(layout_picture(Layout((2, 2)))).count("<rect")
    4
    """
    sheet = _Sheet.of(picture)
    body: list[str] = []
    top = _MARGIN
    if picture.title:
        body.append(_text(picture.title, _MARGIN, top + _TITLE / 2, _TITLE, "ink", 'font-weight="bold"'))
        top += _TITLE + 8
    for panel in picture.panels:
        if panel.label:
            body.append(_text(panel.label, _MARGIN, top + _TEXT / 2, _TEXT, "ink"))
            top += _TEXT + 6
        body.extend(sheet.draw(panel, top))
        top += sheet.height + 14
    for line in picture.caption:
        body.append(_text(line, _MARGIN, top + _TEXT / 2, _TEXT, "ink"))
        top += _TEXT + 6
    height = top - (6 if picture.caption else 14) + _MARGIN
    return "\n".join([*_head(picture, max(sheet.width, _words_width(picture)), height), *body, "</svg>\n"])


def _head(picture: Picture, width: float, height: float) -> Iterator[str]:
    size = f'width="{_number(width)}" height="{_number(height)}" viewBox="0 0 {_number(width)} {_number(height)}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" class="tilewright-picture" role="img" {size} font-family="{_FONT}">'
    yield f"<title>{_escape(picture.title)}</title>"
    yield f"<style>{_STYLE}</style>"


def _words_width(picture: Picture) -> float:
    """The width of a sheet that the title and the caption need."""
    texts = [(picture.title, _TITLE), *((line, _TEXT) for line in picture.caption)]
    return 2 * _MARGIN + max(len(text) * size * _CHARACTER for text, size in texts)


@dataclass(frozen=True)
class _Sheet:
    """Where the cells of a panel lie, below its top: all panels of a picture are alike."""

    picture: Picture
    left: float  # where the first column starts
    head: float  # the height of the column numbers
    lefts: list[float]
    tops: list[float]
    cell_width: float
    cell_height: float

    @classmethod
    def of(cls, picture: Picture) -> _Sheet:
        """The sheet whose cells hold the longest text of the picture."""
        cell_width, cell_height = _cell_size(picture)
        left = float(round(_MARGIN + len(str(len(picture.rows) - 1)) * _SMALL * _CHARACTER + 7))  # sharp edges
        head = _SMALL + 6
        lefts = _starts(picture.columns, cell_width, left)
        return cls(picture, left, head, lefts, _starts(picture.rows, cell_height, head), cell_width, cell_height)

    @property
    def width(self) -> float:
        """The width of the whole document that the panels need."""
        return self.lefts[-1] + self.cell_width + _MARGIN

    @property
    def height(self) -> float:
        """The height of a panel with its column numbers."""
        return self.tops[-1] + self.cell_height

    def draw(self, panel: Panel, top: float) -> Iterator[str]:
        """The elements of one panel."""
        yield f'<g transform="translate(0 {_number(top)})" font-size="{_number(_SMALL)}">'
        yield from self._numbers()
        yield from self._lines()
        yield f'<g font-size="{_number(_TEXT)}" text-anchor="middle">'
        for y, line in zip(self.tops, panel.cells, strict=True):
            for x, cell in zip(self.lefts, line, strict=True):
                yield self._cell(cell, x, y)
        yield "</g>"
        yield "</g>"

    def _numbers(self) -> Iterator[str]:
        """The numbers of the columns above them and those of the rows at their left."""
        yield '<g class="ink" text-anchor="middle">'
        for column, x in enumerate(self.lefts):
            yield _plain(str(column), x + self.cell_width / 2, self.head - 5)
        yield "</g>"
        yield '<g class="ink" text-anchor="end">'
        for row, y in enumerate(self.tops):
            yield _plain(str(row), self.left - 6, y + self.cell_height / 2 + _SMALL * _CENTRE)
        yield "</g>"

    def _lines(self) -> Iterator[str]:
        """The lines between sub-modes, in the gaps between cells."""
        right, bottom = self.lefts[-1] + self.cell_width, self.tops[-1] + self.cell_height
        for x, weight in zip(self.lefts, self.picture.columns.weights, strict=True):
            if weight:
                yield _line(f"M{_number(x - _gap(weight) / 2)} {_number(self.head)}V{_number(bottom)}", weight)
        for y, weight in zip(self.tops, self.picture.rows.weights, strict=True):
            if weight:
                yield _line(f"M{_number(self.left)} {_number(y - _gap(weight) / 2)}H{_number(right)}", weight)

    def _cell(self, cell: Cell, x: float, y: float) -> str:
        width, height = self.cell_width, self.cell_height
        if not cell.fill:
            return _unowned(cell, x, y, width, height)
        ink = f'fill="{text_colour(cell.fill)}"'
        return f'<rect {_box(x, y, width, height)} fill="{cell.fill}"/>' + _cell_text(
            cell, x + width / 2, y + height / 2, ink
        )


def _cell_size(picture: Picture) -> tuple[float, float]:
    """The size of a cell that holds every text of the picture."""
    width, height = _SMALLEST_CELL, _SMALLEST_CELL - 2
    for cell in picture.cells():
        for number, line in enumerate(cell.lines):
            width = max(width, len(line) * _line_size(number) * _CHARACTER + 2 * _PADDING)
        if len(cell.lines) == 2:
            height = _TEXT + _SMALL + 3 * _PADDING - 1
    return float(round(width)), height


def _line_size(number: int) -> float:
    return _SMALL if number else _TEXT


def _cell_text(cell: Cell, x: float, y: float, ink: str) -> str:
    """The lines of a cell around its centre."""
    if not cell.lines:
        return ""
    if len(cell.lines) == 1:
        return _plain(cell.lines[0], x, y + _TEXT * _CENTRE, ink)
    first, second = cell.lines
    small = f'font-size="{_number(_SMALL)}" {ink}'
    return _plain(first, x, y - 2, ink) + _plain(second, x, y + _SMALL + 1, small)


def _box(x: float, y: float, width: float, height: float) -> str:
    return f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'


def _unowned(cell: Cell, x: float, y: float, width: float, height: float) -> str:
    """A cell of nobody: an outline with hatching, and a text only where there is a value."""
    box = _box(x + 0.5, y + 0.5, width - 1, height - 1)
    step = height / 2
    strokes = f"M{_number(x + 1)} {_number(y + step)}l{_number(step - 1)} {_number(1 - step)}"
    strokes += f"M{_number(x + width - step)} {_number(y + height - 1)}l{_number(step - 1)} {_number(1 - step)}"
    outline = f'<rect {box} class="line" stroke-opacity="0.6"/>'
    if cell.lines:
        return outline + _cell_text(cell, x + width / 2, y + height / 2, 'class="ink"')
    return outline + f'<path d="{strokes}" class="line" stroke-opacity="0.6"/>'


def _starts(axis: PictureAxis, cell: float, start: float) -> list[float]:
    """Where each cell along an axis starts."""
    starts = [start]
    for weight in axis.weights[1:]:
        starts.append(starts[-1] + cell + _gap(weight))
    return starts


def _gap(weight: int) -> float:
    return _GAP + 2 + 2 * min(weight, 3) if weight else _GAP


def _line(path: str, weight: int) -> str:
    return f'<path d="{path}" class="line" stroke-width="{_number(0.5 + min(weight, 3))}"/>'


def _plain(content: str, x: float, y: float, attributes: str = "") -> str:
    blank = " " if attributes else ""
    return f'<text x="{_number(x)}" y="{_number(y)}"{blank}{attributes}>{_escape(content)}</text>'


def _text(content: str, x: float, middle: float, size: float, kind: str, attributes: str = "") -> str:
    """A text of its own, at the left end of a line with this middle."""
    return _plain(
        content, x, middle + size * _CENTRE, f'class="{kind}" font-size="{_number(size)}" {attributes}'.strip()
    )


def _number(x: float) -> str:
    return f"{x:.2f}".rstrip("0").rstrip(".")


def _escape(text: str) -> str:
    """Text for XML; characters that XML cannot hold are shown as the replacement character."""
    return html.escape(re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))
