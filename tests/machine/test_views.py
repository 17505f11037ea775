"""Copy atoms on views: what they say of expressions is what they say of the tables of every round."""

from __future__ import annotations

import random

import pytest

from tilewright.algebra import Access, ComposedLayout, Layout, Swizzle, index
from tilewright.algebra.expr import Const, as_expr
from tilewright.ir.dtypes import bf16, f16, f32
from tilewright.machine import CopyRequest, MemoryView, Place, Refusal, RegisterView, ViewRequest
from tilewright.targets.nvidia.tma_tile import swizzle_of
from tilewright.targets.registry import machine

CDNA, AMPERE, HOPPER = machine("cdna3"), machine("ampere"), machine("hopper")


def in_numbers(view: MemoryView, axes, outer, value) -> Access:
    """The view in one round, as an access."""
    fixed = view.substituted({outer: value})
    return Access.of(fixed.coordinates, axes, view.shape, view.strides)


def all_hold(answer) -> bool:
    """Whether nothing is left to be asked: a condition that depends on rounds does not hold in all."""
    return not isinstance(answer, Refusal) and all(
        c.of_array or (isinstance(c.that, Const) and c.that.value) for c in answer
    )


@pytest.mark.parametrize("seed", range(60))
def test_lane_loads_on_views_answer_as_they_do_for_each_round(seed: int) -> None:
    rng = random.Random(seed)
    dtype = rng.choice((f16, f32))
    width = rng.choice((4, 8, 16))
    atom = CDNA.copies[f"global_load.{ {4: 'dword', 8: 'dwordx2', 16: 'dwordx4'}[width] }"]
    columns = rng.choice((8, 16, 32))
    values = rng.choice((2, 4, 8))
    rows = 64 * values // columns
    if rows == 0:
        rows, values = 1, columns // 64 or 1
    across = columns // values
    # `values` neighbours of a row to a lane, lanes along the row and then down
    spread = Layout(((across, 64 // across), values), ((rows * values, 1), rows))
    pitch = rng.choice((columns, columns + rng.choice((1, 2, 4, 8)), 2 * columns))
    turned = rng.random() < 0.15
    width_of_tensor = rng.choice((columns, columns - rng.choice((1, 2, 4)), columns + 8))
    axes = (index("i", rows), index("j", columns))
    outer = index("t", 3)
    column = axes[1] + rng.choice((0, 0, 1, 2, 4, 8)) + outer * rng.choice((0, 0, 2, 4, 8))
    strides = (as_expr(pitch), as_expr(1)) if not turned else (as_expr(1), as_expr(3 * rows))
    extents = (as_expr(3 * rows), as_expr(width_of_tensor))
    view = MemoryView("%x", "global", (axes[0] + outer * rows, column), extents, strides, (False, True), 16)
    table = RegisterView("%r", Place("register", spread).numbers())
    symbolic = all_hold(atom.conditions(ViewRequest(axes, dtype, view, table)))
    numeric = [
        not isinstance(
            atom.answer(
                CopyRequest(
                    (rows, columns),
                    dtype,
                    Place("global", in_numbers(view, axes, outer, t)),
                    Place("register", spread),
                )
            ),
            Refusal,
        )
        for t in range(3)
    ]
    assert not symbolic or all(numeric)
    # what is refused for all is refused in some round, or its edge only happens to lie between runs
    if all(numeric) and not symbolic:
        assert width_of_tensor % (width // dtype.numpy.itemsize) or (pitch * dtype.numpy.itemsize) % width


@pytest.mark.parametrize("seed", range(40))
def test_tma_on_views_answers_as_it_does_for_each_round(seed: int) -> None:
    rng = random.Random(seed)
    dtype = rng.choice((bf16, f32))
    size = dtype.numpy.itemsize
    columns = rng.choice((4, 8, 16, 32, 64))
    rows = rng.choice((8, 16, 30))
    pitch = 16 * rng.randint(5, 9)
    span = rng.choice((0, 0, 32, 64, 128))
    swizzle = swizzle_of(span, size)
    axes = (index("i", rows), index("j", columns))
    outer = index("t", 3)
    row = rng.choice(
        (axes[0] + outer * rows, axes[0] * 2, (axes[0] + outer * rows) // 7 * 7 + (axes[0] + outer * rows) % 7)
    )
    column = axes[1] + rng.choice((0, 3, -2)) + outer
    far = MemoryView(
        "%x",
        "global",
        (row, column),
        (as_expr(2 * rows), as_expr(pitch)),
        (as_expr(pitch), as_expr(1)),
        (True, True),
        16,
    )
    near = MemoryView(
        "%s",
        "shared",
        axes,
        (as_expr(rows), as_expr(columns)),
        (as_expr(columns), as_expr(1)),
        (False,) * 2,
        1024,
        swizzle,
    )
    tile = ComposedLayout(swizzle, 0, Layout((rows, columns), (columns, 1)))
    for name, (a, b) in {"tma.load": (far, near), "tma.store": (near, far)}.items():
        atom = HOPPER.copies[name]
        symbolic = all_hold(atom.conditions(ViewRequest(axes, dtype, a, b)))
        numeric = []
        for t in range(3):
            sides = [
                Place("shared", tile, alignment=1024)
                if side is near
                else Place("global", in_numbers(far, axes, outer, t))
                for side in (a, b)
            ]
            numeric.append(not isinstance(atom.answer(CopyRequest((rows, columns), dtype, *sides)), Refusal))
        assert symbolic == all(numeric), (name, numeric)


def test_rows_through_packed_pixels_are_stored_by_the_instructions_of_tma_store() -> None:
    """The output of a convolution: rows (n, p, q) of a matrix; its tma.store was refused."""
    axes = (index("i", 70), index("c", 64))
    x = axes[0]
    access = Access.of((x // 35, x // 5 % 7, x % 5, axes[1]), axes, (2, 7, 5, 64))
    tile = ComposedLayout(Swizzle(3, 3, 3), 0, Layout((64, 64), (64, 1)))
    for start in (0, 64):
        request = CopyRequest(
            (64, 64), bf16, Place("shared", tile, alignment=1024), Place("global", access, start=(start, 0))
        )
        answer = HOPPER.copies["tma.store"].answer(request)
        assert not isinstance(answer, Refusal), answer
        assert [i.arguments["coordinates"] for i in answer] == [(0, start)]
        assert answer[0].arguments["tensor_map"].extents == (64, 70)
