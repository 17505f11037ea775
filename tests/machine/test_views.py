"""Copy atoms on views: what they say of expressions is what they say of the tables of every round."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tilewright.algebra import Access, ComposedLayout, Layout, Swizzle, index
from tilewright.algebra.expr import Const, as_expr
from tilewright.ir.dtypes import bf16, f16, f32
from tilewright.machine import CopyRefusal, CopyRequest, MemoryView, Place, RegisterView, ViewRequest
from tilewright.targets.nvidia.tma_tile import swizzle_of
from tilewright.targets.registry import machine

CDNA, AMPERE, HOPPER = machine("cdna3"), machine("ampere"), machine("hopper")


def in_numbers(view: MemoryView, axes, outer, value) -> Access:
    """The view in one round, as an access."""
    fixed = view.substituted({outer: value})
    return Access.of(fixed.coordinates, axes, view.shape, view.strides)


def all_hold(answer) -> bool:
    """Whether nothing is left to be asked: a condition that depends on rounds does not hold in all."""
    return not isinstance(answer, CopyRefusal) and all(isinstance(c.that, Const) and c.that.value for c in answer)


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
            CopyRefusal,
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
    column = axes[1] + rng.choice((0, 8, -16)) + 8 * outer  # boxes begin at whole units of 16 bytes
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
            numeric.append(not isinstance(atom.answer(CopyRequest((rows, columns), dtype, *sides)), CopyRefusal))
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
        assert not isinstance(answer, CopyRefusal), answer
        assert [i.arguments["coordinates"] for i in answer] == [(0, start)]
        assert answer[0].arguments["tensor_map"].extents == (64, 70)


def rounds(atom, view: MemoryView, outer, axes, dtype, spread: Layout, loads: bool) -> list[bool]:
    """Whether the atom has instructions for the numbers of each round."""
    found = []
    box = tuple(int(axis.hi) + 1 for axis in axes)
    for value in range(int(outer.hi) + 1):
        fixed = view.substituted({outer: value})
        access = replace(Access.of(fixed.coordinates, axes, view.shape, view.strides), swizzle=view.swizzle)
        sides = [Place(view.space, access, view.alignment), Place("register", spread)]
        found.append(not isinstance(atom.answer(CopyRequest(box, dtype, *sides[:: 1 if loads else -1])), CopyRefusal))
    return found


def asked(atom, view: MemoryView, axes, dtype, spread: Layout, loads: bool) -> bool:
    """Whether the atom has instructions for all rounds at once."""
    sides = [view, RegisterView("%r", Place("register", spread).numbers())]
    return all_hold(atom.conditions(ViewRequest(axes, dtype, *sides[:: 1 if loads else -1])))


@pytest.mark.parametrize("name", ["load", "load.masked", "broadcast", "store", "store.masked", "store.stream"])
@pytest.mark.parametrize("seed", range(12))
def test_vector_copies_on_views_answer_as_they_do_for_each_round(name: str, seed: int) -> None:
    rng = random.Random(seed)
    level, width = rng.choice((("avx2", 32), ("avx512", 64)))
    atom = machine("x86.avx512").copies[f"{level}.{name}"]
    dtype = rng.choice((f32, f32, f16)) if level == "avx512" else f32
    lanes, rows = width // dtype.numpy.itemsize, rng.choice((1, 2, 3))
    columns = lanes * rng.choice((1, 2))
    spread = Layout((lanes, (rows, columns // lanes)), (rows, (1, rows * lanes)))
    axes, outer = (index("i", rows), index("j", columns)), index("t", 3)
    step, first = rng.choice((0, 1, lanes)), rng.choice((0, 0, 3, lanes))
    if name == "broadcast" and rng.random() < 0.7:
        spread = Layout((lanes, rows * columns), (0, 1))
    last = rng.choice((axes[1], axes[1], 2 * axes[1], columns - 1 - axes[1]))
    wide = 2 * columns + first + 3 * step + rng.choice((0, 0, -lanes, -1, lanes))
    pitch = rng.choice((wide, -(-wide // lanes) * lanes, wide + 1))
    turned = rng.random() < 0.1
    strides = (as_expr(1), as_expr(rows)) if turned else (as_expr(pitch), as_expr(1))
    extents = (as_expr(rows), as_expr(wide))
    view = MemoryView("%x", "global", (axes[0], last + first + outer * step), extents, strides, (False, True), 64)
    loads = atom.source == "global"
    numeric = rounds(atom, view, outer, axes, dtype, spread, loads)
    symbolic = asked(atom, view, axes, dtype, spread, loads)
    assert not symbolic or all(numeric)
    if all(numeric) and not symbolic:  # a mask may leave out all but one lane of what is not neighbours
        assert name.endswith("masked")


@pytest.mark.parametrize("seed", range(30))
def test_tile_copies_on_views_answer_as_they_do_for_each_round(seed: int) -> None:
    rng = random.Random(seed)
    atom = machine("x86.amx").copies[rng.choice(("amx.tileload", "amx.tilestore"))]
    rows, columns = rng.choice((16, 16, 8)), rng.choice((32, 64, 16))
    spread = Layout((rows, columns), (1, rows))
    axes, outer = (index("i", rows), index("j", columns)), index("t", 3)
    again = (axes[0] + 3) // 4 if atom.source == "global" else axes[0]  # a store has one place for each element
    row = rng.choice((axes[0] + outer, 2 * axes[0], again, axes[0]))
    column = rng.choice((axes[1], axes[1], 2 * axes[1], axes[1] + outer))
    high, wide = rng.choice((2 * rows, rows - 3, 3)), rng.choice((2 * columns + 2, columns - 2))
    extents, strides = (as_expr(high), as_expr(wide)), (as_expr(wide), as_expr(1))
    view = MemoryView("%x", "global", (row, column), extents, strides, (True, True), 64)
    loads = atom.source == "global"
    numeric = rounds(atom, view, outer, axes, bf16, spread, loads)
    symbolic = asked(atom, view, axes, bf16, spread, loads)
    assert not symbolic or all(numeric)
    if all(numeric) and not symbolic:  # rows that lie outside hide that they are not at one stride
        assert high < 2 * rows or wide < columns


@pytest.mark.parametrize("seed", range(40))
def test_copies_of_matrices_on_views_answer_as_they_do_for_each_round(seed: int) -> None:
    rng = random.Random(seed)
    turned, loads = rng.random() < 0.4, rng.random() < 0.6
    name = f"{'ldmatrix' if loads else 'stmatrix'}.x4{'.trans' if turned else ''}"
    atom = HOPPER.copies[name]
    # mma's A, 16 x 16: matrices side by side and below each other
    spread = Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))
    if rng.random() < 0.2:
        spread = Layout(((4, 8), (2, 2, 2)), ((2, 16), (1, 8, 128)))
    axes, outer = (index("i", 16), index("j", 16)), index("t", 2)
    pitch = rng.choice((32, 40, 36, 64))
    order = axes if not turned or rng.random() < 0.3 else axes[::-1]
    first = rng.choice((0, 8, 4)) + outer * rng.choice((0, 8, 4))
    swizzle = rng.choice((None, Swizzle(2, 3, 3), Swizzle(2, 2, 3)))
    extents, strides = (as_expr(16), as_expr(64)), (as_expr(pitch), as_expr(1))
    view = MemoryView("%s", "shared", (order[0], order[1] + first), extents, strides, (False,) * 2, 128, swizzle)
    numeric = rounds(atom, view, outer, axes, bf16, spread, loads)
    symbolic = asked(atom, view, axes, bf16, spread, loads)
    assert symbolic == all(numeric)


@pytest.mark.parametrize("seed", range(40))
def test_columns_of_pixels_on_views_are_those_of_each_round(seed: int) -> None:
    rng = random.Random(seed)
    images, high, wide = rng.choice((1, 2, 3)), rng.choice((3, 7, 8, 16, 130)), rng.choice((3, 5, 8, 16))
    taps, pad, step = rng.choice((1, 3)), rng.choice((0, 1)), rng.choice((1, 1, 2, 9))
    p, q = (high + 2 * pad - taps) // step + 1, (wide + 2 * pad - taps) // step + 1
    pixels = rng.choice((32, 64, 128))
    axes = (index("i", pixels), index("k", 64))
    t, r, s = index("t", -(-images * p * q // pixels)), index("r", taps), index("s", taps)
    down = rng.random() < 0.15  # pixels are counted down columns first
    skew = rng.choice((0, 0, 0, 200))

    def at(x):
        line, column = (x % p, x // p % q) if down else (x // q % p, x % q)
        return x // (p * q), line * step + (skew + 1) * r - pad, column * step + s - pad, axes[1]

    extents = tuple(map(as_expr, (images, high, wide, 64)))
    strides = tuple(map(as_expr, (high * wide * 64, wide * 64, 64, 1)))
    view = MemoryView("%x", "global", at(pixels * t + axes[0]), extents, strides, (True, True, True, False), 16)
    flat = (index("x", images * p * q), axes[1])
    whole = replace(view, coordinates=at(flat[0]))
    tile = ComposedLayout(Swizzle(3, 3, 3), 0, Layout((pixels, 64), (64, 1)))
    shared = tuple(map(as_expr, (pixels, 64))), tuple(map(as_expr, (64, 1)))
    near = MemoryView("%s", "shared", axes, *shared, (False,) * 2, 1024, Swizzle(3, 3, 3))
    atom = HOPPER.copies["tma.load.im2col"]
    symbolic = all_hold(atom.conditions(ViewRequest(axes, bf16, view, near)))
    numeric = []
    for task, tap in ((0, 0), (int(t.hi), taps - 1)):
        fixed = whole.substituted({r: tap, s: tap})
        source = Place("global", Access.of(fixed.coordinates, flat, view.shape, view.strides), start=(task * pixels, 0))
        request = CopyRequest((pixels, 64), bf16, source, Place("shared", tile, alignment=1024))
        numeric.append(not isinstance(atom.answer(request), CopyRefusal))
    if symbolic and not all(numeric):  # a tap that reads nothing but padding
        assert (p, q, pad) == (1, 1, 1)
    elif not symbolic:  # taps that are too far apart for one map do for each round alone
        assert not all(numeric) or skew


@pytest.mark.parametrize("shift", [0, 32, 64])
def test_three_digits_of_a_number_are_joined_wherever_boxes_begin(shift: int) -> None:
    """The middle one of a row that is 32 further on is ((96*t + x + 4)//14 + 2)%14."""
    t, x = index("t", 33), index("x", 32)
    row, shape, strides = 96 * t + x + shift, (2, 8, 14, 14), (1568, 196, 14, 1)
    at = (row // 1568, row // 196 % 8, row // 14 % 14, row % 14)
    loose = (True, False, False, False)
    pixels = MemoryView("%y", "global", at, tuple(map(as_expr, shape)), tuple(map(as_expr, strides)), loose, 16)
    first = 3 * t + shift // 32
    assert pixels.joined((x,)).coordinates == (first // 49, 32 * (first % 49) + x)
