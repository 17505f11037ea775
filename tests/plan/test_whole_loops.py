"""Loops whose states merge, in one iteration: what lies between their products goes through memory; exact, pinned."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from every_plan import plans_from_the_best

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.lang import f32
from tilewright.rewrite.drop_loop import with_loop_run_once
from tilewright.targets.registry import machine

B, M, N, D, E = (getattr(tkl.sym, name) for name in "BMNDE")
GLOBAL = tkl.AddressSpace.GLOBAL_MEMORY
HOPPER = machine("hopper")
SIZES = {
    "plain": {"B": 2, "M": 72, "N": 96, "D": 40, "E": 24},
    "one of a batch": {"B": 1, "M": 40, "N": 64, "D": 8, "E": 72},
    "ragged": {"B": 3, "M": 64, "N": 100, "D": 36, "E": 20},
}


def powers(causal: bool) -> Any:
    """The sum over n of 2^(<q, k[n]> - maximum) v[n], tile by tile, of which a row's sum is the last column."""
    constraints = [tkw.TilingConstraint(N, 32)]

    @tkw.wave(constraints)
    def powers(
        q: tkl.Memory[B, M, D, GLOBAL, f32],
        k: tkl.Memory[B, N, D, GLOBAL, f32],
        v: tkl.Memory[B, N, E, GLOBAL, f32],
        y: tkl.Memory[B, M, E, GLOBAL, f32],
    ) -> None:
        starts = [tkl.Register[B, M, f32](-64), tkl.Register[B, M, f32](0), tkl.Register[B, M, E, f32](0)]

        @tkw.iterate(N, init_args=starts)
        def total(before: Any, row: Any, acc: Any) -> Any:
            scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[B, M, N, f32](0))
            if causal:
                scores = tkw.select(tkw.self_index(N) <= tkw.self_index(M) + 3, scores, -64.0)
            here = tkw.max(scores, before, dim=N)
            weights, scale = tkw.exp2(scores - here), tkw.exp2(before - here)
            rows = tkw.sum(weights, row * scale, dim=N)
            return here, rows, tkw.mma(weights, tkw.read(v), acc * scale)

        tkw.write(total[2] * 2.0 + total[1], y)

    return powers


def arguments(found: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    arrays = {a.name: rng.integers(-1, 2, [int(n) for n in a.type.shape]).astype("f4") for a in found.module.host.args}
    arrays["q"][..., 3:] = 0  # few scores, so that sums of powers of two are exact
    arrays["y"][...] = np.nan
    return arrays


def require_exact(found: Any, kernel: Any) -> None:
    arrays = arguments(found)
    wanted = tilewright.compile(kernel, target="executor")(*(arrays[name] for name in "qkv"))
    found.bind(arrays)()
    assert np.array_equal(arrays["y"], wanted)


def lowered(kernel: Any, sizes: dict[str, int], plan: Any) -> Any:
    """The kernel by a plan; None if the lowering refuses it, as it may refuse row values of transposed products."""
    try:
        return kernel_for(kernel, sizes, machine=HOPPER, plan=str(plan))
    except ArgumentError:
        return None


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("causal", [False, True])
def test_values_between_products_go_through_memory(name: str, causal: bool) -> None:
    kernel, sizes = powers(causal), SIZES[name]
    plans = plans_from_the_best(kernel, sizes, HOPPER, lambda plan: plan.whole == "N")
    found = next(kernel for kernel in map(partial(lowered, kernel, sizes), plans) if kernel is not None)
    assert found.plan.split_after == "mma"
    assert found.plan.whole == "N"
    require_exact(found, kernel)
    again = kernel_for(kernel, sizes, machine=HOPPER, plan=str(found.plan))
    assert str(again.plan) == str(found.plan)
    assert again.text("host") == found.text("host")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["hopper", "cdna3", "xe"])
def test_the_chosen_plan_is_exact(target: str) -> None:
    sizes = {"B": 3, "M": 10, "N": 100, "D": 36, "E": 5}
    require_exact(kernel_for(powers(True), sizes, machine=machine(target)), powers(True))


