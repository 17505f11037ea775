"""Coalesce, composition, complement, inverses and recasts: each post-condition, checked at every coordinate."""

from itertools import pairwise
from itertools import product as cartesian

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from layout_strategies import (
    CHAINED,
    FORWARD,
    INJECTIVE,
    all_coordinates,
    chained_layouts,
    composable_pairs,
    count,
    extended_value,
    flat_leaves,
    forward_layouts,
    injective_layouts,
    layouts,
    longest_layout_prefix,
    matrix_layouts,
    natural_coordinates,
    recognise,
    right_hand_sides,
    strides_chain,
    values,
)

from tilewright.algebra import (
    E,
    Layout,
    coalesce,
    compatible,
    complement,
    composition,
    congruent,
    cosize,
    depth,
    downcast,
    filter,
    filter_zeros,
    left_inverse,
    make_identity_layout,
    make_layout,
    max_common_layout,
    max_common_vector,
    parse_layout,
    rank,
    recast,
    right_inverse,
    size,
    upcast,
)
from tilewright.errors import LayoutError


def raises_nothing_else(operation, *args):
    """The result, or None where the operation refuses with a LayoutError."""
    try:
        return operation(*args)
    except LayoutError:
        return None


# -- the recogniser itself --------------------------------------------------------------------------------


@given(layouts(max_size=96))
def test_the_recogniser_finds_the_values_of_every_layout(layout):
    modes = recognise(values(layout))
    assert modes is not None
    found = Layout(tuple(s for s, _ in modes), tuple(d for _, d in modes)) if modes else Layout(1, 0)
    assert values(found) == values(layout)


@pytest.mark.parametrize("sequence", [[1], [0, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3, 4, 6], [0, 1, 2, 3, 5, 4, 6, 7]])
def test_the_recogniser_turns_down_what_is_no_layout(sequence):
    assert recognise(sequence) is None


# -- coalesce and filter ------------------------------------------------------------------------------------


@given(layouts())
def test_coalesce_keeps_the_function_with_as_few_modes_as_possible(layout):
    flat = coalesce(layout)
    assert size(flat) == size(layout)
    assert values(flat) == values(layout)
    assert depth(flat) <= 1
    modes = list(zip(flat_leaves(flat.shape), flat_leaves(flat.stride), strict=True))
    if size(flat) == 1:
        assert flat == Layout(1, 0)
    else:
        assert all(s > 1 for s, _ in modes)
    assert all(s * d != following for (s, d), (_, following) in pairwise(modes))
    assert depth(flat) == 0 or len(modes) > 1
    assert coalesce(flat) == flat


