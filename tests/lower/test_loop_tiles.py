"""Loops that give the same for every tile size take the plan's tile, not the author's, where that is faster.

Scores are integers and powers are of two, so that weights are exact, and results compare by ==.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

GLOBAL, bf16, f32 = tkl.GLOBAL_ADDRESS_SPACE, tkl.bf16, tkl.f32
B, M, N, D, E = (getattr(tkl.sym, s) for s in "BMNDE")
HOPPER = machine("hopper")


def attention(tile: int, *, causal: bool = False, kept: bool = False) -> Any:
    """Attention by powers of two, `tile` keys at a time; with `kept`, iterations are counted, and the tile matters."""

    @tkw.wave([tkw.TilingConstraint(N, tile)])
    def attention(
        q: tkl.Memory[B, M, D, GLOBAL, bf16],
        k: tkl.Memory[B, N, D, GLOBAL, bf16],
        v: tkl.Memory[B, N, E, GLOBAL, bf16],
        y: tkl.Memory[B, M, E, GLOBAL, bf16],
    ) -> None:
        start = [tkl.Register[B, M, f32](-64.0), tkl.Register[B, M, f32](0), tkl.Register[B, M, E, f32](0)]

        @tkw.iterate(N, init_args=start)
        def walk(highest: Any, total: Any, mean: Any) -> Any:
            scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[B, M, N, f32](0))
            if causal:
                scores = tkw.select(tkw.self_index(N) <= tkw.self_index(M) + 90, scores, float("-inf"))
            higher = tkw.max(scores, highest, dim=N)
            weights, shrink = tkw.exp2(scores - higher), tkw.exp2(highest - higher)
            total = tkw.sum(weights, total * shrink, dim=N)
            if kept:
                total = total + 1.0
            return higher, total, tkw.mma(tkw.cast(weights, bf16), tkw.read(v), mean * shrink)

        _, total, mean = walk
        tkw.write(tkw.cast(mean / total, bf16), y)

    return attention


def values_of_keys() -> Any:
    """dv[n] = the sum over m of relu(<q[m], k[n]>) * do[m], in a loop over m without a tile."""

    @tkw.wave()
    def values_of_keys(
        q: tkl.Memory[B, M, D, GLOBAL, bf16],
        k: tkl.Memory[B, N, D, GLOBAL, bf16],
        do: tkl.Memory[B, M, E, GLOBAL, bf16],
        dv: tkl.Memory[B, N, E, GLOBAL, f32],
    ) -> None:
        @tkw.iterate(M, init_args=[tkl.Register[B, N, E, f32](0)])
        def total(acc: Any) -> Any:
            weights = tkw.relu(tkw.mma(tkw.read(k), tkw.read(q), tkl.Register[B, N, M, f32](0)))
            return tkw.mma(tkw.cast(weights, bf16), tkw.read(do), acc)

        tkw.write(total, dv)

    return values_of_keys


def inputs(b: int, m: int, n: int, d: int, e: int, last: int) -> list[Any]:
    """Rows of which a few elements are 1 or -1, so that scores stay small, and small integers; `last` rows of those."""
    rng = np.random.default_rng(b + m + n + d + e)
    few = [(rng.integers(-1, 2, s) * (rng.random(s) < 0.1)).astype(bf16.numpy) for s in ((b, m, d), (b, n, d))]
    return [*few, rng.integers(-2, 3, (b, last, e)).astype(bf16.numpy)]


def result_of(kernel: Any, sizes: dict[str, int], arrays: list[Any]) -> tuple[Any, Any, Any]:
    """The kernel as planned for Hopper, what it gives on the interpreter, and what the executor gives."""
    made = kernel_for(kernel, sizes, machine=HOPPER)
    wanted = tilewright.compile(kernel, target="executor")(*arrays)
    result = np.zeros_like(wanted)
    made.executor.bind([*arrays, result])()
    return made, result, wanted


@pytest.mark.sampled(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("extents", [(1, 150, 200, 256, 256), (2, 33, 333, 256, 192)])
def test_keys_in_the_authors_tile_did_not_fit_wide_heads(extents: tuple[int, ...], causal: bool):
    sizes = dict(zip("BMNDE", extents, strict=True))
    b, m, n, d, e = extents
    kernel = attention(128, causal=causal)
    made, result, wanted = result_of(kernel, sizes, inputs(b, m, n, d, e, n))
    assert made.plan.pipeline is not None
    keys = made.plan.axis("N" if made.plan.parts is None else "N_part")
    assert keys.split("loop").size < 128
    assert "the constraint's loop tile of N, 128, is left aside" in made.explain()
    assert np.array_equal(result, wanted)


def test_the_authors_tile_stays_where_no_other_is_clearly_faster():
    sizes = dict(zip("BMNDE", (32, 1024, 1024, 128, 128), strict=True))
    for tile in (64, 128):
        made = kernel_for(attention(tile), sizes, machine=HOPPER)
        assert made.plan.axis("N").split("loop").size == tile


def test_a_loop_whose_tile_changes_the_result_keeps_it():
    sizes = dict(zip("BMNDE", (1, 18, 96, 256, 256), strict=True))
    made, result, wanted = result_of(attention(32, kept=True), sizes, inputs(1, 18, 96, 256, 256, 96))
    assert made.plan.then.axis("N").split("loop").size == 32
    assert np.array_equal(result, wanted)


@pytest.mark.parametrize("extents", [(1, 200, 150, 64, 64), (2, 300, 70, 128, 72)])
def test_a_loop_without_a_tile_around_two_products_had_no_pipeline(extents: tuple[int, ...]):
    sizes = dict(zip("BMNDE", extents, strict=True))
    b, m, n, d, e = extents
    made, result, wanted = result_of(values_of_keys(), sizes, inputs(b, m, n, d, e, m))
    assert made.plan.pipeline is not None
    assert made.plan.axis("M").split("loop") is not None
    assert np.array_equal(result, wanted)
