"""Pictures of layouts: what stands in which cell, colours that can be read, and bank conflicts."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass

import pytest
from rich.console import Console

from tilewright.algebra import ComposedLayout, Layout, Swizzle, make_identity_layout, parse_layout
from tilewright.algebra.picture import (
    bank_conflicts,
    layout_conflicts,
    layout_svg,
    layout_table,
    partition_conflicts,
    partition_svg,
    partition_table,
)
from tilewright.errors import LayoutError

_SVG = "{http://www.w3.org/2000/svg}"
_CHARACTER = 0.61  # no wider in any monospaced font that is asked for

# -- reading pictures back --------------------------------------------------------------------------


@dataclass
class Drawn:
    """A cell as it is found in an SVG document."""

    lines: list[str]
    fill: str | None
    inks: list[str | None]


def panels(svg: str) -> list[dict[tuple[int, int], Drawn]]:
    """For each panel the cells by row and column, found by where they lie below and beside the numbers."""
    return [_panel(group) for group in ET.fromstring(svg).findall(f"{_SVG}g")]


def _panel(panel: ET.Element) -> dict[tuple[int, int], Drawn]:
    column_numbers, row_numbers, grid = panel.findall(f"{_SVG}g")
    columns = {float(t.attrib["x"]): int(t.text or "") for t in column_numbers}
    rows = {float(t.attrib["y"]): int(t.text or "") for t in row_numbers}
    texts = [(float(t.attrib["x"]), float(t.attrib["y"]), t) for t in grid.findall(f"{_SVG}text")]
    bands = {}  # the texts between two heights: a row of cells has them in common
    cells = {}
    for box in grid.findall(f"{_SVG}rect"):
        x, y, width, height = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        (column,) = (n for at, n in columns.items() if x < at < x + width)
        (row,) = (n for at, n in rows.items() if y < at < y + height)
        if (y, height) not in bands:
            bands[y, height] = [(at, t) for at, down, t in texts if y < down < y + height]
        inside = [t for at, t in bands[y, height] if x < at < x + width]
        for text in inside:
            size = float(text.attrib.get("font-size", grid.attrib["font-size"]))
            assert len(text.text or "") * size * _CHARACTER <= width, f"{text.text} does not fit its cell"
        cells[row, column] = Drawn(
            [t.text or "" for t in inside], box.attrib.get("fill"), [t.attrib.get("fill") for t in inside]
        )
    assert sum(len(cell.lines) for cell in cells.values()) == len(texts)
    return cells


def labels(svg: str) -> list[str]:
    """The texts outside of panels: title, panel labels, caption."""
    return [t.text or "" for t in ET.fromstring(svg).findall(f"{_SVG}text")]


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by the formula of WCAG 2, written down once more."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


# -- layouts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "(4,8):(8,1)",
        "((2,2),(2,4)):((1,4),(2,8))",
        "(3,5):(0,-2)",
        "S<3,3,3> o 0 o (8,64):(64,1)",
        "134 + (2,4):(1,16)",
        "((2,2,2),(2,3,2)):((1,4,16),(2,8,32))",
    ],
)
def test_every_offset_stands_in_its_cell(text: str) -> None:
    layout = parse_layout(text)
    (cells,) = panels(layout_svg(layout))
    assert len(cells) == layout.size()
    for (row, column), cell in cells.items():
        assert cell.lines == [str(layout(row, column))]


@pytest.mark.parametrize("layout", [Layout(6, 2), Layout((6,), (2,)), Layout(((2, 3),), ((1, 4),)), Layout(1)])
def test_a_layout_of_rank_one_is_one_row(layout: Layout) -> None:
    (cells,) = panels(layout_svg(layout))
    assert {at: cell.lines for at, cell in cells.items()} == {(0, j): [str(layout(j))] for j in range(layout.size())}


def test_further_modes_are_labelled_panels() -> None:
    layout = Layout((2, 3, (1, 2), 2))
    svg = layout_svg(layout)
    assert labels(svg)[1:] == ["(_,_,0,0)", "(_,_,1,0)", "(_,_,0,1)", "(_,_,1,1)"]
    drawn = panels(svg)
    for number, (k, q) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
        assert {at: cell.lines for at, cell in drawn[number].items()} == {
            (i, j): [str(layout(i, j, k, q))] for i in range(2) for j in range(3)
        }


def test_coordinates_are_shown_as_tuples() -> None:
    (cells,) = panels(layout_svg(make_identity_layout((2, (2, 2)))))
    assert cells[1, 3].lines == ["(1,(1,1))"]
    assert cells[0, 0].lines == ["(0,(0,0))"]


def test_lines_are_heavier_where_more_sub_modes_start_anew() -> None:
    root = ET.fromstring(layout_svg(Layout((4, (2, 2, 3)))))
    strokes = [path.attrib for path in root.iter(f"{_SVG}path")]
    assert all("V" in stroke["d"] for stroke in strokes)  # mode 0 is not nested: no line across
    assert [float(stroke["stroke-width"]) for stroke in strokes] == [1.5, 2.5, 1.5, 2.5, 1.5]
    boxes = sorted({float(box.attrib["x"]) for box in root.iter(f"{_SVG}rect")})
    found = [float(stroke["d"][1:].split()[0]) for stroke in strokes]
    assert all(boxes[i - 1] < at < boxes[i] for at, i in zip(found, range(2, 12, 2), strict=True))


def test_64_by_64_is_drawn_with_text_large_enough() -> None:
    svg = layout_svg(Layout((64, 64), (64, 1)))
    (cells,) = panels(svg)
    assert cells[63, 63].lines == ["4095"]
    sizes = [float(e.attrib["font-size"]) for e in ET.fromstring(svg).iter() if "font-size" in e.attrib]
    assert min(sizes) >= 11


def test_colours_of_offsets_are_ordered_by_lightness() -> None:
    (cells,) = panels(layout_svg(Layout(128)))
    lightness = [luminance(cells[0, j].fill or "") for j in range(128)]
    assert lightness == sorted(lightness)
    assert len(set(lightness)) > 100


@pytest.mark.parametrize(
    "svg",
    [
        layout_svg(Layout((64, 64))),
        layout_svg(Layout((32, 32)), element_bytes=4),
        layout_svg(Layout((8, 8)), element_bytes=4, banks=5),
        partition_svg(Layout((64, 4)), (16, 16)),
        layout_svg(Layout((16, 16)), threads=Layout((64, 4))),
    ],
    ids=["offsets", "banks", "few banks", "threads", "threads on offsets"],
)
def test_every_text_has_contrast_to_its_cell(svg: str) -> None:
    for cells in panels(svg):
        for cell in cells.values():
            assert cell.inks
            for ink in cell.inks:
                assert contrast(cell.fill or "", ink or "") >= 4.5


def test_grey_labels_can_be_read_on_white_and_on_black() -> None:
    style = ET.fromstring(layout_svg(Layout(4))).findtext(f"{_SVG}style") or ""
    everywhere, dark = style.split("@media (prefers-color-scheme:dark)")
    ink = everywhere.split(".ink{fill:")[1][:7]
    assert min(contrast(ink, "#ffffff"), contrast(ink, "#000000")) >= 4.5
    assert contrast(dark.split(".ink{fill:")[1][:7], "#000000") > contrast(ink, "#000000")


def test_titles_are_escaped() -> None:
    title = 'a < b & "c" \x00 </svg>'
    assert labels(layout_svg(Layout(4), title=title)) == [title.replace("\x00", "\ufffd")]


def test_pictures_are_deterministic_and_reached_from_the_layout() -> None:
    layout = ComposedLayout(Swizzle(2, 0, 3), 0, Layout((4, 8), (8, 1)))
    assert layout.svg(element_bytes=2) == layout_svg(layout, element_bytes=2)
    assert Layout((4, 8)).svg(title="") == layout_svg(Layout((4, 8)), title="")


@pytest.mark.parametrize("shape", [(129, 2), (2, 129), 200, (64, 64, 5)])
def test_too_many_cells_are_refused_with_the_way_out(shape: object) -> None:
    with pytest.raises(LayoutError, match=r"local_tile.*logical_divide"):
        layout_svg(Layout(shape))


# -- banks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "element_bytes", "passes"),
    [
        (range(32), 4, 1),
        (range(33), 4, 2),
        (range(0, 64, 2), 4, 2),
        ([0] * 32, 4, 1),
        ([0, 1], 2, 1),  # one word
        ([0, 64], 2, 2),  # one bank, two words
        (range(16), 8, 1),
        (range(32), 8, 2),
        ([0, 16], 8, 2),
        ([-1, 31], 4, 2),
        (range(128), 1, 1),
        ([10, 42], 3, 1),  # bytes 30 to 32 and 126 to 128: words 7, 8 and 31, 32
        ([0, 42], 3, 2),  # words 0 and 31, 32: the last shares bank 0
        ([], 4, 0),
    ],
)
def test_passes_of_offsets(offsets: list[int], element_bytes: int, passes: int) -> None:
    assert bank_conflicts(offsets, element_bytes) == passes


@pytest.mark.parametrize(
    ("text", "element_bytes", "column", "row"),
    [
        ("(32,32):(32,1)", 4, 32, 1),
        ("(32,32):(33,1)", 4, 1, 1),
        ("S<5,0,5> o 0 o (32,32):(32,1)", 4, 1, 1),
        ("S<3,2,3> o 0 o (32,32):(32,1)", 4, 4, 1),
        ("(8,64):(64,1)", 2, 8, 1),
        ("S<3,3,3> o 0 o (8,64):(64,1)", 2, 1, 1),
        ("S<2,3,3> o 0 o (8,64):(64,1)", 2, 2, 1),
        ("(16,16):(16,1)", 8, 16, 1),
        ("(4,32):(0,1)", 4, 1, 1),
        ("32:32", 4, 1, 32),
        ("(4,2,2):(1,32,4)", 4, 1, 2),
    ],
)
def test_passes_of_rows_and_columns(text: str, element_bytes: int, column: int, row: int) -> None:
    found = layout_conflicts(parse_layout(text), element_bytes)
    assert (found.column, found.row) == (column, row)


def test_other_memories() -> None:
    tile = Layout((16, 16), (16, 1))
    assert layout_conflicts(tile, 4, banks=16).column == 16
    assert layout_conflicts(tile, 4, bank_bytes=8, banks=16).column == 8


def test_a_picture_of_banks_names_them_and_states_the_passes() -> None:
    layout = parse_layout("(8,64):(64,1)")
    svg = layout_svg(layout, element_bytes=2)
    assert "a row: 1 pass, a column: 8 passes, 32 banks of 4 bytes" in labels(svg)
    (cells,) = panels(svg)
    assert cells[3, 5].lines == ["197", "b2"]
    assert {cells[i, 5].fill for i in range(8)} == {cells[0, 4].fill}
    assert len({cells[0, j].fill for j in range(64)}) == 32


def test_wide_elements_name_all_their_banks() -> None:
    (cells,) = panels(layout_svg(Layout(17), element_bytes=8))
    assert [cells[0, j].lines for j in (0, 15, 16)] == [["0", "b0-1"], ["15", "b30-31"], ["16", "b0-1"]]


@pytest.mark.parametrize("options", [{"element_bytes": 0}, {"element_bytes": 4, "banks": 0}, {"element_bytes": 0.5}])
def test_memories_that_cannot_be(options: dict[str, int]) -> None:
    with pytest.raises(LayoutError, match="at least 1"):
        layout_svg(Layout(4), **options)


def test_coordinates_have_no_banks() -> None:
    with pytest.raises(LayoutError, match="not an offset"):
        layout_svg(make_identity_layout((2, 2)), element_bytes=4)


# -- partitions -------------------------------------------------------------------------------------


def test_each_element_shows_its_thread_and_value() -> None:
    partition = parse_layout("((3,2),(2,2)):((8,2),(4,1))")
    (cells,) = panels(partition_svg(partition, (4, 6)))
    expected = {}
    for thread in range(6):
        for value in range(4):
            index = partition(thread, value)
            expected[index % 4, index // 4] = [f"T{thread}", f"V{value}"]
    assert {at: cell.lines for at, cell in cells.items()} == expected
    assert len({cell.fill for cell in cells.values()}) == 6


def test_shared_and_unowned_elements() -> None:
    svg = partition_svg(parse_layout("((2,4),2):((1,0),2)"), (2, 3))
    (cells,) = panels(svg)
    assert cells[0, 0].lines == ["T0 +3", "V0"]
    assert cells[1, 1].lines == ["T1 +3", "V1"]
    assert cells[0, 2].lines == []
    assert cells[0, 2].fill is None
    assert svg.count('<path d="') == 2


def test_an_element_that_a_thread_holds_twice() -> None:
    (cells,) = panels(partition_svg(Layout((2, 3), (1, 0)), (2, 1)))
    assert cells[0, 0].lines == ["T0", "V0 +2"]


def test_a_swizzled_partition_and_a_nested_tile() -> None:
    partition = parse_layout("S<1,0,1> o 0 o (4,2):(2,1)")
    (cells,) = panels(partition_svg(partition, ((2, 2), 2)))
    assert cells[3, 0].lines == ["T1", "V0"]  # index 2 ^ 1
    assert cells[2, 0].lines == ["T1", "V1"]


def test_passes_of_a_partition_over_all_threads() -> None:
    by_rows = Layout((32, 4), (1, 32))
    assert partition_conflicts(by_rows, Layout((32, 4), (4, 1)), 4) == [4] * 4
    assert partition_conflicts(by_rows, parse_layout("S<2,0,5> o 0 o (32,4):(4,1)"), 4) == [1] * 4
    everybody = Layout((32, 4), (0, 32))  # one word for all threads
    assert partition_conflicts(everybody, Layout((32, 4), (4, 1)), 4) == [1] * 4


def test_the_caption_of_a_partition_in_memory() -> None:
    partition = Layout((4, 2), (1, 4))
    found = labels(partition_svg(partition, (4, 2), memory=Layout((4, 2), (32, 1)), element_bytes=4))
    assert found[1:] == [
        "every value: 4 passes, 4 threads at once",
        "32 banks of 4 bytes, elements of 4 bytes",
        "in memory: (4,2):(32,1)",
    ]
    assert "in memory: (4,2):(1,4)" in labels(partition_svg(partition, (4, 2), element_bytes=4))


def test_threads_on_the_offsets_of_a_layout() -> None:
    svg = layout_svg(Layout((4, 4), (4, 1)), threads=Layout((4, 2), (1, 4)), element_bytes=4)
    (cells,) = panels(svg)
    assert cells[2, 1].lines == ["9", "T2 V1"]
    assert cells[2, 2].lines == ["10"]
    assert "every value: 1 pass, 4 threads at once" in labels(svg)


def test_threads_across_panels() -> None:
    drawn = panels(layout_svg(Layout((2, 2, 2)), threads=Layout((8, 1))))
    assert drawn[1][1, 0].lines == ["5", "T5 V0"]


@pytest.mark.parametrize(
    ("partition", "shape", "options", "message"),
    [
        (Layout((4, 4)), (2, 4), {}, "indexes 0 to 7"),
        (Layout(8), (2, 4), {}, r"two modes, \(thread, value\)"),
        (Layout((4, 2)), (2, 2, 2), {}, r"drawn on \(M, N\)"),
        (Layout((4, 2)), (200, 2), {}, "local_tile"),
        (Layout((4, 2)), (2, 4), {"memory": Layout((2, 4))}, "element_bytes"),
        (Layout((4, 2)), (2, 4), {"memory": Layout((4, 2)), "element_bytes": 4}, "not one of the tile"),
        (make_identity_layout((4, 2)), (4, 2), {}, "indexes 0 to 7"),
    ],
)
def test_partitions_that_cannot_be_drawn(
    partition: Layout, shape: object, options: dict[str, object], message: str
) -> None:
    with pytest.raises(LayoutError, match=message):
        partition_svg(partition, shape, **options)  # type: ignore[arg-type]


# -- terminal ---------------------------------------------------------------------------------------


def printed(table: object, width: int = 80, colours: bool = False) -> str:
    console = Console(width=width, color_system="truecolor" if colours else None, force_terminal=colours)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_a_table_with_lines_between_sub_modes() -> None:
    assert printed(layout_table(Layout(((2, 2), (2, 2)), ((1, 4), (2, 8))))).splitlines() == [
        "((2,2),(2,2)):((1,4),(2,8))",
        "     0   1    2   3 ",
        " 0   0   2 │  8  10 ",
        " 1   1   3 │  9  11 ",
        "   ────────┼────────",
        " 2   4   6 │ 12  14 ",
        " 3   5   7 │ 13  15 ",
    ]


def test_columns_that_do_not_fit_continue_below() -> None:
    lines = printed(layout_table(Layout((2, 40))), width=30).splitlines()
    assert max(map(len, lines)) <= 30
    second_row = [offset for line in lines if line.startswith(" 1 ") for offset in line.split()[1:]]
    assert second_row == [str(offset) for offset in range(1, 80, 2)]


def test_a_table_is_coloured_like_the_picture() -> None:
    (cells,) = panels(layout_svg(Layout(2)))
    red, green, blue = (int((cells[0, 1].fill or "")[i : i + 2], 16) for i in (1, 3, 5))
    assert f"48;2;{red};{green};{blue}m" in printed(layout_table(Layout(2)), colours=True)


def test_a_table_of_a_partition() -> None:
    assert printed(partition_table(Layout((2, 1)), (2, 2))).splitlines()[2:] == [
        " 0  T0 V0      . ",
        " 1  T1 V0      . ",
    ]


def test_a_table_of_panels_and_banks() -> None:
    text = printed(layout_table(Layout((1, 2, 2)), element_bytes=4))
    assert [line.strip() for line in text.splitlines()] == [
        "(1,2,2):(1,1,2)",
        "(_,_,0)",
        "0     1",
        "0  0 b0  1 b1",
        "(_,_,1)",
        "0     1",
        "0  2 b2  3 b3",
        "a row: 1 pass, a column: 1 pass, 32 banks of 4 bytes",
        "elements of 4 bytes",
    ]


@pytest.mark.parametrize(
    "layout", [Layout((4, 8)), ComposedLayout(Swizzle(2, 0, 3), 0, Layout((4, 8), (8, 1)))], ids=str
)
def test_a_notebook_shows_the_picture(layout: Layout | ComposedLayout) -> None:
    assert layout._repr_svg_() == layout.svg()


@pytest.mark.parametrize("layout", [Layout((4096, 4096)), ComposedLayout(None, 5, Layout((129, 2)))], ids=str)
def test_a_notebook_shows_text_where_a_layout_is_too_large_to_draw(layout: Layout | ComposedLayout) -> None:
    assert layout._repr_svg_() is None
    with pytest.raises(LayoutError, match="a picture holds up to 128 x 128"):
        layout.svg()


def test_neither_the_package_nor_pictures_load_rich() -> None:
    code = (
        "import sys, tilewright, tilewright.algebra.picture; print([m for m in ('rich', 'typer') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
