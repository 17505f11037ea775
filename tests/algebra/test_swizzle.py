"""Swizzles and composed layouts, bit by bit and at every coordinate."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_strategies import composed_layouts, forward_layouts, layouts, natural_coordinates, swizzles, values

from tilewright.algebra import (
    ComposedLayout,
    Layout,
    Swizzle,
    composition,
    cosize,
    depth,
    make_identity_layout,
    rank,
    shape,
    size,
    stride,
)
from tilewright.errors import LayoutError


def swizzled_bits(swizzle, offset):
    """The definition, one bit at a time: bit base + i is flipped where bit base + i + shift is set, or the reverse."""
    low, high = swizzle.base, swizzle.base + abs(swizzle.shift)
    source, target = (high, low) if swizzle.shift >= 0 else (low, high)
    result = offset
    for i in range(swizzle.bits):
        if offset >> (source + i) & 1:
            result ^= 1 << (target + i)
    return result


# -- swizzles -------------------------------------------------------------------------------------------------


@given(swizzles(), st.integers(0, 1 << 40))
def test_a_swizzle_flips_the_bits_its_definition_names(swizzle, offset):
    assert swizzle(offset) == swizzled_bits(swizzle, offset)


@given(swizzles(max_bits=5), st.integers(0, 1 << 70))
def test_a_swizzle_is_its_own_inverse_and_keeps_the_bits_below_its_base(swizzle, offset):
    assert swizzle(swizzle(offset)) == offset
    below = (1 << swizzle.base) - 1
    assert swizzle(offset) & below == offset & below


@given(swizzles(), st.integers(0, 5000))
def test_a_swizzle_repeats_after_its_size(swizzle, offset):
    assert swizzle.size() == swizzle.cosize() == 1 << (swizzle.bits + swizzle.base + abs(swizzle.shift))
    assert swizzle(offset + swizzle.size()) == swizzle(offset) + swizzle.size()


@given(swizzles(max_bits=2))
def test_a_swizzle_permutes_each_period(swizzle):
    period = swizzle.size()
    assert sorted(map(swizzle, range(period))) == list(range(period))
    assert sorted(map(swizzle, range(period, 2 * period))) == list(range(period, 2 * period))


@given(swizzles())
def test_a_swizzle_of_an_array_is_taken_element_by_element(swizzle):
    offsets = np.arange(300)
    assert swizzle(offsets).tolist() == [swizzle(o) for o in range(300)]


@given(swizzles(), swizzles())
def test_swizzles_are_equal_by_their_three_numbers(a, b):
    again = Swizzle(a.bits, a.base, a.shift)
    assert a == again
    assert hash(a) == hash(again)
    assert (a == b) is ((a.bits, a.base, a.shift) == (b.bits, b.base, b.shift))
    assert a != (a.bits, a.base, a.shift)
    assert eval(repr(a)) == a


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ((3, 0, 2), "abs(shift) must be at least bits"),
        ((3, 0, -2), "abs(shift) must be at least bits"),
        ((1, 0, 0), "abs(shift) must be at least bits"),
        ((-1, 0, 3), "bits and base must not be negative"),
        ((1, -1, 3), "bits and base must not be negative"),
    ],
)
def test_a_swizzle_whose_bits_overlap_is_refused(numbers, why):
    with pytest.raises(LayoutError) as caught:
        Swizzle(*numbers)
    assert str(caught.value).startswith(f"Swizzle{numbers}: {why}")


# -- composed layouts -----------------------------------------------------------------------------------------


@given(composed_layouts())
def test_a_composed_layout_adds_its_offset_and_then_swizzles(layout):
    outer = layout.outer or (lambda o: o)
    for index, (crd, v) in enumerate(zip(natural_coordinates(layout.shape), values(layout.layout), strict=True)):
        assert layout(crd) == layout(index) == outer(layout.offset + v)
    assert layout.shape == layout.layout.shape
    assert layout.stride == layout.layout.stride
    assert size(layout) == layout.size() == size(layout.layout)
    assert len(layout) == rank(layout) == rank(layout.layout)


@given(composed_layouts())
def test_a_composed_layout_of_an_array_is_taken_element_by_element(layout):
    found = layout(np.arange(layout.size()))
    assert np.broadcast_to(found, layout.size()).tolist() == [layout(i) for i in range(layout.size())]


@given(swizzles(), layouts(kinds=("packed", "ordered", "padded", "chained", "broadcast"), max_size=64))
def test_cosize_of_a_composed_layout_is_one_more_than_its_largest_offset(swizzle, layout):
    largest = max(values(layout))
    if min(values(layout)) == 0:
        assert cosize(ComposedLayout(None, 7, layout)) == 7 + largest + 1
        swizzled = ComposedLayout(swizzle, 7, layout)
        assert cosize(swizzled) == max(swizzle(7 + v) for v in values(layout)) + 1


def test_cosize_of_a_backward_layout_at_an_offset_is_one_more_than_its_largest_offset():
    layout = ComposedLayout(None, 6, Layout(4, -2))
    assert [layout(i) for i in range(4)] == [6, 4, 2, 0]
    assert layout.cosize() == 7


@given(layouts())
def test_without_swizzle_and_offset_a_composed_layout_equals_its_inner_layout(layout):
    same = ComposedLayout(None, 0, layout)
    assert same == layout
    assert layout == same
    assert hash(same) == hash(layout)
    assert ComposedLayout(Swizzle(0, 3, 2), 0, layout) == layout
    assert ComposedLayout(None, 1, layout) != layout
    assert ComposedLayout(Swizzle(1, 0, 1), 0, layout) != layout


@given(composed_layouts(), composed_layouts())
def test_composed_layouts_are_equal_by_their_three_parts(a, b):
    again = ComposedLayout(a.outer, a.offset, a.layout)
    assert a == again
    assert hash(a) == hash(again)
    assert (a == b) is ((a.outer, a.offset, a.layout) == (b.outer, b.offset, b.layout))
    assert eval(repr(a)) == a


@given(swizzles(), layouts(kinds=("packed", "ordered"), max_size=64))
def test_a_swizzle_composed_with_a_layout_swizzles_its_offsets(swizzle, layout):
    swizzled = composition(swizzle, layout)
    assert [swizzled(i) for i in range(size(layout))] == [swizzle(v) for v in values(layout)]
    assert composition(swizzle, layout) == swizzled
    assert composition(swizzle, 8) == ComposedLayout(swizzle, 0, Layout(8))


@given(composed_layouts(max_size=48), st.integers(1, 12))
def test_composition_of_a_composed_layout_acts_on_its_inner_layout(layout, n):
    inner = None
    try:
        inner = composition(layout.layout, Layout(n))
    except LayoutError:
        with pytest.raises(LayoutError, match="composition of"):
            composition(layout, Layout(n))
        return
    composed = composition(layout, Layout(n))
    assert composed == ComposedLayout(layout.outer, layout.offset, inner)
    if n <= layout.size():
        assert [composed(i) for i in range(n)] == [layout(i) for i in range(n)]


@given(forward_layouts(max_size=64), composed_layouts(max_size=32))
def test_a_layout_after_a_composed_layout_reads_its_values(a, b):
    both = composition(a, b)
    assert both.shape == b.shape
    assert [both(i) for i in range(b.size())] == [a(b(i)) for i in range(b.size())]


@given(composed_layouts(max_size=48), layouts(max_size=16))
def test_with_layout_and_with_tile_keep_the_outer_function(layout, other):
    assert layout.with_layout(other) == ComposedLayout(layout.outer, layout.offset, other)
    tile = ComposedLayout(None, 5, other)
    assert layout.with_tile(tile) == ComposedLayout(layout.outer, layout.offset + 5, other)


def test_the_modes_of_a_composed_layout_can_be_measured():
    layout = ComposedLayout(Swizzle(2, 0, 3), 0, Layout((4, 8), (8, 1)))
    assert (size(layout, 0), shape(layout, 1)) == (4, 8)


@given(composed_layouts())
def test_the_modes_of_a_composed_layout_measure_as_those_of_its_inner_layout(layout):
    for mode in range(rank(layout)):
        for measure in (size, shape, rank, depth, stride):
            assert measure(layout, mode) == measure(layout.layout, mode)
    assert depth(layout) == depth(layout.layout)


def test_a_mode_of_a_composed_layout_has_no_cosize_of_its_own():
    layout = ComposedLayout(Swizzle(2, 0, 3), 0, Layout((4, 8), (8, 1)))
    with pytest.raises(LayoutError, match=r"cosize of mode \(1\) of S<2,0,3> o 0 o \(4,8\):\(8,1\)"):
        cosize(layout, 1)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (Swizzle(2, 0, 3), ["bits", "base", "shift", "colour"]),
        (ComposedLayout(Swizzle(2, 0, 3), 5, Layout(8)), ["outer", "offset", "layout", "shape", "colour"]),
    ],
    ids=str,
)
def test_swizzles_and_composed_layouts_cannot_be_changed(value, names):
    before = hash(value)
    for name in names:
        with pytest.raises(AttributeError, match=f"a {type(value).__name__} cannot be changed"):
            setattr(value, name, 3)
        with pytest.raises(AttributeError, match=f"a {type(value).__name__} cannot be changed"):
            delattr(value, name)
    assert hash(value) == before


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_swizzles_and_composed_layouts_can_be_copied_and_pickled(again):
    assert again(Swizzle(2, 1, -3)) == Swizzle(2, 1, -3)
    for layout in (
        ComposedLayout(Swizzle(2, 0, 3), 5, Layout((4, 8), (8, 1))),
        ComposedLayout(None, (1, 2), make_identity_layout((4, 8))),
        ComposedLayout(Layout((4, 8)), 0, ComposedLayout(Swizzle(2, 0, 3), 0, Layout(32))),
    ):
        assert again(layout) == layout
        assert hash(again(layout)) == hash(layout)


def test_an_offset_among_coordinates_is_a_coordinate():
    layout = ComposedLayout(None, (1, 2), make_identity_layout((4, 8)))
    assert [layout(0, 0), layout(3, 5)] == [(1, 2), (4, 7)]
