"""Divides, products, tiles and partitions: each post-condition, checked at every coordinate."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from layout_strategies import (
    CHAINED,
    FORWARD,
    INJECTIVE,
    KINDS,
    composed_layouts,
    count,
    dividing_tilers,
    divisors,
    extended_value,
    flat_leaves,
    layouts,
    matrix_layouts,
    natural_coordinates,
    strides_chain,
    swizzles,
    values,
)

from tilewright.algebra import (
    ComposedLayout,
    Layout,
    Swizzle,
    blocked_product,
    compatible,
    complement,
    composition,
    cosize,
    flat_divide,
    flat_product,
    local_partition,
    local_tile,
    logical_divide,
    logical_product,
    make_identity_layout,
    make_layout,
    make_ordered_layout,
    parse_layout,
    raked_product,
    rank,
    size,
    tile_to_shape,
    tiled_divide,
    tiled_product,
    zipped_divide,
    zipped_product,
)
from tilewright.errors import LayoutError


def raises_nothing_else(operation, *args, **options):
    """The result, or None where the operation refuses with a LayoutError."""
    try:
        return operation(*args, **options)
    except LayoutError:
        return None


@st.composite
def divisions(draw, kinds=KINDS, nones=True):
    """A layout of several modes, and a tuple of tilers that divide its first modes."""
    layout = draw(matrix_layouts(kinds=kinds))
    named = draw(st.integers(1, rank(layout)))
    return layout, tuple(draw(dividing_tilers(mode, whole=not nones)) for mode in list(layout)[:named])


# -- divides --------------------------------------------------------------------------------------------------


@given(layouts(max_size=96), st.data())
def test_a_divide_by_a_layout_is_the_composition_with_tiler_and_complement(layout, data):
    tiler = data.draw(dividing_tilers(layout, whole=True))
    divided = logical_divide(layout, tiler)
    b = tiler if isinstance(tiler, Layout) else Layout(tiler)
    assert divided == composition(layout, make_layout(b, complement(b, size(layout))))
    assert rank(divided) == 2
    assert divided[0] == composition(layout, b)
    assert size(divided) == size(layout)
    assert sorted(values(divided)) == sorted(values(layout))
    for crd in natural_coordinates(b.shape):
        assert divided[0](crd) == layout(b(crd))


@given(layouts(kinds=FORWARD, max_size=64), layouts(kinds=CHAINED, max_size=24))
def test_a_divide_that_is_not_refused_reaches_every_element(layout, tiler):
    divided = raises_nothing_else(logical_divide, layout, tiler)
    if divided is not None:
        assert set(values(layout)) <= set(values(divided))


def test_a_divide_leaves_elements_out_where_the_strides_of_the_tiler_do_not_chain():
    layout, tiler = Layout(10), Layout((2, 2), (1, 5))
    assert not strides_chain(tiler)
    assert set(values(logical_divide(layout, tiler))) == {0, 1, 2, 3, 5, 6, 7, 8}


@given(st.integers(1, 60), st.integers(1, 60))
def test_a_tile_that_does_not_divide_is_rounded_up(n, tile):
    divided = logical_divide(Layout(n), tile)
    assert size(divided, 0) == tile
    assert size(divided, 1) == -(-n // tile)
    for i in range(tile):
        for j in range(size(divided, 1)):
            assert divided(i, j) == i + tile * j


def test_a_tile_larger_than_a_mode_of_one_element_runs_past_its_end():
    assert str(logical_divide(Layout(1), 4)[0]) == "4:1"
    assert str(logical_divide(parse_layout("(1,1):(5,7)"), 4)) == "(4,1):(7,0)"


@given(layouts(max_size=60), st.integers(1, 24), st.integers(0, 9))
def test_last_modes_of_one_element_do_not_change_a_divide(layout, tile, stride):
    assume(flat_leaves(layout.shape)[-1] > 1)
    longer = make_layout(layout, Layout(1, stride))
    divided = raises_nothing_else(logical_divide, layout, tile)
    again = raises_nothing_else(logical_divide, longer, tile)
    assert (divided is None) is (again is None)
    if divided is not None:
        assert values(again) == values(divided)
        assert again.shape == divided.shape


def test_a_ragged_divide_of_a_layout_that_ends_in_modes_of_one_element_is_rounded_up():
    assert str(logical_divide(parse_layout("(6,1):(1,0)"), 4)) == "(4,2):(1,4)"
    assert str(logical_divide(parse_layout("(6,(1,1)):(2,(9,0))"), 4)) == "(4,2):(2,8)"
    assert str(zipped_divide(parse_layout("((6,1),5):((1,0),6)"), (4, 2))) == "((4,2),(2,3)):((1,6),(4,12))"
    assert str(logical_divide(parse_layout("(6,1):(1@0,1@1)"), 4)) == "(4,2):(1@0,4@0)"


@given(divisions())
def test_a_divide_by_a_tuple_works_on_each_mode_alone(pair):
    layout, tiler = pair
    divided = logical_divide(layout, tiler)
    assert list(divided) == [*map(logical_divide, layout, tiler), *list(layout)[len(tiler) :]]
    assert logical_divide(layout, None) is layout


@given(divisions(nones=False))
def test_the_first_mode_of_a_zipped_divide_is_the_composition(pair):
    layout, tiler = pair
    zipped = zipped_divide(layout, tiler)
    assert rank(zipped) == 2
    assert zipped[0] == make_layout([composition(mode, t) for mode, t in zip(layout, tiler, strict=False)])
    tiles = [logical_divide(mode, t) for mode, t in zip(layout, tiler, strict=False)]
    assert list(zipped[0]) == [t[0] for t in tiles]
    assert list(zipped[1]) == [*[t[1] for t in tiles], *list(layout)[len(tiler) :]]
    assert sorted(values(zipped)) == sorted(values(layout))


@given(divisions())
def test_the_four_forms_of_a_divide_hold_the_same_modes(pair):
    layout, tiler = pair
    tile, rest = zipped_divide(layout, tiler)
    assert tiled_divide(layout, tiler) == make_layout([tile, *rest])
    assert flat_divide(layout, tiler) == make_layout([*tile, *rest])
    assert sorted(values(make_layout(tile, rest))) == sorted(values(layout))


@given(divisions())
def test_a_mode_without_a_tiler_is_all_rest(pair):
    layout, tiler = pair
    tile, rest = zipped_divide(layout, tiler)
    for mode, t in enumerate(tiler):
        if t is None:
            assert tile[mode] == Layout(1, 0)
            assert rest[mode] == layout[mode]


def test_a_nested_tiler_divides_the_nested_modes():
    layout = Layout(((4, 6), 8))
    zipped = zipped_divide(layout, ((2, 3), 4))
    assert zipped[0] == composition(layout, ((2, 3), 4))
    assert str(zipped) == "(((2,3),4),((2,2),2)):(((1,4),24),((2,12),96))"


@pytest.mark.parametrize("divide", [logical_divide, zipped_divide, tiled_divide, flat_divide])
def test_a_tiler_of_more_modes_than_the_layout_is_refused(divide):
    with pytest.raises(LayoutError, match=r"\(2, 2, 2\).* 3 modes.*2"):
        divide(Layout((4, 8)), (2, 2, 2))


@pytest.mark.parametrize("divide", [logical_divide, zipped_divide, tiled_divide, flat_divide])
def test_a_divide_acts_inside_a_swizzled_layout(divide):
    swizzled = ComposedLayout(Swizzle(2, 0, 3), 5, Layout((8, 8), (8, 1)))
    wanted = divide(Layout((8, 8), (8, 1)), (4, 2))
    assert divide(swizzled, (4, 2)) == ComposedLayout(Swizzle(2, 0, 3), 5, wanted)


# -- products -------------------------------------------------------------------------------------------------


def copies(block, places):
    """The values of the block at each place."""
    return [{place + v for v in values(block)} for place in places]


def are_disjoint(sets):
    return sum(map(len, sets)) == len(set().union(*sets))


@given(layouts(kinds=CHAINED, max_size=24), layouts(kinds=INJECTIVE, max_size=12, max_modes=3))
def test_a_product_is_the_block_and_where_its_copies_go(block, tiler):
    product = raises_nothing_else(logical_product, block, tiler)
    assume(product is not None)
    assert rank(product) == 2
    assert product[0] == block
    assert compatible(tiler, product[1])
    assert are_disjoint(copies(block, values(product[1])))
    gaps = complement(block, cosize(block) * cosize(tiler))
    for crd, v in zip(natural_coordinates(tiler.shape), values(tiler), strict=True):
        assert product[1](crd) == extended_value(gaps, v)


@given(layouts(kinds=CHAINED, max_size=24), layouts(kinds=("packed", "ordered"), max_size=12, max_modes=3))
def test_a_product_of_a_chained_block_with_a_packed_tiler_leaves_no_gap(block, tiler):
    product = raises_nothing_else(logical_product, block, tiler)
    assume(product is not None)
    gaps = size(complement(block))
    found = sorted(values(product))
    assert len(set(found)) == len(found)
    if size(tiler) % gaps == 0:
        assert found == list(range(len(found)))


@given(layouts(kinds=("packed", "ordered", "broadcast"), max_size=24), st.integers(1, 12))
def test_a_product_with_an_int_multiplies(block, n):
    product = raises_nothing_else(logical_product, block, n)
    assume(product is not None)
    assert product == logical_product(block, Layout(n))
    assert product[0] == block
    assert size(product) == n * size(block)
    assert are_disjoint(copies(block, values(product[1])))


@given(layouts(kinds=FORWARD, max_size=24, max_modes=3), layouts(kinds=INJECTIVE, max_size=8, max_modes=2))
def test_a_product_of_any_block_is_disjoint_or_refused(block, tiler):
    assume(strides_chain(block))
    product = raises_nothing_else(logical_product, block, tiler)
    if product is not None:
        assert product[0] == block
        assert are_disjoint(copies(block, values(product[1])))


@given(layouts(kinds=FORWARD, max_size=24, max_modes=3), layouts(kinds=FORWARD, max_size=12, max_modes=3))
def test_the_copies_for_different_values_of_the_tiler_are_disjoint(block, tiler):
    product = raises_nothing_else(logical_product, block, tiler)
    if product is not None:
        places = dict(zip(values(tiler), values(product[1]), strict=True))
        assert len(set(places.values())) == len(places)
        assert are_disjoint(copies(block, places.values()))


@pytest.mark.parametrize(("block", "tiler"), [("4:1@0", "2:1"), ("4:1", "2:1@0")])
def test_a_product_of_coordinates_with_offsets_is_refused(block, tiler):
    with pytest.raises(LayoutError, match=f"logical_product of {block} by {tiler}: values of .*@0 are coordinates"):
        logical_product(parse_layout(block), parse_layout(tiler))


@pytest.mark.parametrize(("block", "tiler"), [("(2,2):(3,11)", "5:1"), ("(2,2):(2,6)", "2:2")])
def test_the_copies_of_a_block_with_ragged_gaps_are_disjoint(block, tiler):
    product = raises_nothing_else(logical_product, parse_layout(block), parse_layout(tiler))
    assert product is None or are_disjoint(copies(product[0], values(product[1])))


@given(matrix_layouts(kinds=("packed", "ordered"), max_extent=6), st.data())
def test_a_product_with_a_tuple_works_on_each_mode_alone(block, data):
    tiler = tuple(data.draw(st.sampled_from([None, 1, 2, 3])) for _ in range(data.draw(st.integers(1, rank(block)))))
    product = raises_nothing_else(logical_product, block, tiler)
    assume(product is not None)
    assert list(product) == [*map(logical_product, block, tiler), *list(block)[len(tiler) :]]


@given(matrix_layouts(kinds=("packed", "ordered"), max_extent=6), st.data())
def test_the_four_forms_of_a_product_hold_the_same_modes(block, data):
    tiler = tuple(data.draw(st.sampled_from([1, 2, 3])) for _ in range(data.draw(st.integers(1, rank(block)))))
    logical = raises_nothing_else(logical_product, block, tiler)
    assume(logical is not None)
    named = list(logical)[: len(tiler)]
    inner, outer = zipped_product(block, tiler)
    assert list(inner) == [mode[0] for mode in named]
    assert list(outer) == [*[mode[1] for mode in named], *list(block)[len(tiler) :]]
    assert tiled_product(block, tiler) == make_layout([inner, *outer])
    assert flat_product(block, tiler) == make_layout([*inner, *outer])


@given(layouts(kinds=CHAINED, max_size=24), layouts(kinds=("packed",), max_size=12, max_modes=2))
def test_the_forms_of_a_product_with_a_layout_hold_the_same_modes(block, tiler):
    logical = raises_nothing_else(logical_product, block, tiler)
    assume(logical is not None)
    assert zipped_product(block, tiler) == logical
    assert tiled_product(block, tiler) == make_layout([logical[0], *logical[1]])
    assert flat_product(block, tiler) == make_layout([*logical[0], *logical[1]])


def test_a_zipped_product_with_none_leaves_the_block_alone():
    assert zipped_product(Layout(4), None) == make_layout(Layout(4), Layout(1, 0))
    assert str(zipped_product(Layout((4, 8)), (2, None))) == "((4,8),(2,1)):((1,4),(4,0))"
    assert str(flat_product(Layout((4, 8)), (None, 2))) == "(4,8,1,2):(1,4,0,1)"


@given(matrix_layouts(kinds=("packed", "ordered"), max_extent=6), st.data())
def test_blocked_and_raked_products_pair_each_mode_with_its_copies(block, data):
    extents = tuple(data.draw(st.integers(1, 4)) for _ in range(data.draw(st.integers(1, 3))))
    tiler = make_ordered_layout(extents, tuple(data.draw(st.permutations(range(len(extents))))))
    blocked, raked = blocked_product(block, tiler), raked_product(block, tiler)
    ranks = max(rank(block), rank(tiler))
    assert rank(blocked) == rank(raked) == ranks
    padded = [*block, *[Layout(1, 0)] * (ranks - rank(block))]
    for mode in range(ranks):
        assert blocked[mode][0] == padded[mode]
        assert raked[mode][1] == padded[mode]
        assert blocked[mode][1] == raked[mode][0]
    assert sorted(values(blocked)) == sorted(values(raked)) == list(range(size(block) * size(tiler)))
    places = [mode[1] for mode in blocked]
    assert are_disjoint(copies(block, values(make_layout(places))))


def test_neighbours_stay_in_the_block_when_blocked_and_part_when_raked():
    block, tiler = Layout((2, 5), (5, 1)), Layout((3, 4))
    blocked, raked = blocked_product(block, tiler), raked_product(block, tiler)
    assert [blocked(i, 0) // 10 for i in range(6)] == [0, 0, 1, 1, 2, 2]
    assert [raked(i, 0) // 10 for i in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_product_of_one_mode_whose_copies_need_several_strides():
    assert str(blocked_product(Layout(3, 2), 4)) == "((3,(2,2))):((2,(1,6)))"
    assert str(raked_product(Layout(3, 2), Layout((4,), (1,)))) == "(((2,2),3)):(((1,6),2))"


# -- tile_to_shape --------------------------------------------------------------------------------------------


@given(matrix_layouts(ranks=(1, 2), kinds=("packed", "ordered"), max_extent=6), st.data())
def test_tile_to_shape_fills_the_shape_with_copies_of_the_block(block, data):
    counts = [data.draw(st.integers(1, 4)) for _ in range(rank(block))]
    more = [data.draw(st.integers(1, 3)) for _ in range(data.draw(st.integers(0, 1)))]
    extents = tuple(size(block, m) * n for m, n in enumerate(counts)) + tuple(more)
    order = tuple(data.draw(st.permutations(range(len(extents)))))
    filled = tile_to_shape(block, extents, order)
    assert [size(mode) for mode in filled] == list(extents)
    assert sorted(values(filled)) == list(range(count(extents)))
    padded = [*block, *[Layout(1, 0)] * len(more)]
    assert [mode[0] for mode in filled] == padded
    counts += more
    running = 1
    for mode in sorted(range(len(extents)), key=lambda m: order[m]):
        for i in range(counts[mode]):
            assert filled[mode][1](i) == i * running * size(block)
        running *= counts[mode]
    assert tile_to_shape(block, extents) == tile_to_shape(block, extents, tuple(range(len(extents))))


def test_tile_to_shape_takes_an_int_and_nested_extents():
    assert str(tile_to_shape(Layout(4), 12)) == "((4,3)):((1,4))"
    assert [size(mode) for mode in tile_to_shape(Layout((4, 2)), ((2, 4), 6))] == [8, 6]


@pytest.mark.parametrize(
    ("block", "extents", "why"),
    [
        ("(8,64):(64,1)", (512,), "the shape has fewer modes than the block"),
    ],
)
def test_tile_to_shape_names_the_layout_and_the_shape(block, extents, why):
    with pytest.raises(LayoutError) as caught:
        tile_to_shape(parse_layout(block), extents)
    assert str(caught.value) == f"tile_to_shape of {block} to {extents}: {why}"


@pytest.mark.parametrize("order", [(0, 0), (1, 1), (0, 1, 2), (0,), 0])
def test_tile_to_shape_refuses_an_order_that_orders_nothing(order):
    with pytest.raises(LayoutError, match=r"the order .* must have 2 entries, no two alike"):
        tile_to_shape(Layout((2, 2)), (4, 6), order)


@pytest.mark.parametrize(
    ("block", "extents", "filled"),
    [
        ("(3,3):(1,3)", (5, 8), "((3,2),(3,3)):((1,9),(3,18))"),
        ("(8,64):(64,1)", (12, 64), "((8,2),(64,1)):((64,512),(1,0))"),
        ("(8,64):(64,1)", (4, 64), "((8,1),(64,1)):((64,0),(1,0))"),
    ],
)
def test_a_block_that_does_not_divide_the_shape_covers_it(block, extents, filled):
    assert str(tile_to_shape(parse_layout(block), extents)) == filled


@pytest.mark.parametrize(
    ("extents", "order", "strides"),
    [
        ((2, (2, 2), 2), (0, 2, 1), "(1,(4,8),2)"),
        ((2, (3, (5, 2)), 7), (2, 0, 1), "(210,(1,(3,15)),30)"),
        (((4, 2), 3), 0, "((1,4),8)"),
    ],
)
def test_an_order_entry_holds_for_all_of_a_nested_mode(extents, order, strides):
    assert str(make_ordered_layout(extents, order)).split(":")[1] == strides


def test_tile_to_shape_keeps_a_swizzle_outside():
    atom = ComposedLayout(Swizzle(3, 0, 3), 0, Layout((8, 8), (8, 1)))
    filled = tile_to_shape(atom, (16, 24))
    assert sorted(filled(i) for i in range(16 * 24)) == list(range(16 * 24))
    assert [filled(i, j) for i in range(8) for j in range(8)] == [atom(i, j) for i in range(8) for j in range(8)]


# -- local_tile -----------------------------------------------------------------------------------------------


@given(divisions(), st.data())
def test_a_local_tile_is_one_column_of_the_zipped_divide(pair, data):
    layout, tiler = pair
    zipped = zipped_divide(layout, tiler)
    coord = []
    for mode in list(zipped[1])[: data.draw(st.integers(1, rank(zipped, 1)))]:
        coord.append(data.draw(st.one_of(st.none(), st.integers(0, size(mode) - 1))))
    tile = local_tile(layout, tiler, tuple(coord))
    coord += [None] * (rank(zipped, 1) - len(coord))
    open_modes = [mode for mode, c in enumerate(coord) if c is None]
    assert rank(tile) == rank(zipped, 0) + len(open_modes)
    for crd in natural_coordinates(tile.shape):
        inner, outer = crd[: rank(zipped, 0)], iter(crd[rank(zipped, 0) :])
        where = tuple(next(outer) if c is None else c for c in coord)
        assert tile(crd) == zipped(inner, where)


@given(divisions(), st.data())
def test_a_local_tile_takes_the_number_of_the_tile(pair, data):
    layout, tiler = pair
    zipped = zipped_divide(layout, tiler)
    number = data.draw(st.integers(0, size(zipped, 1) - 1))
    tile = local_tile(layout, tiler, number)
    assert [tile(i) for i in range(size(tile))] == [zipped(i, number) for i in range(size(zipped, 0))]


@given(divisions(nones=False))
def test_the_tiles_together_are_the_layout(pair):
    layout, tiler = pair
    tiles = [local_tile(layout, tiler, number) for number in range(size(zipped_divide(layout, tiler), 1))]
    together = [tile(i) for tile in tiles for i in range(size(tile))]
    assert sorted(together) == sorted(values(layout))


@given(st.tuples(*[st.sampled_from([(8, 4), (6, 3), (4, 4), (12, 2)])] * 3), st.data())
def test_one_tiler_serves_all_operands_by_projection(problem, data):
    (m, tile_m), (n, tile_n), (k, tile_k) = problem
    tiler = (tile_m, tile_n, tile_k)
    coord = (data.draw(st.integers(0, m // tile_m - 1)), data.draw(st.integers(0, n // tile_n - 1)), None)
    a, b, c = Layout((m, k), (k, 1)), Layout((n, k), (k, 1)), Layout((m, n), (n, 1))
    assert local_tile(a, tiler, coord, proj=(1, None, 1)) == local_tile(a, (tile_m, tile_k), (coord[0], None))
    assert local_tile(b, tiler, coord, proj=(None, 1, 1)) == local_tile(b, (tile_n, tile_k), (coord[1], None))
    tile = local_tile(c, tiler, coord, proj=(1, 1, None))
    for i in range(tile_m):
        for j in range(tile_n):
            assert tile(i, j) == c(coord[0] * tile_m + i, coord[1] * tile_n + j)


@given(swizzles(), st.data())
def test_a_tile_of_a_swizzled_layout_holds_the_swizzled_offsets(swizzle, data):
    layout = Layout((8, 12), (12, 1))
    offset = data.draw(st.integers(0, 50))
    swizzled = ComposedLayout(swizzle, offset, layout)
    coord = (data.draw(st.integers(0, 1)), data.draw(st.integers(0, 2)))
    tile = local_tile(swizzled, (4, 4), coord)
    for i in range(4):
        for j in range(4):
            assert tile(i, j) == swizzled(4 * coord[0] + i, 4 * coord[1] + j)


def test_a_tile_of_an_identity_layout_holds_the_coordinates_of_its_elements():
    tile = local_tile(make_identity_layout((10, 8)), (4, 4), (2, 1))
    assert tile.offset == (8, 4)
    assert tile(3, 1) == (11, 5)
    column = local_tile(make_identity_layout((10, 8)), (4, 4), (None, 1))
    assert column(3, 1, 2) == (11, 5)


@pytest.mark.parametrize("coord", [(2, 0), (0, 2), (-1, 0), 4, -1])
def test_a_tile_that_is_not_there_is_refused(coord):
    with pytest.raises(LayoutError, match=r"local_tile of \(8,8\):\(1,8\) by \(4, 4\): there is no tile"):
        local_tile(Layout((8, 8)), (4, 4), coord)


@pytest.mark.parametrize("index", [-1, 8])
@pytest.mark.parametrize("mode", ["block", "cyclic"])
def test_a_thread_that_is_not_there_is_refused(index, mode):
    with pytest.raises(LayoutError, match=rf"there is no thread {index} in \(2,4\):\(1,2\)"):
        local_partition(Layout((8, 8)), Layout((2, 4)), index, mode=mode)


# -- local_partition --------------------------------------------------------------------------------------------


@st.composite
def partitions(draw, kinds=INJECTIVE, nested=True):
    """A layout, and a packed thread layout whose modes divide the layout's."""
    layout = draw(matrix_layouts(kinds=kinds, max_extent=8, nested=nested))
    extents = tuple(draw(st.sampled_from(divisors(size(layout, m)))) for m in range(rank(layout)))
    assume(count(extents) <= 64)
    order = draw(st.permutations(range(len(extents))))
    strides, running = [0] * len(extents), 1
    for m in order:
        strides[m] = running
        running *= extents[m]
    return layout, Layout(extents, tuple(strides))


