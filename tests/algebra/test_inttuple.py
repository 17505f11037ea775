"""Nested tuples of integers, against plain loops over all coordinates."""

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from layout_strategies import (
    all_coordinates,
    coordinates,
    count,
    dot,
    extended_value,
    flat_leaves,
    index_of,
    like,
    natural_coordinates,
    open_coordinates,
    shapes,
)

from tilewright.algebra import (
    Integer,
    Layout,
    compatible,
    congruent,
    crd2crd,
    crd2idx,
    elem_scale,
    has_none,
    idx2crd,
    inner_product,
    is_int,
    is_tuple,
    prefix_product,
    product,
    shape_div,
    signum,
    slice_,
    suffix_product,
    transform_leaf,
    tuple_max,
    unflatten,
    weakly_congruent,
)
from tilewright.algebra.inttuple import as_int_tuple, leaves
from tilewright.errors import LayoutError


@st.composite
def shapes_and_strides(draw):
    shape = draw(shapes())
    flat = [draw(st.integers(-20, 20)) for _ in flat_leaves(shape)]
    return shape, like(shape, flat)


# -- what counts as an integer ------------------------------------------------------------------------


@pytest.mark.parametrize("x", [0, 3, -7, np.int8(3), np.uint64(5), 10**30])
def test_ints_and_numpy_integers_are_integers(x):
    assert is_int(x)
    assert isinstance(x, Integer)


@pytest.mark.parametrize("x", [True, False, np.bool_(True), 3.0, np.float32(1), "3", None, (3,), [3]])
def test_nothing_else_is_an_integer(x):
    assert not is_int(x)
    assert not isinstance(x, Integer)


def test_subclasses_count_as_their_base_does():
    assert issubclass(int, Integer)
    assert issubclass(np.int32, Integer)
    assert not issubclass(bool, Integer)


def test_only_a_tuple_is_a_tuple():
    assert is_tuple(())
    assert is_tuple((1, 2))
    assert not is_tuple([1, 2])
    assert not is_tuple(4)


@pytest.mark.parametrize(
    ("crd", "wanted"),
    [(None, True), (0, False), ((1, None), True), ((1, (2, (None,))), True), ((), False), ((0,), False)],
)
def test_has_none_looks_at_every_depth(crd, wanted):
    assert has_none(crd) is wanted


def test_numpy_integers_in_tuples_become_plain_ints():
    made = as_int_tuple((np.int64(2), (np.uint8(3), 4)), "shape")
    assert made == (2, (3, 4))
    assert [type(leaf) for leaf in leaves(made)] == [int, int, int]


@pytest.mark.parametrize("bad", [2.0, True, "2", None, [2], (2, [3]), (2, (3, False))])
def test_as_int_tuple_names_what_is_wrong(bad):
    with pytest.raises(LayoutError, match="extent must be an int or a nested tuple of ints, but holds"):
        as_int_tuple(bad, "extent")


# -- leaves -------------------------------------------------------------------------------------------


@given(shapes())
def test_leaves_come_from_left_to_right(shape):
    assert list(leaves(shape)) == flat_leaves(shape)


@given(shapes())
def test_unflatten_undoes_leaves(shape):
    assert unflatten(leaves(shape), shape) == shape


def test_unflatten_wants_as_many_leaves_as_places():
    with pytest.raises(LayoutError, match=r"2 leaves \(1, 2\) do not fit the 3 places of \(\(0, 0\), 0\)"):
        unflatten([1, 2], ((0, 0), 0))


@given(shapes_and_strides())
def test_transform_leaf_pairs_corresponding_leaves(pair):
    shape, stride = pair
    made = transform_leaf(lambda s, d: (10 * s) - d, shape, stride)
    assert congruent(made, shape)
    assert flat_leaves(made) == [10 * s - d for s, d in zip(flat_leaves(shape), flat_leaves(stride), strict=True)]


@pytest.mark.parametrize(("a", "b"), [((1, 2), 1), (1, (1, 2)), ((1, 2), (1, 2, 3)), ((1, (2, 3)), (1, 2))])
def test_transform_leaf_refuses_different_nestings(a, b):
    with pytest.raises(LayoutError, match="are not nested alike"):
        transform_leaf(lambda x, y: x, a, b)


# -- arithmetic ---------------------------------------------------------------------------------------


