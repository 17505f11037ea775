"""Neighbouring rows as one row of two products: planned where K is short, and exact."""

import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright import compile_text, kernels
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

sys.path[:0] = [str(Path(__file__).parents[1])]
from every_plan import every_plan, plans_from_the_best  # noqa: E402

HOPPER = machine("hopper")


def in_blocks(plan):
    """Whether an operand stands in blocks on a diagonal."""
    return any("block-diagonal" in str(line) for line in plan.values)


def test_a_pointwise_layer_of_few_channels_takes_two_pixels_as_one():
    sizes = {"N": 1, "H": 112, "W": 112, "C": 16, "F": 96}
    made = kernel_for(kernels.conv((1, 1), "bf16"), sizes, machine=HOPPER, constant=("w",))
    assert "repack w: block-diagonal 2" in made.text("plan")
    assert "axis M = (M 6272)" in made.text("plan")


@pytest.mark.parametrize("sizes", [{"M": 130, "N": 40, "K": 16}, {"M": 68, "N": 24, "K": 32}])
def test_paired_rows_are_exact(sizes):
    kernel = kernels.gemm("nt", "bf16", "f32")
    plan = next(plans_from_the_best(kernel, sizes, HOPPER, in_blocks))
    made = kernel_for(kernel, sizes, machine=HOPPER, plan=plan)
    rng = np.random.default_rng(3)
    dtype = tilewright.lang.bf16.numpy
    a, b = (rng.integers(-3, 4, (sizes[d], sizes["K"])).astype(dtype) for d in "MN")
    expected = tilewright.compile(kernel, target="executor")(a, b)
    np.testing.assert_array_equal(compile_text(made.text("host"), "interpreter")(a, b), expected)


def test_an_odd_number_of_rows_is_not_paired():
    assert not every_plan(kernels.gemm("nt", "bf16", "f32"), {"M": 131, "N": 40, "K": 16}, HOPPER, in_blocks)
