"""Attention with whole rows of scores: a loop goes over tiles of keys, as if its author had written it.

Scores that differ do so by 256 or more, so that weights are exactly 1 or 0, and results compare by ==.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.plan.facts.online_softmax import online_softmax
from tilewright.rewrite.tile_between_gemms import with_loop_over
from tilewright.targets.registry import machine

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]
import metamorphic  # noqa: E402
from metamorphic_programs import Writing  # noqa: E402

GLOBAL, bf16, f32 = tkl.GLOBAL_ADDRESS_SPACE, tkl.bf16, tkl.f32
B, M, N, D, E = (getattr(tkl.sym, s) for s in "BMNDE")
HOPPER = machine("hopper")


def attention(change: str = "") -> Any:
    """Attention with a softmax over whole rows, perhaps with a mask, or with something that no loop can do."""

    @tkw.wave()
    def whole(
        q: tkl.Memory[B, M, D, GLOBAL, bf16],
        k: tkl.Memory[B, N, D, GLOBAL, bf16],
        v: tkl.Memory[B, N, E, GLOBAL, bf16],
        y: tkl.Memory[B, M, E, GLOBAL, bf16],
    ):
        scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[B, M, N, f32](0)) * 256.0
        if change in ("causal", "later"):
            rows, keys = tkw.self_index(M, tkl.i32), tkw.self_index(N, tkl.i32)
            seen = keys <= rows + 100 if change == "causal" else keys >= rows + 70
            scores = tkw.select(seen, scores, tkl.Register[B, M, N, f32](-np.inf))
        highest = tkw.max(scores, dim=N)
        power = tkw.exp2 if change == "exp2" else tkw.exp
        weights = power(scores - highest)
        total = tkw.sum(weights, dim=N)
        if change == "divided first":
            weights = weights / total
        if change == "square":
            weights = weights * weights
        mean = tkw.mma(tkw.cast(weights, bf16), tkw.read(v), tkl.Register[B, M, E, f32](0))
        tkw.write(tkw.cast(mean if change == "divided first" else mean / total, bf16), y)

    return whole


def inputs(b: int, m: int, n: int, d: int, e: int) -> list[Any]:
    rng = np.random.default_rng(b + m + n + d + e)
    arrays = (rng.integers(-1, 2, s) for s in ((b, m, d), (b, n, d)))
    return [*(x.astype(bf16.numpy) for x in arrays), rng.integers(-4, 5, (b, n, e)).astype(bf16.numpy)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", ["", "exp2", "causal", "later"])
@pytest.mark.parametrize("extents", [(2, 70, 448, 64, 64), (1, 70, 448, 64, 72)])
def test_whole_rows_of_scores_were_not_gone_over_tile_by_tile(change: str, extents: tuple[int, ...]):
    sizes, arrays = dict(zip("BMNDE", extents, strict=True)), inputs(*extents)
    kernel = kernel_for(attention(change), sizes, machine=HOPPER)
    wanted = tilewright.compile(attention(change), target="executor")(*arrays)
    y = np.zeros_like(wanted)
    kernel.executor.bind([*arrays, y])()
    assert np.array_equal(y, wanted)


def test_a_loop_over_keys_that_is_not_written_takes_no_longer_than_one_that_is():
    program = metamorphic.pair_of(59).program  # its author has 64 keys at a time
    one, other = (
        metamorphic.predicted_by_search(program.written(Writing(loops=loops), large=True)) for loops in (True, False)
    )
    assert other <= one


@pytest.mark.parametrize("tile", [16, 32])
@pytest.mark.parametrize("change", ["", "exp2", "causal", "later"])
def test_the_loop_gives_what_whole_rows_give(change: str, tile: int):
    arrays, program = inputs(2, 5, 96, 8, 6), attention(change).trace()
    (axis,) = (op.attrs["dim"] for op in program.walk() if op.name == "max")
    looped = with_loop_over(program, axis, tile)
    assert not isinstance(looped, str)
    again = tilewright.compile(str(looped), target="executor")
    assert np.array_equal(again(*arrays), tilewright.compile(attention(change), target="executor")(*arrays))


@pytest.mark.parametrize("change", ["", "divided first", "causal"])
def test_every_writing_of_attention_has_the_plan_of_its_loop(change: str):
    """Whole rows were planned as such on GPUs: their masks were not skipped, and weights divided first had no loop."""
    sizes = {"B": 16, "M": 4096, "N": 4096, "D": 128, "E": 128}
    kernel = kernel_for(attention(change), sizes, machine=HOPPER)
    plan = kernel.text("plan")
    assert "axis N = (N 4096): loop 128" in plan
    assert "consumer 8 waves" in plan
    assert ("dynamic" in plan) == (change == "causal")


def test_weights_that_are_divided_first_round_as_others_do():
    """Weights are divided after the product: each result is a mean of `v`, rounded as weights and results are."""
    extents = (1, 70, 192, 64, 64)
    arrays = inputs(*extents)
    kernel = kernel_for(attention("divided first"), dict(zip("BMNDE", extents, strict=True)), machine=HOPPER)
    y = np.full((1, 70, 64), np.nan, bf16.numpy)
    kernel.executor.bind([*arrays, y])()
    q, k, v = (x.astype(np.float64) for x in arrays)
    scores = q @ k.transpose(0, 2, 1) * 256.0
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    bound = 2.0**-8 * (weights @ np.abs(v) + np.abs(weights @ v)) + 1e-30
    assert (np.abs(y.astype(np.float64) - weights @ v) <= bound).all()


@pytest.mark.parametrize("extents", [(2, 70, 449, 64, 72), (3, 17, 600, 24, 40)])
def test_a_cpu_divided_all_weights_instead_of_the_results(extents: tuple[int, ...]):
    sizes, arrays = dict(zip("BMNDE", extents, strict=True)), inputs(*extents)
    results = []
    for change in ("divided first", ""):
        kernel = kernel_for(attention(change), sizes, target="cpu")
        y = np.full((extents[0], extents[1], extents[4]), np.nan, bf16.numpy)
        kernel.bind({**dict(zip("qkv", arrays, strict=True)), "y": y})()
        results.append(y)
    assert np.array_equal(results[0], results[1])
    wanted = tilewright.compile(attention(), target="executor")(*arrays)
    assert np.array_equal(results[1], wanted)


def test_values_that_are_scaled_before_the_product_stay_so():
    """v/s is at most 1000, but v alone overflows f16."""

    @tkw.wave()
    def scaled_values(
        x: tkl.Memory[M, N, GLOBAL, f32],
        v: tkl.Memory[N, E, GLOBAL, f32],
        s: tkl.Memory[E, GLOBAL, f32],
        y: tkl.Memory[M, E, GLOBAL, f32],
    ):
        scores = tkw.read(x)
        weights = tkw.exp(scores - tkw.max(scores, dim=N))
        values = tkw.cast(tkw.read(v) / tkw.read(s), tkl.f16)
        product = tkw.mma(tkw.cast(weights, tkl.f16), values, tkl.Register[M, E, f32](0))
        tkw.write(product / tkw.sum(weights, dim=N), y)

    x, v, s = np.zeros((70, 64), np.float32), np.full((64, 8), 1e6, np.float32), np.full(8, 1e3, np.float32)
    y = np.full((70, 8), np.nan, np.float32)
    kernel_for(scaled_values, {"M": 70, "N": 64, "E": 8}, machine=HOPPER).executor.bind([x, v, s, y])()
    assert (y == 1000).all()


def test_what_is_no_sum_of_weights_stays_whole():
    program = attention("square").trace()
    (axis,) = (op.attrs["dim"] for op in program.walk() if op.name == "max")
    assert online_softmax(program, axis) == "mul of weights"
    extents = (1, 70, 192, 64, 64)
    arrays = inputs(*extents)
    wanted = tilewright.compile(attention("square"), target="executor")(*arrays)
    y = np.zeros_like(wanted)
    kernel_for(attention("square"), dict(zip("BMNDE", extents, strict=True)), machine=HOPPER).executor.bind(
        [*arrays, y]
    )()
    assert np.array_equal(y, wanted)
