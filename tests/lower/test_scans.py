"""Scans, the places of extremes and the largest few: by the executor, as machine code, on the interpreters."""

import numpy as np
import pytest
from tile_checks import no_atoms_today, own_cache, three_ways

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import DimensionMismatch

pytestmark = no_atoms_today
__all__ = ["own_cache"]

M, N, K, B = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.B
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
NUMPY = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}
TYPES = ["f64", "f32", "f16", "bf16", "i64", "i32", "i8", "u8"]


def mem(*dims, dtype=tkl.f32):
    return tkl.Memory[(*dims, GLOBAL, dtype)]


def small(shape, kind, seed=0):
    """Numbers whose running products stay small: -1, 1 and 2 (1 and 2 without a sign), few of them 2."""
    rng = np.random.default_rng(seed)
    values = rng.choice([1, 1, 1, 1, 1, 2] if kind.kind == "u" else [-1, -1, 1, 1, 1, 1, 1, 2], shape)
    return values.astype(kind)


def on_hopper(kernel, symbols, sizes, *arrays):
    """The outputs by the block program for a GPU, on the interpreter."""
    block = tilewright.compile(kernel, symbols, target="gpu:hopper").text("block", sizes)
    return tilewright.compile_text(block, "interpreter")(*arrays)


# -- scans ----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", NUMPY)
def test_scans_of_every_function_and_type(name, dtype):
    """There was cumsum alone."""
    kind = tkl.__dict__[dtype]

    @tkw.wave()
    def kernel(x: mem(M, N, dtype=kind), across: mem(M, N, dtype=kind), down: mem(M, N, dtype=kind)):
        tile = tkw.read(x)
        tkw.write(getattr(tkw, name)(tile, dim=N), across)
        tkw.write(getattr(tkw, name)(tile, dim=M), down)

    for shape in ((1, 1), (5, 7), (3, 37), (11, 260)):
        x = small(shape, kind.numpy)
        if name != "cumprod":
            x = np.random.default_rng(1).integers(0, 2 if dtype == "bf16" else 5, shape).astype(kind.numpy)
        across, down = (a.astype(np.float64) for a in three_ways(kernel, x)[:2])
        wide = x.astype(kind.accumulator.numpy)
        for axis, found in ((1, across), (0, down)):
            wanted = NUMPY[name].accumulate(wide, axis=axis, dtype=wide.dtype)
            with np.errstate(over="ignore"):  # long products of f16
                np.testing.assert_array_equal(found, wanted.astype(kind.numpy).astype(np.float64))
    assert f"{name} %" in str(tilewright.compile(kernel, target="executor").program)


@pytest.mark.parametrize("name", NUMPY)
def test_scans_of_loops_start_where_the_tile_before_ended(name):
    reduction = {"cumsum": tkw.sum, "cumprod": tkw.prod, "cummax": tkw.max, "cummin": tkw.min}[name]
    first = {"cumsum": 0.0, "cumprod": 1.0, "cummax": -99.0, "cummin": 99.0}[name]

    @tkw.wave([tkw.TilingConstraint(N, B)])
    def kernel(x: mem(M, N), y: mem(M, N)):
        @tkw.iterate(N, init_args=[tkl.Register[M, tkl.f32](first)])
        def walk(before):
            tile = tkw.read(x)
            tkw.write(getattr(tkw, name)(tile, before, dim=N), y)
            return reduction(tile, before, dim=N)

    x = small((4, 29), np.dtype(np.float32)) * 3 if name.startswith("cumm") else small((4, 29), np.dtype(np.float32))
    y = three_ways(kernel, x, symbols={B: 8})[0]
    np.testing.assert_array_equal(y, NUMPY[name].accumulate(x, axis=1))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", [(3, 37), (2, 4000), (300, 3)])
@pytest.mark.parametrize("name", NUMPY)
def test_scans_on_lanes_of_a_gpu(name, shape):
    """Rows that lanes and waves share, rows that one lane walks, and rows that end within a vector."""

    @tkw.wave()
    def kernel(x: mem(M, N), y: mem(M, N)):
        tkw.write(getattr(tkw, name)(tkw.read(x), dim=N), y)

    x = small(shape, np.dtype(np.float32))
    x[:, 10:] = np.where(np.abs(x[:, 10:]) == 2, 1, x[:, 10:])
    if name.startswith("cumm"):
        x = np.random.default_rng(2).integers(-99, 99, shape).astype(np.float32)
        x[1, 2] = np.nan
    y = np.full(shape, 7, np.float32)
    on_hopper(kernel, {}, {"M": shape[0], "N": shape[1]}, x, y)
    np.testing.assert_array_equal(y, NUMPY[name].accumulate(x, axis=1))


def test_scans_pass_nan_on():
    @tkw.wave()
    def kernel(x: mem(M, N), y: mem(M, N), z: mem(M, N)):
        tkw.write(tkw.cummax(tkw.read(x), dim=N), y)
        tkw.write(tkw.cumprod(tkw.read(x), dim=N), z)

    x = np.array([[1, np.nan, 3, 2], [np.inf, 0, 2, 1], [-np.inf, 2, -np.inf, 4]], np.float32)
    y, z = three_ways(kernel, x)[:2]
    np.testing.assert_array_equal(y, np.maximum.accumulate(x, 1))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(z, np.multiply.accumulate(x, 1))


# -- places of extremes ---------------------------------------------------------------------------------------------


