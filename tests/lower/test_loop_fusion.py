"""Products of one loop share the slabs of what they all read, and walk the grid in raster groups.

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
M, N, K = (getattr(tkl.sym, s) for s in "MNK")
HOPPER = machine("hopper")


def gated(*, shared: bool = True) -> Any:
    """y = (x w) * (x u), or (x w) * (z u) if nothing is shared."""

    @tkw.wave()
    def gated(
        x: tkl.Memory[M, K, GLOBAL, bf16],
        z: tkl.Memory[M, K, GLOBAL, bf16],
        w: tkl.Memory[N, K, GLOBAL, bf16],
        u: tkl.Memory[N, K, GLOBAL, bf16],
        y: tkl.Memory[M, N, GLOBAL, f32],
    ) -> None:
        zero = tkl.Register[M, N, f32](0)

        @tkw.iterate(K, init_args=[zero, zero])
        def both(one: Any, two: Any) -> Any:
            other = tkw.read(x) if shared else tkw.read(z)
            return tkw.mma(tkw.read(x), tkw.read(w), one), tkw.mma(other, tkw.read(u), two)

        one, two = both
        tkw.write(one * two, y)

    return gated


def test_an_operand_of_two_products_was_loaded_twice():
    m, n, k = extents = (136, 264, 200)
    made = kernel_for(gated(), dict(zip("MNK", extents, strict=True)), machine=HOPPER)
    text = made.text("host")
    assert [text.count(f"copy %{name}_view") for name in "xwu"] == [1, 1, 1]
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-1, 2, shape).astype(bf16.numpy) for shape in ((m, k), (m, k), (n, k), (n, k))]
    wanted = tilewright.compile(gated(), target="executor")(*arrays)
    result = np.zeros_like(wanted)
    made.executor.bind([*arrays, result])()
    assert np.array_equal(result, wanted)


def test_products_that_share_nothing_have_loops_of_their_own():
    made = kernel_for(gated(shared=False), {"M": 200, "N": 264, "K": 328}, machine=HOPPER)
    assert made.text("host").count("for e") == 4


def test_tasks_of_two_products_were_walked_row_by_row():
    made = kernel_for(gated(), {"M": 4096, "N": 11008, "K": 4096}, machine=HOPPER)
    assert made.plan.raster > 1
