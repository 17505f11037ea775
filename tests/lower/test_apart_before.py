"""Operands that reductions make go through memory to the product: rows that are normalised first.

Numbers are small integers, so that results compare by ==.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.targets.registry import machine

GLOBAL, bf16, f32 = tkl.GLOBAL_ADDRESS_SPACE, tkl.bf16, tkl.f32
M, N, K = (getattr(tkl.sym, s) for s in "MNK")
HOPPER = machine("hopper")


def lowered_rows(*, looped: bool = False, columns: bool = False, kept: bool = False) -> Any:
    """y = (x - the row's maximum) w, in a loop over K or at once; with `columns`, it is w whose rows are lowered.

    With `kept`, the maximum is also added to the result, so that two values go from one kernel to the other.
    """

    @tkw.wave()
    def lowered_rows(
        x: tkl.Memory[M, K, GLOBAL, bf16], w: tkl.Memory[N, K, GLOBAL, bf16], y: tkl.Memory[M, N, GLOBAL, f32]
    ) -> None:
        given = w if columns else x
        highest = tkw.max(tkw.cast(tkw.read(given), f32), dim=K)

        def lowered() -> Any:
            return tkw.cast(tkw.cast(tkw.read(given), f32) - highest, bf16)

        def product(acc: Any) -> Any:
            return tkw.mma(tkw.read(x), lowered(), acc) if columns else tkw.mma(lowered(), tkw.read(w), acc)

        start = tkl.Register[M, N, f32](0)
        if looped:
            total = tkw.iterate(K, init_args=[start])(product)
        else:
            total = product(start)
        tkw.write(total + highest if kept else total, y)

    return lowered_rows


def inputs(m: int, n: int, k: int) -> list[Any]:
    """Small integers."""
    rng = np.random.default_rng(m + n + k)
    return [rng.integers(-3, 4, shape).astype(bf16.numpy) for shape in ((m, k), (n, k))]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("looped", "columns"), [(False, False), (True, True)])
def test_rows_normalised_before_a_product_kept_it_from_a_pipeline(looped: bool, columns: bool):
    extents = (72, 264, 1032) if not columns else (264, 72, 1032)
    kernel, sizes = lowered_rows(looped=looped, columns=columns), dict(zip("MNK", extents, strict=True))
    made = kernel_for(kernel, sizes, machine=HOPPER)
    assert made.plan.split_before == "mma"
    assert made.plan.then.pipeline is not None
    arrays = inputs(*extents)
    wanted = tilewright.compile(kernel, target="executor")(*arrays)
    result = np.zeros_like(wanted)
    made.executor.bind([*arrays, result])()
    assert np.array_equal(result, wanted)


def test_a_split_before_a_product_is_read_back():
    kernel, sizes = lowered_rows(), dict(zip("MNK", (72, 264, 2056), strict=True))
    made = kernel_for(kernel, sizes, machine=HOPPER)
    text = "\n".join(made.plan.lines())
    assert "split kernel before mma" in text
    given = kernel_for(kernel, sizes, machine=HOPPER, plan=text)
    assert given.plan == made.plan
    assert given.text("host") == made.text("host")
    with pytest.raises(ArgumentError, match="`split kernel before mma2`: the products are mma"):
        kernel_for(kernel, sizes, machine=HOPPER, plan=text.replace("before mma", "before mma2"))


def test_a_value_that_both_kernels_need_keeps_them_one():
    extents = (72, 264, 1032)
    kernel = lowered_rows(kept=True)
    made = kernel_for(kernel, dict(zip("MNK", extents, strict=True)), machine=HOPPER)
    assert made.plan.split_at is None
    arrays = inputs(*extents)
    wanted = tilewright.compile(kernel, target="executor")(*arrays)
    result = np.zeros_like(wanted)
    made.executor.bind([*arrays, result])()
    assert np.array_equal(result, wanted)
