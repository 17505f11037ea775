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
    """Return a layout as the text of an SVG document: one cell for each coordinate, with the offset in it.

    Mode 0 runs down, mode 1 across, and each coordinate of further modes has its own panel; a layout of rank 1 is one
    row. Nested modes are drawn flat, with lines where their sub-modes start anew. Colours follow the offset, from blue
    to yellow.

    With `element_bytes` the colours and the second line of each cell show the memory bank (of `banks`, each
    `bank_bytes` wide), and a caption says in how many passes a row or a column can be read. With `threads`, a (thread,
    value) layout into the linear index of `layout`, they show which thread holds the element, and the passes are those
    of all threads at once.

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
    """Return a partition of a tile among threads as the text of an SVG document, with thread and value in each cell.

    `tv_layout` maps (thread, value) to the linear index, first mode fastest, in the tile of the given shape (M, N). An
    element of several threads shows the first and how many more: T0 +3. One that no thread holds is hatched.

    With `element_bytes` a caption says how many passes each value takes when all threads access it at once, in a memory
    of `banks` banks, each `bank_bytes` wide; the layout `memory` says how the tile is stored (packed, first mode
    fastest, if it is None).

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
    """Return a `Picture` (text and colour of all cells) as the text of an SVG document.

    >>> picture_svg(layout_picture(Layout((2, 2)))).count("<rect")
    4
    """
    sheet = _Sheet.of(picture)
    body: list[str] = []
    top = _MARGIN
    if picture.title:
        body.append(_heading(picture.title, _MARGIN, top + _TITLE / 2, _TITLE, "ink", 'font-weight="bold"'))
        top += _TITLE + 8
    for panel in picture.panels:
        if panel.label:
            body.append(_heading(panel.label, _MARGIN, top + _TEXT / 2, _TEXT, "ink"))
            top += _TEXT + 6
        body.extend(sheet.draw(panel, top))
        top += sheet.height + 14
    for line in picture.caption:
        body.append(_heading(line, _MARGIN, top + _TEXT / 2, _TEXT, "ink"))
        top += _TEXT + 6
    height = top - (6 if picture.caption else 14) + _MARGIN
    return "\n".join([*_head(picture, max(sheet.width, _text_width(picture)), height), *body, "</svg>\n"])


def _head(picture: Picture, width: float, height: float) -> Iterator[str]:
    """Yield the first lines of an SVG document of this width and height: the root element, the title and the style
    sheet.
    """
    size = f'width="{_number(width)}" height="{_number(height)}" viewBox="0 0 {_number(width)} {_number(height)}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" class="tilewright-picture" role="img" {size} font-family="{_FONT}">'
    yield f"<title>{_escape(picture.title)}</title>"
    yield f"<style>{_STYLE}</style>"


def _text_width(picture: Picture) -> float:
    """Return the width of the document, with margins, that the picture's title and caption need."""
    texts = [(picture.title, _TITLE), *((line, _TEXT) for line in picture.caption)]
    return 2 * _MARGIN + max(len(text) * size * _CHARACTER for text, size in texts)


@dataclass(frozen=True)
class _Sheet:
    """The positions of the cells of a panel, relative to its top; all panels of a picture are alike."""

    picture: Picture
    left: float  # where the first column starts
    head: float  # the height of the column numbers
    lefts: list[float]
    tops: list[float]
    cell_width: float
    cell_height: float

    @classmethod
    def of(cls, picture: Picture) -> _Sheet:
        """Return the sheet (positions of all cells) for a picture, with cells that are large enough for
        all its texts.
        """
        cell_width, cell_height = _cell_size(picture)
        left = float(round(_MARGIN + len(str(len(picture.rows) - 1)) * _SMALL * _CHARACTER + 7))  # sharp edges
        head = _SMALL + 6
        lefts = _cell_starts(picture.columns, cell_width, left)
        return cls(picture, left, head, lefts, _cell_starts(picture.rows, cell_height, head), cell_width, cell_height)

    @property
    def width(self) -> float:
        """Return the width of the document, with margins, that the cells of a panel need."""
        return self.lefts[-1] + self.cell_width + _MARGIN

    @property
    def height(self) -> float:
        """Return the height of a panel, from the column numbers above it to the lower end of its last row."""
        return self.tops[-1] + self.cell_height

    def draw(self, panel: Panel, top: float) -> Iterator[str]:
        """Yield the SVG elements of one panel whose top is at the vertical position `top`."""
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
        """Yield the SVG elements of the column numbers, above the columns, and of the row numbers, left of the rows."""
        yield '<g class="ink" text-anchor="middle">'
        for column, x in enumerate(self.lefts):
            yield _text_element(str(column), x + self.cell_width / 2, self.head - 5)
        yield "</g>"
        yield '<g class="ink" text-anchor="end">'
        for row, y in enumerate(self.tops):
            yield _text_element(str(row), self.left - 6, y + self.cell_height / 2 + _SMALL * _CENTRE)
        yield "</g>"

    def _lines(self) -> Iterator[str]:
        """Yield the SVG elements of the lines between sub-modes, which lie in the gaps between cells."""
        right, bottom = self.lefts[-1] + self.cell_width, self.tops[-1] + self.cell_height
        for x, weight in zip(self.lefts, self.picture.columns.weights, strict=True):
            if weight:
                yield _line_element(f"M{_number(x - _gap(weight) / 2)} {_number(self.head)}V{_number(bottom)}", weight)
        for y, weight in zip(self.tops, self.picture.rows.weights, strict=True):
            if weight:
                yield _line_element(f"M{_number(self.left)} {_number(y - _gap(weight) / 2)}H{_number(right)}", weight)

    def _cell(self, cell: Cell, x: float, y: float) -> str:
        """Return the SVG elements of a cell, its rectangle and its text. The upper left corner of the cell is at (x,
        y).
        """
        width, height = self.cell_width, self.cell_height
        if not cell.fill:
            return _unowned_cell(cell, x, y, width, height)
        ink = f'fill="{text_colour(cell.fill)}"'
        return f'<rect {_rect_attributes(x, y, width, height)} fill="{cell.fill}"/>' + _cell_lines(
            cell, x + width / 2, y + height / 2, ink
        )


