"""Families that are one kernel each, in roles: at sizes where that is natural the model finds it, and it is exact."""

from dataclasses import replace

import numpy as np
import pytest
from every_plan import plans_from_the_best
from fused_families import (
    EXACT,
    layer_norm,
    of_images,
    product_and,
    rms_norm,
    scaled,
    softmax,
    three_factors,
    two_convolutions,
    two_layers,
    widened,
    with_weights,
)
from loop_level import on_the_loop_level
from pinned_plans import planned_as

import tilewright
from tilewright import compile_text
from tilewright.compiler.native import kernel_for
from tilewright.kernels.elementwise import gelu
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
LATE = replace(HOPPER, limits=replace(HOPPER.limits, launch_cycles=10_000, following_cycles=10_000))
"""A machine on which a second launch takes long: programs that are small enough to be interpreted are one there."""


def is_one_kernel(made):
    """One launch, in roles: one wave starts copies to a ring, every product is an asynchronous one from there."""
    plan = made.plan
    atoms = [each.atom or "" for each in plan.products]
    return (
        (len(made.module.programs), plan.split_after, plan.parts) == (1, None, None)
        and plan.pipeline is not None
        and plan.pipeline.producer[0] == 1
        and all(name.startswith("wgmma") for name in atoms)
        and made.text("block").count("by tma.load") >= len(atoms)
    )


def named(made, arrays):
    """Arrays by the names of a kernel's arguments."""
    return dict(zip([a.name for a in made.module.host.args], arrays, strict=True))


ROWS = [(columns, depth) for columns in (64, 128, 256, 512) for depth in (64, 1024, 4096) if columns * depth < 1 << 21]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("columns", "depth"), ROWS)
@pytest.mark.parametrize("family", ["softmax", "layer norm", "rms norm"])
def test_a_product_whose_rows_are_reduced_is_one_kernel(family, columns, depth):
    function = {"softmax": softmax, "layer norm": layer_norm(columns), "rms norm": rms_norm(columns)}[family]
    tie = family == "softmax" and (columns, depth) == (512, 1024)  # two kernels take 22.3 us on an H200, as one does
    for kernel in (product_and(function, "f16"), *([] if tie else [with_weights(function)])):
        assert is_one_kernel(kernel_for(kernel, {"M": 8200, "N": columns, "K": depth}, machine=HOPPER))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("hidden", "columns", "depth"), [(64, 64, 512), (128, 128, 1024), (256, 128, 1024), (256, 256, 256), (128, 64, 128)]
)
@pytest.mark.parametrize("kernel", [two_layers(gelu), three_factors()], ids=["gelu between", "a b c"])
def test_two_chained_products_are_one_kernel(kernel, hidden, columns, depth):
    assert is_one_kernel(kernel_for(kernel, {"M": 8200, "N": columns, "K": depth, "F": hidden}, machine=HOPPER))


@pytest.mark.parametrize("kernel", [two_layers(gelu), three_factors()], ids=["gelu between", "a b c"])
def test_what_lies_between_products_is_gone_over_in_tiles_of_a_loop(kernel):
    sizes = {"M": 32800, "N": 256, "K": 128, "F": 512}
    made = kernel_for(kernel, sizes, machine=HOPPER)
    assert is_one_kernel(made)
    assert "axis F = (F 512): loop 64\n" in made.text("plan")
    assert kernel_for(kernel, sizes, machine=HOPPER, plan=made.text("plan")).text("block") == made.text("block")


@pytest.mark.parametrize(
    "sizes", [(32, 56, 56, 64, 64, 256), (32, 55, 57, 32, 64, 128), (32, 27, 29, 128, 128, 512)], ids=str
)
def test_a_convolution_and_a_pointwise_one_are_one_kernel(sizes):
    made = kernel_for(two_convolutions(*sizes[:4]), of_images(*sizes), machine=HOPPER)
    assert is_one_kernel(made)
    assert "axis K_2 = (K_2 3): loop 1\naxis K_1 = (K_1 3): loop 1\n" in made.text("plan")


