"""Layouts as text: what is printed is read back, and a fault is shown where it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_strategies import basis_layouts, composed_layouts, flat_leaves, layouts, shapes

from tilewright.algebra import ComposedLayout, E, Layout, Swizzle, local_tile, make_identity_layout, parse_layout
from tilewright.algebra.layout import shape_text
from tilewright.errors import LayoutError, ParseError, TilewrightError


@given(layouts())
def test_a_printed_layout_is_read_back(layout):
    assert parse_layout(str(layout)) == layout
    assert str(parse_layout(str(layout))) == str(layout)


@given(basis_layouts())
def test_a_printed_coordinate_layout_is_read_back(layout):
    assert parse_layout(str(layout)) == layout


@given(shapes(max_size=60))
def test_a_printed_identity_layout_is_read_back(extents):
    assert parse_layout(str(make_identity_layout(extents))) == make_identity_layout(extents)


@given(composed_layouts())
def test_a_printed_composed_layout_is_read_back(layout):
    assert parse_layout(str(layout)) == layout


@given(shapes())
def test_a_shape_alone_is_a_packed_layout(extents):
    assert parse_layout(shape_text(extents)) == Layout(extents)


@given(layouts(), st.data())
def test_blanks_between_tokens_have_no_meaning(layout, data):
    spaced = ""
    for before, after in zip(str(layout), str(layout)[1:] + " ", strict=True):
        blanks = data.draw(st.sampled_from(["", " ", "  "]))
        joined = (before.isdigit() or before == "-") and after.isdigit()
        spaced += before + ("" if joined else blanks)
    assert parse_layout(" " + spaced) == layout


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("4", Layout(4)),
        ("(4)", Layout((4,))),
        ("(4,)", Layout((4,))),
        ("4:2", Layout(4, 2)),
        ("(4):(2)", Layout((4,), (2,))),
        ("((4)):((2))", Layout(((4,),), ((2,),))),
        ("4:-2", Layout(4, -2)),
        ("(4,8):(0,1)", Layout((4, 8), (0, 1))),
        ("(4,8):(1@0,1@1)", Layout((4, 8), (E(0), E(1)))),
        ("4:-3@1@0", Layout(4, -3 * E(0, 1))),
        ("S<3,4,3> o 0 o (8,64):(64,1)", ComposedLayout(Swizzle(3, 4, 3), 0, Layout((8, 64), (64, 1)))),
        ("S<3,4,3> o (8,64):(64,1)", ComposedLayout(Swizzle(3, 4, 3), 0, Layout((8, 64), (64, 1)))),
        ("Sw<3,4,3> o 16 o (8,64):(64,1)", ComposedLayout(Swizzle(3, 4, 3), 16, Layout((8, 64), (64, 1)))),
        ("S< 2 , 0 , -3 > o -5 o 8", ComposedLayout(Swizzle(2, 0, -3), -5, Layout(8))),
        ("134 + (2,4):(1,16)", ComposedLayout(None, 134, Layout((2, 4), (1, 16)))),
        ("-3 + 4:1", ComposedLayout(None, -3, Layout(4))),
        ("0 + 4:1", Layout(4)),
        ("(1,2) + (4,8):(1@0,1@1)", ComposedLayout(None, (1, 2), Layout((4, 8), (E(0), E(1))))),
        ("(-1,(2,3)) + 4:1@0", ComposedLayout(None, (-1, (2, 3)), Layout(4, E(0)))),
        ("S<3,4,3> o 16", ComposedLayout(Swizzle(3, 4, 3), 0, Layout(16))),
        ("  4:1 ", Layout(4)),
    ],
)
def test_every_form_is_read(text, wanted):
    assert parse_layout(text) == wanted


@pytest.mark.parametrize(
    ("text", "position", "what"),
    [
        ("", 0, "expected a number or (; the text ends here"),
        ("   ", 3, "expected a number or (; the text ends here"),
        ("(4,8:1", 4, "expected , or )"),
        ("(4,8", 4, "expected , or ); the text ends here"),
        ("(4 8)", 3, "expected , or )"),
        ("(", 1, "expected a number or (; the text ends here"),
        ("(,4)", 1, "expected a number or ("),
        ("(4,,8)", 3, "expected a number or ("),
        ("4:", 2, "expected a number or (; the text ends here"),
        (":4", 0, "expected a number or ("),
        ("4:1:2", 3, "expected the end of the layout"),
        ("4)", 1, "expected the end of the layout"),
        ("4,8", 1, "expected the end of the layout"),
        ("(4,8):(1,4) 7", 12, "expected the end of the layout"),
        ("(4,x):(1,4)", 3, "'x' has no meaning in a layout"),
        ("  4.5", 3, "'.' has no meaning in a layout"),
        ("(4,8):(1,@4)", 9, "'@' has no meaning in a layout"),
        ("--4", 0, "'-' has no meaning in a layout"),
        ("(4,8):(1)", 0, "shape (4,8) and stride (1) are not nested alike"),
        ("7 + (4,8):1", 4, "shape (4,8) and stride 1 are not nested alike"),
        ("(4,0):(1,4)", 0, "shape (4,0) holds 0: every extent must be at least 1"),
        ("(-4)", 0, "shape (-4) holds -4: every extent must be at least 1"),
        ("1@0:4", 0, "shape must be an int or a nested tuple of ints, but holds 1@0"),
        ("S<3,4,3> (8,64)", 9, "expected o"),
        ("S<3,4,3> o", 10, "expected a number or (; the text ends here"),
        ("S<3,4> o 8", 0, "'S' has no meaning in a layout"),
        ("S<3,4,3> o 0 o", 14, "expected a number or (; the text ends here"),
        ("3 +", 3, "expected a number or (; the text ends here"),
        ("3 + 4:1 + 5", 8, "expected the end of the layout"),
        ("(1,2 + 4:1", 5, "expected , or )"),
        ("1@0 + 4:1", 0, "offset must be an int or a nested tuple of ints, but holds 1@0"),
        ("S<3,4,3> o 4 + 8:1", 13, "expected the end of the layout"),
    ],
)
def test_a_fault_is_shown_with_a_caret_under_it(text, position, what):
    with pytest.raises(ParseError) as caught:
        parse_layout(text)
    assert caught.value.position == position
    assert caught.value.text == text
    assert str(caught.value) == f"{what}\n  {text}\n  {' ' * position}^"


@given(layouts(), st.data())
def test_a_cut_or_spoilt_text_is_a_parse_error_or_another_layout(layout, data):
    text = str(layout)
    at = data.draw(st.integers(0, len(text) - 1))
    spoilt = text[:at] + data.draw(st.sampled_from(["", "(", ")", ",", ":", "x", "o", "+", "@"])) + text[at + 1 :]
    found = fault = None
    try:
        found = parse_layout(spoilt)
    except ParseError as raised:
        fault = raised
    if fault is None:
        assert parse_layout(str(found)) == found
    else:
        assert 0 <= fault.position <= len(spoilt)
        assert str(fault).splitlines()[-1] == "  " + " " * fault.position + "^"


def test_a_parse_error_is_a_value_error_of_this_package():
    assert issubclass(ParseError, TilewrightError)
    assert issubclass(ParseError, ValueError)
    assert not issubclass(ParseError, LayoutError)


def test_a_swizzle_that_cannot_be_is_a_parse_error():
    with pytest.raises(ParseError) as caught:
        parse_layout(" S<2,0,1> o 0 o 4:1")
    assert str(caught.value).startswith("Swizzle(2, 0, 1): abs(shift) must be at least bits")
    assert caught.value.position == 1


def test_an_offset_among_coordinates_is_read_back():
    layout = ComposedLayout(None, (1, 2), make_identity_layout((4, 8)))
    assert str(layout) == "(1,2) + (4,8):(1@0,1@1)"
    assert parse_layout(str(layout)) == layout


@given(shapes(max_size=60), st.data())
def test_a_printed_tile_of_coordinates_is_read_back(extents, data):
    identity = make_identity_layout(extents)
    offset = identity(data.draw(st.integers(0, identity.size() - 1)))
    layout = ComposedLayout(None, offset, identity)
    assert parse_layout(str(layout)) == layout


def test_a_tile_of_a_vector_of_coordinates_is_read_back():
    tile = local_tile(make_identity_layout(10), 4, 2)
    assert str(tile) == "(8) + (4):(1@0)"
    assert parse_layout(str(tile)) == tile


@given(shapes())
def test_shape_text_has_no_blanks_and_all_leaves(extents):
    text = shape_text(extents)
    assert " " not in text
    numbers = text.replace("(", "").replace(")", "").split(",")
    assert [int(n) for n in numbers] == flat_leaves(extents)