@given(layouts(max_size=48, max_modes=4))
def test_no_layout_has_fewer_modes_than_the_coalesced_one(layout):
    def fewest(sequence):
        """The smallest number of modes with which any layout takes these values."""
        if len(sequence) == 1:
            return 0
        best = None
        for s in range(2, len(sequence) + 1):
            if len(sequence) % s:
                continue
            heads = sequence[::s]
            if all(v == heads[k // s] + k % s * sequence[1] for k, v in enumerate(sequence)):
                rest = fewest(heads)
                if rest is not None and (best is None or rest + 1 < best):
                    best = rest + 1
        return best

    modes = len(flat_leaves(coalesce(layout).shape)) if size(layout) > 1 else 0
    assert modes == fewest(values(layout))


@given(layouts())
def test_coalesce_by_profile_works_on_each_mode_alone(layout):
    by_mode = coalesce(layout, (1,) * rank(layout))
    assert rank(by_mode) == rank(layout)
    assert list(by_mode) == [coalesce(mode) for mode in layout]
    if rank(layout) > 1:
        first = coalesce(layout, (1,))
        assert list(first) == [coalesce(layout[0]), *list(layout)[1:]]


@given(layouts())
def test_coalesce_by_the_full_profile_only_tidies_leaves(layout):
    kept = coalesce(layout, layout.shape)
    assert kept.shape == layout.shape
    assert values(kept) == values(layout)


def test_a_profile_of_more_modes_than_the_layout_is_refused():
    with pytest.raises(LayoutError, match=r"coalesce of \(4,8\):\(1,4\) by \(1, 1, 1\): the tiler has 3 modes"):
        coalesce(Layout((4, 8)), (1, 1, 1))


@given(layouts())
def test_filter_zeros_keeps_the_nesting_and_the_set_of_values(layout):
    kept = filter_zeros(layout)
    assert congruent(kept, layout)
    assert set(values(kept)) == set(values(layout))
    assert all(s == 1 for s, d in zip(flat_leaves(kept.shape), flat_leaves(kept.stride), strict=True) if d == 0)


@given(layouts())
def test_filter_keeps_the_set_of_values_and_no_mode_that_stands_still(layout):
    kept = filter(layout)
    assert set(values(kept)) == set(values(layout))
    assert kept == Layout(1, 0) or 0 not in flat_leaves(kept.stride)
    assert kept == Layout(1, 0) or 1 not in flat_leaves(kept.shape)
    assert coalesce(kept) == kept


@given(layouts())
def test_filter_by_profile_works_on_each_mode_alone(layout):
    assert list(filter(layout, (1,) * rank(layout))) == [filter(mode) for mode in layout]


# -- composition --------------------------------------------------------------------------------------------


def assert_composed(a, b, r):
    assert compatible(b, r)
    for crd, inner in zip(natural_coordinates(b.shape), values(b), strict=True):
        assert r(crd) == extended_value(a, inner)


@given(composable_pairs())
def test_composition_finds_the_elements_that_b_picks(pair):
    a, b = pair
    if flat_leaves(a.shape)[-1] == 1:  # past the end the last mode, of one element, goes on: it may not divide
        r = raises_nothing_else(composition, a, b)
        assume(r is not None)
        assert_composed(a, b, r)
    else:
        assert_composed(a, b, composition(a, b))


@given(composable_pairs(extend=False))
def test_composition_within_a_finds_the_elements_that_b_picks(pair):
    a, b = pair
    assert_composed(a, b, composition(a, b))


@given(layouts(max_size=64), layouts(kinds=FORWARD, max_size=48, max_modes=3))
def test_composition_of_any_two_layouts_is_right_or_refused(a, b):
    assume(all(d >= 0 for d in flat_leaves(b.stride)))
    r = raises_nothing_else(composition, a, b)
    if r is not None:
        assert_composed(a, b, r)


@given(layouts(max_size=24, max_modes=3), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 12)), min_size=1))
@example(Layout((2, 2), (1, 10)), [(2, 1), (2, 1)])
@example(Layout((4, 8), (1, 10)), [(4, 1), (2, 1)])
@example(Layout((4, 8), (1, 10)), [(2, 1), (2, 2), (2, 2)])
def test_composition_with_small_steps_is_right_or_refused(a, modes):
    b = Layout(tuple(s for s, _ in modes[:3]), tuple(d for _, d in modes[:3]))
    r = raises_nothing_else(composition, a, b)
    if r is not None:
        assert_composed(a, b, r)


@given(st.integers(1, 9), st.integers(-9, 9), layouts(max_size=48))
def test_composition_of_a_one_mode_layout_scales_every_stride(s, d, b):
    r = composition(Layout(s, d), b)
    assert values(r) == [d * v for v in values(b)]
    assert compatible(b, r)


def test_composition_runs_past_the_last_mode_by_extending_it():
    a = Layout((4, 2), (10, 1))
    assert str(composition(a, Layout((4, 6)))) == "(4,6):(10,1)"
    assert_composed(a, Layout((4, 6)), composition(a, Layout((4, 6))))


def test_composition_past_a_last_mode_of_one_element_extends_that_mode():
    a, b = Layout((4, 1), (1, 100)), Layout(8)
    assert str(composition(a, b)) == "(4,2):(1,100)"
    assert_composed(a, b, composition(a, b))
    assert str(composition(Layout((4, 1), (1, 4)), b)) == "8:1"
    assert str(composition(Layout((4, 1, 1), (1, 100, 7)), b)) == "(4,2):(1,7)"
    assert str(composition(Layout(1, 5), b)) == "8:5"
    assert composition(Layout((4, 1), (1, 100)), 4) == Layout(4)
    with pytest.raises(LayoutError, match="6:1 takes 6 in rounds of 4: it does not divide"):
        composition(a, Layout(6))


@given(composable_pairs(extend=False), st.data())
def test_composition_is_associative_where_it_has_answers(pair, data):
    a, b = pair
    assume(all(d >= 0 for d in flat_leaves(b.stride)))
    c = data.draw(right_hand_sides(b, extend=False))
    inner, left = raises_nothing_else(composition, b, c), composition(a, b)
    left = raises_nothing_else(composition, left, c)
    if inner is not None and left is not None:
        right = raises_nothing_else(composition, a, inner)
        if right is not None:
            assert values(left) == values(right)


@given(layouts())
def test_composition_with_its_own_size_is_the_layout_itself(layout):
    assert values(composition(layout, Layout(size(layout)))) == values(layout)
    assert values(composition(layout, size(layout))) == values(layout)
    assert values(composition(layout, Layout(layout.shape))) == values(layout)
    assert composition(layout, None) is layout
    assert values(composition(Layout(cosize(layout)), layout)) == values(layout)