def extreme_rows(kind):
    """Rows with ties, infinities, NaNs in several places, zeros of both signs, nothing but infinities."""
    rows = np.random.default_rng(3).integers(-4, 5, (9, 21)).astype(np.float64)
    if kind.is_float:
        rows[1, 5] = np.nan
        rows[2, [7, 3]] = np.nan
        rows[3, 4], rows[3, 9] = np.inf, np.nan
        rows[4], rows[5] = -np.inf, np.inf
        rows[6, 0] = np.nan
        rows[7, 0], rows[7, 1:], rows[7, -1] = -0.0, 0.0, -0.0
    return rows.astype(kind.numpy) if kind.numpy.kind != "u" else np.abs(rows).astype(kind.numpy)


def place_of_extreme(x, sign, axis):
    """PyTorch's argmax (sign 1) and argmin (-1): a NaN is the extreme, and the first of several counts."""
    wide = sign * x.astype(np.float64)
    return np.where(np.isnan(wide), np.inf, np.where(wide == np.inf, np.finfo(np.float64).max, wide)).argmax(axis)


@pytest.mark.parametrize("dtype", TYPES)
def test_places_of_extremes_are_those_of_pytorch(dtype):
    """There were none, and topk, the way round them, took NaN for the smallest."""
    kind = tkl.__dict__[dtype]

    @tkw.wave()
    def kernel(
        x: mem(M, N, dtype=kind), high: mem(M, dtype=tkl.i32), low: mem(M, dtype=tkl.i32), down: mem(N, dtype=tkl.i32)
    ):
        tile = tkw.read(x)
        tkw.write(tkw.argmax(tile, dim=N), high)
        tkw.write(tkw.argmin(tile), low)
        tkw.write(tkw.argmax(tile, dim=M), down)

    x = extreme_rows(kind)
    found = three_ways(kernel, x)[:3]
    for array, wanted in zip(
        found, (place_of_extreme(x, 1, 1), place_of_extreme(x, -1, 1), place_of_extreme(x, 1, 0)), strict=True
    ):
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("shape", [(9, 21), (3, 3001)])
def test_places_of_extremes_on_lanes_of_a_gpu(shape):
    @tkw.wave()
    def kernel(x: mem(M, N), high: mem(M, dtype=tkl.i32), low: mem(M, dtype=tkl.i32)):
        tkw.write(tkw.argmax(tkw.read(x), dim=N), high)
        tkw.write(tkw.argmin(tkw.read(x), dim=N), low)

    x = extreme_rows(tkl.f32) if shape[1] == 21 else np.random.default_rng(4).integers(0, 99, shape).astype(np.float32)
    high, low = np.full((2, shape[0]), -7, np.int32)
    on_hopper(kernel, {}, {"M": shape[0], "N": shape[1]}, x, high, low)
    np.testing.assert_array_equal(high, place_of_extreme(x, 1, 1))
    np.testing.assert_array_equal(low, place_of_extreme(x, -1, 1))


def test_a_place_in_a_loop_counts_from_the_dimension_s_start():
    @tkw.wave([tkw.TilingConstraint(N, B)])
    def kernel(x: mem(M, N), y: mem(M, dtype=tkl.i32)):
        @tkw.iterate(N, init_args=[tkl.Register[M, tkl.i32](0)])
        def last(before):
            return tkw.argmax(tkw.read(x), dim=N) + before * 0

        tkw.write(last, y)

    x = np.random.default_rng(5).permutation(24).reshape(2, 12).astype(np.float32)
    y = three_ways(kernel, x, symbols={B: 4})[0]
    assert y.tolist() == (8 + x[:, 8:].argmax(1)).tolist()


def test_places_of_what_a_tile_has_not_are_refused_at_the_author_s_line():
    @tkw.wave()
    def kernel(x: mem(M, N), y: mem(M, dtype=tkl.i32)):
        tkw.write(tkw.argmax(tkw.read(x), dim=K), y)

    with pytest.raises(DimensionMismatch, match=r"argmax over K: the tile has the dimensions \[M, N\]") as caught:
        tilewright.compile(kernel)
    assert "tkw.argmax(tkw.read(x), dim=K)" in str(caught.value)


# -- the largest few ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "i64", "u8"])
def test_the_largest_few_took_nan_for_the_smallest(dtype):
    """Now the first of them is what argmax finds; before, NaN came last, and i64 was compared as f64."""
    kind = tkl.__dict__[dtype]

    @tkw.wave()
    def kernel(
        x: mem(M, N, dtype=kind), y: mem(M, K, dtype=kind), z: mem(M, K, dtype=tkl.i32), first: mem(M, dtype=tkl.i32)
    ):
        tile = tkw.read(x)
        values, places = tkw.topk(tile, K, dim=N)
        tkw.write(values, y)
        tkw.write(places, z)
        tkw.write(tkw.argmax(tile, dim=N), first)

    x = extreme_rows(kind)
    if dtype == "i64":
        x[0, :4] = 2**62 + np.array([1, 3, 2, 0])
    values, places, first = three_ways(kernel, x, symbols={K: 5})[:3]
    assert places[:, 0].tolist() == first.tolist()
    picked = np.take_along_axis(x, places.astype(np.int64), 1)
    np.testing.assert_array_equal(picked.astype(np.float64), values.astype(np.float64))
    if kind.is_float:
        assert places[2].tolist()[:2] == [3, 7]  # both NaNs, the first one first
        assert places[3].tolist()[:2] == [9, 4]  # NaN before inf
        assert places[4].tolist() == places[7].tolist() == [0, 1, 2, 3, 4]
    if dtype == "i64":
        assert places[0, :4].tolist() == [1, 2, 0, 3]
