"""Extents of tasks to try along a dimension."""

from __future__ import annotations

import pytest

from tilewright.plan.boxes import ROWS, width_choices


@pytest.mark.parametrize(("extent", "radices"), [(100_003, ()), (40_960, (56, 3)), (65_521, (7,)), (9_216, (96,))])
def test_each_extent_is_the_best_of_a_quarter_to_a_half_of_the_one_before(
    extent: int, radices: tuple[int, ...]
) -> None:
    """They are looked at from the widest on, some at a time, until one has all that is preferred."""

    def preference(n: int) -> tuple[bool, bool, bool, int]:
        keeps_digits = all(n % radix == 0 or radix % n == 0 for radix in radices)
        return keeps_digits, n % ROWS == 0 or n > 6 * ROWS, extent % n == 0, n

    widths = [extent]
    while widths[-1] > 1:
        half = -(-widths[-1] // 2)
        widths.append(max(range(max(1, half // 2 + 1), half + 1), key=preference))
    assert width_choices(extent, radices) == widths