@given(matrix_layouts(), st.data())
def test_composition_with_a_tuple_works_on_each_mode_alone(a, data):
    named = data.draw(st.integers(1, rank(a)))
    tiler, wanted = [], []
    for mode in list(a)[:named]:
        form = data.draw(st.sampled_from(["int", "none", "layout", "tuple"]))
        if form == "none":
            tiler.append(None)
            wanted.append(mode)
            continue
        if form == "int":
            t = count(mode.shape)
        elif form == "layout":
            t = data.draw(right_hand_sides(mode, extend=False))
        else:
            t = (None,) * rank(mode)
        tiler.append(t)
        wanted.append(composition(mode, t))
    r = composition(a, tuple(tiler))
    assert list(r) == [*wanted, *list(a)[named:]]
    assert rank(r) == rank(a)
    origin = (0,) * rank(a)
    for m, t in enumerate(tiler):
        picked = natural_coordinates(r[m].shape)
        for index, crd in enumerate(picked):
            where = index if t is None or isinstance(t, int | tuple) else t(index)
            assert r((*origin[:m], crd, *origin[m + 1 :])) == a((*origin[:m], where, *origin[m + 1 :]))


def test_composition_by_an_int_takes_that_many_consecutive_elements():
    a = parse_layout("(12,(4,8)):(59,(13,1))")
    assert [composition(a, (3, 8))(i, j) for i in range(3) for j in range(8)] == [
        a(i, j) for i in range(3) for j in range(8)
    ]


def test_a_tiler_of_more_modes_than_the_layout_is_refused():
    with pytest.raises(LayoutError, match=r"composition of \(4,8\):\(1,4\) by \(2, 2, 2\): the tiler has 3 modes"):
        composition(Layout((4, 8)), (2, 2, 2))


