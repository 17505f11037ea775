"""Places that the interpreters keep between iterations are those that they would find anew."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.algebra.expr import index
from tilewright.interpret.block.memory import grid
from tilewright.interpret.block.places import MOST_ELEMENTS, Coordinates, pattern
from tilewright.interpret.evaluation import evaluated, separated

A, B, K = index("i", 6), index("j", 5), index("k", 40)


@pytest.mark.parametrize("k", range(0, 40, 7))
def test_a_pattern_gives_the_places_of_its_expressions(k):
    at, strides, sizes = (3 * (A // 2) + K, 2 * B + K % 3), (11, 1), (50, 11)
    element_pattern = pattern(grid((6, 5)), ("i", "j"), at, strides)
    i, j = np.ogrid[0:6, 0:5]
    wanted = sum(evaluated(e, {"i": i, "j": j, "k": k}) * stride for e, stride in zip(at, strides, strict=True))
    offset = element_pattern.offset({"k": k}, sizes)
    assert (offset is None) == (k + 6 >= 50)
    assert np.array_equal(element_pattern.at(offset, None), wanted)
    assert np.array_equal(element_pattern.at(offset + 4, lambda places: places ^ 5), (wanted + 4) ^ 5)


def test_a_coordinate_out_of_bounds_has_no_offset():
    element_pattern = pattern(grid((6, 5)), ("i", "j"), (A + K - 1, B), (5, 1))
    assert element_pattern.offset({"k": 0}, (9, 5)) is None
    assert element_pattern.offset({"k": 1}, (9, 5)) == 0
    assert element_pattern.offset({"k": 4}, (9, 5)) == 15
    assert element_pattern.offset({"k": 5}, (9, 5)) is None


def test_values_that_are_missing_or_differ_between_lanes_have_no_offset():
    element_pattern = pattern(grid((6, 5)), ("i", "j"), (A, B + 5 // (K - 3)), (5, 1))
    assert element_pattern.offset({}, (6, 40)) is None
    assert element_pattern.offset({"k": np.arange(6)}, (6, 40)) is None
    assert element_pattern.offset({"k": 3}, (6, 40)) is None  # a division by 0, which `evaluated` reports


def test_what_is_no_sum_of_axes_and_numbers_has_no_pattern():
    assert separated(((A + K) // 2,), ("i",)) is None
    assert separated((A * K,), ("i",)) is None
    assert pattern(grid((6,)), ("i",), ((A >= 2) + (A >= 4),), (1,)) is None  # numpy adds conditions as truth values


def test_places_of_no_or_many_elements_are_not_kept():
    assert pattern(grid((0,)), ("i",), (A,), (1,)) is None
    many = Coordinates((np.zeros(MOST_ELEMENTS + 1, np.int64),))
    assert pattern(many, ("i",), (A,), (1,)) is None


def test_places_that_meet_are_known_to():
    apart, meeting = (pattern(grid((6, 5)), ("i", "j"), (A, B), strides) for strides in ((5, 1), (4, 1)))
    assert apart.is_one_to_one
    assert not meeting.is_one_to_one