def _cell_size(picture: Picture) -> tuple[float, float]:
    """Return (width, height) of a cell that is large enough for every text of the picture."""
    width, height = _SMALLEST_CELL, _SMALLEST_CELL - 2
    for cell in picture.cells():
        for number, line in enumerate(cell.lines):
            width = max(width, len(line) * _line_size(number) * _CHARACTER + 2 * _PADDING)
        if len(cell.lines) == 2:
            height = _TEXT + _SMALL + 3 * _PADDING - 1
    return float(round(width)), height


def _line_size(number: int) -> float:
    """Return the font size of line `number` of a cell's text; line 0 is larger than the others."""
    return _SMALL if number else _TEXT


def _cell_lines(cell: Cell, x: float, y: float, ink: str) -> str:
    """Return the SVG text elements of a cell's lines (none, one or two), centred at (x, y); an empty text if there are
    no lines.

    A single line is in the normal font. The second of two lines is below the first, in a smaller font. `ink` holds the
    colour attributes.
    """
    if not cell.lines:
        return ""
    if len(cell.lines) == 1:
        return _text_element(cell.lines[0], x, y + _TEXT * _CENTRE, ink)
    first, second = cell.lines
    small = f'font-size="{_number(_SMALL)}" {ink}'
    return _text_element(first, x, y - 2, ink) + _text_element(second, x, y + _SMALL + 1, small)


def _rect_attributes(x: float, y: float, width: float, height: float) -> str:
    """Return the SVG attributes of a rectangle, `width` x `height`, whose upper left corner is at (x, y)."""
    return f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'


def _unowned_cell(cell: Cell, x: float, y: float, width: float, height: float) -> str:
    """Return the SVG elements of a cell of an element that no thread holds. Its upper left corner is at (x, y).

    The cell has an outline of `width` x `height` and contains the cell's text; a cell without text is hatched.
    """
    box = _rect_attributes(x + 0.5, y + 0.5, width - 1, height - 1)
    step = height / 2
    strokes = f"M{_number(x + 1)} {_number(y + step)}l{_number(step - 1)} {_number(1 - step)}"
    strokes += f"M{_number(x + width - step)} {_number(y + height - 1)}l{_number(step - 1)} {_number(1 - step)}"
    outline = f'<rect {box} class="line" stroke-opacity="0.6"/>'
    if cell.lines:
        return outline + _cell_lines(cell, x + width / 2, y + height / 2, 'class="ink"')
    return outline + f'<path d="{strokes}" class="line" stroke-opacity="0.6"/>'


def _cell_starts(axis: PictureAxis, cell: float, start: float) -> list[float]:
    """Return the position at which each cell along an axis starts; the first cell starts at `start`, and `cell` is the
    size of a cell.

    Cells have gaps between them, which are wider where a line is drawn.
    """
    starts = [start]
    for weight in axis.weights[1:]:
        starts.append(starts[-1] + cell + _gap(weight))
    return starts


def _gap(weight: int) -> float:
    """Return the width of the gap between two cells. `weight` is the weight of the line in the gap; 0 means a narrow
    gap without a line. Weights above 3 give the width for 3.
    """
    return _GAP + 2 + 2 * min(weight, 3) if weight else _GAP


def _line_element(path: str, weight: int) -> str:
    """Return the SVG element of a line along `path` (SVG path data); a larger weight, up to 3, makes it thicker."""
    return f'<path d="{path}" class="line" stroke-width="{_number(0.5 + min(weight, 3))}"/>'


def _text_element(content: str, x: float, y: float, attributes: str = "") -> str:
    """Return the SVG element of the text `content`, escaped, at (x, y); `attributes` are further SVG attributes as
    text.
    """
    blank = " " if attributes else ""
    return f'<text x="{_number(x)}" y="{_number(y)}"{blank}{attributes}>{_escape(content)}</text>'


def _heading(content: str, x: float, middle: float, size: float, kind: str, attributes: str = "") -> str:
    """Return the SVG element of `content`, a text outside the cells such as the title, which begins at the horizontal
    position `x`.

    `middle` is the vertical middle of the line, `size` the font size, `kind` the CSS class; `attributes` are further
    SVG attributes as text.
    """
    return _text_element(
        content, x, middle + size * _CENTRE, f'class="{kind}" font-size="{_number(size)}" {attributes}'.strip()
    )


def _number(x: float) -> str:
    """Return the number `x` as text with at most two decimals and no trailing zeros: 2.50 -> "2.5"."""
    return f"{x:.2f}".rstrip("0").rstrip(".")


def _escape(text: str) -> str:
    """Return `text` escaped for XML; characters that XML cannot hold become the replacement character U+FFFD."""
    return html.escape(re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))
