"""Boxes of results for lanes that do products term by term: windows in registers, exact, said by plans."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.compiler.text import compile_text
from tilewright.errors import ArgumentError
from tilewright.plan.text import parse_plan

PLAN = """axis G = (G {c}): task {g}
axis M = ({digits}): {cuts}
axis FG = (FG 1): whole
axis K = (K {taps}): {loop}
grid G, M
raster contiguous
mma by loops
waves {waves}
launch early"""
LARGE = {"N": 256, "H": 28, "W": 28, "C": 128, "F": 128, "CG": 1}


def plan(c, g, digits, cuts, taps, loop, waves):
    return PLAN.format(c=c, g=g, digits=digits, cuts=cuts, taps=taps, loop=loop, waves=waves)


CASES = {
    "a line's neighbours, past its end": (
        ((1, 7, 9), 24, {"padding": 1}, (3, 3)),
        plan(24, 24, "M_1 7, M_0 12 of 9", "task 24, unit M_0 4", 9, "whole", 2),
    ),
    "a line of the filter at a time": (
        ((1, 7, 9), 24, {"padding": 1}, (3, 3)),
        plan(24, 24, "M_1 7, M_0 12 of 9", "task 12, unit M_0 4", 9, "loop 3", 2),
    ),
    "lines and columns": (
        ((2, 7, 9), 24, {"padding": 1}, (3, 3)),
        plan(24, 16, "M_2 2, M_1 8 of 7, M_0 9", "task 24, unit M_1 2, unit M_0 3", 9, "whole", 2),
    ),
    "strides": (
        ((3, 9, 11), 40, {"padding": 1, "stride": 2}, (3, 3)),
        plan(40, 32, "M_2 3, M_1 5, M_0 6", "task 12, unit M_0 3", 9, "loop 3", 4),
    ),
    "a stride along lines alone": (
        ((3, 9, 6), 40, {"padding": 1, "stride": (2, 1)}, (3, 3)),
        plan(40, 40, "M_2 3, M_1 6 of 5, M_0 6", "task 12, unit M_1 2, unit M_0 2", 9, "whole", 4),
    ),
    "holes between taps": (
        ((2, 11, 8), 16, {"padding": 2, "dilation": 2}, (3, 3)),
        plan(16, 16, "M_2 2, M_1 11, M_0 8", "task 16, unit M_0 8", 9, "loop 3", 2),
    ),
    "without padding, ragged channels": (
        ((2, 6, 5), 13, {}, (3, 2)),
        plan(13, 13, "M_2 2, M_1 4, M_0 4", "task 8, unit M_1 2, unit M_0 2", 6, "whole", 2),
    ),
    "many taps": (
        ((1, 9, 10), 8, {"padding": 3}, (7, 7)),
        plan(8, 8, "M_1 9, M_0 10", "task 30, unit M_0 5", 49, "loop 7", 2),
    ),
    "one dimension": (
        ((3, 11), 20, {"padding": 2}, (5,)),
        plan(20, 16, "M_1 3, M_0 12 of 11", "task 12, unit M_0 4", 5, "whole", 2),
    ),
    "three dimensions": (
        ((1, 3, 4, 6), 8, {"padding": 1}, (3, 3, 3)),
        plan(8, 8, "M_2 3, M_1 4, M_0 6", "task 12, unit M_1 2, unit M_0 3", 27, "loop 9", 2),
    ),
}
IMAGE = {1: "W", 2: "HW", 3: "DHW"}


def problem(case, dtype, said=None):
    (n, *image), c, how, taps = case
    kernel = kernels.conv(taps, dtype, groups=c, **how)
    sizes = {"N": n, **dict(zip(IMAGE[len(taps)], image, strict=True)), "C": c, "F": c, "CG": 1}
    made = kernel_for(kernel, sizes, target="gpu:hopper", **({} if said is None else {"plan": said}))
    kind, rng = made.module.host.args[0].type.dtype.numpy, np.random.default_rng(sum(image))
    x, f = (rng.integers(-4, 5, shape).astype(kind) for shape in ((n, *image, c), (c, *taps, 1)))
    return kernel, made, x, f


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_gives_what_the_executor_does(name, dtype):
    case, said = CASES[name]
    kernel, made, x, f = problem(case, dtype, said)
    assert made.text("plan").strip() == said
    assert str(parse_plan(said)) == "; ".join(said.splitlines())
    wanted = tilewright.compile(kernel, target="executor")(x, f)
    for level in ("block", "loop"):
        found = np.full(wanted.shape, np.nan, wanted.dtype)
        compile_text(made.text(level), "interpreter")(x, f, found)
        assert (found == wanted).all(), level


@pytest.mark.parametrize("name", CASES)
def test_windows_lie_in_registers(name):
    case, said = CASES[name]
    _, made, _, _ = problem(case, "bf16", said)
    shared = [line for line in made.text("loop").splitlines() if "alloc shared" in line]
    assert not any("x_part" in line or "carried" in line for line in shared)


def test_integers_are_added_up_in_boxes():
    (image, c, how, taps), said = CASES["lines and columns"]
    kernel, made, x, f = problem((image, c, how, taps), "i8", said)
    wanted = tilewright.compile(kernel, target="executor")(x, f)
    found = np.full(wanted.shape, 99, wanted.dtype)
    compile_text(made.text("loop"), "interpreter")(x, f, found)
    assert (found == wanted).all()


def test_several_filters_for_a_channel_stay_as_they_were():
    kernel = kernels.conv((3, 3), "f32", groups=12, padding=1)
    made = kernel_for(kernel, {"N": 2, "H": 7, "W": 5, "C": 12, "F": 24, "CG": 1}, target="gpu:hopper")
    rng = np.random.default_rng(2)
    x, f = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((2, 7, 5, 12), (24, 3, 3, 1)))
    wanted = tilewright.compile(kernel, target="executor")(x, f)
    found = np.full(wanted.shape, np.nan, np.float32)
    compile_text(made.text("host"), "interpreter")(x, f, found)
    assert (found == wanted).all()


M, N, Q, C, F, K = (getattr(tkl.sym, name) for name in "MNQCFK")


@tkw.wave()
def residual(
    x: tkl.Memory[N, Q, C, tkl.GLOBAL_ADDRESS_SPACE, tkl.bf16],
    w: tkl.Memory[K, C, F, tkl.GLOBAL_ADDRESS_SPACE, tkl.bf16],
    r: tkl.Memory[M, C, F, tkl.GLOBAL_ADDRESS_SPACE, tkl.bf16],
    y: tkl.Memory[M, C, F, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
):
    """y = the sum over k of x[n, q + k - 1, c] * w[k, c, f], and twice r: one operand more that has rows.

    There is one filter f for a channel; without this dimension the product has no columns, and would be a sum.
    """
    c, i, k = (tkw.IndexMapping.iterator(n) for n in range(3))
    turned = tkw.IndexMapping(num_iterators=3, inputs={K: i, C: c, F: k}, outputs={C: c, F: k, K: i})
    slid = tkw.IndexMapping(num_iterators=3, inputs={N: i // Q, Q: i % Q + k - 1, C: c}, outputs={C: c, M: i, K: k})

    @tkw.iterate(K, init_args=[tkl.Register[C, M, F, tkl.f32](0)])
    def total(acc):
        return tkw.mma(tkw.read(x, mapping=slid, otherwise=0), tkw.read(w, mapping=turned), acc)

    more = tkw.cast(tkw.read(r), tkl.f32)
    tkw.write(tkw.permute(total, [M, C, F]) + more + more, y)


def boxed_residual(row):
    sizes = {"N": 3, "Q": 10, "C": 24, "F": 1, "K": 3, "M": 30}
    own = kernel_for(residual, sizes, target="gpu:hopper").plan.lines()
    assert "mma by loops" in own
    lines = [row if x.startswith("axis M ") else x for x in own]
    lines = ["axis K = (K 3): whole" if x.startswith("axis K ") else x for x in lines]
    return sizes, kernel_for(residual, sizes, target="gpu:hopper", plan="\n".join(lines))


def test_what_else_has_rows_is_read_result_by_result():
    sizes, made = boxed_residual("axis M = (M_1 3, M_0 10): task 10, unit M_0 5")
    rng, kinds = np.random.default_rng(4), {a.name: a.type.dtype.numpy for a in made.module.host.args}
    shapes = {"x": (3, 10, 24), "w": (3, 24, 1), "r": (30, 24, 1)}
    x, w, r = (rng.integers(-4, 5, shape).astype(kinds[name]) for name, shape in shapes.items())
    wanted = tilewright.compile(residual, sizes, target="executor")(x, w, r)
    for level in ("block", "loop"):
        found = np.full(wanted.shape, np.nan, np.float32)
        compile_text(made.text(level), "interpreter")(x, w, r, found)
        assert (found == wanted).all(), level


def test_boxes_do_not_go_past_a_digit_where_memory_goes_on():
    with pytest.raises(ArgumentError, match="M_0 ends within a box"):
        boxed_residual("axis M = (M_1 3, M_0 12 of 10): task 12, unit M_0 4")


def test_large_batches_have_boxes_and_small_ones_have_none():
    kernel = kernels.conv((3, 3), "bf16", groups=128, padding=1)
    large = kernel_for(kernel, LARGE, target="gpu:hopper")
    assert "unit M_0" in large.text("plan")
    assert "refused  terms: 2.49 of the time" in large.explain()  # results of a lane one by one
    small = kernel_for(kernel, {**LARGE, "N": 1, "H": 14, "W": 14}, target="gpu:hopper")
    assert "unit" not in small.text("plan")
    assert "refused  terms in boxes: 1.06 of the time" in small.explain()


def test_the_chosen_plan_can_be_given():
    kernel = kernels.conv((3, 3), "bf16", groups=128, padding=1)
    large = kernel_for(kernel, LARGE, target="gpu:hopper")
    again = kernel_for(kernel, LARGE, target="gpu:hopper", plan=large.text("plan"))
    assert again.text("block") == large.text("block")


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("unit M_0 4", "unit M_3 4", "`unit M_3 4` splits no digit of M"),
        ("task 24", "task 26", "whole boxes of lanes: a multiple of 4"),
        ("M_0 12 of 9", "M_0 9", "to the end of the last one: `.M_1 7, M_0 12 of 9.`"),
        ("task 24, unit M_0 4", "loop 24, unit M_0 4", "a task has whole boxes"),
    ],
)
def test_what_a_plan_cannot_say_is_refused(before, after, why):
    case, said = CASES["a line's neighbours, past its end"]
    assert before in said
    with pytest.raises(ArgumentError, match=why):
        problem(case, "bf16", said.replace(before, after))


def test_other_machines_with_lanes_plan_boxes_too():
    kernel = kernels.conv((3, 3), "bf16", groups=128, padding=1)
    made = kernel_for(kernel, LARGE, target="gpu:ampere")
    assert "unit M_0" in made.text("plan")
    assert "x_part" not in "".join(x for x in made.text("loop").splitlines() if "alloc shared" in x)
