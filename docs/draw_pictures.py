"""Draws every picture of the tutorial `layouts.md` into the folder `pictures`; run by `make pictures`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tilewright.algebra import (
    ComposedLayout,
    Layout,
    Swizzle,
    blocked_product,
    complement,
    composition,
    logical_divide,
    make_identity_layout,
    make_layout,
    raked_product,
    right_inverse,
    select,
    zipped_divide,
)
from tilewright.algebra.layout import shape_text
from tilewright.algebra.picture import layout_svg, partition_svg
from tilewright.algebra.picture.grid import Cell, Panel, layout_picture
from tilewright.algebra.picture.svg import picture_svg

FOLDER = Path(__file__).parent / "pictures"


def pictures() -> dict[str, str]:
    """For each picture its name, without `.svg`, and its SVG text.

    >>> sorted(pictures())[:2]
    ['banks_padded', 'banks_row_major']
    """
    return {**_functions(), **_algebra(), **_partitions(), **_banks()}


def _functions() -> dict[str, str]:
    """Layouts as they are."""
    image = Layout(((5, 3), (2, 2, 3)), ((2, 12), (1, 2, 12)))
    return {
        "columns_first": layout_svg(Layout((4, 8), (1, 4))),
        "rows_first": layout_svg(Layout((4, 8), (8, 1))),
        "nested": layout_svg(Layout((4, (2, 4)), (2, (1, 8)))),
        "im2col": layout_svg(image),
    }


def _algebra() -> dict[str, str]:
    """Compositions, complements, divides and products."""
    rows = Layout((4, 8), (8, 1))
    picks = Layout((2, 4), (1, 8))
    pairs = Layout(4, 2)
    copies = make_layout(complement(pairs, 16), pairs)
    block, grid = Layout((2, 2), (2, 1)), Layout((2, 3), (3, 1))
    return {
        "composition": layout_svg(rows, threads=picks, title=f"{picks} picks from {rows}: {composition(rows, picks)}"),
        "complement": layout_svg(Layout(16), threads=copies, title="four copies of 4:2, placed by (2,2):(1,8)"),
        "logical_divide": layout_svg(logical_divide(rows, (2, 4))),
        "zipped_divide": layout_svg(zipped_divide(rows, (2, 4))),
        "blocked_product": layout_svg(blocked_product(block, grid), title="blocked: a copy stays together"),
        "raked_product": layout_svg(raked_product(block, grid), title="raked: the copies are interleaved"),
    }


def _partitions() -> dict[str, str]:
    """Tiles cut up among threads."""
    tile = Layout((8, 8))
    squares = raked_product(Layout((4, 2), (2, 1)), Layout((2, 2), (2, 1)))
    by_hand = Layout(((2, 4), (2, 2)), ((16, 1), (8, 4)))
    return {
        "cyclic": partition_svg(zipped_divide(tile, (2, 4)), (8, 8), title='"cyclic": dealt out one by one'),
        "block": partition_svg(select(zipped_divide(tile, (4, 2)), 1, 0), (8, 8), title='"block": neighbours'),
        "ragged": _ragged(6, 10),
        "squares": partition_svg(composition(right_inverse(squares), Layout((8, 4))), (8, 4)),
        "fragment": partition_svg(by_hand, (8, 4)),
    }


def _ragged(rows: int, columns: int) -> str:
    """The coordinates of a matrix in tiles of 4 x 4; those outside the matrix are not filled."""
    tiles = logical_divide(make_identity_layout((rows, columns)), (4, 4))
    picture = layout_picture(tiles, title=f"a matrix of {rows} x {columns} in tiles of 4 x 4")
    inside = {shape_text((i, j)) for i in range(rows) for j in range(columns)}
    cells = [
        [cell if cell.lines[0] in inside else Cell(cell.lines) for cell in line] for line in picture.panels[0].cells
    ]
    return picture_svg(replace(picture, panels=[Panel("", cells)]))


def _banks() -> dict[str, str]:
    """A small tile in a memory of eight banks, and a large one in a memory of 32."""
    rows = Layout((8, 8), (8, 1))
    layouts = {
        "banks_row_major": rows,
        "banks_padded": Layout((8, 8), (9, 1)),
        "banks_swizzled": ComposedLayout(Swizzle(3, 0, 3), 0, rows),
    }
    large = ComposedLayout(Swizzle(5, 0, 5), 0, Layout((32, 32), (32, 1)))
    return {
        **{name: layout_svg(layout, element_bytes=4, banks=8) for name, layout in layouts.items()},
        "banks_swizzled_32": layout_svg(large, element_bytes=4),
    }


def main() -> None:
    """Writes the pictures, and removes those that are no longer made."""
    FOLDER.mkdir(exist_ok=True)
    made = pictures()
    for name, svg in made.items():
        (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8", newline="\n")
    for file in FOLDER.glob("*.svg"):
        if file.stem not in made:
            file.unlink()


if __name__ == "__main__":
    main()