def with_modes_of(a, s, d):
    """Whether A(0), A(d), ..., A((s-1)*d) is a layout each of whose modes moves within one mode of A.

    Tries every factorisation of s; each factor n at index step t must walk one digit of A's index without a carry.
    """
    flat = coalesce(a)
    extents = flat_leaves(flat.shape)

    def digits(index):
        found = []
        for extent in extents[:-1]:
            found.append(index % extent)
            index //= extent
        return [*found, index]

    def walk(left, step):
        if left == 1:
            return True
        moving = [j for j, digit in enumerate(digits(step)) if digit]
        if len(moving) > 1:
            return False
        j = moving[0] if moving else len(extents) - 1
        room = extents[j] if j < len(extents) - 1 else None
        for n in range(2, left + 1):
            if left % n == 0 and (room is None or (n - 1) * digits(step)[j] < room) and walk(left // n, step * n):
                return True
        return False

    return walk(s, d) and recognise([extended_value(a, k * d) for k in range(s)]) is not None


SMALL_LEFT_SIDES = [
    Layout(extents, strides)
    for extents in [(2, 2), (2, 3), (3, 2), (4, 3), (6, 2), (4, 6), (2, 2, 3), (2, 3, 4), (4, 2, 2), (3, 4, 2)]
    for strides in [(10, 1, 37)[: len(extents)], (1, 11, 100)[: len(extents)], (0, 1, 7)[: len(extents)]]
]


@pytest.mark.parametrize("a", SMALL_LEFT_SIDES, ids=str)
def test_composition_refuses_one_mode_only_where_no_mode_by_mode_answer_exists(a):
    flat = coalesce(a)
    for s, d in cartesian(range(1, 13), range(13)):
        r = raises_nothing_else(composition, flat, Layout(s, d))
        if r is None:
            assert not with_modes_of(flat, s, d), f"{flat} o {s}:{d}"
        else:
            assert_composed(flat, Layout(s, d), r)


@given(layouts(max_size=96, max_modes=4), st.integers(1, 24), st.integers(0, 48))
def test_composition_refuses_only_where_no_mode_by_mode_answer_exists(a, s, d):
    if raises_nothing_else(composition, coalesce(a), Layout(s, d)) is None:
        assert not with_modes_of(coalesce(a), s, d)


@given(layouts(max_size=96, max_modes=3), layouts(kinds=FORWARD, max_size=24, max_modes=3))
def test_composition_refuses_several_modes_only_where_they_do_not_add_up(a, b):
    assume(all(d >= 0 for d in flat_leaves(b.stride)))
    a = coalesce(a)
    modes = list(zip(flat_leaves(b.shape), flat_leaves(b.stride), strict=True))
    assume(all(raises_nothing_else(composition, a, Layout(s, d)) is not None for s, d in modes))
    if raises_nothing_else(composition, a, b) is None:  # an answer would be the sum of its modes' answers
        sums_differ = []
        for crd in natural_coordinates(tuple(s for s, _ in modes)):
            steps = [c * d for c, (_, d) in zip(crd, modes, strict=True)]
            sums_differ.append(extended_value(a, sum(steps)) != sum(extended_value(a, step) for step in steps))
        assert any(sums_differ)


@pytest.mark.parametrize(
    ("a", "b", "answer"), [("(2,2):(3,1)", "2:3", "2:4"), ("(4,8):(1,10)", "4:6", "(2,2):(12,30)")]
)
def test_a_step_that_moves_two_modes_at_once_is_refused_also_where_a_layout_takes_it(a, b, answer):
    a, b, answer = map(parse_layout, (a, b, answer))
    assert values(answer) == [a(v) for v in values(b)]
    with pytest.raises(LayoutError, match="neither divides the other"):
        composition(a, b)


def test_a_mode_of_one_element_may_step_backwards():
    assert values(composition(parse_layout("(2,2):(3,1)"), parse_layout("1:-3"))) == [0]
    assert values(composition(parse_layout("(2,2):(3,1)"), parse_layout("(2,1):(1,-3)"))) == [0, 3]


@given(layouts(max_size=24), layouts(kinds=("negative",), max_size=24))
def test_composition_with_negative_steps_is_right_or_refused(a, b):
    r = raises_nothing_else(composition, a, b)
    if r is not None:
        assert compatible(b, r)
        assert values(r) == [extended_value(a, v) for v in values(b)]


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ("(6,2):(8,2)", "(4,3):(4,1)", "4:4 steps by 4 in a mode of extent 6: neither divides the other"),
        ("(4,3):(3,1)", "6:1", "6:1 takes 6 in rounds of 4: it does not divide"),
        ("(4,4):(1,10)", "(4,2):(1,2)", "the modes of B together reach 5 in mode 0 of A, whose extent is 4"),
        ("(2,(4,4)):(100,(1,10))", "4:6", "4:6 steps by 3 in a mode of extent 4: neither divides the other"),
        ("(4,4):(1,10)", "4:-1", "the stride -1 is negative and A has more than one mode"),
    ],
)
def test_the_reason_for_a_refusal_names_layouts_and_mode(a, b, why):
    flat = coalesce(parse_layout(a))
    coalesced = "" if str(flat) == a else f" (coalesced: {flat})"
    with pytest.raises(LayoutError) as caught:
        composition(parse_layout(a), parse_layout(b))
    assert str(caught.value) == f"composition of A = {a}{coalesced} with B = {b} is not a layout: {why}"


def test_a_refusal_shows_the_coalesced_layout_where_it_differs():
    with pytest.raises(LayoutError, match=r"A = \(2,2,3\):\(1,2,7\) \(coalesced: \(4,3\):\(1,7\)\) with B = 3:3"):
        composition(Layout((2, 2, 3), (1, 2, 7)), Layout(3, 3))


# -- complement ---------------------------------------------------------------------------------------------


@given(injective_layouts(max_size=48), st.integers(1, 150))
def test_complement_is_increasing_and_disjoint(layout, n):
    r = complement(layout, n)
    found = values(r)
    assert all(x < y for x, y in pairwise(found))
    together = values(make_layout(layout, r))
    assert len(set(together)) == len(together)
    assert coalesce(r) == r


@given(forward_layouts(max_size=48), st.integers(1, 150))
def test_complement_of_any_forward_layout_is_right_or_refused(layout, n):
    assume(all(d >= 0 for d in flat_leaves(layout.stride)))
    r = raises_nothing_else(complement, layout, n)
    if r is None:  # then some mode starts before the faster ones end
        modes = zip(flat_leaves(layout.shape), flat_leaves(layout.stride), strict=True)
        moving = sorted((d, s) for s, d in modes if s > 1 and d > 0)
        assert any(d2 < s * d for (d, s), (d2, _) in pairwise(moving))
        return
    found = values(r)
    assert all(x < y for x, y in pairwise(found))
    together = values(make_layout(filter_zeros(layout), r))
    assert len(set(together)) == len(together)


@given(chained_layouts(max_size=48), st.integers(1, 150))
def test_complement_of_chained_strides_fills_every_offset_once(layout, n):
    assert strides_chain(layout)
    both = make_layout(layout, complement(layout, n))
    assert sorted(values(both)) == list(range(size(both)))
    assert cosize(both) >= n
    assert cosize(both) - n < cosize(make_layout(layout, complement(layout)))  # no copy more than it takes


