"""Layouts whose sizes are expressions: what they give is what numbers give, once the sizes are bound."""

import random

import pytest

from tilewright.algebra import (
    ComposedLayout,
    Layout,
    Swizzle,
    coalesce,
    composition,
    cosize,
    flatten,
    index,
    local_partition,
    local_tile,
    logical_divide,
    make_layout,
    select,
    size,
    symbol,
    tiled_divide,
    zipped_divide,
)
from tilewright.algebra.expr_use import evaluate
from tilewright.errors import LayoutError, TilewrightError

M, N, K = symbol("M", 1, 4096), symbol("N", 1, 4096), symbol("K", 1, 4096)
SIZES = {"M": 24, "N": 12, "K": 10}


def bound(layout):
    if isinstance(layout, ComposedLayout):
        return ComposedLayout(layout.outer, int(evaluate(layout.offset, SIZES)), layout.layout.bind(SIZES))
    return layout.bind(SIZES)


@pytest.mark.parametrize(
    "layout",
    [Layout((M, K), (K, 1)), Layout((M, (N, K))), Layout(((4, M), K), ((1, 4), 4 * M)), Layout((8 * M, K), (2 * K, 2))],
    ids=str,
)
def test_values_and_measures_are_those_of_the_numbers(layout):
    numbers = bound(layout)
    assert evaluate(size(layout), SIZES) == size(numbers)
    assert evaluate(cosize(layout), SIZES) == cosize(numbers)
    assert bound(flatten(layout)) == flatten(numbers)
    assert bound(select(layout, 1, 0)) == select(numbers, 1, 0)
    for i in (0, 1, 7, 100):
        assert evaluate(layout(i), SIZES) == numbers(i)
    assert str(layout) == str(Layout(layout.shape, layout.stride))


def test_packed_modes_of_open_sizes_coalesce():
    assert coalesce(Layout((M, K), (1, M))) == Layout(M * K, 1)
    assert coalesce(Layout((M, K), (K, 1))) == Layout((M, K), (K, 1))


@pytest.mark.parametrize("divide", [logical_divide, zipped_divide, tiled_divide])
def test_divides_of_open_sizes_are_those_of_the_numbers(divide):
    layout = Layout((M, K), (K, 1))
    assert bound(divide(layout, (8, 4))) == divide(bound(layout), (8, 4))
    assert bound(divide(layout, (None, 4))) == divide(bound(layout), (None, 4))


def test_a_tile_of_an_open_matrix_begins_at_an_expression():
    rows, at = Layout((M, K), (K, 1)), index("m", 99)
    tile = local_tile(rows, (8, 2), (at, 3))
    assert str(tile) == "8*K*m + 6 + (8,2):(K,1)"
    swizzled = local_tile(ComposedLayout(Swizzle(1, 0, 2), 0, rows), (8, 2), (1, 3))
    assert bound(swizzled) == local_tile(ComposedLayout(Swizzle(1, 0, 2), 0, bound(rows)), (8, 2), (1, 3))


@pytest.mark.parametrize("swizzle", [Swizzle(2, 1, 3), Swizzle(2, 1, -3), Swizzle(0, 1, 3)])
def test_a_swizzle_of_an_expression_is_that_of_its_values(swizzle):
    o = index("o", 512)
    assert all(evaluate(swizzle(o), {"o": n}) == swizzle(n) for n in range(0, 512, 7))


def test_partitions_of_open_sizes_need_threads_that_divide_them():
    layout = Layout((8 * M, K), (K, 1))
    share = local_partition(layout, Layout((4, 1)), 3)
    assert bound(share) == local_partition(bound(layout), Layout((4, 1)), 3)
    with pytest.raises(LayoutError, match="4 threads do not divide the M elements of mode 0"):
        local_partition(Layout((M, K), (K, 1)), Layout((4, 1)), 3)


def test_composition_asks_for_what_can_be_shown():
    assert composition(Layout((M, K), (K, 1)), (Layout(4, 2), None)) == Layout((4, K), (2 * K, 1))
    with pytest.raises(TilewrightError):
        composition(Layout((M, K), (K, 1)), Layout(6, 1))
    with pytest.raises(LayoutError, match="every extent must be at least 1"):
        Layout((symbol("Z", 0, 9), 4))


def test_no_operation_of_open_sizes_fails_without_a_name():
    rng = random.Random(7)
    leaves = [2, 3, 4, 8, M, K, 4 * M, M * K]
    operations = [
        coalesce,
        flatten,
        size,
        cosize,
        lambda layout: logical_divide(layout, rng.choice((2, 4, K))),
        lambda layout: composition(layout, Layout(rng.choice((2, M)), rng.choice((1, 2, K)))),
        lambda layout: zipped_divide(layout, (2, 2)),
        lambda layout: make_layout(layout, layout),
        lambda layout: local_partition(layout, Layout((2, 2)), 1),
        lambda layout: layout(None, 1),
    ]
    for _ in range(300):
        layout = Layout((rng.choice(leaves), rng.choice(leaves)), (rng.choice(leaves), rng.choice((0, 1, *leaves))))
        for operation in operations:
            try:
                operation(layout)
            except TilewrightError:
                continue
