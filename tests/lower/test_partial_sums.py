"""Long sums and scans: by blocks, exactly on small integers, and as close as documented on real data."""

import numpy as np
import pytest
from tile_checks import no_atoms_today, own_cache, three_ways

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.lower.partial_sums import BLOCK, RUNNING_BLOCK

pytestmark = no_atoms_today
__all__ = ["own_cache"]

M, N = tkl.sym.M, tkl.sym.N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
UNIT = 2.0**-24
SUM_BOUND, SCAN_BOUND = (BLOCK + 16) * UNIT, (RUNNING_BLOCK + 8) * UNIT
"""What docs/language/reductions.md says, of the sum of all magnitudes."""
USUAL = 5e-7
"""What random data of one sign are within; with one accumulator for everything they were up to 3e-3 off."""


def mem(*dims, dtype=tkl.f32):
    return tkl.Memory[(*dims, GLOBAL, dtype)]


@tkw.wave()
def total(x: mem(N), y: mem()):
    tkw.write(tkw.sum(tkw.read(x), dim=N), y)


@tkw.wave()
def squares(x: mem(N), y: mem()):
    tile = tkw.read(x)
    tkw.write(tkw.sum(tile * tile, dim=N), y)


@tkw.wave()
def rows(x: mem(M, N), y: mem(M)):
    tkw.write(tkw.sum(tkw.read(x), dim=N), y)


@tkw.wave()
def columns(x: mem(M, N), y: mem(N)):
    tkw.write(tkw.sum(tkw.read(x), dim=M), y)


@tkw.wave()
def column_squares(x: mem(M, N), y: mem(N)):
    tile = tkw.read(x)
    tkw.write(tkw.sum(tile * tile, dim=M), y)


@tkw.wave()
def across(x: mem(M, N), y: mem(M, N)):
    tkw.write(tkw.cumsum(tkw.read(x), dim=N), y)


@tkw.wave()
def down(x: mem(M, N), y: mem(M, N)):
    tkw.write(tkw.cumsum(tkw.read(x), dim=M), y)


LONG = {
    "total": (total, (1 << 26,), lambda x: x.sum(), SUM_BOUND),
    "squares": (squares, (1 << 24,), lambda x: (x * x).sum(), SUM_BOUND + 2 * UNIT),
    "rows": (rows, (3, (1 << 22) + 5), lambda x: x.sum(1), SUM_BOUND),
    "columns": (columns, (1 << 20, 5), lambda x: x.sum(0), SUM_BOUND),
    "column squares": (column_squares, (1 << 18, 3), lambda x: (x * x).sum(0), SUM_BOUND + 2 * UNIT),
    "across": (across, (2, 131_073), lambda x: x.cumsum(1), SCAN_BOUND),
    "down": (down, (131_072, 7), lambda x: x.cumsum(0), SCAN_BOUND),
}


