"""Long reductions to few results are split over tasks, whatever is computed of their elements first.

Elements are small integers, so that sums are the same in every order, and results compare by ==.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

GLOBAL, f32 = tkl.GLOBAL_ADDRESS_SPACE, tkl.f32
M, N, ONE = tkl.sym.M, tkl.sym.N, tkl.sym.ONE
HOPPER = machine("hopper")


def to_one_number(function: Callable[[Any], Any]) -> Any:
    """y = the sum of a function of x."""

    @tkw.wave()
    def to_one_number(x: tkl.Memory[N, GLOBAL, f32], y: tkl.Memory[ONE, GLOBAL, f32]) -> None:
        tkw.write(tkw.broadcast(tkw.sum(function(tkw.read(x)), dim=N), [ONE]), y)

    return to_one_number.bound({ONE: 1})


def loss() -> Any:
    """y = the sum of (a - b)^2 by 4."""

    @tkw.wave()
    def loss(
        a: tkl.Memory[M, N, GLOBAL, f32], b: tkl.Memory[M, N, GLOBAL, f32], y: tkl.Memory[ONE, GLOBAL, f32]
    ) -> None:
        apart = tkw.read(a) - tkw.read(b)
        total = tkw.sum(tkw.sum(apart * apart, dim=N), dim=M)
        tkw.write(tkw.broadcast(total / 4.0, [ONE]), y)

    return loss.bound({ONE: 1})


def split_result(kernel: Any, sizes: dict[str, int], *arrays: Any) -> tuple[Any, Any]:
    """What a kernel whose plan splits its reduction gives on the interpreter, and what the executor gives."""
    made = kernel_for(kernel, sizes, machine=HOPPER)
    assert made.plan is not None
    assert made.plan.parts is not None
    wanted = tilewright.compile(kernel, target="executor")(*arrays)
    result = np.zeros_like(wanted)
    made.executor.bind([*arrays, result])()
    return result, wanted


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "function",
    [lambda x: x * 2.0, lambda x: 1.0 - x, lambda x: tkw.select(tkw.self_index(N) % 3 == 1, x, 0.0), tkw.relu],
    ids=["doubled", "one less", "every third", "relu"],
)
def test_a_number_or_an_index_in_a_sum_kept_it_on_one_workgroup(function: Callable[[Any], Any]):
    x = np.random.default_rng(1).integers(-3, 4, 100_001).astype(np.float32)
    result, wanted = split_result(to_one_number(function), {"N": x.size}, x)
    assert np.array_equal(result, wanted)


def test_a_sum_of_sums_to_one_number_was_done_by_one_workgroup():
    a, b = np.random.default_rng(2).integers(-3, 4, (2, 133, 777)).astype(np.float32)
    result, wanted = split_result(loss(), {"M": 133, "N": 777}, a, b)
    assert np.array_equal(result, wanted)
