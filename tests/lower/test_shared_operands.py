"""Operands that several accumulator tiles of a task share: widened weights, which have no index of M."""

from __future__ import annotations

import re

import fused_families
import numpy as np
import pytest
from loop_level import on_the_loop_level
from tile_checks import own_cache  # noqa: F401

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
ROWS = ("x86.amx", "x86.avx512", "x86.avx2", "aarch64.neon")
bf16 = tkl.bf16.numpy


def loop_between(text: str) -> str:
    """What a block program does for each block of N before its loop over blocks of M."""
    column_loop = re.search(r"for b_N in [^{]*\{(.*?)for b_M", text, re.DOTALL)
    return "" if column_loop is None else column_loop[1]


def arguments(m, n, k, group, packed):
    rng = np.random.default_rng(m)
    a, s = rng.integers(-2, 3, (m, k)), rng.integers(1, 3, (n, k // group))
    w = rng.integers(0, 256, (n, k // 2)).astype(np.uint8) if packed else rng.integers(-8, 8, (n, k)).astype(np.int8)
    return [a.astype(bf16), w, s.astype(bf16)], np.full((m, n), np.nan, bf16)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("looped", [True, False])
def test_weights_were_widened_again_for_each_tile_of_rows(row, looped):
    plan_sizes = {"M": 512, "N": 512, "K": 512, "S": 4}
    text = kernel_for(fused_families.widened("i8", 128, looped=looped), plan_sizes, machine=machine(row)).text("block")
    if "for b_M" in text:
        assert "bf16(%w_view" in loop_between(text) or "f32(" in loop_between(text)
        (rows, *_) = re.findall(r"for b_M in [^{]*\{(.*?)\n      \}", text, re.DOTALL)
        assert "%w_view" not in rows
    else:
        assert row != "x86.amx"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sizes", [(70, 90, 264, 8), (130, 33, 96, 24), (16, 100, 40, 8)])
def test_widened_weights_of_ragged_sizes(sizes, packed):
    m, n, k, group = sizes
    kernel = fused_families.widened("u8" if packed else "i8", group, packed=packed)
    inputs, y = arguments(*sizes, packed)
    wanted = y.copy()
    tilewright.compile(kernel, require_fast=False)(*inputs, y)
    tilewright.compile(kernel, target="executor")(*inputs, wanted)
    np.testing.assert_array_equal(y, wanted)
    symbols = {"M": m, "N": n, "K": k, "S": k // group, **({"H": k // 2} if packed else {})}
    for row in ROWS:
        y[:] = np.nan
        on_the_loop_level(kernel_for(kernel, symbols, machine=machine(row))).bind([*inputs, y])()
        np.testing.assert_array_equal(y, wanted)


def test_tiles_of_a_stated_task_share_an_operand():
    """Tasks of 48 x 80 in tiles of 16 x 32, the last ones ragged: packed weights are of one block of N."""
    plan = "axis M = (M 70): task 48, loop 16\naxis N = (N 90): task 96, loop 32\naxis K = (K 64): whole\n"
    plan += "grid M, N\nmma by amx.bf16, tile 16x32"

    @tkw.wave()
    def kernel(
        a: tkl.Memory[M, K, GLOBAL, tkl.bf16], w: tkl.Memory[N, K, GLOBAL, tkl.i8], y: tkl.Memory[M, N, GLOBAL, tkl.f32]
    ):
        wide = tkw.cast(tkw.cast(tkw.read(w), tkl.f32) * 2.0, tkl.bf16)
        tkw.write(tkw.mma(tkw.read(a), wide, tkl.Register[M, N, tkl.f32](1.0)), y)

    rng = np.random.default_rng(1)
    a, w = rng.integers(-3, 4, (70, 64)).astype(bf16), rng.integers(-9, 10, (90, 64)).astype(np.int8)
    y = np.full((70, 90), np.nan, np.float32)
    compiled = kernel_for(kernel, {"M": 70, "N": 90, "K": 64}, machine=machine("x86.amx"), plan=plan)
    assert "%w_view" in loop_between(compiled.text("block"))
    on_the_loop_level(compiled).bind([a, w, y])()
    np.testing.assert_array_equal(y, 2 * a.astype(np.float32) @ w.astype(np.float32).T + 1)


def test_loops_of_one_iteration_are_their_bodies():
    """A loop over all of K hid that its weights do not depend on the rows; a plan that cuts K keeps the loop."""
    sizes, amx = {"M": 64, "N": 512, "K": 512, "S": 4}, machine("x86.amx")
    looped, unlooped = (
        kernel_for(fused_families.widened("i8", 128, looped=x), sizes, machine=amx) for x in (True, False)
    )
    assert looped.text("plan") == unlooped.text("plan")
    assert looped.text("block") == unlooped.text("block")
    plan = "axis M = (M 64): task 64\naxis N = (N 512): task 64\naxis K = (K 512): loop 128\ngrid M, N\n"
    cut = kernel_for(fused_families.widened("i8", 128), sizes, machine=amx, plan=plan + "mma by amx.bf16, tile 32x32")
    assert "for k_K in 0..4" in cut.text("block")