@given(layouts(kinds=("broadcast",), max_size=48), st.integers(1, 150))
def test_complement_passes_over_modes_that_stand_still(layout, n):
    assert complement(layout, n) == complement(filter_zeros(layout), n)


@given(chained_layouts(max_size=48), layouts(max_size=60))
def test_complement_takes_a_number_a_shape_or_a_layout(layout, other):
    wanted = complement(layout, size(other))
    assert complement(layout, other.shape) == wanted
    assert complement(layout, other) == wanted


@given(st.integers(1, 40), st.integers(1, 200))
def test_complement_of_an_int_is_that_of_so_many_consecutive_elements(s, n):
    assert complement(s, n) == complement(Layout(s), n) == coalesce(Layout(-(-n // s), s))


@given(chained_layouts(max_size=24), st.integers(1, 150))
def test_the_complement_of_the_complement_is_the_layout_in_order(layout, n):
    r = complement(layout, n)
    back = complement(r, cosize(make_layout(layout, r)))
    assert sorted(values(back)) == sorted(set(values(layout)))


def test_the_copies_can_end_before_max_idx_where_the_strides_do_not_chain():
    layout = Layout((2, 2), (1, 5))
    both = make_layout(layout, complement(layout, 10))
    assert not strides_chain(layout)
    assert sorted(values(both)) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert cosize(both) == 9


def test_the_complement_of_a_layout_that_reaches_2_to_the_64_has_no_mode_beyond_it():
    """The stride of a mode of one element was refused: it was more than a layout holds."""
    far = Layout((8, 2, 1 << 32), (16, 1, 1 << 32))
    assert complement(far) == Layout((8, 1 << 25), (2, 128))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(4,2):(1,3)", "mode 2:3 overlaps the modes before it, which reach 3"),
        ("(2,2):(1,1)", "mode 2:1 overlaps the modes before it, which reach 1"),
        ("(4,2):(1,-4)", "mode 2:-4 runs backwards"),
        ("(4,2):(1@0,2@0)", "mode 2:2 overlaps the modes before it, which reach 3"),
    ],
)
def test_complement_names_the_layout_and_the_failing_mode(text, why):
    with pytest.raises(LayoutError) as caught:
        complement(parse_layout(text), 24)
    assert str(caught.value) == f"complement of {text}: {why}"


# -- inverses -----------------------------------------------------------------------------------------------


@given(layouts())
def test_right_inverse_finds_each_offset(layout):
    r = right_inverse(layout)
    found = values(layout)
    for k, index in enumerate(values(r)):
        assert found[index] == k


@given(layouts(kinds=INJECTIVE))
def test_right_inverse_of_an_injective_layout_is_the_largest(layout):
    found = values(layout)
    first = []
    while len(first) in found:
        first.append(found.index(len(first)))
    assert size(right_inverse(layout)) == longest_layout_prefix(first)


@given(layouts(kinds=("broadcast",)))
def test_right_inverse_passes_over_modes_that_stand_still(layout):
    found = values(layout)
    contiguous = 0
    while contiguous in found:
        contiguous += 1
    assert size(right_inverse(layout)) == size(right_inverse(filter(layout))) == contiguous


@given(layouts(kinds=("packed", "ordered")))
def test_the_inverses_of_a_packed_layout_agree_and_undo_it(layout):
    assert right_inverse(layout) == left_inverse(layout)
    assert sorted(values(right_inverse(layout))) == list(range(size(layout)))
    if size(layout) > 1:
        assert values(right_inverse(right_inverse(layout))) == values(layout)


@pytest.mark.parametrize(
    ("text", "found", "larger"),
    [("(2,4):(1,1)", "2:1", "4:2"), ("(3,2):(1,2)", "3:1", "(2,2):(1,3)"), ("(2,2):(2,-1)", "1:0", "2:3")],
)
def test_right_inverse_need_not_be_the_largest_where_modes_overlap_or_run_backwards(text, found, larger):
    layout, larger = parse_layout(text), parse_layout(larger)
    assert [layout(index) for index in values(larger)] == list(range(size(larger)))
    assert str(right_inverse(layout)) == found


@given(layouts(kinds=INJECTIVE))
def test_left_inverse_undoes_an_injective_layout_or_is_refused(layout):
    r = raises_nothing_else(left_inverse, layout)
    if r is not None:
        assert [extended_value(r, v) for v in values(layout)] == list(range(size(layout)))


@given(layouts(kinds=CHAINED))
def test_left_inverse_undoes_every_layout_of_chained_strides(layout):
    r = left_inverse(layout)
    assert [extended_value(r, v) for v in values(layout)] == list(range(size(layout)))
    assert coalesce(r) == r


@given(layouts(kinds=("broadcast",)))
def test_left_inverse_of_repeated_values_finds_one_index_of_each(layout):
    r = left_inverse(layout)
    found = values(layout)
    for v in found:
        assert found[extended_value(r, v)] == v


@given(layouts(kinds=FORWARD))
def test_left_inverse_of_any_layout_is_a_quasi_inverse_or_refused(layout):
    assume(all(d >= 0 for d in flat_leaves(layout.stride)))
    r = raises_nothing_else(left_inverse, layout)
    if r is not None:
        for v in values(layout):
            assert layout(extended_value(r, v)) == v


@pytest.mark.parametrize(
    ("text", "undone"),
    [
        ("(2,2):(2,5)", "(2,4):(0,1)"),  # a stride that does not divide the next
        ("(4,2):(1,2)", "(4,2):(1,6)"),  # 2 and 3 occur twice
        ("(2,2):(3,3)", "(3,2,2):(0,1,3)"),
        ("(2,3):(2,1)", "(3,2):(2,3)"),
        ("(4,4,4):(1,0,4)", "(4,4):(1,16)"),
    ],
)
def test_left_inverse_finds_an_index_where_modes_overlap_or_strides_do_not_divide(text, undone):
    assert str(left_inverse(parse_layout(text))) == undone
    layout, r = parse_layout(text), parse_layout(undone)
    assert all(layout(extended_value(r, v)) == v for v in values(layout))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(2,3):(3,4)", "modes 2:3 and 3:4 overlap, and no layout was found that undoes it"),
        ("(3,3):(2,3)", "modes 3:2 and 3:3 overlap, and no layout was found that undoes it"),
        ("(4,2):(-1,4)", "mode 4:-1 runs backwards"),
        ("(4,2):(-1@0,4@0)", "mode 4:-1 runs backwards"),
        ("(4,2):(1@0,4)", "its strides mix coordinates and offsets"),
    ],
)
def test_left_inverse_names_the_layout_and_the_failing_modes(text, why):
    with pytest.raises(LayoutError) as caught:
        left_inverse(parse_layout(text))
    assert str(caught.value) == f"left_inverse of {text}: {why}"


