"""Plans that an author edits, bound and interpreted: exactly what the program says, whatever the planner would list."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from pinned_plans import first_plan, on_operands_as_they_lie

import tilewright
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.targets.registry import machine

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import corpus_kernels as own

ATOMS = {"nt": "", "nn": ".tb", "tn": ".ta.tb", "tt": ".ta"}
"""The ends of the names of atoms that read operands which lie so."""


def outputs(make, sizes, row, plan, data=(-2, 3)):
    """What a plan computes on small integers, interpreted, and what the program means."""
    kernel = kernel_for(make(), sizes, machine=machine(row), plan=plan)
    *inputs, result = kernel.module.host.args
    rng = np.random.default_rng(0)
    arrays = {a.name: rng.integers(*data, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy) for a in inputs}
    wanted = tilewright.compile(make(), target="executor")(*arrays.values())
    found = np.full(wanted.shape, -77, wanted.dtype)
    kernel.bind({**arrays, result.name: found})()
    return found.astype(np.float64), wanted.astype(np.float64)


def assert_exact(make, sizes, row, plan):
    """A plan computes what the program means, exactly."""
    found, wanted = outputs(make, sizes, row, plan)
    assert np.array_equal(found, wanted)


def chosen(make, sizes, row):
    """The plan that is chosen."""
    return kernel_for(make(), sizes, machine=machine(row)).text("plan").strip()


def product(layout, sizes, block, step, ring, tasks="M, N", waves=4, registers=240, more="", turned=False):
    """The plan of a product on Hopper."""
    (m, n, k), (rows, columns) = sizes, block
    batch = more and "axis B = (B 3): task 1\n"
    atom = f"wgmma.m64n{rows if turned else columns}k16.bf16{ATOMS[layout]}"
    return (
        f"{batch}axis M = (M {m}): task {rows}\naxis N = (N {n}): task {columns}\n"
        f"axis K = (K {k}): {f'loop {step}' if step else 'whole'}\ngrid {more}{tasks}\n"
        f"mma by {atom}, tile {rows}x{columns}{' transposed' if turned else ''}\n"
        f"producer 1 wave 24 registers, consumer {waves} waves {registers} registers, stages {ring}, epilogue stages 1"
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", ATOMS)
@pytest.mark.parametrize(
    ("sizes", "block", "step", "ring", "how"),
    [
        ((136, 72, 200), (64, 64), 128, 2, {}),  # K steps of two rows of shared memory, the last one half full
        ((136, 72, 200), (64, 64), 0, 1, {}),  # all of K in one step
        ((136, 72, 200), (128, 64), 64, 3, {"tasks": "N, M"}),  # two atoms for one group of waves, tasks along N first
        ((200, 72, 264), (192, 64), 192, 1, {"waves": 12, "registers": 160, "tasks": "N, M; raster 2"}),
    ],
)
def test_products_by_tiles_and_steps_that_no_planner_lists(layout, sizes, block, step, ring, how):
    """Only the tiles, waves and K steps that the planner lists were taken."""
    plan = product(layout, sizes, block, step, ring, **how)
    assert_exact(lambda: kernels.gemm(layout, "bf16", "bf16"), dict(zip("MNK", sizes, strict=True)), "hopper", plan)


def test_a_batched_product_in_steps_of_two_rows():
    plan = product("nt", (72, 136, 200), (64, 40), 128, 2, more="B, ")
    sizes = {"B": 3, "M": 72, "N": 136, "K": 200}
    assert_exact(lambda: kernels.gemm("nt", "bf16", "bf16", batched=True), sizes, "hopper", plan)


def test_a_transposed_product_whose_tile_takes_two_copies():
    """A tile of more than 256 rows is brought by two copies."""
    plan = product("nt", (40, 400, 136), (24, 384), 128, 1, waves=12, registers=160, turned=True)
    assert_exact(lambda: kernels.gemm("nt", "bf16", "bf16"), {"M": 40, "N": 400, "K": 136}, "hopper", plan)


def test_an_operand_that_is_computed_in_steps_of_two_rows():
    """The stage of a computed operand had one row of shared memory, whatever the K step."""
    sizes = {"M": 72, "N": 136, "K": 256}
    plan = str(first_plan(own.byte_weights(), sizes, machine("hopper"), on_operands_as_they_lie))  # K is not in parts
    assert "loop 128" in plan  # 128 bytes of a row of bytes: two rows of shared memory in bf16
    assert_exact(own.byte_weights, sizes, "hopper", re_sub(r"(?<!epilogue )stages \d+", "stages 2", plan))


def re_sub(pattern, new, text):
    """The text with what a pattern finds replaced, which is there."""

    assert re.search(pattern, text)
    return re.sub(pattern, new, text)


IMAGE = {"N": 2, "H": 9, "W": 14, "C": 64, "F": 64}
DEPTHWISE = {"N": 3, "H": 9, "W": 14, "CG": 1, "F": 64}


def conv(dtype="bf16", **more):
    """A convolution with a 3x3 filter."""
    return lambda: kernels.conv((3, 3), dtype, padding=1, **more)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "changes",
    [
        {r"grid \w+, \w+": "grid F, M; raster 2"},
        {r"grid \w+, \w+": "grid M, F; raster 3, contiguous"},
        {r"axis K_0 = \(K_0 64\): loop 64": "axis K_0 = (K_0 64): whole"},
        {r"(axis K_2 = .*)\n(axis K_1 = .*)": r"\2\n\1"},
    ],
)
def test_halo_tiles_in_another_order(changes):
    """Boxes went through the grid in one order, and groups of them had no effect."""
    plan = chosen(conv(), IMAGE, "hopper")
    assert " halo at " in plan
    for said, other in changes.items():
        plan = re_sub(said, other, plan)
    assert_exact(conv(), IMAGE, "hopper", plan)


@pytest.mark.parametrize(("axis", "ring"), [("K_1", 3), ("K_2", 3), ("both", 1)])
def test_several_taps_in_one_stage(axis, ring):
    """A stage had one tap of a filter."""
    make = lambda: kernels.conv((3, 3), "bf16", stride=2, padding=1)  # noqa: E731
    sizes = IMAGE | {"H": 13, "W": 15, "F": 72}
    plan = re_sub(r"(?<!e )stages \d+", f"stages {ring}", chosen(make, sizes, "hopper"))
    for name in ("K_1", "K_2") if axis == "both" else (axis,):
        plan = re_sub(rf"axis {name} = \({name} 3\): loop 1", f"axis {name} = ({name} 3): loop 3", plan)
    assert_exact(make, sizes, "hopper", plan)


def test_all_of_k_for_one_tap_after_the_other():
    """Where K was whole, every tap read what the first one reads."""
    make = lambda: kernels.conv((3, 3), "bf16", stride=2, padding=1)  # noqa: E731
    sizes = IMAGE | {"H": 13, "W": 15, "F": 72}
    plan = re_sub(r"axis K_0 = (.*): loop 64", r"axis K_0 = \1: whole", chosen(make, sizes, "hopper"))
    assert_exact(make, sizes, "hopper", plan)


HEADS = {"B": 1, "H": 2, "M": 40, "N": 128, "D": 64, "E": 32}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("row", "step"), [("ampere", 32), ("cdna3", 16), ("x86.avx512", 24)])
def test_attention_that_sums_the_head_in_steps(row, step):
    """Only a loop of the program had steps; the same sums of integers give the same scores."""
    dtype = "f32" if row.startswith("x86") else "bf16"
    make = lambda: kernels.attention(64, dtype)  # noqa: E731
    plan = chosen(make, HEADS, row)
    found, _ = outputs(make, HEADS, row, re_sub(r"axis D = (.*): whole", rf"axis D = \1: loop {step}", plan))
    assert np.array_equal(found, outputs(make, HEADS, row, plan)[0])


def test_attention_with_tasks_in_another_order():
    make = lambda: kernels.attention(64, "bf16")  # noqa: E731
    plan = chosen(make, HEADS, "hopper")
    found, _ = outputs(make, HEADS, "hopper", re_sub(r"grid .*", "grid E, M, H", plan))
    assert np.array_equal(found, outputs(make, HEADS, "hopper", plan)[0])


@pytest.mark.parametrize("block", ["128x16", "192x48", "64x64"])
def test_blocks_of_several_atoms_without_a_pipeline(block):
    """Blocks were looked up in a list, which had one atom of those that read shared memory."""
    plan = (
        "axis M = (M 200): task 200\naxis N = (N 72): task 72\naxis K = (K 136): whole\ngrid M, N\n"
        f"mma by wgmma.m64n16k16.bf16, tile {block}"
    )
    assert_exact(lambda: kernels.gemm("nt", "bf16", "bf16"), {"M": 200, "N": 72, "K": 136}, "hopper", plan)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "sizes", "row", "said", "other"),
    [
        (conv("f32"), IMAGE | {"N": 3}, "x86.avx512", r"(axis m_2 = .*): task 1", r"\1: task 2"),
        (conv(), IMAGE | {"N": 3}, "x86.amx", r"(axis m_2 = .*): task 1", r"\1: task 2"),
        (conv("i8"), IMAGE | {"N": 3}, "x86.amx", r"(axis m_2 = .*): task 1", r"\1: task 7"),
        (
            conv(dtype="f32", groups=64),
            IMAGE | {"N": 3, "CG": 1},
            "x86.avx512",
            r"(axis m_1 = .*): task 1",
            r"\1: task 4",
        ),
    ],
)
def test_a_task_with_several_images(make, sizes, row, said, other):
    """A task had one of a batch."""
    plan = re_sub(said, other, chosen(make, sizes, row))
    assert_exact(make, sizes, row, plan)


def test_axes_of_a_contraction_in_any_order():
    """`its axes are depth, columns, rows; here they are rows, columns, depth`."""
    make, sizes = (lambda: kernels.gemm("nt", "f32")), {"M": 30, "N": 136, "K": 20}
    lines = chosen(make, sizes, "x86.avx512").splitlines()
    axes = [line for line in lines if line.startswith("axis ")]
    assert_exact(make, sizes, "x86.avx512", "\n".join([*reversed(axes), *lines[len(axes) :]]))


NT = (136, 72, 200)
REFUSED = [
    ("240 registers", "272 registers", "at most 248"),
    ("consumer 4 waves 240", "consumer 8 waves 256", "at most 248"),
    ("epilogue stages 1", "epilogue stages 1, pingpong", "waves that multiply are multiples of 8"),
    (
        "4 waves 240 registers, stages 2, epilogue stages 1",
        "8 waves 248 registers, stages 2, epilogue stages 1, pingpong",
        "168 each, 504 in all",
    ),
    ("epilogue stages 1", "resident stages 2, epilogue stages 1", "no operand is loaded once"),
    ("loop 64", "loop 264", "no multiple of a row"),
    ("loop 64", "loop 320", "longer than K"),
    ("4 waves", "12 waves", "3 groups of waves do not share 64x64 in whole atoms of 64x64"),
    ("stages 2", "stages 20", "shared memory"),
    ("grid M, N", "grid M, N\nraster 2, dynamic", "dynamic tasks are grouped along the axes before M"),
]


@pytest.mark.parametrize(("said", "other", "why"), REFUSED)
def test_a_line_that_breaks_a_rule_is_refused_by_it(said, other, why):
    """`resident stages 2` and 272 registers were taken, and a K step that is longer than K."""
    plan = product("nt", NT, (64, 64), 64, 2)
    assert said in plan
    line = next(x for x in plan.replace(said, other, 1).splitlines() if x not in plan.splitlines())
    with pytest.raises(ArgumentError) as fault:
        kernel_for(
            kernels.gemm("nt", "bf16", "bf16"),
            dict(zip("MNK", NT, strict=True)),
            machine=machine("hopper"),
            plan=plan.replace(said, other, 1),
        )
    assert why in str(fault.value)
    assert f"`{line}`" in str(fault.value)


GENERAL = [
    (r"axis M = (.*): task \d+, loop \d+", r"axis M = \1: task 24, loop 48", "a level is a part of the one before it"),
    (r"axis N = (.*): task \d+, loop \d+", r"axis N = \1: task 48, loop 16", "the block has"),
    (r"axis K = (.*): .*", r"axis K = \1: loop 4000", "is longer than the axis"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("row", ["ampere", "cdna3", "xe"])
@pytest.mark.parametrize(("said", "other", "why"), GENERAL)
def test_loops_that_are_no_block_are_refused_without_a_pipeline(row, said, other, why):
    """`task 24, loop 48` was taken, and another block done."""
    make, sizes = (lambda: kernels.gemm("nt", "bf16")), {"M": 130, "N": 136, "K": 96}
    plan = re_sub(said, other, chosen(make, sizes, row))
    with pytest.raises(ArgumentError, match=why):
        kernel_for(make(), sizes, machine=machine(row), plan=plan)


CONTRACTION = [
    (r"(grid .*)", r"\1; raster 2", "workers of a CPU take tasks in order"),
    (r"b packed at bind", "b panel at task", "columns lie packed"),
    (r"unit 16(\naxis col)", r"unit 32\1", "the atom takes `unit 16`"),
    (r"overlap delayed store", "overlap mma ahead", "a single contraction has no products that overlap"),
    (r"n_0 144 of 136", "n_0 136", "blocks go on to the end of the last one"),
]


@pytest.mark.parametrize(("said", "other", "why"), CONTRACTION)
def test_a_line_of_a_contraction_is_refused_by_its_rule(said, other, why):
    """`is not done here` named no rule; `overlap mma ahead` was taken."""
    make, sizes = (lambda: kernels.gemm("nt", "bf16")), {"M": 300, "N": 136, "K": 192}
    plan = re_sub(said, other, chosen(make, sizes, "x86.amx"))
    with pytest.raises(ArgumentError, match=why):
        kernel_for(make(), sizes, machine=machine("x86.amx"), plan=plan)


def test_a_box_of_lanes_that_is_longer_than_its_digit_is_refused():
    """It ended in an error of the compiler's own."""
    make, sizes = (
        lambda: kernels.conv((3, 3), "bf16", groups=128, padding=1),
        {"N": 8, "H": 28, "W": 28, "CG": 1, "F": 128},
    )
    plan = re_sub(r"unit M_0 \d+", "unit M_0 35", chosen(make, sizes, "hopper"))
    with pytest.raises(ArgumentError, match="a lane's box of 35 is longer than M_0, which has 28"):
        kernel_for(make(), sizes, machine=machine("hopper"), plan=plan)


@pytest.mark.parametrize("rows", ["", ".tb", ".ta", ".ta.tb"])
def test_lanes_copy_operands_in_the_order_that_an_atom_reads_without_a_pipeline(rows):
    """Only atoms with K contiguous were taken, though lanes may write shared memory in any order."""
    plan = (
        "axis M = (M 70): task 64\naxis N = (N 130): task 64\naxis K = (K 100): whole\ngrid M, N\n"
        f"mma by wgmma.m64n64k16.bf16{rows}, tile 64x64"
    )
    assert_exact(lambda: kernels.gemm("nt", "bf16", "f32"), {"M": 70, "N": 130, "K": 100}, "hopper", plan)