@given(shapes())
def test_product_and_maximum_are_those_of_the_leaves(shape):
    assert product(shape) == prod(flat_leaves(shape))
    assert tuple_max(shape) == max(flat_leaves(shape))


def test_the_product_of_nothing_is_one():
    assert product(()) == 1
    assert product((4, ())) == 4


@given(shapes_and_strides())
def test_inner_product_is_the_sum_of_products(pair):
    shape, stride = pair
    assert inner_product(shape, stride) == dot(shape, stride)


@given(st.integers(-(10**20), 10**20))
def test_signum_times_magnitude_is_the_number(x):
    assert signum(x) * abs(x) == x
    assert signum(x) in (-1, 0, 1)


@given(shapes(), st.integers(1, 5))
def test_prefix_product_counts_the_elements_before_each_mode(shape, start):
    flat = flat_leaves(shape)
    assert flat_leaves(prefix_product(shape, start)) == [start * prod(flat[:i]) for i in range(len(flat))]
    assert congruent(prefix_product(shape), shape)


@given(shapes(), st.integers(1, 5))
def test_suffix_product_counts_the_elements_after_each_mode(shape, start):
    flat = flat_leaves(shape)
    assert flat_leaves(suffix_product(shape, start)) == [start * prod(flat[i + 1 :]) for i in range(len(flat))]
    assert congruent(suffix_product(shape), shape)


@given(shapes(max_size=50), st.data())
def test_elem_scale_multiplies_each_leaf_by_the_size_of_its_mode(shape, data):
    scales = like(shape, [data.draw(shapes(max_size=20, max_modes=2)) for _ in flat_leaves(shape)])

    def expected(a, b):
        return tuple(map(expected, a, b)) if isinstance(a, tuple) else a * count(b)

    assert elem_scale(shape, scales) == expected(shape, scales)


@pytest.mark.parametrize(("a", "b"), [((2, 3), 4), ((2, 3), (4,)), ((2, (3, 4)), (2, 3))])
def test_elem_scale_refuses_different_ranks(a, b):
    with pytest.raises(LayoutError, match="have different ranks"):
        elem_scale(a, b)


@given(st.integers(1, 60), st.integers(1, 60))
def test_shape_div_of_ints_rounds_up_and_raises_when_neither_divides(a, b):
    if a % b == 0 or b % a == 0:
        assert shape_div(a, b) == (a + b - 1) // b
    else:
        with pytest.raises(LayoutError, match=f"shape_div of {a} by {b}: neither divides the other"):
            shape_div(a, b)


@given(shapes(), st.data())
def test_shape_div_counts_the_digits_met_by_every_bth_element(shape, data):
    step = data.draw(st.sampled_from([k for k in range(1, count(shape) + 1) if count(shape) % k == 0]))
    try:
        quotient = shape_div(shape, step)
    except LayoutError:
        # some digit is neither a divisor of the step nor a multiple of it
        before = 1
        fair = []
        for extent in flat_leaves(shape):
            left = step / before
            fair.append(left <= 1 or left % extent == 0 or extent % left == 0)
            before *= extent
        assert not all(fair)
        return
    assert congruent(quotient, shape)
    assert count(quotient) * step == count(shape)
    met = [flat_leaves(crd) for crd in natural_coordinates(shape)[::step]]
    assert flat_leaves(quotient) == [len({crd[i] for crd in met}) for i in range(len(flat_leaves(shape)))]


@given(shapes(), shapes())
def test_shape_div_by_a_tuple_goes_mode_by_mode_and_an_int_takes_its_size(shape, other):
    assert shape_div(shape, shape) == like(shape, [1] * len(flat_leaves(shape)))
    whole = count(shape)
    if whole % count(other) == 0 or count(other) % whole == 0:
        assert shape_div(whole, other) == shape_div(whole, count(other))


def test_shape_div_of_tuples_wants_equal_ranks():
    with pytest.raises(LayoutError, match=r"shape_div of \(4, 6\) by \(2,\): the ranks differ"):
        shape_div((4, 6), (2,))


def test_shape_div_names_the_failing_mode():
    with pytest.raises(LayoutError, match="shape_div of 6 by 4: neither divides the other"):
        shape_div((3, 6), 12)
    with pytest.raises(LayoutError, match="shape_div of 4 by 0"):
        shape_div(4, 0)


# -- coordinates --------------------------------------------------------------------------------------