@given(st.integers(1, 100))
def test_the_inverses_of_an_int_are_the_identity(n):
    assert right_inverse(n) == left_inverse(n) == coalesce(Layout(n))


# -- what two layouts have in common ------------------------------------------------------------------------


@st.composite
def layout_pairs_of_one_size(draw, kinds):
    """Two layouts of one shape, sometimes with the same fastest modes."""
    a = draw(layouts(kinds=kinds, max_size=64, max_modes=4))
    flat = flat_leaves(a.shape)
    b = draw(layouts(kinds=kinds, max_size=64, max_modes=4).filter(lambda b: size(b) == size(a)) | st.just(a))
    if b is a and len(flat) > 1:
        padding = draw(st.integers(0, 3))
        cut = draw(st.integers(1, len(flat)))
        strides = flat_leaves(a.stride)
        b = Layout(tuple(flat), tuple(strides[:cut] + [d + padding * cosize(a) for d in strides[cut:]]))
    return a, b


@given(layout_pairs_of_one_size(INJECTIVE))
def test_the_common_layout_walks_both_along_consecutive_offsets(pair):
    a, b = pair
    r = max_common_layout(a, b)
    assert max_common_vector(a, b) == size(r)
    for k, index in enumerate(values(r)):
        assert a(index) == b(index) == k


@given(layout_pairs_of_one_size(FORWARD))
def test_the_common_layout_of_any_layouts_walks_both_along_consecutive_offsets(pair):
    a, b = pair
    for k, index in enumerate(values(max_common_layout(a, b))):
        assert a(index) == b(index) == k


def common_run(a, b):
    """How many offsets 0, 1, ... both injective layouts hold at the same index."""
    in_a, in_b = values(a), values(b)
    run = []
    while len(run) in in_a and len(run) in in_b and in_a.index(len(run)) == in_b.index(len(run)):
        run.append(in_a.index(len(run)))
    return run


@given(layout_pairs_of_one_size(INJECTIVE) | st.tuples(layouts(kinds=INJECTIVE), layouts(kinds=INJECTIVE)))
def test_the_common_vector_of_injective_layouts_is_the_whole_common_run(pair):
    a, b = pair
    run = common_run(a, b)
    assert values(max_common_layout(a, b)) == run
    assert max_common_layout(b, a) == max_common_layout(a, b)


