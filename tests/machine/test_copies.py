"""Copy atoms answer with instructions that do exactly the copy, or say truly why not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from copy_checks import Exchanged, check, done

from tilewright.algebra import Access, ComposedLayout, Layout, Swizzle, extent, index
from tilewright.errors import AccessError, LayoutError
from tilewright.ir.dtypes import bf16, f16, f32, f64, i4, i8, i32, u8
from tilewright.machine import CopyRefusal, CopyRequest, Place
from tilewright.targets.registry import MACHINES, machine

COPIES = {name: atom for row in MACHINES for name, atom in machine(row).copies.items()}
REGISTER = "register"


def memory(space, layout, alignment=1024, start=()):
    return Place(space, layout, alignment, start)


def registers(layout):
    return Place("register", layout)


def both_ways(atom, box, dtype, place, held):
    """The request with memory on the side where the atom has it."""
    other = registers(held)
    sides = (place, other) if atom.target == REGISTER else (other, place)
    return CopyRequest(box, dtype, *sides)


def place_of(atom, layout, **options):
    return memory(atom.source if atom.target == REGISTER else atom.target, layout, **options)


def answered(atom, *request):
    request = both_ways(atom, *request)
    assert check(atom, request), atom.answer(request)
    return request


def refused(atom, why, *request):
    answer = atom.answer(both_ways(atom, *request))
    assert isinstance(answer, CopyRefusal), answer
    assert why in answer.reason, answer
    assert str(answer).startswith(atom.name)


# -- vectors of CPUs ----------------------------------------------------------------------------------------------

WIDTH = {"avx2": 32, "avx512": 64, "neon": 16, "vector": 16}
VECTORS = [name for name in COPIES if name.split(".")[0] in WIDTH]


def lanes_of(name, dtype):
    return WIDTH[name.split(".")[0]] // dtype.numpy.itemsize


def dtypes_of(name):
    return (f32, f64) if name.startswith("avx2") and "masked" in name else (f32, f64, bf16, i8)


def whole_vectors(atom, dtype):
    """Requests that every vector copy but a broadcast can do."""
    lanes = lanes_of(atom.name, dtype)
    one, rows = Layout((lanes, 1), (1, 0)), Layout((lanes, 5), (1, lanes))
    yield (lanes,), dtype, place_of(atom, Layout((lanes,))), one
    yield (lanes, 5), dtype, place_of(atom, Layout((lanes, 5), (1, 3 * lanes))), rows  # padded columns
    yield (5, lanes), dtype, place_of(atom, Layout((5, lanes), (2 * lanes, 1))), Layout((lanes, 5), (5, 1))
    window = Layout((7, 3 * lanes), (4 * lanes, 1))
    yield (5, lanes), dtype, place_of(atom, window, start=(2, lanes)), Layout((lanes, 5), (5, 1))
    swizzled = ComposedLayout(Swizzle(1, lanes.bit_length() - 1, 2), 0, Layout((lanes, 5), (1, lanes)))
    yield (lanes, 5), dtype, place_of(atom, swizzled), rows


@pytest.mark.parametrize("name", [n for n in VECTORS if "broadcast" not in n])
def test_vectors_are_copied_whole(name):
    for dtype in dtypes_of(name):
        for request in whole_vectors(COPIES[name], dtype):
            made = answered(COPIES[name], *request)
            assert len(COPIES[name].answer(made)) == made.registers().shape[1]


@pytest.mark.parametrize("name", [n for n in VECTORS if "masked" in n])
def test_masks_copy_what_is_inside_only(name):
    atom = COPIES[name]
    for dtype in dtypes_of(name):
        lanes = lanes_of(name, dtype)
        rows = Layout((lanes, 4), (1, lanes))
        for length in (1, lanes - 1, lanes):
            answered(atom, (lanes, 4), dtype, place_of(atom, Layout((length, 3), (1, length + 1)), alignment=1), rows)
        i, j = index("i", lanes), index("j", 4)
        padded = Access.of((j, i - 1), axes=(i, j), shape=(4, lanes - 2))  # outside at both ends
        answered(atom, (lanes, 4), dtype, place_of(atom, padded, alignment=1), rows)


@pytest.mark.parametrize("name", ["avx2.broadcast", "avx512.broadcast"])
def test_broadcasts(name):
    atom = COPIES[name]
    for dtype in (f32, f64, bf16, i8):
        lanes = lanes_of(name, dtype)
        answered(atom, (6,), dtype, place_of(atom, Layout((6,), (5,)), alignment=1), Layout((lanes, 6), (0, 1)))
    refused(atom, "different elements", (lanes,), i8, place_of(atom, Layout((lanes,))), Layout((lanes, 1), (1, 0)))


def test_what_vectors_refuse():
    load, masked, stream = (COPIES[f"avx512.{n}"] for n in ("load", "load.masked", "store.stream"))
    one = Layout((16, 1), (1, 0))
    refused(load, "the stride must be 1", (16,), f32, place_of(load, Layout((16,), (2,))), one)
    refused(load, "3 elements of a vector are outside memory: a tail needs a mask", (16,), f32,
            place_of(load, Layout((13,))), one)  # fmt: skip
    refused(load, "a vector of 64 bytes has 8", (16,), f64, place_of(load, Layout((16,))), one)
    refused(stream, "aligned to 32 bytes, and 64", (16,), f32, place_of(stream, Layout((16,)), alignment=32), one)
    refused(stream, "offset 1 is at byte 4", (16,), f32, place_of(stream, Layout((20,)), start=(1,)), one)
    refused(COPIES["avx2.load.masked"], "of 4 or 8 bytes, not of 2", (16,), bf16, place_of(load, Layout((16,))), one)
    refused(load, "4 bits, not whole bytes", (16,), i4, place_of(load, Layout((16,))), one)
    refused(masked, "elements apart", (16,), f32, place_of(load, Layout((13,), (3,))), one)
    assert check(load, CopyRequest((16,), f32, memory("shared", Layout((16,))), registers(one)))  # one memory on x86
    backwards = CopyRequest((16,), f32, registers(one), memory("global", Layout((16,))))
    assert load.answer(backwards).reason == "it copies from global, not from register"


# -- tiles --------------------------------------------------------------------------------------------------------

TILES = [name for name in COPIES if name.startswith("amx")]


@pytest.mark.parametrize("name", TILES)
def test_tiles(name):
    atom = COPIES[name]
    for dtype in (bf16, i8, u8, f32):
        wide = 64 // dtype.numpy.itemsize
        tile = Layout((16, wide), (1, 16))
        answered(atom, (16, wide), dtype, place_of(atom, Layout((16, wide), (wide + 3, 1)), alignment=1), tile)
        answered(atom, (16, wide), dtype, place_of(atom, Layout((30, 3 * wide), (3 * wide, 1)), start=(7, 5)), tile)
        for rows, columns in ((5, wide), (16, wide - 4), (1, 1), (3, 2)):  # ragged: the rest is zero, or not written
            answered(atom, (16, wide), dtype, place_of(atom, Layout((rows, columns), (columns + 1, 1))), tile)
        answered(atom, (7, 3), dtype, place_of(atom, Layout((7, 3), (3, 1))), Layout((7, 3), (1, 7)))  # a small tile
        two = Layout((16, (wide, 2)), (1, (16, 16 * wide)))
        answered(atom, (16, 2 * wide), dtype, place_of(atom, Layout((16, 2 * wide), (2 * wide, 1))), two)
        # rows of pairs along k: [k/2][n][2] is how a tile of B wants memory
        pairs = Layout((16, (2, wide // 2)), (2, (1, 32)))
        packed = Layout(((2, 16), wide // 2), ((1, wide), 2))
        answered(atom, (32, wide // 2), dtype, place_of(atom, packed), pairs)


def test_what_tiles_refuse():
    load, store = COPIES["amx.tileload"], COPIES["amx.tilestore"]
    tile = Layout((16, 32), (1, 16))
    refused(load, "elements of a row are 16 apart", (16, 32), bf16, place_of(load, Layout((16, 32))), tile)
    refused(load, "17 rows", (17, 32), bf16, place_of(load, Layout((17, 32), (32, 1))), Layout((17, 32), (1, 17)))
    refused(load, "not whole tiles", (16, 40), bf16, place_of(load, Layout((16, 40), (40, 1))),
            Layout((16, 40), (1, 16)))  # fmt: skip
    refused(load, "not at one stride", (16, 32), bf16, place_of(load, Layout(((4, 4), 32), ((32, 200), 1))), tile)
    refused(load, "a tile has no mask", (16, 32), bf16, place_of(load, Layout((20, 32), (32, 1)), start=(-1, 0)), tile)
    refused(load, "to be zeroed", (16, 32), bf16, place_of(load, Layout((20, 32), (32, 1)), start=(20, 0)), tile)
    outside = both_ways(store, (16, 32), bf16, place_of(store, Layout((20, 32), (32, 1)), start=(20, 0)), tile)
    assert store.answer(outside) == ()


# -- a pointer a lane ---------------------------------------------------------------------------------------------

LANES = [name for name in COPIES if name.split(".")[0] in ("ld", "st", "global_load", "global_store", "ds_read",
                                                           "ds_write", "load", "store")]  # fmt: skip


def wave_and_width(atom):
    wave = 16 if atom.features == ("xe",) else 64 if atom.features == ("gfx942",) else 32
    return wave, atom.bytes_moved // wave


@pytest.mark.parametrize("name", LANES)
def test_lanes_with_addresses_of_their_own(name):
    atom = COPIES[name]
    wave, width = wave_and_width(atom)
    for dtype in (i8, bf16, f32) if width == 4 else (bf16, f32):
        run = width // dtype.numpy.itemsize
        one = Layout((wave, run), (run, 1))
        answered(atom, (wave * run,), dtype, place_of(atom, Layout((wave * run,)), alignment=16), one)
        # rows of a padded matrix, two runs a lane, two waves
        wide, high = 4 * run, wave
        tile = Layout(((4, high // 2), (run, 2)), ((run, wide), (1, wide * high // 2)))
        answered(atom, (wide, high), dtype, place_of(atom, Layout((wide, high), (1, wide + 16))), tile)
        # ragged: whole runs outside
        short = Layout((wide - run, high - 3), (1, wide + 16))
        answered(atom, (wide, high), dtype, place_of(atom, short), tile)
        swizzled = ComposedLayout(Swizzle(2, run.bit_length() - 1, 3), 0, Layout((wide, high)))
        answered(atom, (wide, high), dtype, place_of(atom, swizzled), tile)
        waves = Layout(((wave, 2), run), ((run, wave * run), 1))
        answered(atom, (2 * wave * run,), dtype, place_of(atom, Layout((2 * wave * run,))), waves)
    run = max(width // 8, 1)
    half = Layout((wave // 2, run), (run, 1))
    reason = "no multiple of an element's 8" if width == 4 else "not whole waves"
    refused(atom, reason, (half.size(),), f64, place_of(atom, Layout((half.size(),))), half)


def test_what_lanes_refuse():
    load = COPIES["ld.global.16"]
    held = Layout((32, 8), (8, 1))
    refused(load, "aligned to 8 bytes, and 16", (256,), bf16, place_of(load, Layout((256,)), alignment=8), held)
    refused(load, "which is not 16-byte aligned", (256,), bf16, place_of(load, Layout((300,)), start=(4,)), held)
    refused(load, "stride is not 1", (256,), bf16, place_of(load, Layout((256,), (2,))), held)
    refused(load, "cuts a run of 8", (256,), bf16, place_of(load, Layout((252,))), held)
    refused(load, "holds 4 values", (128,), bf16, place_of(load, Layout((128,))), Layout((32, 4), (4, 1)))


CP_ASYNC = [name for name in COPIES if name.startswith("cp.async")]


@pytest.mark.parametrize("name", CP_ASYNC)
def test_asynchronous_lane_copies(name):
    atom = COPIES[name]
    assert atom.asynchronous
    width = atom.bytes_moved // 32
    for dtype in (i8, bf16, f32):
        run = width // dtype.numpy.itemsize
        wide = 4 * run
        for tensor, start in (
            (Layout((wide, 9), (1, wide + 16)), (0, 0)),
            (Layout((3 * wide, 12), (1, 3 * wide)), (wide, 3)),
            (Layout((wide - 1, 7), (1, wide + 16)), (0, 0)),  # ragged rows: the end of a run is zero
            (Layout((wide, 9), (1, wide)), (0, 5)),
        ):
            for tile in (
                Layout((wide, 9), (1, wide)),
                Layout((wide, 9), (1, wide + 16)),
                ComposedLayout(Swizzle(2, run.bit_length() - 1, 3), 0, Layout((wide, 9))),
            ):
                request = CopyRequest((wide, 9), dtype, memory("global", tensor, start=start), memory("shared", tile))
                assert check(atom, request), atom.answer(request)


def test_what_asynchronous_lane_copies_refuse():
    atom = COPIES["cp.async.16"]

    def why(source, target, box=(32, 4), dtype=bf16, **options):
        return atom.answer(
            CopyRequest(box, dtype, memory("global", source, **options), memory("shared", target))
        ).reason

    tile = Layout((32, 4))
    assert "stride is not 1" in why(Layout((32, 4), (4, 1)), tile)
    assert "not neighbours in the target" in why(tile, Layout((32, 4), (5, 1)))
    assert "aligned to 4 bytes" in why(tile, tile, alignment=4)
    assert "not at the end of a run" in why(Layout((32, 4)), tile, start=(-1, 0))
    assert "no multiple of the 8" in why(Layout((3, 3)), Layout((3, 3)), (3, 3))
    assert "no mask for writing" in why(tile, Layout((32, 3)))
    wide = CopyRequest((4,), f64, memory("global", Layout((4,))), memory("shared", Layout((4,))))
    assert "no multiple of an element's 8" in COPIES["cp.async.4"].answer(wide).reason


# -- matrices -----------------------------------------------------------------------------------------------------

MATRICES = [name for name in COPIES if "matrix" in name]


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_come_as_fragments(name):
    """Fragments of A (m16k16), rows or columns of which lie in shared memory, padded, swizzled, by several warps."""
    atom = COPIES[name]
    a = Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))
    for dtype in (f16, bf16):
        for pitch in (16, 24, 72):
            tile = Layout((16, 16), (1, pitch) if "trans" in name else (pitch, 1))
            answered(atom, (16, 16), dtype, place_of(atom, tile), a)
        rows = Layout((64, 16), (64, 1))
        if "trans" in name:
            rows = Layout((64, 16), (1, 64))
        four_warps = Layout(((4, 8, 4), (2, 2, 2)), ((128, 1, 16), (64, 8, 512)))
        answered(atom, (64, 16), dtype, place_of(atom, ComposedLayout(Swizzle(3, 3, 3), 0, rows)), four_warps)


def test_what_matrices_refuse():
    load = COPIES["ldmatrix.x4"]
    a = Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))
    refused(load, "not rows of 8", (16, 16), f16, place_of(load, Layout((16, 16))), a)
    refused(COPIES["ldmatrix.x4.trans"], "not rows of 8", (16, 16), f16, place_of(load, Layout((16, 16), (16, 1))), a)
    refused(load, "elements of 2 bytes, not of 4", (16, 16), f32, place_of(load, Layout((16, 16), (16, 1))), a)
    refused(load, "not 16-byte aligned", (16, 16), f16, place_of(load, Layout((16, 16), (20, 1))), a)
    refused(load, "has no mask", (16, 16), f16, place_of(load, Layout((13, 16), (16, 1))), a)
    b = Layout(((4, 8), (2, 2)), ((2, 16), (1, 8)))
    refused(load, "4 values, no multiple of the 8", (16, 8), f16, place_of(load, Layout((16, 8), (1, 16))), b)


# -- every atom ---------------------------------------------------------------------------------------------------


def plain_request(atom):
    """A request without edges that the atom can do."""
    name = atom.name
    if name in VECTORS:
        lanes = lanes_of(name, f32)
        if "broadcast" in name:
            return both_ways(atom, (2,), f32, place_of(atom, Layout((2,))), Layout((lanes, 1), (0, 0)))
        return both_ways(atom, (lanes,), f32, place_of(atom, Layout((lanes,))), Layout((lanes, 1), (1, 0)))
    if name in TILES:
        return both_ways(atom, (16, 16), f32, place_of(atom, Layout((16, 16), (16, 1))), Layout((16, 16), (1, 16)))
    if name in LANES:
        wave, width = wave_and_width(atom)
        run = width // 2
        return both_ways(atom, (wave * run,), f16, place_of(atom, Layout((wave * run,))), Layout((wave, run), (run, 1)))
    if name in MATRICES:
        a = Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))
        tile = Layout((16, 16), (1, 16) if "trans" in name else (16, 1))
        return both_ways(atom, (16, 16), f16, place_of(atom, tile), a)
    if name == "tma.load.im2col":
        m, c = index("m", 2 * 5 * 7), index("c", 16)
        access = Access.of((m // 35, m // 7 % 5, m % 7, c), axes=(c, m), shape=(2, 5, 7, 16))
        return CopyRequest((16, 64), f16, memory("global", access), memory("shared", Layout((16, 64))))
    far, near = memory("global", Layout((64, 16), (1, 80))), memory("shared", Layout((64, 16)))
    return CopyRequest((64, 16), f16, *((far, near) if atom.source == "global" else (near, far)))


@pytest.mark.sampled(50)
@pytest.mark.parametrize("name", COPIES)
def test_one_exchanged_entry_is_seen(name):
    """Instructions run through the atom's layout: with two of its entries exchanged, they do another copy."""
    atom = COPIES[name]
    request = plain_request(atom)
    assert check(atom, request), atom.answer(request)
    instructions = atom.answer(request)
    layout = atom.layout(request.size, instructions[0].arguments)
    shape = Exchanged(layout, (0,) * len(layout), (0,) * len(layout)).shape
    last = tuple(e - 1 for e in shape)
    for second in {last, tuple(min(1, e - 1) for e in shape), (1,) + (0,) * (len(shape) - 1)}:
        wrong = replace(atom, layout=lambda size, a, s=second: Exchanged(atom.layout(size, a), (0,) * len(s), s))
        for seed in range(3):
            found, wanted = done(request, [replace(i, atom=wrong) for i in instructions], seed)
            if not np.array_equal(found, wanted):
                break
        else:
            raise AssertionError(f"{name}: entries {(0,) * len(second)} and {second} can be exchanged unseen")