@pytest.mark.parametrize("dtype", ["i8", "f8e4m3fn"])
def test_a_quantised_product_and_its_scales_are_one_kernel(dtype):
    assert is_one_kernel(kernel_for(scaled(dtype), {"M": 4100, "N": 4096, "K": 4096}, machine=HOPPER))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("rows", [16, 1000, 4096])
@pytest.mark.parametrize("dtype", ["i8", "u8", "f8e4m3fn", "four bits"])
def test_weights_are_widened_in_registers_of_one_kernel(dtype, rows):
    """They were widened to a workspace by one wave a task: seven times as long as two kernels.

    Sums of few rows are added up by a second program.
    """
    packed = dtype == "four bits"
    sizes = {"M": rows, "N": 4096, "K": 4096, "S": 32, **({"H": 2048} if packed else {})}
    made = kernel_for(widened("u8" if packed else dtype, 128, packed=packed), sizes, machine=HOPPER)
    assert is_one_kernel(made) if rows > 16 else made.plan.parts is not None and made.plan.parts[0] == "K"
    assert ".ra, tile" in made.text("plan")
    assert " transposed" in made.text("plan")  # weights are the atom's rows
    assert all("scratch" not in str(program) for program in made.module.programs.values())


@pytest.mark.sampled(6)
@pytest.mark.parametrize("family", EXACT)
def test_families_are_exact_on_both_levels(family):
    kernel, sizes = EXACT[family]
    made = kernel_for(kernel, sizes, machine=LATE)
    assert is_one_kernel(made)
    again = kernel_for(kernel, sizes, machine=LATE, plan=made.text("plan"))
    assert again.text("block") == made.text("block")
    *inputs, result = made.module.host.args
    rng = np.random.default_rng(sum(sizes.values()))
    arrays = []
    for a in inputs:
        low, high = (0, 256) if a.type.dtype.name == "u8" else (-1, 2)
        arrays.append(rng.integers(low, high, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy))
    shape = [int(n) for n in result.type.shape]
    wanted = np.empty(shape, result.type.dtype.numpy)
    tilewright.compile(kernel, target="executor")(*arrays, wanted)
    for run in (
        lambda found: made.bind(named(made, [*arrays, found]))(),
        lambda found: on_the_loop_level(made).bind([*arrays, found])(),
    ):
        found = np.full(shape, np.nan, result.type.dtype.numpy)
        run(found)
        np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


