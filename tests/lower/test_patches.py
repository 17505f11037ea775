"""Products around halo tiles: boxes of positions whose reads overlap are brought once."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from every_plan import every_plan
from pinned_plans import planned_as

import tilewright
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.ir.tile import parse_tile
from tilewright.plan.text import parse_plan
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
SMALL = replace(HOPPER, limits=replace(HOPPER.limits, cores=2))
"""One of two cores: small problems have several tasks for each."""


def integers(*shape):
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


def exact(made, kernel):
    """Runs what was made on the interpreter; it is to be what the executor gives."""
    *inputs, result = made.module.host.args
    arrays = {a.name: integers(*map(int, a.type.shape)).astype(a.type.dtype.numpy) for a in inputs}
    wanted = tilewright.compile(kernel, target="executor")(*arrays.values())
    found = np.full(wanted.shape, np.nan, wanted.dtype)
    made.bind({**arrays, result.name: found})()
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


def patched(kernel, sizes, chosen=lambda plan: True):
    """The first candidate with a halo tile of which something holds, run and found exact."""
    made = planned_as(kernel, sizes, SMALL, lambda plan: plan.pipeline and plan.pipeline.halo_stages and chosen(plan))
    exact(made, kernel)
    assert "halo" in made.text("block")
    return made


def stays(plan):
    return plan.values[1].at == "start"


def in_turn(plan):
    return plan.pipeline.pingpong


CASES = [
    ((3, 9, 11, 64, 64), (3, 3), {"padding": 1}, lambda p: in_turn(p) and stays(p)),
    ((4, 9, 11, 64, 64), (3, 3), {"padding": 1}, lambda p: stays(p)),
    ((4, 9, 11, 64, 64), (3, 3), {"padding": 1}, lambda p: not stays(p)),
    ((2, 16, 8, 72, 128), (3, 3), {"padding": 1, "bias": True, "activation": "relu"}, lambda p: not stays(p)),
    ((3, 7, 7, 136, 72), (3, 3), {"padding": 1}, lambda p: not stays(p)),
    ((2, 12, 21, 64, 64), (5, 3), {"dilation": (1, 2)}, lambda p: True),
    ((2, 12, 9, 64, 64), (2, 2), {"padding": ((0, 1), (3, 0))}, lambda p: True),
    ((3, 150, 64, 72), (5,), {"padding": 2}, lambda p: True),
    ((1, 2, 9, 8, 64, 64), (2, 3, 3), {"padding": 1}, lambda p: True),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("shape", "taps", "how", "chosen"), CASES)
def test_what_is_read_around_a_box_of_positions_is_brought_once(shape, taps, how, chosen):
    names = {1: "NWCF", 2: "NHWCF", 3: "NDHWCF"}[len(taps)]
    made = patched(kernels.conv(taps, "bf16", **how), dict(zip(names, shape, strict=True)), chosen)
    text = made.text("block")
    assert "im2col" not in text
    assert text.count("copy %x_view ->") == 1
    assert "by tma.load" in text
    assert "by tma.store" in text


PADDED = {"padding": 1}
RUNNING = [
    # shape, taps, how; digits of M, their cuts; the block, where B is staged, waves that multiply and their registers
    ((3, 7, 7, 136, 96), (3, 3), PADDED, "M_2 3, M_1 7, M_0 9 of 7", "task M_2 2", (128, 96), "K_2", (8, 232)),
    ((2, 9, 11, 64, 64), (3, 3), PADDED, "M_2 2, M_1 9, M_0 13 of 11", "task M_2 1", (128, 64), "K_1", (8, 232)),
    (
        (2, 12, 9, 64, 64),
        (5, 3),
        {"dilation": (1, 2)},
        "M_2 2, M_1 8, M_0 9 of 5",
        "task M_2 1",
        (128, 64),
        "K_2",
        (4, 240),
    ),
    (
        (3, 6, 7, 64, 64),
        (2, 2),
        {"padding": ((0, 1), (3, 0))},
        "M_2 3, M_1 6, M_0 10 of 9",
        "task M_2 2",
        (128, 64),
        "start",
        (8, 232),
    ),
    (
        (5, 7, 7, 64, 64),
        (3, 3),
        {"padding": 1, "bias": True},
        "M_2 5, M_1 7, M_0 9 of 7",
        "task M_2 1",
        (64, 64),
        "K_2",
        (8, 232),
    ),
    (
        (2, 3, 5, 8, 64, 64),
        (2, 3, 3),
        PADDED,
        "M_3 2, M_2 4, M_1 5, M_0 10 of 8",
        "task M_3 1, task M_2 2",
        (128, 64),
        "K_2",
        (8, 232),
    ),
]


@pytest.mark.parametrize(("shape", "taps", "how", "digits", "cuts", "block", "at", "roles"), RUNNING)
def test_rows_may_run_on_from_line_to_line_of_a_halo_tile(shape, taps, how, digits, cuts, block, at, roles):
    sizes = dict(zip({2: "NHWCF", 3: "NDHWCF"}[len(taps)], shape, strict=True))
    deep = [f"K_{n}" for n in range(len(taps), 0, -1)]
    loops = [
        f"axis {k} = ({k} {n}): loop {n if k == 'K_1' and at != 'K_1' and at != 'start' else 1}"
        for k, n in zip(deep, taps, strict=True)
    ]
    (m, n), (waves, registers) = block, roles
    stages = 1 if at == "start" else 2
    turns = ", pingpong" if m == 64 else ""
    plan = [
        f"axis M = ({digits}): {cuts}",
        f"axis F = (F {sizes['F']}): task {n}",
        *loops,
        f"axis K_0 = (K_0 {sizes['C']}): loop 64",
        "grid M, F",
        f"loops K_0, {', '.join(deep)}",
        "x halo at K_0",
        f"w panel at {at}",
        f"mma by wgmma.m64n{n}k16.bf16, tile {m}x{n}",
        f"producer 1 wave 40 registers, consumer {waves} waves {registers} registers, stages {stages}, "
        f"halo stages 2, epilogue stages 1{turns}",
        "launch early",
    ]
    kernel = kernels.conv(taps, "bf16", **how)
    made = kernel_for(kernel, sizes, machine=SMALL, plan="; ".join(plan))
    assert str(made.plan) == "; ".join(plan)
    exact(made, kernel)
    text = made.text("block")
    assert len(re.findall(r"fill %halo_slack", text)) == 1
    assert "by tma.load" in text
    assert "by tma.store" in text


CHANNELS_FIRST = """tile conv(%x: global bf16[N, H, W, C], %w: global bf16[F, 3, 3, C], %y: global bf16[N, F, H, W])
  symbols C, F, H, K, M, N, W, it0, it1
  bind K = C*9
  bind M = N*H*W
{
  %0 = fill value=0 : f32[M, F]
  %1 = iterate %0 axis=(K) (%2: f32[M, F]) {
    %3 = read %x over=[it0, it1] at=[it0//(H*W), (it0//W)%H + it1//(C*3) - 1, (it1//C)%3 + it0%W - 1, it1%C] otherwise=0 : bf16[M, K]
    %4 = read %w over=[it0, it1] at=[it0, it1//(C*3), (it1//C)%3, it1%C] : bf16[F, K]
    %5 = mma %3, %4, %2 : f32[M, F]
    yield %5
  } : f32[M, F]
  %6 = cast %1 dtype=bf16 : bf16[M, F]
  write %6, %y over=[it0, it1] at=[it0//(H*W), it1, (it0//W)%H, it0%W]
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("shape", "digits", "images"),
    [((3, 7, 8), "M_2 3, M_1 7, M_0 10 of 8", 1), ((3, 6, 7), "M_2 3, M_1 6, M_0 9 of 7", 2)],
)
def test_a_strip_stored_with_channels_first_took_its_columns_for_rows(shape, digits, images):
    """Slabs of accumulator rows are no whole lines: the copy of a slab read beyond the slab."""
    program, sizes = parse_tile(CHANNELS_FIRST), {**dict(zip("NHW", shape, strict=True)), "C": 72, "F": 136}
    plan = f"""axis M = ({digits}): task M_2 {images}
        axis F = (F 136): task 64
        axis K_2 = (K_2 3): loop 1
        axis K_1 = (K_1 3): loop 3
        axis K_0 = (K_0 72): loop 64
        grid M, F
        loops K_0, K_2, K_1
        x halo at K_0
        w panel at K_2
        mma by wgmma.m64n64k16.bf16, tile 128x64
        producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 2, halo stages 2, epilogue stages 1
        launch early"""
    made = kernel_for(SimpleNamespace(trace=lambda: program), sizes, machine=SMALL, plan=plan)
    exact(made, program)


def test_a_plan_with_a_halo_tile_is_read_back_and_may_be_pinned():
    kernel, sizes = kernels.conv((3, 3), "bf16", padding=1), {"N": 4, "H": 9, "W": 11, "C": 64, "F": 64}
    made = patched(kernel, sizes)
    text = made.text("plan")
    assert str(parse_plan(text)) == str(made.plan)
    assert kernel_for(kernel, sizes, machine=SMALL, plan=text).text("block") == made.text("block")
    fewer = re.sub(r"halo stages \d,", "halo stages 1,", text)
    assert kernel_for(kernel, sizes, machine=SMALL, plan=fewer).text("plan") == fewer
    with pytest.raises(ArgumentError, match=r"plan: .*halo stages 90.*shared memory"):
        kernel_for(kernel, sizes, machine=SMALL, plan=re.sub(r"halo stages \d,", "halo stages 90,", text))
    ((across, rows),) = re.findall(r"task M_0 (\d+)\n(?s:.*), tile (\d+)x", text)
    half = text.replace(f"task M_0 {across}", f"task M_0 {int(across) // 2}")
    with pytest.raises(ArgumentError, match=rf"a box of {int(rows) // 2} rows; .* has {rows}"):
        kernel_for(kernel, sizes, machine=SMALL, plan=half)


@pytest.mark.parametrize(
    ("taps", "stride", "why"),
    [((3, 3), 2, "refused  halo tiles: neighbours along M_1 do not lie side by side"), ((1, 1), 1, "")],
)
def test_rows_that_do_not_overlap_have_no_halo_tile(taps, stride, why):
    kernel, sizes = kernels.conv(taps, "bf16", stride=stride), {"N": 4, "H": 9, "W": 11, "C": 64, "F": 64}
    assert not every_plan(kernel, sizes, HOPPER, lambda plan: plan.pipeline and plan.pipeline.halo_stages)
    assert why in kernel_for(kernel, sizes, machine=HOPPER).explain()


def test_the_machine_decides_whether_a_halo_tile_pays():
    """A halo tile takes less, unless boxes waste too much; were copies slower, it would even then."""
    kernel, sizes = kernels.conv((3, 3), "bf16", padding=1), {"N": 32, "H": 56, "W": 56, "C": 64, "F": 64}
    made = kernel_for(kernel, sizes, machine=HOPPER)
    assert made.plan.pipeline.halo_stages
    assert stays(made.plan)
    slow = replace(HOPPER, limits=replace(HOPPER.limits, l2_rate=HOPPER.limits.l2_rate / 2))
    small = {"N": 32, "H": 14, "W": 14, "C": 256, "F": 256}
    halos = [kernel_for(kernel, small, machine=each).plan.pipeline.halo_stages for each in (HOPPER, slow)]
    assert not halos[0]
    assert halos[1]
