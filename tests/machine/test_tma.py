"""TMA: boxes of tensors and columns of images, exactly, with edges; and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from copy_checks import check

from tilewright.algebra import Access, ComposedLayout, Layout, Swizzle, index
from tilewright.ir.dtypes import bf16, f16, f32, i8
from tilewright.machine import CopyRequest, Place
from tilewright.targets.nvidia.im2col import Im2colMap
from tilewright.targets.nvidia.tma import TensorMap
from tilewright.targets.nvidia.tma_tile import swizzle_of
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
LOAD, STORE = HOPPER.copy_atom("tma.load"), HOPPER.copy_atom("tma.store")
IM2COL = HOPPER.copy_atom("tma.load.im2col")


def shared(layout, span=0, size=2, place=0, alignment=1024):
    swizzle = swizzle_of(span, size)
    return Place("shared", layout if not span and not place else ComposedLayout(swizzle, place, layout), alignment)


def both(box, dtype, far, near):
    for atom, sides in ((LOAD, (far, near)), (STORE, (near, far))):
        request = CopyRequest(box, dtype, *sides)
        assert check(atom, request), atom.answer(request)
    return LOAD.answer(CopyRequest(box, dtype, far, near))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("span", [0, 32, 64, 128])
@pytest.mark.parametrize("dtype", [i8, bf16, f32])
def test_matrices_with_every_swizzle_and_edge(span, dtype):
    size = dtype.numpy.itemsize
    wide = (span or 48) // size
    tensor = Layout((3 * wide - 1, 50), (1, 3 * wide + 16))
    for start in ((0, 0), (wide, 7), (2 * wide, 40), (-1, -3), (-wide, 0), (5, 60)):
        found = both(
            (wide, 24),
            dtype,
            Place("global", tensor, 16, start),
            shared(Layout((wide, 24)), span, size, place=256 // size * 5),
        )
        assert len(found) == 1
        assert found[0].arguments["tensor_map"].swizzle == span
        assert found[0].arguments["coordinates"] == start


def test_swizzle_is_that_of_absolute_addresses():
    """A tile that starts in the middle of the pattern: chunk ^ (address / 128 % 8), as the machine does it."""
    tile = shared(Layout((64, 8)), 128, 2, place=3 * 64)
    (instruction,) = LOAD.answer(CopyRequest((64, 8), bf16, Place("global", Layout((64, 8))), tile))
    memory = np.zeros(64 * 16, np.int16)
    instruction.run(np.arange(512, dtype=np.int16), memory)
    for row, chunk in itertools.product(range(8), range(8)):
        line = 3 + row
        at = 64 * line + 8 * (chunk ^ line % 8)
        assert (memory[at : at + 8] == 64 * row + 8 * chunk + np.arange(8)).all()


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_up_to_five_dimensions(rank):
    extents = (20, 5, 4, 3, 6)[:rank]
    strides = (1, 24, 24 * 5, 24 * 5 * 4 + 8, 24 * 5 * 4 * 4)[:rank]
    box, start = (16, 3, 2, 2, 4)[:rank], (8, 1, 3, -1, 3)[:rank]
    both(box, bf16, Place("global", Layout(extents, strides), 16, start), shared(Layout(box)))


def test_dimensions_may_be_listed_in_any_order():
    far = Place("global", Layout((9, 64), (64, 1)), 16, (2, 0))
    (instruction,) = both((5, 64), bf16, far, shared(Layout((5, 64), (64, 1)), 128))
    assert instruction.arguments["tensor_map"].box == (64, 5)


def test_a_box_is_cut_where_the_tile_is():
    """128 columns in two slabs of 64: two instructions."""
    tile = shared(Layout(((64, 2), 32), ((1, 64 * 32), 64)), 128)
    found = both((128, 32), bf16, Place("global", Layout((150, 40), (1, 152)), 16, (8, 16)), tile)
    assert [i.arguments["coordinates"] for i in found] == [(8, 16), (72, 16)]
    assert [i.arguments["place"] for i in found] == [0, 2048]
    assert len({i.arguments["tensor_map"] for i in found}) == 1


def test_accesses_give_the_tensor_its_edges():
    c, q, p = index("c", 64), index("q", 8), index("p", 6)
    for r, s in itertools.product(range(3), repeat=2):
        halo = Access.of((1, p + r - 1, q + s - 1, c), axes=(c, q, p), shape=(2, 6, 8, 64))
        (instruction,) = both((64, 8, 6), bf16, Place("global", halo, 16), shared(Layout((64, 8, 6)), 128))
        assert instruction.arguments["coordinates"] == (0, s - 1, r - 1, 1)


def test_axes_of_one_value_are_constants():
    c, q, s = index("c", 64), index("q", 8), index("s", 3)
    line = Access.of((q + s - 1, c), axes=(c, q, s), shape=(8, 64))
    for start in range(3):
        both((64, 8, 1), bf16, Place("global", line, 16, (0, 0, start)), shared(Layout((64, 8, 1)), 128))


def why(box, far, near, dtype=bf16, atom=LOAD):
    sides = (far, near) if atom.source == "global" else (near, far)
    answer = atom.answer(CopyRequest(box, dtype, *sides))
    return answer.reason


def test_what_boxes_are_refused():
    near, tensor = shared(Layout((64, 8)), 128), Place("global", Layout((64, 8)))
    box = (64, 8)
    assert "stride 8 in global memory, not 1" in why(box, Place("global", Layout((64, 8), (8, 1))), near)
    assert "stride of dimension 1 is 140 bytes" in why(box, Place("global", Layout((64, 8), (1, 70))), near)
    assert "aligned to 8 bytes" in why(box, Place("global", Layout((64, 8)), 8), near)
    assert "aligned to 128 bytes, and 1024 are needed" in why(box, tensor, shared(Layout((64, 8)), 128, alignment=128))
    assert "not the 64 of this swizzle" in why(box, tensor, shared(Layout((64, 8)), 64))
    assert "no multiple of 16" in why((5, 8), tensor, shared(Layout((5, 8))))
    assert "none of the swizzles" in why(
        box, tensor, Place("shared", ComposedLayout(Swizzle(3, 4, 3), 0, Layout((64, 8))), 1024)
    )
    assert "not the 64 of a packed box" in why(box, tensor, shared(Layout((64, 8), (1, 72))))
    tall = Place("global", Layout((64, 300)))
    assert "300 elements in its dimension 1; the most is 256" in why((64, 300), tall, shared(Layout((64, 300)), 128))
    deep = (8, 2, 2, 2, 2, 2)
    assert "6 dimensions; the most is 5" in why(deep, Place("global", Layout(deep)), shared(Layout(deep)))
    assert "byte 2 of shared memory" in why(box, tensor, shared(Layout((64, 8)), 0, place=1))
    assert "must be the box" in why(box, tensor, shared(Layout((64, 9)), 128))
    nested = Place("global", Layout(((32, 2), 8), ((1, 64), 128)))
    assert "several strides" in why(box, nested, near)
    q, c, s = index("q", 8), index("c", 64), index("s", 3)
    strided = Place("global", Access.of((2 * q, c), axes=(c, q), shape=(16, 64)))
    assert "steps over elements" in why(box, strided, near)
    window = Place("global", Access.of((q + s, c), axes=(c, q, s), shape=(10, 64)))
    assert "walked by two dimensions" in why((64, 8, 3), window, shared(Layout((64, 8, 3)), 128))
    repeated = Place("global", Access.of((c,), axes=(c, q), shape=(64,)))
    assert "elements would be repeated" in why(box, repeated, near)
    divided = Place("global", Access.of((q // 2, c), axes=(c, q), shape=(4, 64)))
    assert "divides an axis" in why(box, divided, near)
    # an iteration that ends before the tensor does: the machine would read on
    inner = Place("global", Access.of((q, c), axes=(c, q), shape=(20, 64)), start=(0, 4))
    assert "only the tensor's edge is seen" in why(box, inner, near)
    assert "global memory is addressed by strides" in why(
        box, Place("global", ComposedLayout(Swizzle(3, 3, 3), 0, Layout(box))), near
    )


def test_a_tensor_map_walks_its_box():
    offsets, inside = TensorMap(3, (4, 4), (1, 10), (2, 3), 0).offsets((-1, 2))
    assert offsets[1].tolist() == [23, 33, 43]
    assert inside.tolist() == [[False] * 3, [True, True, False]]


# -- im2col -------------------------------------------------------------------------------------------------------


def convolution(n, h, w, c, r, s, stride=(1, 1), dilation=(1, 1), pad=(0, 0), pixels=None):
    """The access of a convolution's input over (c, m, s, r), and its output extents."""
    p = (h + 2 * pad[0] - (r - 1) * dilation[0] - 1) // stride[0] + 1
    q = (w + 2 * pad[1] - (s - 1) * dilation[1] - 1) // stride[1] + 1
    channel, m, ss, rr = index("c", c), index("m", n * p * q), index("s", s), index("r", r)
    row = (m // q) % p * stride[0] + rr * dilation[0] - pad[0]
    column = m % q * stride[1] + ss * dilation[1] - pad[1]
    return Access.of((m // (p * q), row, column, channel), axes=(channel, m, ss, rr), shape=(n, h, w, c)), (p, q)


CONVOLUTIONS = [
    {"n": 2, "h": 5, "w": 7, "c": 16, "r": 3, "s": 3, "pad": (1, 1)},
    {"n": 3, "h": 7, "w": 4, "c": 24, "r": 1, "s": 3, "pad": (0, 1)},
    {"n": 1, "h": 9, "w": 8, "c": 16, "r": 3, "s": 2, "stride": (2, 2), "pad": (1, 0)},
    {"n": 2, "h": 11, "w": 9, "c": 16, "r": 3, "s": 3, "dilation": (2, 3), "pad": (2, 3)},
    {"n": 4, "h": 1, "w": 6, "c": 8, "r": 1, "s": 1},
    {"n": 2, "h": 6, "w": 1, "c": 16, "r": 2, "s": 1, "pad": (1, 0)},
    {"n": 2, "h": 5, "w": 5, "c": 16, "r": 5, "s": 5, "pad": (3, 4), "stride": (3, 2)},
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_columns_of_images(shape):
    """All taps of a box of pixels that begins anywhere, past the last image too; one map for all."""
    access, (p, q) = convolution(**shape)
    taps = (shape["s"], shape["r"])
    total = shape["n"] * p * q
    for start in (0, 5, max(total - 7, 0)):
        box = (8, 16, *taps)
        near = shared(Layout(box))
        request = CopyRequest(box, bf16, Place("global", access, 16, (0, start, 0, 0)), near)
        assert check(IM2COL, request), IM2COL.answer(request)
        found = IM2COL.answer(request)
        assert len(found) == taps[0] * taps[1]
        assert len({i.arguments["tensor_map"] for i in found}) == 1


def test_columns_of_random_convolutions():
    rng = np.random.default_rng(5)
    answers = 0
    for _ in range(25):
        r, s = (int(e) for e in rng.integers(1, 4, 2))
        stride, dilation, pad = (tuple(int(e) for e in rng.integers(low, 3, 2)) for low in (1, 1, 0))
        h, w = (int(e) for e in rng.integers(5, 12, 2))
        access, _ = convolution(int(rng.integers(1, 4)), h, w, 24, r, s, stride, dilation, pad)
        start = (int(rng.integers(0, 20)), int(rng.integers(0, 30)), 0, int(rng.integers(r)))
        box = (8, 12, s, 1)
        place = Place("global", access, 16, start)
        answers += check(IM2COL, CopyRequest(box, bf16, place, shared(Layout(box, (1, 8, 128, 0)))))
    assert answers == 25


def test_the_map_found_is_the_one_of_the_convolution():
    shape = CONVOLUTIONS[3]
    access, _ = convolution(**shape)
    box = (16, 24, 3, 3)
    found = IM2COL.answer(CopyRequest(box, bf16, Place("global", access), shared(Layout(box), 32)))
    wanted = Im2colMap.of_convolution((2, 11, 9, 16), (3, 3), (1, 1), (2, 3), (2, 3), 16, 24, 32)
    assert found[0].arguments["tensor_map"] == wanted
    assert [i.arguments["taps"] for i in found[:4]] == [(0, 0), (0, 2), (0, 4), (3, 0)]  # the last dimension fastest


def test_columns_with_swizzles_and_slabs():
    access, _ = convolution(2, 8, 9, 128, 3, 3, pad=(1, 1))
    tile = shared(Layout(((64, 2), 32, 1, 1), ((1, 64 * 32), 64, 0, 0)), 128)
    request = CopyRequest((128, 32, 1, 1), bf16, Place("global", access, 16, (0, 70, 2, 1)), tile)
    assert check(IM2COL, request), IM2COL.answer(request)
    assert [i.arguments["coordinates"][0] for i in IM2COL.answer(request)] == [0, 64]


def test_gradients_walk_taps_backwards():
    m, c, s = index("m", 3 * 9), index("c", 16), index("s", 3)
    access = Access.of((m // 9, m % 9 + 1 - s, c), axes=(c, m, s), shape=(3, 9, 16))
    request = CopyRequest((16, 20, 3), f16, Place("global", access), shared(Layout((16, 20, 3))))
    assert check(IM2COL, request), IM2COL.answer(request)


def test_what_columns_are_refused():
    def reason(access, box, start=(), dtype=bf16, span=0):
        near = shared(Layout(box), span)
        return IM2COL.answer(CopyRequest(box, dtype, Place("global", access, 16, start), near)).reason

    wide, _ = convolution(1, 20, 20, 16, 3, 3, stride=(9, 9))
    assert "9 apart are more than 8" in reason(wide, (16, 8, 1, 1))
    far, _ = convolution(1, 200, 200, 16, 1, 1, pad=(130, 130))
    assert "a corner of -130 does not fit the 8 bits" in reason(far, (16, 8, 1, 1))
    thin, _ = convolution(1, 20, 20, 12, 3, 3)
    assert "no multiple of 16" in reason(thin, (8, 8, 1, 1))
    m, c = index("m", 35), index("c", 16)
    columns_first = Access.of((0, m % 5, m // 5, c), axes=(c, m), shape=(1, 5, 7, 16))
    assert "along lines first" in reason(columns_first, (16, 8))
    layout = IM2COL.answer(CopyRequest((16, 8), bf16, Place("global", Layout((16, 8))), shared(Layout((16, 8))))).reason
    assert "through an access" in layout
    matrix = Access.of((m, c), axes=(c, m), shape=(35, 16))
    assert "3 to 5 dimensions" in reason(matrix, (16, 8))
