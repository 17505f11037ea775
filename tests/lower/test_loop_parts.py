"""Loops whose carried values merge are split over tasks, and a second kernel merges the parts in order.

Scores are integers and powers are of two, so that weights and sums are exact, and results compare by ==.
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
B, G, M, N, D, E = (getattr(tkl.sym, s) for s in "BGMNDE")
HOPPER = machine("hopper")


def attention(*, causal: bool = False, lowest: float = -64.0, first: int = 0, both: bool = False) -> Any:
    """Attention by powers of two: G rows of queries share keys; causal, query m sees the keys up to m + first.

    With `both`, weights are summed up twice: once after a constant is added, so that the sums do not merge.
    """

    @tkw.wave([tkw.TilingConstraint(N, 128)])
    def attention(
        q: tkl.Memory[B, G, M, D, GLOBAL, bf16],
        k: tkl.Memory[B, N, D, GLOBAL, bf16],
        v: tkl.Memory[B, N, E, GLOBAL, bf16],
        y: tkl.Memory[B, G, M, E, GLOBAL, f32],
    ) -> None:
        rows = (B, G, M)
        start = [tkl.Register[(*rows, f32)](lowest), tkl.Register[(*rows, f32)](0), tkl.Register[(*rows, E, f32)](0)]

        @tkw.iterate(N, init_args=start)
        def walk(highest: Any, total: Any, mean: Any) -> Any:
            scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[(*rows, N, f32)](0))
            if causal:
                scores = tkw.select(tkw.self_index(N) <= tkw.self_index(M) + first, scores, float("-inf"))
            higher = tkw.max(scores, highest, dim=N)
            weights, shrink = tkw.exp2(scores - higher), tkw.exp2(highest - higher)
            total = tkw.sum(weights, total * shrink, dim=N)
            if both:
                total = total + 1.0
            return higher, total, tkw.mma(tkw.cast(weights, bf16), tkw.read(v), mean * shrink)

        highest, total, mean = walk
        tkw.write(mean + total + highest, y)

    return attention


def result_of(kernel: Any, extents: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """The kernel as planned for Hopper, what it gives on the interpreter, and what the executor gives."""
    b, g, m, n, d, e = extents
    rng = np.random.default_rng(sum(extents))
    q, k = ((rng.integers(-1, 2, s) * (rng.random(s) < 0.1)).astype(bf16.numpy) for s in ((b, g, m, d), (b, n, d)))
    arrays = [q, k, rng.integers(-2, 3, (b, n, e)).astype(bf16.numpy)]
    made = kernel_for(kernel, dict(zip("BGMNDE", extents, strict=True)), machine=HOPPER)
    wanted = tilewright.compile(kernel, target="executor")(*arrays)
    result = np.zeros_like(wanted)
    made.executor.bind([*arrays, result])()
    return made, result, wanted


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "extents",
    [(2, 8, 1, 2048, 64, 64), (1, 1, 70, 8000, 64, 72), (1, 5, 3, 10240, 64, 64)],
    ids=["decode", "ragged", "many parts"],
)
def test_few_tasks_with_many_keys_left_cores_without_work(extents: tuple[int, ...]):
    made, result, wanted = result_of(attention(), extents)
    assert made.plan.parts is not None
    assert made.plan.parts[0] == "N"
    assert np.array_equal(result, wanted)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lowest", [-64.0, float("-inf")])
def test_parts_that_a_mask_hides_whole_count_for_nothing(lowest: float):
    made, result, wanted = result_of(attention(causal=True, lowest=lowest, first=3084), (1, 1, 128, 4096, 64, 64))
    assert made.plan.parts is not None
    assert np.isfinite(result).all()
    assert np.array_equal(result, wanted)


def test_what_a_maximum_starts_from_is_merged_too():
    _, result, wanted = result_of(attention(lowest=64.0), (2, 8, 1, 2048, 64, 64))
    assert np.array_equal(result, wanted)


def test_states_that_do_not_merge_stay_in_one_kernel():
    made, result, wanted = result_of(attention(both=True), (1, 8, 1, 4096, 64, 64))
    assert made.plan.parts is None
    assert np.array_equal(result, wanted)


def columns(dtype: Any) -> Any:
    """Of each column: the sum of elements times their row's largest, plus 1; the largest; the sum of powers of two."""

    @tkw.wave([tkw.TilingConstraint(M, 4)])
    def columns(
        x: tkl.Memory[M, N, GLOBAL, dtype],
        total: tkl.Memory[N, GLOBAL, f32],
        largest: tkl.Memory[N, GLOBAL, f32],
        powers: tkl.Memory[N, GLOBAL, f32],
    ) -> None:
        start = [tkl.Register[N, f32](number) for number in (0.0, -64.0, 0.0)]

        @tkw.iterate(M, init_args=start)
        def walk(added: Any, highest: Any, weight: Any) -> Any:
            row = tkw.cast(tkw.read(x), f32)
            top = tkw.max(row, dim=N)
            higher = tkw.max(row, highest, dim=M)
            weight = tkw.sum(tkw.exp2(row - higher), weight * tkw.exp2(highest - higher), dim=M)
            return tkw.sum(row * top + 1.0, added, dim=M), higher, weight

        added, highest, weight = walk
        tkw.write(added, total)
        tkw.write(highest, largest)
        tkw.write(weight, powers)

    return columns