@given(layouts(max_size=64), layouts(max_size=64))
def test_the_common_layout_of_any_two_layouts_is_symmetric_and_within_both(a, b):
    r = max_common_layout(a, b)
    assert r == max_common_layout(b, a)
    assert all(values(a)[index] == values(b)[index] == k for k, index in enumerate(values(r)))


def test_the_common_vector_need_not_divide_the_runs_of_the_layouts():
    # both hold 0, 1 first; (3,2):(1,4) holds runs of three
    a, b = parse_layout("(2,3):(1,3)"), parse_layout("(3,2):(1,4)")
    assert len(common_run(a, b)) == 2
    assert max_common_vector(a, b) == 2


def test_the_common_vector_does_not_depend_on_the_order_of_the_layouts():
    a, b = parse_layout("(2,3):(1,3)"), parse_layout("(3,2):(1,4)")
    assert max_common_vector(a, b) == max_common_vector(b, a)


def test_the_common_vector_ends_where_the_smaller_layout_ends():
    assert max_common_vector(Layout(6), Layout(4)) == 4
    assert max_common_vector(Layout(4), Layout(6)) == 4


@given(layouts(max_size=64))
def test_a_layout_has_its_whole_contiguous_part_in_common_with_itself(layout):
    assert max_common_layout(layout, layout) == right_inverse(layout)


# -- recasts ------------------------------------------------------------------------------------------------


def no_modes_overlap(layout):
    """Forward strides, each at least what the modes of smaller stride fill."""
    modes = zip(flat_leaves(layout.shape), flat_leaves(layout.stride), strict=True)
    moving = sorted((d, s) for s, d in modes if d != 0)
    return all(d > 0 for d, _ in moving) and all(s * d <= after for (d, s), (after, _) in pairwise(moving))


