"""Convolutions with one result of a place: lanes go along places, each with a box of them and all their channels."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.compiler.text import compile_text

PLAN = """axis M = ({digits}): {cuts}
axis F = (F 1): whole
axis K = (K {terms}): {loop}
grid M
raster contiguous
mma by loops
waves {waves}
launch early"""
CASES = {
    "a column of places": (
        (1, 7, 9, 4), {"padding": 1}, (3, 3), ("M_1 8 of 7, M_0 9", "task 36, unit M_1 2", 36, "whole", 2),
    ),
    "lines and columns, a line of the filter at a time": (
        (2, 7, 9, 3), {"padding": 1}, (3, 3),
        ("M_2 2, M_1 8 of 7, M_0 9", "task 24, unit M_1 2, unit M_0 3", 27, "loop 9", 2),
    ),
    "strides, many channels": (
        (3, 9, 11, 12), {"padding": 1, "stride": 2}, (3, 3),
        ("M_2 3, M_1 5, M_0 6", "task 12, unit M_0 3", 108, "loop 36", 2),
    ),
    "holes between taps, one channel": (
        (2, 11, 8, 1), {"padding": 2, "dilation": 2}, (3, 3),
        ("M_2 2, M_1 11, M_0 8", "task 16, unit M_0 8", 9, "whole", 2),
    ),
    "one dimension, without padding": (
        (3, 11, 8), {}, (5,), ("M_1 3, M_0 8 of 7", "task 8, unit M_0 4", 40, "whole", 2),
    ),
    "three dimensions": (
        (1, 3, 4, 6, 2), {"padding": 1}, (3, 3, 3),
        ("M_2 3, M_1 4, M_0 6", "task 12, unit M_1 2, unit M_0 3", 54, "loop 18", 2),
    ),
}  # fmt: skip
IMAGE = {1: "W", 2: "HW", 3: "DHW"}


def made_of(shape, how, taps, dtype, plan=None):
    kernel = kernels.conv(taps, dtype, **how)
    n, *image, c = shape
    sizes = {"N": n, **dict(zip(IMAGE[len(taps)], image, strict=True)), "C": c, "F": 1}
    return kernel, kernel_for(kernel, sizes, target="gpu:hopper", **({} if plan is None else {"plan": plan}))


def case(name, dtype):
    """(the image's shape, the taps, the kernel, what its plan makes of it) of a case."""
    shape, how, taps, (digits, cuts, terms, loop, waves) = CASES[name]
    said = PLAN.format(digits=digits, cuts=cuts, terms=terms, loop=loop, waves=waves)
    kernel, made = made_of(shape, how, taps, dtype, said)
    assert made.text("plan").strip() == said
    return shape, taps, kernel, made


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_gives_what_the_executor_does(name, dtype):
    shape, taps, kernel, made = case(name, dtype)
    kind, rng = made.module.host.args[0].type.dtype.numpy, np.random.default_rng(sum(shape))
    x, f = (rng.integers(-4, 5, s).astype(kind) for s in (shape, (1, *taps, shape[-1])))
    wanted = tilewright.compile(kernel, target="executor")(x, f)
    for level in ("block", "loop"):
        found = np.full(wanted.shape, np.nan, wanted.dtype)
        compile_text(made.text(level), "interpreter")(x, f, found)
        assert (found == wanted).all(), level


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("name", CASES)
def test_windows_lie_in_registers_and_channels_are_loaded_together(name, dtype):
    shape, _, _, made = case(name, dtype)
    assert "x_part" not in "".join(line for line in made.text("loop").splitlines() if "alloc shared" in line)
    words = shape[-1] * {"bf16": 2, "f32": 4}[dtype] / 4
    if words % 2 == 0:
        assert f"ld.global.v{4 if words % 4 == 0 else 2}.b32" in made.text("ptx")


@pytest.mark.parametrize(
    ("shape", "by"),
    [((1, 1080, 1920, 4), "loops"), ((1, 720, 1280, 20), "loops"), ((1, 720, 1280, 64), "wgmma")],
)
def test_large_images_with_few_channels_and_one_result_are_done_so(shape, by):
    """Copies of rows of few channels cost 170 to 210 us there: many short rows by the machine's copies."""
    _, made = made_of(shape, {"padding": 1}, (3, 3), "bf16")
    assert f"mma by {by}" in made.text("plan")


def test_rows_that_share_nothing_are_no_boxes():
    _, made = made_of((32, 14, 14, 512), {}, (1, 1), "bf16")
    assert "mma by wgmma" in made.text("plan")


Q, R, C, F = tkl.sym.Q, tkl.sym.R, tkl.sym.C, tkl.sym.F
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
i, j = (tkw.IndexMapping.iterator(n) for n in range(2))


@tkw.wave([tkw.TilingConstraint(R * C, 4)])
def summed_over_an_expression(
    x: tkl.Memory[Q, C, GLOBAL, tkl.f16], w: tkl.Memory[F, R, C, GLOBAL, tkl.f16], y: tkl.Memory[Q, F, GLOBAL, tkl.f32]
):
    """y[q, f] = the sum over r and c of x[q + r, c] * w[f, r, c], as Wave's convolutions are written."""
    slid = tkw.IndexMapping(num_iterators=2, inputs={Q: i + j // C, C: j % C}, outputs={Q: i, R * C: j})
    taps = tkw.IndexMapping(num_iterators=2, inputs={F: i, R: j // C, C: j % C}, outputs={F: i, R * C: j})

    @tkw.iterate(R * C, init_args=[tkl.Register[Q, F, tkl.f32](0)])
    def total(acc):
        return tkw.mma(tkw.read(x, mapping=slid, otherwise=0), tkw.read(w, mapping=taps), acc)

    tkw.write(total, y)


def test_what_is_summed_may_be_an_expression_of_sizes():
    """It was planned as if loops could take a part of it."""
    sizes = {"Q": 40, "R": 3, "C": 2, "F": 1}
    made = kernel_for(summed_over_an_expression, sizes, target="gpu:hopper")
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-4, 5, s).astype(np.float16) for s in ((40, 2), (1, 3, 2)))
    wanted = tilewright.compile(summed_over_an_expression, target="executor")(x, w)
    found = np.full((40, 1), np.nan, np.float32)
    compile_text(made.text("host"), "interpreter")(x, w, found)
    assert (found == wanted).all()
