"""Factors whose rows lie askew, copied to padded rows first: exact, pinned, explained, refused."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from every_plan import every_plan, plans_from_the_best

import tilewright
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.plan.search.cost import row_cycles
from tilewright.rewrite.align_rows import Reading
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
SLOW = replace(HOPPER, limits=replace(HOPPER.limits, misaligned_row=1e3, misaligned_row_tail=1e3))
"""A machine that reads rows which lie askew so slowly that they are always padded first."""


def conv(channels: int, filters: int, taps: tuple[int, ...] = (3, 3), **options: Any) -> tuple[Any, dict[str, int]]:
    image = dict(zip("DHW"[-len(taps) :], (3, 7, 11)[-len(taps) :], strict=True))
    return kernels.conv(taps, "bf16", "f32", **options), {"N": 2, **image, "C": channels, "F": filters}


def gemm(m: int, n: int, k: int, **options: Any) -> tuple[Any, dict[str, int]]:
    return kernels.gemm("nt", "bf16", **options), {"M": m, "N": n, "K": k}


PROBLEMS = [
    (conv(40, 24, padding=1), 48),
    (conv(24, 40, (1, 1), bias=True, activation="relu"), 32),
    (conv(72, 16, padding=1, stride=2), 80),
    (conv(8, 24, padding=2, dilation=2), 16),
    (conv(24, 8, (3,), padding=1), 32),
    (conv(40, 8, (2, 2, 2), padding=1), 48),
    (gemm(70, 24, 40), 48),
    (gemm(33, 40, 1000), 1024),
    (gemm(40, 72, 72, bias=True), 80),
    ((kernels.gemm("nt", "bf16", batched=True), {"B": 3, "M": 20, "N": 24, "K": 40}), 48),
]


def arguments(found: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        a.name: rng.integers(-2, 3, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy)
        for a in found.module.host.args
    }


def padded_plan(kernel: Any, sizes: dict[str, int]) -> str:
    """The best plan that pads rows of both operands first."""
    plan = next(plans_from_the_best(kernel, sizes, SLOW, lambda plan: str(plan).count(": padded rows") == 2))
    return str(plan)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("problem", "wide"), PROBLEMS)
def test_padded_rows_are_exact(problem: Any, wide: int) -> None:
    kernel, sizes = problem
    plan = padded_plan(kernel, sizes)
    found = kernel_for(kernel, sizes, machine=SLOW, plan=plan)
    assert str(found.plan) == plan
    walked = [axis.padded_extent for axis in found.plan.axes if axis.name.startswith("K")]
    assert wide in (*walked, prod(walked))  # of a sum that is taken apart, a part and how many
    assert any("by tma.load" in str(program) for program in found.module.programs.values())
    pinned = kernel_for(kernel, sizes, machine=HOPPER, plan=plan)
    assert pinned.text("block") == found.text("block")
    arrays = arguments(found)
    *given, out = arrays
    arrays[out][...] = 99
    found.bind(arrays)()
    assert np.array_equal(arrays[out], tilewright.compile(kernel, target="executor")(*(arrays[n] for n in given)))


def test_an_infinite_element_meets_no_padding() -> None:
    kernel, sizes = conv(40, 24, padding=1)
    found = kernel_for(kernel, sizes, machine=SLOW, plan=padded_plan(kernel, sizes))
    arrays = arguments(found)
    arrays["x"][1, 3, 5, 39] = np.inf
    found.bind(arrays)()
    wanted = tilewright.compile(kernel, target="executor")(arrays["x"], arrays["w"])
    assert np.array_equal(arrays["y"], wanted, equal_nan=True)
    assert 0 < np.isfinite(wanted).sum() < wanted.size


@pytest.mark.parametrize("problem", [conv(48, 24, padding=1), conv(3, 24, padding=1), gemm(40, 40, 64)])
def test_rows_that_lie_well_or_cannot_be_read_are_not_padded(problem: Any) -> None:
    kernel, sizes = problem
    assert not every_plan(kernel, sizes, SLOW, lambda plan: "padded" in str(plan))


def test_what_is_not_last_of_both_factors_is_refused() -> None:
    kernel, sizes = kernels.gemm("nn", "bf16"), {"M": 40, "N": 24, "K": 40}
    said = kernel_for(kernel, sizes, machine=SLOW).explain()
    assert "refused  operands in padded rows: no dimension of K is a whole row of both operands" in said
    plan = padded_plan(*gemm(40, 24, 40))
    with pytest.raises(ArgumentError, match="`repack a: padded rows`: no dimension that is summed is the last"):
        kernel_for(kernel, sizes, machine=HOPPER, plan=plan)


def test_large_products_of_ragged_rows_are_padded_and_small_ones_are_not() -> None:
    """4096x4096x1000 took 74.5 us as it lies, and 57.8 with the copies; 16384x256x72 7.8, and 8.1."""
    assert "repack a: padded rows" in str(kernel_for(*gemm(4096, 4096, 1000), machine=HOPPER).plan)
    assert "padded" not in str(kernel_for(*gemm(16384, 256, 72), machine=HOPPER).plan)


def test_rows_are_padded_to_lines_unless_that_is_much() -> None:
    reading = Reading(pitch=16, furthest=8, sector=32, line=128)
    assert [reading.padded(n, 2) for n in (1000, 520, 72, 40, 24, 64)] == [1024, 576, 80, 48, 32, 64]


def test_rows_cost_by_where_they_begin_and_end() -> None:
    def cost(k: int, pitch: int) -> float:
        return row_cycles(HOPPER, k, 64, 2, pitch)

    assert cost(64, 128) < cost(64, 160) < cost(64, 144)  # lines; sectors in two lines; within sectors
    assert cost(48, 96) < cost(40, 96)  # ends with a sector, and within one
    assert cost(128, 256) == 2 * cost(64, 256)
