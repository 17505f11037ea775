"""The Layout type and the operations that only rearrange its modes."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_strategies import (
    coordinates,
    count,
    extended_value,
    flat_leaves,
    forward_layouts,
    index_of,
    layouts,
    like,
    natural_coordinates,
    open_coordinates,
    shapes,
    values,
)

from tilewright.algebra import (
    E,
    Layout,
    append,
    cosize,
    depth,
    flatten,
    group,
    is_layout,
    make_identity_layout,
    make_layout,
    make_ordered_layout,
    parse_layout,
    prepend,
    rank,
    select,
    shape,
    size,
    slice_and_offset,
    stride,
)
from tilewright.errors import LayoutError

# -- as a function --------------------------------------------------------------------------------------


@given(layouts())
def test_a_layout_is_the_inner_product_of_natural_coordinate_and_stride(layout):
    found = values(layout)
    for index, crd in enumerate(natural_coordinates(layout.shape)):
        assert layout(crd) == found[index]
        assert layout(index) == found[index]
        if isinstance(crd, tuple) and len(crd) > 1:
            assert layout(*crd) == found[index]


@given(layouts(), st.data())
def test_coordinates_of_every_nesting_name_the_same_element(layout, data):
    crd = data.draw(coordinates(layout.shape))
    assert layout(crd) == values(layout)[index_of(crd, layout.shape)]


@given(layouts(), st.integers(0, 999))
def test_an_index_past_the_end_extends_the_last_mode(layout, index):
    assert layout(index) == extended_value(layout, index)


@given(shapes())
def test_the_default_stride_makes_the_layout_the_identity(extents):
    layout = Layout(extents)
    assert [layout(i) for i in range(count(extents))] == list(range(count(extents)))


@given(layouts())
def test_an_array_of_indices_gives_the_array_of_offsets(layout):
    found = layout(np.arange(size(layout)))
    assert np.broadcast_to(found, size(layout)).tolist() == values(layout)


@given(layouts())
def test_arrays_as_leaves_of_a_coordinate_give_the_array_of_offsets(layout):
    columns = zip(*[flat_leaves(crd) for crd in natural_coordinates(layout.shape)], strict=True)
    crd = like(layout.shape, [np.array(column) for column in columns])
    assert layout(crd).tolist() == values(layout)


def test_arrays_broadcast_against_each_other():
    layout = Layout((4, (2, 4)), (2, (1, 8)))
    table = layout(np.arange(4)[:, None], np.arange(8)[None, :])
    assert table.tolist() == [[layout(i, j) for j in range(8)] for i in range(4)]


def test_a_layout_of_one_int_takes_its_coordinate_in_a_tuple_too():
    assert Layout(8, 3)((5,)) == Layout(8, 3)(5) == 15


@pytest.mark.parametrize("crd", [(), (1,), (1, 2, 3), (1, (2, 3, 4)), ((1, 1), 2)])
def test_a_coordinate_of_the_wrong_rank_is_refused_with_both_named(crd):
    with pytest.raises(LayoutError, match=r"coordinate .* does not fit shape .*: the ranks differ"):
        Layout((4, (2, 4)))(crd)


# -- slices -----------------------------------------------------------------------------------------------


def fill(crd, inner):
    """The coordinate with its None entries replaced, one after the other."""
    rest = iter(inner)

    def walk(c):
        return tuple(map(walk, c)) if isinstance(c, tuple) else next(rest) if c is None else c

    return walk(crd)


@given(layouts(max_size=80), st.data())
def test_a_slice_and_its_offset_together_are_the_layout(layout, data):
    crd = data.draw(open_coordinates(layout.shape))
    kept, offset = slice_and_offset(crd, layout)
    assert layout(crd) == kept
    for inner in natural_coordinates(kept.shape):
        whole = inner if crd is None else fill(crd, inner)
        assert offset + kept(inner) == layout(whole)


@given(layouts())
def test_a_slice_that_leaves_all_open_is_the_layout(layout):
    assert slice_and_offset(None, layout) == (layout, 0)
    assert layout(None) == layout


def test_a_slice_keeps_its_parent_unchanged():
    layout = Layout((4, 8))
    kept, offset = slice_and_offset((None, 3), layout)
    assert (str(kept), offset) == ("(4):(1)", 12)
    assert layout == Layout((4, 8))
    assert layout(0, 0) == 0


def test_a_slice_with_nothing_open_is_refused():
    with pytest.raises(LayoutError, match=r"coordinate \(1, 2\) of \(4,8\):\(1,4\) leaves no mode open"):
        slice_and_offset((1, 2), Layout((4, 8)))


def test_the_offset_of_a_slice_of_coordinates_is_a_coordinate():
    kept, offset = slice_and_offset((None, 3), make_identity_layout((4, 8)))
    assert str(kept) == "(4):(1@0)"
    assert offset == (0, 3)


# -- as a sequence of modes -----------------------------------------------------------------------------


@given(layouts())
def test_a_layout_is_the_layout_of_its_modes(layout):
    assert len(layout) == len(list(layout)) == rank(layout)
    assert [layout[i] for i in range(len(layout))] == list(layout)
    if isinstance(layout.shape, tuple):
        assert make_layout(list(layout)) == layout
        assert make_layout(*layout) == layout
        assert layout[-1] == layout[len(layout) - 1]
    else:
        assert layout[0] == layout[-1] == layout


def test_a_path_of_modes_reaches_into_the_nest():
    layout = parse_layout("(4,(2,(3,5))):(2,(1,(8,24)))")
    assert str(layout[1, 1, 0]) == "3:8"
    assert str(layout[1, 1]) == "(3,5):(8,24)"
    assert layout[()] == layout


def test_a_slice_of_modes_is_a_layout():
    assert str(Layout((2, 3, 4))[1:]) == "(3,4):(2,6)"


def test_a_mode_that_is_not_there_is_an_index_error():
    with pytest.raises(IndexError, match="4:1 has one mode; there is no mode 1"):
        Layout(4)[1]
    with pytest.raises(IndexError):
        Layout((4, 8))[2]


# -- equality, hashing, immutability ----------------------------------------------------------------------


@given(layouts(), layouts())
def test_layouts_are_equal_by_shape_and_stride_and_then_hash_alike(a, b):
    again = Layout(a.shape, a.stride)
    assert a == again
    assert hash(a) == hash(again)
    assert (a == b) is (a.shape == b.shape and a.stride == b.stride)
    assert len({a, again, b}) == (1 if a == b else 2)


def test_a_rank_one_tuple_is_not_an_int():
    assert Layout((4,), (1,)) != Layout(4, 1)
    assert Layout(4) != 4
    assert Layout(4) != "4:1"


def test_numpy_integers_make_the_same_layout():
    made = Layout((np.int32(4), np.uint8(8)), (np.int64(1), np.int16(4)))
    assert made == Layout((4, 8))
    assert hash(made) == hash(Layout((4, 8)))
    assert all(type(leaf) is int for leaf in flat_leaves(made.shape) + flat_leaves(made.stride))


@pytest.mark.parametrize("name", ["shape", "stride", "_hash", "colour"])
def test_a_layout_cannot_be_changed(name):
    layout = Layout((4, 8))
    with pytest.raises(AttributeError, match="cannot be changed"):
        setattr(layout, name, 3)
    with pytest.raises(AttributeError, match="cannot be changed"):
        delattr(layout, name)
    assert layout == Layout((4, 8))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_layout_can_be_copied_and_pickled(again):
    layout = Layout((4, (2, 4)), (2, (1, 8)))
    assert again(layout) == layout


@given(layouts())
def test_repr_is_python(layout):
    assert eval(repr(layout)) == layout


# -- making -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, -1, (4, 0), (4, (2, -3))])
def test_extents_below_one_are_refused(bad):
    with pytest.raises(LayoutError, match=r"holds (0|-1|-3): every extent must be at least 1"):
        Layout(bad)


@pytest.mark.parametrize("bad", [True, 4.0, "4", None, [4, 8], (4, True), (4, 2.0), (4, None)])
def test_shapes_that_are_not_ints_are_refused(bad):
    with pytest.raises(LayoutError, match="shape must be an int or a nested tuple of ints, but holds"):
        Layout(bad, 1)


@pytest.mark.parametrize("bad", [True, 1.0, "1", [1, 4], (1, False), (1, 0.5)])
def test_strides_that_are_not_ints_are_refused(bad):
    with pytest.raises(LayoutError, match="stride must be an int or a nested tuple of ints, but holds"):
        Layout((4, 8), bad)


@pytest.mark.parametrize(
    ("extents", "strides"),
    [((4, 8), 1), (4, (1,)), ((4, 8), (1, 4, 32)), ((4, (2, 4)), (1, 4)), ((4, 8), (1, (4, 8))), ((4,), 1)],
)
def test_a_stride_of_another_nesting_is_refused_with_both_named(extents, strides):
    with pytest.raises(LayoutError, match=r"shape .* and stride .* are not nested alike"):
        Layout(extents, strides)


def test_make_layout_takes_shapes_strides_and_layouts():
    assert str(make_layout((4, 8))) == "(4,8):(1,4)"
    assert str(make_layout((4, 8), (8, 1))) == "(4,8):(8,1)"
    assert str(make_layout(4, 2)) == "4:2"
    assert str(make_layout(Layout(4, 2))) == "(4):(2)"
    assert str(make_layout(Layout(4, 2), Layout((2, 3), (1, 5)))) == "(4,(2,3)):(2,(1,5))"
    assert str(make_layout(m for m in Layout((2, 3)))) == "(2,3):(1,2)"


def test_make_layout_names_what_it_cannot_take():
    with pytest.raises(LayoutError, match=r"got \(Layout\(4, 1\), 3\)"):
        make_layout(Layout(4), 3)


@given(shapes(max_size=100))
def test_the_identity_layout_gives_back_every_natural_coordinate(extents):
    layout = make_identity_layout(extents)
    for index, crd in enumerate(natural_coordinates(extents)):
        wanted = crd if isinstance(crd, tuple) else (crd,)
        assert layout(crd) == wanted
        assert layout(index) == wanted


@given(shapes(), st.permutations(range(5)))
def test_an_ordered_layout_is_packed_in_the_given_order(extents, order):
    flat = flat_leaves(extents)
    places = [p for p in order if p < len(flat)]
    layout = make_ordered_layout(extents, like(extents, places))
    assert layout.shape == extents
    assert sorted(values(layout)) == list(range(count(extents)))
    moving = sorted((place, d) for place, s, d in zip(places, flat, flat_leaves(layout.stride), strict=True) if s > 1)
    assert [d for _, d in moving] == sorted(d for _, d in moving)


def test_an_order_needs_one_entry_for_each_mode():
    with pytest.raises(LayoutError, match=r"order \(0, 1\) has 2 entries for the 3 modes of shape \(2, 3, 4\)"):
        make_ordered_layout((2, 3, 4), (0, 1))


# -- measures ---------------------------------------------------------------------------------------------


@given(layouts())
def test_size_counts_the_coordinates(layout):
    assert size(layout) == layout.size() == len(natural_coordinates(layout.shape))
    for mode in range(rank(layout)):
        assert size(layout, mode) == size(layout[mode])
        assert shape(layout, mode) == layout[mode].shape
        assert stride(layout, mode) == layout[mode].stride
        assert cosize(layout, mode) == cosize(layout[mode])


@given(layouts())
def test_cosize_spans_from_the_smallest_to_the_largest_offset(layout):
    found = values(layout)
    assert cosize(layout) == layout.cosize() == max(found) - min(found) + 1


@given(forward_layouts())
def test_cosize_of_forward_strides_is_one_more_than_the_last_offset(layout):
    if all(d >= 0 for d in flat_leaves(layout.stride)):
        assert cosize(layout) == layout(size(layout) - 1) + 1


def test_cosize_of_coordinates_is_a_shape():
    assert cosize(make_identity_layout((4, (2, 3)))) == (4, (2, 3))
    assert cosize(Layout(10, E(0))) == (10,)


@pytest.mark.parametrize(
    ("x", "wanted"), [(4, (1, 0)), ((4,), (1, 1)), ((4, 8), (2, 1)), ((4, (2, 4)), (2, 2)), (((2, (2, 2)), 3), (2, 3))]
)
def test_rank_counts_modes_and_depth_counts_nesting(x, wanted):
    assert (rank(x), depth(x)) == wanted
    assert (rank(Layout(x)), depth(Layout(x))) == wanted


def test_measures_reach_into_the_nest():
    extents = (((2, 2), 3), (4, 3))
    assert [size(extents), size(extents, 0), size(extents, 1), size(extents, 0, 0)] == [144, 12, 12, 4]
    assert [rank(extents), rank(extents, 0, 0), depth(extents), depth(extents, 0, 0)] == [2, 2, 3, 1]
    assert shape(Layout(extents), 0, 0, 1) == 2


def test_is_layout_tells_layouts_from_shapes():
    assert is_layout(Layout(4))
    assert not is_layout((4, 8))


# -- rearranging ------------------------------------------------------------------------------------------


@given(layouts())
def test_flatten_removes_all_nesting_and_keeps_the_function(layout):
    flat = flatten(layout)
    assert depth(flat) <= 1
    assert flat_leaves(flat.shape) == flat_leaves(layout.shape)
    assert values(flat) == values(layout)
    assert flatten(layout.shape) == tuple(flat_leaves(layout.shape))


@given(layouts(), st.data())
def test_select_picks_modes_in_the_given_order(layout, data):
    modes = data.draw(st.lists(st.integers(0, rank(layout) - 1), min_size=1, max_size=4))
    picked = select(layout, *modes)
    assert rank(picked) == len(modes)
    assert [picked[i] for i in range(len(modes))] == [layout[m] for m in modes]


def test_select_of_a_tuple_is_a_tuple():
    assert select((2, 3, (4, 5)), 2, 0) == ((4, 5), 2)


@given(layouts(), st.data())
def test_group_puts_modes_together_and_keeps_the_function(layout, data):
    begin = data.draw(st.integers(0, rank(layout) - 1))
    end = data.draw(st.integers(begin + 1, rank(layout)))
    grouped = group(layout, begin, end)
    assert rank(grouped) == rank(layout) - (end - begin) + 1
    assert list(grouped[begin]) == list(layout)[begin:end]
    assert values(grouped) == values(layout)


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (1, 1), (2, 1), (0, 4)])
def test_group_of_modes_that_are_not_there_is_refused(begin, end):
    with pytest.raises(LayoutError, match=rf"group of modes {begin} to {end} of \(2,3,4\):\(1,2,6\): it has 3 modes"):
        group(Layout((2, 3, 4)), begin, end)


def test_group_and_append_take_shapes_too():
    assert group((2, 3, 4, 5), 1, 3) == (2, (3, 4), 5)
    assert append((2, 3), 4) == (2, 3, 4)
    assert append(2, 4) == (2, 4)
    assert append((2,), 1, up_to=3) == (2, 1, 1)
    assert prepend((2, 3), 4) == (4, 2, 3)
    assert prepend(2, 4) == (4, 2)


@given(layouts(max_size=20), layouts(max_size=8), st.integers(0, 3))
def test_append_and_prepend_add_modes_at_the_ends(layout, mode, more):
    assert list(append(layout, mode)) == [*layout, mode]
    assert list(prepend(layout, mode)) == [mode, *layout]
    assert list(append(layout, mode, up_to=rank(layout) + more)) == [*layout, *[mode] * more]


def test_append_up_to_a_smaller_rank_is_refused():
    with pytest.raises(LayoutError, match=r"append up to rank 1: \(2,3\):\(1,2\) has rank 2 already"):
        append(Layout((2, 3)), Layout(1, 0), up_to=1)