def test_a_sum_of_computed_factors_that_is_taken_apart_is_exact():
    """Weights of four bits know by their place along K which half of a byte they are."""
    sizes = {"M": 9, "N": 72, "K": 1024, "S": 8, "H": 512}
    kernel = widened("u8", 128, packed=True)
    found = kernel_for(kernel, sizes, machine=LATE)
    whole = next(x.plan for x in found.choice.candidates if x.plan.parts is None)
    plan = (
        kernel_for(kernel, sizes, machine=LATE, plan=whole)
        .text("plan")
        .replace("axis K = (K 1024)", "axis K_split = (K_split 4): task 1\naxis K_part = (K_part 256)")
    )
    plan = plan.replace("grid M, N", "grid K_split, M, N").replace("launch", "parts K 4\nlaunch")
    first, *rest = plan.splitlines()
    lines = [line for line in (first, *rest) if not line.startswith("axis K_split")]
    plan = "\n".join(["axis K_split = (K_split 4): task 1", *lines])
    made = kernel_for(kernel, sizes, machine=LATE, plan=plan)
    assert len(made.module.programs) == 2
    rng = np.random.default_rng(2)
    a, s = rng.integers(-1, 2, (9, 1024)), rng.integers(-1, 2, (72, 8))
    w = rng.integers(0, 256, (72, 512)).astype(np.uint8)
    dtype = made.module.host.args[0].type.dtype.numpy
    found = np.full((9, 72), np.nan, dtype)
    made.bind(named(made, [a.astype(dtype), w, s.astype(dtype), found]))()
    wide = np.stack([w % 16, w // 16], -1).reshape(72, 1024).astype(int) - 8
    wanted = (a @ (wide * s.repeat(128, 1)).T).astype(np.float32).astype(dtype)
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("family", ["softmax", "layer norm", "rms norm"])
def test_norms_of_rows_are_within_what_roundings_explain(family):
    sizes = {"M": 70, "N": 96, "K": 136}
    columns = sizes["N"]
    function = {"softmax": softmax, "layer norm": layer_norm(columns), "rms norm": rms_norm(columns)}[family]
    made = kernel_for(product_and(function), sizes, machine=LATE)
    assert is_one_kernel(made)
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-2, 3, (sizes[d], sizes["K"])).astype(np.float64) for d in "MN")
    c = a @ b.T  # exact
    e = np.exp(c - c.max(1, keepdims=True))
    d = c - c.mean(1, keepdims=True)
    wanted = {
        "softmax": e / e.sum(1, keepdims=True),
        "layer norm": d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5),
        "rms norm": c / np.sqrt((c * c).mean(1, keepdims=True) + 1e-5),
    }[family]
    found = np.full((sizes["M"], columns), np.nan, made.module.host.args[-1].type.dtype.numpy)
    made.bind(named(made, [*(x.astype(found.dtype) for x in (a, b)), found]))()
    # half a unit of bf16, a function that is rounded to it, and roundings of f32: of sums and of what is subtracted
    bound = 2.0**-8 + 2.0**-16 + (columns + 6 * np.abs(c).max() + 16) * 2.0**-24
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=bound, atol=bound * np.abs(d).max() * 2.0**-12)


def test_rows_that_two_groups_of_waves_share_are_reduced_through_shared_memory():
    kernel, sizes = EXACT["rows, 480, by two groups of waves"]
    made = kernel_for(kernel, sizes, machine=LATE)
    assert "tile 64x480\nproducer 1 wave 40 registers, consumer 8 waves 232 registers" in made.text("plan")
    assert "as wgmma.m64n240k16.bf16.c waves (1, 2)" in made.text("block")
    loop = compile_text(made.text("block"), "gpu:hopper").text("loop")
    told = [line for line in loop.splitlines() if "alloc shared f32" in line]
    assert [line.partition("alloc ")[2] for line in told] == ["shared f32 (512)"] * 2  # of each lane, two rows


def test_a_task_may_go_over_blocks_of_columns_after_what_they_share():
    kernel, sizes = EXACT["two layers, blocks of columns"]
    made = planned_as(kernel, sizes, LATE, lambda plan: "axis N = (N 300): task 512, loop 256;" in str(plan))
    multiply = made.text("block").split("role multiply")[1]
    before, block = multiply.split("for b_N in 0..2 {")
    assert "map %left = bf16(relu(%sums))\n      edge of %left\n" in before  # once, for all blocks
    assert [block.count(f"{word} ") for word in ("mma", "map")] == [1, 1]


def test_steps_and_all_at_once_are_said_by_the_axis_of_k():
    kernel, sizes = EXACT["two layers"]
    lines = {"axis K = (K 200): loop 64", "axis F = (F 128): whole"}
    text = "\n".join([*next(plans_from_the_best(kernel, sizes, LATE, lambda p: lines <= set(p.lines()))).lines(), ""])
    stepped = text.replace("axis F = (F 128): whole", "axis F = (F 128): loop 64").replace(", resident stages 2", "")
    made = kernel_for(kernel, sizes, machine=LATE, plan=stepped)
    assert made.text("plan") == stepped
    assert made.text("block").count("for e_1 in 0..2 unroll {") == 2  # steps of F, in both roles