@given(forward_layouts(), st.sampled_from([1, 2, 3, 4, 6, 8, 12]))
def test_upcast_takes_the_offsets_divided_down(layout, n):
    assume(no_modes_overlap(layout))
    r = raises_nothing_else(upcast, layout, n)
    if r is not None:
        assert congruent(r, layout)
        assert set(values(r)) == {v // n for v in values(layout)}


@given(layouts(kinds=CHAINED), st.sampled_from([1, 2, 3, 4, 8]))
def test_downcast_takes_the_offsets_scaled_up_and_filled(layout, n):
    strides = flat_leaves(layout.stride)
    assume(1 in strides and min(strides) >= 0)
    r = downcast(layout, n)
    assert congruent(r, layout)
    assert set(values(r)) == {n * v + j for v in values(layout) for j in range(n)}
    assert size(r) == n * size(layout)


@given(layouts(kinds=FORWARD, max_size=60), st.sampled_from([1, 2, 3, 8]))
def test_downcast_of_modes_that_overlap_or_stand_still_takes_the_same_offsets(layout, n):
    strides = flat_leaves(layout.stride)
    assume(1 in strides and min(strides) >= 0)
    assert set(values(downcast(layout, n))) == {n * v + j for v in values(layout) for j in range(n)}


@given(layouts(kinds=CHAINED), st.sampled_from([2, 3, 4, 8]))
def test_upcast_undoes_downcast(layout, n):
    assume([abs(d) for d in flat_leaves(layout.stride)].count(1) == 1)
    assert upcast(downcast(layout, n), n) == layout


def fills_elements(layout, n):
    """Whether the offsets, each taken once and none negative, are whole elements of n."""
    found = values(layout)
    touched = {v // n * n + j for v in found for j in range(n)}
    return sorted(found) == sorted(touched) and min(flat_leaves(layout.stride)) >= 0


@given(layouts(), st.sampled_from([4, 8, 16, 32]), st.sampled_from([4, 8, 16, 32]))
def test_recast_keeps_the_bits(layout, old, new):
    if new <= old:
        assume(any(abs(d) == 1 for d in flat_leaves(layout.stride)))
    else:
        assume(fills_elements(layout, new // old))
    r = raises_nothing_else(recast, layout, old, new)
    if r is not None:
        assert size(r) * new == size(layout) * old


def test_downcast_widens_one_mode_when_a_mode_of_one_element_has_stride_one_too():
    r = downcast(Layout((1, 4)), 2)
    assert str(r) == "(1,8):(2,1)"
    assert sorted(values(r)) == list(range(8))
    assert str(downcast(Layout((5, 3), (1, 1)), 2)) == "(10,3):(1,2)"
    assert str(downcast(Layout((1, 3, 1), (1, 4, 1)), 2)) == "(2,3,1):(1,8,2)"


@pytest.mark.parametrize("n", [2, 4])
def test_recasts_of_backward_modes_run_backwards_from_the_same_start(n):
    # the smaller elements of a backward mode lie above its offsets, but a layout has no place for the start
    assert upcast(Layout(8, -1), n) == Layout(8 // n, -1)
    assert downcast(Layout(8, -1), n) == Layout(8 * n, -1)
    assert recast(Layout(8, -1), 8, 8 * n) == Layout(8 // n, -1)


@pytest.mark.parametrize(
    ("text", "n", "mode"),
    [("(3,4):(1,3)", 2, "mode 0, 3:1"), ("(2,4):(1,3)", 2, "mode 1, 4:3"), ("(2,(2,2)):(1,(2,5))", 4, "mode 2, 2:5")],
)
def test_upcast_names_the_layout_and_the_failing_mode(text, n, mode):
    with pytest.raises(LayoutError) as caught:
        upcast(parse_layout(text), n)
    assert str(caught.value).startswith(f"upcast of {text} by {n}: {mode}: ")


@pytest.mark.parametrize("operation", [upcast, downcast])
def test_recasts_of_coordinates_are_refused(operation):
    with pytest.raises(LayoutError, match=r"cast of 4:1@0 by 2: its values are coordinates, not offsets"):
        operation(Layout(4, E(0)), 2)


def test_recast_between_sizes_that_do_not_divide_is_refused():
    with pytest.raises(LayoutError, match=r"recast of \(8,4\):\(1,8\) from 24 to 16 bits: neither divides the other"):
        recast(Layout((8, 4)), 24, 16)


# -- composition with coordinates ---------------------------------------------------------------------------


@given(matrix_layouts(), st.data())
def test_composition_with_a_tile_of_coordinates_picks_those_elements(a, data):
    extents = tuple(data.draw(st.integers(1, size(a, m))) for m in range(rank(a)))
    b = make_identity_layout(extents)
    r = raises_nothing_else(composition, a, b)
    if r is not None:
        assert compatible(b, r)
        for crd in natural_coordinates(extents):
            assert r(crd) == a(b(crd))


def test_composition_with_coordinates_checks_for_carries():
    a = parse_layout("((2,8),3):((1,10),100)")
    b = parse_layout("(2,2):(1@0,1@0)")
    r = raises_nothing_else(composition, a, b)
    assert r is None or [r(c) for c in natural_coordinates((2, 2))] == [
        a((i + j, 0)) for j in range(2) for i in range(2)
    ]
    with pytest.raises(LayoutError, match="the modes of B together reach 2 in mode 0 of A, whose extent is 2"):
        composition(a, b)


@given(matrix_layouts(ranks=(2,)), st.data())
def test_composition_with_coordinates_is_right_or_refused(a, data):
    steps = st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(0, 1))
    modes = data.draw(st.lists(steps, min_size=1, max_size=4))
    strides = [n * E(m) if n else 0 for _, n, m in modes]
    b = Layout((*(s for s, _, _ in modes), 1, 1), (*strides, E(0), E(1)))
    r = raises_nothing_else(composition, a, b)
    if r is not None:
        assert compatible(b, r)
        for crd in natural_coordinates(b.shape):
            row, column = b(crd)
            assert r(crd) == extended_value(a[0], row) + extended_value(a[1], column)


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ("(4,8):(1,4)", "2:1@2", "A has no mode for the stride 1@2"),
        ("4:1", "2:1@1", "A has no mode for the stride 1@1"),
        ("(4,8):(1,4)", "2:1@1@1", "A has no mode for the stride 1@1@1"),
        ("(4,8):(1,4)", "(2,2):(1,1@1)", "the strides of B mix coordinates and offsets"),
        ("(4,(2,4)):(1,(4,8))", "(2,2):(1@1,1@0@1)", "the strides step along 1@1 and along 1@0@1 in it"),
    ],
)
def test_composition_with_what_are_no_coordinates_is_refused(a, b, why):
    with pytest.raises(LayoutError, match=why):
        composition(parse_layout(a), parse_layout(b))


def test_composition_with_coordinates_takes_modes_that_stand_still():
    assert values(composition(Layout((4, 8)), parse_layout("(2,2):(0,1@1)"))) == [0, 0, 4, 4]


def test_every_coordinate_of_b_is_a_coordinate_of_the_composition():
    a, b = Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1))
    assert all_coordinates(b.shape) <= all_coordinates(composition(a, b).shape)
