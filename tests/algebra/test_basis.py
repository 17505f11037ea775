"""Layouts whose values are coordinates."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_strategies import basis_layouts, count, flat_leaves, natural_coordinates, shapes

from tilewright.algebra import (
    E,
    Layout,
    ScaledBasis,
    blocked_product,
    coalesce,
    complement,
    composition,
    cosize,
    flatten,
    left_inverse,
    local_partition,
    local_tile,
    logical_divide,
    logical_product,
    make_identity_layout,
    make_layout,
    raked_product,
    right_inverse,
    size,
    zipped_divide,
)
from tilewright.errors import LayoutError

PATHS = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)


def steps_of(layout, crd):
    """The sum of digit times stride along each path of the codomain."""
    total = {}
    for digit, stride in zip(flat_leaves(crd), flat_leaves(layout.stride), strict=True):
        total[stride.path] = total.get(stride.path, 0) + digit * stride.value
    return total


def at(value, path):
    for mode in path:
        value = value[mode]
    return value


@given(st.integers(-9, 9), st.integers(-9, 9), PATHS, PATHS)
def test_basis_elements_scale_and_compare_by_value_and_path(a, b, p, q):
    assert a * E(*p) == E(*p) * a == ScaledBasis(a, p)
    assert b * (a * E(*p)) == (a * b) * E(*p)
    assert (ScaledBasis(a, p) == ScaledBasis(b, q)) is ((a, p) == (b, q))
    assert hash(ScaledBasis(a, p)) == hash(a * E(*p))
    assert ScaledBasis(a, p) != a


@pytest.mark.parametrize(
    ("element", "text"), [(E(0), "1@0"), (5 * E(1), "5@1"), (E(0, 1), "1@1@0"), (-2 * E(2, 0, 1), "-2@1@0@2")]
)
def test_basis_elements_print_the_innermost_mode_first(element, text):
    assert repr(element) == str(element) == text


@given(basis_layouts())
def test_the_value_of_a_coordinate_layout_adds_up_along_each_mode(layout):
    paths = {stride.path for stride in flat_leaves(layout.stride)}
    for index, crd in enumerate(natural_coordinates(layout.shape)):
        value = layout(crd)
        assert layout(index) == value
        wanted = steps_of(layout, crd)
        for path in paths:
            assert at(value, path) == wanted[path]


@given(basis_layouts())
def test_a_coordinate_value_is_as_wide_as_the_largest_mode_it_can_reach(layout):
    paths = [stride.path for stride in flat_leaves(layout.stride)]
    value = layout(0)
    assert len(value) == 1 + max(path[0] for path in paths)
    nested = [path[1] for path in paths if len(path) > 1]
    if nested:
        assert len(value[2]) == 1 + max(nested)


@given(basis_layouts())
def test_cosize_of_a_coordinate_layout_bounds_every_value(layout):
    bound = flat_leaves(cosize(layout))
    found = [flat_leaves(layout(i)) for i in range(size(layout))]
    assert bound == [1 + max(column) for column in zip(*found, strict=True)]


@given(basis_layouts())
def test_coalesce_and_flatten_keep_the_coordinates(layout):
    wanted = [layout(i) for i in range(size(layout))]
    assert [flatten(layout)(i) for i in range(size(layout))] == wanted
    if size(layout) > 1:
        flat = coalesce(layout)
        moving = {s.path for n, s in zip(flat_leaves(layout.shape), flat_leaves(layout.stride), strict=True) if n > 1}
        for i in range(size(layout)):
            value = flat(i) if flat.has_coordinates else (flat(i),)
            assert all(at(value, path) == at(wanted[i], path) for path in moving)


@given(shapes(max_size=60))
def test_an_identity_layout_coalesces_only_within_nothing(extents):
    layout = make_identity_layout(extents)
    kept = coalesce(layout, layout.shape)
    assert kept.shape == layout.shape
    assert size(coalesce(layout)) == count(extents)


def test_two_kinds_of_strides_cannot_be_added():
    layout = Layout((4, 8), (1, E(0)))
    with pytest.raises(LayoutError, match="a coordinate and the offset 2 cannot be added"):
        layout(2, 3)


def test_a_mode_that_stands_still_goes_with_coordinates():
    layout = Layout((4, 8), (0, E(1)))
    assert [layout(i, j) for i in (0, 3) for j in (0, 5)] == [(0, 0), (0, 5), (0, 0), (0, 5)]


@given(st.integers(1, 40), st.integers(1, 12))
def test_a_tiled_identity_tells_which_elements_lie_past_the_end(n, tile):
    offsets, where = logical_divide(Layout(n), tile), logical_divide(Layout(n, E(0)), tile)
    inside = [offsets(i, j) for i in range(tile) for j in range(size(offsets, 1)) if where(i, j)[0] < n]
    assert sorted(inside) == list(range(n))


def test_a_tiled_identity_of_one_element_tells_which_elements_lie_past_the_end():
    where = zipped_divide(make_identity_layout((1, 6)), (4, 3))
    assert [where((i, 0), 0) for i in range(4)] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    where = logical_divide(Layout(1, E(0)), 4)
    assert [where(i, 0)[0] for i in range(4)] == [0, 1, 2, 3]


def test_a_tiled_matrix_identity_predicates_both_modes():
    extents, tiler = (10, 7), (4, 3)
    tiles, where = zipped_divide(Layout(extents), tiler), zipped_divide(make_identity_layout(extents), tiler)
    inside = []
    for crd in natural_coordinates(tiles.shape):
        row, column = where(crd)
        if row < 10 and column < 7:
            inside.append(tiles(crd))
            assert tiles(crd) == Layout(extents)(row, column)
    assert sorted(inside) == list(range(70))


def test_composition_with_coordinates_picks_modes_by_name():
    a = Layout((4, (2, 4)), (2, (1, 8)))
    transposed = make_layout(Layout(8, E(1)), Layout(4, E(0)))
    picked = composition(a, transposed)
    assert [picked(j, i) for i in range(4) for j in range(8)] == [a(i, j) for i in range(4) for j in range(8)]
    assert str(composition(a, Layout(2, 2 * E(1, 1)))) == "2:16"


def test_arrays_of_coordinates_give_arrays_of_coordinates():
    rows, columns = make_identity_layout((4, 8))(np.arange(4), 3)
    assert np.broadcast_to(rows, 4).tolist() == [0, 1, 2, 3]
    assert np.broadcast_to(columns, 4).tolist() == [3, 3, 3, 3]


@given(basis_layouts())
def test_a_coordinate_layout_of_an_array_is_taken_element_by_element(layout):
    found = flat_leaves(layout(np.arange(size(layout))))
    wanted = zip(*[flat_leaves(layout(i)) for i in range(size(layout))], strict=True)
    assert [np.broadcast_to(f, size(layout)).tolist() for f in found] == [list(w) for w in wanted]


def test_arrays_go_with_modes_that_stand_still_and_with_offsets():
    rows, columns = Layout((4, 8), (0, E(1)))(np.arange(4), np.arange(4))
    assert (rows, columns.tolist()) == (0, [0, 1, 2, 3])
    rows, columns = local_tile(make_identity_layout((8, 8)), (4, 4), (1, 0))(np.arange(4), 3)
    assert (rows.tolist(), columns) == ([4, 5, 6, 7], 3)
    with pytest.raises(LayoutError, match="cannot be added"):
        Layout((4, 8), (1, E(0)))(np.arange(4), 3)


def test_a_step_along_a_mode_and_one_inside_it_make_no_coordinate():
    with pytest.raises(LayoutError, match="the strides step along 1@1 and along 1@0@1 in it"):
        Layout((4, 8), (E(1), E(1, 0)))(2, 3)


@pytest.mark.parametrize("name", ["value", "path", "colour"])
def test_a_basis_element_cannot_be_changed(name):
    element = E(0, 1)
    with pytest.raises(AttributeError, match="a ScaledBasis cannot be changed"):
        setattr(element, name, 3)
    with pytest.raises(AttributeError, match="a ScaledBasis cannot be changed"):
        delattr(element, name)
    assert element == E(0, 1)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_basis_element_can_be_copied_and_pickled(again):
    assert again(5 * E(0, 1)) == 5 * E(0, 1)
    assert again(make_identity_layout((4, (2, 3)))) == make_identity_layout((4, (2, 3)))


def test_a_partition_of_an_identity_layout_tells_which_elements_a_thread_owns():
    share = local_partition(make_identity_layout((8, 8)), Layout((2, 4)), 5)
    assert share(1, 1) == (3, 6)


# -- complements, inverses, divides and products of coordinates ---------------------------------------------------


@st.composite
def boxes(draw, max_modes=4):
    """A layout of coordinates that takes each once, and the axes that it steps along: (axis, extent) by mode."""
    modes = draw(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 2, 3, 4])), min_size=1, max_size=max_modes))
    running, strides = {}, []
    for axis, extent in modes:
        gap = draw(st.sampled_from([1, 1, 2]))
        strides.append(running.get(axis, 1) * gap * E(axis))
        running[axis] = running.get(axis, 1) * gap * extent
    order = draw(st.permutations(range(len(modes))))
    return Layout(tuple(modes[i][1] for i in order), tuple(strides[i] for i in order))


@given(boxes())
def test_right_inverse_of_coordinates_finds_each_coordinate(layout):
    r = right_inverse(layout)
    for crd in natural_coordinates(tuple(size(axis) for axis in r)):
        assert layout(r(crd)) == crd


def test_right_inverse_of_an_identity_is_the_packed_layout():
    assert right_inverse(make_identity_layout((4, 5))) == Layout((4, 5))
    assert right_inverse(Layout((4, 5), (E(1), E(0)))) == Layout((5, 4), (4, 1))
    assert left_inverse(Layout((4, 5), (E(1), E(0)))) == Layout((5, 4), (4, 1))
    assert right_inverse(make_identity_layout((4, (2, 3)))) == Layout((4, (2, 3)))


@given(boxes())
def test_left_inverse_of_coordinates_undoes_the_layout(layout):
    r = left_inverse(layout)
    assert [r(layout(i)) for i in range(size(layout))] == list(range(size(layout)))


@given(boxes(), st.tuples(*[st.integers(1, 20)] * 3))
def test_complement_of_coordinates_fills_the_box(layout, box):
    rest = complement(layout, box)
    both = make_layout(layout, rest)
    every = np.arange(size(both))
    found = list(zip(*(np.broadcast_to(axis, every.shape).tolist() for axis in both(every)), strict=True))
    assert [tuple(both(i)) for i in range(0, size(both), 37)] == found[::37]
    assert len(set(found)) == len(found)
    wanted = {(i, j, k) for i in range(box[0]) for j in range(box[1]) for k in range(box[2])}
    assert wanted <= {(*c, 0, 0)[:3] for c in found}


def test_complement_of_coordinates_names_what_it_lacks():
    with pytest.raises(LayoutError, match="its values are coordinates; give a shape to fill"):
        complement(make_identity_layout((4, 5)), 40)
    with pytest.raises(LayoutError, match="steps along 1@0@1, but the shape has 7 there"):
        complement(make_identity_layout((4, (2, 3))), (8, 7))


def test_a_tiler_of_coordinates_cuts_boxes():
    layout = Layout((8, 10), (10, 1))
    tiles = logical_divide(layout, make_identity_layout((4, 5)))
    assert tiles == zipped_divide(layout, (4, 5))
    turned = logical_divide(layout, Layout((5, 2), (E(1), 4 * E(0))))
    assert str(turned) == "((5,2),(4,2)):((1,40),(10,5))"


def test_copies_of_a_box_of_coordinates_go_along_its_axes():
    box, grid = make_identity_layout((4, 5)), make_identity_layout((2, 3))
    product = logical_product(box, grid)
    assert sorted(product(i) for i in range(size(product))) == [(i, j) for i in range(8) for j in range(15)]
    assert str(blocked_product(box, grid)) == "((4,2),(5,3)):((1@0,4@0),(1@1,5@1))"
    assert str(raked_product(box, grid)) == "((2,4),(3,5)):((4@0,1@0),(5@1,1@1))"
    assert str(logical_product(Layout(4, E(0)), Layout(3, E(0)))) == "(4,3):(1@0,4@0)"