def random_layout(rng, box, aligned, usual):
    """A layout over a box: its dimensions mostly in the usual order, perhaps padded, perhaps swizzled."""
    stride, step = [0] * len(box), 1
    for d in rng.permutation(len(box)) if rng.random() < 0.4 else usual:
        stride[d] = step
        step *= box[d]
        if rng.random() < 0.4:
            step += 8 if aligned else 1
    layout = Layout(tuple(box), tuple(stride))
    if rng.random() < 0.2:
        return ComposedLayout(Swizzle(int(rng.integers(1, 4)), int(rng.integers(2, 5)), 3), 0, layout)
    return layout


def random_registers(rng, atom, dtype):
    """A box and registers of the form that the atom has; what lies in memory may still not suit it."""
    count = int(rng.integers(1, 4))
    if atom.name in MATRICES:
        return (16, 16), Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))
    if atom.name in TILES:
        rows, columns = int(rng.choice([16, 16, 5])), 64 // dtype.numpy.itemsize
        return (rows, columns), Layout((rows, columns), (1, rows))
    if atom.name in LANES:
        wave, width = wave_and_width(atom)
        run = max(width // dtype.numpy.itemsize, 1)
        wide = run * int(rng.choice([1, 4]))
        return (wide, wave * run * count // wide), Layout((wave, (run, count)), (run, (1, run * wave)))
    lanes = lanes_of(atom.name, dtype)
    if "broadcast" in atom.name:
        return (count,), Layout((lanes, count), (0, 1))
    if rng.random() < 0.5:
        return (lanes, count), Layout((lanes, count))
    return (count, lanes), Layout((lanes, count), (count, 1))


def random_request(rng, atom, dtype):
    """Boxes in padded, swizzled, ragged memory that is mostly, not always, as the atom needs it."""
    box, held = (int(rng.choice([16, 32, 64])), *(int(e) for e in rng.choice([1, 3, 4], int(rng.integers(0, 4))))), None
    if REGISTER in (atom.source, atom.target):
        box, held = random_registers(rng, atom, dtype)

    def in_memory(space):
        extents, start = [max(1, e + int(rng.choice([0, 0, 0, 0, -1, 3]))) for e in box], ()
        if rng.random() < 0.3:
            start = tuple(int(rng.choice([0, 0, 1, -1])) for _ in box)
        if rng.random() < 0.6 or (space == "shared" and held is None):
            extents, start = box, ()
        rows_first = atom.name in TILES or (atom.name in MATRICES and "trans" not in atom.name)
        usual = range(len(box))[:: -1 if rows_first else 1]
        layout = random_layout(rng, extents, rng.random() < 0.9, usual)
        return Place(space, layout, int(rng.choice([1, 1024, 1024, 1024])), start)

    source = Place(REGISTER, held) if atom.source == REGISTER else in_memory(atom.source)
    target = Place(REGISTER, held) if atom.target == REGISTER else in_memory(atom.target)
    return CopyRequest(box, dtype, source, target)


@pytest.mark.parametrize("name", [name for name in COPIES if name != "tma.load.im2col"])
def test_random_requests_are_refused_or_done_exactly(name):
    atom = COPIES[name]
    rng = np.random.default_rng(len(name))
    answers = 0
    for turn in range(30):
        dtype = (f16, bf16)[turn % 2] if name in MATRICES else (i8, bf16, f32)[turn % 3]
        answers += check(atom, random_request(rng, atom, dtype), turn)
    assert answers >= 2


@pytest.mark.parametrize("name", COPIES)
def test_every_row_says_where_it_goes_and_how(name):
    atom = COPIES[name]
    assert atom.name == name
    assert {atom.source, atom.target} <= {"global", "shared", "register"}
    assert atom.hint in ("keep", "stream", "bypass")
    assert atom.asynchronous == (atom.completes is not None)
    assert atom.asynchronous == (name.startswith(("tma", "cp.async")))


# -- requests -----------------------------------------------------------------------------------------------------


def test_requests_that_make_no_sense():
    line = Place("global", Layout((8,)))
    with pytest.raises(LayoutError, match="there is no space 'tile'"):
        Place("tile", Layout(8))
    with pytest.raises(LayoutError, match="registers to registers"):
        CopyRequest((8,), f32, registers(Layout((8, 1))), registers(Layout((8, 1))))
    with pytest.raises(LayoutError, match="not the 2 dimensions"):
        CopyRequest((8, 1), f32, line, line)
    with pytest.raises(LayoutError, match="does not have"):
        CopyRequest((8,), f32, line, registers(Layout((8, 2))))
    with pytest.raises(LayoutError, match="do not hold every element"):
        CopyRequest((8,), f32, registers(Layout((4, 1))), line)
    with pytest.raises(LayoutError, match="at one place"):
        CopyRequest((8,), f32, line, Place("shared", Layout((8,), (0,))))


def test_sizes_must_be_numbers():
    m = index("m", extent("N"))
    access = Access.of((m,), axes=(m,), shape=(extent("N"),))
    with pytest.raises(AccessError, match="axis m runs to N - 1"):
        CopyRequest((8,), f32, Place("global", access), Place("shared", Layout((8,)))).run(np.zeros(8), np.zeros(8))


def test_elements_outside_an_iteration_are_read_as_zero():
    i = index("i", 6)
    source = Place("global", Access.of((i + 1,), axes=(i,), shape=(5,)), start=(2,))
    request = CopyRequest((8,), i32, source, Place("shared", Layout((8,))))
    target = np.full(8, 9, np.int32)
    request.run(np.arange(5, dtype=np.int32), target)
    assert target.tolist() == [3, 4, 0, 0, 0, 0, 0, 0]
