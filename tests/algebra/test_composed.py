"""Layouts at an offset and after a swizzle go through every operation without losing either."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from layout_strategies import (
    basis_layouts,
    composed_layouts,
    coordinates,
    count,
    flat_leaves,
    injective_layouts,
    open_coordinates,
    swizzles,
)

from tilewright.algebra import (
    ComposedLayout,
    E,
    Layout,
    Swizzle,
    append,
    coalesce,
    complement,
    composition,
    congruent,
    cosize,
    dice,
    downcast,
    filter,
    filter_zeros,
    flatten,
    group,
    left_inverse,
    make_identity_layout,
    make_layout_like,
    max_common_layout,
    nullspace,
    prepend,
    rank,
    recast,
    replace,
    reverse,
    right_inverse,
    select,
    size,
    slice_and_offset,
    take,
    upcast,
    weakly_compatible,
)
from tilewright.errors import LayoutError


def all_values(layout):
    return [layout(i) for i in range(size(layout))]


@given(composed_layouts(), st.sampled_from([coalesce, flatten]))
def test_the_same_function_with_other_modes_keeps_swizzle_and_offset(layout, operation):
    found = operation(layout)
    assert isinstance(found, ComposedLayout)
    assert all_values(found) == all_values(layout)


@given(composed_layouts(), st.sampled_from([filter, filter_zeros]))
def test_filters_of_a_composed_layout_take_the_same_values(layout, operation):
    assert set(all_values(operation(layout))) == set(all_values(layout))


@given(composed_layouts())
def test_filter_zeros_of_a_composed_layout_keeps_the_nesting(layout):
    assert congruent(filter_zeros(layout), layout)


@given(composed_layouts(), st.data())
def test_modes_of_a_composed_layout_are_grouped_selected_and_added(layout, data):
    begin = data.draw(st.integers(0, rank(layout) - 1))
    end = data.draw(st.integers(begin + 1, rank(layout)))
    assert all_values(group(layout, begin, end)) == all_values(layout)
    picked = select(layout, begin)
    assert all_values(picked) == all_values(layout[begin])
    longer = append(layout, Layout(3, 8))
    assert longer.layout == append(layout.layout, Layout(3, 8))
    assert prepend(layout, Layout(3, 8)).layout == prepend(layout.layout, Layout(3, 8))
    assert (longer.outer, longer.offset) == (layout.outer, layout.offset)


@given(composed_layouts(), st.data())
def test_a_mode_of_a_composed_layout_holds_the_other_modes_at_zero(layout, data):
    mode = data.draw(st.integers(0, rank(layout) - 1))
    part = layout[mode]
    for i in range(size(part)):
        crd = tuple(i if m == mode else 0 for m in range(rank(layout)))
        assert part(i) == (layout(crd) if rank(layout) > 1 or isinstance(layout.shape, tuple) else layout(i))


@given(st.data())
def test_a_slice_of_a_composed_layout_begins_where_the_fixed_modes_say(data):
    layout = data.draw(composed_layouts())
    crd = data.draw(open_coordinates(layout.shape))
    assume(crd is not None)
    kept, offset = slice_and_offset(crd, layout)
    assert offset == 0
    assert kept == layout(crd)
    free = data.draw(coordinates(kept.shape))
    rest = iter(_split(free, kept.shape))

    def filled(c):
        return tuple(filled(e) for e in c) if isinstance(c, tuple) else next(rest) if c is None else c

    assert kept(free) == layout(filled(crd))


def _split(crd, shape):
    """The coordinate of each top-level mode."""
    if not isinstance(shape, tuple):
        return [crd]
    if isinstance(crd, tuple):
        return list(crd)
    parts = []
    for s in shape[:-1]:
        parts.append(crd % count(s))
        crd //= count(s)
    return [*parts, crd]


@given(swizzles(), st.sampled_from([1, 2, 4, 8]), st.integers(0, 999))
def test_a_swizzle_of_larger_or_smaller_elements_moves_the_same_bytes(swizzle, times, offset):
    small = swizzle.downcast(times)
    for j in range(times):
        assert small(times * offset + j) == times * swizzle(offset) + j
    try:
        large = swizzle.upcast(times)
    except LayoutError:
        assert swizzle.shift < 0
        assert any(swizzle(times * i) // times != swizzle(times * i + times - 1) // times for i in range(64))
        return
    assert large(offset // times) == swizzle(offset) // times


@given(swizzles(), st.integers(0, 9), st.sampled_from([2, 4, 8]))
def test_recast_of_a_swizzled_layout_covers_the_same_bytes(swizzle, start, times):
    layout = ComposedLayout(swizzle, 8 * start, Layout((4, 16), (16, 1)))
    small = recast(layout, 8 * times, 8)
    assert small == downcast(layout, times)
    assert sorted(all_values(small)) == sorted(times * v + j for v in all_values(layout) for j in range(times))
    try:
        large = upcast(layout, times)
    except LayoutError:
        assert swizzle.shift < 0
        return
    assert set(all_values(large)) == {v // times for v in all_values(layout)}


def test_recast_of_a_composed_layout_names_what_it_cannot_do():
    with pytest.raises(LayoutError, match="the offset 3 is inside an element"):
        upcast(ComposedLayout(None, 3, Layout(8)), 2)
    with pytest.raises(LayoutError, match="times as large, not 3"):
        downcast(ComposedLayout(Swizzle(1, 0, 1), 0, Layout(8)), 3)
    with pytest.raises(LayoutError, match="is no swizzle"):
        recast(ComposedLayout(Layout(8, 2), 0, Layout(4)), 8, 16)
    with pytest.raises(LayoutError, match="its values are coordinates"):
        recast(make_identity_layout((4, 4)), 8, 16)


@given(swizzles(), injective_layouts(max_size=100))
def test_right_inverse_of_a_swizzled_layout_finds_each_offset(swizzle, inner):
    layout = ComposedLayout(swizzle, 0, inner)
    r = right_inverse(layout)
    assert [layout(int(r(k))) for k in range(size(r))] == list(range(size(r)))


@given(swizzles(), st.integers(0, 30), injective_layouts(max_size=100))
def test_left_inverse_of_a_swizzled_layout_undoes_it(swizzle, offset, inner):
    layout = ComposedLayout(swizzle, offset, inner)
    try:
        r = left_inverse(layout)
    except LayoutError:
        return
    assert [r(layout(i)) for i in range(size(layout))] == list(range(size(layout)))


@given(swizzles(), injective_layouts(max_size=100))
def test_what_a_swizzled_layout_has_in_common_are_the_offsets_that_stay(swizzle, inner):
    layout = ComposedLayout(swizzle, 0, inner)
    for common in (max_common_layout(layout, inner), max_common_layout(inner, layout)):
        assert [layout(i) for i in all_values(common)] == [inner(i) for i in all_values(common)]
        assert [inner(i) for i in all_values(common)] == list(range(size(common)))


def test_what_a_composed_layout_has_no_answer_for_is_refused():
    at = ComposedLayout(Swizzle(1, 0, 2), 4, Layout(8))
    with pytest.raises(LayoutError, match=r"complement of .*: take that of its inner layout, 8:1"):
        complement(at, 16)
    with pytest.raises(LayoutError, match=r"right_inverse of .*: it begins at 4"):
        right_inverse(at)
    with pytest.raises(LayoutError, match="it is not a layout of offsets after a swizzle"):
        left_inverse(ComposedLayout(Layout(8, 2), 0, Layout(4)))


@given(composed_layouts(max_size=60))
def test_composition_starts_from_a_shape_or_a_swizzle_too(layout):
    assert composition((4, 8), Layout(4, 4)) == Layout(4, 4)
    assert composition(Swizzle(2, 0, 3), layout)(0) == Swizzle(2, 0, 3)(layout(0))


@given(basis_layouts(), st.integers(0, 9))
def test_cosize_of_coordinates_at_an_offset_bounds_every_value(layout, first):
    start = tuple(first for _ in layout(0))
    moved = ComposedLayout(None, start, layout)
    bound = flat_leaves(cosize(moved))
    assert len(bound) == len(flat_leaves(moved(0)))
    for i in range(size(layout)):
        assert all(v < b for v, b in zip(flat_leaves(moved(i)), bound, strict=True))


@given(st.data())
def test_dice_keeps_the_modes_that_a_slice_drops(data):
    layout = data.draw(composed_layouts()).layout
    crd = data.draw(open_coordinates(layout.shape))
    assume(crd is not None and any(c is not None for c in flat_leaves(crd)))
    fixed = tuple(c for c in _fixed(crd))
    assert dice(crd, layout)(fixed) == slice_and_offset(crd, layout)[1]


def _fixed(crd):
    for c in crd if isinstance(crd, tuple) else (crd,):
        if isinstance(c, tuple):
            yield from _fixed(c)
        elif c is not None:
            yield c


@given(composed_layouts(), st.data())
def test_modes_of_a_composed_layout_are_taken_replaced_and_reversed(layout, data):
    assume(isinstance(layout.shape, tuple))
    begin = data.draw(st.integers(0, len(layout) - 1))
    end = data.draw(st.integers(begin + 1, len(layout)))
    assert take(layout, begin, end) == select(layout, *range(begin, end))
    assert reverse(reverse(layout)) == layout
    assert reverse(layout) == select(layout, *reversed(range(len(layout))))
    other = replace(layout, begin, Layout(2, 5))
    assert [other[m] for m in range(len(layout)) if m != begin] == [layout[m] for m in range(len(layout)) if m != begin]
    assert other[begin] == layout.with_layout(Layout(2, 5))


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: take(Layout((2, 3)), 1, 3), r"take of modes 1 to 3 of \(2,3\):\(1,2\): it has 2 modes"),
        (lambda: take((2, 3), 1, 1), "it has 2 modes"),
        (lambda: replace(Layout((2, 3)), 2, Layout(4)), r"replace of mode 2 of \(2,3\):\(1,2\): it has 2 modes"),
        (lambda: nullspace(ComposedLayout(Swizzle(2, 0, 3), 0, Layout(8))), "nullspace of"),
        (lambda: make_layout_like(Layout((2, 3), (1, -2))), "mode 3:-2 runs backwards"),
        (lambda: make_layout_like(Layout((2, 3), (E(0), E(1)))), "its strides have no order"),
        (lambda: weakly_compatible(0, 4), "nothing is made of copies of it"),
    ],
)
def test_modes_that_are_not_there_and_strides_without_an_order_are_refused(call, why):
    with pytest.raises(LayoutError, match=why):
        call()
