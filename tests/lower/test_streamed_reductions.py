"""Reductions over a dimension that is not contiguous: vectors of the contiguous one are combined, a part at a time."""

from __future__ import annotations

import re

import numpy as np
import pytest
from loop_level import on_the_loop_level
from tile_checks import own_cache  # noqa: F401

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

N, H, W, C = tkl.sym.N, tkl.sym.H, tkl.sym.W, tkl.sym.C
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
f32 = tkl.f32
ROWS = ("x86.avx2", "x86.avx512", "x86.amx", "aarch64.neon")


def memory(*dims, dtype=f32):
    return tkl.Memory[(*dims, GLOBAL, dtype)]


def cast_sum(dtype):
    @tkw.wave()
    def kernel(x: memory(N, W, C, dtype=dtype), y: memory(N, C)):
        tkw.write(tkw.sum(tkw.cast(tkw.read(x), f32), dim=W), y)

    return kernel


def largest_and_least(dtype):
    """A maximum and a minimum of one type, which share a loop."""

    @tkw.wave()
    def kernel(x: memory(N, W, C, dtype=dtype), y: memory(N, C)):
        tile = tkw.read(x)
        highest, lowest = tkw.max(tile, dim=W), tkw.min(tile, dim=W)
        tkw.write(tkw.cast(highest, f32) - tkw.cast(lowest, f32) * 16, y)

    return kernel


def statistics(dtype):
    """A sum, a sum of squares, and what goes on from them over the same elements."""

    @tkw.wave()
    def kernel(x: memory(N, W, C, dtype=dtype), y: memory(N, C), z: memory(N, W, C)):
        tile = tkw.cast(tkw.read(x), f32)
        total, squares = tkw.sum(tile, dim=W), tkw.sum(tile * tile, dim=W)
        tkw.write(total + squares, y)
        tkw.write(tile * 2.0 - total, z)

    return kernel


def dot(dtype):
    @tkw.wave()
    def kernel(x: memory(N, W, C, dtype=dtype), w: memory(W, C, dtype=dtype), y: memory(N, C)):
        tkw.write(tkw.sum(tkw.cast(tkw.read(x), f32) * tkw.cast(tkw.read(w), f32), dim=W), y)

    return kernel


def place_of_largest(dtype):
    @tkw.wave()
    def kernel(x: memory(N, W, C, dtype=dtype), y: memory(N, C)):
        tile = tkw.cast(tkw.read(x), f32)
        place = tkw.select(tile == tkw.max(tile, dim=W), tkw.cast(tkw.self_index(W, tkl.i32), f32), 1e6)
        tkw.write(tkw.min(place, dim=W), y)

    return kernel


def over_two_dims(dtype):
    @tkw.wave()
    def kernel(x: memory(N, H, W, C, dtype=dtype), y: memory(N, C)):
        tkw.write(tkw.sum(tkw.cast(tkw.read(x), f32), dim=[H, W]), y)

    return kernel


def shifted_maximum(dtype):
    """As in a softmax: a maximum over a dimension, and a sum over it that needs the maximum."""

    @tkw.wave()
    def kernel(x: memory(N, W, C, dtype=dtype), y: memory(N, C), z: memory(N, W, C)):
        tile = tkw.cast(tkw.read(x), f32)
        less = tile - tkw.max(tile, dim=W)
        kept = tkw.select(less < -3.0, 0.0, tkw.exp2(less))
        tkw.write(tkw.sum(kept, dim=W), y)
        tkw.write(kept, z)

    return kernel


KERNELS = [cast_sum, largest_and_least, statistics, dot, place_of_largest, over_two_dims, shifted_maximum]
SHAPES = [(2, 2100, 50), (1, 1501, 33), (3, 700, 130)]


