"""Views that end before their tensors do: a tensor that ends there, or a refusal; what copies say of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tilewright.algebra import as_expr, index
from tilewright.algebra.expr import ONE, Expr
from tilewright.algebra.expr_use import evaluate
from tilewright.ir.dtypes import f16
from tilewright.machine import CopyRefusal, MemoryView, Refused, RegisterView, ViewRequest
from tilewright.machine.ends import ends_within, with_ends
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
g, p, i, c = index("g", 3), index("p", 2), index("i", 4), index("c", 64)


def view(coordinate: Expr, width: int, ends: tuple[Expr, ...]) -> MemoryView:
    """Rows of a matrix, at some place along them."""
    shape, strides = (as_expr(4), as_expr(width)), (as_expr(width), as_expr(1))
    found = ends_within(ends, (i, coordinate), shape)
    return MemoryView("%x", "global", (i, coordinate), shape, strides, (False, True), 16, ends=found)


def there(v: MemoryView, values: dict[str, int]) -> int | None:
    """The offset of an element; None where it is not there."""
    at = [int(evaluate(e, values)) for e in v.coordinates]
    inside = all(0 <= a < int(n) for a, n in zip(at, v.shape, strict=True))
    ended = any(int(evaluate(end, values)) < 0 for end in v.ends)
    return sum(a * int(s) for a, s in zip(at, v.strides, strict=True)) if inside and not ended else None


ENDING = [
    (view(40 * g + c, 120, (c, 39 - c)), 3),
    (view(40 * g + 8 + c, 120, (c, 31 - c)), 3),
    (view(8 + c, 120, (39 - c,)), 2),
    (view(48 * g + 24 * p + c, 144, (23 - c, 47 - 24 * p - c)), 3),
    (view(40 * g + c - 3, 120, (c - 3, 42 - c)), 3),
    (view(16 * g + c, 96, (39 - c,)), 3),  # windows that overlap
    (view(40 * g + c, 120, (39 - g - c,)), 3),  # groups that are shorter, one by one
]


@pytest.mark.parametrize(("given", "rank"), ENDING)
def test_elements_are_there_or_not_as_before(given: MemoryView, rank: int) -> None:
    found = with_ends(given, (i, c))
    assert not found.ends
    assert len(found.shape) == rank
    for values in product(range(3), range(2), range(4), range(64)):
        named = dict(zip("gpic", values, strict=True))
        assert there(found, named) == there(given, named)


@pytest.mark.parametrize(
    ("coordinate", "end"),
    [
        (40 * g + c, 50 - 2 * c),  # an end that the channels come to in steps of two
        (100 * g + c, 39 - c),  # the last group is not all there
        (40 * g + c - 8, 47 - c),  # what lies before the group is there
    ],
)
def test_ends_that_no_dimension_has_are_refused(coordinate: Expr, end: Expr) -> None:
    with pytest.raises(Refused, match="a view of %x ends before it does"):
        with_ends(view(coordinate, 128, (end,)), (i, c))


def test_ends_that_others_imply_are_none() -> None:
    assert view(c, 64, (c, 63 - c)).ends == ()
    assert view(24 * g + c, 72, (c, 71 - 24 * g - c)).ends == ()
    assert view(40 * g + c, 120, (39 - c, 63 - c, 50 - c)).ends == (39 - c,)


@pytest.mark.parametrize(("length", "why"), [(40, ""), (36, "36 elements in dimension 1, no multiple of 8")])
def test_lanes_load_runs_that_no_end_cuts(length: int, why: str) -> None:
    lanes = RegisterView("%r", np.arange(256).reshape(32, 8))  # eight neighbours each
    found = HOPPER.copies["ld.global.16"].conditions(ViewRequest((c, i), f16, view(c, 64, (length - 1 - c,)), lanes))
    assert not isinstance(found, CopyRefusal)
    refused = [condition.reason for condition in found if condition.that is not ONE]
    assert len(refused) == bool(why)
    assert all(why in reason for reason in refused)


def test_matrices_are_not_loaded_from_what_ends_within_its_tensor() -> None:
    row, column = index("r", 8), index("k", 8)
    rows = MemoryView("%s", "shared", (row, column), (as_expr(8),) * 2, (as_expr(8), as_expr(1)), (False, True), 128)
    lane, value = np.indices((32, 2))
    held = RegisterView("%r", lane // 4 + 8 * (2 * (lane % 4) + value))
    load = HOPPER.copies["ldmatrix.x1"]
    assert load.conditions(ViewRequest((row, column), f16, rows, held)) == ()
    said = load.conditions(ViewRequest((row, column), f16, replace(rows, ends=(5 - column,)), held))
    assert isinstance(said, CopyRefusal)
    assert said.reason == "a view of %s ends where -k + 5 is below 0: it has no mask"
