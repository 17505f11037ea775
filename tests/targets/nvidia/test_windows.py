"""Windows of lanes as PTX: one load for each place, all of them 16 bytes, words that stay whole, nothing spilled."""

from __future__ import annotations

import re

import numpy as np
import pytest
from assembler import assembled, ptxas

from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.compiler.text import compile_text

LARGE = [
    (256, 112, 32, 3, 1),
    (256, 112, 96, 3, 2),
    (256, 56, 144, 3, 1),
    (256, 28, 128, 3, 1),
    (256, 14, 512, 3, 1),
    (256, 7, 960, 3, 1),
    (128, 14, 384, 7, 1),
]


def made(n, image, c, taps, stride, plan=None):
    kernel = kernels.conv((taps, taps), "bf16", groups=c, padding=taps // 2, stride=stride)
    sizes = {"N": n, "H": image, "W": image, "C": c, "F": c, "CG": 1}
    return kernel_for(kernel, sizes, target="gpu:hopper", **({} if plan is None else {"plan": plan}))


def test_a_lane_loads_every_place_of_its_window_once():
    plan = (
        "axis G = (G 128): task 64; axis M = (M_2 256, M_1 28, M_0 28): task 64, unit M_1 2, unit M_0 2; "
        "axis FG = (FG 1): whole; axis K = (K 9): whole; grid G, M; raster contiguous; mma by loops; waves 4"
    )
    ptx = made(256, 28, 128, 3, 1, plan).text("ptx")
    assert len(re.findall(r"ld\.global\.v4\.b32", ptx)) == 4 * 4
    assert len(re.findall(r"ld\.shared\.v4\.b32", ptx)) == 9
    assert len(re.findall(r"fma\.rn\.f32", ptx)) == 9 * 4 * 8


@pytest.mark.sampled(2)
@pytest.mark.skipif(ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_chosen_plans_have_boxes_and_spill_nothing(case):
    kernel = made(*case)
    assert "unit M_" in kernel.text("plan")
    said = assembled(kernel.text("ptx"), "sm_90a")
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said


TEXT = """block seen(%x: in global f32 (64, {columns}), %y: out global f32 (64, {columns}))
  machine hopper
  waves 2
{{
  tasks t in 0..1 {{
    %part = alloc shared f32 (64, {columns})
    copy %x -> %part
    barrier
    %left = view %part (i 64, j {half}) -> [i, j]
    %right = view %part (i 64, j {half}) -> [i, j + {half}]
    %lower = view %y (i 64, j {half}) -> [i, j]
    %upper = view %y (i 64, j {half}) -> [i, j + {half}]
    map %lower = %left + %right
    map %upper = %left - %right
    barrier
  }}
}}"""


@pytest.mark.parametrize("columns", [32, 64])
def test_what_lies_side_by_side_is_not_every_lanes_own(columns):
    """Neighbours of a row are loaded by neighbouring lanes: halves of it meet in shared memory."""
    text = TEXT.format(columns=columns, half=columns // 2)
    loop = compile_text(text, "gpu:hopper").text("loop")
    assert any("alloc shared" in line and "part" in line for line in loop.splitlines())
    x = np.arange(64 * columns, dtype=np.float32).reshape(64, columns) % 23
    y = np.full_like(x, np.nan)
    compile_text(loop, "interpreter")(x, y)
    left, right = x[:, : columns // 2], x[:, columns // 2 :]
    assert (y == np.concatenate([left + right, left - right], axis=1)).all()


def test_a_few_vectors_side_by_side_may_be_every_lanes_own():
    loop = compile_text(TEXT.format(columns=8, half=4), "gpu:hopper").text("loop")
    assert "alloc shared" not in loop
    assert "ld.global.v4.b32" in compile_text(TEXT.format(columns=8, half=4), "gpu:hopper").text("ptx")
    x = np.arange(64 * 8, dtype=np.float32).reshape(64, 8) % 23
    y = np.full_like(x, np.nan)
    compile_text(loop, "interpreter")(x, y)
    assert (y == np.concatenate([x[:, :4] + x[:, 4:], x[:, :4] - x[:, 4:]], axis=1)).all()


ACROSS = TEXT.replace("(64, {columns})", "({columns}, 64)").replace(
    "(i 64, j {half}) -> [i, j]", "(j {half}, i 64) -> [j, i]"
)
ACROSS = ACROSS.replace("(i 64, j {half}) -> [i, j + {half}]", "(j {half}, i 64) -> [j + {half}, i]")


def test_what_lies_across_is_every_lanes_own():
    """Rows are the lanes' own: which of them an operation looks at moves nothing."""
    loop = compile_text(ACROSS.format(columns=8, half=4), "gpu:hopper").text("loop")
    assert "alloc shared" not in loop
    x = np.arange(8 * 64, dtype=np.float32).reshape(8, 64) % 23
    y = np.full_like(x, np.nan)
    compile_text(loop, "interpreter")(x, y)
    assert (y == np.concatenate([x[:4] + x[4:], x[:4] - x[4:]])).all()


ONE_RESULT = (
    "axis M = (M_1 72, M_0 256): task 768, unit M_1 3; axis F = (F 1): whole; axis K = (K 180): whole; grid M; "
    "raster contiguous; mma by loops; waves 8"
)


def one_result(dtype, plan, **sizes):
    kernel = kernels.conv((3, 3), dtype, padding=1)
    return kernel_for(kernel, {"N": 1, "H": 72, "W": 256, "C": 20, "F": 1} | sizes, target="gpu:hopper", plan=plan)


def test_a_lane_has_one_box_where_results_of_boxes_lie_side_by_side():
    """Vectors of results gave a lane eight boxes, whose windows no registers held; seven lanes of eight were idle."""
    loop = one_result("bf16", ONE_RESULT).text("loop")
    assert re.search(r"%carried\w* = alloc fragment f32 \(32, 3\)", loop)
    assert re.search(r"%x_part\w* = alloc fragment bf16 \(32, 300\)", loop)


def test_bytes_under_a_condition_stay_in_words():
    """Each byte took a register, and was taken out of its word where it was loaded: the next load waited for it."""
    plan = (
        "axis G = (G 96): task 32; axis M = (M_2 2, M_1 56, M_0 56): task 16, unit M_0 2; axis FG = (FG 1): whole; "
        "axis K = (K 9): loop 3; grid G, M; raster contiguous; mma by loops; waves 2"
    )
    kernel = kernels.conv((3, 3), "i8", groups=96, padding=1, stride=2)
    sizes = {"N": 2, "H": 112, "W": 112, "C": 96, "F": 96, "CG": 1}
    ptx = kernel_for(kernel, sizes, target="gpu:hopper", plan=plan).text("ptx")
    loads = re.findall(r"ld\.global\.v4\.b32.*?\$L", ptx, re.DOTALL)
    assert len(loads) >= 5 * 3
    assert not any("prmt" in load or "cvt" in load for load in loads)
    if ptxas() is not None:
        assert "0 bytes spill stores, 0 bytes spill loads" in assembled(ptx, "sm_90a")


def test_sums_of_integers_are_not_given_too_few_registers():
    """Only products by fma were seen: a kernel of integers was to share a core's registers by 1024 lanes."""
    plan = ONE_RESULT.replace("task 768, unit M_1 3", "task 640, unit M_1 5").replace("waves 8", "waves 4")
    ptx = one_result("i8", plan.replace("M_1 72", "M_1 75"), H=75).text("ptx")
    held = 5 + 7 * 3 * 20 // 4
    (workgroups,) = re.findall(r"minnctapersm (\d+)", ptx)
    assert int(workgroups) * 4 * 32 * held <= 65536