def arguments(kernel, dtype, shape, seed=0):
    """Small integers, and results that begin as NaN."""
    rng, (n, w, c) = np.random.default_rng(seed), shape
    x = rng.integers(-3, 4, shape).astype(dtype.numpy)
    if kernel is over_two_dims:
        x = x[:, : w - w % 7].reshape(n, w // 7, 7, c)
    inputs = [x, rng.integers(-2, 3, (w, c)).astype(dtype.numpy)] if kernel is dot else [x]
    results = [np.full((n, c), np.nan, np.float32)]
    if kernel in (statistics, shifted_maximum):
        results.append(np.full(shape, np.nan, np.float32))
    return inputs, results


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", [tkl.bf16, tkl.f16, tkl.i8, f32], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_reductions_over_a_strided_dimension(kernel, shape, dtype):
    inputs, results = arguments(kernel, dtype, shape)
    _, wanted = arguments(kernel, dtype, shape)
    tilewright.compile(kernel(dtype), strict=True)(*inputs, *results)
    tilewright.compile(kernel(dtype), target="executor")(*inputs, *wanted)
    for mine, theirs in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_machines_of_others_in_the_interpreter(kernel, row):
    shape, dtype = (2, 1000, 19), tkl.bf16
    inputs, results = arguments(kernel, dtype, shape)
    _, wanted = arguments(kernel, dtype, shape)
    sizes = {"N": 2, "W": 1000, "C": 19} if kernel is not over_two_dims else {"N": 2, "H": 142, "W": 7, "C": 19}
    on_the_loop_level(kernel_for(kernel(dtype), sizes, machine=machine(row))).bind([*inputs, *results])()
    tilewright.compile(kernel(dtype), target="executor")(*inputs, *wanted)
    for mine, theirs in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("size", [700, 2100, 3001])
def test_a_reduced_dimension_of_a_size_that_only_the_call_knows(size):
    run = tilewright.compile(statistics(tkl.bf16), dynamic=["W"])
    for w in (1500, size):
        inputs, results = arguments(statistics, tkl.bf16, (2, w, 33), seed=w)
        _, wanted = arguments(statistics, tkl.bf16, (2, w, 33))
        run(*inputs, *results)
        tilewright.compile(statistics(tkl.bf16), target="executor")(*inputs, *wanted)
        for mine, theirs in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("kernel", [cast_sum, largest_and_least, statistics, dot, shifted_maximum])
def test_columns_were_reduced_one_after_another_with_a_stride(kernel, row):
    compiled = kernel_for(kernel(tkl.bf16), {"N": 8, "W": 12544, "C": 64}, machine=machine(row))
    assert not re.search(r"= %x\[[^]]*\d\*l_", compiled.text("loop"))


def test_reductions_that_do_not_need_each_other_share_a_loop():
    text = kernel_for(statistics(tkl.bf16), {"N": 8, "W": 12544, "C": 64}, machine=machine("x86.amx")).text("block")
    (loop,) = re.findall(r"for s in 0\.\.\d+ \{(.*?)\n    \}", text, re.DOTALL)
    assert loop.count("reduce") == 2


def test_pieces_of_rows_are_predicted_to_be_slower_than_rows():
    sizes, amx = {"N": 8, "W": 12544, "C": 64}, machine("x86.amx")
    chosen = kernel_for(cast_sum(f32), sizes, machine=amx)
    assert "axis C = (C 64): task 64" in chosen.text("plan")
    plan = "axis N = (N 8): task 1\naxis C = (C 64): task 16\naxis W = (W 12544): whole\ngrid N, C"
    pieces = kernel_for(cast_sum(f32), sizes, machine=amx, plan=plan)
    assert pieces.choice.cycles > 1.5 * chosen.choice.cycles


def test_a_long_sum_keeps_the_small_terms_of_all_parts():
    """Parts of a sum were added up in f32: terms far below half a unit in the last place of the sum were lost."""
    x = np.full((1, 1 << 20, 16), 2.0**-6, np.float32).astype(tkl.bf16.numpy)
    x[0, 0] = 2.0**20
    y = np.full((1, 16), np.nan, np.float32)
    tilewright.compile(cast_sum(tkl.bf16), strict=True)(x, y)
    exact = x[0].astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(y[0], exact, rtol=2e-6)