def test_a_plan_that_goes_over_keys_tile_by_tile_is_exact() -> None:
    plan = (
        "axis B = (B 3): task 1; axis M = (M 64): task 32; axis E = (E 20): task 12; axis D = (D 36): whole; "
        "axis N = (N 100): loop 32; grid B, M, E; mma by fma.m16n32k1.f32, tile 16x32; mma2 by fma.m16n32k1.f32, "
        "tile 16x32; launch early"
    )
    require_exact(kernel_for(powers(True), SIZES["ragged"], machine=HOPPER, plan=plan), powers(True))


def test_a_conditional_write_beside_the_loop_stays() -> None:
    @tkw.wave([tkw.TilingConstraint(N, 32)])
    def beside(
        q: tkl.Memory[M, D, GLOBAL, f32],
        k: tkl.Memory[N, D, GLOBAL, f32],
        v: tkl.Memory[N, E, GLOBAL, f32],
        y: tkl.Memory[M, E, GLOBAL, f32],
        copy: tkl.Memory[M, D, GLOBAL, f32],
    ) -> None:
        @tkw.conditional(tkw.read(q) > 0.0)
        def positive() -> None:
            tkw.write(tkw.read(q), copy)

        @tkw.iterate(N, init_args=[tkl.Register[M, f32](-64), tkl.Register[M, E, f32](0)])
        def total(before: Any, acc: Any) -> Any:
            scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[M, N, f32](0))
            here = tkw.max(scores, before, dim=N)
            return here, tkw.mma(tkw.exp2(scores - here), tkw.read(v), acc * tkw.exp2(before - here))

        tkw.write(total[1], y)

    at_once = with_loop_run_once(beside.trace())
    assert not isinstance(at_once, str)
    assert [op.name for op in at_once.walk()].count("write") == 2


@pytest.mark.parametrize("head", [64, 128, 256])
def test_attention_of_f32_is_three_kernels_near_the_floor(head: int) -> None:
    sizes = {"B": 2, "H": 16, "M": 2048, "N": 2048, "D": head, "E": head}
    found = kernel_for(kernels.attention(128, "f32"), sizes, machine=HOPPER)
    assert found.plan.whole == "N"
    assert found.plan.then is not None
    assert found.plan.then.split_before == "mma"
    floor = 4 * 2 * 16 * 2048 * 2048 * head / 2 / 132 / 128
    assert found.choice.cycles < 3 * floor


def test_attention_of_bf16_stays_one_kernel() -> None:
    sizes = {"B": 2, "H": 16, "M": 4096, "N": 4096, "D": 128, "E": 128}
    found = kernel_for(kernels.attention(128, "bf16"), sizes, machine=HOPPER)
    assert found.plan.whole is None
    assert found.plan.split_at is None


def test_a_dimension_without_such_a_loop_is_refused() -> None:
    plan = "axis M = (M 64): task 64; axis N = (N 64): task 64; axis K = (K 64): loop 64; grid M, N; whole M"
    with pytest.raises(ArgumentError, match="whole M`: the loop is over K"):
        kernel_for(kernels.gemm("nt", "bf16"), {"M": 64, "N": 64, "K": 64}, machine=HOPPER, plan=plan)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("causal", [False, True])
def test_rows_are_divided_before_the_last_product(causal: bool) -> None:
    """Rows that are no multiple of a tile, whose sums the last kernel would have to take from what it multiplies."""
    sizes = {"B": 2, "H": 1, "M": 133, "N": 100, "D": 24, "E": 40}
    kernel = kernels.attention(32, "f32", causal=causal, first_query=5)
    plan = next(plans_from_the_best(kernel, sizes, HOPPER, lambda plan: plan.whole == "N"))
    found = kernel_for(kernel, sizes, machine=HOPPER, plan=str(plan))
    rng = np.random.default_rng(2)
    arrays = {a.name: rng.standard_normal([int(n) for n in a.type.shape]).astype("f4") for a in found.module.host.args}
    wanted = tilewright.compile(kernel, target="executor")(*(arrays[name] for name in "qkv"))
    arrays["out"][...] = np.nan
    found.bind(arrays)()
    assert np.allclose(arrays["out"], wanted, rtol=1e-5, atol=1e-6)
    assert "reduce" not in next(map(str, found.module.programs.values()))