@given(partitions(), st.sampled_from(["block", "cyclic"]))
def test_every_element_is_owned_by_exactly_one_thread(pair, mode):
    layout, threads = pair
    owned = []
    for index in range(size(threads)):
        share = raises_nothing_else(local_partition, layout, threads, index, mode=mode)
        assume(share is not None)
        owned += [share(i) for i in range(share.size())]
    assert sorted(owned) == sorted(values(layout))


@given(partitions(nested=False))
def test_cyclic_deals_elements_out_and_block_keeps_neighbours_together(pair):
    layout, threads = pair
    for number, place in zip(values(threads), natural_coordinates(threads.shape), strict=True):
        cyclic = local_partition(layout, threads, number)
        block = local_partition(layout, threads, number, mode="block")
        per_thread = tuple(size(layout, m) // size(threads, m) for m in range(rank(layout)))
        assert cyclic.size() == block.size() == count(per_thread)
        for step in natural_coordinates(per_thread):
            dealt = tuple(p + s * n for p, s, n in zip(place, step, threads.shape, strict=True))
            kept = tuple(p * n + s for p, s, n in zip(place, step, per_thread, strict=True))
            assert cyclic(step) == layout(dealt)
            assert block(step) == layout(kept)


def test_the_nested_modes_of_a_thread_layout_are_one_direction():
    layout, threads = Layout((8, 6)), Layout(((2, 2), 3), ((1, 6), 2))
    owned = []
    for index in range(12):
        share = local_partition(layout, threads, index)
        owned += [share(i) for i in range(share.size())]
    assert sorted(owned) == list(range(48))
    assert local_partition(layout, threads, 6).offset == layout(2, 0)
    assert local_partition(layout, threads, 3).offset == layout(1, 1)


def test_the_partition_of_a_nested_layout_reaches_all_of_its_leaves():
    layout, threads = Layout(((16, 4), 4)), Layout((8, 2))
    for mode in ("block", "cyclic"):
        owned = []
        for index in range(16):
            share = local_partition(layout, threads, index, mode=mode)
            owned += [share(i) for i in range(share.size())]
        assert sorted(owned) == list(range(256))


@given(swizzles())
def test_a_cyclic_partition_of_a_swizzled_layout_owns_every_element_once(swizzle):
    swizzled = ComposedLayout(swizzle, 0, Layout((8, 8), (8, 1)))
    owned = []
    for index in range(8):
        share = local_partition(swizzled, Layout((2, 4)), index)
        owned += [share(i) for i in range(share.size())]
    assert sorted(owned) == sorted(swizzled(i) for i in range(64))


def test_a_block_partition_of_a_swizzled_layout_owns_every_element_once():
    swizzled = ComposedLayout(Swizzle(2, 0, 3), 0, Layout((8, 8), (8, 1)))
    owned = []
    for index in range(8):
        share = local_partition(swizzled, Layout((2, 4)), index, mode="block")
        owned += [share(i) for i in range(share.size())]
    assert sorted(owned) == list(range(64))


def test_a_thread_mode_of_one_element_may_have_stride_zero():
    threads = make_ordered_layout((4, 1), (0, 1))
    owned = [local_partition(Layout((8, 4)), threads, t)(i) for t in range(4) for i in range(8)]
    assert sorted(owned) == list(range(32))


def test_a_partition_names_what_it_cannot_do():
    with pytest.raises(LayoutError, match=r"thread layout \(2,2,2\):\(1,2,4\) has more modes than \(4,8\):\(1,4\)"):
        local_partition(Layout((4, 8)), Layout((2, 2, 2)), 0)
    with pytest.raises(LayoutError, match='local_partition mode \'tiled\': "block" or "cyclic"'):
        local_partition(Layout((4, 8)), Layout((2, 2)), 0, mode="tiled")


@given(composed_layouts(max_size=40))
def test_none_leaves_a_composed_layout_alone(layout):
    assert logical_divide(layout, None) == layout
    assert composition(layout, None) == layout


@pytest.mark.parametrize("mode", ["block", "cyclic"])
def test_an_uneven_partition_is_refused_instead_of_giving_elements_two_owners(mode):
    with pytest.raises(LayoutError) as caught:
        local_partition(Layout((6, 8)), Layout((4, 4)), 3, mode=mode)
    assert str(caught.value) == (
        "local_partition of (6,8):(1,6) by (4,4):(1,4): 4 threads do not divide the 6 elements of mode 0; pad it to "
        '(8,8), or deal out its coordinates (make_identity_layout), mode="cyclic"'
    )


def test_an_uneven_cyclic_partition_of_coordinates_owns_every_coordinate_once():
    owned = []
    for index in range(16):
        share = local_partition(make_identity_layout((6, 8)), Layout((4, 4)), index)
        owned += [share(i) for i in range(share.size())]
    assert sorted(c for c in owned if c[0] < 6) == [(i, j) for i in range(6) for j in range(8)]
    assert len(set(owned)) == len(owned)


def test_partition_modes_beyond_the_threads_stay_whole():
    share = local_partition(Layout((8, 6, 5)), Layout((2, 3)), 4)
    assert str(share) == "16 + (4,2,5):(2,24,48)"
    assert flat_leaves(share.shape) == [4, 2, 5]
