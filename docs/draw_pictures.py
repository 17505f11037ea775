"""Draws every picture of the pages into the folder `pictures`; run by `make pictures`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import tilewright.block as tb
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
from tilewright.algebra.picture.palette import ramp, thread_colour
from tilewright.algebra.picture.svg import picture_svg

FOLDER = Path(__file__).parent / "pictures"


def pictures() -> dict[str, str]:
    """For each picture its name, without `.svg`, and its SVG text.

    >>> sorted(pictures())[:2]
    ['banks_padded', 'banks_row_major']
    """
    return {**_functions(), **_algebra(), **_partitions(), **_banks(), **_gallery()}


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


def _gallery() -> dict[str, str]:
    """What helps to read a kernel of the gallery."""
    panel = Layout(((2, 4), 8), ((1, 16), 2))
    return {
        "gallery_transpose": layout_svg(Layout((4, 6), (1, 4)), title="the place in y of each element of x"),
        "gallery_panel": layout_svg(panel, title="B packed: pairs along K (down) side by side, for each column of N"),
        "gallery_halo": _halo(4, 5, lines=(0, 1), pixel=(1, 2)),
        "gallery_causal": _causal(12, 4),
        "gallery_owners": _owners.draw("acc").svg,
    }


def _drawn(cells: list[list[Cell]], shape: Any, title: str) -> str:
    """Cells on a grid of this shape, with lines where its modes have them."""
    return picture_svg(replace(layout_picture(Layout(shape), title=title), panels=[Panel("", cells)]))


def _halo(height: int, width: int, lines: tuple[int, ...], pixel: tuple[int, int]) -> str:
    """The input lines that some output lines of a 3x3 convolution need, with one output pixel's taps."""

    def cell(h: int, w: int) -> Cell:
        if not (0 <= h < height and 0 <= w < width):
            return Cell(("0",))
        is_tap = abs(h - pixel[0]) <= 1 and abs(w - pixel[1]) <= 1
        return Cell((f"{h},{w}",), thread_colour(1 if is_tap else 0))

    cells = [[cell(h, w) for w in range(-1, width + 1)] for h in range(lines[0] - 1, lines[-1] + 2)]
    title = f"the halo tile of output lines {lines[0]} and {lines[-1]}, and the taps of pixel {pixel[0]},{pixel[1]}"
    return _drawn(cells, (len(cells), len(cells[0])), title)


def _causal(count: int, tile: int) -> str:
    """Which keys (across) each query (down) sees, and in which round of the loop over tiles of keys."""
    cells = [
        [Cell((str(k // tile),), ramp(k // tile * tile / count)) if k <= q else Cell(("-",)) for k in range(count)]
        for q in range(count)
    ]
    return _drawn(cells, (count, (tile, count // tile)), "queries down, keys across: the round in which a key is seen")


@tb.kernel("ampere", waves=4)
def _owners(c: tb.Out("f32", 32, 16)) -> None:
    """Sums of 32 x 16 in the registers of 2 x 2 waves, as the gallery's product in the block language has them."""
    mma = tb.Mma("mma.m16n8k16.f16", waves=(2, 2))
    for _ in tb.tasks(1):
        acc = mma.c(32, 16)
        tb.clear(acc)
        tb.copy(acc, c)


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