@given(shapes_and_strides())
def test_crd2idx_of_natural_coordinates_is_the_inner_product(pair):
    shape, stride = pair
    for index, crd in enumerate(natural_coordinates(shape)):
        assert crd2idx(crd, shape, stride) == dot(crd, stride)
        assert crd2idx(index, shape, stride) == dot(crd, stride)


@given(shapes_and_strides(), st.data())
def test_crd2idx_takes_coordinates_of_every_nesting(pair, data):
    shape, stride = pair
    crd = data.draw(coordinates(shape))
    natural = natural_coordinates(shape)[index_of(crd, shape)]
    assert crd2idx(crd, shape, stride) == dot(natural, stride)
    assert crd2idx(crd, shape) == index_of(crd, shape)


@given(shapes_and_strides(), st.integers(0, 999))
def test_crd2idx_past_the_end_extends_the_last_mode(pair, index):
    shape, stride = pair
    assert crd2idx(index, shape, stride) == extended_value(Layout(shape, stride), index)


@given(shapes_and_strides(), st.data())
def test_none_in_a_coordinate_counts_as_zero(pair, data):
    shape, stride = pair
    crd = data.draw(open_coordinates(shape))

    def closed(c):
        return tuple(map(closed, c)) if isinstance(c, tuple) else 0 if c is None else c

    assert crd2idx(crd, shape, stride) == crd2idx(closed(crd), shape, stride)


@given(shapes_and_strides())
def test_crd2idx_of_an_array_is_taken_element_by_element(pair):
    shape, stride = pair
    wanted = [dot(crd, stride) for crd in natural_coordinates(shape)]
    assert np.broadcast_to(crd2idx(np.arange(count(shape)), shape, stride), count(shape)).tolist() == wanted
    columns = zip(*[flat_leaves(crd) for crd in natural_coordinates(shape)], strict=True)
    natural = like(shape, [np.array(column) for column in columns])
    assert crd2idx(natural, shape, stride).tolist() == wanted


@given(shapes())
def test_idx2crd_lists_the_natural_coordinates_in_order(shape):
    assert [idx2crd(i, shape) for i in range(count(shape))] == natural_coordinates(shape)


@pytest.mark.parametrize(("crd", "wanted"), [((0, 5), (0, (1, 2))), ((3, (1, 2)), (3, (1, 2))), ((2, 7), (2, (1, 3)))])
def test_idx2crd_of_a_coordinate_is_its_natural_form(crd, wanted):
    assert idx2crd(crd, (4, (2, 4))) == wanted


@given(shapes(), st.data())
def test_idx2crd_and_crd2idx_agree_on_coordinates_of_every_nesting(shape, data):
    crd = data.draw(coordinates(shape))
    assert idx2crd(crd, shape) == natural_coordinates(shape)[index_of(crd, shape)]


def test_idx2crd_finds_nothing_along_a_stride_of_zero():
    assert idx2crd(5, (4, 8), (0, 1)) == (0, 5)
    assert idx2crd(5, (4, (2, 8)), (1, (0, 4))) == (1, (0, 1))
    rows, columns = idx2crd(np.arange(8), (4, 8), (0, 1))
    assert (rows.tolist(), columns.tolist()) == ([0] * 8, list(range(8)))


@given(shapes(), st.permutations(range(5)))
def test_idx2crd_with_strides_undoes_a_packed_order(shape, order):
    flat = flat_leaves(shape)
    strides, running = [0] * len(flat), 1
    for mode in [m for m in order if m < len(flat)]:
        strides[mode] = running
        running *= flat[mode]
    stride = like(shape, strides)
    for crd in natural_coordinates(shape):
        assert idx2crd(dot(crd, stride), shape, stride) == crd


@given(shapes())
def test_idx2crd_of_an_array_is_taken_element_by_element(shape):
    found = flat_leaves(idx2crd(np.arange(count(shape)), shape))
    wanted = zip(*[flat_leaves(crd) for crd in natural_coordinates(shape)], strict=True)
    assert [f.tolist() for f in found] == [list(w) for w in wanted]


@given(shapes(max_size=60), shapes(max_size=60), st.data())
def test_crd2crd_names_the_same_element_in_another_shape(source, target, data):
    assume(count(source) <= count(target))
    crd = data.draw(coordinates(source))
    assert crd2crd(crd, source, target) == natural_coordinates(target)[index_of(crd, source)]


