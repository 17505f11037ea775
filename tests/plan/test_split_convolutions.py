"""Convolutions with few tasks: their sums are taken apart along channels or taps, exactly, as plans say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from every_plan import every_plan

import tilewright
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.ir.tile import parse_tile
from tilewright.rewrite.split_k import splittable_mma
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
SIZES = {"N": 1, "H": 5, "W": 7, "C": 256, "F": 16}


def candidates(kernel: Any, sizes: dict[str, int]) -> dict[tuple[str, int], str]:
    """The best plan for each way in which the sum is taken apart."""
    plans: dict[tuple[str, int], str] = {}
    for plan in every_plan(kernel, sizes, HOPPER):
        if plan.parts is not None:
            plans.setdefault(plan.parts, str(plan))
    return plans


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"padding": 1}, {("K_2", 3), ("K_1", 3), ("K_0", 2), ("K_0", 4)}),
        ({"padding": 2, "dilation": 2, "bias": True, "activation": "relu"}, {("K_2", 3), ("K_0", 4)}),
        ({"stride": 2, "padding": ((1, 0), (0, 1))}, {("K_2", 3), ("K_0", 4)}),
    ],
)
def test_every_way_is_exact(options: dict[str, Any], expected: set[tuple[str, int]]) -> None:
    kernel = kernels.conv((3, 3), "bf16", "f32", **options)
    found = candidates(kernel, SIZES)
    assert expected <= set(found)
    rng = np.random.default_rng(2)
    for way in sorted(expected):
        made = kernel_for(kernel, SIZES, machine=HOPPER, plan=found[way])
        assert made.plan.parts == way
        assert any("by tma.load" in str(program) for program in made.module.programs.values())
        assert_exact(kernel, made, rng)


def assert_exact(kernel: Any, made: Any, rng: np.random.Generator) -> None:
    """A kernel gives what the executor gives, of small integers."""
    arrays = {
        a.name: rng.integers(-2, 3, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy)
        for a in made.module.host.args
    }
    *given, out = arrays
    arrays[out][...] = 99
    made.bind(arrays)()
    wanted = tilewright.compile(kernel, target="executor")(*(arrays[n] for n in given))
    assert np.array_equal(arrays[out], wanted)


def test_parts_are_whole_slabs() -> None:
    kernel, sizes = kernels.conv((3, 3), "i8", "i32", padding=1), {"N": 2, "H": 3, "W": 3, "C": 256, "F": 64}
    assert {parts for axis, parts in candidates(kernel, sizes) if axis == "K_0"} == {2}  # of 128


PRODUCT = """
tile taps(%a: global f32[M, P, K], %b: global f32[N, P, K], %c: global f32[M, N])
  symbols K, M, N, P
{
  %0 = fill value=0 : f32[M, N]
  %1 = read %a : f32[M, P, K]
  %2 = read %b : f32[N, P, K]
  %3 = mma %1, %2, %0 : f32[M, N]
  write %3, %c
}
"""


@pytest.mark.parametrize(("blocks", "axes"), [("", ["P", "K"]), (" blocks=4", ["P"])])
def test_what_has_a_block_for_each_of_the_result_is_not_taken_apart(blocks: str, axes: list[str]) -> None:
    found = splittable_mma(parse_tile(PRODUCT.replace("%0 : f32", f"%0{blocks} : f32")), (), {})
    assert not isinstance(found, str)
    assert [str(d) for d in found.axes] == axes


def test_few_tasks_are_split_and_many_are_not() -> None:
    kernel = kernels.conv((3, 3), "bf16", padding=1)
    few = kernel_for(kernel, {"N": 1, "H": 7, "W": 7, "C": 512, "F": 512}, machine=HOPPER)
    assert few.plan.parts is not None
    assert f"parts {few.plan.parts[0]} {few.plan.parts[1]}" in str(few.plan)
    assert kernel_for(kernel, {"N": 32, "H": 28, "W": 28, "C": 128, "F": 128}, machine=HOPPER).plan.parts is None


SHORTER = """
axis K_0_split = (K_0_split 3): task 1
axis M = (M 30): task 8
axis F = (F 64): task 64
axis K_2 = (K_2 3): loop 1
axis K_1 = (K_1 3): loop 1
axis K_0_part = (K_0_part 128): loop 64
grid K_0_split, M, F
mma by wgmma.m64n8k16.bf16, tile 8x64 transposed
producer 1 wave 56 registers, consumer 4 waves 240 registers, stages 3, epilogue stages 2
parts K_0 3
"""


@pytest.mark.parametrize("channels", [320, 328])
def test_the_last_part_of_channels_may_be_shorter(channels: int) -> None:
    """Only equal parts were done."""
    kernel = kernels.conv((3, 3), "bf16", "f32", padding=1)
    made = kernel_for(kernel, {"N": 1, "H": 5, "W": 6, "C": channels, "F": 64}, machine=HOPPER, plan=SHORTER)
    assert made.plan.parts == ("K_0", 3)
    assert_exact(kernel, made, np.random.default_rng(5))


@pytest.mark.parametrize("form", ["padded", "aligned"])
def test_the_last_part_of_operands_that_are_repacked_may_be_shorter(form: str) -> None:
    """Only equal parts were done: the dimension of a copy has another name than K."""
    plan = f"""
axis K_split = (K_split 3): task 1
axis M = (M 40): task 8
axis N = (N 72): task 64
axis K_part = (K_part 128): loop 64
grid K_split, M, N
repack a: {form} rows
repack b: {form} rows
mma by wgmma.m64n8k16.bf16, tile 8x64 transposed
producer 1 wave 56 registers, consumer 4 waves 240 registers, stages 3, epilogue stages 2
parts K 3
"""
    kernel = kernels.gemm("nt", "bf16", "f32")
    made = kernel_for(kernel, {"M": 40, "N": 72, "K": 300}, machine=HOPPER, plan=plan)
    assert made.plan.parts == ("K", 3)
    assert_exact(kernel, made, np.random.default_rng(5))


@pytest.mark.parametrize(("length", "ends"), [(100, ["P", "K"]), (101, ["P"])])
def test_parts_are_equal_where_memory_goes_on_past_the_end_of_a_sum(length: int, ends: list[str]) -> None:
    """Past the end of K lie other elements, no zeros."""
    text = PRODUCT.replace("%a: global f32[M, P, K]", "%a: global f32[M, P, L]").replace("symbols K", "symbols K, L")
    text = text.replace("read %a :", "read %a over=[i, j, k] at=[i, j, k] :").replace("N, P\n", "N, P, i, j, k\n")
    program = parse_tile(text)
    row, k = (a.type.dims[-1] for a in program.args[:2])
    found = splittable_mma(program, (), {row: length, k: 100})
    assert not isinstance(found, str)
    assert [str(d) for d in found.axes if d in found.ends] == ends


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("K_2 2", "K_2 is not summed, or has no 2 equal parts"),
        ("K_0 3", "in whole steps there are 2 parts"),
        ("M 2", "the reduced dimensions are"),
    ],
)
def test_parts_that_are_not_equal_are_refused(said: str, why: str) -> None:
    kernel = kernels.conv((3, 3), "bf16", "f32", padding=1)
    plan = candidates(kernel, SIZES)["K_0", 4].replace("parts K_0 4", f"parts {said}")
    with pytest.raises(ArgumentError, match=f"parts.*{why}"):
        kernel_for(kernel, SIZES, machine=HOPPER, plan=plan)