@pytest.mark.parametrize(("extents", "dtype"), [((640, 40), f32), ((1009, 33), bf16)])
def test_a_loop_without_products_was_done_by_one_workgroup(extents: tuple[int, int], dtype: Any):
    """Past the end of a last, shorter part, rows are zeros, which would add 1 to the sums, and 0 to the largest."""
    rows, length = extents
    x = np.random.default_rng(rows).integers(-9, -3, extents).astype(dtype.numpy)
    made = kernel_for(columns(dtype), {"M": rows, "N": length}, machine=HOPPER)
    assert made.plan.parts is not None
    wanted, written = ([np.full(length, np.nan, np.float32) for _ in range(3)] for _ in range(2))
    tilewright.compile(columns(dtype), target="executor")(x, *wanted)
    made.executor.bind([x, *written])()
    assert all(map(np.array_equal, written, wanted))


def test_elements_past_the_end_of_a_part_count_for_nothing_without_a_mask():
    """The loop carries the largest score, the weights and one score: each reduction has a number that adds nothing."""

    @tkw.wave([tkw.TilingConstraint(N, 128)])
    def chosen(
        q: tkl.Memory[M, D, GLOBAL, bf16], k: tkl.Memory[N, D, GLOBAL, bf16], y: tkl.Memory[M, GLOBAL, f32]
    ) -> None:
        start = [tkl.Register[M, f32](number) for number in (-64.0, 0.0, 0.0)]

        @tkw.iterate(N, init_args=start)
        def walk(highest: Any, total: Any, at_seven: Any) -> Any:
            scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[M, N, f32](0)) - 8.0
            higher = tkw.max(scores, highest, dim=N)
            total = tkw.sum(tkw.exp2(scores - higher), total * tkw.exp2(highest - higher), dim=N)
            is_seven = tkw.self_index(N) == 7
            return higher, total, tkw.sum(tkw.select(is_seven, scores, 0.0), at_seven, dim=N)

        highest, total, at_seven = walk
        tkw.write(total * 64.0 + highest + at_seven, y)

    rng = np.random.default_rng(3)
    q, k = ((rng.random(size) < 0.1).astype(bf16.numpy) for size in ((5, 64), (5003, 64)))
    made = kernel_for(chosen, {"M": 5, "N": 5003, "D": 64}, machine=HOPPER)
    assert made.plan.parts is not None
    assert made.plan.parts[0] == "N"
    wanted, written = np.full(5, np.nan, np.float32), np.full(5, np.nan, np.float32)
    tilewright.compile(chosen, target="executor")(q, k, wanted)
    made.executor.bind([q, k, written])()
    assert np.array_equal(written, wanted)