@pytest.mark.parametrize(
    ("crd", "shape"),
    [((1, 2), 8), ((1, 2, 3), (4, 8)), ((1,), (4, 8)), ((1, (2, 3)), (4, 8)), ((1, (0, 0, 0)), (4, (2, 4)))],
)
def test_a_coordinate_of_the_wrong_rank_is_refused(crd, shape):
    with pytest.raises(LayoutError, match=r"coordinate .* does not fit shape .*: the ranks differ"):
        crd2idx(crd, shape)
    with pytest.raises(LayoutError, match=r"index .* does not fit shape .*: the ranks differ"):
        idx2crd(crd, shape)


def test_the_rank_error_names_coordinate_and_shape():
    with pytest.raises(LayoutError) as caught:
        crd2idx((1, 2, 3), (4, 8))
    assert "(1, 2, 3)" in str(caught.value)
    assert "(4, 8)" in str(caught.value)


# -- slices -------------------------------------------------------------------------------------------


@given(shapes(), st.data())
def test_slice_keeps_exactly_the_modes_paired_with_none(shape, data):
    crd = data.draw(open_coordinates(shape))
    kept = []

    def walk(c, s):
        if c is None:
            kept.append(s)
        elif isinstance(c, tuple):
            for pair in zip(c, s, strict=True):
                walk(*pair)

    walk(crd, shape)
    assert slice_(crd, shape) == (shape if crd is None else tuple(kept))


def test_a_slice_without_none_keeps_nothing():
    assert slice_((1, (0, 2)), (4, (2, 4))) == ()
    assert slice_(3, (4, 8)) == ()


def test_a_slice_of_the_wrong_rank_is_refused():
    with pytest.raises(LayoutError, match=r"coordinate \(None, 1\) does not fit 8"):
        slice_((None, 1), 8)


# -- relations between shapes ---------------------------------------------------------------------------


def same_nesting(a, b):
    if isinstance(a, tuple) != isinstance(b, tuple):
        return False
    return not isinstance(a, tuple) or (len(a) == len(b) and all(map(same_nesting, a, b)))


@st.composite
def pairs_of_kin(draw):
    """Two shapes, often of one size or one nesting."""
    a = draw(shapes(max_size=36, max_modes=3))
    form = draw(st.sampled_from(["any", "renested", "split", "resized"]))
    if form == "any":
        return a, draw(shapes(max_size=36, max_modes=3))
    if form == "resized":
        return a, like(a, [draw(st.integers(1, 3)) for _ in flat_leaves(a)])
    if form == "renested":
        return a, tuple(flat_leaves(a))

    def split(s):
        if isinstance(s, tuple):
            return tuple(map(split, s))
        if not draw(st.booleans()):
            return s
        part = draw(st.sampled_from([k for k in range(1, s + 1) if s % k == 0]))
        return (part, s // part)

    return a, split(a)


@given(pairs_of_kin())
def test_congruent_means_nested_alike(pair):
    a, b = pair
    assert congruent(a, b) is same_nesting(a, b)
    assert congruent(Layout(a), Layout(b)) is same_nesting(a, b)
    assert congruent(a, a)


@given(pairs_of_kin())
def test_compatible_means_that_every_coordinate_fits_and_the_sizes_agree(pair):
    for a, b in (pair, pair[::-1]):
        wanted = count(a) == count(b) and all_coordinates(a) <= all_coordinates(b)
        assert compatible(a, b) is wanted
        assert compatible(Layout(a), Layout(b)) is wanted


@given(pairs_of_kin())
def test_weakly_congruent_means_nested_alike_or_deeper(pair):
    for a, b in (pair, pair[::-1]):
        ones = like(a, [1] * len(flat_leaves(a)))

        def cut(profile, x):
            """X with everything below the profile's leaves replaced by 1."""
            if not isinstance(profile, tuple):
                return 1
            if not isinstance(x, tuple) or len(x) != len(profile):
                return None
            return tuple(cut(p, e) for p, e in zip(profile, x, strict=True))

        assert weakly_congruent(a, b) is (cut(a, b) == ones)
        if compatible(a, b) or congruent(a, b):
            assert weakly_congruent(a, b)


@given(pairs_of_kin())
def test_compatible_both_ways_means_equal(pair):
    a, b = pair
    assert (compatible(a, b) and compatible(b, a)) is (a == b)