def data(shape, signs, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random(shape, np.float32) if signs == "one sign" else rng.standard_normal(shape, np.float32)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("signs", ["one sign", "both signs"])
@pytest.mark.parametrize("name", LONG)
def test_long_sums_lost_up_to_two_hundred_times_what_their_elements_lose(name, signs):
    kernel, shape, exactly, bound = LONG[name]
    x = data(shape, signs)
    found = np.asarray(tilewright.compile(kernel, target="cpu")(x), np.float64)
    away = np.abs(found - exactly(x.astype(np.float64))) / exactly(np.abs(x.astype(np.float64)))
    assert away.max() <= bound
    assert away.max() <= USUAL


def test_what_is_small_beside_one_element_is_not_lost():
    """One accumulator would stay at 1: each of the others is less than half a unit of it."""
    x = np.full(1 << 22, 2.0**-25, np.float32)
    x[0] = 1
    exact = 1 + (x.size - 1) * 2.0**-25
    assert abs(float(tilewright.compile(total, target="cpu")(x)) / exact - 1) <= SUM_BOUND
    running = np.asarray(tilewright.compile(across, target="cpu")(x[None]), np.float64)
    assert np.abs(running[0] / x.astype(np.float64).cumsum() - 1).max() <= SCAN_BOUND


LENGTHS = [
    *(RUNNING_BLOCK - 1, RUNNING_BLOCK, RUNNING_BLOCK + 1, BLOCK + 1, 3 * BLOCK),
    *(4 * BLOCK + 3, 16 * BLOCK - 1, 16 * BLOCK, 16 * BLOCK + 5, 33 * BLOCK + 7),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i32"])
@pytest.mark.parametrize("length", LENGTHS)
def test_blocks_take_every_element_once(length, dtype):
    """Small integers, whole and broken blocks, along rows and down columns."""
    kind = tkl.__dict__[dtype]

    @tkw.wave()
    def kernel(x: mem(M, N, dtype=kind), y: mem(M, dtype=kind), z: mem(M, dtype=kind), running: mem(M, N, dtype=kind)):
        tile = tkw.read(x)
        tkw.write(tkw.sum(tile, dim=N), y)
        tkw.write(tkw.sum(tile + tile, dim=N), z)
        tkw.write(tkw.cumsum(tile, dim=N), running)

    rng = np.random.default_rng(length)
    x = rng.choice([-1, 0, 1, 2], (2, length), p=[0.35, 0.45, 0.15, 0.05]).astype(kind.numpy)
    y, z, running = (a.astype(np.float64) for a in three_ways(kernel, x)[:3])
    wide = x.astype(np.float64)
    for found, wanted in ((y, wide.sum(1)), (z, 2 * wide.sum(1)), (running, wide.cumsum(1))):
        np.testing.assert_array_equal(found, wanted.astype(kind.numpy).astype(np.float64))

    @tkw.wave()
    def columns_of(x: mem(M, N, dtype=kind), y: mem(N, dtype=kind), running: mem(M, N, dtype=kind)):
        tile = tkw.read(x)
        tkw.write(tkw.sum(tile, dim=M), y)
        tkw.write(tkw.cumsum(tile, dim=M), running)

    y, running = (a.astype(np.float64) for a in three_ways(columns_of, np.ascontiguousarray(x.T))[:2])
    for found, wanted in ((y, wide.sum(1)), (running, wide.cumsum(1).T)):
        np.testing.assert_array_equal(found, wanted.astype(kind.numpy).astype(np.float64))


@pytest.mark.parametrize("name", ["rows", "columns", "across", "down"])
def test_blocks_of_sizes_that_a_call_tells(name):
    run = tilewright.compile(LONG[name][0], target="cpu", dynamic=["M", "N"])
    for shape in ((1, 1), (3, 5), (700, 3), (2, 700), (5, 16 * BLOCK + 9), (2 * BLOCK + 1, 37)):
        x = np.random.default_rng(1).integers(-3, 4, shape).astype(np.float32)
        np.testing.assert_array_equal(run(x), LONG[name][2](x))


SCANNED = """
block scanned(%x: in global f32 (ROWS, LENGTH), %y: out global f32 (ROWS, LENGTH), %z: out global f32 (ROWS, LENGTH))
  HEADER
{
  tasks t in 0..1 {
    %held = alloc shared f32 (ROWS, LENGTH)
    copy %x -> %held
    BARRIER
    scan %held -> %held along ALONG with HOW
    BARRIER
    copy %held -> %y
    scan %x -> %z along ALONG with HOW exclusive
  }
}
"""
HOW = {"sum": (np.add, 0), "max": (np.maximum, -np.inf), "min": (np.minimum, np.inf), "prod": (np.multiply, 1)}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("target", ["cpu", "gpu:hopper"])
@pytest.mark.parametrize(("shape", "along"), [((3, 5), 1), ((2, 700), 1), ((3, 64), 1), ((700, 3), 0), ((300, 21), 0)])
def test_scans_in_place_and_exclusive_ones(shape, along, target, how):
    """Vectors along rows and across them, rows that one lane walks; as loops on their interpreter, natively on CPUs."""
    text = SCANNED.replace("HOW", how).replace("ALONG", str(along))
    text = text.replace("ROWS", str(shape[0])).replace("LENGTH", str(shape[1]))
    text = text.replace("BARRIER", "" if target == "cpu" else "barrier")
    text = text.replace("  HEADER\n", "" if target == "cpu" else "  machine hopper\n  waves 2\n")
    x = np.random.default_rng(6).choice([-1, 1, 1, 1, 2], shape, p=[0.3, 0.3, 0.3, 0.05, 0.05]).astype(np.float32)
    function, first = HOW[how]
    inclusive = function.accumulate(x, axis=along)
    exclusive = np.roll(inclusive, 1, axis=along)
    exclusive[(0,) if along == 0 else (slice(None), 0)] = first
    made = tilewright.compile_text(text, target)
    loop = made.text("loop")
    runs = [tilewright.compile_text(loop, "interpreter"), *([made] if target == "cpu" else [])]
    for run in runs:
        flat = run is runs[0] and f"%x: in global f32 ({x.size})" in loop
        found = run(x.reshape(-1) if flat else x)
        for array, wanted in zip(found, (inclusive, exclusive), strict=True):
            np.testing.assert_array_equal(np.asarray(array).reshape(shape), wanted)


def test_infinite_and_undefined_sums_stay_so():
    x = np.zeros((4, 33 * BLOCK), np.float32)
    x[0, 700], x[1, [5, 9000 % x.shape[1]]], x[2, 3] = np.inf, (np.inf, -np.inf), np.nan
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(tilewright.compile(rows, target="cpu")(x), x.sum(1))
        np.testing.assert_array_equal(tilewright.compile(across, target="cpu")(x), x.cumsum(1))
