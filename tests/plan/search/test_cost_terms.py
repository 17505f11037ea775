"""Terms of the GPU cost, one by one: waits for stages, operands and results, slow reads, and split-K's bound."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.plan.search import cost, rate_plan, split_k
from tilewright.plan.search.kernel import KernelSchedule, work_of
from tilewright.plan.search.launch import share_read_alone
from tilewright.plan.search.work import Phase, TaskEnd, Work
from tilewright.plan.text import parse_plan
from tilewright.targets.registry import machine

sys.path[:0] = [str(Path(__file__).parents[3] / "benchmarks")]
import random_plans as timed  # noqa: E402

HOPPER = machine("hopper")
LIMITS = HOPPER.limits
NEAR = cost.CopyRate(1.0, LIMITS.copy_latency)
GEMM = """\
axis M = (M {M}): task {tile}
axis N = (N {N}): task 128
axis K = (K {K}): loop 64
grid M, N
raster {raster}
mma by wgmma.m64n128k16.bf16, tile {tile}x128
producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 4, epilogue stages 2
launch early
"""
IMAGES = """\
axis N = (N 32): task 1
axis F = (F 128): task {filters}
axis P_Q = (P_Q 784): task 200
axis R = (R 3): loop 1
axis S = (S 3): loop 1
axis C = (C 128): loop 64
grid N, F, P_Q
repack w: rows of K
repack x: rows of K
mma by wgmma.m64n200k16.bf16, tile {filters}x200
producer 1 wave 40 registers, consumer 8 waves 232 registers, stages {stages}, epilogue stages 2{pingpong}
launch early
"""
BYTE_WEIGHTS = """\
axis K_split = (K_split {parts}): task 1
axis M = (M 16): task 16
axis N = (N 8192): task {columns}
axis K_part = (K_part {rest}): loop 128
grid K_split, M, N
mma by wgmma.m64n16k16.bf16.ra, tile 16x{columns} transposed
producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 4, epilogue stages 2
parts K {parts}
launch early
"""


def with_limits(**values):
    return replace(HOPPER, limits=replace(LIMITS, **values))


def kernel_of(program: str, **said) -> KernelSchedule:
    """A KernelSchedule of a product whose plan is GEMM with the sizes of `program` ("gemm MxNxK")."""
    sizes = dict(zip("MNK", program.split()[1].split("x"), strict=True))
    plan = parse_plan(GEMM.format(**sizes, **said))
    candidate = rate_plan(timed.case_of(program).facts, HOPPER, plan)
    assert not isinstance(candidate, str), candidate
    assert isinstance(candidate.kernel, KernelSchedule)
    return candidate.kernel


def test_iterations_that_find_a_stage_free_may_be_shorter_than_those_that_wait_for_one():
    """A product of 8 iterations with 12 stages was predicted as if each waited for a stage: 4.3 us, of 2.8."""
    overlap = cost.Overlap(1, 12)
    few, many = (cost.step_cycles(HOPPER, Phase(trips, 35, copied=1000), overlap, NEAR) for trips in (8, 8000))
    assert few < LIMITS.least_step / 2
    assert many == pytest.approx(LIMITS.least_step, rel=0.01)


@pytest.mark.parametrize("pingpong", [False, True])
def test_each_further_task_of_a_core_adds_the_cycles_between_tasks(pingpong):
    cores, overlap = LIMITS.cores, cost.Overlap(1, 4, pingpong=pingpong)
    for rounds in (1, 2, 5):
        work = Work(rounds * cores, (Phase(16, 512, copied=30000),), TaskEnd(16384, 0, 640), ((1.0, 0.0, 1),))
        without = cost.kernel_time(with_limits(next_task=0.0), work, overlap).cycles
        assert cost.kernel_time(HOPPER, work, overlap).cycles == without + (rounds - 1) * LIMITS.next_task


def test_copies_take_longer_to_arrive_the_less_of_the_operands_is_still_in_l2():
    kept, gone = (share * LIMITS.l2_bytes for share in LIMITS.operands_kept)
    work = Work(LIMITS.cores, (Phase(16, 512, copied=30000),))
    near, half, far = (cost.copy_rate(HOPPER, work._replace(moved=x)).latency for x in (kept, (kept + gone) / 2, 9e9))
    assert (near, far) == (LIMITS.copy_latency, LIMITS.copy_latency + LIMITS.far_latency)
    assert half == pytest.approx((near + far) / 2)


def test_a_task_with_one_buffer_for_results_waits_for_it():
    one, two = (cost.end_cycles(HOPPER, TaskEnd(16384, 0, 640), cost.Overlap(2, 4, stored=n)) for n in (1, 2))
    assert one == two + LIMITS.lone_store


def test_few_stages_of_halo_tiles_make_iterations_longer():
    """Halo tiles had the stages of the other operand: one of them was refilled as if there were four."""
    phase = Phase(90, 512, copied=6000, per_halo_stage=9)
    one, four = (cost.step_cycles(HOPPER, phase, cost.Overlap(2, 4, halo_stages=n), NEAR) for n in (1, 4))
    assert one > four


def test_rows_that_neighbours_read_too_are_brought_once():
    kernel = kernel_of("gemm 4096x4096x4096", tile=128, raster=8)
    shares = [share_read_alone(kernel.tiling, raster, False, "cyclic") for raster in (1, 8)]
    assert all(0 < share < 1 for share in shares)
    assert share_read_alone(kernel.tiling, 8, False, "contiguous") > shares[1]


@pytest.mark.parametrize("program", ["gemm 512x512x16384", "gemm 256x4096x4096"])
def test_the_least_cycles_of_split_k_are_no_more_than_its_cycles(program):
    """The bound counted two waits for memory that the merge no longer has."""
    kernel = kernel_of(program, tile=128, raster=1)
    work = work_of(kernel)
    assert work is not None
    for pieces in split_k._split_k_choices(kernel.tiling):
        assert split_k._least_cycles(kernel, work, pieces) <= split_k._split_candidate(kernel, work, pieces).cycles


def test_operands_that_the_launch_before_copied_are_read_more_slowly():
    """A convolution of images with channels first had the tile whose tasks read the most: it took 23.1 us, not 17.7."""
    case = timed.case_of("every: NCHW convolution 3x3, 128 channels, 28x28")
    narrow = IMAGES.format(filters=64, stages=5, pingpong=", pingpong")
    wide = IMAGES.format(filters=128, stages=4, pingpong="")
    constant = timed.Case(case.make, case.sizes, ("w", "x"))  # copied once, long before
    added = [(case.cycles(plan) or 0) - (constant.cycles(plan) or 0) for plan in (narrow, wide)]
    assert 0 < added[1] < added[0]
    assert (case.cycles(wide) or 0) < (case.cycles(narrow) or 0)


def test_an_iteration_takes_longer_if_the_launch_before_wrote_its_operands():
    phase, overlap = Phase(90, 100, copied=30000), cost.Overlap(2, 4)
    before, after = (cost.step_cycles(HOPPER, phase._replace(rewritten=n), overlap, NEAR) for n in (0, 30000))
    assert after > before
    assert cost.step_cycles(with_limits(rewritten=1.0), phase._replace(rewritten=30000), overlap, NEAR) == before


def test_each_block_of_rows_for_which_lanes_compute_an_operand_waits():
    """Weights of i8 had 4 parts of 256 columns, which took 23.4 us: 2 parts of 128 columns took 22.8."""
    case = timed.case_of("every: int8 weights 16x8192x8192")
    two, four = (
        case.cycles(BYTE_WEIGHTS.format(parts=parts, columns=columns, rest=8192 // parts))
        for parts, columns in ((2, 128), (4, 256))
    )
    assert two is not None
    assert four is not None
    assert two < four
