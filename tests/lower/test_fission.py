"""A loop over K with several sums is several loops where a product needs some of the sums before the others.

Numbers are small integers, so that results compare by ==.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

GLOBAL, bf16, f32 = tkl.GLOBAL_ADDRESS_SPACE, tkl.bf16, tkl.f32
M, N, K, L = (getattr(tkl.sym, s) for s in "MNKL")
HOPPER = machine("hopper")


def low_rank() -> Any:
    """y = x w + (x a) b, with both products of x in one loop."""

    @tkw.wave()
    def low_rank(
        x: tkl.Memory[M, K, GLOBAL, bf16],
        w: tkl.Memory[N, K, GLOBAL, bf16],
        a: tkl.Memory[L, K, GLOBAL, bf16],
        b: tkl.Memory[N, L, GLOBAL, bf16],
        y: tkl.Memory[M, N, GLOBAL, f32],
    ) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0), tkl.Register[M, L, f32](0)])
        def both(acc: Any, low: Any) -> Any:
            return tkw.mma(tkw.read(x), tkw.read(w), acc), tkw.mma(tkw.read(x), tkw.read(a), low)

        acc, low = both
        tkw.write(tkw.mma(tkw.cast(low, bf16), tkw.read(b), acc), y)

    return low_rank


def gated() -> Any:
    """y = (x w) * (x a): nothing needs one sum before the other."""

    @tkw.wave()
    def gated(
        x: tkl.Memory[M, K, GLOBAL, bf16],
        w: tkl.Memory[N, K, GLOBAL, bf16],
        a: tkl.Memory[N, K, GLOBAL, bf16],
        y: tkl.Memory[M, N, GLOBAL, f32],
    ) -> None:
        zero = tkl.Register[M, N, f32](0)

        @tkw.iterate(K, init_args=[zero, zero])
        def both(one: Any, two: Any) -> Any:
            return tkw.mma(tkw.read(x), tkw.read(w), one), tkw.mma(tkw.read(x), tkw.read(a), two)

        one, two = both
        tkw.write(one * two, y)

    return gated


def test_every_task_computed_the_small_sum_for_itself():
    m, n, k, l = extents = (72, 264, 264, 24)  # noqa: E741 - as the program calls it
    made = kernel_for(low_rank(), dict(zip("MNKL", extents, strict=True)), machine=HOPPER)
    assert made.plan.split_after == "mma"
    assert made.plan.then.pipeline is not None
    rng = np.random.default_rng(1)
    few = lambda *shape: (rng.integers(-1, 2, shape) * (rng.random(shape) < 0.1)).astype(bf16.numpy)  # noqa: E731
    arrays = [few(m, k), few(n, k), few(l, k), few(n, l)]
    wanted = tilewright.compile(low_rank(), target="executor")(*arrays)
    result = np.zeros_like(wanted)
    made.executor.bind([*arrays, result])()
    assert np.array_equal(result, wanted)


def test_sums_of_which_no_product_needs_one_first_stay_in_one_loop():
    made = kernel_for(gated(), {"M": 512, "N": 1024, "K": 512}, machine=HOPPER)
    assert made.plan.split_at is None
    assert len(made.module.programs) == 1
