"""Arithmetic on nested tuples, and what no operation of the algebra takes."""

import contextlib
import inspect
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_strategies import flat_leaves, like, shapes

from tilewright import algebra
from tilewright.algebra import (
    ComposedLayout,
    E,
    Layout,
    Swizzle,
    ceil_div,
    elem_less,
    product_each,
    product_like,
    repeat,
    round_up,
    symbol,
    tuple_add,
    tuple_div,
    tuple_mod,
    tuple_mul,
    tuple_sub,
)
from tilewright.errors import LayoutError, TilewrightError


@given(st.data())
def test_arithmetic_goes_leaf_by_leaf(data):
    a = data.draw(shapes())
    b = like(a, data.draw(st.lists(st.integers(1, 9), min_size=len(flat_leaves(a)), max_size=len(flat_leaves(a)))))
    pairs = list(zip(flat_leaves(a), flat_leaves(b), strict=True))
    assert flat_leaves(tuple_add(a, b)) == [x + y for x, y in pairs]
    assert flat_leaves(tuple_mul(a, b)) == [x * y for x, y in pairs]
    assert tuple_sub(tuple_add(a, b), b) == a
    assert tuple_add(tuple_mul(tuple_div(a, b), b), tuple_mod(a, b)) == a
    assert elem_less(a, tuple_add(a, b))
    assert not elem_less(tuple_add(a, b), a)
    rounded = flat_leaves(round_up(a, b))
    assert all(r % y == 0 and x <= r < x + y for (x, y), r in zip(pairs, rounded, strict=True))


def test_ceil_div_counts_the_tiles_that_cover_a_shape():
    assert ceil_div((100, 64), (32, 64)) == (4, 1)
    assert ceil_div((10, 20, 3), (4, 5)) == (3, 4, 3)


@pytest.mark.parametrize(
    ("operation", "args"),
    [
        (tuple_add, ((1, 2), (1, 2, 3))),
        (tuple_add, ((1, 2), (1, "x"))),
        (tuple_div, ((1, 2), (1, 0))),
        (tuple_mod, (1, 0)),
        (ceil_div, (4, 0)),
        (ceil_div, ((4,), (1, 1))),
        (product_like, (4, (1, 1))),
        (repeat, (1, 0)),
    ],
)
def test_what_has_no_answer_is_a_layout_error(operation, args):
    with pytest.raises(LayoutError):
        operation(*args)


def test_products_follow_a_profile():
    assert product_each(((2, 3), 4, (5,))) == (6, 4, 5)
    assert product_like(((2, 3), (4, (5, 6))), (1, (1, 1))) == (6, (4, 30))


NONSENSE = (
    Layout((2, 3)), Layout((2, 3), (E(0), E(1))), ComposedLayout(Swizzle(2, 0, 3), 4, Layout((4, 8))), Swizzle(2, 0, 3),
    0, -1, 5, None, (2, 3), ((2, 2), 3), (), [2, 3], "x", 1.5, E(1), symbol("M", 1),
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in algebra.__all__ if inspect.isfunction(getattr(algebra, name))])
def test_whatever_an_operation_is_given_it_answers_or_refuses(name):
    """Lists, empty tuples, None and swizzles where shapes and coordinates belong raised TypeError or IndexError."""
    operation = getattr(algebra, name)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p for p in inspect.signature(operation).parameters.values() if p.kind in kinds]
    least = sum(p.default is p.empty for p in parameters)
    rng = random.Random(name)
    for count in range(max(least, 1), min(len(parameters), 4) + 1):
        every = list(itertools.product(NONSENSE, repeat=count)) if count < 3 else []
        for args in every or [tuple(rng.choice(NONSENSE) for _ in range(count)) for _ in range(200)]:
            with contextlib.suppress(TilewrightError):
                operation(*args)
